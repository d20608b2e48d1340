"""The status that an instance reports to the operator, probes and `millrace dev`: the document, and how it is written and read.

Its JSON (`/status`) has the fields' names; docs/operations.md describes them. Fields are never removed or renamed, as the
operator may be older or newer than the application's image. So a reader ignores unknown fields, and gives missing ones their
defaults.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task."""

    id: str = ""
    thread: str = ""
    state: str = ""
    """CREATED, RESTORING, RUNNING, SUSPENDED or CLOSED; PENDING while another thread owns its directory."""
    records: int = 0
    stores: tuple[str, ...] = ()
    role: str = "active"
    """active or standby; warm-ups count as standbys, because a member cannot tell them apart."""
    remaining: int | None = 0
    """Changelog offsets left to restore before it runs or, of a standby, that it is behind; None = not yet known."""


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """One stream thread."""

    name: str = ""
    state: str = ""
    leader: bool = False
    records: int = 0
    commits: int = 0
    alive: bool = True
    """False before it starts, and once it has ended."""
    joined: bool = False
    """Whether it has ever been given an assignment, if only an empty one."""
    progress_age_ms: int = 0
    """Since its loop last made progress."""
    waits_for: str | None = None
    """The answer from a broker that it is waiting for."""
    commit_age_ms: int | None = None
    """Since everything it had processed was committed; None = never."""
    member_id: str = ""
    instance_id: str | None = None
    """The static member's id; None for a dynamic member."""
    member_state: str = "UNJOINED"
    """UNJOINED, JOINING, SYNCING, STABLE or CLOSED."""
    generation: int = -1
    """The group's generation that it is in; -1 for none."""


@dataclass(frozen=True, slots=True)
class MembershipStatus:
    """The instance's membership in its consumer group."""

    protocol: str = ""
    """classic or streams."""
    state: str = "UNJOINED"
    """STABLE if all its members are, else REBALANCING; UNJOINED before it joins, CLOSED once all members have ended or left."""
    generation: int = -1
    """The latest generation of its members; -1 for none."""
    rebalances: int = 0
    """How many generations it has been in since it started, starting with the one in which it joined."""


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """How many tasks the instance has."""

    active: int = 0
    """Including restoring ones."""
    standby: int = 0
    """Including warm-ups."""
    warmup: int = 0
    """Always 0: a member cannot tell warm-ups from standbys."""
    restoring: int = 0
    """Active tasks that are not running yet."""


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """The progress of the restoration of state."""

    remaining_records: int | None = 0
    """Changelog offsets that tasks wait for before they run; None = not yet known for all of them."""
    eta_seconds: float | None = 0.0
    """At the speed of the last few seconds; None = unknown."""
    restored_records: int = 0
    """Changelog records read into task stores since the start; 0 if everything was on disk."""


@dataclass(frozen=True, slots=True)
class InputLag:
    """Records on the brokers that have not been processed yet."""

    total: int | None = None
    """None = not yet known."""
    partitions: dict[str, int] = field(default_factory=dict)
    """Input partition (`topic-partition`) → records, where known."""


@dataclass(frozen=True, slots=True)
class ProcessingStatus:
    """How much was processed, and how fast."""

    records: int = 0
    """Since the start."""
    commits: int = 0
    records_per_second: float | None = None
    """Over the last minute; None = not yet known."""
    busy_ratio: float | None = None
    """The fraction of the last minute in which the threads did not wait for records, 0 to 1; None = not yet known."""


@dataclass(frozen=True, slots=True)
class DroppedStatus:
    """The records that a node has dropped for one reason."""

    node: str = ""
    """The node or, if a store refused the records, the store."""
    place: str = ""
    """File and line of the user's call that made the node; empty if unknown."""
    reason: str = ""
    """One word, such as late, null-key or unreadable; docs/time.md has all."""
    problem: str = ""
    """The reason for people, with how late they were."""
    records: int = 0
    """Since the start."""
    last_ms: int = 0
    """When the last one was dropped, since the epoch."""
    harmless: bool = False
    """Whether nothing is lost, because newer data has taken their place."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Disk usage."""

    used_percent: float | None = None
    """Of the state directory's file system, as `df` counts; None = not yet known."""
    bytes: int | None = None
    """How much space this application's state takes; None = not yet known."""


