"""Writes one partition of a changelog or an output: its records, and tombstones for the keys that it holds besides.

The driver does so for all partitions in its transaction. If there are several, an executor does for each changelog partition, and
for those of outputs if they are too many; `millrace.backfill.publish` says when it may.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

import pyarrow as pa

from millrace.backfill.kafka_history import backfill_clients, read_records
from millrace.backfill.packing import Size, merged, size_of
from millrace.backfill.preconditions import NOTHING_WRITTEN
from millrace.backfill.rows import Row, headers_of, to_arrow, values_of
from millrace.backfill.split_outputs import SplitOutputs
from millrace.backfill.writer import Writer
from millrace.config import StreamsConfig
from millrace.errors import ConfigError, TaskMigratedError
from millrace.garbage import MANY_RECORDS, rarely_collected
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.offsets import earliest_offsets, latest_offsets
from millrace.plan.backfill_marks import are_marked
from millrace.plan.topology_plan import TopologyPlan
from millrace.records import NO_HEADERS, UNKNOWN_TIMESTAMP, RawRecord, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from millrace.kafka.client_settings import ClientSettings

__all__ = [
    "WRITTEN_DDL",
    "Changes",
    "ExecutorTombstones",
    "ExecutorWrite",
    "OldRecords",
    "Written",
    "old_records",
    "transactional_id",
    "versioned_changelogs",
]

WRITTEN_DDL: Final = "topic string, partition bigint, records bigint, bytes bigint, tombstones bigint"
"""`Written` in Spark."""
_BATCH: Final = 10_000
_MARK_GONE: Final = (
    "Another backfill of this application was started, or the application was reset: its offsets no longer have this one's mark, "
    "so it writes nothing more"
)


class Written(NamedTuple):
    """What was written to one partition."""

    topic: str
    partition: int
    records: int
    bytes: int
    """Of keys, values and headers."""
    tombstones: int
    """For keys that an earlier run had left."""


class OldRecords(NamedTuple):
    """Which offsets a changelog partition has before anything is written to it."""

    start: int
    stable_end: int
    """Where the first open transaction begins: one of the application's, as those of earlier backfills have been ended."""
    end: int


def versioned_changelogs(plan: TopologyPlan) -> frozenset[str]:
    """Return the changelogs of versioned stores."""
    stores = (store for item in plan.subtopologies for store in item.stores)
    return frozenset(store.changelog_topic for store in stores if store.kind == "versioned" and store.changelog_topic)


def old_records(admin: AdminClient, targets: list[TopicPartition]) -> dict[TopicPartition, OldRecords]:
    """Return what partitions of changelogs have now."""
    starts, ends = earliest_offsets(admin, targets), latest_offsets(admin, targets)
    stable = latest_offsets(admin, targets, committed_only=True)
    return {target: OldRecords(starts[target], min(stable[target], ends[target]), ends[target]) for target in targets}


def transactional_id(application_id: str, target: TopicPartition) -> str:
    """Return the id under which an executor writes a partition of a changelog or an output."""
    return f"{application_id}-backfill-{target}"


@dataclass(frozen=True, slots=True)
class Changes:
    """Writes partitions of changelogs and outputs; pickled into the executors."""

    settings: Mapping[str, object]
    old: Mapping[TopicPartition, OldRecords]
    """Changelog partition → what it has."""
    versioned: frozenset[str]
    mark: str
    """What the group's offsets are marked with while executors write."""
    marked: Collection[TopicPartition] = frozenset()
    """Which of them; see `are_marked`."""

    def write(
        self, writer: Writer, clients: ClientSettings, target: TopicPartition, batches: Iterator[pa.RecordBatch]
    ) -> Written:
        """Write one partition in the writer's transaction: its records, and tombstones for what it holds besides."""
        left = self._held(clients, target)
        written = Size()
        for batch in batches:
            keys, timestamps = values_of(batch, "key"), values_of(batch, "timestamp")
            writer.send(target, zip(keys, values_of(batch, "value"), timestamps, headers_of(batch), strict=True))
            written = written.plus(*size_of(batch))
            self._discard(left, target, keys, timestamps)
        if left and target.topic in self.versioned:
            raise ConfigError(_unknown_versions(target, len(left)))
        writer.send(target, ((key, None, timestamp, NO_HEADERS) for key, timestamp in left.items()))
        return Written(*target, *written, len(left))

    def left(
        self, clients: ClientSettings, target: TopicPartition, batches: Iterator[pa.RecordBatch]
    ) -> dict[bytes, int]:
        """Return the keys, with their timestamps, that one partition holds besides those of its records.

        Raises:
            ConfigError: it is that of a versioned store.
        """
        left = self._held(clients, target)
        for batch in batches:
            self._discard(left, target, values_of(batch, "key"), values_of(batch, "timestamp"))
        if left and target.topic in self.versioned:
            raise ConfigError(f"{_unknown_versions(target, len(left))}; {NOTHING_WRITTEN}")
        return left

    def _discard(
        self, left: dict[bytes, int], target: TopicPartition, keys: Sequence[bytes | None], timestamps: Sequence[int]
    ) -> None:
        if left:
            versioned = target.topic in self.versioned
            for key, timestamp in zip(keys, timestamps, strict=True):
                left.pop(_identity(key, timestamp or 1) if versioned else key or b"", None)

    def _held(self, clients: ClientSettings, target: TopicPartition) -> dict[bytes, int]:
        """Return the keys that a changelog partition holds now, for readers of committed records or for readers of all.

        What retention deletes meanwhile is not missed: it needs no tombstones.
        """
        old = self.old.get(target)
        if old is None:
            return {}
        committed = partial(read_records, clients, target, old.start, old.stable_end)
        if target.topic in self.versioned:
            return _versions(committed())
        found, deletes = _last_values(read_records(clients, target, old.start, old.end, committed_only=False))
        if deletes:  # of a tombstone that was aborted, readers of committed records still see the key
            found = _last_values(committed())[0] | found
        return found


