"""Key-value stores as processors use them.

Their layers, from the user down:

1. `KeyValueStore`: serdes, objects in and out;
2. `StoreCache`: holds writes back (only with caching enabled and a cache budget above 0);
3. `change_log.compile_write`: disk value format, position, changelog record;
4. a bytes store: RocksDB or memory.

If its serde is `shareable`, a cached value is the user's own object; otherwise it is the serde's bytes, so that nobody can change
what the cache holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

from millrace.records import NO_HEADERS, KeyValue, ValueAndTimestamp
from millrace.serdes.base import AnySerde
from millrace.state.api import ChangelogRecord, DirectAccess, LogChange, StoreContext, ValueTimestampHeaders
from millrace.state.bytes_store import KeyValueBytesStore
from millrace.state.cache import CacheEntry, StoreCache
from millrace.state.change_log import Write, compile_write, disk_rows, restored_offsets
from millrace.state.layered_store import LayeredStore, TypedRows
from millrace.state.memory import LruKeyValueStore
from millrace.state.ordered_map import prefix_upper_bound
from millrace.state.values import HeaderValues, PlainValues, TimestampedValues, Values, WriteBack

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S")


class TypedKeyValueStore(Values, LayeredStore[KeyValueBytesStore], Generic[K, S]):
    """What all key-value stores do; S is what `put` takes and `get` returns."""

    def _wire(self, context: StoreContext, log: LogChange | None) -> None:
        self._from_disk = self._disk_reader()
        if isinstance(self._bytes_store, LruKeyValueStore) and log is not None and self.logs_evictions:
            self._bytes_store.on_eviction = lambda key: log(key, None, self._record.timestamp, NO_HEADERS)
        self._write: Write = compile_write(self._bytes_store, log, context)

    def _compile(self) -> None:
        self._write_through = self._writer(self._write)
        if self._cache is None:
            self._get = self._get_for_update = self._reader(self._bytes_store.get)
            self._put = self._write_through
        else:
            self._get = self._cache_reader(self._cache, is_use=True)
            self._get_for_update = self._cache_reader(self._cache, is_use=False)
            self._put = self._cache_writer(self._cache)

    def _cache_reader(self, cache: StoreCache, *, is_use: bool) -> Callable[[bytes], Any]:
        """Return the function that reads through the cache; if a write follows, the write counts as the use of the entry."""
        find, touch, load, shareable, from_parts = (
            cache.entries.get,
            cache.touch,
            self._load,
            self._shareable,
            self._from_parts,
        )

        def get(raw: bytes) -> Any:
            entry = find(raw)
            if entry is None:
                return load(cache, raw)
            if is_use:
                touch(raw)
            value = entry.value
            return value if shareable or value is None else from_parts(raw, value)

        return get

    def direct(self) -> DirectAccess:
        """Return look-up and write functions for operators that do both with one serialised key."""
        return DirectAccess(self._topic, self._key_bytes, self._get, self._get_for_update, self._put)

    def restore(self, records: Sequence[ChangelogRecord]) -> None:
        """Apply changelog records, and note the offset they reach."""
        assert self._context is not None
        if self._cache is not None and self._cache.entries:
            for record in records:
                self._cache.forget(record.key)
        rows = disk_rows(records, self._format, self._bytes_store)
        self._bytes_store.restore_batch(rows, restored_offsets(records[-1:], self._context, self.name))

    # Reading and writing.

    def get(self, key: K) -> S | None:
        """Return the value of a key, or None."""
        return cast("S | None", self._present(self._get(self._key_bytes(self._topic, key))))

    def put(self, key: K, value: S | None) -> None:
        """Set the value of a key; None deletes it."""
        self._put(self._key_bytes(self._topic, key), value)

    def put_if_absent(self, key: K, value: S | None) -> S | None:
        """Set the value of a key if it has none; return the existing value (None: it was set)."""
        old = self.get(key)
        if old is None:
            self.put(key, value)
        return old

    def put_all(self, entries: Iterable[tuple[K, S | None]]) -> None:
        """Put several pairs, in order."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: K) -> S | None:
        """Delete a key, and return the value it had."""
        old = self.get(key)
        self.put(key, None)
        return old

    def range(self, key_from: K | None = None, key_to: K | None = None) -> Iterator[KeyValue[K, S]]:
        """Iterate the pairs with key_from <= key <= key_to in the order of the serialised keys; None is open."""
        return self._range(key_from, key_to, reverse=False)

    def reverse_range(self, key_from: K | None = None, key_to: K | None = None) -> Iterator[KeyValue[K, S]]:
        """Iterate like `range`, from the greatest key down."""
        return self._range(key_from, key_to, reverse=True)

    def all(self) -> Iterator[KeyValue[K, S]]:
        """Iterate all pairs in the order of the serialised keys."""
        return self._scan(None, None, reverse=False)

    def reverse_all(self) -> Iterator[KeyValue[K, S]]:
        """Iterate all pairs from the greatest key down."""
        return self._scan(None, None, reverse=True)

    def prefix_scan(self, prefix: Any, prefix_serde: AnySerde | None = None) -> Iterator[KeyValue[K, S]]:
        """Iterate the pairs whose serialised key starts with a prefix.

        Args:
            prefix: bytes are used unchanged, unless a serde is given.
            prefix_serde: serialises the prefix; the store's key serde if None.
        """
        if prefix_serde is not None:
            raw = prefix_serde.serialize(self._topic, prefix)
        else:
            raw = prefix if isinstance(prefix, bytes) else self._key_bytes(self._topic, prefix)
        return self._scan(raw, prefix_upper_bound(raw), reverse=False, upper_inclusive=False)

    def approximate_num_entries(self) -> int:
        """Return roughly how many keys there are (cached writes not counted, as in Java)."""
        return self._bytes_store.approximate_num_entries()

    def _range(self, key_from: K | None, key_to: K | None, *, reverse: bool) -> Iterator[KeyValue[K, S]]:
        lower = None if key_from is None else self._key_bytes(self._topic, key_from)
        upper = None if key_to is None else self._key_bytes(self._topic, key_to)
        if lower is not None and upper is not None and lower > upper:
            return iter(())
        return self._scan(lower, upper, reverse=reverse)

    def _scan(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool, upper_inclusive: bool = True
    ) -> Iterator[KeyValue[K, S]]:
        cached = []  # looked at first: in views, entries are written to the rows meanwhile
        if self._cache is not None:
            cached = self._cache.scan(lower, upper, reverse=reverse)
            if not upper_inclusive:
                cached = [pair for pair in cached if pair[0] != upper]
        rows = self._bytes_store.scan(lower, upper, reverse=reverse, upper_inclusive=upper_inclusive)
        return self._merged(merge_cached(cached, rows, reverse=reverse)) if cached else self._typed(rows)

    def _typed(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[KeyValue[K, S]]:
        key_of, from_disk, present, topic = self._key_of, self._from_disk, self._present, self._topic

        def pair(row: tuple[bytes, bytes]) -> KeyValue[K, S]:
            key, data = row
            value = present(from_disk(key, data))
            try:
                return KeyValue(key_of(topic, key), value)
            except Exception as error:
                raise self._unreadable(key, error) from error

        return TypedRows(pair, rows)

    def _merged(self, rows: Iterator[tuple[bytes, bytes | None, Any]]) -> Iterator[KeyValue[K, S]]:
        key_of, from_disk, present, topic = self._key_of, self._from_disk, self._present, self._topic

        def pair(row: tuple[bytes, bytes | None, Any]) -> KeyValue[K, S]:
            key, data, cached = row
            if data is None and not self._shareable:
                cached = self._from_parts(key, cached)
            value = cached if data is None else from_disk(key, data)
            try:
                return KeyValue(key_of(topic, key), present(value))
            except Exception as error:
                raise self._unreadable(key, error) from error

        return TypedRows(pair, rows)

    # Called by the cache.

    def _load(self, cache: StoreCache, raw: bytes) -> Any:
        data = self._bytes_store.get(raw)
        if data is None:
            return None
        value = self._from_disk(raw, data)
        if self._shareable:
            cache.load(raw, value, self._size(value))
        else:
            cache.load(raw, self._format.from_disk(data), len(data))
        return value

    def _compile_write_back(self) -> WriteBack:
        return self._write_back_of(
            self._bytes_store.get,
            self._write,
            self._write_through,
            self._listener,
            send_old_values=self._send_old_values,
        )


class KeyValueStore(PlainValues, TypedKeyValueStore[K, V]):
    """A store of plain values.

    >>> from millrace.state.stores import Stores
    >>> builder = Stores.key_value_store_builder(Stores.in_memory_key_value_store("counts"), None, None)
    """


class TimestampedKeyValueStore(TimestampedValues, TypedKeyValueStore[K, ValueAndTimestamp[V]]):
    """A store of values with the timestamp of the record that last changed them; tables are kept in these."""

    def put(self, key: K, value: ValueAndTimestamp[V] | None) -> None:
        """Set the value of a key; None, or a value that is None, deletes it."""
        super().put(key, self._checked(key, value))


class TimestampedKeyValueStoreWithHeaders(HeaderValues, TypedKeyValueStore[K, ValueTimestampHeaders[V]]):
    """A store of values with timestamp and headers (KIP-1271); the changelog records carry the headers."""

    def put(self, key: K, value: ValueTimestampHeaders[V] | None) -> None:
        """Set the value of a key; None, or a value that is None, deletes it."""
        super().put(key, self._checked(key, value))


def merge_cached(
    cached: list[tuple[Any, CacheEntry]], rows: Iterator[tuple[object, bytes]], *, reverse: bool
) -> Iterator[tuple[Any, bytes | None, Any]]:
    """Merge cache entries over rows from below: (key, row, None) or (key, None, cached value); deletes in the cache hide rows."""
    row = next(rows, None)
    for key, entry in cached:
        while row is not None and (row[0] > key if reverse else row[0] < key):
            yield row[0], row[1], None
            row = next(rows, None)
        if row is not None and row[0] == key:
            row = next(rows, None)
        value = entry.value
        if value is not None:
            yield key, None, value
    while row is not None:
        yield row[0], row[1], None
        row = next(rows, None)
