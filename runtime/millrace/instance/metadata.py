"""What `KafkaStreams` returns about its threads, tasks and stores: frozen snapshots, safe to keep and to pass on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.instance.states import ThreadState
from millrace.instance.stream_thread import StreamThread
from millrace.records import TaskId, TopicPartition

__all__ = ["LagInfo", "TaskMetadata", "ThreadMetadata", "store_lags", "thread_metadata"]


@dataclass(frozen=True, slots=True)
class TaskMetadata:
    """One task of a thread."""

    task_id: TaskId
    state: str
    """CREATED, RESTORING, RUNNING, SUSPENDED or CLOSED; PENDING while another thread owns its directory."""
    topic_partitions: frozenset[TopicPartition]
    committed_offsets: Mapping[TopicPartition, int]
    records_processed: int = 0


@dataclass(frozen=True, slots=True)
class ThreadMetadata:
    """One stream thread and its tasks."""

    thread_name: str
    thread_state: ThreadState
    active_tasks: tuple[TaskMetadata, ...]
    standby_tasks: tuple[TaskMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class LagInfo:
    """How far a local store is behind its changelog, in offsets."""

    current_offset_position: int
    end_offset_position: int
    offset_lag: int


def thread_metadata(thread: StreamThread) -> ThreadMetadata:
    """Return a snapshot of a thread."""
    manager = thread.tasks
    if manager is None:
        return ThreadMetadata(thread.name, thread.state, ())
    committed = manager.committed_positions()
    tasks = [
        TaskMetadata(
            task_id,
            task.state.value,
            task.input_partitions,
            {partition: committed[partition].offset for partition in task.input_partitions if partition in committed},
            task.counters.records_processed,
        )
        for task_id, task in sorted({**manager.restoring.copy(), **manager.running.copy()}.items())
    ]
    tasks += [
        TaskMetadata(task_id, "PENDING", inputs, {}) for task_id, inputs in sorted(manager.pending.copy().items())
    ]
    return ThreadMetadata(thread.name, thread.state, tuple(tasks))


def store_lags(threads: list[StreamThread]) -> dict[str, dict[int, LagInfo]]:
    """Return how far each store is behind, by store and partition; stores of running tasks are up to date."""
    lags: dict[str, dict[int, LagInfo]] = {}
    for thread in threads:
        tasks, resources = thread.tasks, thread.resources
        if tasks is None or resources is None:
            continue
        remaining = resources.updater.progress()
        for task in [*tasks.running.copy().values(), *tasks.restoring.copy().values()]:
            for partition, store in task.changelogs.items():
                position, end = remaining.get(partition, (0, 0))
                lags.setdefault(store.name, {})[partition.partition] = LagInfo(position, end, max(0, end - position))
    return lags
