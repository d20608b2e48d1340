"""The state of a task: its life cycle (Kafka Streams' `Task.State`), its clocks and its counters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from millrace.records import UNKNOWN_TIMESTAMP


class TaskState(Enum):
    """The state of a task."""

    CREATED = "CREATED"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    CLOSED = "CLOSED"


ALLOWED_TRANSITIONS: Final = {
    TaskState.CREATED: frozenset({TaskState.RESTORING, TaskState.SUSPENDED, TaskState.CLOSED}),
    TaskState.RESTORING: frozenset({TaskState.RUNNING, TaskState.SUSPENDED, TaskState.CLOSED}),
    TaskState.RUNNING: frozenset({TaskState.SUSPENDED, TaskState.CLOSED}),
    TaskState.SUSPENDED: frozenset({TaskState.RESTORING, TaskState.RUNNING, TaskState.CLOSED}),
    TaskState.CLOSED: frozenset({TaskState.CREATED}),
}
"""From each state, the states it may move to. CLOSED → CREATED revives a task whose state was wiped."""


class IllegalTaskStateError(RuntimeError):
    """An operation is not allowed in the task's state: an error of its host, not of the application."""


def check_transition(task_id: object, old: TaskState, new: TaskState) -> None:
    """Raise IllegalTaskStateError unless a task may move from `old` to `new`."""
    if new not in ALLOWED_TRANSITIONS[old]:
        raise IllegalTaskStateError(f"task {task_id} cannot go from {old.value} to {new.value}")


@dataclass(slots=True)
class TaskTimes:
    """Stream time and the wall clock as the task's nodes see them (ms), in one place where closures can read them."""

    stream_time: int = UNKNOWN_TIMESTAMP
    """The largest timestamp of a record that processing began for."""
    system_time: int = 0
    """The wall clock, read once per batch or punctuation, and constant while that runs."""


@dataclass(slots=True)
class TaskCounters:
    """What a task has done so far; plain numbers that metrics read on a schedule."""

    records_processed: int = 0
    dropped_records: int = 0
    punctuations: int = 0
    commits: int = 0
    restored_records: int = 0
    enforced_processing: int = 0
    """How often records were processed even though an input was empty, because `max.task.idle.ms` had passed."""
