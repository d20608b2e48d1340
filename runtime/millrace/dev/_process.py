"""One broker's JVM as a process: started here, or found again after the process that started it has ended.

A process is identified by its id *and* its start time, so that a reused id is never signalled. A started JVM gets its own
session (Ctrl-C at the terminal does not reach it) and, unless it is detached, a watchdog that ends it when its owner ends.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from millrace.deadline import Deadline
from millrace.dev import _watchdog
from millrace.errors import DevKafkaError

_POLL_S = 0.02
_PAUSE_TIMEOUT_S = 60.0
_NOT_RUNNING = frozenset("TtZX")
"""The states (proc_pid_stat(5)) of a thread that is stopped or has ended."""
_OUTLIVING_CHILDREN: list[subprocess.Popen[bytes]] = []
"""Children meant to outlive this process, kept so that Python does not warn when they are garbage-collected."""


@atexit.register
def _let_outliving_go() -> None:
    """Keep Python from warning about them when it exits, too."""
    for child in _OUTLIVING_CHILDREN:
        if child.poll() is None:
            child.returncode = 0


class BrokerProcess:
    """A running or ended JVM."""

    def __init__(self, pid: int, started_at: str, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.started_at = started_at
        """The kernel's start time, in ticks since boot; empty without `/proc`."""
        self._child = child
        self._watchdog: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls, command: Sequence[str], directory: Path, log: Path, owner_pid: int | None, *, temporary: bool = False
    ) -> Self:
        """Start a JVM.

        Args:
            command: The command line.
            directory: Its working directory.
            log: Standard output and error are appended to it.
            owner_pid: The JVM is killed when this process ends; None leaves it running on its own.
            temporary: Whether the directory is removed too when the owner ends.
        """
        with log.open("ab") as output:
            child = subprocess.Popen(  # noqa: S603 (our command)
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = cls(child.pid, _stat(child.pid)[1], child)
        if owner_pid is not None:
            process._watchdog = subprocess.Popen(  # noqa: S603 (our command)
                [
                    *(sys.executable, "-I", "-S", _watchdog.__file__, str(owner_pid), str(child.pid)),
                    *([str(directory)] if temporary else []),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        if owner_pid != os.getpid():
            _OUTLIVING_CHILDREN.extend(filter(None, (child, process._watchdog)))
        return process

    @property
    def alive(self) -> bool:
        """Whether the JVM has not ended; it is alive even if it is stopped (SIGSTOP)."""
        if self._child:
            return self._child.poll() is None
        return is_running(self.pid, self.started_at)

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs or if this process did not start it."""
        return self._child.poll() if self._child else None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the JVM has not ended."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def pause(self) -> None:
        """Stop the JVM (SIGSTOP) and wait until every thread has stopped; without `/proc`, do not wait.

        Raises:
            DevKafkaError: A thread is still running after 60 s.
        """
        self.signal(signal.SIGSTOP)
        deadline = Deadline(_PAUSE_TIMEOUT_S)
        while self.alive and not _thread_states(self.pid) <= _NOT_RUNNING:
            if deadline.passed:
                message = f"Process {self.pid} is still running {_PAUSE_TIMEOUT_S:.0f} s after SIGSTOP"
                raise DevKafkaError(message)
            time.sleep(_POLL_S)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the JVM to end and return whether it did in time."""
        deadline = Deadline(timeout_s)
        while self.alive:
            if deadline.passed:
                return False
            time.sleep(_POLL_S)
        if self._watchdog:
            self._watchdog.wait()
            self._watchdog = None
        return True

    def kill(self) -> None:
        """Kill the JVM (SIGKILL) and wait until it is gone; up to 10 s if another process started it."""
        self.signal(signal.SIGKILL)
        self.wait(10.0 if self._child is None else math.inf)


def is_running(pid: int, started_at: str) -> bool:
    """Return whether the process with that id and start time is still running."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    state, now = _stat(pid)
    return state != "Z" and (not started_at or now == started_at)


def _stat(pid: int) -> tuple[str, str]:
    """Return the state of a process and its start time; both are empty without `/proc`."""
    try:
        fields = _fields(Path(f"/proc/{pid}/stat"))
    except OSError:
        return ("", "") if not Path("/proc/self/stat").exists() else ("Z", "")
    return fields[0], fields[19]


def _thread_states(pid: int) -> set[str]:
    states = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended in the meantime
            states.add(_fields(stat)[0])
    return states


def _fields(stat: Path) -> list[str]:
    return stat.read_text().rpartition(")")[2].split()
