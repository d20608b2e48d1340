"""What instances use over time: memory, file descriptors, threads and open iterators, as CSV, as a picture and as a verdict.

A replica appends a line about itself every two seconds. One instance is never ended by the faults, so its process is as old as
the phase, and whatever leaks shows there. Samples of a process with as many stream threads and open databases are compared:
the *lower* quartile in the last third of the time must not exceed the *upper* quartile in the first by more than the slack.
Values that go up and down pass, values that only go up do not.
"""

from __future__ import annotations

import contextlib
import csv
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any

from millrace.state import rocksdb

_WARM_UP_S = 45.0
"""Until a process is this old, it is still loading code and filling caches."""
_FEWEST = 8
"""With fewer samples in a third, nothing is said."""
_COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e")
_GAP_S = 15.0
"""A line is interrupted where there are no samples for this long."""

SLACK: dict[str, tuple[float, float]] = {
    "rss_mb": (0.10, 32.0),
    "descriptors": (0.15, 40.0),
    "threads": (0.10, 4.0),
    "iterators": (0.0, 8.0),
}
"""What each may grow by: a fraction, and a number in addition. Stores fill write buffers and files while a phase lasts."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process uses at one moment."""

    time_s: float
    replica: str
    pid: int
    age_s: float
    stream_threads: int
    databases: int
    """Open RocksDB databases: how many a task has depends on its sub-topology, and each has several files open."""
    rss_mb: float
    descriptors: int
    threads: int
    iterators: int


class Sampler:
    """Appends samples of its own process to a file.

    Args:
        path: the CSV file, which several processes may append to.
        replica: the name in the samples.
    """

    def __init__(self, path: Path, replica: str) -> None:
        self._path = path
        self._replica = replica
        self._began = time.monotonic()

    def sample(self, stream_threads: int) -> None:
        """Append a sample; nothing happens if the disk is full."""
        sample = Sample(
            time_s=round(time.time(), 1),
            replica=self._replica,
            pid=os.getpid(),
            age_s=round(time.monotonic() - self._began, 1),
            stream_threads=stream_threads,
            databases=_open_databases(),
            rss_mb=round(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
            descriptors=_entries("/proc/self/fd"),
            threads=_entries("/proc/self/task"),
            iterators=open_iterators(),
        )
        line = ",".join(map(str, astuple(sample))) + "\n"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except OSError:
            pass


def _open_databases() -> int:
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found += "/LOCK" in str(descriptor.readlink())
    return found


def _entries(directory: str) -> int:
    return sum(1 for _ in Path(directory).iterdir())


_rows = rocksdb._until
_open: set[object] = set()


def _counted(*arguments: Any) -> Iterator[tuple[bytes, bytes]]:
    mark = object()
    _open.add(mark)
    try:
        yield from _rows(*arguments)
    finally:
        _open.discard(mark)


def count_iterators() -> None:
    """Count iterators over RocksDB in this process from now on. Searching all objects for them would disturb other threads."""
    rocksdb._until = _counted


def open_iterators() -> int:
    """Return how many iterators over RocksDB have begun and not ended."""
    return len(_open)


def read_samples(path: Path) -> list[Sample]:
    """Read the samples that processes have appended; a line cut off by a kill is skipped."""
    types = [{"float": float, "int": int, "str": str}[str(field.type)] for field in fields(Sample)]
    with path.open(newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) == len(types)]
    return [Sample(*(convert(text) for convert, text in zip(types, row, strict=True))) for row in rows]


def grown(samples: Iterable[Sample]) -> tuple[list[str], list[str]]:
    """Return what has grown in a process, as problems, and what the comparison was, as notes."""
    problems, notes = [], []
    alike: dict[tuple[str, int, int, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.age_s >= _WARM_UP_S:
            alike[sample.replica, sample.pid, sample.stream_threads, sample.databases].append(sample)
    for (replica, pid, stream_threads, databases), each in sorted(alike.items()):
        third = (each[-1].age_s - each[0].age_s) / 3
        first = [sample for sample in each if sample.age_s <= each[0].age_s + third]
        last = [sample for sample in each if sample.age_s >= each[-1].age_s - third]
        if min(len(first), len(last)) < _FEWEST:
            continue
        for what, (fraction, more) in SLACK.items():
            upper = quantiles([getattr(sample, what) for sample in first])[2]
            lower = quantiles([getattr(sample, what) for sample in last])[0]
            text = (
                f"{what} of {replica} (pid {pid}, {stream_threads} stream threads, {databases} databases): upper quartile "
                f"{upper:g} in the first third, lower quartile {lower:g} in the last, {2 * third:.0f} s later"
            )
            (problems if lower > upper * (1 + fraction) + more else notes).append(text)
    return problems, notes


def write_csv(samples: Iterable[Sample], path: Path) -> None:
    """Write samples with a header."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Sample)])
        writer.writerows(astuple(sample) for sample in samples)


def picture(samples: Sequence[Sample], title: str) -> str:
    """Return an SVG with a plot for each figure, and a line for each process."""
    width, height, left, top = 1200, 190, 70, 40
    begin = min(sample.time_s for sample in samples)
    length = max(max(sample.time_s for sample in samples) - begin, 1.0)
    names = sorted({sample.replica for sample in samples})
    processes: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        processes[sample.replica, sample.pid].append(sample)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + left + 20}" height="{len(SLACK) * (height + 50) + top + 10}">',
        '<style>text {font: 12px sans-serif}</style><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="20" font-size="15">{escape(title)}</text>',
    ]
    for number, name in enumerate(names):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(
            f'<text x="{left + width - 90 * (len(names) - number)}" y="20" fill="{colour}">{escape(name)}</text>'
        )
    for row, what in enumerate(SLACK):
        base = top + row * (height + 50) + 20 + height
        most = max(1.0, *(float(getattr(sample, what)) for sample in samples))
        parts.append(f'<text x="{left}" y="{base - height - 6}">{what.replace("_", " ")}</text>')
        for part in range(5):
            y = base - height * part / 4
            parts.append(f'<path d="M{left} {y}h{width}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{most * part / 4:.4g}</text>')
            parts.append(
                f'<text x="{left + width * part / 4}" y="{base + 16}" text-anchor="middle">{length * part / 240:.1f} min</text>'
            )
        for (name, _), each in processes.items():
            path = [f"M{_at(each[0].time_s - begin, length, width, left)} {_up(each[0], what, most, height, base)}"]
            for before, sample in pairwise(each):
                pen = "L" if sample.time_s - before.time_s < _GAP_S else "M"
                path.append(
                    f"{pen}{_at(sample.time_s - begin, length, width, left)} {_up(sample, what, most, height, base)}"
                )
            colour = _COLOURS[names.index(name) % len(_COLOURS)]
            parts.append(f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.2"/>')
    return "\n".join([*parts, "</svg>", ""])


def _at(seconds: float, length: float, width: int, left: int) -> float:
    return round(left + width * seconds / length, 1)


def _up(sample: Sample, what: str, most: float, height: int, base: int) -> float:
    return round(base - height * float(getattr(sample, what)) / most, 1)
