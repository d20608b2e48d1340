"""The work queue: which resource is worked on next, and the threads that do so.

A key waits once, however often it is added, and is never worked on twice at the same time. A key that fails comes back after
longer and longer delays, and only a change by its user (`urgent`) brings it forward; the others do not wait for it.

`WorkSchedule` is the logic, with the time handed in; `WorkQueue` lets threads wait for it.
"""

from __future__ import annotations

import heapq
import logging
import random
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

from millrace.deadline import Deadline
from millrace_operator.app.backoff import STALE_SECONDS, Backoff, FailedError, TransientError
from millrace_operator.app.metrics import OperatorMetrics
from millrace_operator.kafka.state_cache import AnswerAwaitedError
from millrace_operator.model import ResourceRef

K = TypeVar("K")


class WorkSchedule(Generic[K]):
    """Keys and when they are due; not safe to use from several threads.

    Args:
        backoff: How long keys wait that have failed.
    """

    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        """When keys are due, earliest first; keys that were brought forward or are being worked on may have old entries."""
        self._numbers = count()
        """Breaks ties between keys that are due at the same time."""
        self._running: set[K] = set()
        self._failures: dict[K, int] = {}
        self._not_before: dict[K, float] = {}
        self._urgent: set[K] = set()
        """Keys that were added urgently since they were taken."""

    def add(self, key: K, now: float, after: float = 0.0, *, urgent: bool = False) -> None:
        """Schedule a key, or schedule it again if it is being worked on now.

        Args:
            key: The key; if it waits already, the earlier time counts.
            now: The time.
            after: Seconds to wait first.
            urgent: Forget the key's failures.
        """
        if urgent:
            self.forget(key)
            self._urgent.add(key)
        due = max(now + after, self._not_before.get(key, 0.0))
        if key not in self._due or due < self._due[key]:
            self._plan(key, due)

    def take(self, now: float) -> K | None:
        """Return the key that has been due for longest, or None; it must be given to `done` afterwards."""
        due = self.next_due()
        if due is None or due > now:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._due[key]
        self._running.add(key)
        self._urgent.discard(key)
        return key

    def done(self, key: K) -> None:
        """Allow a key to be taken again."""
        self._running.discard(key)
        if key in self._due:
            self._plan(key, self._due[key])

    def failed(self, key: K, now: float, chance: float) -> float:
        """Schedule a key again after a delay that grows with every failure, and return the delay.

        A key that was added urgently in the meantime is worked on at once: the failure was about something older.
        """
        if key in self._urgent:
            return 0.0
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._backoff.seconds(self._failures[key], chance)
        self._not_before[key] = now + delay
        self._plan(key, now + delay)
        return delay

    def forget(self, key: K) -> None:
        """Forget that a key has failed."""
        self._failures.pop(key, None)
        self._not_before.pop(key, None)

    def failures(self, key: K) -> int:
        """Return how often a key has failed in a row."""
        return self._failures.get(key, 0)

    def next_due(self) -> float | None:
        """Return when the next key that is not being worked on is due."""
        while self._heap:
            due, _, key = self._heap[0]
            if key not in self._running and self._due.get(key) == due:
                return due
            heapq.heappop(self._heap)
        return None

    def depth(self, now: float) -> int:
        """Return how many keys are due."""
        return sum(due <= now for due in self._due.values())

    def _plan(self, key: K, due: float) -> None:
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._numbers), key))


