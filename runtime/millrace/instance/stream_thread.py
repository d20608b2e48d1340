"""A stream thread: polls, processes, punctuates and commits for its tasks, in one loop.

A round is: group events → restored tasks → poll → process → punctuate → commit if due. It never spins: with nothing to process
it waits in `poll`, for at most `poll.ms` or until the next punctuation or commit is due.

*How much at once.* Tasks take turns of 50 ms (see `pace`), and a round processes for at most 100 ms before it polls again,
or for one record that takes longer. So slow user code delays group events, commits and other tasks by one record only. The
next round starts with the task that is next in turn.

*What bounds memory.* While there is enough to process the consumer is not polled, and its queue bounds what is fetched. A
task that waits for one of its partitions has nothing to process, so the thread keeps polling and the buffers of the task's
other partitions grow: all partitions share one queue, and the awaited records are behind them. Partitions that are far ahead
(`buffered.records.per.partition` and `_AHEAD_BYTES`) are paused, and resumed at half of that. The limit has to be high,
because a pause discards fetched records, a mebibyte at a time.

*Failures* are handled by exception: migrated → drop the tasks and rejoin; corrupted → wipe and restore; transaction aborted →
start again from the last commit; anything else ends the thread, and the uncaught exception handler decides. Java also ends it if
a producer is fenced when it starts; here that counts as migrated, and the next transaction gets another producer.

*Closing* commits, and so waits for brokers, but for a limited time in total; after that tasks are closed dirty, which loses
nothing.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from millrace.assignment.protocol import Assigned, GroupEvent, Lost, Revoked
from millrace.deadline import Deadline
from millrace.engine.task import StreamTask
from millrace.errors import (
    RebalanceInProgressError,
    StreamsError,
    StreamsTimeoutError,
    TaskCorruptedError,
    TaskMigratedError,
    TransactionAbortedError,
    of_thread,
)
from millrace.instance.activity import LoopProgress, Totals
from millrace.instance.committer import RepartitionPurge
from millrace.instance.pace import Pace, SlowRecords, TimedTurn
from millrace.instance.resources import ThreadContext, ThreadResources, open_resources
from millrace.instance.states import THREAD_TRANSITIONS, ThreadState
from millrace.instance.task_manager import TaskManager
from millrace.kafka.admin_requests import give_up_when
from millrace.records import RawRecord, TaskId, TopicPartition

__all__ = ["StreamThread"]

_log = logging.getLogger(__name__)
_ROUND_S: Final = 0.1
_CHANGING_POLL_S: Final = 0.02
_REFRESH_ENDS_S: Final = 1.0
_AHEAD_BYTES: Final = 32 * 1024 * 1024
"""How much a thread's waiting tasks may hold in total, in partitions with more than `buffered.records.per.partition` records."""
_RECORD_OVERHEAD_BYTES: Final = 256
CLOSE_WAIT_S: Final = 20.0
"""How long an ending thread waits for brokers in total, by default."""


