"""Names of nodes and stores: one counter of ten digits per builder, and a given name uses up an index too.

So naming one operator does not change the generated names of all others (formats §11).
"""

from __future__ import annotations

import re

from millrace.checks import mistake, wrong

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_MAX_LENGTH = 249


def checked_name(name: str) -> str:
    """Return a name if it may be part of a topic's name.

    Raises:
        TopologyError: it is empty, `.`, `..`, longer than 249 characters, or has characters other than ASCII letters, digits,
            `.`, `_` and `-`.
    """
    if not isinstance(name, str):
        raise wrong("the name", "a text", name)
    if not name:
        raise mistake("A name must not be empty")
    if name in (".", ".."):
        raise mistake(f"{name!r} cannot be a name")
    if len(name) > _MAX_LENGTH:
        raise mistake(f"Name {name!r} has {len(name)} characters; {_MAX_LENGTH} is the most a topic name can have")
    if not _LEGAL.fullmatch(name):
        raise mistake(f"Name {name!r} is illegal: only ASCII letters and digits, '.', '_' and '-' are allowed")
    return name


def topic_name(topic: str) -> str:
    """Return the name of a topic if Kafka allows it.

    Raises:
        TopologyError: it does not, or the value is not a text.
    """
    if not isinstance(topic, str):
        raise wrong("the topic", "a text", topic)
    if not _LEGAL.fullmatch(topic) or topic in (".", "..") or len(topic) > _MAX_LENGTH:
        raise mistake(
            f"{topic!r} is not the name of a topic: it may have up to {_MAX_LENGTH} ASCII letters and digits, '.', '_' and '-'. "
            "For a pattern, give re.compile(…)"
        )
    return topic


class Names:
    """The counter of one builder."""

    def __init__(self) -> None:
        self._next = 0

    def _index(self) -> str:
        index = self._next
        self._next += 1
        return f"{index:010d}"

    def processor(self, prefix: str, given: str | None = None, suffix: str = "") -> str:
        """Return the given name with a suffix, or a generated one; either way, one index is used up."""
        generated = prefix + self._index()
        return generated if given is None else checked_name(given + suffix)

    def store(self, prefix: str) -> str:
        """Return a generated store name."""
        return f"{prefix}STATE-STORE-{self._index()}"
