"""Where the local host keeps the data of one manifest, and the file with which other commands find the host.

Everything is in one folder: the embedded Kafka's data and port, a state directory and a log for each replica, the plan that made
the state, and `host.json` while a host is running. To forget the application, delete the folder while nothing is running.
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
from pydantic import ValidationError

from millrace.deadline import Deadline
from millrace.errors import LocalHostError
from millrace.plan.topology_plan import TopologyPlan

_HOST_FILE = "host.json"
_LOCK_FILE = "host.lock"
_PORT_FILE = "port"
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
    dropped: int | None = None
    """How many records it has dropped since its start, without those that newer data has replaced."""


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

    def create(self) -> None:
        """Create the folder.

        Raises:
            LocalHostError: It cannot be created.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self.root, error) from error

    @property
    def port(self) -> int | None:
        """The port that the embedded Kafka listens on whenever it is started here, if one was kept."""
        try:
            return int((self.root / _PORT_FILE).read_text())
        except (OSError, ValueError):
            return None

    def keep_port(self, port: int) -> None:
        """Keep the embedded Kafka's port for the next time."""
        (self.root / _PORT_FILE).write_text(f"{port}\n")

    def plan_file(self, application_id: str) -> Path:
        """Return the file with the plan of the last run of an application id."""
        return self.root / f"plan-{application_id}.json"

    def plan(self, application_id: str) -> TopologyPlan | None:
        """Return the plan that made the state of an application id; None if there is none that this version can read."""
        try:
            return TopologyPlan.from_json(self.plan_file(application_id).read_bytes())
        except (OSError, ValidationError):
            return None

    def states(self, application_id: str) -> tuple[Path, ...]:
        """Return the state directories in which replicas have state of an application id."""
        return tuple(path.parent for path in sorted(self.root.glob(f"*/state/{application_id}")) if path.is_dir())

    def logs(self) -> dict[str, Path]:
        """Return the logs that exist, by the names of the replicas."""
        return {path.parent.name: path for path in sorted(self.root.glob("*/replica.log"))}

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
            LocalHostError: Another process is the host, or the folder cannot be written to.
        """
        self.create()
        try:
            file = (self.root / _LOCK_FILE).open("w")
        except OSError as error:
            raise _unusable(self.root, error) from error
        with file as lock:
            deadline = Deadline(_LOCK_TIMEOUT_S)
            while not _locked(lock, fcntl.LOCK_EX):
                other = self.running_host()
                if other or deadline.passed:
                    raise LocalHostError(
                        f"{self.root} is in use by another `millrace dev up`{f' (pid {other.pid})' if other else ''}: "
                        "stop it with `millrace dev down`, or give this one its own folder with --dir"
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


def _unusable(folder: Path, error: OSError) -> LocalHostError:
    return LocalHostError(f"Cannot write to the folder {folder}: {error.strerror}. Choose another one with --dir")


def _locked(file: TextIO, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
