"""What a backfill is compared with: the engine itself, hosted in the test's process."""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from millrace.backfill.executor import TaskFunction
from millrace.backfill.history import Backfill
from millrace.backfill.packing import unpacked
from millrace.backfill.rows import REPORT, Row, headers_of, to_arrow, values_of
from millrace.backfill.stages import plan_stages, shuffled_topics
from millrace.config import StreamsConfig
from millrace.engine.global_task import GlobalStateTask
from millrace.engine.partitioner import partition_for_key
from millrace.engine.task import StreamTask
from millrace.plan.partition_counts import resolve_partition_counts
from millrace.plan.topology_plan import repartition_topics
from millrace.records import NO_HEADERS, ConsumedRecord, Headers, TaskId, TopicPartition

SETTINGS = {
    "application.id": "app",
    "default.key.serde": "string",
    "default.value.serde": "string",
    "__emit.interval.ms.kstreams.windowed.aggregation__": "0",
    "__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": "0",
    "statestore.cache.max.bytes": "0",
}

ARROW_ROWS = 1_000
"""Rows in a batch of Arrow; Spark's setting has the same value in these tests."""

Input = tuple[str, "bytes | None", "bytes | None", int, "Sequence[tuple[str, bytes | None]]"]
"""topic, key, value, timestamp, headers."""


@dataclass
class Partitions:
    """A history in memory."""

    counts: Mapping[str, int]
    records: dict[TopicPartition, list[ConsumedRecord]]
    shuffled: Mapping[str, int | None] = field(default_factory=dict)
    batch: int = 50

    @classmethod
    def of(cls, inputs: Sequence[Input], counts: Mapping[str, int]) -> Partitions:
        """Distribute records as a producer does; those without a key in turn."""
        records: dict[TopicPartition, list[ConsumedRecord]] = {}
        for index, (topic, key, value, timestamp, headers) in enumerate(inputs):
            count = counts[topic]
            at = TopicPartition(topic, index % count if key is None else partition_for_key(key, count))
            known = records.setdefault(at, [])
            known.append(ConsumedRecord(*at, len(known), timestamp, key, value, Headers(headers)))
        return cls(counts, records)

    def partition_counts(self) -> Mapping[str, int]:
        """Return the partitions of every topic."""
        return self.counts

    def read(self, partition: TopicPartition) -> Iterator[Sequence[ConsumedRecord]]:
        """Read a partition in small batches."""
        records = self.records.get(partition, [])
        for start in range(0, len(records), self.batch):
            yield records[start : start + self.batch]

    def size(self, partition: TopicPartition) -> int:
        """Return how many records a partition has."""
        return len(self.records.get(partition, []))

    def rows(self, _spark: Any) -> None:
        """Return nothing: all of it is read."""


