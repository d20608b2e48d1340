"""The tasks of one stream thread: which it has, and what state they are in.

A task moves through three places: *pending* (its directory is still owned by another thread of this process), *restoring*
(owned by the state updater) and *running*. Input partitions are read only while their task runs. Closing is *clean* after a
commit, or *dirty*, which loses nothing: what was not committed is not on disk, and is processed again by whoever has the
task next.

Order matters under EOS: committed offsets are read (waiting for pending transactions) before changelog ends are taken, so
that state and offsets are of the same point or state is ahead by aborted records only.

How tasks commit is `committer`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from millrace.assignment import LATEST_OFFSET, UNKNOWN_OFFSET_SUM
from millrace.engine.task import StreamTask
from millrace.engine.task_state import TaskState
from millrace.errors import RebalanceInProgressError, StreamsError, StreamsTimeoutError, TaskCorruptedError
from millrace.records import ConsumedRecord, OffsetAndMetadata, TaskId, TopicPartition
from millrace.runtime.committer import Committer
from millrace.runtime.restoration import FailedTask
from millrace.runtime.task_resources import TaskResources

__all__ = ["TaskManager"]

_log = logging.getLogger(__name__)
_UPDATER_ANSWER_S = 300.0


class TaskManager:
    """Creates, runs, commits and closes the tasks of one thread; used by that thread only."""

    def __init__(self, resources: TaskResources) -> None:
        self._resources = resources
        self._thread = resources.thread
        self._committer = Committer(resources)
        self.running: dict[TaskId, StreamTask] = {}
        self.restoring: dict[TaskId, StreamTask] = {}
        self.pending: dict[TaskId, frozenset[TopicPartition]] = {}
        self._by_partition: dict[TopicPartition, StreamTask] = {}
        self.records_total = 0

    @property
    def all_running(self) -> bool:
        """Whether no task waits for its directory or its state."""
        return not (self.pending or self.restoring)

    @property
    def task_ids(self) -> frozenset[TaskId]:
        """Every task this thread has, in whatever state."""
        return frozenset((*self.running, *self.restoring, *self.pending))

    @property
    def commits_total(self) -> int:
        """Commits so far."""
        return self._committer.commits_total

    # What the group says

    def offset_sums(self) -> dict[TaskId, int]:
        """Return what state is here for the assignor: of running tasks, and of those that only have a directory."""
        directory = self._resources.directory
        sums = dict.fromkeys(directory.unowned_tasks_on_disk(self._thread), UNKNOWN_OFFSET_SUM)
        sums.update(dict.fromkeys(self.restoring, UNKNOWN_OFFSET_SUM))
        sums.update({task_id: LATEST_OFFSET for task_id, task in self.running.items() if task.changelogs})
        return sums

    def handle_assignment(self, wanted: Mapping[TaskId, frozenset[TopicPartition]]) -> None:
        """Keep these tasks (with their input partitions), close others, and create those that are new."""
        gone = self.task_ids - wanted.keys()
        if any(task_id in self.running and self.running[task_id].commit_needed for task_id in gone):
            self.commit()  # or their output would be committed later, without their offsets
        for task_id in gone:
            _log.warning("Task %s is no longer assigned to %s; closing it", task_id, self._thread)
            self._drop(task_id)
        for task_id, inputs in wanted.items():
            present = self.running.get(task_id) or self.restoring.get(task_id)
            if present is not None and present.input_partitions != inputs:
                _log.info("The inputs of task %s changed; it starts anew", task_id)
                self.commit()
                self._drop(task_id)
                present = None
            if present is None:
                self.pending[task_id] = inputs
        self.open_pending()

    def handle_revocation(self, partitions: Collection[TopicPartition]) -> None:
        """Commit, then close the tasks of these partitions.

        Raises:
            TaskMigratedError: the commit was refused; the tasks are still there, to be dropped.
        """
        gone = self._resources.inputs.tasks(partitions).keys()
        if any(task_id in self.running and self.running[task_id].commit_needed for task_id in gone):
            try:
                self.commit()
            except RebalanceInProgressError as error:
                _log.info("%s; the next owner of %s processes some records again", error, ", ".join(map(str, gone)))
        self._commit_clean_metadata(gone)
        for task_id in gone:
            self._drop(task_id)

    def handle_lost(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Drop tasks without committing, because others may have them already: those of these partitions, or all."""
        gone = self.task_ids if partitions is None else self._resources.inputs.tasks(partitions).keys() & self.task_ids
        if not gone:
            return
        others = [task_id for task_id in self.running if task_id not in gone]
        self._committer.abort()
        for task_id in gone:
            self._drop(task_id, dirty=True)
        if self._resources.config.exactly_once and others:
            self.revive(others)  # their records were in the same transaction

    # From assigned to running

    def open_pending(self) -> None:
        """Open the tasks whose directories are free, and hand them to the updater.

        Raises:
            StreamsTimeoutError: the committed offsets cannot be read; the tasks stay pending.
        """
        directory = self._resources.directory
        free = [task_id for task_id in self.pending if directory.own_task(task_id, self._thread) is not None]
        if not free:
            return
        wanted = {partition for task_id in free for partition in self.pending[task_id]}
        committed = {
            partition: OffsetAndMetadata(position.offset, position.metadata.rstrip("\0"))
            for partition, position in self._resources.offsets.committed(wanted).items()
        }
        for partition in wanted:
            self._committer.committed.pop(partition, None)
        self._committer.committed.update(committed)
        for task_id in free:
            inputs = self.pending.pop(task_id)
            task = self._open(task_id, inputs)
            limits = {
                partition: committed[partition].offset if partition in committed else 0
                for partition in task.changelogs
                if partition in inputs
            }
            self.restoring[task_id] = task
            self._resources.updater.add(task, limits)
            _log.info("%s opened task %s", self._thread, task_id)

    def _open(self, task_id: TaskId, inputs: frozenset[TopicPartition]) -> StreamTask:
        directory = self._resources.directory
        for attempt in range(2):
            task = self._new_task(task_id, inputs)
            try:
                task.open_stores()
            except TaskCorruptedError as error:
                task.close_dirty()
                if attempt:
                    directory.disown_task(task_id, self._thread)
                    raise
                _log.warning("%s", error)
                directory.wipe_task(task_id)
            except BaseException:
                task.close_dirty()
                directory.disown_task(task_id, self._thread)
                raise
            else:
                break
        return task

    def _new_task(self, task_id: TaskId, inputs: frozenset[TopicPartition]) -> StreamTask:
        resources = self._resources
        return StreamTask(
            task_id,
            resources.inputs.topology.subtopology(task_id.subtopology),
            resources.config,
            resources.collector,
            state_dir=resources.directory.task_path(task_id),
            cache=resources.cache,
            clock=resources.clock,
            input_partitions=inputs,
            global_stores=resources.global_stores,
            trace_record=None if resources.instrumentation is None else resources.instrumentation.record,
        )

    def check_updater(self) -> bool:
        """Start the tasks whose state is complete, deal with those that failed; return whether anything changed.

        Raises:
            Exception: what a task failed to restore with, unless wiping its state may help.
        """
        updater = self._resources.updater
        restored, failed = updater.drain_restored(), updater.drain_failed()
        for failure in failed:
            self._handle_failed(failure)
        for task in restored:
            if self.restoring.get(task.task_id) is task:
                self._start(task)
        return bool(restored or failed)

    def _start(self, task: StreamTask) -> None:
        known = self._committer.committed
        committed = {tp: known[tp] for tp in task.input_partitions if tp in known}
        starts = self._resources.starting_offsets.resolve(task.input_partitions, committed)
        task.initialize(committed)
        del self.restoring[task.task_id]
        self.running[task.task_id] = task
        for partition, offset in starts.items():
            self._by_partition[partition] = task
            known.setdefault(partition, OffsetAndMetadata(offset))
        self._resources.consumer.assign(starts)
        _log.info("Task %s runs in %s", task.task_id, self._thread)

    def _handle_failed(self, failure: FailedTask) -> None:
        task_id = failure.task.task_id
        if self.restoring.get(task_id) is not failure.task:
            return
        if isinstance(failure.error, TaskCorruptedError):
            _log.warning("%s", failure.error)
            self.revive([task_id], wipe=True)
        elif isinstance(failure.error, StreamsTimeoutError):
            _log.warning("Task %s: %s; trying again", task_id, failure.error)
            self.revive([task_id])
        else:
            raise failure.error

    # Processing

    def add_records(self, batches: Mapping[TopicPartition, list[ConsumedRecord]]) -> None:
        """Give polled records to their tasks."""
        for partition, records in batches.items():
            self._by_partition[partition].add_records(partition, records)

    def buffered(self, partition: TopicPartition) -> int:
        """Return how many records of a partition wait for their task."""
        task = self._by_partition.get(partition)
        return 0 if task is None else task.buffered(partition)

    def committed_positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of what the running tasks read."""
        committed = self._committer.committed
        return {partition: committed[partition] for partition in self._by_partition if partition in committed}

    def needs_commit(self) -> bool:
        """Whether a processor asked for a commit, or uncommitted state takes too much memory."""
        return self._committer.is_wanted(self.running.values())

    def commit(self) -> int:
        """Commit every task that has something to commit; return how many. See `Committer.commit` for what it raises."""
        return self._committer.commit(self.running.values())

    def _commit_clean_metadata(self, task_ids: Collection[TaskId]) -> None:
        tasks = [self.running[task_id] for task_id in task_ids if task_id in self.running]
        self._committer.commit_clean_metadata([tp for task in tasks for tp in task.input_partitions])

    # The end of tasks

    def revive(self, task_ids: Collection[TaskId], *, wipe: bool = False) -> None:
        """Close tasks dirty and begin them again from their last commit.

        Args:
            task_ids: which.
            wipe: whether to delete their state, so that it is restored from the beginning.
        """
        for task_id in list(task_ids):
            task = self.running.get(task_id) or self.restoring.get(task_id)
            if task is None:
                continue
            inputs = task.input_partitions
            self._drop(task_id, dirty=True)
            if wipe and self._resources.directory.own_task(task_id, self._thread) is not None:
                self._resources.directory.wipe_task(task_id)
            self.pending[task_id] = inputs
        self.open_pending()

    def abort_and_revive(self, wipe: Collection[TaskId] = ()) -> None:
        """Give up what was processed since the last commit and begin again from there.

        Args:
            wipe: tasks whose state is deleted besides.
        """
        self._committer.abort()
        running = set(self.running) if self._resources.config.exactly_once or not wipe else set()
        self.revive(running - set(wipe))
        self.revive(set(wipe), wipe=True)

    def close(self, *, clean: bool) -> None:
        """Close every task.

        Args:
            clean: commit before; when that fails, tasks are closed dirty and the failure is raised at the end.
        """
        failure: Exception | None = None
        if clean:
            try:
                self.commit()
                self._commit_clean_metadata(self.task_ids)
            except Exception as error:  # whatever it is, every store must still be closed
                failure = error
                clean = False
        if not clean:
            try:
                self._committer.abort()
            except StreamsError as error:  # brokers that do not answer; they abort the transaction by themselves, later
                _log.info("%s could not abort its transaction while closing: %s", self._thread, error)
        for task_id in self.task_ids:
            try:
                self._drop(task_id, dirty=not clean)
            except Exception as error:  # of a store or a processor's close; the other tasks are closed all the same
                _log.warning("%s could not close task %s: %s", self._thread, task_id, error)
                failure = failure or error
        if failure is not None:
            raise failure

    def _drop(self, task_id: TaskId, *, dirty: bool = False) -> None:
        self.pending.pop(task_id, None)
        task = self.running.pop(task_id, None)
        if task is None and task_id in self.restoring:
            task = self.restoring.pop(task_id)
            self._resources.updater.remove(task_id).result(_UPDATER_ANSWER_S)
        if task is None:
            return
        mine = [partition for partition in task.input_partitions if self._by_partition.pop(partition, None) is not None]
        self._resources.consumer.unassign(mine)
        try:
            if dirty or task.commit_needed:
                task.close_dirty()
            else:
                if task.state is TaskState.RUNNING:
                    task.suspend()
                task.close_clean()
        finally:
            for partition in task.changelogs:
                self._resources.collector.forget(partition)
            self._resources.directory.disown_task(task_id, self._thread)
        _log.info("%s closed task %s%s", self._thread, task_id, " without committing" if dirty else "")
