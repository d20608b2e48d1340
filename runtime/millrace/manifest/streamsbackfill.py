"""`StreamsBackfill`: computes one application's state from history with Spark, described once and done once.

It is a separate resource, like a `StreamsReset`: start, progress and result can be read later, and applying it again does
nothing.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from millrace.manifest.base_model import ManifestModel, StatusModel
from millrace.manifest.fields import (
    Image,
    Int32,
    Int64,
    ObjectName,
    PositiveQuantity,
    TopicName,
    atomic_list,
    cel_list,
    map_list,
    quantity_value,
    text,
)
from millrace.manifest.resource import Resource
from millrace.manifest.rules import Rule
from millrace.manifest.streamsapp_status import Conditions, ObservedGeneration
from millrace.manifest.streamsreset import AppReference, PartitionOffset, Timestamp

Phase = Literal[
    "Pending",
    "Waiting",
    "Suspending",
    "Submitted",
    "Computing",
    "Publishing",
    "Stopping",
    "Succeeded",
    "Failed",
    "Refused",
]

ColumnName = Annotated[str, Field(min_length=1, max_length=256)]


class Columns(ManifestModel):
    """Which columns of the files hold the parts of a record."""

    timestamp: ColumnName
    """The record's timestamp: a timestamp, or milliseconds since the epoch."""
    key: ColumnName | None = None
    """The key; records have none if not given."""
    value: ColumnName | None = None
    """The value; if not given, all remaining columns together, as a dictionary."""
    headers: ColumnName | None = None
    """The headers: a map, or an array of structs with `name` and `value`."""
    order: ColumnName | None = None
    """The order of the records of a partition, such as the offset; the timestamp if not given."""
    partition: ColumnName | None = None
    """The partition; if not given, the key decides, as in Kafka's producer."""


class FileSource(ManifestModel):
    """Files that hold the records of a topic."""

    topic: TopicName
    """The input topic of these records."""
    format: Literal["parquet", "json", "csv", "orc", "iceberg", "delta"] = "parquet"
    """Their format. `iceberg` and `delta` need their Spark packages in the image."""
    path: Annotated[
        str, *text(r"^\S(.*\S)?$", "must be a path or a URL without spaces at its ends", least=1, most=2048)
    ]
    """Where they are, as Spark reads it: a path, a URL such as `s3a://bucket/orders`, or the name of a table."""
    options: Annotated[dict[str, str], Field(max_length=64)] = Field(default_factory=dict)
    """Options of Spark's reader, for example `header: "true"`."""
    columns: Columns
    """Which columns hold the parts of a record."""
    until: Timestamp | None = None
    """The instant, for example `2026-01-31T12:00:00Z`, up to which records come from the files; later ones come from Kafka. If
    not given, all come from the files."""


class Source(ManifestModel):
    """Where history is read."""

    files: Annotated[tuple[FileSource, ...], *map_list(64, "topic")] = ()
    """Topics whose records come from files. All others are read from Kafka, from their beginning to their present end."""


_MEMORY_MIB = 1024
Memory = Annotated[
    PositiveQuantity,
    Rule(
        lambda value: quantity_value(value) >= _MEMORY_MIB << 20,
        "quantity(string(self)).compareTo(quantity('1Gi')) >= 0",
        "must be at least 1Gi",
    ),
]
Cores = Annotated[int, Field(ge=1, le=256, json_schema_extra={"format": "int32"})]


class Driver(ManifestModel):
    """The pod that plans the job and publishes the result."""

    service_account_name: ObjectName
    """The service account that may create the executors' pods; the Spark operator's chart creates one for it in namespaces for
    jobs."""
    cores: Cores = 1
    """How many cores it has."""
    memory: Memory = "2Gi"
    """Its memory; half is the Java heap's."""


class Executors(ManifestModel):
    """The pods that compute."""

    instances: Annotated[int, Field(ge=1, le=10_000, json_schema_extra={"format": "int32"})] = 1
    """How many there are. Each of their cores runs one task of the topology at a time."""
    cores: Cores = 1
    """How many cores each has."""
    memory: Memory = "2Gi"
    """The memory of each; half is the Java heap's, and the rest is for Python and state stores."""


