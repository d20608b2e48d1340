"""Collects what an instance reports to people and tools outside; `millrace.instance_status` is the document.

Taking a status asks no broker and takes no lock, so it may be done every second, even while a thread is stuck. Two threads
may be shown at slightly different moments.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from millrace import __version__
from millrace.dropped_records import DroppedRecords, Drops
from millrace.errors import StreamsError
from millrace.instance.activity import Activity
from millrace.instance.metadata import STANDBY_STATE
from millrace.instance.resources import ThreadResources
from millrace.instance.states import State
from millrace.instance.stream_thread import StreamThread
from millrace.instance.task_manager import TaskManager
from millrace.instance_status import (
    DiskUsage,
    DroppedStatus,
    InputLag,
    MembershipStatus,
    ProcessingStatus,
    RestoreProgress,
    StreamsStatus,
    TaskCounts,
    TaskStatus,
    ThreadStatus,
)
from millrace.kafka.membership.state import MemberState
from millrace.records import TopicPartition


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """The constant part of an instance's status."""

    application_id: str
    process_id: str = ""
    topology_hash: str = ""
    group_protocol: str = ""


def take_status(
    instance: InstanceInfo,
    look: Callable[[], tuple[State, Sequence[StreamThread]]],
    activity: Activity,
    dropped: DroppedRecords,
    *,
    error: BaseException | None = None,
    credentials_stale: bool = False,
) -> StreamsStatus:
    """Collect the status of an instance.

    Args:
        instance: which one.
        look: returns its state and its stream threads; called until no thread was replaced or asked to end meanwhile.
        activity: its totals and rates.
        dropped: what its tasks have dropped.
        error: the error that ended it, if it failed.
        credentials_stale: whether a restart is required to use changed credentials.
    """
    while True:
        state, threads = looked = look()
        status = _take(instance, state, threads, activity, dropped, error, credentials_stale=credentials_stale)
        if looked == look():
            return status


def _take(
    instance: InstanceInfo,
    state: State,
    threads: Sequence[StreamThread],
    activity: Activity,
    dropped: DroppedRecords,
    error: BaseException | None,
    *,
    credentials_stale: bool,
) -> StreamsStatus:
    thread_status: list[ThreadStatus] = []
    tasks: list[TaskStatus] = []
    lag: dict[str, int] = {}
    refused: set[str] = set()
    for thread in threads:
        manager, resources = thread.tasks, thread.resources
        thread_status.append(_thread_status(thread, manager, resources))
        if manager is not None and resources is not None:
            tasks += _tasks(thread.name, manager, resources)
            lag |= _lag(manager, resources)
            refused |= set(resources.member.refused_tasks)
    totals = activity.totals(thread.totals for thread in threads)
    active = [task for task in tasks if task.role == "active"]
    remaining = _remaining(active)
    return StreamsStatus(
        time_ms=time.time_ns() // 1_000_000,
        application_id=instance.application_id,
        process_id=instance.process_id,
        pid=os.getpid(),
        state=state.value,
        threads=tuple(thread_status),
        tasks=tuple(sorted(tasks, key=lambda task: task.id)),
        group=MembershipStatus(
            instance.group_protocol,
            _group_state(thread_status),
            max((thread.generation for thread in thread_status), default=-1),
            activity.rebalances,
        ),
        task_counts=TaskCounts(
            active=len(active),
            standby=len(tasks) - len(active),
            restoring=sum(task.state != "RUNNING" for task in active),
        ),
        restoration=RestoreProgress(remaining, activity.eta_s(remaining), totals.restored),
        lag=InputLag(sum(lag.values()) if lag or state is State.RUNNING else None, dict(sorted(lag.items()))),
        processing=ProcessingStatus(totals.records, totals.commits, activity.records_per_second, activity.busy_ratio),
        storage=DiskUsage(activity.storage_used_percent, activity.storage_bytes),
        credentials_stale=credentials_stale,
        refused_tasks=tuple(sorted(refused)),
        error=None if error is None else f"{type(error).__name__}: {error}",
        version=__version__,
        topology_hash=instance.topology_hash,
        dropped=tuple(map(_dropped, dropped.all())),
        pod_uid=os.environ.get("POD_UID", ""),
    )


def _thread_status(
    thread: StreamThread, manager: TaskManager | None, resources: ThreadResources | None
) -> ThreadStatus:
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
    if manager is None or resources is None:
        return status
    member = resources.member.client
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


def _dropped(drops: Drops) -> DroppedStatus:
    return DroppedStatus(
        drops.node,
        drops.place,
        drops.reason.value,
        drops.problem,
        drops.records,
        drops.last_ms,
        drops.reason.harmless,
    )


def _group_state(threads: Collection[ThreadStatus]) -> str:
    states = {thread.member_state for thread in threads}
    if len(states) > 1:
        states.discard(MemberState.CLOSED.name)  # the state of threads that have ended
    if len(states) == 1 and not states & {MemberState.JOINING.name, MemberState.SYNCING.name}:
        return states.pop()
    return "REBALANCING" if states else MemberState.UNJOINED.name


def _tasks(thread: str, manager: TaskManager, resources: ThreadResources) -> list[TaskStatus]:
    left, restoring, standby = resources.updater.remaining(), manager.restoring.copy(), manager.standby.copy()
    tasks = []
    for task_id, task in {**restoring, **standby, **manager.running.copy()}.items():
        known = [left[changelog] for changelog in task.changelogs if changelog in left]
        waits = task_id in restoring or task_id in standby
        tasks.append(
            TaskStatus(
                str(task_id),
                thread,
                STANDBY_STATE if task_id in standby else task.state.value,
                task.counters.records_processed,
                tuple(task.stores),
                role="standby" if task_id in standby else "active",
                remaining=None if waits and not known else sum(known),
            )
        )
    for task_id, wanted in manager.pending.copy().items():
        role = "standby" if wanted.standby else "active"
        tasks.append(TaskStatus(str(task_id), thread, "PENDING", 0, role=role, remaining=None))
    return tasks


def _remaining(tasks: Collection[TaskStatus]) -> int | None:
    known = [task.remaining for task in tasks if task.remaining is not None]
    return sum(known) if len(known) == len(tasks) else None


def _lag(manager: TaskManager, resources: ThreadResources) -> dict[str, int]:
    lag = {}
    for partition in list(resources.consumer.partitions):
        behind = resources.consumer.lag(partition)
        if behind is not None:
            lag[str(partition)] = behind + _buffered(manager, partition)
    return lag


def _buffered(manager: TaskManager, partition: TopicPartition) -> int:
    try:
        return manager.buffered(partition)
    except (StreamsError, LookupError):  # its task has just been closed
        return 0
