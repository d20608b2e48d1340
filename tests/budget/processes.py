"""Counts the expensive processes below this one, and their processor time, by looking at /proc several times a second.

Looking from outside counts what any process of the run starts, whatever starts it, without changing it. A process names the
test that started it by pytest's variable PYTEST_CURRENT_TEST, which its environment has had since its start.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_INTERVAL_S = 0.2  # what is counted lives for longer
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_RUN = "MILLRACE_TEST_RUN"
_NO_TEST = "outside of tests"
_PROBES = {"-version", "--list-modules"}
"""Arguments with which Java only says what it is: whether it is seen at all depends on how busy the machine is."""


@dataclass(slots=True)
class Process:
    """A process that belongs to the run."""

    pid: int
    test: str
    kinds: set[str] = field(default_factory=set)
    cpu_s: float = 0.0
    command: bytes = b""


class ProcessCounter:
    """Watches all processes below this one in a thread, from `start` to `stop`.

    A process belongs to the run if its parent does, or if it has the run's mark in its environment: those that outlive their
    parents on purpose, such as the brokers that several workers share, have lost the first but not the second.
    """

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self._run_before: str | None = None
        self._known: dict[tuple[int, int], Process | None] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="process-counter", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._run_before = os.environ.get(_RUN)
        os.environ[_RUN] = str(os.getpid())
        self._known[os.getpid(), _start_of(_stat(os.getpid()))] = Process(os.getpid(), _NO_TEST)
        self._thread.start()

    def stop(self) -> None:
        """Look a last time and end."""
        self._stopped.set()
        self._thread.join()
        if self._run_before is None:
            del os.environ[_RUN]
        else:
            os.environ[_RUN] = self._run_before

    def _watch(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            self._look()
        self._look()

    def _look(self) -> None:
        stats = dict(_all_stats())
        starts = {pid: _start_of(stat) for pid, stat in stats.items()}
        for pid in sorted(stats, key=starts.__getitem__):  # parents before their children
            at = (pid, starts[pid])
            if at not in self._known:
                parent_pid = int(stats[pid][1])
                parent = self._known.get((parent_pid, starts.get(parent_pid, -1)))
                self._known[at] = self._new(pid, parent)
            process = self._known[at]
            if process is not None:
                process.cpu_s = (int(stats[pid][11]) + int(stats[pid][12])) / _TICKS_PER_S
                self._classify(process)

    def _new(self, pid: int, parent: Process | None) -> Process | None:
        environment = _environment(pid)
        if parent is None and environment.get(_RUN) != str(os.getpid()):
            return None
        test = _test_in(environment, parent.test if parent else _NO_TEST)
        # Until it executes a program of its own, a process has its parent's command line: so forks are not counted.
        process = Process(pid, test, command=parent.command if parent else b"")
        self.processes.append(process)
        return process

    def _classify(self, process: Process) -> None:
        command = _read(process.pid, "cmdline")
        if command and command != process.command:
            process.command = command
            # Seen between its fork and its exec, it had the environment with which its parent had been started.
            process.test = _test_in(_environment(process.pid), process.test)
            process.kinds.update(kinds_of(command.decode(errors="replace").split("\0")))


def _test_in(environment: Mapping[str, str], otherwise: str) -> str:
    return environment.get("PYTEST_CURRENT_TEST", otherwise).removesuffix(" (call)")


def kinds_of(arguments: list[str]) -> Iterator[str]:
    """Yield the kinds of expensive processes, if any, to which a command line belongs."""
    program = Path(arguments[0]).name
    if program == "java":
        if _PROBES & set(arguments):
            return
        if "kafka.Kafka" in arguments:
            yield "brokers"
        elif "org.apache.spark.launcher.Main" in arguments:
            return  # it ends at once, having said how to start the next
        elif "org.apache.spark.deploy.SparkSubmit" in arguments:
            yield "Spark's Java"
        else:
            yield "other Java"
    elif "kube-apiserver" in {program, *arguments[1:2]}:
        yield "control planes"
    elif program.startswith("python"):
        yield "cold Python"
        names = {Path(argument).name for argument in arguments[1:]}
        if names & {"millrace_operator", "operator_process.py"}:
            yield "operator starts"
        if "mypy" in names:
            yield "type checks"
        if "mkdocs" in names:
            yield "site builds"
    elif program == "node" and any("pyright" in argument for argument in arguments):
        yield "type checks"


def _all_stats() -> Iterator[tuple[int, list[bytes]]]:
    for name in os.listdir("/proc"):  # noqa: PTH208 (five times a second: names only)
        if name.isdigit() and (stat := _stat(int(name))):
            yield int(name), stat


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on, or nothing."""
    return _read(pid, "stat").rpartition(b") ")[2].split()


def _start_of(stat: list[bytes]) -> int:
    return int(stat[19])


def _environment(pid: int) -> Mapping[str, str]:
    pairs = (each.partition("=") for each in _read(pid, "environ").decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs}


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 (many times a second)
            return file.read()
    except OSError:  # it has ended
        return b""
