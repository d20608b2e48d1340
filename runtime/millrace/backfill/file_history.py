"""History from files, and from Kafka after it.

A table or folder of files stands for the records of one source topic. Its columns become key, value, timestamp and headers:
binary columns are taken as they are, others go through the serdes of the source topic. Rows get the partition that Kafka's
producers would have chosen, and in it the order that a column says.

**Files up to an instant, Kafka from then on.** The timestamp decides on both sides: of the files only rows before the instant
count, of Kafka only records that are not older. So no record counts twice, even if both have it, and none is missing if the files
have every record before the instant. Kafka is read from its first record at or after the instant; older records that came to
Kafka later than that one, out of order, are left out there, and have to be in the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final
from zlib import crc32

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql import Window, types
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from millrace.backfill.failures import LINKAGE_ERRORS, first_line, text_of
from millrace.backfill.kafka_history import KafkaHistory
from millrace.backfill.rows import ROWS_DDL
from millrace.backfill.sources import ROLES, FileSource
from millrace.config import StreamsConfig
from millrace.engine.partitioner import partition_for_key
from millrace.errors import ConfigError, SerializationError, StreamsError, UnavailableSerdeError
from millrace.plan.topology_plan import TopologyPlan
from millrace.records import TIMESTAMP, RawRecord, TopicPartition
from millrace.topology import SourceNode, Topology

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from millrace.serdes.base import AnySerde

__all__ = ["FileHistory", "source_of_table"]

_HEADERS: Final = "array<struct<name: string, value: binary>>"
_PACKAGED: Final = frozenset({"iceberg", "delta"})
"""Formats that Spark reads with packages of others."""
_NO_CLASS: Final = re.compile(rf"({LINKAGE_ERRORS}|ClassNotFoundException|UnsupportedFileSystemException)\b")
"""A package is not there, or not for this version of Spark."""
_CSV_OPTIONS: Final = {"header": "true", "inferSchema": "true"}


@dataclass(frozen=True, slots=True)
class FileHistory:
    """Files for some topics, Kafka for the others and for what comes later; pickled into the executors."""

    kafka: KafkaHistory
    sources: Sequence[FileSource]
    topology: Callable[[], Topology]

    @classmethod
    def of(
        cls, kafka: KafkaHistory, sources: Sequence[FileSource], topology: Callable[[], Topology], plan: TopologyPlan
    ) -> FileHistory:
        """Return the history of an application.

        Raises:
            ConfigError: a topic is not one that its tasks read, or has files twice.
        """
        shared = {store.topic for store in plan.global_stores}
        known = {partition.topic for partition in kafka.extents} - shared
        for source in sources:
            if source.topic in shared:
                raise ConfigError(
                    f"Topic {source.topic} fills a global store, which is always read from Kafka: give no files for it"
                )
            if source.topic not in known:
                raise ConfigError(
                    f"There are files for topic {source.topic}, which {plan.application_id} does not read; it reads "
                    f"{', '.join(sorted(known))}"
                )
            if sum(other.topic == source.topic for other in sources) > 1:
                raise ConfigError(
                    f"Topic {source.topic} has files twice: put them into one folder, or name a pattern of paths"
                )
            if "timestamp" not in source.columns:
                raise ConfigError(
                    f"No column of {source.path} has the timestamps of topic {source.topic}: name it (columns.timestamp). "
                    "Windows, joins and the order of records depend on it"
                )
        return cls(kafka, sources, topology)

    @property
    def shuffled(self) -> Mapping[str, int | None]:
        """Topics whose history begins in `rows`, with the instant from which Kafka is read."""
        return {source.topic: source.until_ms for source in self.sources}

    def partition_counts(self) -> Mapping[str, int]:
        """Return the partitions of every topic that exists."""
        return self.kafka.counts

    def size(self, partition: TopicPartition) -> int | None:
        """Return how many offsets of a partition are read; None if it has files."""
        return None if partition.topic in self.shuffled else self.kafka.size(partition)

    def read(self, partition: TopicPartition) -> Iterator[list[RawRecord]]:
        """Read what Kafka has of one partition; where files come first, what comes after them."""
        until = self.shuffled.get(partition.topic)
        for records in self.kafka.read(partition):
            later = records if until is None else [record for record in records if record[TIMESTAMP] >= until]
            if later:
                yield later

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the records of all files as rows, like those that tasks send each other.

        Raises:
            ConfigError: files or columns do not exist, or have types that do not fit.
        """
        return reduce(lambda one, other: one.unionByName(other), [self._rows(spark, each) for each in self.sources])

    def notes(self, spark: SparkSession) -> list[str]:
        """Return what was taken from where."""
        return [self._note(spark, source) for source in self.sources]

    def _note(self, spark: SparkSession, source: FileSource) -> str:
        stamp = _timestamp(source, _load(spark, source))
        before = F.lit(True) if source.until_ms is None else stamp < source.until_ms
        found = _load(spark, source).agg(F.count_if(before), F.count_if(~before)).first()
        assert found is not None
        extents = [extent for partition, extent in self.kafka.extents.items() if partition.topic == source.topic]
        after, earlier = sum(e.end - e.start for e in extents), sum(e.start - e.first for e in extents)
        return (
            f"{source.topic}: {found[0]:,} records from files ({found[1]:,} at or after the instant left out), "
            f"{after:,} offsets from Kafka ({earlier:,} earlier left out)"
        )

    def _rows(self, spark: SparkSession, source: FileSource) -> DataFrame:
        table = _load(spark, source)
        columns = source.columns
        stamp = _timestamp(source, table)
        rest = [name for name in table.columns if name not in columns.values()]
        if "value" not in columns and not rest:
            raise ConfigError(
                f"No column of {source.path} has the values of topic {source.topic}; it has {', '.join(table.columns)}, which "
                "are all something else"
            )
        value = (
            F.col(f"`{columns['value']}`") if "value" in columns else F.struct(*(F.col(f"`{name}`") for name in rest))
        )
        selected = table.select(
            stamp.alias("timestamp"),
            _optional(columns, "key", "binary").alias("key"),
            value.alias("value"),
            _headers(source, table).alias("headers"),
            _optional(columns, "partition", "int").cast("int").alias("partition"),
            (F.col(f"`{columns['order']}`") if "order" in columns else stamp).alias("order"),
        )
        if source.until_ms is not None:
            selected = selected.where(F.col("timestamp").isNull() | (F.col("timestamp") < source.until_ms))
        schema = types.StructType(
            [
                types.StructField("timestamp", types.LongType()),
                types.StructField("key", types.BinaryType()),
                types.StructField("value", types.BinaryType()),
                selected.schema["headers"],
                types.StructField("partition", types.IntegerType()),
                selected.schema["order"],
            ]
        )
        schema_of_rows = types.StructType.fromDDL(ROWS_DDL)
        assert isinstance(schema_of_rows, types.StructType)
        encode = _Encode(source, self.topology, self.kafka.settings, self.kafka.counts[source.topic])
        in_order = Window.partitionBy("partition").orderBy("order", "timestamp", "key", "value")
        return (
            selected.mapInArrow(encode, schema)
            .select(
                F.lit(source.topic).alias("topic"),
                "partition",
                F.max("timestamp").over(in_order).alias("reached"),
                F.lit("").alias("task"),
                F.row_number().over(in_order).cast("bigint").alias("number"),
                "timestamp",
                "key",
                "value",
                "headers",
            )
            .to(schema_of_rows)
        )