class WorkQueue(Generic[K]):
    """A schedule that threads share.

    Args:
        backoff: How long keys wait that have failed.
        clock: Seconds that only go forward.
    """

    def __init__(self, backoff: Backoff | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._schedule: WorkSchedule[K] = WorkSchedule(backoff)
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = False

    def add(self, key: K, after: float = 0.0, *, urgent: bool = False) -> None:
        """Schedule a key; see `WorkSchedule.add`."""
        with self._changed:
            self._schedule.add(key, self._clock(), after, urgent=urgent)
            self._changed.notify_all()

    def take(self) -> K | None:
        """Wait for a key that is due and return it; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                now = self._clock()
                key = self._schedule.take(now)
                if key is not None:
                    return key
                due = self._schedule.next_due()
                self._changed.wait(None if due is None else max(due - now, 0.0))
            return None

    def done(self, key: K, *, again_after: float | None) -> None:
        """Release a key that succeeded, and schedule it after this many seconds unless something happens first."""
        with self._changed:
            self._schedule.forget(key)
            self._schedule.done(key)
            if again_after is not None:
                self._schedule.add(key, self._clock(), again_after)
            self._changed.notify_all()

    def put_off(self, key: K, seconds: float) -> None:
        """Release a key that was not worked on, and schedule it after this many seconds unless it is added first."""
        with self._changed:
            self._schedule.done(key)
            self._schedule.add(key, self._clock(), seconds)
            self._changed.notify_all()

    def failed(self, key: K) -> float:
        """Release a key that failed, schedule it after a delay, and return the delay."""
        with self._changed:
            self._schedule.done(key)
            delay = self._schedule.failed(key, self._clock(), random.random())  # noqa: S311 - jitter
            self._changed.notify_all()
            return delay

    def failures(self, key: K) -> int:
        """Return how often a key has failed in a row."""
        with self._changed:
            return self._schedule.failures(key)

    def depth(self) -> int:
        """Return how many keys are due."""
        with self._changed:
            return self._schedule.depth(self._clock())

    def close(self) -> None:
        """Let every `take` return None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


log = logging.getLogger(__name__)

Controller = Callable[[ResourceRef, int], float | None]
"""Takes a resource and how often it failed in a row; returns after how many seconds to run again, or None for never."""


class Workers:
    """Threads that take keys from the queue until it is closed; a failing pass delays its own key and no other.

    Args:
        queue: What to work on.
        work: The controller of each kind of resource.
        count: How many threads.
        metrics: Records every pass.
    """

    def __init__(
        self, queue: WorkQueue[ResourceRef], work: dict[str, Controller], *, count: int, metrics: OperatorMetrics
    ) -> None:
        self._queue = queue
        self._work = work
        self._metrics = metrics
        # By thread, not by resource: a pass that has ended returns its key to the queue, and another thread may take it at once.
        self._busy: dict[int, tuple[ResourceRef, float]] = {}
        self._threads = [
            threading.Thread(target=self._loop, name=f"worker-{number}", daemon=True) for number in range(count)
        ]

    @property
    def started(self) -> bool:
        """Whether they have started."""
        return self._threads[-1].ident is not None

    def start(self) -> None:
        """Start working."""
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for passes to end after the queue was closed, and return whether all have."""
        deadline = Deadline(seconds)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(deadline.left_s())
        return not any(thread.is_alive() for thread in self._threads)

    def problems(self, stuck_seconds: float) -> list[str]:
        """Return reasons to consider the workers stuck: passes that take longer than this, and threads that have ended.

        Waiting in the queue does not count: with many applications the queue is long, and the workers still make progress.
        """
        now = time.monotonic()
        stuck = [
            f"the pass over {ref} has taken {now - since:.0f} s"
            for ref, since in list(self._busy.values())
            if now - since > stuck_seconds
        ]
        if self.started and not all(thread.is_alive() for thread in self._threads):
            stuck.append("a worker has died")
        return stuck

    def _loop(self) -> None:
        while (ref := self._queue.take()) is not None:
            begun = time.monotonic()
            self._busy[threading.get_ident()] = (ref, begun)
            try:
                result = self._pass(ref)
            finally:
                del self._busy[threading.get_ident()]
            if result is not None:
                self._metrics.passed(result, time.monotonic() - begun)

    def _pass(self, ref: ResourceRef) -> str | None:
        """Make a pass and return its result, or None if it was postponed."""
        try:
            again = self._work[ref.kind](ref, self._queue.failures(ref))
        except AnswerAwaitedError as awaited:
            self._queue.put_off(ref, awaited.seconds)
            return None
        except TransientError as error:
            log.warning("%s: %s; again in %.1f s", ref, error, self._queue.failed(ref))
            return "error"
        except FailedError as error:
            bug = error.reason == "OperatorError"
            delay = error.again_after
            if delay is None:
                delay = self._queue.failed(ref)
            else:
                self._queue.done(ref, again_after=delay)
            log.warning("%s: %s; again in %.1f s", ref, error, delay, exc_info=error.__cause__ if bug else None)
            return "stalled"
        except Exception:
            log.exception("%s: the pass failed; again in %.1f s", ref, self._queue.failed(ref))
            return "error"
        self._queue.done(ref, again_after=again)
        return "stale" if again == STALE_SECONDS else "ok"