class StreamThread:
    """One stream thread of a client.

    Args:
        number: counted from 1; part of its name and of its transactional id.
        context: the resources shared with the client's other threads.
        on_state: called with (thread, new state, old state), in this thread.
        on_death: called with (thread, exception) when the loop has failed, in this thread and before anything is closed.
    """

    def __init__(
        self,
        number: int,
        context: ThreadContext,
        on_state: Callable[[StreamThread, ThreadState, ThreadState], None],
        on_death: Callable[[StreamThread, Exception], None],
    ) -> None:
        self.number = number
        self.name = context.settings.thread_name(number)
        self.state = ThreadState.CREATED
        self.error: Exception | None = None
        self.leave_group: bool | None = None
        """Whether to leave the group on shutdown; None = dynamic members leave, static ones stay."""
        self.shuts_down_all = False
        """Whether it tells the application's other instances to stop, too, when it is asked to end."""
        self.rounds_total = 0
        self.progress = LoopProgress()
        self.joined = False
        """Whether it has ever been given an assignment, if only an empty one."""
        self._context = context
        self._on_state = on_state
        self._on_death = on_death
        self._state_lock = threading.RLock()
        self.stop_requested = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._loop: ThreadLoop | None = None
        self.max_poll_records = context.settings.max_poll_records()
        self.transaction_timeout_ms = context.settings.transaction_timeout_ms()

    def __repr__(self) -> str:
        return f"<StreamThread {self.name} {self.state.value}>"

    # From outside

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def shutdown(self, *, leave_group: bool | None = None, broker_wait_s: float = CLOSE_WAIT_S) -> None:
        """Ask the thread to commit, close its tasks and end; returns at once.

        Args:
            leave_group: whether to leave the group; None = as asked before, by default only dynamic members leave.
            broker_wait_s: how long it may wait for brokers in total before it gives up uncommitted work.
        """
        if leave_group is not None:
            self.leave_group = leave_group
        self.progress.give_up_in(broker_wait_s)
        self.stop_requested.set()

    def resize_cache(self, max_bytes: int) -> None:
        """Change the thread's share of the record cache, from the next put on."""
        cache = None if self._loop is None else self._loop.resources.cache
        if cache is not None:
            cache.max_bytes = max_bytes

    def request_shutdown_of_all(self) -> bool:
        """Tell all members of the application to stop; call it in this thread, after its loop has ended.

        Returns:
            Whether its tasks can be committed still.
        """
        if self._loop is not None:
            try:
                return self._loop.resources.member.request_shutdown_of_all()
            except StreamsError as error:
                _log.warning("The other instances could not be told to stop: %s", error)
        return False

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread has ended; return whether it has."""
        if self._thread.ident is not None and not self.is_current:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread, or in its state updater, which it waits for when it ends."""
        updater = None if self._loop is None else self._loop.resources.updater
        return self._thread is threading.current_thread() or (updater is not None and updater.is_current)

    @property
    def is_alive(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._thread.is_alive()

    @property
    def tasks(self) -> TaskManager | None:
        """The thread's tasks, for inspection only, as they belong to the thread; None before it has started."""
        return None if self._loop is None else self._loop.tasks

    @property
    def resources(self) -> ThreadResources | None:
        """The thread's clients, for inspection only; None before it has started."""
        return None if self._loop is None else self._loop.resources

    @property
    def totals(self) -> Totals:
        """Its counters so far."""
        if self._loop is None:
            return Totals()
        tasks, progress = self._loop.tasks, self.progress
        restored = self._loop.resources.updater.restored_total
        return Totals(tasks.records_total, tasks.commits_total, restored, progress.waited_s, progress.lived_s())

    # The thread

    def _run(self) -> None:
        clean = True
        give_up_when(lambda: self.progress.given_up)
        try:
            loop = self.begin()
            loop.resources.updater.start()
            loop.start()
            while not self.stop_requested.is_set():
                loop.round()
            if self.shuts_down_all:
                clean = self.request_shutdown_of_all()
        except BaseException as raised:  # the uncaught exception handler decides, and everything is closed
            clean = False
            error = of_thread(raised)
            if isinstance(error, StreamsTimeoutError) and self.progress.given_up:
                _log.warning("%s ends without a commit: %s", self.name, error)
            else:
                self.error = error
                _log.debug("%s failed", self.name, exc_info=True)
                self._on_death(self, error)
        finally:
            self.end(clean=clean)

    def begin(self) -> ThreadLoop:
        """Return the loop, with its clients open; for the thread itself, and for a simulation that calls its rounds."""
        self.set_state(ThreadState.STARTING)
        self.progress.touch()
        self._loop = ThreadLoop(self, self._context)
        return self._loop

    def end(self, *, clean: bool) -> None:
        """Close the loop's tasks and clients; for the caller of `begin`.

        Args:
            clean: whether to commit first.
        """
        self.set_state(ThreadState.PENDING_SHUTDOWN)
        try:
            if self._loop is not None:
                self._loop.close(clean=clean)
        finally:  # the client waits for it
            self.progress.ended()
            self.set_state(ThreadState.DEAD)

    def set_state(self, new: ThreadState) -> None:
        """Move to another state if the transition is allowed; for the thread itself."""
        with self._state_lock:
            old = self.state
            if old is new and new is not ThreadState.PARTITIONS_ASSIGNED:
                return
            if new not in THREAD_TRANSITIONS[old]:
                _log.debug("%s stays %s (not %s)", self.name, old.value, new.value)
                return
            self.state = new
        if old is not new:
            _log.info("%s: %s → %s", self.name, old.value, new.value)
            self._on_state(self, new, old)


class ThreadLoop:
    """The loop of a stream thread, with the clients and tasks that it works with; made and used in that thread.

    Args:
        thread: whose loop it is.
        context: the resources that the client's threads share.

    Raises:
        ConfigError: a client does not take its settings.
    """

    def __init__(self, thread: StreamThread, context: ThreadContext) -> None:
        config = context.config
        self._thread, self._name, self._progress = thread, thread.name, thread.progress
        self._context = context
        self.resources = open_resources(thread.number, context, thread.progress, self._offset_sums)
        self.tasks = TaskManager(self.resources)
        self._purge = RepartitionPurge(context.topology, config, context.admin)
        self._pace = Pace()
        self._turn = TimedTurn(self._interrupted)
        self._turns = 0
        limits = {"max.poll.interval.ms": config.max_poll_interval_ms / 1000}
        if config.exactly_once:
            limits["producer.transaction.timeout.ms"] = thread.transaction_timeout_ms / 1000
        self._slow = SlowRecords(limits)
        self._last_commit, self._ends_refreshed = time.monotonic(), 0.0
        self._resume_at: dict[TopicPartition, int] = {}
        """How few records a paused partition must have left to be fetched again."""
        self._starved: dict[TaskId, tuple[float, float]] = {}
        """Tasks that have records but wait for another partition's: since when, and when this was last logged."""
        self._busy = False
        self._poll_s = config.poll_ms / 1000
        self._commit_every_s = config.commit_interval_ms / 1000
        self._commit_rebalancing_every_s = thread.transaction_timeout_ms / 4000
        self._max_poll_records = thread.max_poll_records
        self._buffer_limit = config.buffered_records_per_partition
        self._round_s = min(_ROUND_S, config.max_poll_interval_ms / 2000)

    def _offset_sums(self) -> Mapping[TaskId, int]:
        return self.tasks.offset_sums()

    def start(self) -> None:
        """Fence the thread's predecessor and connect to the group; the first round joins it."""
        try:
            self.resources.producer.start()
        except TaskMigratedError as error:
            _log.warning("%s: %s", self._name, error)
        with self._progress.waiting_for("the group's coordinator"):
            self.resources.member.start()

    def round(self) -> None:
        """Go round once: group events, restored tasks, poll, process, punctuate, commit if due."""
        failure = self._attempt(self._round, TaskCorruptedError, TransactionAbortedError, TaskMigratedError)
        if isinstance(failure, TaskCorruptedError | TransactionAbortedError):
            failure = self._attempt(partial(self._revive, failure), TaskMigratedError)  # of the abort's new producer
        if failure is not None:
            self._start_again()
            self._thread.set_state(ThreadState.PARTITIONS_REVOKED)
            self._attempt(self.tasks.lose, TaskMigratedError)
            self.resources.member.rejoin_without_tasks(str(failure))

    def _attempt(self, call: Callable[[], None], *expected: type[StreamsError]) -> StreamsError | None:
        """Call a function, and return an expected failure, so that nothing else is done while it is being handled.

        confluent-kafka (2.16) never frees an exception that is being handled when it raises another, nor the clients in its
        traceback.
        """
        try:
            call()
        except expected as error:
            _log.warning("%s: %s", self._name, str(error))  # a log may keep its arguments
            return error
        return None

    def _revive(self, failure: TaskCorruptedError | TransactionAbortedError) -> None:
        corrupted = failure.task_ids if isinstance(failure, TaskCorruptedError) else frozenset()
        if not corrupted:
            self._start_again()
        self.tasks.abort_and_revive({task_id for task_id in self.tasks.task_ids if task_id in corrupted})
        self._thread.set_state(ThreadState.PARTITIONS_ASSIGNED)

    def _start_again(self) -> None:
        """Note that the work since the last commit is void.

        Raises:
            SlowRecordError: one record is to blame, for the second time.
        """
        error = self._slow.failed(self._pace.uncommitted)
        self._pace.aborted()
        if error is not None:
            raise error

    def _round(self) -> None:
        resources, tasks = self.resources, self.tasks
        self._thread.rounds_total += 1
        self._progress.touch()
        events = resources.member.poll()
        while events:
            for event in events:
                self._handle(event)
            tasks.reconcile()
            events = resources.member.poll()  # tell what was given up before anything else is processed
        tasks.reconcile()
        paused = self._context.paused.is_set()
        if paused:
            self._rest()
        elif self._pace.next_turn:
            self._fetch()
            self._process()
        else:  # it has to commit first, which waits for the group
            self._settle_state()
            time.sleep(_CHANGING_POLL_S)
        resources.collector.poll()
        if not paused:
            self._punctuate()
        now = time.monotonic()
        wanted = tasks.needs_commit() or not self._pace.next_turn
        if now >= self._next_commit() or (wanted and not resources.member.rebalancing):
            self._commit()
        self._purge.run_if_due(now, tasks.committed_positions)

    def _handle(self, event: GroupEvent) -> None:
        tasks = self.tasks
        _log.debug("%s: %s", self._name, event)
        if isinstance(event, Revoked):
            self._thread.set_state(ThreadState.PARTITIONS_REVOKED)
            tasks.revoke(event.partitions)
        elif isinstance(event, Lost):
            self._start_again()
            self._thread.set_state(ThreadState.PARTITIONS_REVOKED)
            tasks.lose(event.partitions)
        elif isinstance(event, Assigned):
            assigned = self.resources.member.accept(event)
            self._thread.joined = True
            self._context.on_assigned(self.resources.member.generation, assigned)
            if assigned.shutdown_requested:
                self._thread.stop_requested.set()
                self._context.on_shutdown_requested()
                return
            self._thread.set_state(ThreadState.PARTITIONS_ASSIGNED)
            tasks.assign(assigned)

    def _settle_state(self) -> None:
        if self._thread.state is ThreadState.PARTITIONS_ASSIGNED and self.tasks.all_running:
            self._thread.set_state(ThreadState.RUNNING)

    def _rest(self) -> None:
        """Wait for a moment while paused. Nothing is polled, so the consumer's queue stays as it is."""
        self._settle_state()
        self._busy = False
        began = time.monotonic()
        self._thread.stop_requested.wait(self._poll_s)
        self._progress.waited_s += time.monotonic() - began

    def _fetch(self) -> None:
        self._settle_state()
        consumer, tasks = self.resources.consumer, self.tasks
        now_ms = self._context.clock()
        # Records that wait for another partition do not count: only polling brings that partition.
        to_process = sum(task.buffered() for task in tasks.running.values() if task.ready(now_ms))
        if self._busy and to_process >= self._max_poll_records:
            return  # so what is fetched stays in the consumer's queue, which is bounded
        tracer = self._context.instrumentation
        timeout_s = 0.0 if self._busy or to_process else self._wait_s()
        began = time.monotonic()
        if tracer is None:
            batches = consumer.poll(self._max_poll_records, timeout_s)
        else:
            with tracer.poll(self._name) as fetch:
                batches = consumer.poll(self._max_poll_records, timeout_s)
                fetch.received(sum(map(len, batches.values())))
        if timeout_s > 0:
            self._progress.waited_s += time.monotonic() - began
        tasks.add_records(batches)
        # Only tasks with several inputs choose between partitions, so only they need to know where an input ends. It is asked
        # after the poll, which may just have brought the record that a task waits for.
        several = [task for task in tasks.running.values() if len(task.input_partitions) > 1]
        for task in several:
            consumer.refresh_ends([tp for tp in task.input_partitions if not task.buffered(tp)])
            for partition in task.input_partitions:
                task.set_lag(partition, consumer.lag(partition))
        now_ms = self._context.clock()
        waiting = [task for task in several if task.buffered() and not task.ready(now_ms)]
        self._hold_back(waiting, batches)
        self._log_starved(waiting)
        if time.monotonic() - self._ends_refreshed >= _REFRESH_ENDS_S:
            self._ends_refreshed = time.monotonic()
            consumer.refresh_ends(list(consumer.partitions))

    def _hold_back(
        self, waiting: Collection[StreamTask], batches: Mapping[TopicPartition, Sequence[RawRecord]]
    ) -> None:
        """Pause partitions that are far ahead of the one their task waits for."""
        for task in waiting:
            limit_bytes = _AHEAD_BYTES / len(waiting)
            for partition in task.input_partitions & batches.keys():
                records = task.buffered(partition)
                if records > self._buffer_limit and records * _mean_bytes(batches[partition]) > limit_bytes:
                    _log.debug("%s pauses %s with %d records", self._name, partition, records)
                    self._resume_at[partition] = records // 2
                    self.resources.consumer.pause([partition])

    def _log_starved(self, waiting: Collection[StreamTask]) -> None:
        """Log now and then which tasks have had records for long, but wait for another partition's."""
        every_s = self._context.config.log_summary_interval_ms / 1000
        if every_s <= 0:
            return
        now = time.monotonic()
        self._starved = {task.task_id: self._starved.get(task.task_id, (now, now)) for task in waiting}
        for task in waiting:
            since, logged = self._starved[task.task_id]
            if now - logged < every_s:
                continue
            self._starved[task.task_id] = since, now
            lags = {
                tp: self.resources.consumer.lag(tp) for tp in sorted(task.input_partitions) if not task.buffered(tp)
            }
            _log.info(
                "%s: task %s has %d records and has been waiting for %.0f s for records of %s (max.task.idle.ms=%d)",
                *(self._name, task.task_id, task.buffered(), now - since),
                ", ".join(f"{tp} ({'unknown' if lag is None else lag} on the brokers)" for tp, lag in lags.items()),
                self._context.config.max_task_idle_ms,
            )

    def _wait_s(self) -> float:
        tasks = self.tasks
        if not tasks.all_running or self.resources.member.rebalancing:
            return min(_CHANGING_POLL_S, self._poll_s)
        now_ms = self._context.clock()
        due = min((task.schedules.wall_clock.next_ms for task in tasks.running.values()), default=None)
        wait_s = self._poll_s if due is None else min(self._poll_s, max(0.0, (due - now_ms) / 1000))
        if any(task.commit_needed for task in tasks.running.values()):
            wait_s = min(wait_s, max(0.0, self._next_commit() - time.monotonic()))
        return wait_s

    def _interrupted(self) -> bool:
        """Return whether to process nothing more in this round."""
        return self._thread.stop_requested.is_set() or self._context.paused.is_set()

    def _process(self) -> None:
        tasks = self.tasks
        waiting = deque(tasks.running.values())
        waiting.rotate(-self._turns % (len(waiting) or 1))
        ends_at, processed = time.perf_counter() + self._round_s, 0
        while waiting and (limit := self._pace.next_turn):
            task = waiting.popleft()
            taken = self._take_turn(task, limit)
            self._turns += 1
            processed += taken
            if taken:
                waiting.append(task)
            if task.commit_requested or time.perf_counter() >= ends_at or self._interrupted():
                break
        self._busy = processed > 0
        tasks.records_total += processed
        consumer = self.resources.consumer
        if consumer.paused:
            consumer.resume([tp for tp in consumer.paused if tasks.buffered(tp) <= self._resume_at[tp]])

    def _take_turn(self, task: StreamTask, limit: int) -> int:
        """Let a task process for a while; return how many records it has taken."""
        now_ms, waiting = self._context.clock(), task.buffered()
        tracer, turn = self._context.instrumentation, self._turn
        self.resources.collector.at_work = task
        turn.begin()
        try:
            if tracer is None:
                taken = task.process(now_ms, limit, turn)
            else:
                with tracer.process_batch(self._name, task.task_id, limit):
                    taken = task.process(now_ms, limit, turn)
        except StreamsError:  # it counts as processed: the same amount would fail again
            self._pace.processed(waiting - task.buffered() + 1)
            raise
        finally:
            self._slow.note(task, turn.last_record_s(), self._progress.where)
        if taken:
            self._pace.processed(taken)
            task.punctuate_stream_time()
        return taken

    def _punctuate(self) -> None:
        now_ms = self._context.clock()
        for task in self.tasks.running.values():
            self.resources.collector.at_work = task
            task.punctuate_wall_clock(now_ms)

    def _next_commit(self) -> float:
        """Return when it is time for the next commit (monotonic seconds)."""
        if not self.resources.member.rebalancing:
            return self._last_commit + self._commit_every_s
        # The group may be between generations for as long as a dead member's session lasts, while this member still has all its
        # tasks. Commit rarely, though: a commit at the very moment of the next generation is refused.
        return self._last_commit + max(self._commit_every_s, self._commit_rebalancing_every_s)

    def _commit(self) -> None:
        self._last_commit = time.monotonic()
        try:
            self.tasks.commit()
            self._progress.committed()
            self._slow.committed()
            self._pace.committed(time.monotonic() - self._last_commit)
        except RebalanceInProgressError as error:
            _log.info("%s: %s", self._name, error)

    def close(self, *, clean: bool) -> None:
        """Close the tasks and then the clients, even if some steps fail.

        Args:
            clean: whether to commit first.
        """
        resources, tasks = self.resources, self.tasks
        if math.isinf(self._progress.gives_up_s):  # nobody asked it to end
            self._progress.give_up_in(CLOSE_WAIT_S)
        deadline = Deadline(self._progress.left_s(at_least=0.0))
        try:
            tasks.close(clean=clean, deadline=deadline)
        except BaseException as error:  # the thread ends anyway; its successor repeats what is not committed
            _log.warning(
                "%s could not commit while closing (%s): the records since the last commit are processed again",
                *(self._name, error),
            )
            _log.debug("Closing failed", exc_info=True)
        steps: tuple[tuple[str, Callable[[], object]], ...] = (
            ("state updater", lambda: resources.updater.shutdown(deadline.left_s(at_least=1.0))),
            ("group member", lambda: resources.member.close(leave_group=self._thread.leave_group)),
            ("consumer", resources.consumer.close),
            ("producer", resources.producer.close),
        )
        for what, step in steps:
            try:
                step()
            except BaseException:  # the others must still be closed
                _log.warning("%s could not close its %s", self._name, what, exc_info=True)
        self._context.directory.disown_all(self._name)


def _mean_bytes(records: Sequence[RawRecord]) -> float:
    """Return the memory that a record takes on average."""
    payload = sum(len(value) for *_, value, _ in records if isinstance(value, bytes))
    return _RECORD_OVERHEAD_BYTES + payload / len(records)
