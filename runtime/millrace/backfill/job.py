"""The Spark job: one stage after the other, each task of the topology in one Spark partition.

A stage's tasks read the user's topics themselves. What another stage sends them comes as a shuffle, in the order of the time its
task had reached; `TaskRun` feeds both to the engine. Nothing is written here.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import itemgetter
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from millrace.backfill.collector import Outputs
from millrace.backfill.executor import TaskFunction
from millrace.backfill.history import Backfill, History
from millrace.backfill.observation import Observer
from millrace.backfill.packing import Size, unpacked
from millrace.backfill.refusals import notes, refuse
from millrace.backfill.rows import COLUMNS, PACKED_DDL, REPORT, ROWS_DDL
from millrace.backfill.stages import Stage, plan_stages, shuffled_topics
from millrace.backfill.telemetry import Watch
from millrace.backfill.transport import ARROW_BATCH_BYTES
from millrace.config import StreamsConfig
from millrace.errors import StreamsError, UnsupportedFeatureError
from millrace.plan.partition_counts import PartitionCounts, resolve_partition_counts
from millrace.plan.topology_plan import TopologyPlan, repartition_topics
from millrace.records import TopicPartition

_MAX_PASSES = 20
_BATCH_BYTES = str(64 * 1024 * 1024)
"""How much Spark gives a Python worker at once. Its own limit is a number of rows, of which packed ones are too large."""


@dataclass(frozen=True)
class Computed:
    """What a job computes; Spark does so when it is used."""

    plan: TopologyPlan
    counts: PartitionCounts
    sent: DataFrame
    """`Row`s, most of them packed: all that tasks have sent, and one report per task (topic `REPORT`)."""
    notes: tuple[str, ...]
    """What the user should know about the result."""

    last: frozenset[str] = frozenset()
    """Topics of which only the last record of each key is kept although their tasks sent more."""
    left_out: frozenset[str] = frozenset()
    """Topics of which nothing is kept although tasks sent records to them."""

    @cached_property
    def reports(self) -> list[dict[str, Any]]:
        """What the tasks report; the first call computes everything."""
        return self._reports()

    def check_unchanged(self) -> None:
        """Check that what was computed again, because Spark had lost it with an executor, is what it was before.

        Raises:
            StreamsError: it is not: compaction or retention has deleted records in between.
        """
        if self._reports() != self.reports:
            raise StreamsError(
                "Spark has lost what it had computed, and has computed something else from what is left of the history: records "
                "were deleted meanwhile (compaction, retention). Start the backfill again"
            )

    def _reports(self) -> list[dict[str, Any]]:
        rows = self.sent.where(F.col("topic") == REPORT).select("value").collect()
        return sorted((json.loads(row["value"]) for row in rows), key=itemgetter("task"))

    @cached_property
    def shared(self) -> frozenset[str]:
        """Topics of which tasks have kept the last records of keys, and several tasks those of the same partition."""
        tasks = Counter((topic, number) for report in self.reports for topic, number in report["last_kept"])
        return frozenset(topic for (topic, _), count in tasks.items() if count > 1)

    @cached_property
    def rows(self) -> DataFrame:
        """`Row`s, most of them packed: outputs, changelogs, and reports."""
        found = self.sent.where(~F.col("topic").isin(*self.last, *self.shared, *self.left_out))
        seen = F.struct("reached", "task", "number")  # as the tasks of the application that read them have seen them
        by_time = F.struct("timestamp", F.split("task", "_").cast("array<int>"), "number")
        for topics, order in ((self.last, seen), (self.shared, by_time)):
            if topics:
                found = found.unionByName(_last_of_keys(self.sent.where(F.col("topic").isin(*topics)), order))
        return found

    def records(self, *topics: str) -> DataFrame:
        """Return rows of single records, without `packed`: of some topics, or of all."""
        rows = self.rows.where(F.col("topic").isin(*topics)) if topics else self.rows
        return rows.mapInArrow(unpacked, ROWS_DDL)

    def sizes(self) -> dict[str, Size]:
        """Return how much there is of each topic; reports are left out."""
        found: dict[str, Size] = {}
        for report in self.reports:
            for topic, size in report["sizes"].items():
                if topic not in self.last | self.shared | self.left_out:
                    found[topic] = found.get(topic, Size()).plus(*size)
        if reduced := self.last | self.shared:
            headers = F.aggregate(
                "headers", F.lit(0), lambda sum_, one: sum_ + _length(one["name"]) + _length(one["value"])
            )
            size = _length(F.col("key")) + _length(F.col("value")) + F.coalesce(headers, F.lit(0))
            rows = self.rows.where(F.col("topic").isin(*reduced))
            for row in rows.groupBy("topic").agg(F.count("*").alias("records"), F.sum(size).alias("bytes")).collect():
                found[row["topic"]] = Size(row["records"], row["bytes"])
        return found


def compute(spark: SparkSession, backfill: Backfill, watch: Watch | None = None) -> Computed:
    """Compute every stage.

    Stages whose sub-topologies feed each other run before this returns, the others when their rows are used.

    Args:
        spark: runs the tasks.
        backfill: what to compute.
        watch: is told of the stages.

    Raises:
        MissingSourceTopicError: topics that the application reads do not exist.
        UnsupportedFeatureError: the topology cannot be computed over history.
        TopologyError: numbers of partitions do not fit together.
        PySparkException: a task failed.
    """
    config = StreamsConfig.of(backfill.config)
    built = backfill.topology().build(config)
    plan = built.plan()
    refuse(built, plan, backfill)
    counts = resolve_partition_counts(plan, backfill.history.partition_counts())
    if spark.conf.get(ARROW_BATCH_BYTES, None) in {None, str(2**31 - 1)}:
        spark.conf.set(ARROW_BATCH_BYTES, _BATCH_BYTES)
    watch = watch or Watch(config)
    job = _Job(spark, uuid.uuid4().hex, backfill, counts, shuffled_topics(plan, counts), watch)
    given = backfill.history.rows(spark)
    done: list[DataFrame] = []
    for number, stage in enumerate(plan_stages(plan, counts)):
        if stage.tasks:
            watch.stage(number, stage, _records(stage, backfill.history, counts))
            before = [rows.where(F.col("topic").isin(*stage.upstream)) for rows in done if stage.upstream]
            if given is not None and stage.sources & backfill.history.shuffled.keys():
                before.append(given.where(F.col("topic").isin(*stage.sources)).withColumn("packed", F.lit(0)))
            done.append(job.run(number, stage, before))
    rows = _union(done, spark.createDataFrame([], PACKED_DDL))
    every, last = _kept(plan, job.shuffled, backfill.outputs)
    left_out = job.shuffled - every - last
    return Computed(plan, counts, rows, notes(plan), last, left_out)


@dataclass(frozen=True, slots=True)
class _Job:
    spark: SparkSession
    name: str
    backfill: Backfill
    counts: PartitionCounts
    shuffled: frozenset[str]
    watch: Watch

    def run(self, number: int, stage: Stage, before: list[DataFrame]) -> DataFrame:
        """Run a stage, as often as it takes until what it sends to itself no longer changes."""
        rows = self._pass(stage, before, self.watch.observer(number, 0))
        if not stage.circular:
            return rows
        sent: tuple[int, int] = (0, 0)
        for index in range(1, _MAX_PASSES + 1):
            circular = rows.where(F.col("topic").isin(*stage.circular))
            now = _checksum(circular)
            if now == sent:
                return rows
            sent, previous = now, rows
            rows = self._pass(stage, [*before, circular], self.watch.observer(number, index))
            rows.count()
            previous.unpersist()
        raise UnsupportedFeatureError(
            f"The records of {', '.join(sorted(stage.circular))} depend on each other in a loop that does not end after "
            f"{_MAX_PASSES} passes over history, so there is no final result. Have the loop end, or take it out"
        )

    def _pass(self, stage: Stage, before: list[DataFrame], observer: Observer) -> DataFrame:
        count = len(stage.tasks)
        first: dict[int, int] = {}
        for index, task in enumerate(stage.tasks):
            first.setdefault(task.subtopology, index)
        starts = {topic: first[n] for n, topics in self.counts.sources.items() if n in first for topic in topics}
        rows = _union(before, _first_rows(self.spark, count))
        start = F.create_map(*(F.lit(part) for pair in {REPORT: 0, **starts}.items() for part in pair))
        placed = rows.withColumns(
            {"at": start[F.col("topic")] + F.col("partition"), "returns": F.col("topic").isin(*stage.circular)}
        )
        ordered = placed.repartitionById(count, F.col("at")).sortWithinPartitions(
            "reached", "returns", "topic", "task", "number"
        )
        run = TaskFunction(self.name, self.backfill, stage, self.counts, self.shuffled, observer)
        return ordered.mapInArrow(run, PACKED_DDL).persist(StorageLevel.MEMORY_AND_DISK)


def _records(stage: Stage, history: History, counts: PartitionCounts) -> int | None:
    """Return about how many records a stage will process; None if some come from other stages or from files."""
    sizes = [
        None if topic in stage.upstream else history.size(TopicPartition(topic, number))
        for topic in stage.sources
        for number in range(counts.topics[topic])
    ]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _first_rows(spark: SparkSession, tasks: int) -> DataFrame:
    """Return the row with which each of a stage's Spark partitions begins.

    It names the task, because Spark does not say which partition a function runs for, and may skip partitions without rows.
    """
    given = {
        "topic": F.lit(REPORT),
        "partition": F.col("id"),
        "reached": F.lit(-1),
        "number": F.lit(0),
        "timestamp": F.lit(0),
    }
    columns = [given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in COLUMNS.items()]
    return spark.range(tasks).select(*columns, F.lit(0).alias("packed"))


def _length(value: Column) -> Column:
    return F.coalesce(F.octet_length(value), F.lit(0))


def _checksum(rows: DataFrame) -> tuple[int, int]:
    hashed = F.xxhash64(*rows.columns).cast("decimal(38,0)")
    found = rows.agg(F.count("*"), F.sum(hashed)).first()
    assert found is not None
    return found[0], int(found[1] or 0)


def _kept(plan: TopologyPlan, shuffled: frozenset[str], outputs: Outputs) -> tuple[frozenset[str], frozenset[str]]:
    """Return of which topics that tasks of the application read all records are kept, and of which the last of each key.

    Topics of the user are outputs too. If one is the changelog of a store, its last records are needed in any case.
    """
    restored = {
        store.changelog_topic for item in plan.subtopologies for store in item.stores if store.changelog_is_source
    }
    users = shuffled - repartition_topics(plan).keys()
    every = users if outputs is Outputs.ALL else frozenset[str]()
    return every, (users if outputs is Outputs.LAST else users & restored) - every


def _last_of_keys(rows: DataFrame, order: Column) -> DataFrame:
    """Return, as single rows, the last record of each key and every record without a key."""
    single = rows.mapInArrow(unpacked, ROWS_DDL).withColumn("packed", F.lit(0))
    keyed = single.where(F.col("key").isNotNull())
    latest = keyed.groupBy("topic", "partition", "key").agg(F.max_by(F.struct(*single.columns), order).alias("row"))
    found = single.where(F.col("key").isNull()).unionByName(latest.select("row.*"))
    return found.persist(StorageLevel.MEMORY_AND_DISK)


def _union(frames: Sequence[DataFrame], first: DataFrame) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames, first)


__all__ = ["Backfill", "Computed", "History", "Outputs", "compute"]
