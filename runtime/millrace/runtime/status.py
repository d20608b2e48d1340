"""What an instance says of itself to people and tools that look from outside: the operator, probes, `millrace dev up`.

These are values only; `snapshot` takes them. As JSON the names are those of the fields; docs/operations.md describes them, and
what is there stays there: the operator may be older or newer than the application's image.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "GroupStatus",
    "LagStatus",
    "ProcessingStatus",
    "RestorationStatus",
    "StorageStatus",
    "StreamsStatus",
    "TaskCounts",
    "TaskStatus",
    "ThreadStatus",
    "write_status",
]


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task."""

    id: str
    thread: str
    state: str
    """CREATED, RESTORING, RUNNING, SUSPENDED or CLOSED; PENDING while its directory is another thread's."""
    records: int
    stores: tuple[str, ...] = ()
    role: str = "active"
    """active, standby or warmup; always active, as there are no others yet."""
    remaining: int | None = 0
    """Changelog offsets that are left before it runs; None = not known yet."""


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """One stream thread."""

    name: str
    state: str
    leader: bool
    records: int
    commits: int
    alive: bool = True
    """False before it starts, and once it has ended."""
    joined: bool = False
    """Whether it was given an assignment once, if only an empty one."""
    progress_age_ms: int = 0
    """Since its loop got on last."""
    waits_for: str | None = None
    """What it has asked a broker for and has no answer to yet."""
    commit_age_ms: int | None = None
    """Since everything it had processed was committed; None = not yet."""
    member_id: str = ""
    instance_id: str | None = None
    """As a static member; None for a dynamic one."""
    member_state: str = "UNJOINED"
    """UNJOINED, JOINING, SYNCING, STABLE or CLOSED."""
    generation: int = -1
    """The group's generation it is in; -1 for none."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The instance's part in its consumer group."""

    protocol: str = ""
    """classic or streams."""
    state: str = "UNJOINED"
    """STABLE if all its members are; REBALANCING; UNJOINED before, and CLOSED when all have ended or left."""
    generation: int = -1
    """The latest of its members'; -1 for none."""
    rebalances: int = 0
    """Generations that it was in since it started; the one in which it joined is the first."""


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """How many tasks the instance has."""

    active: int = 0
    """Restoring ones included."""
    standby: int = 0
    warmup: int = 0
    restoring: int = 0
    """Active tasks that do not run yet."""


@dataclass(frozen=True, slots=True)
class RestorationStatus:
    """How the restoration of state goes."""

    remaining_records: int | None = 0
    """Changelog offsets that tasks wait for before they run; None = not known of all of them yet."""
    eta_seconds: float | None = 0.0
    """At the speed of the last seconds; None = not known."""
    restored_records: int = 0
    """Changelog records read into task stores since the start; 0 when everything was on disk."""


@dataclass(frozen=True, slots=True)
class LagStatus:
    """Records on the brokers that are not processed yet."""

    total: int | None = None
    """None = not known yet."""
    partitions: dict[str, int] = field(default_factory=dict)
    """Input partition (`topic-partition`) → records, as far as known."""


@dataclass(frozen=True, slots=True)
class ProcessingStatus:
    """What was processed, and how fast."""

    records: int = 0
    """Since the start."""
    commits: int = 0
    records_per_second: float | None = None
    """Over the last minute; None = not known yet."""
    busy_ratio: float | None = None
    """Which part of the last minute the threads did not wait for records, 0 to 1; None = not known yet."""


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """Disk usage."""

    used_percent: float | None = None
    """Of the state directory's file system, as `df` counts; None = not known yet."""
    bytes: int | None = None
    """What this application's state takes; None = not known yet."""


@dataclass(frozen=True, slots=True)
class StreamsStatus:
    """One instance at one moment."""

    time_ms: int
    application_id: str
    process_id: str
    pid: int
    state: str
    threads: tuple[ThreadStatus, ...]
    tasks: tuple[TaskStatus, ...]
    group: GroupStatus = GroupStatus()
    task_counts: TaskCounts = TaskCounts()
    restoration: RestorationStatus = RestorationStatus()
    lag: LagStatus = field(default_factory=LagStatus)
    processing: ProcessingStatus = ProcessingStatus()
    storage: StorageStatus = StorageStatus()
    credentials_stale: bool = False
    """Whether files of credentials have changed in a way that takes a restart to use."""
    error: str | None = None
    version: str = ""
    """Of Millrace."""
    topology_hash: str = ""
    """That of `millrace plan`."""
    pod_uid: str = ""
    """The uid of the Kubernetes pod (the variable `POD_UID`): an address may be another pod's by now."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able data, names in snake_case."""
        return asdict(self)


def write_status(status: StreamsStatus, path: Path) -> None:
    """Replace a status file in one step, so that a reader never sees half of it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(status.to_dict()))
    temporary.replace(path)
