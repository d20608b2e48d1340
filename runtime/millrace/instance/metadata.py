"""Snapshots that `KafkaStreams` returns of its threads, tasks and stores: frozen, safe to keep and to pass on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final

from confluent_kafka.admin import AdminClient

from millrace.assignment import AssignedTasks, HostInfo
from millrace.engine.task import StreamTask
from millrace.instance.states import ThreadState
from millrace.instance.stream_thread import StreamThread
from millrace.kafka.offsets import latest_offsets
from millrace.records import TaskId, TopicPartition
from millrace.topology.physical_topology import BuiltTopology, Subtopology

__all__ = [
    "STANDBY_STATE",
    "LagInfo",
    "StreamsMetadata",
    "TaskMetadata",
    "ThreadMetadata",
    "host_stores",
    "store_lags",
    "thread_metadata",
]

STANDBY_STATE: Final = "RUNNING"
"""The state that is shown for an open standby, as in Java."""


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


@dataclass(frozen=True, slots=True)
class StreamsMetadata:
    """One instance of the application that has an `application.server`, as the last assignment says."""

    host_info: HostInfo
    state_store_names: frozenset[str]
    """Stores with active partitions on it, and the global stores."""
    topic_partitions: frozenset[TopicPartition]
    """Input partitions of its active tasks."""
    standby_state_store_names: frozenset[str] = frozenset()
    standby_topic_partitions: frozenset[TopicPartition] = frozenset()
    """Input partitions of its standby tasks."""


def thread_metadata(thread: StreamThread) -> ThreadMetadata:
    """Return a snapshot of a thread."""
    manager = thread.tasks
    if manager is None:
        return ThreadMetadata(thread.name, thread.state, ())
    committed = manager.committed_positions()

    def metadata(task: StreamTask, state: str) -> TaskMetadata:
        offsets = {partition: committed[partition].offset for partition in task.input_partitions & committed.keys()}
        return TaskMetadata(task.task_id, state, task.input_partitions, offsets, task.counters.records_processed)

    active = [metadata(task, task.state.value) for task in (*_values(manager.restoring), *_values(manager.running))]
    standby = [metadata(task, STANDBY_STATE) for task in _values(manager.standby)]
    for task_id, wanted in manager.pending.copy().items():
        (standby if wanted.standby else active).append(TaskMetadata(task_id, "PENDING", wanted.inputs, {}))
    return ThreadMetadata(thread.name, thread.state, _sorted(active), _sorted(standby))


def _values(tasks: Mapping[TaskId, StreamTask]) -> list[StreamTask]:
    return list(dict(tasks).values())  # a copy, as the thread may change them


def _sorted(tasks: list[TaskMetadata]) -> tuple[TaskMetadata, ...]:
    return tuple(sorted(tasks, key=attrgetter("task_id")))


def store_lags(threads: Iterable[StreamThread], admin: AdminClient) -> dict[str, dict[int, LagInfo]]:
    """Return how far each store is behind the end of its changelog, by store and partition; running tasks are at the end.

    Raises:
        StreamsError: the brokers do not say where the changelogs end.
    """
    positions: dict[TopicPartition, tuple[str, int | None]] = {}
    for thread in threads:
        manager, resources = thread.tasks, thread.resources
        if manager is None or resources is None:
            continue
        read = resources.updater.positions()
        for task in (*_values(manager.restoring), *_values(manager.standby)):
            for partition, store in task.changelogs.items():
                positions[partition] = store.name, read.get(partition, task.changelog_positions.get(partition) or 0)
        for task in _values(manager.running):
            positions.update({partition: (store.name, None) for partition, store in task.changelogs.items()})
    ends = latest_offsets(admin, list(positions)) if positions else {}
    lags: dict[str, dict[int, LagInfo]] = {}
    for partition, (store_name, position) in positions.items():
        end = ends[partition]
        at = end if position is None else position
        lags.setdefault(store_name, {})[partition.partition] = LagInfo(at, end, max(0, end - at))
    return lags


def host_stores(topology: BuiltTopology, assigned: AssignedTasks) -> tuple[StreamsMetadata, ...]:
    """Return the stores and partitions of each instance, according to an assignment."""
    global_part = topology.global_subtopology
    global_stores = frozenset() if global_part is None else _store_names(global_part)

    def stores(partitions: frozenset[TopicPartition]) -> frozenset[str]:
        topics = {partition.topic for partition in partitions}
        found = [_store_names(item) for item in topology.subtopologies if any(map(partial(_reads, item), topics))]
        return frozenset().union(*found)

    return tuple(
        StreamsMetadata(
            host,
            global_stores | stores(assigned.partitions_by_host.get(host, frozenset())),
            assigned.partitions_by_host.get(host, frozenset()),
            stores(assigned.standby_partitions_by_host.get(host, frozenset())),
            assigned.standby_partitions_by_host.get(host, frozenset()),
        )
        for host in sorted(assigned.partitions_by_host.keys() | assigned.standby_partitions_by_host.keys())
    )


def _store_names(subtopology: Subtopology) -> frozenset[str]:
    return frozenset(builder.name for builder in subtopology.store_builders)


def _reads(subtopology: Subtopology, topic: str) -> bool:
    patterns = subtopology.source_patterns
    return topic in subtopology.source_topics or any(pattern.fullmatch(topic) for pattern in patterns)
