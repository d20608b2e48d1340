"""Settings that carry credentials must never show them, whatever logs or prints them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from millrace.references import Hidden

_SECRET_KEY = re.compile(
    r"(password|passwd|secret|jaas|\.key\.pem$|ssl\.keystore\.key|token$|credential|sasl_plain_username)"
)
HIDDEN = "[hidden]"


def is_secret(key: str) -> bool:
    """Return whether a setting's value must not be shown."""
    return _SECRET_KEY.search(key) is not None


class Settings(dict[str, Any]):
    """A client's settings: a plain dict, except that printing it hides passwords, keys, tokens and what comes from files."""

    on_open: Callable[[Any], None] | None = None
    """Told of the client that is opened with them."""

    def __repr__(self) -> str:
        return repr(dict(self.shown()))

    __str__ = __repr__

    def shown(self) -> Iterator[tuple[str, Any]]:
        """Iterate the settings with secret values replaced."""
        return ((key, HIDDEN if is_secret(key) or isinstance(value, Hidden) else value) for key, value in self.items())
