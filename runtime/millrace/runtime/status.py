"""A cheap snapshot of what an instance does, for people and tools that look from outside (`millrace dev up`, probes).

It reads counters the threads keep anyway: it asks no broker and takes no lock, so it may be taken every second, and also
while a thread is stuck. What it tells of two threads need not be of the same instant.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from millrace.errors import StreamsError
from millrace.records import TopicPartition
from millrace.runtime.states import State
from millrace.runtime.stream_thread import StreamThread
from millrace.runtime.task_manager import TaskManager

__all__ = ["StreamsStatus", "TaskStatus", "ThreadStatus", "take_status", "write_status"]


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
    """Always active: there are no standbys yet."""
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
    generation: int = -1
    """The group's generation it is in; -1 for none."""


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
    restoration_remaining: int
    """Changelog records that tasks wait for before they run."""
    lag: dict[str, int]
    """Input partition (`topic-partition`) → records on the broker that are not processed yet, as far as known."""
    records_total: int
    commits_total: int
    error: str | None = None
    version: str = ""
    """Of Millrace."""
    topology_hash: str = ""
    """That of `millrace plan`."""
    group_protocol: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able data, names in snake_case."""
        return asdict(self)


def take_status(
    application_id: str,
    process_id: str,
    state: State,
    threads: Iterable[StreamThread],
    error: BaseException | None,
    *,
    topology_hash: str = "",
    group_protocol: str = "",
) -> StreamsStatus:
    """Look at an instance's threads.

    Args:
        application_id: of the application.
        process_id: of this instance.
        state: of this instance.
        threads: its stream threads.
        error: what ended it, if something did.
        topology_hash: that of its plan.
        group_protocol: how its threads are members of their group.
    """
    thread_status: list[ThreadStatus] = []
    tasks: list[TaskStatus] = []
    lag: dict[str, int] = {}
    remaining = 0
    for thread in threads:
        resources = thread.resources
        if resources is None:
            thread_status.append(_thread_status(thread))
            continue
        manager = resources.tasks
        thread_status.append(
            replace(
                _thread_status(thread),
                leader=resources.member.is_leader,
                records=manager.records_total,
                commits=manager.commits_total,
                member_id=resources.member.member_id,
                generation=resources.member.generation,
            )
        )
        left = resources.updater.remaining()
        remaining += sum(left.values())
        restoring = manager.restoring.copy()
        for task_id, task in {**restoring, **manager.running.copy()}.items():
            known = [left[changelog] for changelog in task.changelogs if changelog in left]
            tasks.append(
                TaskStatus(
                    str(task_id),
                    thread.name,
                    task.state.value,
                    task.counters.records_processed,
                    tuple(task.stores),
                    remaining=None if task_id in restoring and not known else sum(known),
                )
            )
        tasks.extend(
            TaskStatus(str(task_id), thread.name, "PENDING", 0, remaining=None) for task_id in manager.pending.copy()
        )
        for partition in list(resources.consumer.partitions):
            behind = resources.consumer.lag(partition)
            if behind is not None:
                lag[str(partition)] = behind + _buffered(manager, partition)
    return StreamsStatus(
        time_ms=time.time_ns() // 1_000_000,
        application_id=application_id,
        process_id=process_id,
        pid=os.getpid(),
        state=state.value,
        threads=tuple(thread_status),
        tasks=tuple(sorted(tasks, key=lambda task: task.id)),
        restoration_remaining=remaining,
        lag=dict(sorted(lag.items())),
        records_total=sum(thread.records for thread in thread_status),
        commits_total=sum(thread.commits for thread in thread_status),
        error=None if error is None else f"{type(error).__name__}: {error}",
        version=_version(),
        topology_hash=topology_hash,
        group_protocol=group_protocol,
    )


def _thread_status(thread: StreamThread) -> ThreadStatus:
    return ThreadStatus(
        thread.name,
        thread.state.value,
        leader=False,
        records=0,
        commits=0,
        alive=thread.is_alive,
        joined=thread.joined,
        progress_age_ms=thread.progress.age_ms(),
        waits_for=thread.progress.waits_for,
        commit_age_ms=thread.progress.commit_age_ms(),
    )


def _buffered(manager: TaskManager, partition: TopicPartition) -> int:
    try:
        return manager.buffered(partition)
    except (StreamsError, LookupError):  # its task was closed just now
        return 0


@cache
def _version() -> str:
    try:
        return version("millrace")
    except PackageNotFoundError:
        return ""


def write_status(status: StreamsStatus, path: Path) -> None:
    """Replace a status file in one step, so that a reader never sees half of it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(status.to_dict()))
    temporary.replace(path)
