"""One replica of the local host: a process that is started again, later each time, when it ends by itself.

States: `WAITING` (to be started at a time) → `RUNNING` → back to `WAITING` when it dies, or `FAILED` when it says that starting
again is of no use (exit code 2: what the user wrote is wrong); `STOPPING` and `STOPPED` once it has been told to end.

A replica's standard input is a pipe from the host that nothing is ever written to: its end tells the replica that the host is
gone, however the host ended, so that no replica is left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

WRONG_INPUT = 2
FIRST_BACK_OFF_S = 0.5
LONGEST_BACK_OFF_S = 30.0
STABLE_AFTER_S = 60.0
"""A replica that ran this long starts over with the first back-off."""


class ReplicaState(StrEnum):
    """What the host does with a replica."""

    WAITING = "waiting"
    RUNNING = "running"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Replica:
    """A replica's process through all its lives. Call `poll` often."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        clock: Callable[[], float],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Describe a replica; the first `poll` starts it.

        Args:
            name: Its name, for people.
            command: Its command line.
            log: Gets its output, appended.
            clock: Seconds, steadily growing.
            environment: Variables over those of this process.
        """
        self.name = name
        self.state = ReplicaState.WAITING
        self.restarts = 0
        self.exit_code: int | None = None
        self._command = list(command)
        self._log = log
        self._clock = clock
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at = clock()
        self._started_at = clock()
        self._back_off_s = FIRST_BACK_OFF_S

    @property
    def pid(self) -> int | None:
        """The id of the running process, if one runs."""
        return self._process.pid if self._process else None

    @property
    def starts_in_s(self) -> float:
        """How long until it is started again."""
        return max(0.0, self._start_at - self._clock()) if self.state is ReplicaState.WAITING else 0.0

    def poll(self) -> bool:
        """Start what is due, notice what has ended; returns whether anything has changed."""
        now = self._clock()
        if self.state is ReplicaState.WAITING and now >= self._start_at:
            self._start(now)
            return True
        if self._process is None or self._process.poll() is None:
            return False
        self._ended(now)
        return True

    def stop(self) -> None:
        """Tell it to commit and end (SIGTERM); `poll` notices when it has."""
        if self.state is ReplicaState.RUNNING and self._process:
            self.state = ReplicaState.STOPPING
            self._signal(signal.SIGTERM)
        elif self._process is None and self.state is not ReplicaState.FAILED:
            self.state = ReplicaState.STOPPED

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        self._signal(signal.SIGKILL)

    def last_words(self) -> str:
        """Return the last line that it logged, preferring one that names an error."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 16_384))
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        filled = [line for line in lines if line.strip()]
        return next((line for line in reversed(filled) if line.startswith("Error:")), filled[-1] if filled else "")

    def _start(self, now: float) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 (the command is built by the local host)
                self._command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | self._environment,
            )
        self._started_at = now
        self.state = ReplicaState.RUNNING

    def _ended(self, now: float) -> None:
        assert self._process
        self.exit_code = self._process.returncode
        if self._process.stdin:
            self._process.stdin.close()
        self._process = None
        if self.state is ReplicaState.STOPPING:
            self.state = ReplicaState.STOPPED
        elif self.exit_code == WRONG_INPUT:
            self.state = ReplicaState.FAILED
        else:
            if now - self._started_at >= STABLE_AFTER_S:
                self._back_off_s = FIRST_BACK_OFF_S
            self.state = ReplicaState.WAITING
            self.restarts += 1
            self._start_at = now + self._back_off_s
            self._back_off_s = min(2 * self._back_off_s, LONGEST_BACK_OFF_S)

    def _signal(self, number: signal.Signals) -> None:
        if self._process and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
