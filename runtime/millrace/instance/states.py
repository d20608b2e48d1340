"""The states of a stream thread and of the whole client, and the moves between them (Kafka Streams' own).

Two states are Millrace's own: DRAINING and DRAINED, when an instance gives up its tasks before its process ends.

Client: CREATED → REBALANCING ⇄ RUNNING; either → PENDING_SHUTDOWN → NOT_RUNNING when closed, or → PENDING_ERROR → ERROR
when a thread has died and is not replaced. `kafka_streams` and `stream_thread` make the moves.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from millrace.errors import StreamsError

__all__ = [
    "THREAD_TRANSITIONS",
    "ClientLifecycle",
    "State",
    "StateListener",
    "ThreadState",
    "UncaughtExceptionHandler",
    "UncaughtExceptionResponse",
]

_log = logging.getLogger(__name__)


class ThreadState(Enum):
    """The state of a stream thread."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    PARTITIONS_REVOKED = "PARTITIONS_REVOKED"
    PARTITIONS_ASSIGNED = "PARTITIONS_ASSIGNED"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    DEAD = "DEAD"


class State(Enum):
    """The state of a `KafkaStreams` client."""

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    PENDING_ERROR = "PENDING_ERROR"
    ERROR = "ERROR"
    DRAINING = "DRAINING"
    """It commits, closes its tasks and leaves the group. Listed after Java's own states, as gauges show the order."""
    DRAINED = "DRAINED"
    """It has left the group for good, and is waiting to be closed."""

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


class UncaughtExceptionResponse(Enum):
    """What to do when a stream thread has died (KIP-671)."""

    REPLACE_THREAD = "replace thread"
    SHUTDOWN_CLIENT = "shut down client"
    SHUTDOWN_APPLICATION = "shut down application"


UncaughtExceptionHandler = Callable[[Exception], UncaughtExceptionResponse]
"""Called with the exception that killed a stream thread."""

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
_CLIENT_TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
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


class ClientLifecycle:
    """The state of one client: changes it, notifies the listener, and lets others wait for the end.

    Args:
        application_id: named in the log.
        lock: the client's; held while the state changes, never while the listener runs.
    """

    def __init__(self, application_id: str, lock: threading.RLock) -> None:
        self.state = State.CREATED
        self.listener: StateListener | None = None
        self._application_id = application_id
        self._lock = lock
        self._ended = threading.Condition(lock)
        self._changes: deque[tuple[State, State]] = deque()
        self._telling = False
        """Whether a thread is calling the state listener; it also reports changes made meanwhile."""

    def require_created(self, what: str) -> None:
        """Raise StreamsError if the client has been started."""
        if self.state is not State.CREATED:
            raise StreamsError(
                f"Cannot {what} while {self.state.value}: it is possible only before start, and a client starts only once"
            )

    def set(self, new: State) -> None:
        """Change the state and tell the listener, if the transition is allowed."""
        self.move(new)
        self.tell()

    def move(self, new: State) -> None:
        """Change the state, if the transition is allowed; the holder of the lock must call `tell` after releasing it."""
        with self._lock:
            old = self.state
            if old is new or new not in _CLIENT_TRANSITIONS[old]:
                return
            self.state = new
            self._changes.append((new, old))
            self._ended.notify_all()
        _log.info("%s: %s → %s", self._application_id, old.value, new.value)

    def tell(self) -> None:
        """Tell the listener of changes, without a lock; if another thread is calling it, that thread does so."""
        while True:
            with self._lock:
                if self._telling or not self._changes:
                    return
                new, old = self._changes.popleft()
                self._telling = True
            try:
                if self.listener is not None:
                    self.listener(new, old)
            except BaseException as error:  # the user's code
                if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                    raise  # Ctrl-C, or sys.exit() where it ends the program
                _log.exception("The state listener failed")
            finally:
                with self._lock:
                    self._telling = False

    def wait_for_end(self, timeout_s: float | None) -> bool:
        """Wait until the client has ended; return whether it has."""
        with self._ended:
            return self._ended.wait_for(lambda: self.state.has_ended, timeout_s)
