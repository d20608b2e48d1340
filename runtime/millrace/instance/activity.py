"""The activity of an instance's stream threads: the progress of each loop, totals, and rates.

Taking a status never blocks, so slow measurements (rates, disk usage) are made now and then by the housekeeping thread and
kept here. The counters of ended threads are added up here, so totals only grow.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.rate_meter import RateMeter

_log = logging.getLogger(__name__)
_WINDOW_S: Final = 60.0
_RESTORE_WINDOW_S: Final = 15.0
_STORAGE_EVERY_S: Final = 15.0
_SLOW_S: Final = 1.0
"""A loop whose round takes longer is inspected."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters of stream threads, added up."""

    records: int = 0
    commits: int = 0
    restored: int = 0
    """Changelog records applied to stores."""
    waited_s: float = 0.0
    """How long threads waited for records, with nothing to do."""
    lived_s: float = 0.0
    """How long threads have been alive."""

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.records + other.records,
            self.commits + other.commits,
            self.restored + other.restored,
            self.waited_s + other.waited_s,
            self.lived_s + other.lived_s,
        )


class Activity:
    """Totals, rates and disk usage of one instance.

    Args:
        directory: the state directory; its size is unknown while it does not exist.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._past = Totals()
        self._generations: set[int] = set()
        self._records, self._restored = RateMeter(_WINDOW_S), RateMeter(_RESTORE_WINDOW_S)
        self._waited, self._lived = RateMeter(_WINDOW_S), RateMeter(_WINDOW_S)
        self._storage_measured_s: float | None = None
        self.storage_used_percent: float | None = None
        """How full the file system of the state directory is, as `df` counts; None = unknown."""
        self.storage_bytes: int | None = None
        """The disk space of the application's state; None = unknown."""

    # Called by the client and its threads

    def ended(self, totals: Totals) -> None:
        """Keep the counters of a thread that has left the pool."""
        self._past += totals

    def joined(self, generation: int) -> None:
        """Count a generation of the group in which a thread was given an assignment."""
        self._generations.add(generation)

    def measure(self, threads: Iterable[Totals]) -> None:
        """Take readings now; call it about once a second."""
        now, totals = time.monotonic(), self.totals(threads)
        self._records.add(now, totals.records)
        self._restored.add(now, totals.restored)
        self._waited.add(now, totals.waited_s)
        self._lived.add(now, totals.lived_s)
        if self._storage_measured_s is None or now - self._storage_measured_s >= _STORAGE_EVERY_S:
            self._storage_measured_s = now
            self._measure_storage()

    # For the status

    def totals(self, threads: Iterable[Totals]) -> Totals:
        """Return the counters since the start, including ended threads."""
        return sum(threads, self._past)

    @property
    def rebalances(self) -> int:
        """How many generations of the group its threads have been in."""
        return len(self._generations)

    @property
    def records_per_second(self) -> float | None:
        """Records processed per second over the last minute; None = not yet known."""
        return self._records.per_second

    @property
    def busy_ratio(self) -> float | None:
        """The fraction of the last minute in which the threads did not wait for records, 0 to 1; None = not yet known."""
        waited, lived = self._waited.per_second, self._lived.per_second
        if waited is None or not lived:
            return None
        return min(1.0, max(0.0, 1.0 - waited / lived))

    def eta_s(self, remaining: int | None) -> float | None:
        """Return how many seconds it takes to restore this many changelog records at the current speed; None = unknown."""
        if remaining == 0:
            return 0.0
        speed = self._restored.per_second
        return remaining / speed if remaining is not None and speed else None

    # Disk

    def _measure_storage(self) -> None:
        try:
            volume = os.statvfs(self._directory)
            used = volume.f_blocks - volume.f_bfree
            total = used + volume.f_bavail
            self.storage_used_percent = 100.0 * used / total if total else None
            self.storage_bytes = _size(self._directory)
        except OSError as error:
            self.storage_used_percent = self.storage_bytes = None
            _log.debug("%s cannot be measured: %s", self._directory, error)


