"""Takes the status of an instance: a cheap look at what its threads keep anyway.

It asks no broker and takes no lock, so it may be taken every second, and also while a thread is stuck. What it tells of two
threads need not be of the same instant.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from millrace.errors import StreamsError
from millrace.kafka.membership.state import MemberState
from millrace.records import TopicPartition
from millrace.runtime.activity import Activity
from millrace.runtime.states import State
from millrace.runtime.status import (
    GroupStatus,
    LagStatus,
    ProcessingStatus,
    RestorationStatus,
    StorageStatus,
    StreamsStatus,
    TaskCounts,
    TaskStatus,
    ThreadStatus,
)
from millrace.runtime.stream_thread import StreamThread
from millrace.runtime.task_manager import TaskManager
from millrace.runtime.thread_resources import ThreadResources

__all__ = ["Instance", "take_status"]


@dataclass(frozen=True, slots=True)
class Instance:
    """What does not change while an instance lives."""

    application_id: str
    process_id: str = ""
    topology_hash: str = ""
    group_protocol: str = ""


def take_status(
    instance: Instance,
    state: State,
    threads: Sequence[StreamThread],
    activity: Activity,
    *,
    error: BaseException | None = None,
    credentials_stale: bool = False,
) -> StreamsStatus:
    """Look at an instance's threads.

    Args:
        instance: which.
        state: its state.
        threads: its stream threads.
        activity: its totals and rates.
        error: what ended it, if something did.
        credentials_stale: whether it takes a restart to use changed credentials.
    """
    thread_status: list[ThreadStatus] = []
    tasks: list[TaskStatus] = []
    lag: dict[str, int] = {}
    for thread in threads:
        resources = thread.resources
        thread_status.append(_thread_status(thread, resources))
        if resources is not None:
            tasks += _tasks(thread.name, resources)
            lag |= _lag(resources)
    totals = activity.totals(threads)
    remaining = _remaining(tasks)
    return StreamsStatus(
        time_ms=time.time_ns() // 1_000_000,
        application_id=instance.application_id,
        process_id=instance.process_id,
        pid=os.getpid(),
        state=state.value,
        threads=tuple(thread_status),
        tasks=tuple(sorted(tasks, key=lambda task: task.id)),
        group=GroupStatus(
            instance.group_protocol,
            _group_state(thread_status),
            max((thread.generation for thread in thread_status), default=-1),
            activity.rebalances,
        ),
        task_counts=TaskCounts(active=len(tasks), restoring=sum(task.state != "RUNNING" for task in tasks)),
        restoration=RestorationStatus(remaining, activity.eta_s(remaining), totals.restored),
        lag=LagStatus(sum(lag.values()) if lag or state is State.RUNNING else None, dict(sorted(lag.items()))),
        processing=ProcessingStatus(totals.records, totals.commits, activity.records_per_second, activity.busy_ratio),
        storage=StorageStatus(activity.storage_used_percent, activity.storage_bytes),
        credentials_stale=credentials_stale,
        error=None if error is None else f"{type(error).__name__}: {error}",
        version=_version(),
        topology_hash=instance.topology_hash,
        pod_uid=os.environ.get("POD_UID", ""),
    )


def _thread_status(thread: StreamThread, resources: ThreadResources | None) -> ThreadStatus:
    status = ThreadStatus(
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
    if resources is None:
        return status
    member, manager = resources.member, resources.tasks
    return replace(
        status,
        leader=member.is_leader,
        records=manager.records_total,
        commits=manager.commits_total,
        member_id=member.member_id,
        instance_id=member.instance_id,
        member_state=member.state.name,
        generation=member.generation,
    )


def _group_state(threads: Collection[ThreadStatus]) -> str:
    states = {thread.member_state for thread in threads}
    if len(states) > 1:
        states.discard(MemberState.CLOSED.name)  # of threads that have ended
    if len(states) == 1 and not states & {MemberState.JOINING.name, MemberState.SYNCING.name}:
        return states.pop()
    return "REBALANCING" if states else MemberState.UNJOINED.name


def _tasks(thread: str, resources: ThreadResources) -> list[TaskStatus]:
    manager, left = resources.tasks, resources.updater.remaining()
    restoring = manager.restoring.copy()
    tasks = []
    for task_id, task in {**restoring, **manager.running.copy()}.items():
        known = [left[changelog] for changelog in task.changelogs if changelog in left]
        tasks.append(
            TaskStatus(
                str(task_id),
                thread,
                task.state.value,
                task.counters.records_processed,
                tuple(task.stores),
                remaining=None if task_id in restoring and not known else sum(known),
            )
        )
    return tasks + [
        TaskStatus(str(task_id), thread, "PENDING", 0, remaining=None) for task_id in manager.pending.copy()
    ]


def _remaining(tasks: Collection[TaskStatus]) -> int | None:
    known = [task.remaining for task in tasks if task.remaining is not None]
    return sum(known) if len(known) == len(tasks) else None


def _lag(resources: ThreadResources) -> dict[str, int]:
    lag = {}
    for partition in list(resources.consumer.partitions):
        behind = resources.consumer.lag(partition)
        if behind is not None:
            lag[str(partition)] = behind + _buffered(resources.tasks, partition)
    return lag


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
