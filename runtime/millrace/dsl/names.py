"""Names of nodes and stores: one counter of ten digits per builder, and a given name uses up an index too.

So naming one operator does not change the generated names of all others (formats §11).
"""

from __future__ import annotations

from millrace.checks import LEGAL_IN_TOPICS, LONGEST_NAME, checked_name, mistake, wrong


def topic_name(topic: str) -> str:
    """Return the name of a topic if Kafka allows it.

    Raises:
        TopologyError: it does not, or the value is not a text.
    """
    if not isinstance(topic, str):
        raise wrong("the topic", "a text", topic)
    if not LEGAL_IN_TOPICS.fullmatch(topic) or topic in (".", "..") or len(topic) > LONGEST_NAME:
        raise mistake(
            f"{topic!r} is not the name of a topic: it may have up to {LONGEST_NAME} ASCII letters and digits, '.', '_' and '-'. "
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
