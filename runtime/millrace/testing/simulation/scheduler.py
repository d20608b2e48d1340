"""Virtual time: a queue of events, and code of the product that believes it waits.

Everything happens in one thread. What waits for a broker, or sleeps, lets the other events happen until its time has come
(`pass_time`, `wait_for`). So a wait can be as long as a fault demands, and meanwhile the rest of the world continues, for
example to the next generation of the group.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from sys import modules
from types import ModuleType
from zlib import crc32

__all__ = ["Event", "Scheduler", "StalledError"]

_START_S = 1_700_000_000.0
_MOST_EVENTS = 300_000


class StalledError(Exception):
    """Too many events have happened: something is in a loop."""


@dataclass(slots=True, eq=False)
class Event:
    """Something that happens at a certain time, unless it is cancelled."""

    call: Callable[[], None] | None

    def cancel(self) -> None:
        """Do not let it happen."""
        self.call = None


class Scheduler:
    """The events of one simulated run.

    Args:
        seed: determines every random choice.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"schedule {seed}")  # noqa: S311
        self.now_s = _START_S
        self._queue: list[tuple[float, int, Event]] = []
        self._count = 0
        self.digest = 0
        """A checksum of all that has happened, in order."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self.now_s - _START_S

    def note(self, *what: object) -> None:
        """Add something that has happened to the checksum."""
        self.digest = crc32(f"{self.elapsed_s:.6f}{what}".encode(), self.digest)

    def later(self, delay_s: float, call: Callable[[], None]) -> Event:
        """Call a function after some seconds."""
        event = Event(call)
        self._count += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._count, event))
        return event

    def soon(self, call: Callable[[], None]) -> Event:
        """Call a function when a message between two machines would arrive."""
        rng = self.rng
        return self.later(rng.random() * 0.004 if rng.random() < 0.95 else rng.random() * 0.5, call)

    def wait_for(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Let events happen until something is true; return whether it is, after at most this many seconds."""
        until = self.now_s + limit_s
        queue = self._queue
        while not done():
            if not queue or queue[0][0] > until:
                self.now_s = max(self.now_s, until)
                return done()
            at_s, number, event = heapq.heappop(queue)
            call, event.call = event.call, None
            if call is not None:
                if number > _MOST_EVENTS:
                    raise StalledError(f"{_MOST_EVENTS} events in {self.elapsed_s:.0f} s")
                self.now_s = max(self.now_s, at_s)
                call()
        return True

    def pass_time(self, seconds: float) -> None:
        """Let events happen for some seconds."""
        self.wait_for(lambda: False, seconds)


class _Clock:
    """Replaces the module `time` in Millrace's modules while a simulation runs."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(0)

    def time(self) -> float:
        return self.scheduler.now_s

    monotonic = perf_counter = time

    def time_ns(self) -> int:
        return int(self.scheduler.now_s * 1e9)

    def sleep(self, seconds: float) -> None:
        self.scheduler.pass_time(seconds)


@contextmanager
def virtual_time() -> Iterator[Callable[[Scheduler], None]]:
    """Let Millrace see virtual time; yields a function that sets whose. Affects the whole process."""
    clock = _Clock()
    replaced = [module for name, module in modules.items() if _reads_time(name, module)]

    def of(scheduler: Scheduler) -> None:
        clock.scheduler = scheduler

    for module in replaced:
        module.time = clock  # type: ignore[attr-defined]
    try:
        yield of
    finally:
        for module in replaced:
            module.time = time  # type: ignore[attr-defined]


def _reads_time(name: str, module: ModuleType) -> bool:
    return name.startswith("millrace.") and name != __name__ and getattr(module, "time", None) is time
