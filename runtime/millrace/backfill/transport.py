"""Brings rows to those who write them: those of a partition to one executor, or all of them to the driver, in their order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from millrace.backfill.packing import Size
from millrace.backfill.partition_write import ExecutorTombstones, ExecutorWrite
from millrace.backfill.rows import PACKED_DDL, SCHEMA, values_of
from millrace.records import UNKNOWN_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ARROW_BATCH_BYTES", "in_executors", "ordered"]

ARROW_BATCH_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
"""Spark's setting: how much a Python worker gets at once."""
_ORDER: Final = ("topic", "partition", "reached", "task", "number")
_PART_BYTES: Final = 16 * 1024 * 1024
"""How much the driver gets at once, on average."""
_ROW_BYTES: Final = 50
"""What a row has besides key, value and headers, about."""
_JAVA_ROWS: Final = 64
"""How many rows Java has in one message: packed ones have about a megabyte, and it has each message several times."""
_BATCH_ROWS: Final = 4_000
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""How much is taken apart at once, about, of rows that are smaller."""


def in_executors(
    spark: SparkSession,
    rows: DataFrame,
    targets: list[TopicPartition],
    function: ExecutorWrite | ExecutorTombstones,
    returned: str,
) -> DataFrame:
    """Call a function for the rows of each target, of which none has others."""
    index = F.create_map(*(F.lit(x) for n, p in enumerate(targets) for x in (str(p), n)))
    placed = _with_markers(spark, rows, targets).withColumn("at", index[F.concat_ws("-", "topic", "partition")])
    in_order = placed.repartitionById(len(targets), F.col("at")).sortWithinPartitions(*_ORDER).drop("at")
    return in_order.mapInArrow(function, returned)


def _with_markers(spark: SparkSession, rows: DataFrame, targets: list[TopicPartition]) -> DataFrame:
    """Add a row for each target, so that those without rows are seen too."""
    if not targets:
        return rows
    markers = [(*target, UNKNOWN_TIMESTAMP, "", 0, 0, None, None, None, -1) for target in targets]
    return rows.unionByName(spark.createDataFrame(markers, PACKED_DDL))


def ordered(
    spark: SparkSession,
    rows: DataFrame,
    targets: list[TopicPartition],
    sizes: Mapping[str, Size],
) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Bring rows to the driver, those of each target in order, a part at a time, each of which is in its memory several times.

    Spark makes parts of as many rows as each other. So each topic comes by itself, or with others that fit into the same part: a
    topic's rows may be thousands of times larger than another's, and would all be in one.

    Args:
        spark: the session.
        rows: what to bring.
        targets: partitions that get a marker.
        sizes: how much that is of each topic.
    """
    groups: list[list[str]] = []
    for topic in sorted(sizes.keys() | {target.topic for target in targets}):
        if groups and _parts(sizes, [*groups[-1], topic]) == 1:
            groups[-1].append(topic)
        else:
            groups.append([topic])
    for topics in groups:
        some = [target for target in targets if target.topic in topics]
        own = _with_markers(spark, rows.where(F.col("topic").isin(*topics)), some)
        yield from _in_parts(own, _parts(sizes, topics))


def _parts(sizes: Mapping[str, Size], topics: Collection[str]) -> int:
    """Return in how many parts topics are to come."""
    found = [sizes.get(topic, Size()) for topic in topics]
    return 1 + sum(size.bytes + _ROW_BYTES * size.records for size in found) // _PART_BYTES


def _in_parts(rows: DataFrame, count: int) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Bring rows in this many parts.

    They come as Arrow messages, for which the plan is asked: Spark's public ways to bring rows to the driver part by part pickle
    them, which costs several times as much for binary values. And they come from an RDD: until an action of a DataFrame ends,
    Spark 4.3's scheduler keeps its jobs with their results, so the driver would have all.
    """
    parts = rows.repartitionByRange(count, *_ORDER)
    in_order = parts.sortWithinPartitions(*_ORDER).select(*SCHEMA.names)
    for batch in _gathered(_arrow_batches(in_order)):
        yield from _by_target(batch)


def _arrow_batches(rows: DataFrame) -> Iterator[pa.RecordBatch]:
    """Return `Row`s, one Spark partition after the other."""
    spark = rows.sparkSession
    # Jobs of an RDD have none of the session's settings, and may have to compute again what Spark has lost.
    if (limit := spark.conf.get(ARROW_BATCH_BYTES)) is not None:
        spark.sparkContext.setLocalProperty(ARROW_BATCH_BYTES, limit)
    found = rows._jdf.toArrowBatchRdd(_JAVA_ROWS, "UTC", False, False)  # noqa: SLF001 (see `_in_parts`; no large types)
    messages: RDD[bytes] = RDD(found.toJavaRDD(), spark.sparkContext, NoOpSerializer())
    for message in messages.toLocalIterator():
        yield pa.ipc.read_record_batch(message, SCHEMA)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return small batches as larger ones."""
    some: list[pa.RecordBatch] = []
    for batch in batches:
        some.append(batch)
        if sum(map(len, some)) >= _BATCH_ROWS or sum(one.nbytes for one in some) >= _BATCH_BYTES:
            yield pa.concat_batches(some)
            some = []
    if some:
        yield pa.concat_batches(some)


def _by_target(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Take apart rows that are ordered by their partitions."""
    targets = list(map(TopicPartition, values_of(batch, "topic"), values_of(batch, "partition")))
    start = 0
    for target, same in groupby(targets):
        count = len(list(same))
        yield target, batch.slice(start, count)
        start += count
