"""The states of a task and the moves between them (Kafka Streams' `Task.State`)."""

from __future__ import annotations

from enum import Enum
from typing import Final


class TaskState(Enum):
    """Where a task is in its life."""

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
    """A task was asked for something its state does not allow: an error of its host, not of the application."""


def check_transition(task_id: object, old: TaskState, new: TaskState) -> None:
    """Raise IllegalTaskStateError unless a task may move from `old` to `new`."""
    if new not in ALLOWED_TRANSITIONS[old]:
        raise IllegalTaskStateError(f"task {task_id} cannot go from {old.value} to {new.value}")
