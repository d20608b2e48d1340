"""The tasks of one stream thread: which ones it has, what state they are in, and how they are closed when they are revoked.

The group's events only change the *target*: the tasks that this thread should have, with their input partitions. `reconcile`,
called every round, brings the actual tasks closer to it. So no event is ever half done: when a commit fails in the middle, the
next round continues from the actual state.

An active task moves through three stages: *pending* (its directory is still owned by another thread of this process, or its
committed offsets are not known yet), *restoring* (owned by the state updater until it gives the task back) and *running*. Input
partitions are read only while their task is running. A standby is pending, and then with the updater for as long as it is wanted.

Closing is *clean* after a commit, or else *dirty*, which loses nothing: what was not committed is not on disk, and is processed
again by the task's next owner. A task that has left the target is closed in the same round, before the group learns that others
may have it; if it cannot be committed then, it never will be. A task whose role changes is *recycled*: it is pending again, but
its stores stay open, so that only what they lack is restored.

Order matters under EOS: committed offsets are read (waiting for pending transactions) before changelog ends, so that state and
offsets match, or state is ahead by aborted records only.

Nothing here waits long for a broker except a commit, because the transaction of the running tasks would time out meanwhile.

How tasks commit is described in `committer`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

from millrace.assignment import LATEST_OFFSET, AssignedTasks
from millrace.engine.task import StreamTask
from millrace.engine.task_state import TaskState
from millrace.errors import RebalanceInProgressError, StreamsError, TaskCorruptedError, UnfinishedBackfillError
from millrace.instance.background import BackgroundQueries
from millrace.instance.committer import Committer
from millrace.instance.offset_sums import closing_offset_sum, open_offset_sum, stored_offset_sum
from millrace.instance.resources import ThreadResources
from millrace.instance.restoration import SuspendReason
from millrace.instance.standby_limits import StandbyLimits
from millrace.instance.task_opening import WantedTask, open_task, source_changelogs
from millrace.kafka.membership.offsets import CommittedOffsets
from millrace.plan.backfill_marks import UNFINISHED_BACKFILL
from millrace.records import OffsetAndMetadata, RawRecord, TaskId, TopicPartition

__all__ = ["TaskManager"]

_log = logging.getLogger(__name__)
_UPDATER_ANSWER_S = 300.0
_LIMITS_AT_LEAST_EVERY_S = 1.0


class TaskManager:
    """Creates, runs, commits and closes the tasks of one thread; used by that thread only."""

    def __init__(self, resources: ThreadResources) -> None:
        self._resources = resources
        self._thread = resources.thread
        self._committer = Committer(resources)
        self.running: dict[TaskId, StreamTask] = {}
        self.restoring: dict[TaskId, StreamTask] = {}
        self.standby: dict[TaskId, StreamTask] = {}
        self.pending: dict[TaskId, WantedTask] = {}
        self._target: dict[TaskId, WantedTask] = {}
        self._recycled: dict[TaskId, StreamTask] = {}
        """Pending tasks whose stores are open."""
        self._asked: dict[TaskId, CommittedOffsets] = {}
        """Pending tasks whose committed offsets have been requested."""
        self._returned: set[TaskId] = set()
        """Tasks among `restoring` and `standby` that the state updater has returned."""
        self._limits = StandbyLimits(
            resources.member,
            resources.updater,
            max(_LIMITS_AT_LEAST_EVERY_S, resources.context.config.commit_interval_ms / 1000),
        )
        self._starts: BackgroundQueries[TopicPartition, Mapping[TopicPartition, int]] = BackgroundQueries(
            resources.starting_offsets.resolve, resources.context.config.task_timeout_ms / 1000
        )
        """Asks where to start reading input partitions that have no committed offset."""
        self._by_partition: dict[TopicPartition, StreamTask] = {}
        self.records_total = 0

    @property
    def all_running(self) -> bool:
        """Whether every active task in the target is running, and every standby is open."""
        return self.running.keys() | self.standby.keys() == self._target.keys() and not self.pending

    @property
    def task_ids(self) -> frozenset[TaskId]:
        """Every task this thread has, whatever its state."""
        return frozenset((*self.running, *self.restoring, *self.standby, *self.pending))

    @property
    def commits_total(self) -> int:
        """Commits so far."""
        return self._committer.commits_total

    # What the group says

    def offset_sums(self) -> dict[TaskId, int]:
        """Return the local state for the assignor: of this thread's tasks, and of those that are only on disk."""
        context = self._resources.context
        directory, exactly_once = context.directory, context.config.exactly_once
        sums = directory.offset_sums(
            self._thread,
            lambda task: stored_offset_sum(
                context.topology, task, directory.task_path(task), exactly_once=exactly_once
            ),
        )
        for task in (*self.restoring.values(), *self.standby.values(), *self._recycled.values()):
            if task.changelogs:
                sums[task.task_id] = open_offset_sum(task)
        sums.update({task_id: LATEST_OFFSET for task_id, task in self.running.items() if task.changelogs})
        return sums

    def assign(self, assigned: AssignedTasks) -> None:
        """Set which tasks this thread should have, with their input partitions; `reconcile` opens and closes them."""
        self._target = {
            **{task_id: WantedTask(inputs, standby=True) for task_id, inputs in assigned.standby.items()},
            **{task_id: WantedTask(inputs) for task_id, inputs in assigned.active.items()},
        }

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        """Note that partitions go to another member; `reconcile` commits and closes their tasks in the same round."""
        self._target = {
            task_id: wanted
            for task_id, wanted in self._target.items()
            if wanted.standby or wanted.inputs.isdisjoint(partitions)
        }

    def lose(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Drop the active tasks of these partitions, or all, without committing, because others may already have them.

        Raises:
            StreamsTimeoutError: their transaction cannot be aborted.
        """
        active = {task_id: wanted.inputs for task_id, wanted in self._here().items() if not wanted.standby}
        if partitions is None:
            lost = set(active)
            self._target = {task_id: wanted for task_id, wanted in self._target.items() if wanted.standby}
        else:
            lost = {task_id for task_id, inputs in active.items() if not inputs.isdisjoint(partitions)}
            self.revoke(partitions)
        lost |= active.keys() - self._target.keys()
        # If the commit of the last task has failed, the task is already closed and its transaction is still open.
        if lost or not self.running:
            self._abort_and_close(lost)

    def _abort_and_close(self, task_ids: Collection[TaskId], wipe: Collection[TaskId] = ()) -> None:
        """Close tasks dirty; under exactly-once also all running ones, whose records were in the same transaction."""
        gone = {*task_ids, *(self.running if self._resources.context.config.exactly_once else ())}
        try:
            self._close(gone, dirty=True, wipe=wipe)
        finally:
            if not self.running:  # otherwise the failure of another task's record must not be forgotten
                self._committer.abort()  # after closing, because a processor may still send something in its `close`

    def _here(self) -> dict[TaskId, WantedTask]:
        """Return every task of this thread as it is."""
        here = self.pending.copy()
        here.update({task_id: WantedTask(task.input_partitions) for task_id, task in self.restoring.items()})
        here.update({task_id: WantedTask(task.input_partitions) for task_id, task in self.running.items()})
        here.update(
            {task_id: WantedTask(task.input_partitions, standby=True) for task_id, task in self.standby.items()}
        )
        return here

    # From the actual tasks to the target

    def reconcile(self) -> None:
        """Bring this thread's tasks closer to the target; call it every round, after the group's events.

        Raises:
            TaskMigratedError: the commit of tasks that leave was refused.
            TransactionAbortedError: their transaction failed. They are closed; revive the others.
            StreamsTimeoutError: a task's committed offsets or changelogs could not be read within `task.timeout.ms`.
            Exception: a task could not be restored or started, and wiping its state would not help.
        """
        here = self._here()
        if here == self._target and not (self.pending or self.restoring or self.standby):
            return
        self._leave({task_id for task_id, wanted in here.items() if self._target.get(task_id) != wanted})
        for task_id, wanted in self._target.items():
            if not (task_id in self.running or task_id in self.restoring or task_id in self.standby):
                self.pending[task_id] = wanted
        self._open_pending()
        self._check_updater()
        self._start_restored()
        self._limits.refresh(
            frozenset().union(*(source_changelogs(self._resources, task_id) for task_id in self.standby))
        )

    def _leave(self, changed: AbstractSet[TaskId]) -> None:
        """Commit, as the output of tasks that leave must not be committed later without their offsets; then close them.

        Tasks that only change their role or their input are recycled instead.
        """
        if not changed:
            return
        commits = not changed.isdisjoint(self.running)
        clean = not commits
        try:
            if commits:
                self.commit()
                self._commit_clean_metadata(changed)
                clean = True
        except RebalanceInProgressError as error:
            names = ", ".join(map(str, sorted(changed & self.running.keys())))
            _log.info("%s; the next owner of %s processes some records again", error, names)
        finally:
            kept = {task_id for task_id in changed & self._target.keys() if clean or task_id not in self.running}
            self._close(changed - kept, dirty=not clean)
            self._recycle(kept)
        if commits and clean:
            self._committer.abort()  # nothing else ends a transaction that a processor has begun in its `close`

    def _recycle(self, task_ids: Collection[TaskId]) -> None:
        """Make tasks pending as the target wants them, with their stores open.

        Raises:
            Exception: the failure of a processor's `close`.
        """
        self._take_back(task_ids)
        # Running ones last: if a processor's `close` fails, none of those taken back is left without an owner.
        for task_id in sorted(task_ids, key=lambda each: (each in self.running, each)):
            self._asked.pop(task_id, None)
            self._returned.discard(task_id)
            task = (
                self.running.pop(task_id, None) or self.restoring.pop(task_id, None) or self.standby.pop(task_id, None)
            )
            wanted = self.pending[task_id] = self._target[task_id]
            if task is None:
                continue
            self._recycled[task_id] = task
            self._stop_reading(task)
            try:
                if not task.commit_needed:
                    task.recycle(wanted.inputs)
            finally:
                # It failed to stop, or a processor has written to a store in its `close`.
                written = task.uncommitted_bytes() or self._resources.collector.has_written(task.changelogs)
                if task.state is not TaskState.RESTORING or written:
                    self._close([task_id], dirty=True)
                    self.pending[task_id] = wanted
            _log.info("%s keeps the stores of task %s open while it changes", self._thread, task_id)

    def _open_pending(self) -> None:
        """Open the tasks whose directories are free and whose committed offsets are known, and hand them to the updater."""
        directory = self._resources.context.directory
        unknown: dict[TaskId, frozenset[TopicPartition]] = {}
        for task_id, wanted in list(self.pending.items()):
            if task_id in self._asked or directory.own_task(task_id, self._thread) is None:
                continue
            needed = self._needed_offsets(task_id, wanted)
            if needed:
                unknown[task_id] = needed
            else:
                self._open_task(task_id, self.pending.pop(task_id), {})
        if unknown:
            answer = self._resources.member.ask_committed(frozenset().union(*unknown.values()))
            self._asked.update(dict.fromkeys(unknown, answer))
        for task_id in list(self.pending.keys() & self._asked.keys()):
            committed = self._asked[task_id].of(self._needed_offsets(task_id, self.pending[task_id]))
            if committed is not None:
                del self._asked[task_id]
                self._open_task(task_id, self.pending.pop(task_id), committed)

    def _needed_offsets(self, task_id: TaskId, wanted: WantedTask) -> frozenset[TopicPartition]:
        """Return the partitions whose committed offsets a task needs before it is opened."""
        return source_changelogs(self._resources, task_id) if wanted.standby else wanted.inputs

    def _open_task(
        self, task_id: TaskId, wanted: WantedTask, committed: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        if not wanted.standby:
            _check_backfill(task_id, committed)
            for partition in wanted.inputs:
                self._committer.committed.pop(partition, None)
            self._committer.committed.update(
                {tp: OffsetAndMetadata(known.offset, known.metadata.rstrip("\0")) for tp, known in committed.items()}
            )
        task = self._recycled.pop(task_id, None)
        if task is None:
            task = open_task(self._resources, task_id, wanted.inputs)
        task.recycle(wanted.inputs)
        limits = {
            partition: committed[partition].offset if partition in committed else 0
            for partition in source_changelogs(self._resources, task_id)
        }
        (self.standby if wanted.standby else self.restoring)[task_id] = task
        self._resources.updater.add(task, limits, standby=wanted.standby)
        _log.info("%s has %s %s", self._thread, "standby" if wanted.standby else "task", task_id)

    def _check_updater(self) -> None:
        """Take back the tasks whose state is complete, and deal with those that failed."""
        updater = self._resources.updater
        for task in updater.drain_restored():
            if self.restoring.get(task.task_id) is task:
                self._returned.add(task.task_id)
        for failed in updater.drain_failed():
            task_id = failed.task.task_id
            if failed.task in (self.restoring.get(task_id), self.standby.get(task_id)):
                self._returned.add(task_id)  # it belongs to this thread again
                if not isinstance(failed.error, TaskCorruptedError):
                    raise failed.error
                _log.warning("%s", failed.error)
                self._close([task_id], dirty=True, wipe=[task_id])

    def _start_restored(self) -> None:
        known = self._committer.committed
        for partition, answer in self._starts.take():
            known[partition] = OffsetAndMetadata(answer.result()[partition])
        undecided: set[TopicPartition] = set()
        for task_id in sorted(self._returned & self.restoring.keys()):
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
        self._resources.collector.at_work = task
        task.initialize(known)
        self._returned.discard(task.task_id)
        del self.restoring[task.task_id]
        self.running[task.task_id] = task
        self._by_partition.update(dict.fromkeys(known, task))
        self._resources.consumer.assign({partition: position.offset for partition, position in known.items()})
        _log.info("Task %s runs in %s", task.task_id, self._thread)

    # Processing

    def add_records(self, batches: Mapping[TopicPartition, list[RawRecord]]) -> None:
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
        self._abort_and_close(wipe or list(self.running), wipe)

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

    def _close(self, task_ids: Collection[TaskId], *, dirty: bool, wipe: Collection[TaskId] = ()) -> None:
        """Close all of the tasks, even if some fail to close, and release their directories.

        Args:
            task_ids: which ones.
            dirty: whether to close them without a commit.
            wipe: those whose state is also deleted, before another thread can have it.

        Raises:
            Exception: the first failure of a store's or a processor's `close`, or of deleting state.
        """
        directory = self._resources.context.directory
        failure: Exception | None = None
        task_ids = sorted(task_ids)
        self._take_back(task_ids)
        for task_id in task_ids:
            self.pending.pop(task_id, None)
            self._asked.pop(task_id, None)
            self._returned.discard(task_id)
            task: StreamTask | None = None
            for tasks in (self.running, self.restoring, self.standby, self._recycled):
                task = tasks.pop(task_id, None) or task
            try:
                if task is not None:
                    self._close_task(task, dirty=dirty)
            except Exception as error:
                _log.warning("%s could not close task %s: %s", self._thread, task_id, error)
                failure = failure or error
            try:
                if task_id in wipe and directory.own_task(task_id, self._thread) is not None:
                    directory.wipe_task(task_id)
            except StreamsError as error:
                failure = failure or error
            finally:
                directory.disown_task(task_id, self._thread)
        if failure is not None:
            raise failure

    def _take_back(self, task_ids: Collection[TaskId]) -> None:
        """Take tasks back from the state updater, which then no longer uses them."""
        answers = []
        for task_id in task_ids:
            task = self.restoring.get(task_id) or self.standby.get(task_id)
            if task is not None and task_id not in self._returned:
                wanted = self._target.get(task_id)
                promoted = task_id in self.standby and wanted is not None and not wanted.standby
                reason = SuspendReason.PROMOTED if promoted else SuspendReason.MIGRATED
                answers.append(self._resources.updater.remove(task, reason))
        for answer in answers:
            answer.result(_UPDATER_ANSWER_S)

    def _close_task(self, task: StreamTask, *, dirty: bool) -> None:
        self._stop_reading(task)
        self._resources.context.directory.note_offset_sum(task.task_id, closing_offset_sum(task))
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

    def _stop_reading(self, task: StreamTask) -> None:
        """Stop reading the input of a task, if it was read."""
        for partition in task.input_partitions:
            self._starts.discard(partition)
        mine = [partition for partition in task.input_partitions if self._by_partition.get(partition) is task]
        for partition in mine:
            del self._by_partition[partition]
        self._resources.consumer.unassign(mine)


def _check_backfill(task_id: TaskId, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Refuse state that a backfill has written without the offsets that belong to it."""
    for partition, known in sorted(committed.items()):
        if known.metadata.startswith(UNFINISHED_BACKFILL):
            raise UnfinishedBackfillError(
                f"Task {task_id} does not start: a backfill has begun to write this application's changelogs and has not ended, "
                f"so they do not fit the committed offset of {partition}. Run the backfill again and let it end, or reset the "
                "application (`millrace reset`)"
            )
