"""A prototype of an application that gives each of its stream threads a process: a parent with several `millrace_programs.py`.

The parent starts the processes, passes on when to begin and to end, and adds up what they report. That is the least that an
instance of several processes needs; it has no queries, handlers, listeners or metrics, which would all have to come from and go
to other processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.process import say

_SAMPLE_S = 0.02


class _Child:
    """One process with one stream thread."""

    def __init__(self, number: int, settings: dict[str, str]) -> None:
        own = {
            **settings,
            "client.id": f"{settings['client.id']}-{number}",
            "state.dir": str(Path(settings["state.dir"]) / str(number)),
        }
        self.latest: dict[str, Any] = {}
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("millrace_programs.py")),
                *(f"{k}={v}" for k, v in own.items()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.latest.update(json.loads(line))

    def begin(self) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        self.process.stdin.write("start\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Let it commit, leave the group and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()


def main(arguments: list[str]) -> int:
    """Run until standard input ends."""
    settings = dict(argument.split("=", 1) for argument in arguments)
    children = [_Child(number, settings) for number in range(int(settings.pop("processes")))]
    while not all(child.latest.get("ready") for child in children):
        time.sleep(_SAMPLE_S)
    say(ready=True)
    if not sys.stdin.readline():
        sys.exit("The benchmark has ended")
    for child in children:
        child.begin()
    threading.Thread(target=_watch, args=(children,), daemon=True).start()
    sys.stdin.read()
    for child in children:
        child.end()
    exit_codes = [child.process.wait() for child in children]
    for child in children:
        child.reader.join()
    reports = [child.latest for child in children]
    own = time.process_time()
    say(
        began=min(report["began"] for report in reports),
        ended=max(report["ended"] for report in reports),
        cpu_seconds=own + sum(report["cpu_seconds"] for report in reports),
        whole_cpu_seconds=own + sum(report["whole_cpu_seconds"] for report in reports),
    )
    return 1 if any(exit_codes) else 0


def _watch(children: list[_Child]) -> None:
    last = 0
    while True:
        now = sum(child.latest.get("processed", 0) for child in children)
        if now != last:
            say(processed=now)
            last = now
        if any(child.process.poll() for child in children):
            say(state="ERROR")
        time.sleep(_SAMPLE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