@dataclass
class Result:
    """What a topology has computed, comparable."""

    outputs: dict[tuple[str, int, str], list[tuple[Any, ...]]] = field(default_factory=dict)
    """(topic, partition, task) → its records in order."""
    changelogs: dict[tuple[str, int], dict[bytes, Any]] = field(default_factory=dict)
    """(topic, partition) → what log compaction leaves; of versioned stores, all changes of a key."""
    tasks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Task → processed, dropped."""


@dataclass(frozen=True)
class Sent:
    """A record that a task sent, in the order in which it did."""

    topic: str
    partition: int
    task: str
    number: int
    reached: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Collector:
    """Keeps what one task sends."""

    def __init__(
        self,
        task: TaskId,
        counts: Mapping[str, int],
        result: Result,
        versioned: frozenset[str],
        numbered: frozenset[str],
    ) -> None:
        self.sent: list[Sent] = []
        self._numbered = numbered
        self._task = task
        self._counts = counts
        self._result = result
        self._versioned = versioned
        self._reached: dict[tuple[str, int], int] = {}

    def send(self, topic: str, key: Any, value: Any, timestamp: Any, headers: Headers, partition: int | None) -> None:
        """Keep a record."""
        count = self.partition_count(topic)
        if partition is None:
            partition = self._task.partition % count if key is None else partition_for_key(key, count)
        reached = self._reached[topic, partition] = max(timestamp, self._reached.get((topic, partition), -1))
        number = len(self.sent)
        self.sent.append(Sent(topic, partition, str(self._task), number, reached, timestamp, key, value, headers))

    def partition_count(self, topic: str) -> int:
        """Return the partitions of a topic; topics that nobody knows have three."""
        return self._counts.get(topic, 3)

    def change_sender(self, partition: TopicPartition) -> Callable[..., None]:
        """Return a function that keeps changes."""
        changes = self._result.changelogs.setdefault(tuple(partition), {})

        def log(key: bytes, value: bytes | None, timestamp: int | None, headers: Headers) -> None:
            change = (value, timestamp, tuple(headers))
            if partition.topic in self._versioned:
                changes.setdefault(key, []).append(change)
            elif value is None and partition.topic not in self._numbered:
                changes.pop(key, None)
            else:
                changes[key] = change

        return log

    def flush(self) -> None:
        """Do nothing."""

    def changelog_offsets(self) -> Mapping[TopicPartition, int]:
        """Return nothing."""
        return {}


class Engine:
    """Runs a whole application, one task at a time, each with all records of its inputs at once."""

    def __init__(self, topology: Callable[[], Any], config: Mapping[str, Any], history: Partitions) -> None:
        self._config = StreamsConfig.of(config)
        self._built = topology().build(self._config)
        self._plan = self._built.plan()
        self._counts = resolve_partition_counts(self._plan, history.partition_counts())
        self._history = history
        self._all_counts = {**history.counts, **self._counts.topics}
        self._versioned = versioned_changelogs(self._plan)
        self._numbered = frozenset(
            topic
            for part in self._built.subtopologies
            for builder in part.store_builders
            for topic in [part.changelog_topics.get(builder.name)]
            if builder.retain_duplicates and topic is not None
        )
        self.result = Result()

    def run(self) -> Result:
        """Process everything."""
        read = {topic for topics in self._counts.sources.values() for topic in topics}
        internal = repartition_topics(self._plan).keys()
        sent: list[Sent] = []
        with tempfile.TemporaryDirectory(prefix="millrace-reference-") as folder:
            stores = self._global_stores(Path(folder) / "global")
            for stage in plan_stages(self._plan, self._counts):
                tasks = [self._task(task_id, Path(folder), stores) for task_id in stage.tasks]
                for task, _ in tasks:
                    self._feed(task, sent)
                if stage.circular:
                    self._run_together(tasks)
                else:
                    for task, _ in tasks:
                        while step(task):
                            pass
                for task, collector in tasks:
                    self._end(task)
                    sent += collector.sent
            for close in self._closing:
                close()
        for record in sent:
            if record.topic not in internal and record.topic not in read:
                row = (record.key, record.value, record.timestamp, tuple(record.headers))
                self.result.outputs.setdefault((record.topic, record.partition, record.task), []).append(row)
        return self.result

    def _global_stores(self, folder: Path) -> Mapping[str, Any]:
        self._closing: list[Callable[[], None]] = []
        part = self._built.global_subtopology
        if part is None:
            return {}
        task = GlobalStateTask(part, self._config, state_dir=folder, clock=now)
        task.open_stores()
        task.initialize()
        for partition, records in sorted(self._history.records.items()):
            if partition.topic in part.source_topics:
                task.update(partition, records)
        self._closing.append(task.close)
        return task.stores

    def _task(self, task_id: TaskId, folder: Path, stores: Mapping[str, Any]) -> tuple[StreamTask, Collector]:
        collector = Collector(task_id, self._all_counts, self.result, self._versioned, self._numbered)
        partitions = frozenset(
            TopicPartition(topic, task_id.partition)
            for topic in self._counts.sources[task_id.subtopology]
            if task_id.partition < self._counts.topics.get(topic, 0)
        )
        task = StreamTask(
            task_id,
            self._built.subtopology(task_id.subtopology),
            self._config,
            collector,
            state_dir=folder / str(task_id),
            cache=None,
            clock=now,
            input_partitions=partitions,
            global_stores=stores,
        )
        task.open_stores()
        task.initialize()
        return task, collector

    def _feed(self, task: StreamTask, sent: Sequence[Sent]) -> None:
        from_tasks = {record.topic for record in sent}
        # Which of two records with the same timestamp comes first depends on the order of arrival, here and elsewhere.
        for partition in sorted(task.input_partitions, key=lambda at: (at.topic in from_tasks, at)):
            records = self._history.records.get(partition, [])
            arrived = [record for record in sent if (record.topic, record.partition) == partition]
            arrived.sort(key=lambda record: (record.reached, record.task, record.number))
            task.add_records(partition, [*records, *consumed(partition, arrived)])
            task.set_lag(partition, 0)

    def _run_together(self, tasks: Sequence[tuple[StreamTask, Collector]]) -> None:
        """Run tasks that feed each other as an instance would, delivering at once what they send."""
        arrived: dict[TopicPartition, int] = {}
        delivered = dict.fromkeys(range(len(tasks)), 0)
        moving = True
        while moving:
            moving = False
            for index, (task, collector) in enumerate(tasks):
                moving = step(task) or moving
                for record in collector.sent[delivered[index] :]:
                    at = TopicPartition(record.topic, record.partition)
                    for other, _ in tasks:
                        if at in other.input_partitions:
                            offset = arrived[at] = arrived.get(at, -1) + 1
                            other.add_records(at, consumed(at, [record], offset))
                            moving = True
                delivered[index] = len(collector.sent)

    def _end(self, task: StreamTask) -> None:
        counters = task.counters
        task.suspend()
        task.prepare_commit()
        task.post_commit({})
        task.close_clean()
        self.result.tasks[str(task.task_id)] = counters.records_processed, counters.dropped_records


def run_without_spark(backfill: Backfill) -> Result:
    """Run a backfill's tasks in this process, as Spark runs them in its executors; shuffles are sorted lists."""
    plan = backfill.topology().build(StreamsConfig.of(backfill.config)).plan()
    counts = resolve_partition_counts(plan, backfill.history.partition_counts())
    shuffled = shuffled_topics(plan, counts)
    name = uuid.uuid4().hex
    done: list[Row] = []
    for stage in plan_stages(plan, counts):
        function = TaskFunction(name, backfill, stage, counts, shuffled)
        before = [row for row in done if row.topic in stage.upstream]
        rows = _run_stage(function, before)
        previous: list[Row] | None = None
        while stage.circular and (circular := [row for row in rows if row.topic in stage.circular]) != previous:
            previous = circular
            rows = _run_stage(function, [*before, *circular])
        done += rows
    check_sizes(done)
    return result_of(plan, single_rows([row for row in done if row.topic not in shuffled]))


