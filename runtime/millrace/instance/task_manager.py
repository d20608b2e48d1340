"""The tasks of one stream thread: which ones it has, what state they are in, and how they are closed when they are revoked.

The group's events only change the *target*: the tasks that this thread should have, with their input partitions. `reconcile`,
called every round, brings the actual tasks closer to it. So no event is ever half done: when a commit fails in the middle, the
next round continues from the actual state.

A task moves through three stages: *pending* (its directory is still owned by another thread of this process, or its committed
offsets are not known yet), *restoring* (owned by the state updater until it gives the task back) and *running*. Input partitions
are read only while their task is running. Closing is *clean* after a commit, or else *dirty*, which loses nothing: what was not
committed is not on disk, and is processed again by the task's next owner. A task that has left the target is closed in the same
round, before the group learns that others may have it; if it cannot be committed then, it never will be.

Order matters under EOS: committed offsets are read (waiting for pending transactions) before changelog ends, so that state and
offsets match, or state is ahead by aborted records only.

Nothing here waits long for a broker except a commit, because the transaction of the running tasks would time out meanwhile.

How tasks commit is described in `committer`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from millrace.assignment import LATEST_OFFSET, UNKNOWN_OFFSET_SUM
from millrace.engine.task import StreamTask
from millrace.engine.task_state import TaskState
from millrace.errors import RebalanceInProgressError, StreamsError, TaskCorruptedError
from millrace.instance.background import BackgroundQueries
from millrace.instance.committer import Committer
from millrace.instance.resources import ThreadResources
from millrace.kafka.membership.offsets import CommittedOffsets
from millrace.records import ConsumedRecord, OffsetAndMetadata, TaskId, TopicPartition

__all__ = ["TaskManager"]

_log = logging.getLogger(__name__)
_UPDATER_ANSWER_S = 300.0


class TaskManager:
    """Creates, runs, commits and closes the tasks of one thread; used by that thread only."""

    def __init__(self, resources: ThreadResources) -> None:
        self._resources = resources
        self._thread = resources.thread
        self._committer = Committer(resources)
        self.running: dict[TaskId, StreamTask] = {}
        self.restoring: dict[TaskId, StreamTask] = {}
        self.pending: dict[TaskId, frozenset[TopicPartition]] = {}
        self._target: dict[TaskId, frozenset[TopicPartition]] = {}
        self._asked: dict[TaskId, CommittedOffsets] = {}
        """Pending tasks whose committed offsets have been requested."""
        self._restored: set[TaskId] = set()
        """Tasks among `restoring` that the state updater has returned."""
        self._starts: BackgroundQueries[TopicPartition, Mapping[TopicPartition, int]] = BackgroundQueries(
            resources.starting_offsets.resolve, resources.context.config.task_timeout_ms / 1000
        )
        """Asks where to start reading input partitions that have no committed offset."""
        self._by_partition: dict[TopicPartition, StreamTask] = {}
        self.records_total = 0

    @property
    def all_running(self) -> bool:
        """Whether every task in the target is running."""
        return self.running.keys() == self._target.keys()

    @property
    def task_ids(self) -> frozenset[TaskId]:
        """Every task this thread has, whatever its state."""
        return frozenset((*self.running, *self.restoring, *self.pending))

    @property
    def commits_total(self) -> int:
        """Commits so far."""
        return self._committer.commits_total

    # What the group says

    def offset_sums(self) -> dict[TaskId, int]:
        """Return the local state for the assignor: of running tasks, and of tasks that only have a directory."""
        directory = self._resources.context.directory
        sums = dict.fromkeys(directory.unowned_tasks_on_disk(self._thread), UNKNOWN_OFFSET_SUM)
        sums.update(dict.fromkeys(self.restoring, UNKNOWN_OFFSET_SUM))
        sums.update({task_id: LATEST_OFFSET for task_id, task in self.running.items() if task.changelogs})
        return sums

    def assign(self, wanted: Mapping[TaskId, frozenset[TopicPartition]]) -> None:
        """Set which tasks this thread should have, with their input partitions; `reconcile` opens and closes them."""
        self._target = dict(wanted)

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        """Note that partitions go to another member; `reconcile` commits and closes their tasks in the same round."""
        self._target = {task_id: inputs for task_id, inputs in self._target.items() if inputs.isdisjoint(partitions)}

    def lose(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Drop the tasks of these partitions, or all, without committing, because others may already have them.

        Raises:
            StreamsTimeoutError: their transaction cannot be aborted.
        """
        if partitions is None:
            self._target = {}
        else:
            self.revoke(partitions)
        lost = self.task_ids - self._target.keys()
        # If the commit of the last task has failed, the task is already closed and its transaction is still open.
        if lost or not self.running:
            self._abort_and_close(lost)

    def _abort_and_close(self, task_ids: Collection[TaskId]) -> None:
        """Close tasks dirty; under exactly-once also all running ones, whose records were in the same transaction."""
        gone = {*task_ids, *(self.running if self._resources.context.config.exactly_once else ())}
        try:
            self._close(gone, dirty=True)
        finally:
            if not self.running:  # otherwise the failure of another task's record must not be forgotten
                self._committer.abort()  # after closing, because a processor may still send something in its `close`

    def _inputs(self) -> dict[TaskId, frozenset[TopicPartition]]:
        """Return the input partitions of every task of this thread."""
        tasks = {**self.restoring, **self.running}
        return self.pending | {task_id: task.input_partitions for task_id, task in tasks.items()}

    # From the actual tasks to the target

    def reconcile(self) -> None:
        """Bring this thread's tasks closer to the target; call it every round, after the group's events.

        Raises:
            TaskMigratedError: the commit of tasks that leave was refused.
            TransactionAbortedError: their transaction failed. They are closed; revive the others.
            StreamsTimeoutError: a task's committed offsets or changelogs could not be read within `task.timeout.ms`.
            Exception: a task could not be restored or started, and wiping its state would not help.
        """
        here = self._inputs()
        if here == self._target and not (self.pending or self.restoring):
            return
        self._close_unwanted({task_id for task_id, inputs in here.items() if self._target.get(task_id) != inputs})
        for task_id, inputs in self._target.items():
            if task_id not in self.running and task_id not in self.restoring:
                self.pending[task_id] = inputs
        self._open_pending()
        self._check_updater()
        self._start_restored()

    def _close_unwanted(self, gone: Collection[TaskId]) -> None:
        """Commit, as the output of tasks that leave must not be committed later without their offsets; then close them."""
        if not gone:
            return
        clean = False
        try:
            self.commit()
            self._commit_clean_metadata(gone)
            clean = True
        except RebalanceInProgressError as error:
            _log.info("%s; the next owner of %s processes some records again", error, ", ".join(map(str, sorted(gone))))
        finally:
            self._close(gone, dirty=not clean)
        if clean:
            self._committer.abort()  # nothing else ends a transaction that a processor has begun in its `close`

    def _open_pending(self) -> None:
        """Open the tasks whose directories are free and whose committed offsets are known, and hand them to the updater."""
        directory = self._resources.context.directory
        free = {
            task_id: inputs
            for task_id, inputs in self.pending.items()
            if task_id not in self._asked and directory.own_task(task_id, self._thread) is not None
        }
        if free:
            answer = self._resources.member.ask_committed(frozenset().union(*free.values()))
            self._asked.update(dict.fromkeys(free, answer))
        for task_id in list(self.pending.keys() & self._asked.keys()):
            committed = self._asked[task_id].of(self.pending[task_id])
            if committed is not None:
                del self._asked[task_id]
                self._open_task(task_id, self.pending.pop(task_id), committed)

    def _open_task(
        self,
        task_id: TaskId,
        inputs: frozenset[TopicPartition],
        committed: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        for partition in inputs:
            self._committer.committed.pop(partition, None)
        self._committer.committed.update(
            {tp: OffsetAndMetadata(known.offset, known.metadata.rstrip("\0")) for tp, known in committed.items()}
        )
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
        directory = self._resources.context.directory
        for attempt in range(2):
            task = self._new_task(task_id, inputs)
            try:
                task.open_stores()
            except TaskCorruptedError as error:
                task.close_dirty()
                if attempt:
                    directory.disown_task(task_id, self._thread)
                    raise StreamsError(
                        f"The state of task {task_id} was wiped and still cannot be opened: {error}"
                    ) from error
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
            resources.context.topology.subtopology(task_id.subtopology),
            resources.context.config,
            resources.collector,
            state_dir=resources.context.directory.task_path(task_id),
            cache=resources.cache,
            clock=resources.context.clock,
            input_partitions=inputs,
            global_stores=resources.context.global_stores,
            trace_record=None
            if resources.context.instrumentation is None
            else resources.context.instrumentation.record,
        )

    def _check_updater(self) -> None:
        """Take back the tasks whose state is complete, and deal with those that failed."""
        updater = self._resources.updater
        for task in updater.drain_restored():
            if self.restoring.get(task.task_id) is task:
                self._restored.add(task.task_id)
        for failed in updater.drain_failed():
            if self.restoring.get(failed.task.task_id) is failed.task:
                self._restored.add(failed.task.task_id)  # it belongs to this thread again
                if not isinstance(failed.error, TaskCorruptedError):
                    raise failed.error
                _log.warning("%s", failed.error)
                self._wipe([failed.task.task_id])

    def _start_restored(self) -> None:
        known = self._committer.committed
        for partition, answer in self._starts.take():
            known[partition] = OffsetAndMetadata(answer.result()[partition])
        undecided: set[TopicPartition] = set()
        for task_id in sorted(self._restored):
            task = self.restoring[task_id]
            missing = task.input_partitions - known.keys()
            undecided |= missing
            if not missing:
                try:
                    self._start(task)
                except BaseException:
                    self._close([task_id], dirty=True)  # it is half started; the others are started in the next round
                    raise
        unasked = [partition for partition in undecided if partition not in self._starts]
        if unasked:
            self._starts.add(unasked)

    def _start(self, task: StreamTask) -> None:
        known = {partition: self._committer.committed[partition] for partition in task.input_partitions}
        task.initialize(known)
        self._restored.discard(task.task_id)
        del self.restoring[task.task_id]
        self.running[task.task_id] = task
        self._by_partition.update(dict.fromkeys(known, task))
        self._resources.consumer.assign({partition: position.offset for partition, position in known.items()})
        _log.info("Task %s runs in %s", task.task_id, self._thread)

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
        """Whether a processor requested a commit, or uncommitted state takes too much memory."""
        return self._committer.is_wanted(self.running.values())

    def commit(self) -> int:
        """Commit every task that has something to commit; return how many. See `Committer.commit` for what it raises."""
        return self._committer.commit(self.running.values())

    def _commit_clean_metadata(self, task_ids: Collection[TaskId]) -> None:
        tasks = [self.running[task_id] for task_id in task_ids if task_id in self.running]
        self._committer.commit_clean_metadata([tp for task in tasks for tp in task.input_partitions])

    # The end of tasks

    def abort_and_revive(self, wipe: Collection[TaskId] = ()) -> None:
        """Give up what was processed since the last commit; `reconcile` starts again from there.

        Args:
            wipe: tasks whose state is also deleted, so that it is restored from the beginning.
        """
        self._abort_and_close(wipe or list(self.running))
        self._wipe(wipe)

    def _wipe(self, task_ids: Collection[TaskId]) -> None:
        """Close tasks dirty and delete their state."""
        self._close(task_ids, dirty=True)
        directory = self._resources.context.directory
        for task_id in task_ids:
            if directory.own_task(task_id, self._thread) is not None:
                try:
                    directory.wipe_task(task_id)
                finally:
                    directory.disown_task(task_id, self._thread)  # the task may now go to another thread

    def close(self, *, clean: bool) -> None:
        """Close every task.

        Args:
            clean: whether to commit first; if that fails, tasks are closed dirty and the failure is raised at the end.
        """
        failure: Exception | None = None
        if clean:
            try:
                self.commit()
                self._commit_clean_metadata(self.task_ids)
            except Exception as error:  # any exception: every store must still be closed
                failure = error
                clean = False
        try:
            self._close(self.task_ids, dirty=not clean)
        except Exception as error:
            failure = failure or error
        try:
            self._committer.abort()  # even after a commit: a processor may have sent something in its `close`
        except StreamsError as error:  # the brokers do not answer; they will time out the transaction
            _log.info("%s could not abort its transaction while closing: %s", self._thread, error)
        if failure is not None:
            raise failure

    def _close(self, task_ids: Collection[TaskId], *, dirty: bool) -> None:
        """Close all of the tasks, even if some fail to close, and release their directories.

        Raises:
            Exception: the first failure of a store's or a processor's `close`.
        """
        failure: Exception | None = None
        task_ids = sorted(task_ids)
        answers = [
            self._resources.updater.remove(task_id)
            for task_id in task_ids
            if task_id in self.restoring and task_id not in self._restored
        ]
        for answer in answers:
            answer.result(_UPDATER_ANSWER_S)
        for task_id in task_ids:
            self.pending.pop(task_id, None)
            self._asked.pop(task_id, None)
            self._restored.discard(task_id)
            task = self.running.pop(task_id, None) or self.restoring.pop(task_id, None)
            try:
                if task is not None:
                    self._close_task(task, dirty=dirty)
            except Exception as error:
                _log.warning("%s could not close task %s: %s", self._thread, task_id, error)
                failure = failure or error
            finally:
                self._resources.context.directory.disown_task(task_id, self._thread)
        if failure is not None:
            raise failure

    def _close_task(self, task: StreamTask, *, dirty: bool) -> None:
        for partition in task.input_partitions:
            self._starts.discard(partition)
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
        _log.info("%s closed task %s%s", self._thread, task.task_id, " without committing" if dirty else "")
