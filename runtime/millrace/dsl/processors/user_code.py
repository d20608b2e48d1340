"""How what a user's function raised gets out of nested processor code, told apart from errors of stores and of children."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class UserCodeError(Exception):
    """Carries what a user's function raised up to the node, which hands it to the processing exception handler."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def call_user(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function.

    Raises:
        UserCodeError: the function raised.
    """
    try:
        return function(*arguments)
    except Exception as error:
        raise UserCodeError(error) from error