def packed_rows(backfill: Backfill) -> list[Row]:
    """Return what the tasks of a backfill's first stage send, as Spark gets it."""
    plan = backfill.topology().build(StreamsConfig.of(backfill.config)).plan()
    counts = resolve_partition_counts(plan, backfill.history.partition_counts())
    stage = plan_stages(plan, counts)[0]
    return _run_stage(TaskFunction(uuid.uuid4().hex, backfill, stage, counts, shuffled_topics(plan, counts)), [])


def check_sizes(rows: Sequence[Row]) -> None:
    """Check that tasks report as much as they have sent."""
    sent: dict[tuple[str, str], list[int]] = {}
    reported: dict[tuple[str, str], list[int]] = {}
    for row in single_rows(rows):
        if row.topic == REPORT:
            reported.update({(row.task, topic): size for topic, size in json.loads(row.value or b"")["sizes"].items()})
        else:
            size = sent.setdefault((row.task, row.topic), [0, 0])
            size[0] += 1
            size[1] += len(row.key or b"") + len(row.value or b"")
            size[1] += sum(len(name.encode()) + len(value or b"") for name, value in row.headers)
    assert reported == sent


def _run_stage(function: TaskFunction, before: Sequence[Row]) -> list[Row]:
    stage = function.stage
    sent: list[Row] = []
    for index, task in enumerate(stage.tasks):
        sources = function.counts.sources[task.subtopology]
        own = [row for row in before if row.topic in sources and row.partition == task.partition]
        own.sort(key=lambda row: (row.reached, row.topic in stage.circular, row.topic, row.task, row.number))
        first = Row(REPORT, index, -1, "", 0, 0, None, None, NO_HEADERS)
        arrow = pa.Table.from_batches([to_arrow([first, *own])]).to_batches(max_chunksize=ARROW_ROWS)
        for batch in function(iter(arrow)):
            sent += rows_of(batch)
    return sent


