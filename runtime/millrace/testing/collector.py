"""The record collector of tests: keeps what a task sends, in order, and counts offsets as a broker with one partition would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from millrace.records import Headers, TopicPartition
from millrace.state.api import LogChange


class ProducedRecord(NamedTuple):
    """One record as it was handed to the producer."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int | None
    """None: the producer would stamp its wall clock."""
    headers: Headers
    partition: int | None
    """None: the sender left the choice to the key."""


class CapturingCollector:
    """Keeps every record sent.

    Args:
        partition_count: how many partitions a topic has, for partitioners.
    """

    def __init__(self, partition_count: Callable[[str], int] = lambda _topic: 1) -> None:
        self.partition_count = partition_count
        self.captured: list[ProducedRecord] = []
        """Sent and not taken yet."""
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
        """Keep one record."""
        self.captured.append(ProducedRecord(topic, key, value, timestamp, headers, partition))

    def change_sender(self, partition: TopicPartition) -> LogChange:
        """Return the function that sends changes to one changelog partition."""
        topic, number = partition
        captured, offsets = self.captured, self._offsets

        def log_change(key: bytes, value: bytes | None, timestamp: int | None, headers: Headers) -> None:
            offsets[partition] = offsets.get(partition, -1) + 1
            captured.append(ProducedRecord(topic, key, value, timestamp, headers, number))

        return log_change

    def take(self) -> list[ProducedRecord]:
        """Return what was sent since the last call."""
        taken = self.captured[:]
        self.captured.clear()
        return taken

    def flush(self) -> None:
        """Do nothing: what is captured is acknowledged."""

    def changelog_offsets(self) -> Mapping[TopicPartition, int]:
        """Return the offset of the last change per changelog partition."""
        return dict(self._offsets)
