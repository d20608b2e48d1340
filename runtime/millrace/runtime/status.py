"""A cheap snapshot of what an instance does, for people and tools that look from outside (`millrace dev up`, probes).

It reads counters the threads keep anyway and asks no broker, so it may be taken every second.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millrace.runtime.states import State
from millrace.runtime.stream_thread import StreamThread

__all__ = ["StreamsStatus", "TaskStatus", "ThreadStatus", "take_status", "write_status"]


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task."""

    id: str
    thread: str
    state: str
    records: int
    stores: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """One stream thread."""

    name: str
    state: str
    leader: bool
    records: int
    commits: int


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

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able data, names in snake_case."""
        return asdict(self)


def take_status(
    application_id: str, process_id: str, state: State, threads: Iterable[StreamThread], error: BaseException | None
) -> StreamsStatus:
    """Look at an instance's threads."""
    thread_status: list[ThreadStatus] = []
    tasks: list[TaskStatus] = []
    lag: dict[str, int] = {}
    remaining = 0
    for thread in threads:
        resources = thread.resources
        if resources is None:
            thread_status.append(ThreadStatus(thread.name, thread.state.value, leader=False, records=0, commits=0))
            continue
        manager = resources.tasks
        thread_status.append(
            ThreadStatus(
                thread.name,
                thread.state.value,
                leader=resources.member.is_leader,
                records=manager.records_total,
                commits=manager.commits_total,
            )
        )
        remaining += sum(resources.updater.remaining().values())
        for task_id, task in {**manager.restoring.copy(), **manager.running.copy()}.items():
            stores = tuple(task.stores)
            tasks.append(
                TaskStatus(str(task_id), thread.name, task.state.value, task.counters.records_processed, stores)
            )
        tasks.extend(TaskStatus(str(task_id), thread.name, "PENDING", 0) for task_id in manager.pending.copy())
        for partition in list(resources.consumer.partitions):
            behind = resources.consumer.lag(partition)
            if behind is not None:
                lag[str(partition)] = behind + manager.buffered(partition)
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
    )


def write_status(status: StreamsStatus, path: Path) -> None:
    """Replace a status file in one step, so that a reader never sees half of it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(status.to_dict()))
    temporary.replace(path)
