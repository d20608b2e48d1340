"""The record collector of a backfill: sorts what a task sends into rows for other tasks, outputs and changelogs.

Records that are packed get their partition in `packing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, StrEnum, auto
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from millrace.backfill.changes import CompactedChanges
from millrace.backfill.packing import Changed, PackedTopic, Size, bytes_of, packed_changes
from millrace.backfill.rows import Row
from millrace.engine.partitioner import partition_for_key
from millrace.engine.task_state import TaskTimes
from millrace.errors import TopologyError
from millrace.records import UNKNOWN_TIMESTAMP, Headers, TaskId, TopicPartition, new_tuple
from millrace.state.api import LogChange

_LEAST_BYTES = 1024 * 1024
"""How much memory the last records of an output partition may have in any case."""
_ANY_PARTITION = 2**31 - 1
"""The partitions of a topic that does not exist and is not written: whatever a partitioner chooses is right."""


class Outputs(StrEnum):
    """Which records of output topics a backfill keeps."""

    NONE = "none"
    LAST = "last"
    """The last record of each key, by its timestamp if several tasks send it, and every record without a key."""
    ALL = "all"


class Topics(NamedTuple):
    """What a collector has to know about topics."""

    partitions: Mapping[str, int]
    """Of every topic that exists or will."""
    read: frozenset[str]
    """By the application, its global stores included."""
    shuffled: frozenset[str]
    """Read by the application, and known to be written by it."""
    circular: frozenset[str]
    """Those of them that the task's stage both writes and reads."""
    versioned: frozenset[str]
    """Changelogs of versioned stores, of which every change is kept."""
    numbered: frozenset[str]
    """Changelogs of window stores that retain duplicates: with fewer records than puts, numbers would be given again."""
    dead_letters: str | None


class _Route(Enum):
    DISCARD = auto()
    LAST_PER_KEY = auto()
    PACKED = auto()
    CIRCULAR = auto()


class _Target:
    """Where the records of one topic go."""

    __slots__ = ("packed", "partitions", "route")

    def __init__(self, route: _Route, partitions: int, packed: PackedTopic | None) -> None:
        self.route = route
        self.partitions = partitions
        self.packed = packed


