"""Runs tasks in Spark's executors: `mapInArrow` calls `TaskFunction` once for each Spark partition, which is one task."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path

import pyarrow as pa

from millrace.backfill.collector import BackfillCollector, Topics
from millrace.backfill.history import Backfill
from millrace.backfill.observation import Exporter, Observer, TaskObservation
from millrace.backfill.packing import bytes_of, merged
from millrace.backfill.rows import REPORT, Row, consumed, rows_of, to_arrow, topics_of, values_of
from millrace.backfill.stages import Stage
from millrace.backfill.task_run import Arrival, Inputs, TaskRun, backfill_config
from millrace.config import StreamsConfig
from millrace.engine.global_task import GlobalStateTask
from millrace.garbage import MANY_RECORDS, rarely_collected
from millrace.plan.partition_counts import PartitionCounts
from millrace.records import NO_HEADERS, RawRecord, TaskId, TopicPartition
from millrace.state.api import StateStore
from millrace.topology.physical_topology import BuiltTopology

_GLOBAL = "millrace-backfill-global-"
_EXPORT_VARIABLES = "OTEL_"
_BATCH_ROWS = 10_000
_BATCH_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class _GlobalStores:
    """The global stores of the job that this process works for."""

    job: str
    task: GlobalStateTask
    directory: Path

    def close(self) -> None:
        """Close them and delete their files."""
        try:
            self.task.close()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)


_global_stores: _GlobalStores | None = None


@dataclass(frozen=True, slots=True)
class TaskFunction:
    """Runs the tasks of one stage.

    Args:
        job: identifies the job among all that a process may work for.
        backfill: what is computed.
        stage: whose tasks.
        counts: partitions of topics.
        shuffled: topics that the application both writes and reads.
        observer: what is told of the tasks.
    """

    job: str
    backfill: Backfill
    stage: Stage
    counts: PartitionCounts
    shuffled: frozenset[str]
    observer: Observer = field(default_factory=Observer)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task of this Spark partition, which its first row names: Spark does not."""
        first = next(batches)
        task_id = self.stage.tasks[first.column("partition")[0].as_py()]
        batches = chain((first,), batches)
        with tempfile.TemporaryDirectory(prefix=f"millrace-backfill-{task_id}-", dir=local_directory()) as folder:
            config = StreamsConfig.of(self.backfill.config)
            exporter = _exporter(self.observer, config)
            with rarely_collected(*MANY_RECORDS), self.observer.task(task_id, exporter) as observation:
                yield from self._run(task_id, config, Path(folder), batches, observation)

    def _run(
        self,
        task_id: TaskId,
        config: StreamsConfig,
        folder: Path,
        batches: Iterator[pa.RecordBatch],
        observation: TaskObservation,
    ) -> Iterator[pa.RecordBatch]:
        backfill = self.backfill
        built = backfill.topology().build(config)
        collector = BackfillCollector(
            task_id, folder / "changes", self._topics(built), outputs=backfill.outputs, limit_bytes=backfill.limit_bytes
        )
        run = TaskRun(
            task_id,
            built.subtopology(task_id.subtopology),
            config,
            collector,
            folder / str(task_id),
            self._inputs(task_id, batches, observation),
            global_stores=self._global_stores(built, config),
            wall_clock_punctuators=backfill.wall_clock_punctuators,
        )
        observation.task = run.task
        try:
            yield from _batches(_rows(run, collector, observation))
        finally:
            run.task.close_dirty()
            collector.close()

    def _topics(self, built: BuiltTopology) -> Topics:
        plan, counts = built.plan(), self.counts
        read = {topic for topics in counts.sources.values() for topic in topics}
        versioned = {
            store.changelog_topic
            for item in plan.subtopologies
            for store in item.stores
            if store.kind == "versioned" and store.changelog_topic is not None
        }
        return Topics(
            partitions={**self.backfill.history.partition_counts(), **counts.topics},
            read=frozenset(read | {store.topic for store in plan.global_stores}),
            shuffled=self.shuffled,
            circular=self.stage.circular,
            versioned=frozenset(versioned),
            numbered=frozenset(_numbered_changelogs(built)),
            dead_letters=plan.dead_letter_topic,
        )

    def _inputs(self, task_id: TaskId, batches: Iterator[pa.RecordBatch], observation: TaskObservation) -> Inputs:
        history, counts, upstream = self.backfill.history, self.counts, self.stage.upstream
        partitions = [
            TopicPartition(topic, task_id.partition)
            for topic in counts.sources[task_id.subtopology]
            if task_id.partition < counts.topics.get(topic, 0)
        ]
        return Inputs(
            read={at: _counted(history.read(at), observation) for at in partitions if at.topic not in upstream},
            arriving=frozenset(at for at in partitions if at.topic in upstream | history.shuffled.keys()),
            arrivals=_counted_arrivals(_arrivals(batches, task_id.partition, self.stage.circular), observation),
            until={at: until for at in partitions if (until := history.shuffled.get(at.topic)) is not None},
        )

    def _global_stores(self, built: BuiltTopology, config: StreamsConfig) -> Mapping[str, StateStore]:
        """Return the global stores, which are restored once per process."""
        global _global_stores  # noqa: PLW0603 (as long as the process: Spark runs many tasks in it)
        if built.global_subtopology is None:
            return {}
        if _global_stores is not None and _global_stores.job != self.job:
            _global_stores.close()
            _global_stores = None
        if _global_stores is None:
            directory = _global_directory()
            settings = backfill_config(config, directory)
            task = GlobalStateTask(built.global_subtopology, settings, state_dir=directory, clock=_now)
            found = _GlobalStores(self.job, task, directory)
            try:
                self._fill(task, built.global_subtopology.source_topics, config.uncommitted_max_bytes)
            except BaseException:  # Spark tries again, maybe in this process
                found.close()
                raise
            _global_stores = found
        return _global_stores.task.stores

    def _fill(self, task: GlobalStateTask, topics: Iterable[str], limit: int) -> None:
        """Open global stores and read all records of their topics."""
        task.open_stores()
        task.initialize()
        history = self.backfill.history
        existing = history.partition_counts()
        for topic in topics:
            for number in range(existing[topic]):
                partition = TopicPartition(topic, number)
                for records in history.read(partition):
                    task.update(partition, records)
                    if task.uncommitted_bytes() > limit:
                        task.commit()
        task.commit()


