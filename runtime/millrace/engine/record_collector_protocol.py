"""The protocol of the collector that takes a task's output; implemented by the runtime, the test driver and backfills.

A collector belongs to the thread of its tasks. `send` and the functions from `change_sender` are on the path of every record, so
they return nothing and never wait; errors are raised by a later call, at the latest by `flush`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from millrace.records import Headers, TopicPartition
from millrace.state.api import LogChange


class RecordCollector(Protocol):
    """Sends the records of tasks and knows which changelog offsets were acknowledged."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Send one record.

        Args:
            topic: full name of the topic.
            key: serialised key, or None.
            value: serialised value; None is a tombstone.
            timestamp: milliseconds since the epoch; None lets the producer stamp its wall clock.
            headers: sent as they are.
            partition: None chooses as Java's default partitioner does: murmur2 of the key, sticky for null keys.

        Raises:
            ProductionError: an earlier record was refused for good.
            TaskMigratedError: the producer was fenced.
        """

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has (at least 1).

        Raises:
            StreamsTimeoutError: the topic's metadata could not be read in time.
        """

    def change_sender(self, partition: TopicPartition) -> LogChange:
        """Return the function that sends changes to one changelog partition."""

    def flush(self) -> None:
        """Wait until every record sent so far is acknowledged.

        Raises:
            ProductionError: a record was refused for good or not delivered in time.
            TaskMigratedError: the producer was fenced.
        """

    def changelog_offsets(self) -> Mapping[TopicPartition, int]:
        """Return, per changelog partition written so far, the offset of its last acknowledged record."""
