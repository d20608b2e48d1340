"""Brings rows to those who write them: those of a partition to one executor, or all of them to the driver, in their order."""

from __future__ import annotations

from collections.abc import Iterator
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

__all__ = ["in_executors", "ordered"]

_ORDER: Final = ("topic", "partition", "reached", "task", "number")
_PART_BYTES: Final = 16 * 1024 * 1024
"""How much the driver gets at once."""
_ROW_BYTES: Final = 50
"""What a row has besides key and value, about."""
_ARROW: Final = {
    # Rows have a megabyte at most, and one record more, and Java has each batch several times.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",  # as in `SCHEMA`
}
"""How rows come to the driver."""


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

    They come as Arrow messages. Spark's public ways to bring rows to the driver part by part pickle them, which costs several
    times as much for binary values. So it is asked for the messages that it brings all at once elsewhere, as in `toPandas`.

    Args:
        spark: the session.
        rows: what to bring.
        targets: partitions that get a marker.
        sizes: how much that is.
    """
    count = 1 + sum(size.bytes + _ROW_BYTES * size.records for size in sizes) // _PART_BYTES
    parts = _with_markers(spark, rows, targets).repartitionByRange(count, *_ORDER)
    for batch in _arrow_batches(spark, parts.sortWithinPartitions(*_ORDER).select(*SCHEMA.names)):
        yield from _by_target(batch)


def _arrow_batches(spark: SparkSession, rows: DataFrame) -> Iterator[pa.RecordBatch]:
    """Return `Row`s, a Spark partition at a time."""
    before = {name: spark.conf.get(name) or "" for name in _ARROW}
    for name, value in _ARROW.items():
        spark.conf.set(name, value)
    try:
        rdd = rows._jdf.toArrowBatchRdd().toJavaRDD()  # noqa: SLF001 (see `ordered`)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    messages: RDD[bytes] = RDD(rdd, spark.sparkContext, NoOpSerializer())
    for message in messages.toLocalIterator():
        yield pa.ipc.read_record_batch(message, SCHEMA)


def _by_target(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Take apart rows that are ordered by their partitions."""
    targets = list(map(TopicPartition, values_of(batch, "topic"), values_of(batch, "partition")))
    start = 0
    for target, same in groupby(targets):
        count = len(list(same))
        yield target, batch.slice(start, count)
        start += count