@dataclass(frozen=True, slots=True)
class StreamsStatus:
    """One instance at one moment."""

    time_ms: int = 0
    """When this was, since the epoch."""
    application_id: str = ""
    process_id: str = ""
    pid: int = 0
    state: str = ""
    """KafkaStreams' state: RUNNING, REBALANCING, …, or DRAINED once it was told to leave and has handed over its tasks."""
    threads: tuple[ThreadStatus, ...] = ()
    tasks: tuple[TaskStatus, ...] = ()
    group: MembershipStatus = MembershipStatus()
    task_counts: TaskCounts = TaskCounts()
    restoration: RestoreProgress = RestoreProgress()
    lag: InputLag = field(default_factory=InputLag)
    processing: ProcessingStatus = ProcessingStatus()
    dropped: tuple[DroppedStatus, ...] = ()
    """What its tasks have dropped, by node and reason, in the order in which it began."""
    storage: DiskUsage = DiskUsage()
    credentials_stale: bool = False
    """Whether files with credentials have changed in a way that requires a restart."""
    refused_tasks: tuple[str, ...] = ()
    """Assigned tasks that it refuses, because the group's leader has another topology: nobody processes them."""
    error: str | None = None
    version: str = ""
    """Of Millrace."""
    topology_hash: str = ""
    """The hash that `millrace plan` shows."""
    pod_uid: str = ""
    """The uid of the Kubernetes pod (the variable `POD_UID`), as its address may belong to another pod by now."""

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-able data, names in snake_case."""
        return asdict(self)


def write_status(status: StreamsStatus, path: Path) -> None:
    """Replace a status file atomically, so that a reader never sees half of it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(status.to_dict()))
    temporary.replace(path)


def read_status(path: Path) -> StreamsStatus | None:
    """Read the status that `write_status` wrote; None if there is none, or it cannot be read."""
    try:
        return parse_status(json.loads(path.read_text()))
    except (FileNotFoundError, ValueError):
        return None


def parse_status(document: object) -> StreamsStatus:
    """Return the status in a document, from any version of Millrace.

    Args:
        document: As parsed from JSON.

    Raises:
        ValueError: It is no status.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("state"), str):
        raise ValueError("not a status")  # noqa: TRY004 - what is wrong is the document, not the call
    try:
        return _object(StreamsStatus, document)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"not a status: {error}") from error


_hints = cache(get_type_hints)


def _object(kind: type[_T], document: Mapping[str, object]) -> _T:
    assert is_dataclass(kind)
    hints = _hints(kind)
    # A missing number that may be null is not known, whatever its default is where the document is made.
    unknown: dict[str, Any] = {name: None for name, hint in hints.items() if NoneType in get_args(hint)}
    given = {item.name: _value(hints[item.name], document[item.name]) for item in fields(kind) if item.name in document}
    return kind(**{**unknown, **given})


def _value(kind: Any, value: object) -> Any:
    """Return a value as its field's type; null, and values that are no list or object, become that type's empty value."""
    options = [option for option in get_args(kind) if option is not NoneType]
    if NoneType in get_args(kind):
        return None if value is None else _value(options[0], value)
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return _object(kind, value if isinstance(value, Mapping) else {})
    if get_origin(kind) is tuple:
        items = value if isinstance(value, list | tuple) else ()
        is_nested = is_dataclass(options[0])
        return tuple(_value(options[0], item) for item in items if isinstance(item, Mapping) or not is_nested)
    if get_origin(kind) is dict:
        given = value if isinstance(value, Mapping) else {}
        return {str(name): _value(options[1], item) for name, item in given.items()}
    return kind() if value is None else kind(value)
