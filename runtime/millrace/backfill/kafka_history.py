"""History that is read from Kafka, up to ends that are fixed before anything runs.

The end of a partition is its last stable offset, so transactions that are still open are left to the application, which goes on
there. A partition is read completely when a record's offset or the position of its end says so: the last offsets may belong to
aborted records and to transaction markers, which no consumer gets to see.

Only committed records are read, whatever the application's guarantee: an aborted record would stay in the state forever.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from millrace.backfill.refusals import START_ANOTHER
from millrace.backfill.stages import shuffled_topics
from millrace.config import ProcessingGuarantee, StreamsConfig
from millrace.deadline import Deadline
from millrace.errors import ConfigError, MissingHistoryError, StreamsError, StreamsTimeoutError
from millrace.instance.input_consumer import InputConsumer
from millrace.kafka.admin import all_topic_partitions, describe_topics
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import open_consumer
from millrace.kafka.internal_topics import partition_counts
from millrace.kafka.offsets import earliest_offsets, latest_offsets, offsets_for_time
from millrace.plan.partition_counts import PartitionCounts, resolve_partition_counts
from millrace.plan.topology_plan import TopologyPlan, repartition_topics
from millrace.records import OFFSET, RawRecord, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient
    from pyspark.sql import SparkSession

__all__ = [
    "Extent",
    "KafkaHistory",
    "backfill_clients",
    "check_unchanged",
    "freeze",
    "read_records",
    "source_partitions",
]

_BATCH: Final = 10_000
_WAIT_S: Final = 0.5
_SILENCE_S: Final = 120.0
_SHOWN: Final = 5
_TRANSACTION_TIMEOUT_MS: Final = 600_000
"""How long publishing may take; brokers allow 15 minutes unless configured otherwise (`transaction.max.timeout.ms`)."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a backfill reads of one partition."""

    first: int
    """Offset of the first record that Kafka still has; 0 of a topic that the application writes itself."""
    start: int
    """Where reading starts: `first`, or the first record that the files do not have. Of a topic that the application writes
    itself nothing is read, as it is computed: there this is the end."""
    end: int
    """Offset before which it ends, and from which the application goes on."""


@dataclass(frozen=True, slots=True)
class KafkaHistory:
    """The records of the user's topics between fixed offsets; pickled into the executors."""

    settings: Mapping[str, object]
    """The application's."""
    counts: Mapping[str, int]
    """Partitions of every topic that exists."""
    topic_ids: Mapping[str, str]
    """Source topic → the id by which a topic that was deleted and created again is recognised."""
    extents: Mapping[TopicPartition, Extent]
    allow_missing: bool = False
    """Whether what is left is read where Kafka has deleted records."""

    @property
    def shuffled(self) -> Mapping[str, int | None]:
        """Topics whose history begins in `rows`: none."""
        return {}

    def partition_counts(self) -> Mapping[str, int]:
        """Return the partitions of every topic that exists."""
        return self.counts

    def rows(self, spark: SparkSession) -> None:
        """Return nothing: all records come from `read`."""

    def size(self, partition: TopicPartition) -> int:
        """Return how many offsets of a partition are read."""
        extent = self.extents.get(partition)
        return 0 if extent is None else extent.end - extent.start

    def read(self, partition: TopicPartition) -> Iterator[list[RawRecord]]:
        """Read one partition, in offset order.

        Raises:
            MissingHistoryError: records were deleted since the ends were fixed.
            StreamsError: the same, where Kafka may lack records: another attempt begins at those that are left.
            StreamsTimeoutError: nothing more arrives.
        """
        extent = self.extents.get(partition)
        if extent is not None:
            clients = backfill_clients(StreamsConfig.of(self.settings))
            deleted = _deleted(partition, self.allow_missing)
            yield from read_records(clients, partition, extent.start, extent.end, deleted=deleted)