def source_of_table(spark: SparkSession, topic: str, path: str) -> FileSource:
    """Return Parquet files whose columns are named after what they are: `timestamp`, `key`, `value` and so on.

    Raises:
        ConfigError: Spark cannot read them.
    """
    found = _load(spark, FileSource(topic, path, {})).columns
    return FileSource(topic, path, {role: role for role in ROLES if role in found})


class _Encode:
    """Turns rows of a table into records, in an executor."""

    def __init__(
        self, source: FileSource, topology: Callable[[], Topology], settings: Mapping[str, object], partitions: int
    ) -> None:
        self._source = source
        self._topology = topology
        self._settings = settings
        self._partitions = partitions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        key_serde, value_serde = self._serdes()
        for batch in batches:
            timestamps = batch.column("timestamp")
            if timestamps.null_count:
                raise ConfigError(
                    f"{timestamps.null_count} rows of {self._source.path} have no timestamp (column "
                    f"{self._source.columns['timestamp']}): leave them out, or give them one"
                )
            keys = self._bytes(batch.column("key"), key_serde, "key")
            values = self._bytes(batch.column("value"), value_serde, "value")
            yield pa.RecordBatch.from_arrays(
                [
                    timestamps,
                    keys,
                    values,
                    batch.column("headers"),
                    self._placed(batch, keys, values),
                    batch.column("order"),
                ],
                names=["timestamp", "key", "value", "headers", "partition", "order"],
            )

    def _serdes(self) -> tuple[AnySerde | None, AnySerde | None]:
        built = self._topology().build(StreamsConfig.of(self._settings))
        for subtopology in built.subtopologies:
            for node in subtopology.nodes:
                if isinstance(node, SourceNode) and (
                    self._source.topic in node.topics or (node.pattern and node.pattern.fullmatch(self._source.topic))
                ):
                    return node.key_serde, node.value_serde
        raise ConfigError(f"No source of the topology reads topic {self._source.topic}")

    def _bytes(self, column: pa.Array, serde: AnySerde | None, role: str) -> pa.Array:
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            return column.cast(pa.binary())
        return pa.array([self._encoded(value, serde, role) for value in column.to_pylist()], pa.binary())

    def _encoded(self, value: object, serde: AnySerde | None, role: str) -> bytes | None:
        if value is None:
            return None
        try:
            return serde.serialize(self._source.topic, value) if serde is not None else str(value).encode()
        except UnavailableSerdeError:
            raise
        except Exception as error:
            name = self._source.columns.get(role, "(all others)")
            raise SerializationError(
                f"Column {name} of {self._source.path} has a {role} that the serde of topic {self._source.topic} does not take: "
                f"{value!r:.100} ({type(error).__name__}: {error})"
            ) from error

    def _placed(self, batch: pa.RecordBatch, keys: pa.Array, values: pa.Array) -> pa.Array:
        if "partition" in self._source.columns:
            given = batch.column("partition")
            wrong = [
                number for number in given.unique().to_pylist() if number is None or not 0 <= number < self._partitions
            ]
            if wrong:
                raise ConfigError(
                    f"Column {self._source.columns['partition']} of {self._source.path} has partition {wrong[0]}, but topic "
                    f"{self._source.topic} has {self._partitions}"
                )
            return given
        # Producers spread records without keys as they like; here the value decides, so that a retry does the same.
        count = self._partitions
        partitions = [
            crc32(values[index].as_py() or b"") % count if key is None else partition_for_key(key, count)
            for index, key in enumerate(keys.to_pylist())
        ]
        return pa.array(partitions, pa.int32())


