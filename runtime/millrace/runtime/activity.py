"""What an instance has done since it started and how fast, beyond the counters that its threads keep while they live.

`/status` is a snapshot that waits for nothing, so what takes time to measure (rates, how full the disk is) is measured once in
a while by the housekeeping thread and kept here. Counters of threads that ended are added up here, so that totals only grow.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.runtime.rates import RateMeter
from millrace.runtime.stream_thread import StreamThread

__all__ = ["Activity", "Totals"]

_log = logging.getLogger(__name__)
_WINDOW_S: Final = 60.0
_RESTORE_WINDOW_S: Final = 15.0
_STORAGE_EVERY_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters of stream threads, added up."""

    records: int = 0
    commits: int = 0
    restored: int = 0
    """Changelog records applied to stores."""
    waited_s: float = 0.0
    """Time in which threads waited for records, with nothing to do."""
    lived_s: float = 0.0
    """Time in which threads have lived."""

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.records + other.records,
            self.commits + other.commits,
            self.restored + other.restored,
            self.waited_s + other.waited_s,
            self.lived_s + other.lived_s,
        )

    @classmethod
    def of(cls, thread: StreamThread) -> Totals:
        """Return the counters of one thread."""
        resources, progress = thread.resources, thread.progress
        if resources is None:
            return cls()
        tasks = resources.tasks
        return cls(
            tasks.records_total,
            tasks.commits_total,
            resources.updater.restored_total,
            progress.waited_s,
            progress.lived_s(),
        )


class Activity:
    """Totals, rates and disk usage of one instance.

    Args:
        directory: where its state is; measured as far as it exists.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._past = Totals()
        self._generations: set[int] = set()
        self._records, self._restored = RateMeter(_WINDOW_S), RateMeter(_RESTORE_WINDOW_S)
        self._waited, self._lived = RateMeter(_WINDOW_S), RateMeter(_WINDOW_S)
        self._storage_measured_s: float | None = None
        self.storage_used_percent: float | None = None
        """How full the file system of the state directory is, as `df` counts; None = not known."""
        self.storage_bytes: int | None = None
        """What the application's state takes on disk; None = not known."""

    # Told by the client and its threads

    def ended(self, thread: StreamThread) -> None:
        """Keep the counters of a thread that is not looked at any more."""
        self._past += Totals.of(thread)

    def joined(self, generation: int) -> None:
        """Note that a thread was given an assignment in a generation of the group."""
        self._generations.add(generation)

    def measure(self, threads: Iterable[StreamThread]) -> None:
        """Take the readings of this moment; call it about once a second."""
        now, totals = time.monotonic(), self.totals(threads)
        self._records.add(now, totals.records)
        self._restored.add(now, totals.restored)
        self._waited.add(now, totals.waited_s)
        self._lived.add(now, totals.lived_s)
        if self._storage_measured_s is None or now - self._storage_measured_s >= _STORAGE_EVERY_S:
            self._storage_measured_s = now
            self._measure_storage()

    # Asked for status

    def totals(self, threads: Iterable[StreamThread]) -> Totals:
        """Return the counters since the start, those of ended threads included."""
        return sum(map(Totals.of, threads), self._past)

    @property
    def rebalances(self) -> int:
        """Generations of the group that its threads have been in."""
        return len(self._generations)

    @property
    def records_per_second(self) -> float | None:
        """Records processed per second over the last minute; None = not known yet."""
        return self._records.per_second

    @property
    def busy_ratio(self) -> float | None:
        """Which part of the last minute the threads did not wait for records, 0 to 1; None = not known yet."""
        waited, lived = self._waited.per_second, self._lived.per_second
        if waited is None or not lived:
            return None
        return min(1.0, max(0.0, 1.0 - waited / lived))

    def eta_s(self, remaining: int | None) -> float | None:
        """Return in how many seconds this many changelog records will be restored at the present speed; None = not known."""
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
    """Return the bytes that a folder's files take on disk; files that vanish meanwhile do not count."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512  # noqa: PTH118 (thousands of files)
            except OSError:
                continue
    return total