_SINK_PATTERN = r"^(kafka|parquet://\S+)$"
_OWNED = (
    "spark.app.name",
    "spark.driver.cores",
    "spark.driver.memory",
    "spark.executor.cores",
    "spark.executor.instances",
    "spark.executor.memory",
    "spark.kubernetes.authenticate.driver.serviceAccountName",
    "spark.kubernetes.authenticate.executor.serviceAccountName",
    "spark.kubernetes.container.image",
    "spark.kubernetes.driver.container.image",
    "spark.kubernetes.driver.pod.name",
    "spark.kubernetes.driver.podTemplateFile",
    "spark.kubernetes.executor.container.image",
    "spark.kubernetes.executor.podTemplateFile",
    "spark.kubernetes.namespace",
    "spark.master",
    "spark.submit.deployMode",
)
_OWN_SETTINGS = Rule(
    lambda settings: not settings.keys() & set(_OWNED),
    f"{cel_list(_OWNED)}.all(key, !(key in self))",
    "must not have settings that the operator makes from the other fields",
    lambda settings: ", ".join(key for key in _OWNED if key in settings),
    ", ".join(_OWNED),
)
_SETTING_PATTERN = r"^spark\.\S+$"
_SETTING_NAMES = Rule(
    lambda settings: all(re.match(_SETTING_PATTERN, key) for key in settings),
    f"self.all(key, key.matches(r'{_SETTING_PATTERN}'))",
    "must have names that begin with `spark.`",
)


class StreamsBackfillSpec(ManifestModel):
    """What to compute, from which history, in which Spark pods. Immutable."""

    app_ref: AppReference
    """The application. It is stopped while the backfill runs, and continues afterwards."""
    source: Source = Source()
    """Where history is read; from Kafka if not given."""
    outputs: Literal["None", "Last", "All"] = "None"
    """What is written to output topics: nothing, the last record of each key, or all records in order."""
    transaction_records: Annotated[int, Field(ge=1, le=2**31 - 1, json_schema_extra={"format": "int32"})] = 10_000_000
    """How many records one transaction may have. If there are more, executors write each changelog partition in its own
    transaction, and each output partition too if the outputs alone are too many."""
    sink: Annotated[str, *text(_SINK_PATTERN, "must be kafka, or parquet:// and a path", most=2048)] = "kafka"
    """Where results go: `kafka` for changelogs and offsets, with which the application continues, or for example
    `parquet://s3a://bucket/tables` for the final tables as files, which does not touch Kafka and the application."""
    dry_run: bool = False
    """Whether the result is only counted and not written."""
    allow_missing_history: bool = False
    """Whether to compute although the brokers have deleted the start of an input topic."""
    allow_side_effects: bool = False
    """Whether `peek`, `foreach` and `print` may run again, for every record of history."""
    ignore_wall_clock: bool = False
    """Whether to compute although the program has wall-clock punctuators, which are not called."""
    driver: Driver
    """The pod that plans the job and publishes the result."""
    executors: Executors = Executors()
    """The pods that compute."""
    image: Image | None = None
    """The image of the Spark pods, made from Millrace's `backfill` image with the same program; the application's if not
    given."""
    spark_conf: Annotated[dict[str, str], Field(max_length=256), _SETTING_NAMES, _OWN_SETTINGS] = Field(
        default_factory=dict
    )
    """Further settings of Spark."""
    attempts: Annotated[int, Field(ge=1, le=10, json_schema_extra={"format": "int32"})] = 3
    """How many times it is tried if pods or brokers fail."""
    ttl_seconds_after_finished: Int32 | None = None
    """How long after its end the backfill is deleted, with its SparkApplications and their logs; never if not given."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            None,
            "self == oldSelf",
            "is immutable: a backfill is done once; for another one create another StreamsBackfill",
        ),
    )

    @property
    def changes_kafka(self) -> bool:
        """Whether results are published to Kafka, so that the application must not run meanwhile."""
        return self.sink == "kafka" and not self.dry_run


class StageProgress(StatusModel):
    """One stage of the job."""

    name: Annotated[str, Field(min_length=1, max_length=512)]
    """Its name: the sub-topologies that it computes."""
    tasks: Int32 | None = None
    """How many tasks it has."""
    done: Int32 | None = None
    """How many of them are done."""
    records: Int64 | None = None
    """How many records it has processed."""
    bytes: Int64 | None = None
    """How many bytes these had."""
    records_per_second: Int64 | None = None
    """How many records it processes per second."""
    eta_seconds: Int64 | None = None
    """How long the rest takes at this rate."""


class StoreResult(StatusModel):
    """The result for one state store or output topic."""

    name: Annotated[str, Field(min_length=1, max_length=249)]
    """The store's or the topic's name."""
    records: Int64 | None = None
    """How many records it has."""
    tombstones: Int64 | None = None
    """How many records of an earlier run were deleted."""
    bytes: Int64 | None = None
    """How large they are."""


class SparkStatus(StatusModel):
    """The SparkApplication of the latest attempt."""

    api_version: str | None = None
    """The Spark operator that runs it."""
    name: str | None = None
    """Its name."""
    state: str | None = None
    """Its state, as the Spark operator names it."""
    driver_pod: str | None = None
    """The driver's pod."""
    web_ui: str | None = None
    """The address of Spark's web interface."""