def _exporter(observer: Observer, config: StreamsConfig) -> Exporter:
    """Return what exports this process's tasks.

    Most backfills export nothing. So OpenTelemetry is only loaded where its variables ask for it, or the program has loaded it.
    """
    for name, value in observer.variables.items():
        os.environ.setdefault(name, value)
    if "opentelemetry.sdk" not in sys.modules and not any(name.startswith(_EXPORT_VARIABLES) for name in os.environ):
        return nullcontext
    from millrace.backfill.telemetry import exported  # noqa: PLC0415 (see above)

    return partial(exported, observer, config)


def _numbered_changelogs(built: BuiltTopology) -> Iterator[str]:
    for part in built.subtopologies:
        for builder in part.store_builders:
            if builder.retain_duplicates and builder.name in part.changelog_topics:
                yield part.changelog_topics[builder.name]


def _global_directory() -> Path:
    """Return a new directory for the global stores of this process.

    Those of processes that have ended are deleted: Spark ends processes without work, which cannot do it themselves then. Each
    executor looks only for its own: as containers on the same disk, others have other processes under the same numbers.
    """
    folder, own = local_directory(), f"@{socket.gethostname()}"
    for left in Path(folder).glob(f"{_GLOBAL}*{own}") if folder else ():
        try:
            os.kill(int(left.name.removeprefix(_GLOBAL).split("-")[0]), 0)
        except ProcessLookupError:
            shutil.rmtree(left, ignore_errors=True)
        except PermissionError:  # another user's process has the number now
            continue
    return Path(tempfile.mkdtemp(own, f"{_GLOBAL}{os.getpid()}-", folder))


def local_directory() -> str | None:
    """Return the disk that Spark gave its executor for scratch files, or None for the system's own choice."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


def _counted(batches: Iterator[Sequence[RawRecord]], observation: TaskObservation) -> Iterator[Sequence[RawRecord]]:
    for records in batches:
        observation.count(records)
        yield records


def _counted_arrivals(arrivals: Iterator[Arrival], observation: TaskObservation) -> Iterator[Arrival]:
    for arrival in arrivals:
        for _, records in arrival.records:
            observation.count(records)
        yield arrival


def _arrivals(batches: Iterator[pa.RecordBatch], partition: int, circular: frozenset[str]) -> Iterator[Arrival]:
    """Return what comes from other tasks, in its order: a batch as a whole, or what comes back from the stage bit by bit."""
    offsets: dict[str, int] = {}
    for batch in merged(batches, circular):
        for part in _parts(batch, circular):
            topics = topics_of(part)
            found = []
            for topic in topics:
                rows = rows_of(part, topic) if len(topics) > 1 else part
                at, offset = TopicPartition(topic, partition), offsets.get(topic, 0)
                offsets[topic] = offset + rows.num_rows
                found.append((at, consumed(rows, at, offset)))
            # In the order of partitions, which decides between records with the same timestamp.
            yield Arrival(part.column("reached")[0].as_py(), topics[0] in circular, sorted(found, key=itemgetter(0)))


def _parts(batch: pa.RecordBatch, circular: frozenset[str]) -> Iterator[pa.RecordBatch]:
    if not circular.intersection(topics_of(batch)):
        yield batch
        return
    kinds = [
        (reached, True) if topic in circular else (-1, False)
        for reached, topic in zip(values_of(batch, "reached"), values_of(batch, "topic"), strict=True)
    ]
    start = 0
    for index in range(1, len(kinds) + 1):
        if index == len(kinds) or kinds[index] != kinds[start]:
            yield batch.slice(start, index - start)
            start = index


def _rows(run: TaskRun, collector: BackfillCollector, observation: TaskObservation) -> Iterator[Row]:
    for rows in run.rows():
        observation.tell()
        yield from rows
    yield _report(run, collector)


def _batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Return rows in batches not much larger than the limit: Java has to hold one, and Arrow takes no more than 2 GB."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += bytes_of(row.key, row.value, row.headers)
        if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield to_arrow(batch)
            batch, size = [], 0
    if batch:
        yield to_arrow(batch)


def _report(run: TaskRun, collector: BackfillCollector) -> Row:
    counters, task_id = run.task.counters, run.task.task_id
    report = {
        "task": [*task_id],
        "processed": counters.records_processed,
        "dropped": counters.dropped_records,
        "stream_time": run.stream_time,
        "sizes": collector.sizes(),
        "last_kept": collector.last_kept(),
        "offsets": [[*partition, found.offset, found.metadata] for partition, found in sorted(run.offsets.items())],
    }
    value = json.dumps(report).encode()
    return Row(REPORT, task_id.partition, 0, str(task_id), 0, 0, None, value, NO_HEADERS)


def _now() -> int:
    return int(time.time() * 1000)
