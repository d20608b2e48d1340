"""Instances of one application in Java or Python, each in its own process: `java/Instance.java` and `instance.py`.

Both are given the same settings. Java runs with a heap of 1 GB and otherwise its defaults. The processes end with the benchmark.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks.process_tree import peak_mib
from tests.java_programs import compiled_java
from tests.waiting import wait_until

from millrace.dev.jars import Bundle, resolve
from millrace.dev.java import find_java, join_class_path

HERE = Path(__file__).parent
LANGUAGES = ("java", "python")
HEARTBEAT_WITH_STANDBYS_MS = 500
"""`heartbeat.interval.ms` as a manifest with standbys sets it: members learn of a rebalance from the answer to a heartbeat."""


@functools.cache
def java_command(main_class: str) -> tuple[str, ...]:
    """Return the command of a Java program, after compiling it."""
    jars = resolve(Bundle.KAFKA_STREAMS)
    classes = compiled_java([HERE / "java" / f"{main_class}.java"], jars)
    return (str(find_java().executable), "-Xmx1g", "-cp", join_class_path([classes, *jars]), main_class)


def command_of(language: str) -> tuple[str, ...]:
    """Return the command of an instance."""
    return java_command("Instance") if language == "java" else (sys.executable, str(HERE / "instance.py"))


class Instance:
    """One process; a context manager that kills it.

    Args:
        language: `java` or `python`.
        name: what it writes to the output, and its client id.
        settings: of the application; `state.dir` is a directory of this name.
        directory: for its state and its log.
        command: of the process, if it is another program.
    """

    def __init__(
        self,
        language: str,
        name: str,
        settings: Mapping[str, object],
        directory: Path,
        *,
        command: Sequence[str] = (),
    ) -> None:
        self.language, self.name = language, name
        own = {**settings, "client.id": name, "name": name, "state.dir": directory / name}
        self.log_path = directory / f"{name}.log"
        self.reports: list[tuple[float, dict[str, Any]]] = []
        """What it has reported, with the (monotonic) time."""
        self._latest: dict[str, Any] = {}
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [*(command or command_of(language)), *(f"{key}={value}" for key, value in own.items())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                report = json.loads(line)
                self.reports.append((time.monotonic(), report))
                self._latest.update(report)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    def last(self, key: str) -> Any:
        """Return the latest report of something, or None."""
        return self._latest.get(key)

    def active(self) -> set[int]:
        """Return the partitions of its active tasks."""
        return {int(task.partition("_")[2]) for task in self.last("active") or ()}

    def standby(self) -> set[int]:
        """Return the partitions of its standbys and warm-ups."""
        return {int(task.partition("_")[2]) for task in self.last("standby") or ()}

    def wait(self, condition: Callable[[Instance], Any], what: str, timeout_s: float) -> Any:
        """Wait until it has reported something."""
        return wait_until(
            lambda: condition(self),
            lambda: f"{self}: {what}\n{self.log()}",
            timeout_s,
            meanwhile=self.check,
            error=SystemExit,
        )

    def check(self) -> None:
        """End the benchmark if the instance has ended or failed."""
        if self.process.poll() is not None or self.last("state") in {"ERROR", "PENDING_ERROR"}:
            raise SystemExit(f"{self} has failed\n{self.log()}")

    def log(self) -> str:
        """Return the end of its log."""
        return self.log_path.read_text(errors="replace")[-4000:]

    def ask(self, command: str, timeout_s: float) -> dict[str, Any]:
        """Return the answer to a command: `check` or `lag`."""
        assert self.process.stdin is not None
        known = len(self.reports)
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        answers: list[dict[str, Any]] = []

        def answered(_: Instance) -> bool:
            answers[:] = [report for _, report in self.reports[known:] if command in report]
            return bool(answers)

        self.wait(answered, f"answers {command}", timeout_s)
        return answers[0][command]

    def peak_mib(self) -> float:
        """Return the peak memory of its process and of those below it."""
        return peak_mib(self.process.pid)

    def kill(self) -> None:
        """Kill it and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = 120.0) -> None:
        """Let it commit, leave the group and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.process.wait(timeout_s) != 0:
            raise SystemExit(f"{self} has failed\n{self.log()}")

    def __str__(self) -> str:
        return f"{self.language} instance {self.name}"