class StreamsBackfillStatus(StatusModel):
    """The progress of the backfill; only the operator writes it."""

    observed_generation: ObservedGeneration | None = None
    """The generation of the manifest that this status is about; -1 until the operator has seen the resource."""
    phase: Phase | None = None
    """Its progress. `Suspending`: the application stops. `Stopping`: the Spark pods stop. `Refused`: it cannot be done."""
    message: Annotated[str, Field(max_length=32_768)] | None = None
    """The reason and what to do, as a sentence."""
    start_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When it started."""
    phase_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When its phase last changed."""
    completion_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When it finished or was given up."""
    holds_app: bool | None = None
    """Whether the application is kept stopped."""
    outcome: Annotated[str, Field(max_length=64)] | None = None
    """How it ends once all Spark pods have stopped."""
    attempt: Int32 | None = None
    """The number of the latest attempt, beginning at 1."""
    plan_hash: Annotated[str, Field(max_length=128)] | None = None
    """The hash of the topology plan that it computes."""
    revision: Annotated[str, Field(max_length=64)] | None = None
    """The application's revision that it computes."""
    spark: SparkStatus | None = None
    """The SparkApplication of the latest attempt."""
    progress: Annotated[str, Field(max_length=32)] | None = None
    """Stages done, as in `1/3`, for kubectl."""
    stages: Annotated[tuple[StageProgress, ...], *atomic_list(256)] = ()
    """The stages of the job."""
    ends: Annotated[tuple[PartitionOffset, ...], *atomic_list(1000)] = ()
    """Where history ends: the offsets at which the application continues; the first thousand."""
    stores: Annotated[tuple[StoreResult, ...], *atomic_list(1000)] = ()
    """The result for each store."""
    outputs: Annotated[tuple[StoreResult, ...], *atomic_list(1000)] = ()
    """The result for each output topic."""
    notes: Annotated[tuple[str, ...], *atomic_list(100)] = ()
    """Possible surprises."""
    conditions: Conditions = ()
    """The aspects of its progress, with one entry each."""


class StreamsBackfill(Resource):
    """A backfill of an application: Spark computes its state from history, and the application continues from there."""

    plural: ClassVar[str] = "streamsbackfills"

    kind: Literal["StreamsBackfill"] = "StreamsBackfill"
    """The kind of resource."""
    spec: StreamsBackfillSpec
    """What to compute, from which history, in which Spark pods."""
    status: StreamsBackfillStatus | None = None
    """The progress of the backfill."""