def _versions(batches: Generator[list[RawRecord], None, None]) -> dict[bytes, int]:
    """Return the versions that are left in a changelog, with their timestamps."""
    found: dict[bytes, int] = {}
    key: Any
    with closing(batches):
        for batch in batches:
            for *_, timestamp, key, _, _ in batch:
                found[_identity(key, timestamp)] = timestamp
    return found


def _last_values(batches: Generator[list[RawRecord], None, None]) -> tuple[dict[bytes, int], bool]:
    """Return the keys that have a value in the end, with its timestamp, and whether others have been deleted."""
    found: dict[bytes, int] = {}
    deletes = False
    key: Any
    with closing(batches):
        for batch in batches:
            for *_, timestamp, key, value, _ in batch:
                if value is not None:
                    found[key] = timestamp
                elif found.pop(key, None) is not None:
                    deletes = True
    return found, deletes


def _unknown_versions(target: TopicPartition, number: int) -> str:
    """Return why a partition of a versioned store's changelog cannot get what was computed."""
    return (
        f"Changelog {target} holds {number} versions that the backfill has not computed, and versions cannot be deleted one by "
        "one: reset the application first (`millrace reset`)"
    )


def _identity(key: bytes | None, timestamp: int) -> bytes:
    return (key or b"") + timestamp.to_bytes(8, "big", signed=True)


class ExecutorTombstones:
    """Returns, as rows, tombstones for what one changelog partition holds besides its rows, of which there is at least a marker.

    Raises:
        ConfigError: these would be versions.
    """

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the tombstones for the rows of one Spark partition.

        Their numbers depend on nothing but their keys: Spark may run this again, and use some of its rows of both runs, and what
        Kafka compacts or deletes in between changes the order of keys.
        """
        target, records = _records_of(batches)
        clients = backfill_clients(StreamsConfig.of(self._changes.settings))
        with rarely_collected(*MANY_RECORDS):
            left = iter(self._changes.left(clients, target, records).items())
        while some := list(islice(left, _BATCH)):
            yield to_arrow(
                [
                    Row(*target, UNKNOWN_TIMESTAMP, "", crc32(key), timestamp, key, None, NO_HEADERS)
                    for key, timestamp in some
                ]
            )


class ExecutorWrite:
    """Writes one partition: that of its rows, of which there is at least a marker.

    Args:
        changes: writes it.
        outputs: which partitions are of outputs; None if there are none.
    """

    def __init__(self, changes: Changes, outputs: SplitOutputs | None = None) -> None:
        self._changes = changes
        self._outputs = outputs

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of one Spark partition, and return what was written."""
        target, records = _records_of(batches)
        config = StreamsConfig.of(self._changes.settings)
        clients = backfill_clients(config)
        with GroupAdmin(clients) as group:
            confirm = partial(self._check_mark, group)
            confirm()  # whose mark is gone must not fence the executors of a later backfill
            writer = Writer(clients, transactional_id(config.application_id, target))
            try:
                confirm()
                outputs = self._outputs if self._outputs is not None and target in self._outputs.targets else None
                earlier = None if outputs is None else outputs.written(group, target)
                if earlier is not None:
                    written = Written(*target, earlier, 0, 0)
                else:
                    with rarely_collected(*MANY_RECORDS), writer.transaction():
                        written = self._changes.write(writer, clients, target, records)
                        if outputs is not None:
                            writer.add_offsets(outputs.group_id, outputs.writing(target, written.records))
                        writer.commit(config.application_id, {}, confirm)
            finally:
                writer.close()
        yield pa.RecordBatch.from_pylist([written._asdict()])

    def _check_mark(self, group: GroupAdmin) -> None:
        if not are_marked(group.positions(), self._changes.marked, self._changes.mark):
            raise TaskMigratedError(_MARK_GONE)


def _records_of(batches: Iterator[pa.RecordBatch]) -> tuple[TopicPartition, Iterator[pa.RecordBatch]]:
    """Return the partition of rows, and their records in order."""
    first = next(batches)
    target = TopicPartition(first.column("topic")[0].as_py(), first.column("partition")[0].as_py())
    return target, merged(chain([first], batches), frozenset())
