"""A whole backfill: fix what is read, compute, and publish, in an order in which nothing is written before everything is known.

1. Start the driver's producer, which fences an earlier backfill of the same application.
2. Check that no earlier attempt has handed over, that nobody runs the application, and fix the ends of the history.
3. Compute.
4. Check that the source topics and the group's offsets are still the same, create the internal topics, and publish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from millrace.backfill.collector import Outputs
from millrace.backfill.failures import spark_failures
from millrace.backfill.file_history import FileHistory
from millrace.backfill.history import Backfill
from millrace.backfill.job import Computed, compute
from millrace.backfill.kafka_history import KafkaHistory, freeze
from millrace.backfill.packing import Size
from millrace.backfill.preconditions import NOTHING_WRITTEN, Preconditions, check_group_is_empty
from millrace.backfill.progress import Progress
from millrace.backfill.publish import DEFAULT_TRANSACTION_RECORDS, Publisher
from millrace.backfill.refusals import refuse_files
from millrace.backfill.sources import FileSource
from millrace.backfill.tables import write_tables
from millrace.backfill.telemetry import Watch
from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import open_admin
from millrace.kafka.connection_check import check_connection
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.internal_topics import committed_partitions, provision
from millrace.plan.topology_plan import TopologyPlan
from millrace.records import TopicPartition
from millrace.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BackfillResult", "BackfillSpec", "Phase", "StoreResult", "run_backfill"]


class Phase(StrEnum):
    """What a backfill is doing."""

    COMPUTING = "Computing"
    PUBLISHING = "Publishing"
    """In one transaction, of which there is all or nothing in the end."""
    PUBLISHING_IN_PARTS = "PublishingInParts"
    """In several transactions: changelogs and offsets may not fit each other until the last one."""
    SUCCEEDED = "Succeeded"


@dataclass(frozen=True, slots=True)
class BackfillSpec:
    """What to do."""

    topology: Callable[[], Topology]
    """Imports the program; pickled into the executors."""
    settings: Mapping[str, object]
    """The application's."""
    files: Sequence[FileSource] = ()
    outputs: Outputs = Outputs.NONE
    tables: str | None = None
    """Folder for the final tables as Parquet; Kafka is left alone then."""
    dry_run: bool = False
    allow_missing_history: bool = False
    side_effects: bool = False
    """Whether `peek`, `foreach` and `print` run, for every record of history."""
    wall_clock_punctuators: bool = False
    """Whether to compute without calling wall-clock punctuators."""
    plan_hash: str | None = None
    """Which plan the topology must have."""
    transaction_records: int = DEFAULT_TRANSACTION_RECORDS
    attempt_of: str | None = None
    """What attempts of the same backfill have in common: if one has handed over, the others do nothing."""


@dataclass(slots=True)
class StoreResult:
    """What one store holds in the end."""

    records: int = 0
    bytes: int = 0
    tombstones: int = 0
    """For keys that an earlier run had left in its changelog."""


@dataclass(slots=True)
class BackfillResult:
    """What a backfill has done."""

    plan: TopologyPlan
    ends: Mapping[TopicPartition, int]
    """Offsets from which the application goes on."""
    processed: int = 0
    dropped: int = 0
    stores: dict[str, StoreResult] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    transactions: int = 0
    notes: list[str] = field(default_factory=list)


