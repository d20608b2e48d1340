"""Which store a query wants, and as what (KIP-67, KIP-562).

A store with more can be read as one with less: a timestamped store as plain values, one with headers as either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, Generic, Self, TypeVar

from millrace.checks import Suggesting, mistake
from millrace.errors import InvalidStateStoreError
from millrace.query.read_only_stores import (
    FindStores,
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyWindowStore,
)
from millrace.records import ValueAndTimestamp
from millrace.state.api import StateStore, ValueTimestampHeaders
from millrace.state.key_value import KeyValueStore, TimestampedKeyValueStore, TimestampedKeyValueStoreWithHeaders
from millrace.state.session import AggregationWithHeaders, SessionStore, SessionStoreWithHeaders
from millrace.state.window import (
    JoinWindowStore,
    TimestampedWindowStore,
    TimestampedWindowStoreWithHeaders,
    WindowStore,
)

S = TypeVar("S")


class IsolationLevel(Enum):
    """Which rows a query sees (KIP-892)."""

    READ_COMMITTED = "read_committed"
    """Only what the task has committed. Stores in memory have no such state: all of their rows are read."""
    READ_UNCOMMITTED = "read_uncommitted"
    """Everything that the task itself sees, its record cache included. After a failure some of it may never have been."""


@dataclass(frozen=True, slots=True)
class QueryableStoreType(Generic[S]):
    """A kind of store, as a query reads it: see `QueryableStoreTypes`."""

    name: str
    accepted: tuple[type, ...]
    """The classes of stores that can be read so."""
    create: Callable[..., S]
    """Makes the read-only store, of the store's name, the function that finds the tasks' stores, and `convert`."""
    convert: Callable[[Any, Any], Any] | None = None
    """Turns the value of a store into the one that was asked for."""

    def accepts(self, store: StateStore) -> bool:
        """Tell whether a store can be read so."""
        return isinstance(store, self.accepted)

    def over(self, name: str, find: FindStores) -> S:
        """Return the read-only store."""
        return self.create(name, find, self.convert)

    def check(self, store: StateStore) -> None:
        """Check that a store can be read so.

        Raises:
            InvalidStateStoreError: it is a store of another kind.
        """
        if not self.accepts(store):
            fitting = [each.name for each in _ALL if each.accepts(store)]
            remedy = f"ask for {' or '.join(fitting)}" if fitting else "queries cannot read stores of this class"
            raise InvalidStateStoreError(
                f"State store {store.name!r} is a {type(store).__name__}, which cannot be read as {self.name}: {remedy}"
            )


def plain(store: object, value: Any) -> Any:
    """Return a value without timestamp and headers."""
    return value if isinstance(store, (KeyValueStore, WindowStore, JoinWindowStore)) else value.value


def timestamped(_store: object, value: Any) -> Any:
    """Return a value without headers."""
    return ValueAndTimestamp(value.value, value.timestamp) if isinstance(value, ValueTimestampHeaders) else value


def aggregation(store: object, value: Any) -> Any:
    """Return a session's aggregate without headers."""
    return value.aggregation if isinstance(store, SessionStoreWithHeaders) else value


_KEY_VALUE: Final[QueryableStoreType[ReadOnlyKeyValueStore[Any, Any]]] = QueryableStoreType(
    "key_value_store",
    (KeyValueStore, TimestampedKeyValueStore, TimestampedKeyValueStoreWithHeaders),
    ReadOnlyKeyValueStore,
    plain,
)
_TIMESTAMPED_KEY_VALUE: Final[QueryableStoreType[ReadOnlyKeyValueStore[Any, ValueAndTimestamp[Any]]]] = (
    QueryableStoreType(
        "timestamped_key_value_store",
        (TimestampedKeyValueStore, TimestampedKeyValueStoreWithHeaders),
        ReadOnlyKeyValueStore,
        timestamped,
    )
)
_KEY_VALUE_WITH_HEADERS: Final[QueryableStoreType[ReadOnlyKeyValueStore[Any, ValueTimestampHeaders[Any]]]] = (
    QueryableStoreType(
        "timestamped_key_value_store_with_headers", (TimestampedKeyValueStoreWithHeaders,), ReadOnlyKeyValueStore
    )
)
_WINDOW: Final[QueryableStoreType[ReadOnlyWindowStore[Any, Any]]] = QueryableStoreType(
    "window_store",
    (WindowStore, JoinWindowStore, TimestampedWindowStore, TimestampedWindowStoreWithHeaders),
    ReadOnlyWindowStore,
    plain,
)
_TIMESTAMPED_WINDOW: Final[QueryableStoreType[ReadOnlyWindowStore[Any, ValueAndTimestamp[Any]]]] = QueryableStoreType(
    "timestamped_window_store",
    (TimestampedWindowStore, TimestampedWindowStoreWithHeaders),
    ReadOnlyWindowStore,
    timestamped,
)
_WINDOW_WITH_HEADERS: Final[QueryableStoreType[ReadOnlyWindowStore[Any, ValueTimestampHeaders[Any]]]] = (
    QueryableStoreType(
        "timestamped_window_store_with_headers", (TimestampedWindowStoreWithHeaders,), ReadOnlyWindowStore
    )
)
_SESSION: Final[QueryableStoreType[ReadOnlySessionStore[Any, Any]]] = QueryableStoreType(
    "session_store", (SessionStore, SessionStoreWithHeaders), ReadOnlySessionStore, aggregation
)
_SESSION_WITH_HEADERS: Final[QueryableStoreType[ReadOnlySessionStore[Any, AggregationWithHeaders[Any]]]] = (
    QueryableStoreType("session_store_with_headers", (SessionStoreWithHeaders,), ReadOnlySessionStore)
)
_ALL: Final[tuple[QueryableStoreType[Any], ...]] = (
    _KEY_VALUE,
    _TIMESTAMPED_KEY_VALUE,
    _KEY_VALUE_WITH_HEADERS,
    _WINDOW,
    _TIMESTAMPED_WINDOW,
    _WINDOW_WITH_HEADERS,
    _SESSION,
    _SESSION_WITH_HEADERS,
)


