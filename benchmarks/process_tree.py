"""CPU and memory of a process and of all processes below it, from Linux' /proc."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Self

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SAMPLE_S = 1.0


def cpu_seconds(root: int | None = None) -> float:
    """Return the CPU seconds of a process (by default this one) and of all below it, those that have ended included."""
    return sum(sum(map(int, _stat(pid)[11:15])) for pid in _tree(os.getpid() if root is None else root)) / _TICKS_PER_S


def busy_seconds() -> float:
    """Return the CPU seconds that all programs on this machine have used since it started."""
    user, nice, system, _idle, _waiting, *interrupts = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    return sum(map(int, (user, nice, system, *interrupts))) / _TICKS_PER_S


def peak_mib(root: int) -> float:
    """Return the sum of the largest resident sets of a process and of all below it."""
    return sum(map(_peak_kib, _tree(root))) / 1024


class PeakMemory:
    """Samples the memory of a process and of all below it until the `with` block ends; shared pages count once."""

    def __init__(self, root: int) -> None:
        self.mib = 0.0
        self._root = root
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self.mib = max(self.mib, sum(map(_pss_kib, _tree(self._root))) / 1024)


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat[1] != "0":
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _stat(pid: int) -> list[str]:
    """Return what follows the name in /proc/PID/stat, which may have spaces; zeros if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 20


def _pss_kib(pid: int) -> int:
    return _kib(pid, "smaps_rollup", "Pss:")


def _peak_kib(pid: int) -> int:
    return _kib(pid, "status", "VmHWM:")


def _kib(pid: int, file: str, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)
