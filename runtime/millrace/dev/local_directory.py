"""Where the local host keeps what it runs for one manifest, and the note by which other commands find it.

Everything lies under one folder: the embedded Kafka's data, a state directory and a log for each replica, and `host.json`
for as long as a host runs. Deleting the folder while nothing runs forgets the application.
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
    """A replica at one moment, as the table shows it; None where it is not known."""

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
    """A host that runs: its process, and where its Kafka is."""

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
            directory: The folder, if not that of the name in the user's data directory.
        """
        return cls((directory or platformdirs.user_data_path("millrace") / "dev" / name).absolute())

    @property
    def kafka(self) -> Path:
        """The embedded Kafka's folder."""
        return self.root / "kafka"

    @property
    def host_log(self) -> Path:
        """What a detached host logs."""
        return self.root / "host.log"

    def state(self, replica: str) -> Path:
        """Return the state directory of a replica."""
        return self.root / replica / "state"

    def log(self, replica: str) -> Path:
        """Return the file with what a replica logs."""
        return self.root / replica / "replica.log"

    def status(self, replica: str) -> Path:
        """Return the file in which a replica says what it does."""
        return self.root / replica / "status.json"

    def running_host(self) -> HostRecord | None:
        """Return the host that runs here, or none."""
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
        """Be the host of this folder while the block runs.

        The kernel releases the lock with the process, so that no crash leaves a folder that cannot be used. Who asks for the
        running host shares the lock for a moment: that is waited for.

        Args:
            manifest: What is run, for the note.

        Raises:
            LocalHostError: Another process is.
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
    """The note of the running host, for other commands to read."""

    def __init__(self, path: Path, record: HostRecord) -> None:
        self._path = path
        self._record = record
        self._write()

    def serves(self, bootstrap_servers: str) -> None:
        """Note where Kafka is."""
        self._record = replace(self._record, bootstrap_servers=bootstrap_servers)
        self._write()

    def runs(self, replicas: tuple[ReplicaView, ...]) -> None:
        """Note that the replicas have been started, and what they do."""
        self._record = replace(self._record, serving=True, replicas=replicas)
        self._write()

    def remove(self) -> None:
        """Remove the note, as the host ends."""
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
