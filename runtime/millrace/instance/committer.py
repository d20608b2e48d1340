"""Commits the tasks of one stream thread, discards uncommitted output, and purges records no longer needed.

All tasks of a thread commit together: they share one producer, so one flush, one ListOffsets and one commit serve all. The
order is the guarantee: all sent records are acknowledged, then input offsets are committed, then state is written to disk
with its changelog offsets. The transaction itself is in `producer`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.engine.task import StreamTask
from millrace.errors import StreamsError, TransactionAbortedError
from millrace.instance.producer import StaleGenerationError
from millrace.instance.resources import ThreadResources
from millrace.records import OffsetAndMetadata, TopicPartition
from millrace.topology.physical_topology import BuiltTopology

__all__ = ["Committer", "RepartitionPurge"]

_log = logging.getLogger(__name__)
_METADATA_TIMEOUT_S = 1.0
_CLEAN_METADATA_S = 1.0
"""How long a hand-over waits for an optional commit."""


class Committer:
    """Commits for one thread; used by that thread only."""

    def __init__(self, resources: ThreadResources) -> None:
        self._resources = resources
        self._exactly_once = resources.context.config.exactly_once
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        """The last known committed offset of each input partition; where it started if there is none."""
        self.commits_total = 0

    def is_wanted(self, tasks: Iterable[StreamTask]) -> bool:
        """Whether a processor requested a commit, or uncommitted state takes too much memory."""
        limit = self._resources.context.config.uncommitted_max_bytes
        return any(
            task.commit_needed and (task.commit_requested or task.uncommitted_bytes() >= limit) for task in tasks
        )

    def commit(self, tasks: Iterable[StreamTask]) -> int:
        """Commit the tasks that have anything to commit; return how many.

        Raises:
            TaskMigratedError: the group has moved on without this member.
            TransactionAbortedError: the transaction failed: revive all running tasks.
            ProductionError: a record was refused.
            RebalanceInProgressError: commit again when the rebalance is over (at-least-once only).
        """
        at_end = self._resources.consumer.at_end
        changed = []
        for task in tasks:
            # Transaction markers count as consumed too, or the group would show a lag when there is nothing left to read.
            for partition in task.input_partitions & at_end.keys():
                task.set_position(partition, at_end[partition])
            if task.commit_needed:
                changed.append(task)
        if not changed:
            return 0
        thread, tracer = self._resources.thread, self._resources.context.instrumentation
        if tracer is None:
            return self._commit(changed)
        with tracer.commit(thread, [task.task_id for task in changed], exactly_once=self._exactly_once):
            return self._commit(changed)

    def _commit(self, tasks: list[StreamTask]) -> int:
        resources = self._resources
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for task in tasks:
            resources.collector.at_work = task
            offsets.update(task.prepare_commit())
        tracer = resources.context.instrumentation
        with nullcontext() if tracer is None else tracer.send(resources.thread):
            resources.collector.flush()
        changelog_offsets = resources.collector.changelog_offsets()
        if self._exactly_once:
            if offsets or resources.producer.in_transaction:
                self._commit_transaction(offsets or self._any_committed(tasks))
        elif offsets:
            resources.member.commit_offsets(offsets)
        self.committed.update(offsets)
        for task in tasks:
            task.post_commit(changelog_offsets)
        resources.collector.committed()
        self.commits_total += 1
        return len(tasks)

    def _commit_transaction(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        member = self._resources.member
        generation, metadata = member.generation, member.group_metadata()
        try:
            self._resources.producer.commit(offsets, metadata)
        except StaleGenerationError as error:
            if not member.moves_on_from(generation):
                raise
            raise TransactionAbortedError(
                "The group has begun its next generation, and this member is in it, but does not know it yet: the transaction is "
                "aborted, and its records are processed again"
            ) from error

    def _any_committed(self, tasks: Iterable[StreamTask]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return an offset to commit again, without which a transaction (of punctuation) has no generation check."""
        for task in tasks:
            for partition in task.input_partitions:
                if partition in self.committed:
                    return {partition: self.committed[partition]}
        raise StreamsError("A transaction has no input partition to commit: this is an error in Millrace")

    def commit_clean_metadata(self, partitions: Collection[TopicPartition]) -> None:
        """Commit the offsets of inputs once more, outside of a transaction, for the next owner of their tasks.

        librdkafka's transactional commit adds a zero byte to the metadata, which Java's Kafka Streams cannot read; so at a
        hand-over the same offsets are committed again without a transaction. Nothing depends on it: a failure is only logged.

        A broker may get the request late, after it was sent again on another connection. It is refused then, as the member and
        the generation (or epoch) that it names are over before anybody else may commit these offsets: with the classic protocol
        the next owner gets the partition in a later generation, with the streams protocol the epoch changes once this member
        reports that it has given the task up, and a member that has left or was replaced is unknown. Nothing would refuse it if
        this member went on with the partition in the same generation, so never call it for such a task.
        """
        if not self._exactly_once:
            return
        offsets = {
            partition: self.committed[partition]
            for partition in partitions
            if partition in self.committed and self.committed[partition].metadata
        }
        try:
            self._resources.member.commit_offsets(offsets, _CLEAN_METADATA_S)
        except StreamsError as error:
            _log.debug("The metadata of committed offsets keeps its zero byte: %s", error)

    def abort(self) -> None:
        """Discard the records sent since the last commit."""
        try:
            self._resources.producer.abort()
        finally:
            self._resources.collector.discard()  # afterwards, because aborting reports the records that were discarded


class RepartitionPurge:
    """Deletes the records of repartition topics that one thread has committed, every `repartition.purge.interval.ms`.

    These records are only read once, but their retention is infinite, so that nothing is lost while an application is down.
    A failed request does no harm: the next one deletes the same records and more.
    """

    def __init__(self, topology: BuiltTopology, config: StreamsConfig, admin: AdminClient) -> None:
        self._admin = admin
        self._every_s = config.repartition_purge_interval_ms / 1000
        self._topics = frozenset(
            topic for subtopology in topology.subtopologies for topic in subtopology.repartition_topics
        )
        self._last = time.monotonic()
        self._purged: dict[TopicPartition, int] = {}
        self._running: list[Future[None]] = []

    def run_if_due(self, now: float, committed: Callable[[], Mapping[TopicPartition, OffsetAndMetadata]]) -> None:
        """Send the request if it is due and the last one has been answered.

        Args:
            now: monotonic seconds.
            committed: returns the committed offsets of the thread's inputs.
        """
        if not self._topics or now - self._last < self._every_s:
            return
        if any(not future.done() for future in self._running):
            return
        self._last = now
        problem = next((future.exception() for future in self._running if future.exception() is not None), None)
        if problem is not None:
            self._purged.clear()
            _log.warning("Repartition topics were not purged, and grow until they are: %s", problem)
            with contextlib.suppress(
                KafkaException
            ):  # leaders may have moved; without new metadata the old ones are asked again
                self._admin.list_topics(timeout=_METADATA_TIMEOUT_S)
        self._running = []
        wanted = {
            partition: position.offset
            for partition, position in committed().items()
            if partition.topic in self._topics
            and position.offset != self._purged.get(partition, 0)  # less if recreated
        }
        if not wanted:
            return
        request = [ClientTopicPartition(*partition, offset) for partition, offset in wanted.items()]
        try:
            futures = self._admin.delete_records(request)
        except KafkaException as error:
            _log.warning("Repartition topics cannot be purged, and grow until they are: %s", error)
            return
        self._purged.update(wanted)
        self._running = list(futures.values())
