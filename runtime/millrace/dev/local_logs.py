"""The logs of a local host's replicas, printed together: each line under its replica's name, if there are several."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

from millrace.dev.local_directory import LocalDirectory

_POLL_S = 0.2


class _Log:
    """A log file that is read in whole lines."""

    def __init__(self, path: Path, *, at_start: bool) -> None:
        self._path = path
        self._rest = b""
        self._position = 0
        self.at_start = at_start

    def lines(self) -> list[str]:
        """Return the lines that have been completed since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            *lines, self._rest = (self._rest + file.read()).split(b"\n")
            self._position = file.tell()
        return [line.decode(errors="replace") for line in lines]


def print_logs(
    directory: LocalDirectory, replicas: Collection[str], *, tail: int, follow: bool, show: Callable[[str], None]
) -> None:
    """Print the ends of logs and, if they are followed, new lines until the host ends.

    Args:
        directory: Where the logs are.
        replicas: Whose logs; all if empty, even of replicas that start later.
        tail: How many existing lines of each are printed.
        follow: Whether to wait for more.
        show: Called with each line.
    """
    logs: dict[str, _Log] = {}
    first = True
    while True:
        running = follow and directory.running_host() is not None  # before reading: what is logged last is printed too
        found = {name: path for name, path in directory.logs().items() if not replicas or name in replicas}
        for name, path in found.items():
            log = logs.setdefault(name, _Log(path, at_start=first))
            lines = log.lines()
            if log.at_start:
                lines, log.at_start = list(deque(lines, tail)), False
            for line in lines:
                show(f"{name} | {line}" if len(found) > 1 else line)
        if not running:
            return
        first = False
        time.sleep(_POLL_S)