def _load(spark: SparkSession, source: FileSource) -> DataFrame:
    options = {**(_CSV_OPTIONS if source.format == "csv" else {}), **source.options}
    try:
        table = spark.read.format(source.format).options(**options).load(source.path)
        names = table.columns
    except (PySparkException, Py4JError) as error:
        raise _unreadable(source, error) from error
    missing = {role: name for role, name in source.columns.items() if name not in names}
    if missing:
        shown = ", ".join(f"{name} ({role})" for role, name in missing.items())
        raise ConfigError(f"{source.path} has no column {shown}; it has {', '.join(names)}")
    return table


def _unreadable(source: FileSource, error: Exception) -> StreamsError:
    """Return what to raise if Spark cannot open files: storage that does not answer may do so at the next attempt."""
    text = text_of(error)
    reason = first_line(text).rstrip(".")
    if not isinstance(error, (AnalysisException, IllegalArgumentException)) and not _NO_CLASS.search(text):
        return StreamsError(f"Spark cannot read {source.path} as {source.format} now: {reason}")
    if source.format in _PACKAGED:
        reason = (
            f"that needs the package of {source.format} for Spark {pyspark.__version__} (spark.jars.packages), and one for "
            "another version of Spark does not work. If there is no such release, write the table as Parquet with a Spark "
            f"that reads it, and give these files (format: parquet). Spark says: {reason}"
        )
    return ConfigError(f"Spark cannot read {source.path} as {source.format}: {reason}")


def _timestamp(source: FileSource, table: DataFrame) -> Column:
    name = source.columns["timestamp"]
    column, kind = F.col(f"`{name}`"), table.schema[name].dataType
    if isinstance(kind, (types.LongType, types.IntegerType)):
        return column.cast("bigint")
    if isinstance(kind, (types.TimestampType, types.TimestampNTZType, types.DateType, types.StringType)):
        return F.unix_millis(
            F.try_to_timestamp(column) if isinstance(kind, types.StringType) else column.cast("timestamp")
        )
    raise ConfigError(
        f"Column {name} of {source.path} has type {kind.simpleString()}: timestamps are milliseconds since 1970 (bigint), "
        "timestamp, date, or text like 2026-01-31T12:00:00Z"
    )


def _headers(source: FileSource, table: DataFrame) -> Column:
    if "headers" not in source.columns:
        return F.lit(None).cast(_HEADERS)
    name = source.columns["headers"]
    column, kind = F.col(f"`{name}`"), table.schema[name].dataType
    if isinstance(kind, types.MapType):
        column = F.map_entries(column)
    elif not (isinstance(kind, types.ArrayType) and isinstance(kind.elementType, types.StructType)):
        raise ConfigError(
            f"Column {name} of {source.path} has type {kind.simpleString()}: headers are a map, or a list of (name, value)"
        )
    return column.cast(_HEADERS)


def _optional(columns: Mapping[str, str], role: str, kind: str) -> Column:
    return F.col(f"`{columns[role]}`") if role in columns else F.lit(None).cast(kind)
