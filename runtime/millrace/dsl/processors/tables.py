"""What all table operators share: access to a table's values, whether they are stored or computed on the fly.

Every operator that yields a table has a `TableProcessor`. While the graph is built, it may be asked to send the
old value along with each new one (only if needed, since that may force a store), and asked how others can look up the table's
current value of a key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from millrace.processor.node import NodeContext, ProcessFn
from millrace.records import Headers, ValueAndTimestamp, Windowed
from millrace.state.api import CachedStateStore, DirectAccess
from millrace.state.layered_store import LayeredStore
from millrace.state.versioned import VersionedKeyValueStore

NOT_PUT = -(2**63)
"""What a versioned store returns for an update that is too old; nothing is forwarded."""
IS_LATEST = -1
"""What it returns for an update that is the newest of its key."""

Joiner = Callable[[Any, Any, Any], object]
"""key, value of the left or of this side, value of the right or of the other side (None if there is none) → result."""
Found = tuple[object, int] | None
"""Value and timestamp (ms), or None."""
Lookup = Callable[[Any], Found]
LookupAsOf = Callable[[Any, int], Found]
"""Takes a key and a timestamp (ms)."""
Put = Callable[[Any, Any, int], int]
"""Takes key, value and timestamp (ms); returns what a versioned store does."""
ChangeParts = tuple[object, object, bool]
"""What travels on the edges of tables, a `Change` or a plain tuple: new value, old value, whether it is the newest of its key."""
AnyVersionedStore = VersionedKeyValueStore[Any, Any]


@dataclass(frozen=True, slots=True)
class ValueGetter:
    """Looks up the current value of a table, or, for versioned tables, the value at a point in time."""

    get: Lookup
    get_as_of: LookupAsOf | None = None
    """Only for versioned tables: key and timestamp (ms)."""


@dataclass(frozen=True, slots=True)
class View:
    """How to look up a table's values from another node, and the stores that node must be connected to."""

    store_names: tuple[str, ...]
    open: Callable[[NodeContext], ValueGetter]


class TableProcessor(Protocol):
    """The definition of a node whose output is a table."""

    def send_old_values(self, *, force: bool) -> bool:
        """Send old values from now on, if forced even if the table has to be materialised; return whether it sends them."""

    def view(self) -> View:
        """Return how to look up the table's values."""

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""


class DirectStore(Protocol):
    """A store whose values operators read and write by serialised key."""

    def direct(self) -> DirectAccess:
        """Return the functions that do it."""


class TableStore:
    """A table's store as operators use it: the same functions for timestamped and versioned stores.

    `direct` is for operators that read and write the same key: see `DirectAccess`. Its `put` returns None for an update that is
    the newest of its key, or what a versioned store does.
    """

    __slots__ = ("direct", "get", "get_as_of", "put", "store")

    def __init__(self, store: DirectStore | AnyVersionedStore) -> None:
        self.store = store
        self.get: Lookup
        self.put: Put
        self.get_as_of: LookupAsOf | None = None
        self.direct: DirectAccess
        if isinstance(store, VersionedKeyValueStore):
            self._use_versioned(store)
        else:
            self._use_timestamped(store.direct())

    def _use_timestamped(self, direct: DirectAccess) -> None:
        topic, key_bytes, get, _, put = direct

        def put_value(key: object, value: object, timestamp: int) -> int:
            put(key_bytes(topic, key), (value, timestamp))
            return IS_LATEST

        self.direct = direct
        self.get = lambda key: get(key_bytes(topic, key))
        self.put = put_value

    def _use_versioned(self, store: AnyVersionedStore) -> None:
        get, put = store.get, store.put

        def get_latest(key: object) -> Found:
            record = get(key)
            return None if record is None else (record.value, record.timestamp)

        def get_as_of(key: object, timestamp: int) -> Found:
            record = get(key, timestamp)
            return None if record is None else (record.value, record.timestamp)

        def put_pair(key: object, pair: tuple[object, int]) -> int | None:
            code: int = put(key, *pair)
            return None if code == IS_LATEST else code

        self.direct = DirectAccess("", lambda _topic, key: key, get_latest, get_latest, put_pair)
        self.get, self.put, self.get_as_of = get_latest, put, get_as_of

    def getter(self) -> ValueGetter:
        """Return the look-up of this store."""
        return ValueGetter(self.get, self.get_as_of)


