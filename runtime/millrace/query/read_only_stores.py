"""The stores that queries read: the same store of several tasks, as if it were one.

Each call asks for the tasks' stores anew, so that it finds what has moved here, and fails if a store has moved away. It reads a
view of them (`LayeredStore.view`), which does not hold up the thread that writes them.

Ranges go through one store after the other, as in Java: rows are in order within a partition, not across partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Generic, NamedTuple, Self, TypeVar, overload

from millrace.errors import StateStoreMigratedError
from millrace.records import KeyValue, Windowed
from millrace.serdes.base import AnySerde
from millrace.state.layered_store import LayeredStore

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class QueriedStore(NamedTuple):
    """The store of one task."""

    store: LayeredStore[Any]
    committed: bool
    """Whether only committed rows are read."""
    cached: bool = True
    """Whether the record cache is read too, if not only committed rows are."""

    def read(self, question: Callable[[Any], T]) -> T:
        """Return the answer of the store as it is now.

        Raises:
            StateStoreMigratedError: it was closed meanwhile.
        """
        try:
            answer = question(self.store.view(committed=self.committed, cached=self.cached))
        except Exception as error:
            if self.store.is_open():
                raise
            raise self.migrated() from error
        if not self.store.is_open():
            raise self.migrated()
        return answer

    def migrated(self) -> StateStoreMigratedError:
        """Return the error of a store that was closed."""
        return StateStoreMigratedError(
            f"State store {self.store.name!r} was closed while it was read: its task has moved to another instance or thread, or "
            "has ended. Call KafkaStreams.store again, and ask the instance that streams_metadata_for_store names"
        )


FindStores = Callable[[], Sequence[QueriedStore]]
"""Returns the stores to read, at least one.