class BackfillCollector:
    """Takes the output of one task.

    Args:
        task: whose.
        directory: scratch space on disk.
        topics: what is known about topics.
        outputs: what to keep of topics that the application does not read.
        limit_bytes: memory for the last records of each topic, shared by its partitions, and for what waits to be packed.
    """

    def __init__(self, task: TaskId, directory: Path, topics: Topics, *, outputs: Outputs, limit_bytes: int) -> None:
        self.times = TaskTimes()
        """The task's clocks; the task has them once it exists."""
        self.reached = UNKNOWN_TIMESTAMP
        """The largest `Row.reached` of a record that came back from the task's own stage."""
        self._task = task
        self._name = str(task)
        self._directory = directory
        self._topics = topics
        self._outputs = outputs
        self._limit = limit_bytes
        self._rows: list[Row] = []
        self._number = 0
        self._targets: dict[str, _Target] = {}
        self._sizes: dict[str, Size] = {}
        self._single_bytes = 0
        self._last: dict[TopicPartition, CompactedChanges] = {}
        self._changes: dict[TopicPartition, CompactedChanges] = {}

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Take one record; see `RecordCollector.send`."""
        target = self._targets.get(topic) or self._target(topic)
        route = target.route
        if route is _Route.DISCARD:
            return
        at = max(self.times.stream_time, 0) if timestamp is None else timestamp
        if target.packed is not None:
            target.packed.sent.append((at, key, value, headers, partition))
            return
        if partition is None:
            count = target.partitions
            partition = self._task.partition % count if key is None else partition_for_key(key, count)
        if route is _Route.LAST_PER_KEY and key is not None:
            self._compacted(self._last, TopicPartition(topic, partition)).log_change(key, value, at, headers)
            return
        self._number = number = self._number + 1
        reached = max(at, self.reached, self.times.stream_time)
        row = (topic, partition, reached, self._name, number, at, key, value, headers, 0)
        self._single_bytes += bytes_of(key, value, headers)
        self._rows.append(new_tuple(Row, row))

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has.

        Raises:
            TopologyError: the topic does not exist, and its records are to be kept.
        """
        found = self._topics.partitions.get(topic)
        if found is not None:
            return found
        if self._outputs is Outputs.NONE:
            return _ANY_PARTITION
        raise TopologyError(
            f"Task {self._name} sends to topic {topic}, which does not exist: create it, or have no outputs kept"
        )

    def change_sender(self, partition: TopicPartition) -> LogChange:
        """Return the function that takes the changes of one changelog partition."""
        return self._compacted(self._changes, partition).log_change

    def flush(self) -> None:
        """Do nothing: rows are handed on by the host."""

    def changelog_offsets(self) -> Mapping[TopicPartition, int]:
        """Return nothing: offsets are known once the changelogs are written."""
        return {}

    def count_sent(self) -> int:
        """Return how many bytes have been sent, without what only the last record of each key is kept of."""
        packed = (target.packed.count() for target in self._targets.values() if target.packed is not None)
        return self._single_bytes + sum(packed)

    def take(self, *, everything: bool = False) -> list[Row]:
        """Return the rows since the last call; those for other tasks only once there are many, or if everything is wanted."""
        rows, self._rows = self._rows, []
        for row in rows:
            self._count(row.topic, Size(1, bytes_of(row.key, row.value, row.headers)))
        packed = [target.packed for target in self._targets.values() if target.packed is not None]
        for topic in packed:
            rows += topic.take(everything=everything)
        if sum(topic.waiting for topic in packed) > self._limit:  # of many topics, each of which has little
            for topic in packed:
                rows += topic.take(everything=True)
        return rows

    def final_rows(self, stream_time: int) -> Iterator[Row]:
        """Return the last record of each key of output topics, and what the changelogs hold; deletions only if they matter.

        Args:
            stream_time: of the task: the timestamp of changes that have none.
        """
        late = max(stream_time, 0)
        for target, changes in chain(self._last.items(), self._changes.items()):
            left: Iterator[Changed] = (
                (late if timestamp is None else timestamp, key, value, headers)
                for key, (value, timestamp, headers) in changes.rows()
            )
            for row, size in packed_changes(target, self._name, self._number + 1, left):
                self._number += size.records
                self._count(target.topic, size)
                yield row

    def last_kept(self) -> list[TopicPartition]:
        """Return the partitions of output topics of which the last record of each key was kept."""
        return sorted(self._last)

    def sizes(self) -> dict[str, Size]:
        """Return how much was sent to each topic, in all rows that were returned."""
        packed = {name: target.packed.size for name, target in self._targets.items() if target.packed is not None}
        return {name: size for name, size in {**packed, **self._sizes}.items() if size.records}

    def _count(self, topic: str, size: Size) -> None:
        self._sizes[topic] = self._sizes.get(topic, Size()).plus(*size)

    def close(self) -> None:
        """Delete what is on disk."""
        for changes in chain(self._last.values(), self._changes.values()):
            changes.close()

    def _target(self, topic: str) -> _Target:
        topics = self._topics
        if topic in topics.circular:
            route = _Route.CIRCULAR
        elif topic in topics.shuffled:
            route = _Route.PACKED
        elif topic in topics.read:
            raise TopologyError(
                f"Task {self._name} sends to topic {topic}, which the application reads, but the topology does not say so: "
                "the topic's name is computed for each record, or it is the topic for dead letters. Such a loop cannot be "
                "computed over history: name the topic in the sink"
            )
        elif self._outputs is Outputs.NONE:
            route = _Route.DISCARD
        elif self._outputs is Outputs.LAST and topic != topics.dead_letters:
            route = _Route.LAST_PER_KEY
        else:
            route = _Route.PACKED
        partitions = 1 if route is _Route.DISCARD else self.partition_count(topic)
        packed = None
        if route is _Route.PACKED:
            packed = PackedTopic(topic, partitions, self._name, self._task.partition % partitions)
        found = self._targets[topic] = _Target(route, partitions, packed)
        return found

    def _compacted(self, found: dict[TopicPartition, CompactedChanges], partition: TopicPartition) -> CompactedChanges:
        changes = found.get(partition)
        if changes is None:
            folder = self._directory / f"{partition.topic}-{partition.partition}"
            every = partition.topic in self._topics.versioned
            output = found is self._last
            limit = max(_LEAST_BYTES, self._limit // self.partition_count(partition.topic)) if output else self._limit
            deletions = output or partition.topic in self._topics.numbered
            changes = found[partition] = CompactedChanges(folder, limit_bytes=limit, every=every, deletions=deletions)
        return changes


__all__ = ["BackfillCollector", "Outputs", "Topics"]