def backfill_clients(config: StreamsConfig) -> ClientSettings:
    """Return the settings of a backfill's clients: the application's, reading committed records and writing in transactions."""
    settings = {"producer.transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS, **config.client_settings}
    guarantee = ProcessingGuarantee.EXACTLY_ONCE_V2
    return ClientSettings(
        config.model_copy(update={"processing_guarantee": guarantee, "client_settings": settings}), "backfill"
    )


def source_partitions(plan: TopologyPlan, admin: AdminClient) -> list[TopicPartition]:
    """Return the partitions of the user's topics that an application reads, those of global stores included.

    Raises:
        MissingSourceTopicError: topics do not exist.
    """
    described = describe_topics(admin, _topics_read(plan, partition_counts(plan, admin)))
    return [
        TopicPartition(topic, number)
        for topic, found in sorted(described.items())
        for number in range(found.partitions)
    ]


def _topics_read(plan: TopologyPlan, counts: PartitionCounts) -> set[str]:
    """Return the user's topics that an application reads, those of global stores included."""
    read = {topic for topics in counts.sources.values() for topic in topics} - repartition_topics(plan).keys()
    return read | {store.topic for store in plan.global_stores}


def freeze(
    plan: TopologyPlan,
    settings: Mapping[str, object],
    admin: AdminClient,
    *,
    until_ms: Mapping[str, int | None] = MappingProxyType({}),
    allow_missing: bool = False,
    ends: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> KafkaHistory:
    """Fix what a backfill reads.

    Args:
        plan: the application's.
        settings: the application's.
        admin: client of its cluster.
        until_ms: topic → the instant up to which files have its history: Kafka is read from there, or not at all if it is None.
        allow_missing: read what is left where Kafka has deleted records.
        ends: where an earlier attempt has fixed them; empty if none has.

    Raises:
        MissingSourceTopicError: topics do not exist.
        MissingHistoryError: Kafka no longer has the beginning, and `allow_missing` is False.
        ConfigError: the topics do not fit these ends.
    """
    partitions = source_partitions(plan, admin)
    first = earliest_offsets(admin, partitions)
    latest = latest_offsets(admin, partitions, committed_only=True)
    described = describe_topics(admin, {partition.topic for partition in partitions})
    topics = {**all_topic_partitions(admin), **{topic: found.partitions for topic, found in described.items()}}
    counts = resolve_partition_counts(plan, topics)
    _check_complete(plan, counts, topics, partitions)
    own = shuffled_topics(plan, counts) - {store.topic for store in plan.global_stores}
    first |= {partition: 0 for partition in partitions if partition.topic in own}
    if ends:
        latest = _up_to(ends, first, latest)
    starts = dict(first)
    for topic, instant in until_ms.items():
        given = [partition for partition in partitions if partition.topic == topic]
        after = latest if instant is None else offsets_for_time(admin, given, instant)
        starts |= {partition: min(after[partition], latest[partition]) for partition in given}
    starts |= {partition: latest[partition] for partition in partitions if partition.topic in own}
    extents = {p: Extent(first[p], starts[p], max(latest[p], starts[p])) for p in partitions}
    if not allow_missing:
        _check_beginning(extents, until_ms)
    ids = {topic: found.id for topic, found in described.items()}
    return KafkaHistory(settings, topics, ids, extents, allow_missing)


def _check_complete(
    plan: TopologyPlan, counts: PartitionCounts, topics: Mapping[str, int], partitions: Collection[TopicPartition]
) -> None:
    """Check that nothing was created while the ends of these partitions were asked for: it would count as processed."""
    read = _topics_read(plan, counts)
    now = {TopicPartition(topic, number) for topic in read for number in range(topics.get(topic, 0))}
    if new := sorted(now - set(partitions)):
        raise StreamsError(
            f"{new[0]} was created while the ends of the history were asked for: start the backfill again; nothing has been "
            "written"
        )


def _up_to(
    ends: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the ends that an earlier attempt has fixed, of partitions that are the same."""
    for partition, now in latest.items():
        if not first[partition] <= ends.get(partition, -1) <= now:
            raise ConfigError(
                f"An earlier attempt of this backfill has begun to write outputs, and {partition} has changed since: it was "
                "deleted and created again, is new, retention has deleted all that was read, or where the history ended is no "
                f"longer known. {START_ANOTHER}"
            )
    return {partition: ends[partition] for partition in latest}


def _check_beginning(extents: Mapping[TopicPartition, Extent], until_ms: Mapping[str, int | None]) -> None:
    """Where files come first, a retained record before the instant shows that none after it is missing."""
    missing = [
        f"{partition} begins at offset {extent.first}"
        for partition, extent in extents.items()
        if extent.first > 0 and extent.start == extent.first and until_ms.get(partition.topic, 0) is not None
    ]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise MissingHistoryError(
            f"Kafka has deleted the beginning of the history (retention): {', '.join(missing[:_SHOWN])}{more}. Give files that "
            "have the older records, or allow missing history (--allow-missing-history) to compute from what is left"
        )


def read_records(
    clients: ClientSettings,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    committed_only: bool = True,
    deleted: StreamsError | None = None,
) -> Generator[list[RawRecord], None, None]:
    """Read the records of a partition from `start` up to `end` (exclusive), in offset order.

    Args:
        clients: the backfill's.
        partition: what to read.
        start: the first offset.
        end: where to stop; no transaction may be open before it if only committed records are read.
        committed_only: False to read the records of aborted and open transactions too.
        deleted: raised if records that were to be read have been deleted; None to go on at the first one that is left.

    Raises:
        MissingSourceTopicError: the topic was deleted.
        StreamsTimeoutError: nothing more arrives.
    """
    if start >= end:
        return
    settings = clients.restore_consumer(1)
    settings["isolation.level"] = "read_committed" if committed_only else "read_uncommitted"
    client = open_consumer(settings)

    def go_on_at(lost: TopicPartition) -> int:
        if deleted is not None:
            raise deleted
        return _beginning(client, lost)

    reader = InputConsumer(client, go_on_at)
    try:
        reader.assign({partition: start})
        silence = Deadline(_SILENCE_S)
        while True:
            records = reader.poll(_BATCH, _WAIT_S).get(partition, [])
            complete = reader.at_end.get(partition, -1) >= end
            if records:
                silence = Deadline(_SILENCE_S)
                last = records[-1][OFFSET]
                complete = complete or last >= end - 1
                if last >= end:
                    records = [record for record in records if record[OFFSET] < end]
                if records:
                    yield records
            if complete:
                return
            if silence.passed:
                raise StreamsTimeoutError(
                    f"Nothing has arrived from {partition} for {_SILENCE_S:.0f} s, but it was to be read up to offset {end}: "
                    "check that its leader is reachable"
                )
    finally:
        client.close()


def _beginning(client: Consumer, partition: TopicPartition) -> int:
    try:
        first, _ = client.get_watermark_offsets(ClientTopicPartition(*partition), _SILENCE_S)
    except KafkaException as error:
        raise StreamsTimeoutError(f"Cannot find out where {partition} begins: {error.args[0].str()}") from error
    return int(first)


def _deleted(partition: TopicPartition, allow_missing: bool) -> StreamsError:  # noqa: FBT001
    if allow_missing:
        return StreamsError(
            f"Records of {partition} were deleted while the backfill read them (retention): start the backfill again, and it "
            "computes from what is left"
        )
    return MissingHistoryError(
        f"Records of {partition} were deleted while the backfill read them (retention): make the topic's retention longer, and "
        "start the backfill again"
    )


def check_unchanged(history: KafkaHistory, admin: AdminClient, written: str) -> None:
    """Check that the source topics are still those that were read.

    Args:
        history: what was read.
        admin: client of its cluster.
        written: what to say about what has been written.

    Raises:
        StreamsError: one was deleted, created again, or has got partitions.
    """
    described = describe_topics(admin, history.topic_ids)
    for topic, topic_id in history.topic_ids.items():
        found = described.get(topic)
        if found is None or found.id != topic_id:
            change = "deleted" if found is None else "deleted and created again"
            raise StreamsError(f"Topic {topic} was {change} during the backfill: start it again; {written}")
        if found.partitions != history.counts[topic]:
            raise StreamsError(
                f"Topic {topic} had {history.counts[topic]} partitions when the backfill started and has {found.partitions} now, "
                f"so keys have moved: start it again; {written}"
            )
