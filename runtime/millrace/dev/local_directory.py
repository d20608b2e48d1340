"""Where the local host keeps the data of one manifest, and the file with which other commands find the host.

Everything is in one folder: the embedded Kafka's data, a state directory and a log for each replica, and `host.json` while a
host is running. To forget the application, delete the folder while nothing is running.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

import platformdirs

from millrace.deadline import Deadline
from millrace.errors import LocalHostError

_HOST_FILE = "host.json"
_LOCK_FILE = "host.lock"
_LOCK_TIMEOUT_S = 2.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica at one moment, as the table shows it; None if unknown."""

    name: str
    pid: int | None
    state: str
    tasks: int | None
    lag: int | None
    records_per_s: float | None
    restarts: int
    note: str


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A running host: its process, and the address of its Kafka."""

    pid: int
    manifest: str
    bootstrap_servers: str = ""
    serving: bool = False
    """Whether the replicas have been started."""
    replicas: tuple[ReplicaView, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalDirectory:
    """The paths of one application."""

    root: Path

    @classmethod
    def of(cls, name: str, directory: Path | None = None) -> LocalDirectory:
        """Return the folder of an application.

        Args:
            name: The manifest's `metadata.name`.
            directory: The folder; by default one of that name in the user's data directory.
        """
        return cls((directory or platformdirs.user_data_path("millrace") / "dev" / name).absolute())

    @property
    def kafka(self) -> Path:
        """The embedded Kafka's folder."""
        return self.root / "kafka"

    @property
    def host_log(self) -> Path:
        """The log of a detached host."""
        return self.root / "host.log"

    def state(self, replica: str) -> Path:
        """Return the state directory of a replica."""
        return self.root / replica / "state"

    def log(self, replica: str) -> Path:
        """Return the log file of a replica."""
        return self.root / replica / "replica.log"

    def status(self, replica: str) -> Path:
        """Return the status file of a replica."""
        return self.root / replica / "status.json"

    def running_host(self) -> HostRecord | None:
        """Return the host that is running here, or None."""
        if not (self.root / _HOST_FILE).exists() or self._lock_is_free():
            return None
        try:
            fields = json.loads((self.root / _HOST_FILE).read_text())
        except FileNotFoundError:
            return None
        views = tuple(ReplicaView(**view) for view in fields.pop("replicas"))
        return HostRecord(**fields, replicas=views)

    @contextmanager
    def host(self, manifest: Path) -> Iterator[HostNote]:
        """Become the host of this folder while the block runs.

        The kernel releases the lock with the process, so that a crash never leaves the folder locked. A process that looks for
        the running host holds the lock briefly, so this one waits for a moment.

        Args:
            manifest: The manifest, for other commands to see.

        Raises:
            LocalHostError: Another process is the host.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / _LOCK_FILE).open("w") as lock:
            deadline = Deadline(_LOCK_TIMEOUT_S)
            while not _locked(lock, fcntl.LOCK_EX):
                other = self.running_host()
                if other or deadline.passed:
                    raise LocalHostError(
                        f"{self.root} is in use by another `millrace dev up`{f' (pid {other.pid})' if other else ''}: "
                        "stop it with `millrace dev down`, or give this one a folder of its own with --dir"
                    )
                time.sleep(_POLL_S)
            note = HostNote(self.root / _HOST_FILE, HostRecord(os.getpid(), str(manifest)))
            try:
                yield note
            finally:
                note.remove()

    def _lock_is_free(self) -> bool:
        try:
            with (self.root / _LOCK_FILE).open() as lock:
                return _locked(lock, fcntl.LOCK_SH)
        except FileNotFoundError:
            return True


class HostNote:
    """The file about the running host, for other commands to read."""

    def __init__(self, path: Path, record: HostRecord) -> None:
        self._path = path
        self._record = record
        self._write()

    def set_kafka(self, bootstrap_servers: str) -> None:
        """Publish the address of Kafka."""
        self._record = replace(self._record, bootstrap_servers=bootstrap_servers)
        self._write()

    def set_replicas(self, replicas: tuple[ReplicaView, ...]) -> None:
        """Publish that the replicas have been started, and what they are doing."""
        self._record = replace(self._record, serving=True, replicas=replicas)
        self._write()

    def remove(self) -> None:
        """Remove the file when the host ends."""
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self._record), indent=2))
        part.replace(self._path)


def _locked(file: TextIO, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
