"""Committing the tasks of one stream thread, and giving up what they have not committed.

All tasks of a thread commit together: they share one producer, so one flush, one ListOffsets and one commit serve all. The order
is that of the promise: what was sent is acknowledged, then input offsets are committed, then state is put on disk with the
changelog offsets that it corresponds to.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import nullcontext

from millrace.engine.task import StreamTask
from millrace.errors import StreamsError
from millrace.records import OffsetAndMetadata, TopicPartition
from millrace.runtime.task_resources import TaskResources

__all__ = ["Committer"]

_log = logging.getLogger(__name__)


class Committer:
    """Commits for one thread; used by that thread only."""

    def __init__(self, resources: TaskResources) -> None:
        self._resources = resources
        self._exactly_once = resources.config.exactly_once
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        """What is committed of each input partition, as far as this thread knows; where it began if nothing is."""
        self.commits_total = 0

    def is_wanted(self, tasks: Iterable[StreamTask]) -> bool:
        """Whether a processor asked for a commit, or uncommitted state takes too much memory."""
        limit = self._resources.config.uncommitted_max_bytes
        return any(
            task.commit_needed and (task.commit_requested or task.uncommitted_bytes() >= limit) for task in tasks
        )

    def commit(self, tasks: Iterable[StreamTask]) -> int:
        """Commit those of the tasks that have something to commit; return how many.

        Raises:
            TaskMigratedError: the group has gone on without this member.
            TransactionAbortedError: revive all running tasks.
            ProductionError: a record was refused.
            RebalanceInProgressError: commit again when it is over (at-least-once only).
        """
        changed = [task for task in tasks if task.commit_needed]
        if not changed:
            return 0
        thread, tracer = self._resources.thread, self._resources.instrumentation
        if tracer is None:
            return self._commit(changed)
        with tracer.commit(thread, [task.task_id for task in changed], exactly_once=self._exactly_once):
            return self._commit(changed)

    def _commit(self, tasks: list[StreamTask]) -> int:
        resources = self._resources
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for task in tasks:
            for partition in task.input_partitions & resources.consumer.at_end.keys():
                task.set_position(partition, resources.consumer.at_end[partition])
            offsets.update(task.prepare_commit())
        with nullcontext() if resources.instrumentation is None else resources.instrumentation.send(resources.thread):
            resources.collector.flush()
        changelog_offsets = resources.collector.changelog_offsets()
        if self._exactly_once:
            if offsets or resources.producer.in_transaction:
                resources.producer.commit(offsets or self._any_committed(tasks), resources.offsets.group_metadata())
        elif offsets:
            resources.offsets.commit_offsets(offsets)
        self.committed.update(offsets)
        for task in tasks:
            task.post_commit(changelog_offsets)
        resources.collector.committed()
        self.commits_total += 1
        return len(tasks)

    def _any_committed(self, tasks: Iterable[StreamTask]) -> dict[TopicPartition, OffsetAndMetadata]:
        """A transaction without input (punctuation) commits an offset again: the generation check comes with it."""
        for task in tasks:
            for partition in task.input_partitions:
                if partition in self.committed:
                    return {partition: self.committed[partition]}
        raise StreamsError("A transaction has no input partition to commit: this is an error in Millrace")

    def commit_clean_metadata(self, partitions: Collection[TopicPartition]) -> None:
        """Commit the offsets of inputs once more, outside of a transaction, for whoever has their tasks next.

        librdkafka's transactional commit adds a zero byte to the metadata, which Java's Kafka Streams cannot read; so at a
        hand-over the same offsets are committed in the plain way. Nothing depends on it: a failure is only logged.
        """
        if not self._exactly_once:
            return
        offsets = {
            partition: self.committed[partition]
            for partition in partitions
            if partition in self.committed and self.committed[partition].metadata
        }
        try:
            self._resources.offsets.commit_offsets(offsets)
        except StreamsError as error:
            _log.debug("The metadata of committed offsets keeps its zero byte: %s", error)

    def abort(self) -> None:
        """Give up what was sent since the last commit."""
        self._resources.producer.abort()
        self._resources.collector.discard()  # after it, because aborting reports what was thrown away