class QueryableStoreTypes:
    """The kinds of stores that queries can read."""

    @staticmethod
    def key_value_store() -> QueryableStoreType[ReadOnlyKeyValueStore[Any, Any]]:
        """Return the type that reads keys and values; timestamps and headers are left out."""
        return _KEY_VALUE

    @staticmethod
    def timestamped_key_value_store() -> QueryableStoreType[ReadOnlyKeyValueStore[Any, ValueAndTimestamp[Any]]]:
        """Return the type that reads values with their timestamps, as tables keep them."""
        return _TIMESTAMPED_KEY_VALUE

    @staticmethod
    def timestamped_key_value_store_with_headers() -> QueryableStoreType[
        ReadOnlyKeyValueStore[Any, ValueTimestampHeaders[Any]]
    ]:
        """Return the type that reads values with timestamps and headers (KIP-1271)."""
        return _KEY_VALUE_WITH_HEADERS

    @staticmethod
    def window_store() -> QueryableStoreType[ReadOnlyWindowStore[Any, Any]]:
        """Return the type that reads windows of values; timestamps and headers are left out."""
        return _WINDOW

    @staticmethod
    def timestamped_window_store() -> QueryableStoreType[ReadOnlyWindowStore[Any, ValueAndTimestamp[Any]]]:
        """Return the type that reads windows of values with their timestamps, as windowed aggregations keep them."""
        return _TIMESTAMPED_WINDOW

    @staticmethod
    def timestamped_window_store_with_headers() -> QueryableStoreType[
        ReadOnlyWindowStore[Any, ValueTimestampHeaders[Any]]
    ]:
        """Return the type that reads windows of values with timestamps and headers (KIP-1271)."""
        return _WINDOW_WITH_HEADERS

    @staticmethod
    def session_store() -> QueryableStoreType[ReadOnlySessionStore[Any, Any]]:
        """Return the type that reads sessions; headers are left out."""
        return _SESSION

    @staticmethod
    def session_store_with_headers() -> QueryableStoreType[ReadOnlySessionStore[Any, AggregationWithHeaders[Any]]]:
        """Return the type that reads sessions with headers (KIP-1271)."""
        return _SESSION_WITH_HEADERS


@dataclass(frozen=True, slots=True)
class StoreQueryParameters(Suggesting, Generic[S]):
    """What `KafkaStreams.store` should return (KIP-562).

    >>> wanted = StoreQueryParameters.from_name_and_type("counts", QueryableStoreTypes.key_value_store())
    >>> wanted.with_partition(2).enable_stale_stores()
    StoreQueryParameters('counts', key_value_store, partition=2, stale)
    """

    store_name: str
    store_type: QueryableStoreType[S]
    partition: int | None = None
    """None: all partitions that are here."""
    stale_stores: bool = False
    """Whether standbys, and tasks that are being restored, are read too."""
    isolation_level: IsolationLevel | None = None
    """None: READ_COMMITTED under exactly-once, otherwise READ_UNCOMMITTED, as Java reads."""

    @classmethod
    def from_name_and_type(cls, store_name: str, store_type: QueryableStoreType[S]) -> Self:
        """Ask for a store by its name.

        Raises:
            TopologyError: an argument has the wrong type.
        """
        if not isinstance(store_name, str) or not isinstance(store_type, QueryableStoreType):
            raise mistake(
                f"A query needs the name of a store and one of QueryableStoreTypes, not {store_name!r} and {store_type!r}"
            )
        return cls(store_name, store_type)

    def with_partition(self, partition: int) -> Self:
        """Ask only for one partition."""
        return replace(self, partition=partition)

    def enable_stale_stores(self) -> Self:
        """Read standbys and tasks that are being restored too; what they have may be older."""
        return replace(self, stale_stores=True)

    def with_isolation_level(self, isolation_level: IsolationLevel) -> Self:
        """Choose between committed rows and all rows (KIP-892)."""
        return replace(self, isolation_level=isolation_level)

    def __repr__(self) -> str:
        parts = [repr(self.store_name), self.store_type.name]
        if self.partition is not None:
            parts.append(f"partition={self.partition}")
        if self.stale_stores:
            parts.append("stale")
        if self.isolation_level is not None:
            parts.append(self.isolation_level.value)
        return f"StoreQueryParameters({', '.join(parts)})"
