"""The states of a stream thread and of the whole client, and the moves between them (Kafka Streams' own).

Two states are Millrace's own: DRAINING and DRAINED, when an instance gives its tasks up before its process is ended.

Client: CREATED → REBALANCING ⇄ RUNNING; either → PENDING_SHUTDOWN → NOT_RUNNING when closed, or → PENDING_ERROR → ERROR
when the last thread has died or a handler said so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

__all__ = ["CLIENT_TRANSITIONS", "THREAD_TRANSITIONS", "State", "StateListener", "ThreadState"]


class ThreadState(Enum):
    """Where a stream thread is in its life."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    PARTITIONS_REVOKED = "PARTITIONS_REVOKED"
    PARTITIONS_ASSIGNED = "PARTITIONS_ASSIGNED"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    DEAD = "DEAD"


class State(Enum):
    """Where a `KafkaStreams` client is in its life."""

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    PENDING_ERROR = "PENDING_ERROR"
    ERROR = "ERROR"
    DRAINING = "DRAINING"
    """It commits, closes its tasks and leaves the group. After Java's own states, whose order gauges show."""
    DRAINED = "DRAINED"
    """It has left the group for good, and waits to be closed."""

    @property
    def is_running_or_rebalancing(self) -> bool:
        """Whether records are, or soon will be, processed."""
        return self in (State.RUNNING, State.REBALANCING)

    @property
    def has_ended(self) -> bool:
        """Whether the client will never process again."""
        return self in (State.NOT_RUNNING, State.ERROR)


StateListener = Callable[[State, State], None]
"""Called with the new and the old state."""

_T = ThreadState
THREAD_TRANSITIONS: Final[Mapping[ThreadState, frozenset[ThreadState]]] = {
    _T.CREATED: frozenset({_T.STARTING, _T.PENDING_SHUTDOWN}),
    _T.STARTING: frozenset({_T.PARTITIONS_REVOKED, _T.PARTITIONS_ASSIGNED, _T.PENDING_SHUTDOWN}),
    _T.PARTITIONS_REVOKED: frozenset({_T.PARTITIONS_REVOKED, _T.PARTITIONS_ASSIGNED, _T.PENDING_SHUTDOWN}),
    _T.PARTITIONS_ASSIGNED: frozenset({_T.PARTITIONS_REVOKED, _T.PARTITIONS_ASSIGNED, _T.RUNNING, _T.PENDING_SHUTDOWN}),
    _T.RUNNING: frozenset({_T.PARTITIONS_REVOKED, _T.PARTITIONS_ASSIGNED, _T.RUNNING, _T.PENDING_SHUTDOWN}),
    _T.PENDING_SHUTDOWN: frozenset({_T.DEAD}),
    _T.DEAD: frozenset(),
}

_S = State
CLIENT_TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    _S.CREATED: frozenset({_S.REBALANCING, _S.PENDING_SHUTDOWN}),
    _S.REBALANCING: frozenset({_S.RUNNING, _S.DRAINING, _S.PENDING_SHUTDOWN, _S.PENDING_ERROR}),
    _S.RUNNING: frozenset({_S.REBALANCING, _S.DRAINING, _S.PENDING_SHUTDOWN, _S.PENDING_ERROR}),
    _S.DRAINING: frozenset({_S.DRAINED, _S.PENDING_SHUTDOWN}),
    _S.DRAINED: frozenset({_S.PENDING_SHUTDOWN}),
    _S.PENDING_SHUTDOWN: frozenset({_S.NOT_RUNNING}),
    _S.PENDING_ERROR: frozenset({_S.ERROR}),
    _S.NOT_RUNNING: frozenset(),
    _S.ERROR: frozenset({_S.PENDING_SHUTDOWN}),
}
