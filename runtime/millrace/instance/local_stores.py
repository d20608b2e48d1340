"""Finds the stores of an instance for queries from other threads (Java: `QueryableStoreProvider`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from millrace.engine.task import StreamTask
from millrace.errors import (
    InvalidStateStorePartitionError,
    StateStoreMigratedError,
    StateStoreNotAvailableError,
    StreamsNotStartedError,
    StreamsRebalancingError,
    StreamsStoppedError,
    UnknownStateStoreError,
)
from millrace.instance.states import State, ThreadState
from millrace.instance.stream_thread import StreamThread
from millrace.query import (
    FailureReason,
    IsolationLevel,
    PositionBound,
    QueryResult,
    StateQueryRequest,
    StateQueryResult,
    StoreQueryParameters,
)
from millrace.query.answering import answer
from millrace.query.read_only_stores import QueriedStore
from millrace.state.api import StateStore
from millrace.topology.physical_topology import BuiltTopology

__all__ = ["LocalStores"]

R = TypeVar("R")


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
        self._check_name(name)
        return self._of_tasks(wanted)

    def query(self, request: StateQueryRequest[R]) -> StateQueryResult[R]:
        """Return what the tasks here answer.

        Raises:
            StreamsNotStartedError, StreamsStoppedError, UnknownStateStoreError: nothing can be asked.
            SerializationError: the key cannot be serialised.
        """
        state, name = self._state(), request.store_name
        of_all_tasks = self._global_stores()
        if name not in of_all_tasks:
            self._check_name(name)
        if state is State.CREATED:
            raise StreamsNotStartedError(f"Cannot query state store {name!r} before KafkaStreams.start")
        if not state.is_running_or_rebalancing:
            raise StreamsStoppedError(f"Cannot query state store {name!r}: the client is {state.value}")
        if name in of_all_tasks:
            return StateQueryResult(global_result=self._ask(of_all_tasks[name], request, None, active=True))
        results: dict[int, QueryResult[R]] = {}
        for thread in self._threads():
            if thread.tasks is None or thread.state is ThreadState.DEAD:
                continue
            for task, running in thread.tasks.open_tasks():
                partition, store = task.task_id.partition, task.stores.get(name)
                if store is not None and (request.partitions is None or partition in request.partitions):
                    active = running and thread.state is ThreadState.RUNNING
                    results[partition] = self._ask(store, request, partition, active=active)
        for partition in (request.partitions or frozenset()) - results.keys():
            results[partition] = QueryResult(
                failure_reason=FailureReason.NOT_PRESENT,
                failure_message=f"Partition {partition} of state store {name!r} is not on this instance",
            )
        return StateQueryResult(dict(sorted(results.items())))

    def _ask(
        self, store: StateStore, request: StateQueryRequest[Any], partition: int | None, *, active: bool
    ) -> QueryResult[Any]:
        if request.active_required and not active:
            return QueryResult(
                failure_reason=FailureReason.NOT_ACTIVE,
                failure_message=f"The task of partition {partition} of state store {store.name!r} is not active here, or not yet",
            )
        return answer(
            store,
            request.query,
            partition=partition,
            committed=partition is not None and self._committed(request.isolation_level),
            bound=PositionBound.unbounded() if request.active_required else request.position_bound,
            execution_info=request.execution_info_enabled,
        )

    def _check_name(self, name: str) -> None:
        if name not in self._names:
            known = ", ".join(sorted({*self._names, *self._global_stores()})) or "none"
            raise UnknownStateStoreError(f"The topology has no state store {name!r}; it has {known}")

    def _committed(self, level: IsolationLevel | None) -> bool:
        return self._exactly_once if level is None else level is IsolationLevel.READ_COMMITTED

    def _of_tasks(self, wanted: StoreQueryParameters[Any]) -> list[QueriedStore]:
        committed, name = self._committed(wanted.isolation_level), wanted.store_name
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
