"""Writes what a backfill has computed: changelogs, outputs and, last of all, the offsets from which the application goes on.

Nothing is written before everything is computed. Then one transaction of the driver has it all, so there is never half a result.
Only if there is more than one transaction can take, the changelogs are written first, each partition by an executor in
a transaction of its own; outputs and offsets still follow in the driver's transaction. A backfill that ended half-way is started
again: every changelog partition is compared with what is to be in it, and gets tombstones for the keys that are no longer there,
so the second result replaces the first. Keys of aborted records get tombstones too, as Java's applications read these under
at-least-once. Outputs cannot be replaced. If they are too many for one transaction themselves, executors write them as well, and
`millrace.backfill.split_outputs` has each partition written once by all attempts.

Every transactional id is fixed. So whoever starts later fences those who wrote before, and of two backfills only the one that
started last can end: the driver's producer is started before anything is computed. One that is fenced never starts its producer
again, as that would fence the later one.

Between several transactions the application must not start. So the first one commits the group's offsets as they are, with a
mark in their metadata that the runtime refuses; the last one, or a reset, replaces it. The mark also names the attempt, and the
backfill that it belongs to, so that the operator can tell whose half result there is. An executor starts its producer only if
all marks are those of its own backfill, as it would fence one of a later backfill, and writes only if that is so afterwards too.
Otherwise tasks of a backfill that was frozen would fence nobody, and write after a later one has ended. And a backfill that
finds the mark of another sets its own wherever that is, even where its application no longer reads, before it fences all
executors of that one. An executor commits only if the marks are still there once all its records have offsets: Spark may run a
task twice, and one that it no longer waits for may outlive the last transaction. Then whoever starts later waits for the end of
the executor's transaction, as its records are below the end of the changelog. Once the mark is gone, the driver fences all
executors, since the transaction of one that was killed would stay open.

A driver that dies after its last transaction does not know that it has ended, and whoever starts it again even less. So attempts
of the same backfill have a name in common: the last transaction also commits an offset of a group with this name, and an attempt
that finds one does nothing. Whoever knows that there will be no other attempt deletes the group, as the operator does.

An application that starts meanwhile reads the group's offsets either before they are part of the first transaction, or the last
one, and is seen as a member before this is committed, or it waits until it is.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Self

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from millrace.backfill.collector import Outputs
from millrace.backfill.kafka_history import KafkaHistory, backfill_clients
from millrace.backfill.packing import Size, merged
from millrace.backfill.partition_write import (
    WRITTEN_DDL,
    Changes,
    ExecutorTombstones,
    ExecutorWrite,
    Written,
    old_records,
    transactional_id,
    versioned_changelogs,
)
from millrace.backfill.preconditions import HALF_WRITTEN, NOTHING_WRITTEN, Preconditions
from millrace.backfill.refusals import START_ANOTHER
from millrace.backfill.rows import PACKED_DDL, REPORT
from millrace.backfill.split_outputs import (
    Positions,
    SplitOutputs,
    begun_outputs,
    check_fitting,
    check_readable,
    figures,
    settled_positions,
)
from millrace.backfill.transport import in_executors, ordered
from millrace.backfill.writer import Writer
from millrace.config import StreamsConfig
from millrace.deadline import Deadline
from millrace.engine.offset_metadata import encode_metadata
from millrace.errors import ConfigError, StreamsError
from millrace.garbage import MANY_RECORDS, rarely_collected
from millrace.kafka.admin_requests import pause
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.offsets import latest_offsets
from millrace.plan.backfill_marks import (
    UNFINISHED_BACKFILL,
    are_marked,
    attempts_group,
    is_marked,
    mark_of,
    outputs_group,
)
from millrace.plan.topology_plan import TopologyPlan, changelog_topics
from millrace.records import UNKNOWN_TIMESTAMP, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyspark.sql import DataFrame, SparkSession

    from millrace.backfill.job import Computed

__all__ = ["DEFAULT_TRANSACTION_RECORDS", "Publisher"]

_log = logging.getLogger(__name__)

DEFAULT_TRANSACTION_RECORDS: Final = 10_000_000
_FENCED_AT_ONCE: Final = 8


@dataclass(slots=True)
class Published:
    """What was written altogether."""

    written: list[Written] = field(default_factory=list)
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    transactions: int = 0


class Publisher:
    """Publishes the result of one application's backfill; a context manager.

    Args:
        settings: the application's.
        plan: the application's.
        attempt_of: what attempts of the same backfill have in common; None if there are no others.
        outputs: what is kept of them.

    Raises:
        StreamsTimeoutError: no transaction coordinator answered.
    """

    def __init__(
        self,
        settings: Mapping[str, object],
        plan: TopologyPlan,
        attempt_of: str | None = None,
        outputs: Outputs = Outputs.NONE,
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._clients = backfill_clients(StreamsConfig.of(settings))
        self._writer = Writer(self._clients, f"{plan.application_id}-backfill")
        self._attempt_of = attempt_of
        self._attempts_group = None if attempt_of is None else attempts_group(plan.application_id, attempt_of)
        self._result = f"{plan.hash} {outputs}"
        self._begun: Positions = {}
        """What earlier attempts have begun to write partition by partition."""
        self._mark = f"{mark_of(attempt_of)}{uuid.uuid4().hex}"

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give up what is not committed."""
        self._writer.close()

    def has_handed_over(self, group: GroupAdmin, read: Collection[TopicPartition]) -> bool:
        """Return whether an earlier attempt of this backfill has published everything.

        Args:
            group: the application's.
            read: the partitions whose offsets the application commits.
        """
        if self._attempts_group is None:
            return False
        return bool(settled_positions(group, self._attempts_group, read))

    def ends_of_earlier(self, group: GroupAdmin, read: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where earlier attempts have fixed the ends of the history for this one, too; empty if none has.

        Args:
            group: the application's.
            read: the partitions whose offsets the application commits.

        Raises:
            ConfigError: they have computed something else, or the application has gone on since.
        """
        if self._attempt_of is not None:
            self._begun = begun_outputs(group, self._attempt_of, self._result, read)
        return {partition: known.offset for partition, known in self._begun.items()}

    def publish(
        self,
        spark: SparkSession,
        computed: Computed,
        sizes: Mapping[str, Size],
        preconditions: Preconditions,
        transaction_records: int = DEFAULT_TRANSACTION_RECORDS,
        begins: Callable[[bool], None] = lambda _: None,
    ) -> Published:
        """Write everything; the internal topics exist.

        Args:
            spark: the session that has computed the rows.
            computed: what to write.
            sizes: how much that is, by topic.
            preconditions: what must be so at every commit of offsets.
            transaction_records: how many records one transaction may have.
            begins: called once nothing is known that would be refused, with whether it is written in several transactions: before
                anything is written or, in that case, right before the first commit.

        Raises:
            ActiveGroupError: the application was started in the meantime.
            TaskMigratedError: another backfill of this application has started in the meantime.
            ConfigError: there are more outputs than one transaction can take, and other attempts would not know which of them are
                written; or a changelog has versions that cannot be removed.
            StreamsError: a record was refused, a transaction took too long, or the application ran in the meantime.
        """
        admin, group, history = preconditions.admin, preconditions.group, preconditions.history
        logs = {
            topic: computed.counts.changelogs[topic]
            for topic in changelog_topics(self._plan)
            if topic in computed.counts.changelogs
        }
        sent = {topic: size for topic, size in sizes.items() if topic not in logs}
        outputs = self._split(sent, computed, preconditions, transaction_records)
        positions, offsets = group.positions(), _offsets(computed, history, admin)
        offsets |= _left_marked(positions, offsets.keys(), history.partition_counts())
        published = Published(offsets=offsets)
        targets = [TopicPartition(topic, number) for topic in sorted(logs) for number in range(logs[topic])]
        changes = Changes(
            self._settings,
            old_records(admin, targets),
            versioned_changelogs(self._plan),
            self._mark,
            frozenset(published.offsets),
        )
        rows, records = computed.rows.where(F.col("topic") != REPORT), sum(size.records for size in sizes.values())
        content = _Content(rows, records, changes)
        unfinished = is_marked(positions, UNFINISHED_BACKFILL)
        if (outputs is not None or content.most_records > transaction_records) and not unfinished:
            content = _with_tombstones(spark, content, transaction_records)
        several = outputs is not None or content.most_records > transaction_records
        written = HALF_WRITTEN if unfinished else NOTHING_WRITTEN
        preconditions.check(written)
        report = partial(begins, several or unfinished)
        if several or unfinished:
            self._check_parts(computed, logs, written)
            preconditions = self._mark_unfinished(preconditions, published.offsets, written, report, outputs)
            written = HALF_WRITTEN
        else:
            report()
        parts = [*targets, *sorted(outputs.targets if outputs is not None else ())]
        self._fence_executors(admin, [*parts, *(self._sinks(history, parts) if unfinished else ())], every=unfinished)
        rows, changes = content.rows, content.changes
        if changes.old:
            changes = replace(changes, old=old_records(admin, targets))
        small, in_driver, own = rows, content.with_tombstones(sizes), targets
        if several:
            topics = {part.topic for part in parts}
            small, large = rows.where(~F.col("topic").isin(*topics)), rows.where(F.col("topic").isin(*topics))
            published.written += _written_by_executors(spark, large, parts, ExecutorWrite(changes, outputs))
            in_driver, own = {topic: size for topic, size in sizes.items() if topic not in topics}, []
        with rarely_collected(*MANY_RECORDS), self._writer.transaction():
            left = ordered(spark, small, own, in_driver)
            for target, some in groupby(left, itemgetter(0)):
                batches = merged((batch for _, batch in some), frozenset())
                published.written.append(changes.write(self._writer, self._clients, target, batches))
            self._writer.flush()
            computed.check_unchanged()  # after the last row was used, and before anything counts
            published.offsets |= _beyond_own_records(admin, published, history)
            if self._attempts_group is not None:
                self._writer.add_offsets(self._attempts_group, dict(islice(published.offsets.items(), 1)))
            self._writer.commit(self._plan.application_id, published.offsets, partial(preconditions.check, written))
        published.transactions = 1 + (several or unfinished) + (len(parts) if several else 0)
        published.written = list(map(content.told_apart, published.written))
        if several:
            self._end_executors(admin, group, parts)
        return published

    def _split(
        self, sizes: Mapping[str, Size], computed: Computed, preconditions: Preconditions, transaction_records: int
    ) -> SplitOutputs | None:
        """Return the partitions of outputs if these are too many for one transaction, or if an earlier attempt has found that."""
        records, history, begun = sum(size.records for size in sizes.values()), preconditions.history, self._begun
        if not begun and records <= transaction_records:
            return None
        if self._attempt_of is None:
            raise ConfigError(
                f"There are {records:,} output records, and one transaction is to have at most {transaction_records:,}. They can "
                "be written partition by partition if the backfill has a name, from which another attempt knows what is written "
                "(--attempt-of NAME). Or write fewer (--outputs last or none), or allow larger transactions "
                f"(--transaction-records); {NOTHING_WRITTEN}"
            )
        counts = history.partition_counts()
        targets = frozenset(TopicPartition(topic, number) for topic in sizes for number in range(counts[topic]))
        each = dict.fromkeys(targets, 0) | _records_of_partitions(computed.rows, sizes)
        result = f"{self._result} {figures(computed.reports, history, sizes, each)}"
        if any(not known.metadata.startswith(result) for known in begun.values()):
            raise ConfigError(
                f"Backfill {self._attempt_of} has begun to write outputs, but what this attempt has computed is something else: "
                "records of the history were deleted or compacted, the files, the program or its settings are others, or a topic "
                f"of outputs has got partitions. {START_ANOTHER}"
            )
        if not begun:
            check_fitting(each, self._writer.timeout_ms, NOTHING_WRITTEN)
            check_readable(preconditions.admin, sizes)
        ends = {partition: extent.end for partition, extent in history.extents.items()}
        return SplitOutputs(outputs_group(self._plan.application_id, self._attempt_of), result, ends, targets)

    def _check_parts(self, computed: Computed, logs: Mapping[str, int], written: str) -> None:
        """Check, before any partition is written, what would keep others from being written too."""
        if logs:
            check_fitting(_records_of_partitions(computed.rows, logs), self._writer.timeout_ms, written)
        computed.check_unchanged()

    def _sinks(self, history: KafkaHistory, others: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return where executors of another backfill may write outputs, too."""
        counts = history.partition_counts()
        topics = {
            self._plan.dead_letter_topic,
            *(topic for item in self._plan.subtopologies for topic in item.sink_topics),
        }
        found = {TopicPartition(topic, number) for topic in topics if topic for number in range(counts.get(topic, 0))}
        return sorted(found - set(others))

    def _mark_unfinished(
        self,
        before: Preconditions,
        partitions: Collection[TopicPartition],
        written: str,
        begins: Callable[[], None],
        outputs: SplitOutputs | None,
    ) -> Preconditions:
        """Mark the group's offsets, and return what must be so from then on; `begins` is called right before."""
        marked = {partition: before.offsets.get(partition, 0) for partition in partitions}

        def confirm() -> None:
            before.check(written)
            begins()  # earlier would be wrong if the check fails, and later it may not be known that the mark is there

        first = {} if outputs is None else outputs.beginning(self._begun)
        with self._writer.transaction():
            if outputs is not None:
                self._writer.add_offsets(outputs.group_id, first)
            positions = {partition: OffsetAndMetadata(offset, self._mark) for partition, offset in marked.items()}
            self._writer.commit(self._plan.application_id, positions, confirm)
        deadline, group = Deadline(before.group.timeout_s), before.group
        # The commit is answered before the groups have their offsets.
        while not (
            are_marked(group.positions(), marked, self._mark) and (outputs is None or outputs.has_begun(group, first))
        ):
            pause(deadline, "mark the offsets", "the group does not have them yet")
        return replace(before, offsets={**before.offsets, **marked}, mark=self._mark, marked=marked.keys())

    def _fence_executors(self, admin: AdminClient, targets: list[TopicPartition], *, every: bool) -> None:
        """Fence the executors of an earlier backfill.

        Args:
            admin: client of the cluster.
            targets: what they write.
            every: whether any of them may still write. If not, only the transactions of those that were killed are ended, beyond
                which nothing can be restored until they time out.
        """
        stable, ends = latest_offsets(admin, targets, committed_only=True), latest_offsets(admin, targets)
        fenced = [target for target in targets if every or stable[target] < ends[target]]

        def fence(target: TopicPartition) -> None:
            Writer(self._clients, transactional_id(self._plan.application_id, target)).close()

        with ThreadPoolExecutor(_FENCED_AT_ONCE) as threads:
            list(threads.map(fence, fenced))

    def _end_executors(self, admin: AdminClient, group: GroupAdmin, targets: list[TopicPartition]) -> None:
        """Fence this backfill's own executors after the last transaction; everything is handed over, so no failure matters."""
        deadline = Deadline(group.timeout_s)
        try:
            while is_marked(found := group.positions(), self._mark):  # see `_mark_unfinished`
                pause(deadline, "fence executors", "the group does not have its new offsets yet")
            if not is_marked(found, UNFINISHED_BACKFILL):  # else those of a later backfill write
                self._fence_executors(admin, targets, every=True)
        except StreamsError as error:
            _log.warning("Transactions that executors may have left open end only when they time out: %s", error)


@dataclass(frozen=True, slots=True)
class _Content:
    """What is written, and what it replaces."""

    rows: DataFrame
    records: int
    """Computed ones among the rows."""
    changes: Changes
    """Finds the tombstones that are not among the rows."""
    tombstones: Mapping[TopicPartition, Size] = field(default_factory=dict)
    """Those among the rows."""

    @property
    def most_records(self) -> int:
        """How many records are written at most: a changelog may have a key per offset."""
        known = sum(size.records for size in self.tombstones.values())
        return self.records + known + sum(old.end - old.start for old in self.changes.old.values())

    def with_tombstones(self, sizes: Mapping[str, Size]) -> dict[str, Size]:
        """Return how much the rows of each topic are, of which these are the computed ones."""
        found = dict(sizes)
        for target, size in self.tombstones.items():
            found[target.topic] = found.get(target.topic, Size()).plus(*size)
        return found

    def told_apart(self, written: Written) -> Written:
        """Return what was written to a partition, so that tombstones among the rows count as such."""
        known = self.tombstones.get(TopicPartition(written.topic, written.partition), Size())
        return written._replace(
            records=written.records - known.records,
            bytes=written.bytes - known.bytes,
            tombstones=written.tombstones + known.records,
        )


def _written_by_executors(
    spark: SparkSession, rows: DataFrame, parts: list[TopicPartition], write: ExecutorWrite
) -> list[Written]:
    found = in_executors(spark, rows, parts, write, WRITTEN_DDL).collect()
    return [Written(**row.asDict()) for row in found]


def _records_of_partitions(rows: DataFrame, topics: Collection[str]) -> dict[TopicPartition, int]:
    """Return how many records the partitions of topics get; those that get none may be left out."""
    records = F.sum(F.greatest("packed", F.lit(1))).alias("records")
    found = rows.where(F.col("topic").isin(*topics)).groupBy("topic", "partition").agg(records)
    return {TopicPartition(row["topic"], row["partition"]): row["records"] for row in found.collect()}


def _with_tombstones(spark: SparkSession, content: _Content, transaction_records: int) -> _Content:
    """Add tombstones to rows that may fit into one transaction with them, as most offsets of a changelog may be of few keys.

    If they do not fit, executors find the tombstones when they write. Versions are refused now in any case: later, other
    executors might have written their partitions. And until open transactions have ended, nobody knows all keys.
    """
    changes, targets = content.changes, list(content.changes.old)
    if content.records > transaction_records or any(old.stable_end < old.end for old in changes.old.values()):
        versioned = [target for target in targets if target.topic in changes.versioned]
        if any(changes.old[target].start < changes.old[target].stable_end for target in versioned):
            _tombstones(spark, content.rows, versioned, changes).count()
        return content
    found = _tombstones(spark, content.rows, targets, changes).persist(StorageLevel.MEMORY_AND_DISK)
    columns = F.count("*"), F.coalesce(F.sum(F.length("key")), F.lit(0))
    sizes = {
        TopicPartition(topic, number): Size(*size)
        for topic, number, *size in found.groupBy("topic", "partition").agg(*columns).collect()
    }
    return replace(content, rows=content.rows.unionByName(found), changes=replace(changes, old={}), tombstones=sizes)


def _tombstones(spark: SparkSession, rows: DataFrame, targets: list[TopicPartition], changes: Changes) -> DataFrame:
    own = rows.where(F.col("topic").isin(*{target.topic for target in targets}))
    return in_executors(spark, own, targets, ExecutorTombstones(changes), PACKED_DDL)


def _offsets(computed: Computed, history: KafkaHistory, admin: AdminClient) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return what the group is to commit: the ends of the history, and of repartition topics as they are now.

    What is in a repartition topic comes from records of the history, which are processed already.
    """
    known: dict[TopicPartition, str] = {}
    for report in computed.reports:
        for topic, number, _, metadata in report["offsets"]:
            known[TopicPartition(topic, number)] = metadata
    read = [
        TopicPartition(topic, number)
        for topics in computed.counts.sources.values()
        for topic in topics
        for number in range(computed.counts.topics[topic])
    ]
    internal = latest_offsets(admin, [partition for partition in read if partition not in history.extents])
    ends = {**internal, **{partition: extent.end for partition, extent in history.extents.items()}}
    unknown = encode_metadata(UNKNOWN_TIMESTAMP)
    return {
        partition: OffsetAndMetadata(ends[partition], known.get(partition, unknown))
        for partition in dict.fromkeys(read)
    }


def _left_marked(
    positions: Mapping[TopicPartition, OffsetAndMetadata], read: Collection[TopicPartition], counts: Mapping[str, int]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return where the group is in partitions that are no longer read, but that an earlier backfill has marked.

    As long as any of them has that mark, executors of that backfill may commit.
    """
    unknown = encode_metadata(UNKNOWN_TIMESTAMP)
    return {
        partition: OffsetAndMetadata(found.offset, unknown)
        for partition, found in positions.items()
        if partition not in read
        and found.metadata.startswith(UNFINISHED_BACKFILL)
        and partition.partition < counts.get(partition.topic, 0)
    }


def _beyond_own_records(
    admin: AdminClient, published: Published, history: KafkaHistory
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return where the application goes on in topics of the user that it both writes and reads.

    What was just written there has been processed already. A table restored from such a topic ends where its task goes on.
    """
    written = {TopicPartition(item.topic, item.partition) for item in published.written if item.records}
    own = written & history.extents.keys()
    return {
        partition: published.offsets[partition]._replace(offset=end)
        for partition, end in latest_offsets(admin, own).items()
        if partition in published.offsets
    }
