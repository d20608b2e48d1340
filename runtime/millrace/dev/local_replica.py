"""One replica of the local host: a process that is restarted with a growing delay when it ends unexpectedly.

States: `WAITING` (for its start time) → `RUNNING` → back to `WAITING` when it dies, or `FAILED` if a restart cannot help
(exit code 2: the user's input is wrong) or is not allowed (`give_up`); `STOPPING` and `STOPPED` after `stop`.

A replica's standard input is a pipe from the host to which nothing is ever written: its end tells the replica that the host
is gone, even if it was killed, so that no replica is left behind.
"""

from __future__ import annotations

import contextlib
import json
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
"""After running this long, a replica starts over with the first back-off."""


class ReplicaState(StrEnum):
    """The state of a replica, from the host's view."""

    WAITING = "waiting"
    RUNNING = "running"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Replica:
    """A replica's process, across restarts. Call `poll` often."""

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
            log: Its output is appended to this file.
            clock: Monotonic seconds.
            environment: Variables in addition to this process's.
        """
        self.name = name
        self.state = ReplicaState.WAITING
        self.restarts = 0
        self.exit_code: int | None = None
        self.last_error = ""
        """Its last error when it ended unexpectedly, empty if it was killed; or why it is not restarted."""
        self._command = list(command)
        self._log = log
        self._clock = clock
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at = clock()
        self._started_at = clock()
        self._back_off_s = FIRST_BACK_OFF_S
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The id of the process, if it is running."""
        return self._process.pid if self._process else None

    @property
    def starts_in_s(self) -> float:
        """How long until it is restarted."""
        return max(0.0, self._start_at - self._clock()) if self.state is ReplicaState.WAITING else 0.0

    @property
    def is_due_again(self) -> bool:
        """Whether the next `poll` restarts it."""
        return self.restarts > 0 and self.state is ReplicaState.WAITING and self._clock() >= self._start_at

    def poll(self) -> bool:
        """Start the process if it is due, or notice that it has ended; return whether anything has changed."""
        now = self._clock()
        if self.state is ReplicaState.WAITING and now >= self._start_at:
            self._start(now)
            return True
        if self._process is None or self._process.poll() is None:
            return False
        self._ended(now)
        return True

    def stop(self) -> None:
        """Tell it to commit and end (SIGTERM); `poll` notices when it has ended."""
        if self.state is ReplicaState.RUNNING and self._process:
            self.state = ReplicaState.STOPPING
            self._signal(signal.SIGTERM)
        elif self._process is None and self.state is not ReplicaState.FAILED:
            self.state = ReplicaState.STOPPED

    def give_up(self, why: str) -> None:
        """Do not restart it."""
        self.state = ReplicaState.FAILED
        self.last_error = why

    def kill(self) -> None:
        """Kill it, like a crash (SIGKILL)."""
        self._signal(signal.SIGKILL)

    def last_words(self) -> str:
        """Return the last line that the process has logged since its start, or the last one that names an error."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(self._log_start, os.fstat(file.fileno()).st_size - 16_384))
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        said = [_read(line) for line in lines if line.strip()]
        errors = [message for is_error, message in said if is_error]
        return (errors or [message for _, message in said] or [""])[-1]

    def _start(self, now: float) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as output:
            self._log_start = output.tell()
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
            return
        self.last_error = self.last_words() if self.exit_code > 0 else ""
        if self.exit_code == WRONG_INPUT:
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


def _read(line: str) -> tuple[bool, str]:
    """Return whether a line of a log names an error, and its message; the log may be JSON."""
    try:
        record = json.loads(line)
        return record["level"] == "ERROR", record["message"]
    except (ValueError, TypeError, KeyError):
        return line.startswith("Error:"), line
