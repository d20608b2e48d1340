"""The application's instances: processes that are killed, frozen, stopped and restarted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
STOP_TIMEOUT_S = 150.0
SAMPLES = "samples.csv"
"""The file in a phase's directory to which all its instances write what they use."""
_OUR_ENDS = {0, -signal.SIGKILL, -signal.SIGTERM}
"""The last of them: it was told to stop before it could handle signals."""
_LINES = {
    "aborts": re.compile(r"WARNING .*(processed again|transaction is aborted)"),
    "fenced": re.compile(r"WARNING .*now belong to another member"),
    "threads replaced": re.compile(r"died \(to do: "),
    "undelivered": re.compile(r"WARNING .*was not written: Local: Message timed out"),
    "refused": re.compile(r"(WARNING|ERROR) .*was not written: Broker: "),
    "wiped": re.compile(r"\bwiped\b"),
}
_REFUSED = re.compile(r"died .*(MSG_SIZE_TOO_LARGE|larger than the maximum|Message size)")


class Replica:
    """One instance and the status it reports.

    Args:
        name: its name, which is also its `group.instance.id` if it is static.
        application: the application whose topology it runs.
        config: the settings that all instances share.
        directory: for state, log and status.
        static: whether it is a static member.
    """

    def __init__(
        self, name: str, application: str, config: Mapping[str, Any], directory: Path, *, static: bool
    ) -> None:
        self.name = name
        self.process: subprocess.Popen[bytes] | None = None
        self.frozen = False
        self.problems: list[str] = []
        self.starts = 0
        self.state_directory = directory / name
        self._start_lock = threading.Lock()
        self._excuses: list[Callable[[str], object]] = []
        self._stopping = False
        self._status_path = directory / f"{name}.status"
        self.log_path = directory / f"{name}.log"
        self._spec = {
            "application": application,
            "samples": str(directory / SAMPLES),
            "config": {
                **config,
                "state.dir": str(self.state_directory),
                "client.id": name,
                "__status.file__": str(self._status_path),
                **({"group.instance.id": name} if static else {}),
            },
        }
        self._seen: dict[int, dict[str, int]] = {}
        self._log_read = 0
        self.counts: Counter[str] = Counter()

    @property
    def alive(self) -> bool:
        """Whether its process is running."""
        return self.process is not None and self.process.poll() is None

    @property
    def works(self) -> bool:
        """Whether it is far enough along to take signals, and is neither frozen, told to stop nor ended."""
        return self.alive and not self.frozen and not self._stopping and self.status().get("pid") == self.process.pid

    @property
    def idle(self) -> bool:
        """Whether it is running and knows of nothing to process, including internal topics."""
        status = self.status()
        return self.works and status["state"] == "RUNNING" and status["lag"]["total"] == 0

    def start(self) -> None:
        """Start the process if it has ended; two overlapping faults may both request that."""
        with self._start_lock:
            if not self.alive:
                self._start()

    def _start(self) -> None:
        self.starts += 1
        self._stopping = False
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.replica", json.dumps(self._spec)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'runtime'}:{ROOT}"},
        )
        threading.Thread(target=self._keep_log, args=(self.process.stdout,), name="log", daemon=True).start()

    def _keep_log(self, output: IO[bytes]) -> None:
        # Not written by the process itself, so that its log continues when its disk is full.
        with output, self.log_path.open("ab") as log:
            for line in output:
                log.write(line)
                log.flush()

    def excuse(self, excused: Callable[[str], object]) -> None:
        """Do not report lines of the log for which a function returns true: they are consequences of a fault."""
        self._excuses.append(excused)

    def fill_disk(self) -> Callable[[], None]:
        """Let every write to a file fail in its process, as with a full disk, and return a function that ends that."""
        assert self.process is not None
        pid = self.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))

        def free() -> None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

        return free

    def signal(self, number: int) -> None:
        """Send a signal, if there is a process."""
        if self.alive:
            self.process.send_signal(number)
            self.frozen = {signal.SIGSTOP: True, signal.SIGCONT: False}.get(number, self.frozen)

    def kill(self) -> None:
        """End it like a crash."""
        self.signal(signal.SIGKILL)
        self.frozen = False
        if self.process is not None:
            self.process.wait()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End it with SIGTERM; if it does not end in time, that is a problem, and it is killed."""
        self._stopping = True  # a signal during the very end of a Python process would kill it
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            if self.process is not None:
                self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.problems.append(f"{self.name} did not stop in {timeout_s:.0f} s: {self.tail()}")
            self.kill()

    def check(self) -> None:
        """Record it as a problem if it ended by itself; if a fault explains that, start it again, as a kubelet would."""
        code = None if self.process is None else self.process.poll()
        if code is None or code in _OUR_ENDS:
            return
        self.process = None
        tail = self.tail()
        if any(excused(tail.splitlines()[-1]) for excused in self._excuses):
            self.start()
        else:
            self.problems.append(f"{self.name} ended by itself with exit code {code}: {tail}")

    def status(self) -> dict[str, Any]:
        """Return its last status, or an empty one."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return json.loads(self._status_path.read_text())
        return {}

    def figures(self) -> dict[str, int]:
        """Return its counts over all its processes, and what its log shows."""
        status = self.status()
        if status:
            self._seen[status["pid"]] = {
                "processed": status["processing"]["records"],
                "commits": status["processing"]["commits"],
                "rebalances": status["group"]["rebalances"],
                "restored": status["restoration"]["restored_records"],
            }
        self._read_log()
        total: Counter[str] = Counter(self.counts)
        for seen in self._seen.values():
            total.update(seen)
        return dict(total)

    def tail(self, lines: int = 15) -> str:
        """Return the end of its log."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n    ".join(["", *text.splitlines()[-lines:]])

    def summary(self) -> str:
        """Return its state in a few words."""
        if not self.alive:
            return "down"
        if self.frozen:
            return "frozen"
        status = self.status()
        age_s = time.time() - status["time_ms"] / 1000 if status else 0.0
        return f"{status.get('state', 'starting')} {len(status.get('tasks', ()))} tasks" + (
            f" ({age_s:.0f} s ago)" if age_s > 5 else ""
        )

    def _read_log(self) -> None:
        if not self.log_path.exists():
            return
        with self.log_path.open("rb") as log:
            log.seek(self._log_read)
            data = log.read()
        complete = data.rfind(b"\n") + 1
        self._log_read += complete
        for line in data[:complete].decode(errors="replace").splitlines():
            self.counts.update(name for name, pattern in _LINES.items() if pattern.search(line))
            if any(excused(line) for excused in self._excuses):
                continue
            if "died (to do: " in line and not _REFUSED.search(line):
                self.problems.append(f"A thread of {self.name} died: {line}")
            elif "wiped" in line:
                self.problems.append(f"{self.name} wiped a task's state: {line}")