def run_backfill(
    spark: SparkSession,
    spec: BackfillSpec,
    progress: Callable[[Phase, Mapping[TopicPartition, int]], None] = lambda *_: None,
    stages: Progress | None = None,
) -> BackfillResult:
    """Run a backfill.

    Args:
        spark: runs the tasks.
        spec: what to do.
        progress: called when a phase begins, with the offsets at which the history ends.
        stages: hears how far the stages are.

    Raises:
        ConfigError: the topology has another plan, or the files do not have what they should.
        TopologyError: the topology cannot be computed over history.
        ActiveGroupError: the application runs.
        MissingHistoryError: Kafka no longer has the beginning.
        StreamsError: something failed, or the application ran meanwhile; with a `transaction_records` that suffices for
            everything, nothing was written.
    """
    config = StreamsConfig.of(spec.settings)
    plan = spec.topology().build(config).plan()
    if spec.plan_hash is not None and spec.plan_hash != plan.hash:
        raise ConfigError(
            f"The topology of {plan.application_id} has plan {plan.hash}, but the application's is {spec.plan_hash}: its state "
            "would not fit. Use the same program, version and settings for both; nothing has been written"
        )
    if spec.tables is None:
        refuse_files(plan, {source.topic for source in spec.files})
    writes = not spec.dry_run and spec.tables is None
    with Watch(config, stages) as watch, spark_failures(spark), ExitStack() as stack:
        settings = ClientSettings(config, "backfill")
        check_connection(settings)
        admin = open_admin(settings.admin())
        group = stack.enter_context(GroupAdmin(settings))
        publisher = None
        offsets: Mapping[TopicPartition, int] = {}
        earlier: Mapping[TopicPartition, int] = {}
        if writes:
            publisher = stack.enter_context(Publisher(spec.settings, plan, spec.attempt_of, spec.outputs))
            read = committed_partitions([plan], admin)
            if publisher.has_handed_over(group, read):
                progress(Phase.SUCCEEDED, {})
                return BackfillResult(plan, {}, notes=["An earlier attempt has handed over, so nothing was done again"])
            check_group_is_empty(group)
            # What the application has committed last may be pending where its group has no offsets yet.
            group.stable_offsets(read)
            offsets = group.stable_offsets()
            earlier = publisher.ends_of_earlier(group, read)
        until_ms = {source.topic: source.until_ms for source in spec.files}
        kafka = freeze(
            plan, spec.settings, admin, until_ms=until_ms, allow_missing=spec.allow_missing_history, ends=earlier
        )
        ends = {partition: extent.end for partition, extent in kafka.extents.items()}
        progress(Phase.COMPUTING, ends)
        history = FileHistory.of(kafka, spec.files, spec.topology, plan) if spec.files else kafka
        computed = compute(
            spark,
            Backfill(
                spec.topology,
                spec.settings,
                history,
                spec.outputs,
                side_effects=spec.side_effects,
                wall_clock_punctuators=spec.wall_clock_punctuators,
            ),
            watch,
        )
        sizes = computed.sizes()
        result = _result(plan, computed, sizes, ends)
        watch.computed()
        result.notes += [*computed.notes, *_notes(kafka)]
        if isinstance(history, FileHistory):
            result.notes += history.notes(spark)
        if spec.tables is not None and not spec.dry_run:
            write_tables(spec.topology, spec.settings, computed, spec.tables)
        if publisher is not None:
            preconditions = Preconditions(group, admin, kafka, offsets)
            preconditions.check(NOTHING_WRITTEN)
            provision(plan, admin, config)
            with watch.publishing():
                published = publisher.publish(
                    spark,
                    computed,
                    sizes,
                    preconditions,
                    spec.transaction_records,
                    lambda parts: progress(Phase.PUBLISHING_IN_PARTS if parts else Phase.PUBLISHING, ends),
                )
            result.transactions = published.transactions
            stores = _stores_by_changelog(plan)
            for written in published.written:
                if written.topic in stores:
                    result.stores[stores[written.topic]].tombstones += written.tombstones
        progress(Phase.SUCCEEDED, ends)
        return result


def _result(
    plan: TopologyPlan, computed: Computed, sizes: Mapping[str, Size], ends: Mapping[TopicPartition, int]
) -> BackfillResult:
    stores = _stores_by_changelog(plan)
    result = BackfillResult(plan, ends, stores={name: StoreResult() for name in stores.values()})
    for topic, size in sizes.items():
        if topic in stores:
            result.stores[stores[topic]] = StoreResult(size.records, size.bytes)
        else:
            result.outputs[topic] = size.records
    for report in computed.reports:
        result.processed += report["processed"]
        result.dropped += report["dropped"]
    return result


def _stores_by_changelog(plan: TopologyPlan) -> dict[str, str]:
    return {
        store.changelog_topic: store.name
        for item in plan.subtopologies
        for store in item.stores
        if store.changelog_topic is not None and not store.changelog_is_source
    }


def _notes(kafka: KafkaHistory) -> list[str]:
    return [
        f"Kafka has deleted what {partition} had before offset {extent.first}: computed without"
        for partition, extent in sorted(kafka.extents.items())
        if extent.start == extent.first > 0
    ]
