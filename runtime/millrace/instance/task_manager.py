"""The tasks of one stream thread: which ones it has, their state, and how they are closed when they are revoked.

The group's events only change the *target*: the tasks that this thread should have, with their input partitions.
`reconcile`, called every round, brings the actual tasks closer to it. So no event is ever half done: when a commit fails in
the middle, the next round continues from the actual state. Each task is one record with a stage: `task_stage` has the stages
and transitions. Input partitions are read only while their task is running.

Closing is *clean* after a commit, or else *dirty*, which loses nothing: uncommitted changes are not on disk, and the task's
next owner processes their records again. A running task that has left the target is closed in the same round, before the
group learns that others may have it; if it cannot be committed then, it never will be. One that the state updater uses is
closed once the updater has returned it: it processes nothing, so nobody waits. A task whose role changes is *recycled*: it
waits for its offsets again, but its stores stay open, so that only missing records are restored.

Order matters under EOS: committed offsets are read (waiting for pending transactions) before changelog ends, so that state and
offsets match, or state is ahead by aborted records only.

Nothing here waits for a broker except a commit, because the transaction of the running tasks would time out meanwhile, and only
`close` waits for the state updater.

How tasks commit is described in `committer`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import wait

from millrace.assignment import LATEST_OFFSET, AssignedTasks
from millrace.deadline import Deadline
from millrace.engine.task import StreamTask
from millrace.engine.task_state import TaskState
from millrace.errors import RebalanceInProgressError, StreamsError, TaskCorruptedError, UnfinishedBackfillError
from millrace.instance.background import BackgroundQueries
from millrace.instance.committer import Committer
from millrace.instance.offset_sums import closing_offset_sum, open_offset_sum, stored_offset_sum
from millrace.instance.resources import ThreadResources
from millrace.instance.standby_limits import StandbyLimits
from millrace.instance.task_opening import open_task, source_changelogs
from millrace.instance.task_restoration import SuspendReason
from millrace.instance.task_stage import HeldTask, Stage, WantedTask
from millrace.plan.backfill_marks import UNFINISHED_BACKFILL
from millrace.records import OffsetAndMetadata, RawRecord, TaskId, TopicPartition

__all__ = ["TaskManager"]

_log = logging.getLogger(__name__)
_UPDATER_LATE_S = 30.0
"""How long the state updater may take to return a task before a delay is logged."""
_LIMITS_AT_LEAST_EVERY_S = 1.0
_BEING_RESTORED = (Stage.UPDATING, Stage.RECALLED, Stage.RETURNED, Stage.RESTORED)


class TaskManager:
    """Creates, runs, commits and closes the tasks of one thread; used by that thread only."""

    def __init__(self, resources: ThreadResources) -> None:
        self._resources = resources
        self._thread = resources.thread
        self._committer = Committer(resources)
        self._held: dict[TaskId, HeldTask] = {}
        self._target: dict[TaskId, WantedTask] = {}
        self.running: dict[TaskId, StreamTask] = {}
        """The tasks whose stage is RUNNING, which every round goes through."""
        self._limits = StandbyLimits(
            resources.member,
            resources.updater,
            max(_LIMITS_AT_LEAST_EVERY_S, resources.context.config.commit_interval_ms / 1000),
        )
        self._starts: BackgroundQueries[TopicPartition, Mapping[TopicPartition, int]] = BackgroundQueries(
            resources.starting_offsets.resolve, resources.context.config.task_timeout_ms / 1000
        )
        """Asks where to start reading input partitions that have no committed offset, or lost the offset to be read next."""
        self._by_partition: dict[TopicPartition, StreamTask] = {}
        self._on_disk: dict[TaskId, int] = {}
        """The offset sums of the state on disk that no other thread uses."""
        self._on_disk_as_of: object = None
        """The version of local state when they were read."""
        self.records_total = 0

    @property
    def all_running(self) -> bool:
        """Whether every active task in the target is running, and every standby is open."""
        return self._held.keys() == self._target.keys() and all(
            held.stage is (Stage.UPDATING if held.wanted.standby else Stage.RUNNING) for held in self._held.values()
        )

    # These may be called in another thread.

    @property
    def task_ids(self) -> frozenset[TaskId]:
        """Every task this thread has, whatever its stage."""
        return frozenset(self._held)

    @property
    def pending(self) -> dict[TaskId, WantedTask]:
        """The tasks that have yet to be given to the state updater."""
        return {held.task_id: held.wanted for held in self._in(Stage.WAITING, Stage.ASKED)}

    @property
    def restoring(self) -> dict[TaskId, StreamTask]:
        """The active tasks between being given to the state updater and running."""
        return {held.task_id: held.opened for held in self._in(*_BEING_RESTORED) if not held.wanted.standby}

    @property
    def standby(self) -> dict[TaskId, StreamTask]:
        """The standbys that have been given to the state updater."""
        return {held.task_id: held.opened for held in self._in(*_BEING_RESTORED) if held.wanted.standby}

    def readable(self, *, stale: bool) -> list[StreamTask]:
        """Return the tasks whose stores queries may read: those running; with `stale`, all that are open."""
        return [held.opened for held in self._in(Stage.RUNNING, *(_BEING_RESTORED if stale else ()))]

    def open_tasks(self) -> list[tuple[StreamTask, bool]]:
        """Return the tasks whose stores are open, and whether each is active and running."""
        held_tasks = self._in(Stage.RUNNING, *_BEING_RESTORED)
        return [(held.opened, held.stage is Stage.RUNNING) for held in held_tasks]

    def _in(self, *stages: Stage) -> list[HeldTask]:
        return [held for held in list(self._held.values()) if held.stage in stages]

    @property
    def commits_total(self) -> int:
        """Commits so far."""
        return self._committer.commits_total

    # Group events

    def offset_sums(self) -> dict[TaskId, int]:
        """Return the local state for the assignor: of this thread's tasks, and of tasks that are only on disk."""
        context = self._resources.context
        directory, exactly_once = context.directory, context.config.exactly_once
        as_of = directory.version, tuple(held.task is None for held in self._held.values())
        if self._on_disk_as_of != as_of:  # asked several times a second, which is too often to list directories
            self._on_disk_as_of = as_of
            self._on_disk = directory.offset_sums(
                self._thread,
                lambda task: stored_offset_sum(
                    context.topology, task, directory.task_path(task), exactly_once=exactly_once
                ),
            )
        sums = self._on_disk.copy()
        for held in self._held.values():
            if held.task is not None and held.task.changelogs:
                sums[held.task_id] = LATEST_OFFSET if held.stage is Stage.RUNNING else open_offset_sum(held.task)
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
        active = {held.task_id: held.wanted.inputs for held in self._held.values() if not held.wanted.standby}
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
            if not self.running:  # otherwise the failure of another task's record must be kept
                self._committer.abort()  # after closing, because a processor may still send something in its `close`

    # From the actual tasks to the target

    def reconcile(self) -> None:
        """Bring this thread's tasks closer to the target; call it every round, after the group's events.

        Raises:
            TaskMigratedError: the commit of tasks that leave was refused.
            TransactionAbortedError: their transaction failed. They are closed; revive the others.
            StreamsTimeoutError: a task's committed offsets or changelogs could not be read within `task.timeout.ms`.
            Exception: a task could not be restored or started, and wiping its state would not help.
        """
        changed = [
            held
            for held in self._held.values()
            if held.stage is Stage.RECALLED or self._target.get(held.task_id) != held.wanted
        ]
        if not changed and len(self.running) == len(self._target) and not self._resources.consumer.lost:
            return
        self._leave(changed)
        for task_id, wanted in self._target.items():
            if task_id not in self._held:
                self._held[task_id] = HeldTask(task_id, wanted)
        self._open_waiting()
        self._check_updater()
        self._start_restored()
        self._limits.refresh(
            frozenset().union(*(source_changelogs(self._resources, task_id) for task_id in self.standby))
        )

    def _move(self, held: HeldTask, stage: Stage) -> None:
        held.move(stage)
        if stage is Stage.RUNNING:
            self.running[held.task_id] = held.opened
        else:
            self.running.pop(held.task_id, None)
        if stage is Stage.CLOSED:
            del self._held[held.task_id]

    def _leave(self, changed: Collection[HeldTask]) -> None:
        """Commit, as the output of tasks that leave must not be committed later without their offsets; then close them.

        Tasks that only change their role or their input are recycled instead.
        """
        leaving = {held.task_id for held in changed if held.stage is Stage.RUNNING}
        stay_active = {task_id for task_id, wanted in self._target.items() if not wanted.standby}
        clean = not leaving
        try:
            if leaving:
                # All running tasks commit, not only those that leave: they share a producer, and so a transaction.
                self.commit()
                self._commit_clean_metadata(leaving - stay_active)
                clean = True
        except RebalanceInProgressError as error:
            names = ", ".join(map(str, sorted(leaving)))
            _log.info("%s; the next owner of %s processes some records again", error, names)
        finally:
            # Without a commit the stores have changes that belong to no offset, so a task that only changes is closed as well,
            # and opened again in its new role.
            kept = [held for held in changed if held.task_id in self._target and (clean or held.task_id not in leaving)]
            self._close({held.task_id for held in changed} - {held.task_id for held in kept}, dirty=not clean)
            # Those that were running come last: a processor's `close` may fail, and must not keep the others from changing.
            for held in sorted(kept, key=lambda each: (each.task_id in leaving, each.task_id)):
                self._recycle(held)
        if leaving and clean:
            self._committer.abort()  # nothing else ends a transaction that a processor has begun in its `close`

    def _recycle(self, held: HeldTask) -> None:
        """Let a task wait for its offsets again, in its new role, with its stores open.

        Raises:
            Exception: the failure of a processor's `close`.
        """
        if not self._is_back(held):
            return
        self._move(held, Stage.WAITING)
        held.wanted = self._target[held.task_id]
        task = held.task
        if task is None:
            return
        self._stop_reading(task)
        try:
            if not task.commit_needed:
                task.recycle(held.wanted.inputs)
        finally:
            # It failed to stop, or a processor has written to a store in its `close`.
            written = task.uncommitted_bytes() or self._resources.collector.has_written(task.changelogs)
            if task.state is not TaskState.RESTORING or written:
                self._close([held.task_id], dirty=True)
                self._held[held.task_id] = HeldTask(held.task_id, held.wanted)
        _log.info("%s keeps the stores of task %s open while it changes", self._thread, held.task_id)

    def _is_back(self, held: HeldTask) -> bool:
        """Whether this thread may close or recycle a task; if the state updater has it, it is asked to give it back."""
        if held.stage is Stage.UPDATING:
            wanted = self._target.get(held.task_id)
            promoted = held.wanted.standby and wanted is not None and not wanted.standby
            reason = SuspendReason.PROMOTED if promoted else SuspendReason.MIGRATED
            self._move(held, Stage.RECALLED)
            held.answer, held.late = self._resources.updater.remove(held.opened, reason), Deadline(_UPDATER_LATE_S)
        if held.stage is Stage.RECALLED and held.answer.done():
            self._move(held, Stage.RETURNED)
        elif held.stage is Stage.RECALLED and held.late.passed:
            held.late = Deadline(_UPDATER_LATE_S)
            _log.warning("%s waits: %s", self._thread, self._awaited(held))
        return held.stage is not Stage.RECALLED

    def _awaited(self, held: HeldTask) -> str:
        where = self._resources.updater.where
        return f"the state updater has not given back task {held.task_id} yet{f', it is in {where}' if where else ''}"

    def _open_waiting(self) -> None:
        """Open the tasks whose directories are free and whose committed offsets are known, and hand them to the updater."""
        directory = self._resources.context.directory
        unknown: dict[HeldTask, frozenset[TopicPartition]] = {}
        for held in self._in(Stage.WAITING):
            if directory.own_task(held.task_id, self._thread) is None:
                continue
            needed = self._needed_offsets(held)
            if needed:
                unknown[held] = needed
            else:
                self._open(held, {})
        if unknown:
            answer = self._resources.member.ask_committed(frozenset().union(*unknown.values()))
            for held in unknown:
                self._move(held, Stage.ASKED)
                held.committed = answer
        for held in self._in(Stage.ASKED):
            committed = held.committed.of(self._needed_offsets(held))
            if committed is not None:
                self._open(held, committed)

    def _needed_offsets(self, held: HeldTask) -> frozenset[TopicPartition]:
        """Return the partitions whose committed offsets a task needs before it is opened."""
        return source_changelogs(self._resources, held.task_id) if held.wanted.standby else held.wanted.inputs

    def _open(self, held: HeldTask, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        task_id, wanted = held.task_id, held.wanted
        if not wanted.standby:
            _check_backfill(task_id, committed)
            for partition in wanted.inputs:
                self._committer.committed.pop(partition, None)
            self._committer.committed.update(
                {tp: OffsetAndMetadata(known.offset, known.metadata.rstrip("\0")) for tp, known in committed.items()}
            )
        if held.task is None:
            held.task = open_task(self._resources, task_id, wanted.inputs)
        held.task.recycle(wanted.inputs)
        limits = {
            partition: committed[partition].offset if partition in committed else 0
            for partition in source_changelogs(self._resources, task_id)
        }
        self._move(held, Stage.UPDATING)
        self._resources.updater.add(held.task, limits, standby=wanted.standby)
        _log.info("%s has %s %s", self._thread, "standby" if wanted.standby else "task", task_id)

    def _check_updater(self) -> None:
        """Take the tasks whose stores are complete, and deal with those that failed."""
        updater = self._resources.updater
        for task in updater.drain_restored():
            held = self._updating(task)
            if held is not None:
                self._move(held, Stage.RESTORED)
        corrupted, others = set[TaskId](), list[Exception]()
        for failed in updater.drain_failed():
            held = self._updating(failed.task)
            if held is not None:
                self._move(held, Stage.RETURNED)
                _log.warning("Task %s cannot be restored: %s", held.task_id, failed.error)
                if isinstance(failed.error, TaskCorruptedError):
                    corrupted.add(held.task_id)
                else:
                    others.append(failed.error)
        self._close(corrupted, dirty=True, wipe=corrupted)
        if others:
            raise others[0]

    def _updating(self, task: StreamTask) -> HeldTask | None:
        """Return the record of a task, unless it was recalled meanwhile."""
        held = self._held.get(task.task_id)
        return held if held is not None and held.task is task and held.stage is Stage.UPDATING else None

    def _start_restored(self) -> None:
        """Start the tasks whose starting offsets are known, and read lost partitions again; ask for unknown offsets."""
        known, consumer = self._committer.committed, self._resources.consumer
        for partition, answer in self._starts.take():
            offset = answer.result()[partition]
            if partition in consumer.lost:
                consumer.assign({partition: offset})
                _log.warning("%s is read on at offset %d", partition, offset)
            else:
                known[partition] = OffsetAndMetadata(offset)
        undecided = set(consumer.lost)
        for held in sorted(self._in(Stage.RESTORED), key=lambda each: each.task_id):
            missing = held.wanted.inputs - known.keys()
            undecided |= missing
            if not missing:
                try:
                    self._start(held)
                except BaseException:
                    # It is half started; the others are started in the next round.
                    self._close([held.task_id], dirty=True)
                    raise
        unasked = [partition for partition in undecided if partition not in self._starts]
        if unasked:
            self._starts.add(unasked)

    def _start(self, held: HeldTask) -> None:
        task = held.opened
        known = {partition: self._committer.committed[partition] for partition in task.input_partitions}
        self._resources.collector.at_work = task
        task.initialize(known)
        self._move(held, Stage.RUNNING)
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
        """Return the committed offsets of the running tasks' inputs."""
        committed = self._committer.committed
        return {partition: committed[partition] for partition in self._by_partition if partition in committed}

    def needs_commit(self) -> bool:
        """Whether a processor requested a commit, or uncommitted state takes too much memory."""
        return self._committer.is_wanted(self.running.values())

    def commit(self) -> int:
        """Commit every task that has anything to commit; return how many. See `Committer.commit` for what it raises."""
        return self._committer.commit(self.running.values())

    def _commit_clean_metadata(self, task_ids: Collection[TaskId]) -> None:
        tasks = [self.running[task_id] for task_id in task_ids if task_id in self.running]
        self._committer.commit_clean_metadata([tp for task in tasks for tp in task.input_partitions])

    # The end of tasks

    def abort_and_revive(self, wipe: Collection[TaskId] = ()) -> None:
        """Give up the work since the last commit; `reconcile` starts again from there.

        Args:
            wipe: tasks whose state is also deleted, so that it is restored from the beginning.
        """
        self._abort_and_close(wipe or list(self.running), wipe)

    def close(self, *, clean: bool, deadline: Deadline) -> None:
        """Close every task.

        Args:
            clean: whether to commit first; if that fails, tasks are closed dirty and the failure is raised at the end.
            deadline: how long to wait for the state updater; it gets a second more.
        """
        failure: Exception | None = None
        if clean:
            try:
                self.commit()
                self._commit_clean_metadata(self.task_ids)
            except Exception as error:  # any exception: every store must still be closed
                failure = error
                clean = False
        self._target = {}
        for held in self._held.values():
            self._is_back(held)
        wait([held.answer for held in self._in(Stage.RECALLED)], deadline.left_s(at_least=1.0))
        try:
            self._close(self.task_ids, dirty=not clean)
        except Exception as error:
            failure = failure or error
        for held in self._held.values():
            failure = failure or StreamsError(f"Not all tasks are closed: {self._awaited(held)}")
        try:
            self._committer.abort()  # even after a commit: a processor may have sent something in its `close`
        except StreamsError as error:  # the brokers do not answer; they will time out the transaction
            _log.info("%s could not abort its transaction while closing: %s", self._thread, error)
        if failure is not None:
            raise failure

    def _close(self, task_ids: Collection[TaskId], *, dirty: bool, wipe: Collection[TaskId] = ()) -> None:
        """Close all of the tasks, even if some fail to close, and release their directories.

        Tasks that the state updater uses are closed by `reconcile` once returned, or recycled if they are wanted.

        Args:
            task_ids: which ones.
            dirty: whether to close them without a commit.
            wipe: tasks whose state is also deleted, before another thread can have it, unless the state updater uses them:
                it finds corrupt state itself.

        Raises:
            Exception: the first failure of a store's or a processor's `close`, or of deleting state.
        """
        directory = self._resources.context.directory
        failure: Exception | None = None
        for held in [self._held[task_id] for task_id in sorted(task_ids)]:
            task_id = held.task_id
            if not self._is_back(held):
                continue
            self._move(held, Stage.CLOSED)
            try:
                if held.task is not None:
                    self._close_task(held.task, dirty=dirty)
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
