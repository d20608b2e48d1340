"""Brings rows to those who write them: those of a partition to one executor, or all of them to the driver, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from millrace.backfill.packing import Size
from millrace.backfill.partition_write import ExecutorTombstones, ExecutorWrite
from millrace.backfill.rows import PACKED_DDL, values_of
from millrace.records import UNKNOWN_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["in_executors", "ordered"]

_ORDER: Final = ("topic", "partition", "reached", "task", "number")
_PART_BYTES: Final = 16 * 1024 * 1024
"""How much the driver gets at once."""
_ROW_BYTES: Final = 50
"""What a row has besides key and value, about."""
_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""How large a message to the driver is, and one row more: Java has each several times."""
_BATCH_DDL: Final = "batch binary"


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
    spark: SparkSession, rows: DataFrame, targets: list[TopicPartition], sizes: list[Size]
) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Bring rows to the driver in order, a part at a time, each of which is in the driver's memory several times.

    They come as Arrow messages: Spark's own way to bring single ones costs several times as much. And they come from an RDD:
    until an action of a DataFrame ends, Spark 4.3's scheduler keeps its jobs with their results, so the driver would have all.

    Args:
        spark: the session.
        rows: what to bring.
        targets: partitions that get a marker.
        sizes: how much that is.
    """
    count = 1 + sum(size.bytes + _ROW_BYTES * size.records for size in sizes) // _PART_BYTES
    parts = _with_markers(spark, rows, targets).repartitionByRange(count, *_ORDER)
    in_order = parts.sortWithinPartitions(*_ORDER)
    for (packed,) in in_order.mapInArrow(_pack, _BATCH_DDL).rdd.toLocalIterator():
        with pa.ipc.open_stream(packed) as reader:
            for batch in reader:
                yield from _by_target(batch)


def _by_target(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Take apart rows that are ordered by their partitions."""
    targets = list(map(TopicPartition, values_of(batch, "topic"), values_of(batch, "partition")))
    start = 0
    for target, same in groupby(targets):
        count = len(list(same))
        yield target, batch.slice(start, count)
        start += count


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        step = max(1, len(batch) * _MESSAGE_BYTES // max(1, batch.nbytes))
        for start in range(0, len(batch), step):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch.slice(start, step))
            yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["batch"])