def store_view(name: str) -> View:
    """Return the look-up of a materialised table."""
    return View((name,), lambda node: TableStore(node.state_store(name)).getter())


def mapped_view(parent: View, compute: Callable[[Any, Any], object]) -> View:
    """Return the look-up of a table that is computed from another one's values by key and value (which may be None)."""

    def open_view(node: NodeContext) -> ValueGetter:
        getter = parent.open(node)
        get_parent, get_parent_as_of = getter.get, getter.get_as_of

        def get(key: object) -> Found:
            found = get_parent(key)
            if found is None:
                return None
            value = compute(key, found[0])
            return None if value is None else (value, found[1])

        def get_as_of(key: object, timestamp: int) -> Found:
            assert get_parent_as_of is not None
            found = get_parent_as_of(key, timestamp)
            if found is None:
                return None
            value = compute(key, found[0])
            return None if value is None else (value, found[1])

        return ValueGetter(get, None if get_parent_as_of is None else get_as_of)

    return View(parent.store_names, open_view)


def forward_flushed(
    node: NodeContext, store: object, *, send_old_values: bool, timestamp_of: Callable[[Any, int], int] | None = None
) -> bool:
    """Forward what the record cache flushes; return False if the store is not cached and the node has to forward.

    Args:
        node: whose children get the updates.
        store: of the node.
        send_old_values: send the value before the update too.
        timestamp_of: key and timestamp of the update → the timestamp to forward it with (ms).
    """
    if not isinstance(store, CachedStateStore):
        return False
    forward = node.forward

    def forward_at_its_time(key: object, change: object, timestamp: int, headers: Headers) -> None:
        assert timestamp_of is not None
        forward(key, change, timestamp_of(key, timestamp), headers)

    listener = forward if timestamp_of is None else forward_at_its_time
    if isinstance(store, LayeredStore):
        store.flush_failed = node.processing_failed
    return store.set_flush_listener(listener, send_old_values=send_old_values)


ForwardChange = Callable[[Any, Any, Any, int, Headers, bool], None]
"""key, new value, old value, timestamp, headers, whether it is the newest of its key."""


def change_forwarder(node: NodeContext, store: object, *, send_old_values: bool) -> ForwardChange:
    """Return a function that forwards an update that was put into a store: at once, or not if the cache forwards it when flushed.

    `store` is the state store itself. With a record cache the returned function does nothing, and what is flushed is
    forwarded instead: the last value since the previous flush with the one before that.
    """
    forward = node.forward

    def with_old(key: object, new: object, old: object, timestamp: int, headers: Headers, is_latest: bool) -> None:  # noqa: FBT001
        forward(key, (new, old, is_latest), timestamp, headers)

    def without_old(key: object, new: object, old: object, timestamp: int, headers: Headers, is_latest: bool) -> None:  # noqa: ARG001, FBT001
        forward(key, (new, None, is_latest), timestamp, headers)

    def nothing(key: object, new: object, old: object, timestamp: int, headers: Headers, is_latest: bool) -> None:  # noqa: FBT001
        pass

    if forwards_when_flushed(node, store, send_old_values=send_old_values):
        return nothing
    return with_old if send_old_values else without_old


def forwards_when_flushed(node: NodeContext, store: object, *, send_old_values: bool) -> bool:
    """Return whether a store is cached, so that the node must not forward; if so, flushed entries are forwarded instead."""

    def listen() -> None:
        forward_flushed(node, store, send_old_values=send_old_values)

    cached = isinstance(store, CachedStateStore) and store.cached
    if cached:
        node.on_init(listen)
    return cached


def window_view(store_name: str) -> View:
    """Return the look-up of a table kept in a window store; its keys are `Windowed`."""

    def open_view(node: NodeContext) -> ValueGetter:
        fetch = node.state_store(store_name).fetch

        def get(key: Windowed[Any]) -> Found:
            found: Found = fetch(key.key, key.window.start)
            return found

        return ValueGetter(get)

    return View((store_name,), open_view)


def session_view(store_name: str) -> View:
    """Return the look-up of a table kept in a session store; its keys are `Windowed`."""

    def open_view(node: NodeContext) -> ValueGetter:
        fetch_session = node.state_store(store_name).fetch_session

        def get(key: Windowed[Any]) -> Found:
            start, end = key.window
            value = fetch_session(key.key, start, end)
            return None if value is None else ValueAndTimestamp(value, end)

        return ValueGetter(get)

    return View((store_name,), open_view)
