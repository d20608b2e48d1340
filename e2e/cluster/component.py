"""One program of the cluster: its command line, its log, and its process inside the machine.

This process starts one outside the machine that waits for the real one inside; signals go to the real one. Both are recorded in a
file, so that other processes can kill a component too.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import wait_until

from e2e.cluster.errors import ClusterError
from e2e.cluster.machine import Machine

_TAIL_LINES = 30
_KILL_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Component:
    """A program that can be started, killed and started again."""

    name: str
    command: Sequence[str]
    machine: Machine
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The log of all its runs."""
        return self.directory / f"{self.name}.log"

    def start(self) -> None:
        """Start it; it may not be ready yet."""
        self._process = self.machine.spawn(self.command, self.log, self.environment)
        self._pid_file.write_text(str(self._process.pid))

    def kill(self) -> None:
        """Kill it as a crash would (SIGKILL), and wait."""
        pid = self._pid_inside()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: self._gone(pid) or None, f"{self.name} to die", _KILL_TIMEOUT_S, error=ClusterError)
        self._forget()

    @property
    def running(self) -> bool:
        """Whether its process is running."""
        return self._pid_inside() is not None

    @property
    def ended(self) -> bool:
        """Whether the process that was started last has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def tail(self) -> str:
        """Return the last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:] if self.log.exists() else []
        return "\n".join([f"The end of {self.log}:", *lines])

    @property
    def _pid_file(self) -> Path:
        return self.directory / f"{self.name}.pid"

    def _pid_inside(self) -> int | None:
        """Return the host's id of the process itself: the only child of the one that waits outside."""
        try:
            waiting = int(self._pid_file.read_text())
            children = Path(f"/proc/{waiting}/task/{waiting}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return int(children[0]) if children else None

    def _gone(self, pid: int) -> bool:
        return self._pid_inside() != pid

    def _forget(self) -> None:
        if self._process:
            self._process.wait()
            self._process = None
        self._pid_file.unlink(missing_ok=True)