def _size(folder: Path) -> int:
    """Return how many bytes a folder's files take on disk, ignoring files that vanish meanwhile."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512  # noqa: PTH118 (thousands of files)
            except OSError:
                continue
    return total


class LoopProgress:
    """The progress of one thread's loop; written by that thread only, except for when it gives up.

    A loop that makes no progress is stuck in user code, unless it waits for a broker: every such wait has its own limit
    (`task.timeout.ms`), and restarting the process would not end it. So the two are distinguished. The thread writes plain
    attributes and others read them, without a lock. Ending the thread limits all its waits (`give_up_in`), so unreachable
    brokers do not delay closing.

    >>> progress = LoopProgress()
    >>> with progress.waiting_for("the group"):
    ...     progress.waits_for
    'the group'
    >>> progress.waits_for is None, progress.age_ms() < 60_000
    (True, True)
    """

    def __init__(self) -> None:
        self._since = self._began = time.monotonic()
        self._ended: float | None = None
        self._thread = 0
        self.where: str | None = None
        """The user's function in which the loop has been for a second or more; None = there is none, or it is unknown."""
        self.waited_s = 0.0
        """How long the thread waited for records, with nothing to do."""
        self.waits_for: str | None = None
        """The answer from a broker that the thread is waiting for; None while it is not waiting."""
        self.committed_s: float | None = None
        """When everything processed was last committed, by `time.monotonic`; None = never."""
        self.gives_up_s = math.inf
        """When it stops waiting for brokers, by `time.monotonic`."""

    def give_up_in(self, seconds: float) -> None:
        """Limit how long the thread waits for brokers in all; an earlier limit stays. May be called in any thread."""
        self.gives_up_s = min(self.gives_up_s, time.monotonic() + seconds)

    def left_s(self, at_least: float) -> float:
        """Return how long the thread may still wait for brokers, or `at_least` if that is more."""
        return max(at_least, self.gives_up_s - time.monotonic())

    @property
    def given_up(self) -> bool:
        """Whether the thread has stopped waiting for brokers."""
        return time.monotonic() >= self.gives_up_s

    def touch(self) -> None:
        """Note that the loop has made progress."""
        self._since = time.monotonic()
        self._thread = threading.get_ident()
        self.where = None

    def look(self) -> None:
        """See where the thread is, if its loop takes long; for another thread, about once a second."""
        if self.age_ms() > 1000 * _SLOW_S and self.waits_for is None and self._ended is None:
            self.where = user_function(self._thread)

    def committed(self) -> None:
        """Note that everything processed is committed."""
        self.committed_s = time.monotonic()

    def ended(self) -> None:
        """Note that the thread has ended."""
        self._ended = time.monotonic()

    def lived_s(self) -> float:
        """Return how long the thread has been alive, in seconds."""
        return (time.monotonic() if self._ended is None else self._ended) - self._began

    def age_ms(self) -> int:
        """Return how long ago the loop last made progress, in ms."""
        return int((time.monotonic() - self._since) * 1000)

    def commit_age_ms(self) -> int | None:
        """Return how long ago everything was committed, in ms; None = never."""
        return None if self.committed_s is None else int((time.monotonic() - self.committed_s) * 1000)

    @contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Mark this block as waiting for a broker; its end counts as progress."""
        outer, self.waits_for = self.waits_for, what
        try:
            yield
        finally:
            self._since = time.monotonic()
            self.waits_for = outer


def user_function(thread: int | None) -> str | None:
    """Return the function that Millrace has called in a thread, with its file and line; None if it is in none.

    Args:
        thread: its `ident`.
    """
    frame = sys._current_frames().get(-1 if thread is None else thread)  # noqa: SLF001 (there is no other name for it)
    inner = None
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("millrace."):
        inner, frame = frame, frame.f_back
    if inner is None or frame is None:
        return None
    return f"{inner.f_code.co_qualname} ({Path(inner.f_code.co_filename).name}:{inner.f_lineno})"
