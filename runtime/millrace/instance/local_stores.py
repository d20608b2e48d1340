"""Finds the stores of an instance for queries from other threads (Java: `QueryableStoreProvider`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from millrace.engine.task import StreamTask
from millrace.errors import (
    InvalidStateStorePartitionError,
    StateStoreMigratedError,
    StateStoreNotAvailableError,
    StreamsNotStartedError,
    StreamsRebalancingError,
    UnknownStateStoreError,
)
from millrace.instance.states import State, ThreadState
from millrace.instance.stream_thread import StreamThread
from millrace.query import IsolationLevel, StoreQueryParameters
from millrace.query.read_only_stores import QueriedStore
from millrace.state.api import StateStore
from millrace.topology.physical_topology import BuiltTopology

__all__ = ["LocalStores"]


class LocalStores:
    """The stores of one instance.

    Args:
        topology: whose stores may be asked for.
        exactly_once: whether queries see committed rows only, unless they say otherwise.
        state: returns the client's state.
        threads: returns its stream threads.
        global_stores: returns its global stores by name.
    """

    def __init__(
        self,
        topology: BuiltTopology,
        *,
        exactly_once: bool,
        state: Callable[[], State],
        threads: Callable[[], Iterable[StreamThread]],
        global_stores: Callable[[], Mapping[str, StateStore]],
    ) -> None:
        self._names = {builder.name for part in topology.subtopologies for builder in part.store_builders}
        self._exactly_once = exactly_once
        self._state = state
        self._threads = threads
        self._global_stores = global_stores

    def find(self, wanted: StoreQueryParameters[Any]) -> list[QueriedStore]:
        """Return the stores of the tasks here.

        Raises:
            StreamsNotStartedError, StreamsRebalancingError, StateStoreNotAvailableError, StateStoreMigratedError,
            UnknownStateStoreError, InvalidStateStorePartitionError, InvalidStateStoreError: there is none to read.
        """
        state, name = self._state(), wanted.store_name
        if state is State.CREATED:
            raise StreamsNotStartedError(f"Cannot read state store {name!r} before KafkaStreams.start")
        if not state.is_running_or_rebalancing:
            raise StateStoreNotAvailableError(f"Cannot read state store {name!r}: the client is {state.value}")
        of_all_tasks = self._global_stores()
        if name in of_all_tasks:
            store: Any = of_all_tasks[name]
            wanted.store_type.check(store)
            if not store.is_open():
                raise StateStoreNotAvailableError(f"Cannot read global store {name!r}: it was closed")
            return [QueriedStore(store, committed=False)]
        if name not in self._names:
            known = ", ".join(sorted({*self._names, *of_all_tasks})) or "none"
            raise UnknownStateStoreError(f"The topology has no state store {name!r}; it has {known}")
        return self._of_tasks(wanted)

    def _of_tasks(self, wanted: StoreQueryParameters[Any]) -> list[QueriedStore]:
        level, name = wanted.isolation_level, wanted.store_name
        committed = self._exactly_once if level is None else level is IsolationLevel.READ_COMMITTED
        found: list[QueriedStore] = []
        for task in self._tasks(wanted):
            store: Any = task.stores.get(name)
            if store is None or wanted.partition not in (None, task.task_id.partition):
                continue
            wanted.store_type.check(store)
            queried = QueriedStore(store, committed)
            if not store.is_open():  # its task is about to leave; without it the answer would not be complete
                raise queried.migrated()
            found.append(queried)
        if found:
            return found
        if wanted.partition is not None:
            raise InvalidStateStorePartitionError(
                f"Partition {wanted.partition} of state store {name!r} is not on this instance"
            )
        raise StateStoreMigratedError(
            f"State store {name!r} is not on this instance, or not yet: streams_metadata_for_store names those that have it"
        )

    def _tasks(self, wanted: StoreQueryParameters[Any]) -> list[StreamTask]:
        """Return the tasks whose stores may be read, by their ids.

        Raises:
            StreamsRebalancingError: a thread is about to get other tasks, so the answer might lack some.
        """
        tasks: list[StreamTask] = []
        for thread in self._threads():
            manager, state = thread.tasks, thread.state
            if state is ThreadState.DEAD:
                continue
            if state is not ThreadState.RUNNING and not wanted.stale_stores:
                raise StreamsRebalancingError(
                    f"State store {wanted.store_name!r} cannot be read while a stream thread is {state.value}: try again soon, "
                    "or enable stale stores"
                )
            if manager is not None:
                tasks += manager.readable(stale=wanted.stale_stores)
        return sorted(tasks, key=attrgetter("task_id"))
