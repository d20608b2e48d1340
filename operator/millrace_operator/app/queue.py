"""Which resource is worked on next.

A key waits once, however often it is added, and is never worked on twice at the same time. A key that fails comes back later and
later, and nothing but a change by its user (`urgent`) brings it forward; the others do not wait for it.

`WorkSchedule` is the logic, with the time handed in; `WorkQueue` lets threads wait for it.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a key waits after failures: exponentially longer, with jitter so that many do not return together."""

    first_seconds: float = 0.5
    most_seconds: float = 120.0
    jitter: float = 0.2
    """Which part of the delay may be added to it at random."""

    def seconds(self, failures: int, chance: float) -> float:
        """Return the delay.

        Args:
            failures: How often the key has failed in a row, at least 1.
            chance: A random number from 0 to 1.
        """
        delay = self.first_seconds * 2.0 ** min(failures - 1, 30)
        return min(delay, self.most_seconds) * (1 + self.jitter * chance)


class WorkSchedule(Generic[K]):
    """Keys and when they are due; not safe to use from several threads.

    Args:
        backoff: How long keys wait that have failed.
    """

    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        """When keys are due, in this order; of keys that were brought forward or are being worked on, entries are left over."""
        self._numbers = count()
        """Decides between keys that are due at the same time."""
        self._running: set[K] = set()
        self._failures: dict[K, int] = {}
        self._not_before: dict[K, float] = {}
        self._urgent: set[K] = set()
        """Keys that came urgently since they were taken."""

    def add(self, key: K, now: float, after: float = 0.0, *, urgent: bool = False) -> None:
        """Have a key worked on, or worked on again if it is being worked on now.

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
        """Let a key be taken again."""
        self._running.discard(key)
        if key in self._due:
            self._plan(key, self._due[key])

    def failed(self, key: K, now: float, chance: float) -> float:
        """Have a key worked on again after a delay that grows with every failure, and return the delay.

        A key that came urgently meanwhile is worked on at once: what failed was about something older.
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
        """Return when the next key is due that is not being worked on."""
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
        """Have a key worked on; see `WorkSchedule.add`."""
        with self._changed:
            self._schedule.add(key, self._clock(), after, urgent=urgent)
            self._changed.notify_all()

    def take(self) -> K | None:
        """Wait for a key that is due and return it; None when the queue is closed."""
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
        """Let a key that went well be taken again, after so many seconds if nothing happens before."""
        with self._changed:
            self._schedule.forget(key)
            self._schedule.done(key)
            if again_after is not None:
                self._schedule.add(key, self._clock(), again_after)
            self._changed.notify_all()

    def put_off(self, key: K, seconds: float) -> None:
        """Let a key that nothing was done about be taken again, after so many seconds if it is not added before."""
        with self._changed:
            self._schedule.done(key)
            self._schedule.add(key, self._clock(), seconds)
            self._changed.notify_all()

    def failed(self, key: K) -> float:
        """Let a key that failed be taken again after a delay, which is returned."""
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
