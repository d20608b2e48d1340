"""How the store of one task answers a query (Java: `StoreQueryUtils` and the `query` methods of its layers).

As in Java, only the queries for one key read the record cache. All others read what has been flushed, and their position is
that of the flushed rows. So a position bound that is taken from a key's answer may have to wait for the next commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from millrace.errors import StateStoreMigratedError, UnreadableRowError
from millrace.query.position import Position, PositionBound
from millrace.query.queries import (
    KeyQuery,
    MultiVersionedKeyQuery,
    Query,
    RangeQuery,
    ResultOrder,
    TimestampedKeyQuery,
    TimestampedKeyWithHeadersQuery,
    TimestampedRangeQuery,
    TimestampedRangeWithHeadersQuery,
    TimestampedWindowKeyWithHeadersQuery,
    TimestampedWindowRangeWithHeadersQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from millrace.query.read_only_stores import QueriedStore, StoreIterator, StoreRows, convert_values
from millrace.query.state_query import FailureReason, QueryResult
from millrace.query.store_types import QueryableStoreTypes, aggregation, plain, timestamped
from millrace.records import KeyValue, Record, Window, Windowed
from millrace.state.api import StateStore, ValueTimestampHeaders
from millrace.state.keys import MAX_LONG
from millrace.state.versioned import VersionedKeyValueStore

_FOR_ONE_KEY: Final = (KeyQuery, TimestampedKeyQuery, TimestampedKeyWithHeadersQuery)


class _Plan(NamedTuple):
    """How stores of some classes answer a query."""

    classes: tuple[type, ...]
    read: Callable[[Any], Any]
    """Takes the store's view; returns a value, or an iterator of rows."""
    convert: Callable[[Any, Any], Any] | None = None
    """Turns the value, or each row, of the store (the first argument) into the one that was asked for."""


_KEY_VALUE: Final = QueryableStoreTypes.key_value_store().accepted
_TIMESTAMPED: Final = QueryableStoreTypes.timestamped_key_value_store().accepted
_WITH_HEADERS: Final = QueryableStoreTypes.timestamped_key_value_store_with_headers().accepted
_WINDOW: Final = QueryableStoreTypes.window_store().accepted
_WINDOW_WITH_HEADERS: Final = QueryableStoreTypes.timestamped_window_store_with_headers().accepted
_SESSION: Final = QueryableStoreTypes.session_store().accepted
_SESSION_WITH_HEADERS: Final = QueryableStoreTypes.session_store_with_headers().accepted
_VERSIONED: Final = (VersionedKeyValueStore,)


def _get(query: Any) -> Callable[[Any], Any]:
    return lambda view: view.get(query.key)


def _range(query: Any) -> Callable[[Any], Any]:
    name = "reverse_range" if query.order is ResultOrder.DESCENDING else "range"
    return lambda view: getattr(view, name)(query.lower, query.upper)


def _windows(query: Any) -> Callable[[Any], Any]:
    return lambda view: view.fetch(query.key, query.time_from, query.time_to)


def _windows_or_sessions(query: Any) -> Callable[[Any], Any]:
    if query.key is not None:
        return lambda view: view.fetch(query.key)
    return lambda view: view.fetch_all(query.time_from, query.time_to)


def _versions(query: MultiVersionedKeyQuery[Any, Any]) -> Callable[[Any], Any]:
    ascending = query.order is ResultOrder.ASCENDING
    return lambda view: view.get_versions(query.key, query.time_from, query.time_to, ascending=ascending)


def _record(key: Any, value: ValueTimestampHeaders[Any]) -> Record[Any, Any]:
    return Record(key, value.value, value.timestamp, value.headers)


def _row_record(_store: object, row: KeyValue[Any, ValueTimestampHeaders[Any]]) -> Record[Any, Any]:
    return _record(*row)


def _session_record(_store: object, row: KeyValue[Windowed[Any], Any]) -> Record[Any, Any]:
    return Record(row.key, row.value.aggregation, row.key.window.end, row.value.headers)


def _window_record(key: Any) -> Callable[[Any, Any], Any]:
    def record(store: Any, row: KeyValue[int, ValueTimestampHeaders[Any]]) -> Record[Any, Any]:
        return _record(Windowed(key, Window(row.key, min(row.key + store.window_size_ms, MAX_LONG))), row.value)

    return record