Raises InvalidStateStoreError: there is none here now.
"""


class StoreIterator(Generic[T]):
    """Rows of a query, from snapshots of the stores. Close it, or use it with `with`: it holds files of RocksDB until then.

    It need not be closed if it was read to its end. Of a store that emits on close, the index is a snapshot: its rows are
    read as they are now.
    """

    def __init__(self, rows: Iterator[T]) -> None:
        self._rows = rows
        self._next: list[T] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """Return the next row.

        Raises:
            StateStoreMigratedError: the store was closed meanwhile; rows are missing.
        """
        return self._next.pop() if self._next else next(self._rows)

    def peek(self) -> T | None:
        """Return the next row without going on to it, or None at the end (Java's `peekNextKey` is `peek().key`)."""
        if not self._next:
            for row in self._rows:
                self._next.append(row)
                break
        return self._next[0] if self._next else None

    def close(self) -> None:
        """Release the snapshots; there are no more rows."""
        self._next.clear()
        self._rows, rows = iter(()), self._rows
        close = getattr(rows, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class _ReadOnlyStore:
    """What read-only stores of every kind share.

    Args:
        name: the store's name.
        find: returns the stores of the tasks.
        convert: turns their values into those that were asked for; None: they are.
    """

    def __init__(self, name: str, find: FindStores, convert: Callable[[Any, Any], Any] | None = None) -> None:
        self.name = name
        self._find = find
        self._convert = convert

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def _first(self, question: Callable[[Any], Any]) -> Any:
        """Return the first answer that is not None."""
        for queried in self._find():
            value = queried.read(question)
            if value is not None:
                return value if self._convert is None else self._convert(queried.store, value)
        return None

    def _first_rows(self, question: Callable[[Any], Iterator[Any]]) -> StoreIterator[Any]:
        """Return the rows of the first store that has any: those of one key are in one partition."""
        for queried in self._find():
            rows = StoreIterator(self._rows_of(queried, question))
            if rows.peek() is not None:
                return rows
        return StoreIterator(iter(()))

    def _all_rows(self, question: Callable[[Any], Iterator[Any]]) -> StoreIterator[Any]:
        stores = self._find()
        return StoreIterator(_Chained([self._rows_of(queried, question) for queried in stores]))

    def _rows_of(self, queried: QueriedStore, question: Callable[[Any], Iterator[Any]]) -> StoreRows:
        convert = self._convert
        present = None if convert is None else convert_values(convert)
        return StoreRows(queried, queried.read(question), present)


def convert_values(convert: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the function that converts the value of a row."""
    return lambda store, row: KeyValue(row.key, convert(store, row.value))


class StoreRows:
    """The rows of one store; an error as soon as the store is closed, since rows may be missing then.

    Args:
        queried: the store.
        rows: what its view returned.
        convert: turns a row of the store (the first argument) into the one that was asked for; None: it is.
    """

    def __init__(self, queried: QueriedStore, rows: Iterator[Any], convert: Callable[[Any, Any], Any] | None) -> None:
        self._queried = queried
        self._rows = rows
        self._convert = convert
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next row.

        Raises:
            StateStoreMigratedError: the store was closed meanwhile.
        """
        if self._ended:
            raise StopIteration
        try:
            row = next(self._rows, None)
        except Exception as error:
            if self._queried.store.is_open():
                raise
            self.close()
            raise self._queried.migrated() from error
        if not self._queried.store.is_open():
            self.close()
            raise self._queried.migrated()
        if row is None:
            self.close()
            raise StopIteration
        return row if self._convert is None else self._convert(self._queried.store, row)

    def close(self) -> None:
        """Release the snapshot."""
        self._ended = True
        self._rows, rows = iter(()), self._rows
        close = getattr(rows, "close", None)
        if close is not None:
            close()


class _Chained:
    """Rows of several stores, one after the other."""

    def __init__(self, parts: list[StoreRows]) -> None:
        self._parts = parts
        self._rows = chain.from_iterable(parts)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._rows)

    def close(self) -> None:
        for part in self._parts:
            part.close()


class ReadOnlyKeyValueStore(_ReadOnlyStore, Generic[K, V]):
    """A key-value store for queries, returned by `KafkaStreams.store`.

    Every method raises `InvalidStateStoreError` if the store is not here now; its subclasses say why.
    """

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        value: V | None = self._first(lambda store: store.get(key))
        return value

    def range(self, key_from: K | None = None, key_to: K | None = None) -> StoreIterator[KeyValue[K, V]]:
        """Iterate the pairs with key_from <= key <= key_to in the order of the serialised keys; None is open."""
        return self._all_rows(lambda store: store.range(key_from, key_to))

    def reverse_range(self, key_from: K | None = None, key_to: K | None = None) -> StoreIterator[KeyValue[K, V]]:
        """Iterate like `range`, from the greatest key down."""
        return self._all_rows(lambda store: store.reverse_range(key_from, key_to))

    def all(self) -> StoreIterator[KeyValue[K, V]]:
        """Iterate all pairs."""
        return self._all_rows(lambda store: store.all())

    def reverse_all(self) -> StoreIterator[KeyValue[K, V]]:
        """Iterate all pairs from the greatest key down."""
        return self._all_rows(lambda store: store.reverse_all())

    def prefix_scan(self, prefix: Any, prefix_serde: AnySerde | None = None) -> StoreIterator[KeyValue[K, V]]:
        """Iterate the pairs whose serialised key starts with a prefix (see `KeyValueStore.prefix_scan`)."""
        return self._all_rows(lambda store: store.prefix_scan(prefix, prefix_serde))

    def approximate_num_entries(self) -> int:
        """Return roughly how many keys there are."""
        return sum(queried.read(lambda store: store.approximate_num_entries()) for queried in self._find())


class ReadOnlyWindowStore(_ReadOnlyStore, Generic[K, V]):
    """A window store for queries, returned by `KafkaStreams.store`; times are the starts of windows (ms).

    Every method raises `InvalidStateStoreError` if the store is not here now; its subclasses say why.
    """

    @overload
    def fetch(self, key: K, time_from: int) -> V | None: ...
    @overload
    def fetch(self, key: K, time_from: int, time_to: int) -> StoreIterator[KeyValue[int, V]]: ...
    def fetch(self, key: K, time_from: int, time_to: int | None = None) -> Any:
        """Return the value of the window that starts at `time_from`, or iterate those that start in [from, to]."""
        if time_to is None:
            return self._first(lambda store: store.fetch(key, time_from))
        return self._first_rows(lambda store: store.fetch(key, time_from, time_to))

    def backward_fetch(self, key: K, time_from: int, time_to: int) -> StoreIterator[KeyValue[int, V]]:
        """Iterate like `fetch`, newest window first."""
        return self._first_rows(lambda store: store.backward_fetch(key, time_from, time_to))

    def fetch_keys(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate the windows of all keys in [key_from, key_to] that start in [time_from, time_to]; None is open."""
        return self._all_rows(lambda store: store.fetch_keys(key_from, key_to, time_from, time_to))

    def backward_fetch_keys(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate like `fetch_keys`, in the opposite order."""
        return self._all_rows(lambda store: store.backward_fetch_keys(key_from, key_to, time_from, time_to))

    def fetch_all(self, time_from: int, time_to: int) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate the windows of all keys that start in [time_from, time_to]."""
        return self._all_rows(lambda store: store.fetch_all(time_from, time_to))

    def backward_fetch_all(self, time_from: int, time_to: int) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate like `fetch_all`, in the opposite order."""
        return self._all_rows(lambda store: store.backward_fetch_all(time_from, time_to))

    def all(self) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate every window within retention."""
        return self._all_rows(lambda store: store.all())

    def backward_all(self) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate like `all`, in the opposite order."""
        return self._all_rows(lambda store: store.backward_all())


class ReadOnlySessionStore(_ReadOnlyStore, Generic[K, V]):
    """A session store for queries, returned by `KafkaStreams.store`; times are in ms.

    Every method raises `InvalidStateStoreError` if the store is not here now; its subclasses say why.
    """

    def fetch_session(self, key: K, start: int, end: int) -> V | None:
        """Return the aggregate of the session with exactly these bounds, or None."""
        value: V | None = self._first(lambda store: store.fetch_session(key, start, end))
        return value

    def find_sessions(self, key: K, earliest_end: int, latest_start: int) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate a key's sessions that end at `earliest_end` or later and start at `latest_start` or earlier."""
        return self._first_rows(lambda store: store.find_sessions(key, earliest_end, latest_start))

    def backward_find_sessions(
        self, key: K, earliest_end: int, latest_start: int
    ) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate like `find_sessions`, latest session first."""
        return self._first_rows(lambda store: store.backward_find_sessions(key, earliest_end, latest_start))

    def find_sessions_of_keys(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int
    ) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate like `find_sessions` for all keys in [key_from, key_to]; None is open."""
        return self._all_rows(lambda store: store.find_sessions_of_keys(key_from, key_to, earliest_end, latest_start))

    def backward_find_sessions_of_keys(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int
    ) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate like `find_sessions_of_keys`, in the opposite order."""
        return self._all_rows(
            lambda store: store.backward_find_sessions_of_keys(key_from, key_to, earliest_end, latest_start)
        )

    def fetch(self, key: K) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate all sessions of a key."""
        return self._first_rows(lambda store: store.fetch(key))

    def backward_fetch(self, key: K) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate all sessions of a key, latest first."""
        return self._first_rows(lambda store: store.backward_fetch(key))

    def fetch_keys(self, key_from: K | None, key_to: K | None) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate all sessions of the keys in [key_from, key_to]; None is open."""
        return self._all_rows(lambda store: store.fetch_keys(key_from, key_to))

    def backward_fetch_keys(self, key_from: K | None, key_to: K | None) -> StoreIterator[KeyValue[Windowed[K], V]]:
        """Iterate like `fetch_keys`, in the opposite order."""
        return self._all_rows(lambda store: store.backward_fetch_keys(key_from, key_to))
