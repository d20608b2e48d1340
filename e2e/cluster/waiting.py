"""Waiting for a condition with a deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.waiting import wait_until

from e2e.cluster.errors import ClusterError

Found = TypeVar("Found")


def wait_for(
    what: str, look: Callable[[], Found], *, timeout_s: float, poll_s: float = 0.2, tail: Callable[[], str] = str
) -> Found:
    """Return the first true value of `look`.

    Args:
        what: What it waits for, for the error.
        look: Called until it returns something true.
        timeout_s: How long it may take.
        poll_s: The pause between two calls.
        tail: Returns details about the current state, for the error.

    Raises:
        ClusterError: It took too long.
    """
    return wait_until(look, lambda: f"{what}. {tail()}", timeout_s, poll_s=poll_s, error=ClusterError)