_PLANS: Final[dict[type, Callable[[Any], _Plan]]] = {
    KeyQuery: lambda query: _Plan(_KEY_VALUE, _get(query), plain),
    TimestampedKeyQuery: lambda query: _Plan(_TIMESTAMPED, _get(query), timestamped),
    TimestampedKeyWithHeadersQuery: lambda query: _Plan(
        _WITH_HEADERS, _get(query), lambda _store, value: _record(query.key, value)
    ),
    RangeQuery: lambda query: _Plan(_KEY_VALUE, _range(query), convert_values(plain)),
    TimestampedRangeQuery: lambda query: _Plan(_TIMESTAMPED, _range(query), convert_values(timestamped)),
    TimestampedRangeWithHeadersQuery: lambda query: _Plan(_WITH_HEADERS, _range(query), _row_record),
    WindowKeyQuery: lambda query: _Plan(_WINDOW, _windows(query), convert_values(timestamped)),
    TimestampedWindowKeyWithHeadersQuery: lambda query: _Plan(
        _WINDOW_WITH_HEADERS, _windows(query), _window_record(query.key)
    ),
    WindowRangeQuery: lambda query: (
        _Plan(_WINDOW, _windows_or_sessions(query), convert_values(timestamped))
        if query.key is None
        else _Plan(_SESSION, _windows_or_sessions(query), convert_values(aggregation))
    ),
    TimestampedWindowRangeWithHeadersQuery: lambda query: (
        _Plan(_WINDOW_WITH_HEADERS, _windows_or_sessions(query), _row_record)
        if query.key is None
        else _Plan(_SESSION_WITH_HEADERS, _windows_or_sessions(query), _session_record)
    ),
    VersionedKeyQuery: lambda query: _Plan(_VERSIONED, lambda view: view.get(query.key, query.as_of_timestamp)),
    MultiVersionedKeyQuery: lambda query: _Plan(_VERSIONED, _versions(query)),
}
"""How each query is answered."""


def answer(
    store: StateStore,
    query: Query[Any],
    *,
    partition: int | None,
    committed: bool,
    bound: PositionBound,
    execution_info: bool,
) -> QueryResult[Any]:
    """Return what a store answers to a query; never waits for the store's thread.

    Args:
        store: any store of a task, or a global store.
        query: what to ask.
        partition: of the store's task; None for a global store.
        committed: whether only committed rows are read.
        bound: how new the answer must be.
        execution_info: whether to tell what was done.

    Raises:
        SerializationError: the key cannot be serialised.
    """
    started = time.perf_counter_ns()
    make_plan = _PLANS.get(type(query))
    plan = None if make_plan is None else make_plan(query)
    if plan is None or not isinstance(store, plan.classes):
        return QueryResult(
            failure_reason=FailureReason.UNKNOWN_QUERY_TYPE,
            failure_message=f"Store {store.name!r} is a {type(store).__name__}, which cannot answer {query!r}",
        )
    named: Any = store
    cached = isinstance(query, _FOR_ONE_KEY) and not query.skips_cache
    queried = QueriedStore(named, committed, cached=cached)
    result = _answer(queried, plan, bound, partition)
    if not execution_info:
        return result
    duration = time.perf_counter_ns() - started
    return replace(result, execution_info=(f"{type(store).__name__} {store.name!r} answered in {duration} ns",))


def _answer(queried: QueriedStore, plan: _Plan, bound: PositionBound, partition: int | None) -> QueryResult[Any]:
    store, position = queried.store, Position.empty()

    def read(view: Any) -> Any:
        nonlocal position
        position = Position(view.position)
        return plan.read(view) if bound.permits(position, partition) else None

    try:
        found = queried.read(read)
    except StateStoreMigratedError as error:
        return QueryResult(failure_reason=FailureReason.NOT_PRESENT, failure_message=str(error))
    except UnreadableRowError as error:
        return QueryResult(failure_reason=FailureReason.STORE_EXCEPTION, failure_message=str(error), position=position)
    if not bound.permits(position, partition):
        return QueryResult(
            failure_reason=FailureReason.NOT_UP_TO_BOUND,
            failure_message=f"Store {store.name!r} is at {position}, not yet at {bound.position}",
            position=position,
        )
    if isinstance(found, Iterator):
        return QueryResult(StoreIterator(StoreRows(queried, found, plan.convert)), position=position)
    value = found if found is None or plan.convert is None else plan.convert(store, found)
    return QueryResult(value, position=position)
