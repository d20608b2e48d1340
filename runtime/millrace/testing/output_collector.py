"""The record collector of tests: keeps what a task sends, in order, and counts offsets like a broker with one partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from millrace.checks import shown, timestamp_ms
from millrace.errors import SerializationError
from millrace.records import Headers, TopicPartition
from millrace.state.api import LogChange


class ProducedRecord(NamedTuple):
    """One record as it was passed to the producer."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int | None
    """None: the producer would set its wall clock."""
    headers: Headers
    partition: int | None
    """None: the key determines the partition."""


class CapturingCollector:
    """Keeps every record that is sent.

    Args:
        partition_count: returns how many partitions a topic has, for partitioners.
    """

    def __init__(self, partition_count: Callable[[str], int] = lambda _topic: 1) -> None:
        self.partition_count = partition_count
        self.captured: list[ProducedRecord] = []
        """Records that were sent and not taken yet."""
        self._offsets: dict[TopicPartition, int] = {}

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Keep one record.

        Raises:
            SerializationError: key or value is something else than bytes, which a producer does not take.
            InvalidTimestampError: the timestamp is no whole number.
        """
        self.captured.append(_produced(topic, key, value, timestamp, headers, partition))

    def change_sender(self, partition: TopicPartition) -> LogChange:
        """Return a function that sends changes to one changelog partition."""
        topic, number = partition
        captured, offsets = self.captured, self._offsets

        def log_change(key: bytes, value: bytes | None, timestamp: int | None, headers: Headers) -> None:
            offsets[partition] = offsets.get(partition, -1) + 1
            captured.append(_produced(topic, key, value, timestamp, headers, number))

        return log_change

    def take(self) -> list[ProducedRecord]:
        """Return what was sent since the last call."""
        taken = self.captured[:]
        self.captured.clear()
        return taken

    def flush(self) -> None:
        """Do nothing: captured records are acknowledged."""

    def changelog_offsets(self) -> Mapping[TopicPartition, int]:
        """Return the offset of the last change in each changelog partition."""
        return dict(self._offsets)


def _produced(
    topic: str, key: bytes | None, value: bytes | None, timestamp: int | None, headers: Headers, partition: int | None
) -> ProducedRecord:
    """Return what a producer would send, refusing what it would refuse."""
    for which, data in ("key", key), ("value", value):
        if not isinstance(data, bytes | str | None):
            raise SerializationError(f"The {which} of a record for topic {topic} must be bytes, not {shown(data)}")
    if timestamp is not None:
        timestamp = timestamp_ms(timestamp, lambda: f"The timestamp of a record for topic {topic}", -(2**63))
    return ProducedRecord(topic, key, value, timestamp, headers, partition)
