"""The consumer of the simulated cluster, with the part of confluent-kafka's interface that Millrace uses.

It returns the records of its last fetch, so its ends are old, as in reality, and it fails with the errors that librdkafka
would report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientTopicPartition

from millrace.records import TopicPartition
from millrace.testing.simulation.broker import (
    OFFSET_OUT_OF_RANGE,
    Entry,
    RefusedError,
)
from millrace.testing.simulation.host import Host

__all__ = ["SimulatedConsumer", "SimulatedMessage"]

_UNKNOWN_OFFSET: Final = -1001


class SimulatedMessage:
    """A record, or an event of a partition, as a consumer returns it."""

    __slots__ = ("_entry", "_error", "_offset", "_partition", "_topic")

    def __init__(self, partition: TopicPartition, offset: int, entry: Entry | None, error: KafkaError | None) -> None:
        self._topic, self._partition = partition
        self._offset = offset
        self._entry = entry
        self._error = error

    def error(self) -> KafkaError | None:
        """Return what happened, None for a record."""
        return self._error

    def topic(self) -> str:
        """Return its topic."""
        return self._topic

    def partition(self) -> int:
        """Return its partition."""
        return self._partition

    def offset(self) -> int:
        """Return its offset."""
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        """Return (type, ms since the epoch)."""
        return 1, -1 if self._entry is None else self._entry.timestamp

    def key(self) -> bytes | None:
        """Return its key."""
        return None if self._entry is None else self._entry.key

    def value(self) -> bytes | None:
        """Return its value."""
        return None if self._entry is None else self._entry.value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return its headers."""
        return None if self._entry is None or not self._entry.headers else list(self._entry.headers)


class SimulatedConsumer:
    """A consumer with an explicit assignment.

    Args:
        host: its thread.
        committed_only: whether it only reads committed records.
        name: the name of its requests in faults.
    """

    def __init__(self, host: Host, *, committed_only: bool, name: str) -> None:
        self._host = host
        self._committed_only = committed_only
        self._name = name
        self._reading = host.restoring if name == "restore" else host.reading
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._at_end: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._fetched: deque[SimulatedMessage] = deque()

    def assignment(self) -> list[ClientTopicPartition]:
        """Return the assigned partitions."""
        return [ClientTopicPartition(*partition) for partition in self._positions]

    def incremental_assign(self, partitions: Iterable[ClientTopicPartition]) -> None:
        """Read more partitions."""
        for item in partitions:
            self._positions[TopicPartition(item.topic, item.partition)] = item.offset
        self._reading.update(self._positions)

    def incremental_unassign(self, partitions: Iterable[ClientTopicPartition]) -> None:
        """Stop reading partitions."""
        for item in partitions:
            partition = TopicPartition(item.topic, item.partition)
            del self._positions[partition]
            self._reading.discard(partition)
            self._paused.discard(partition)
            self._forget(partition)

    def pause(self, partitions: Iterable[ClientTopicPartition]) -> None:
        """Stop fetching partitions for now; their fetched records are fetched again later."""
        for item in partitions:
            partition = TopicPartition(item.topic, item.partition)
            self._paused.add(partition)
            waiting = [one.offset() for one in self._fetched if (one.topic(), one.partition()) == partition]
            if waiting:
                self._positions[partition] = min(waiting)
            self._forget(partition)

    def resume(self, partitions: Iterable[ClientTopicPartition]) -> None:
        """Fetch paused partitions again."""
        self._paused.difference_update(TopicPartition(item.topic, item.partition) for item in partitions)

    def _forget(self, partition: TopicPartition) -> None:
        self._at_end.pop(partition, None)
        self._fetched = deque(one for one in self._fetched if (one.topic(), one.partition()) != partition)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[SimulatedMessage]:
        """Return fetched records, and fetch more."""
        del timeout
        return self._host.call(self._name, lambda: self._take(num_messages))

    def poll(self, timeout: float = -1) -> SimulatedMessage | None:
        """Return one message, or None; the host waits after this round or step instead of here."""
        self._host.require_alive()
        taken = self._take(1)
        if not taken and self._name == "restore":
            self._host.updater_idle_s = timeout
        elif not taken:
            self._host.idle_s = timeout
        return taken[0] if taken else None

    def _take(self, most: int) -> list[SimulatedMessage]:
        fetched = self._fetched
        taken = [fetched.popleft() for _ in range(min(most, len(fetched)))]
        if not fetched:
            self._fetch()
        return taken

    def _fetch(self) -> None:
        world = self._host.world
        if self._name == "restore" and world.is_behind(self._host.number):
            return
        rng = world.scheduler.rng
        partitions = sorted(self._positions.keys() - self._paused)
        rng.shuffle(partitions)
        for partition in partitions:
            if world.is_down(partition) or rng.random() < 0.2:
                continue
            position = self._positions[partition]
            try:
                entries, position, end = world.broker.fetch(
                    partition, position, rng.choice((1, 3, 100)), committed_only=self._committed_only
                )
            except RefusedError as error:
                code = KafkaError._AUTO_OFFSET_RESET if error.code == OFFSET_OUT_OF_RANGE else error.code  # noqa: SLF001
                self._fetched.append(SimulatedMessage(partition, position, None, KafkaError(code)))
                continue
            self._positions[partition] = position
            self._ends[partition] = end
            self._fetched.extend(SimulatedMessage(partition, entry.offset, entry, None) for entry in entries)
            if position >= end and self._at_end.get(partition) != position:
                self._at_end[partition] = position
                event = KafkaError(KafkaError._PARTITION_EOF)  # noqa: SLF001
                self._fetched.append(SimulatedMessage(partition, position, None, event))

    def get_watermark_offsets(self, partition: ClientTopicPartition, *, cached: bool = False) -> tuple[int, int]:
        """Return the first and last offset as of the last fetch."""
        del cached
        end = self._ends.get(TopicPartition(partition.topic, partition.partition), _UNKNOWN_OFFSET)
        return min(0, end), end

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