def single_rows(rows: Sequence[Row]) -> list[Row]:
    """Return packed rows as single ones."""
    return [row for batch in unpacked(iter([to_arrow(rows)])) for row in rows_of(batch)] if rows else []


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Return the rows of a batch of Arrow."""
    names = [name for name in Row._fields if name in batch.schema.names]
    return list(map(Row, *(headers_of(batch) if name == "headers" else values_of(batch, name) for name in names)))


def collected(rows: DataFrame) -> list[Row]:
    """Return rows of Spark, much faster than `collect` does."""
    return [row for batch in rows.toArrow().to_batches() for row in rows_of(batch)]


def step(task: StreamTask) -> bool:
    """Process one record, and what stream time makes due."""
    before = task.buffered()
    if before:
        task.process(now(), 1)
        task.punctuate_stream_time()
    return task.buffered() < before


def consumed(at: TopicPartition, sent: Sequence[Sent], offset: int = 0) -> list[ConsumedRecord]:
    """Return sent records as a task reads them."""
    return [
        ConsumedRecord(*at, offset + index, record.timestamp, record.key, record.value, record.headers)
        for index, record in enumerate(sent)
    ]


def versioned_changelogs(plan: Any) -> frozenset[str]:
    """Return the changelogs of versioned stores."""
    return frozenset(
        store.changelog_topic for item in plan.subtopologies for store in item.stores if store.kind == "versioned"
    )


def result_of(plan: Any, rows: Sequence[Any]) -> Result:
    """Return what a backfill's rows say, in the form in which the engine's own result is."""
    changelogs = {topic.name for item in plan.subtopologies for topic in item.changelog_topics}
    versioned = versioned_changelogs(plan)
    result = Result()
    for row in sorted(rows, key=lambda row: (row.topic, row.partition, row.reached, row.task, row.number)):
        at = (row.topic, row.partition)
        headers = tuple((header_name, as_bytes(header)) for header_name, header in row.headers or ())
        key, value = as_bytes(row.key), as_bytes(row.value)
        if row.topic == REPORT:
            report = json.loads(value)
            result.tasks[row.task] = report["processed"], report["dropped"]
        elif row.topic in versioned:
            result.changelogs.setdefault(at, {}).setdefault(key, []).append((value, row.timestamp, headers))
        elif row.topic in changelogs:
            assert key not in result.changelogs.get(at, {}), "one record per key"
            result.changelogs.setdefault(at, {})[key] = (value, row.timestamp, headers)
        else:
            result.outputs.setdefault((*at, row.task), []).append((key, value, row.timestamp, headers))
    return result


def as_bytes(value: Any) -> bytes | None:
    """Return bytes as such."""
    return None if value is None else bytes(value)


def differences(expected: Result, got: Result, *, outputs: str = "all") -> list[str]:
    """Compare; an empty list means that both are the same.

    Args:
        expected: the engine's own.
        got: the backfill's.
        outputs: `all`, `last` for the last record of each key, if it is no deletion with its timestamp, `none`.
    """
    found = []
    if outputs != "last" and expected.tasks != got.tasks:
        found.append(f"tasks: {expected.tasks} became {got.tasks}")
    want, have = (_by_key(result) if outputs == "last" else result.outputs for result in (expected, got))
    found += [
        f"output {at}: {want.get(at)} became {have.get(at)}"
        for at in sorted(want.keys() | have.keys())
        if outputs != "none" and want.get(at) != have.get(at)
    ]
    for log in sorted(expected.changelogs.keys() | got.changelogs.keys()):
        a, b = expected.changelogs.get(log, {}), got.changelogs.get(log, {})
        found += [
            f"changelog {log} {key!r}: {a.get(key)} became {b.get(key)}"
            for key in sorted(a.keys() | b.keys())
            if not _same(a.get(key), b.get(key))
        ]
    return found


def _by_key(result: Result) -> dict[Any, Any]:
    return {
        (topic, key): (value, None if value is None else timestamp, headers)
        for (topic, _, _), rows in result.outputs.items()
        for key, value, timestamp, headers in rows
    }


def _same(expected: Any, got: Any) -> bool:
    if expected is None or got is None:
        return expected is got
    if isinstance(expected, list):
        return len(expected) == len(got) and all(map(_same, expected, got))
    return expected[0] == got[0] and expected[2] == got[2] and expected[1] in {None, got[1]}


def now() -> int:
    """Return the wall clock."""
    return int(time.time() * 1000)
