"""Window stores as processors use them: typed → record cache → change log → bytes store (segments or memory).

Times are milliseconds since the epoch. A window is identified by its start; its end is start + window size. Scans of several
keys are in the order of the bytes store (see `window_bytes_store`), merged with cached windows.

Where duplicates are retained, a sequence number tells apart the values of one key and time. Java counts from 1 in every new
task, so that a value may replace another one that was put as early in a former task, and a join loses results. Here the numbers
go on from the changelog's offset, which is not less than the last number: every put is logged. A store without a changelog looks
for its largest number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, overload

from millrace.dropped_records import DropReason
from millrace.records import Headers, KeyValue, ValueAndTimestamp, Window, Windowed
from millrace.serdes.base import AnySerde
from millrace.state.api import ChangelogRecord, DirectWindowAccess, LogChange, StoreContext, ValueTimestampHeaders
from millrace.state.cache import CacheEntry, StoreCache
from millrace.state.change_log import disk_rows, restored_offsets
from millrace.state.key_value import merge_cached
from millrace.state.keys import (
    MAX_INT,
    MAX_LONG,
    decode_window_key,
    encode_window_key,
    pack_window_suffix,
)
from millrace.state.layered_store import LayeredStore, TypedRows
from millrace.state.value_formats import ValueFormat
from millrace.state.values import (
    HeaderValues,
    Parts,
    PlainValues,
    TimestampedValues,
    Values,
    WriteBack,
)
from millrace.state.window_bytes_store import WindowBytesStore, WindowRow, WindowRows

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S")

_CACHE_SEGMENT_BYTES = 8
"""Java's cache keys start with a segment id."""


class TypedWindowStore(Values, LayeredStore[WindowBytesStore], Generic[K, S]):
    """What all window stores do; S is what `put` takes and `fetch` returns."""

    kind = "window"

    def __init__(
        self,
        bytes_store: WindowBytesStore,
        value_format: ValueFormat,
        key_serde: AnySerde | None,
        value_serde: AnySerde | None,
        *,
        window_size_ms: int,
        retain_duplicates: bool = False,
        caching: bool = False,
        logging: bool = True,
    ) -> None:
        super().__init__(bytes_store, value_format, key_serde, value_serde, caching=caching, logging=logging)
        self.window_size_ms = window_size_ms
        self.retain_duplicates = retain_duplicates
        self._seq = self._log_seq = 0
        """The sequence numbers of duplicates on disk and in the changelog, where nulls count too, since they are only logged."""

    def _wire(self, context: StoreContext, log: LogChange | None) -> None:
        self._log = log
        self._drop_record = context.drop_record
        self._from_disk = self._disk_reader()
        if self.retain_duplicates:
            partition = context.changelog_partition(self.name)
            if partition is None:
                self._seq = self._bytes_store.largest_number()
            else:
                offset = self._bytes_store.committed_offset(partition)
                self._count_from(-1 if offset is None else offset)

    def _count_from(self, offset: int) -> None:
        self._seq = self._log_seq = (offset + 1) & MAX_INT

    def _compile(self) -> None:
        self._write = self._window_writer()
        self._write_through = self._writer(self._write)
        read = self._reader(self._bytes_store.get)
        if self._cache is None:
            self._get, self._put = read, self._write_through
        else:
            self._get = self._cache_reader(self._cache, read)
            self._put = self._cache_writer(self._cache, _CACHE_SEGMENT_BYTES, of_windows=True)

    def _cache_reader(self, cache: StoreCache, read: Callable[[WindowRow], Any]) -> Callable[[WindowRow], Any]:
        """Return the function that reads the cache first; as in Java, values read from the bytes store are not cached."""
        find, touch, shareable, from_parts = cache.entries.get, cache.touch, self._shareable, self._from_parts

        def get(window: WindowRow) -> Any:
            row = window[0]
            entry = find(row)
            if entry is None:
                return read(window)
            touch(row)
            value = entry.value
            return value if shareable or value is None else from_parts(window, value)

        return get

    def _window_writer(self) -> Callable[..., None]:
        """Return the write path below the cache: bytes store, position, changelog (as in Java, even for dropped windows)."""
        put, position, log = self._bytes_store.put, self._bytes_store.position, self._log
        record, drop = self._record, self._drop_expired

        def write(
            window: WindowRow,
            disk: bytes | None,
            data: bytes | None,
            timestamp: int,
            headers: Headers,
            logged_as: bytes | None = None,
        ) -> None:
            if not put(window, disk):
                drop(window[1])
            else:
                topic = record.topic
                if topic is not None:
                    at = topic, record.partition
                    if record.offset > position.get(at, -1):  # evicted entries can be written after newer ones
                        position[at] = record.offset
            if log is not None:
                log(logged_as or window[0], data, timestamp, headers)

        return write

    def _drop_expired(self, start: int) -> None:
        rows = self._bytes_store
        self._drop_record(self.name, DropReason.EXPIRED, rows.observed_stream_time - start, rows.retention_ms)

    def direct(self) -> DirectWindowAccess:
        """Return look-up and write functions for operators that do both with one serialised key."""
        return DirectWindowAccess(self._topic, self._key_bytes, _locate, self._get, self._put)

    def restore(self, records: Sequence[ChangelogRecord]) -> None:
        """Apply changelog records, and note the offset they reach."""
        assert self._context is not None
        if self._cache is not None and self._cache.entries:
            for record in records:
                self._cache.forget(record.key)
        rows = disk_rows(records, self._format, self._bytes_store)
        self._bytes_store.restore_batch(rows, restored_offsets(records[-1:], self._context, self.name))
        if records and self.retain_duplicates:
            self._count_from(records[-1].offset)

    def put(self, key: K, value: S | None, window_start: int) -> None:
        """Set the value of a key's window; None deletes it (as in Java, if duplicates are retained, it is only logged)."""
        raw = self._key_bytes(self._topic, key)
        if type(window_start) is not int or not -MAX_LONG <= window_start <= MAX_LONG:
            window_start = self._timestamp(key, "the start of a window", window_start, -MAX_LONG - 1)
        if self.retain_duplicates:
            self._put_duplicate(raw, value, window_start)
        else:
            self._put(_locate(raw, window_start), value)

    def _put_duplicate(self, raw: bytes, value: S | None, start: int) -> None:
        self._log_seq = (self._log_seq + 1) & MAX_INT
        logged = encode_window_key(raw, start, self._log_seq)
        if value is None:
            if not self._bytes_store.observe(start):
                self._drop_expired(start)
            if self._log is not None:
                self._log(logged, None, self._record.timestamp, self._tombstone_headers())
            return
        self._seq = (self._seq + 1) & MAX_INT
        data, timestamp, headers = self._split(value)
        disk = self._format.to_disk(data, timestamp, headers)
        self._write((encode_window_key(raw, start, self._seq), start), disk, data, timestamp, headers, logged)

    @overload
    def fetch(self, key: K, time_from: int) -> S | None: ...
    @overload
    def fetch(self, key: K, time_from: int, time_to: int) -> Iterator[KeyValue[int, S]]: ...
    def fetch(self, key: K, time_from: int, time_to: int | None = None) -> Any:
        """Return the value of the window that starts at `time_from`, or iterate those that start in [from, to].

        The iterator yields (window start, value) pairs, oldest first.
        """
        raw = self._key_bytes(self._topic, key)
        if time_to is not None:
            return self._fetch_range(raw, time_from, time_to, reverse=False)
        return self._present(self._get((encode_window_key(raw, time_from, self._seq), time_from)))

    def backward_fetch(self, key: K, time_from: int, time_to: int) -> Iterator[KeyValue[int, S]]:
        """Iterate like `fetch`, newest window first."""
        return self._fetch_range(self._key_bytes(self._topic, key), time_from, time_to, reverse=True)

    def fetch_keys(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> Iterator[KeyValue[Windowed[K], S]]:
        """Iterate the windows of all keys in [key_from, key_to] that start in [time_from, time_to]; None is open."""
        return self._scan_keys(key_from, key_to, time_from, time_to, reverse=False)

    def backward_fetch_keys(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> Iterator[KeyValue[Windowed[K], S]]:
        """Iterate like `fetch_keys`, in the opposite order."""
        return self._scan_keys(key_from, key_to, time_from, time_to, reverse=True)

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[KeyValue[Windowed[K], S]]:
        """Iterate the windows of all keys that start in [time_from, time_to]."""
        return self._scan(None, None, time_from, time_to, reverse=False)

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[KeyValue[Windowed[K], S]]:
        """Iterate like `fetch_all`, in the opposite order."""
        return self._scan(None, None, time_from, time_to, reverse=True)

    def all(self) -> Iterator[KeyValue[Windowed[K], S]]:
        """Iterate every window within retention."""
        return self._scan(None, None, 0, MAX_LONG, reverse=False)

    def backward_all(self) -> Iterator[KeyValue[Windowed[K], S]]:
        """Iterate like `all`, in the opposite order."""
        return self._scan(None, None, 0, MAX_LONG, reverse=True)

    def _fetch_range(self, raw: bytes, time_from: int, time_to: int, *, reverse: bool) -> Iterator[KeyValue[int, S]]:
        from_disk, present = self._from_disk, self._present

        def pair_of_row(row: tuple[bytes, int, bytes]) -> KeyValue[int, S]:
            return KeyValue(row[1], present(from_disk(row, row[2])))

        def pair(window: tuple[bytes, int, S]) -> KeyValue[int, S]:
            return KeyValue(window[1], present(window[2]))

        scan = partial(self._bytes_store.scan, raw, raw, time_from, time_to, reverse=reverse)
        if self._cache is None or not self._cache.entries:
            return TypedRows(pair_of_row, scan())
        return TypedRows(pair, self._merged(scan, raw, raw, time_from, time_to, reverse))

    def _scan_keys(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int, *, reverse: bool
    ) -> Iterator[KeyValue[Windowed[K], S]]:
        lower = None if key_from is None else self._key_bytes(self._topic, key_from)
        upper = None if key_to is None else self._key_bytes(self._topic, key_to)
        if lower is not None and upper is not None and lower > upper:
            return iter(())
        return self._scan(lower, upper, time_from, time_to, reverse=reverse)

    def _scan(
        self, lower: bytes | None, upper: bytes | None, time_from: int, time_to: int, *, reverse: bool
    ) -> Iterator[KeyValue[Windowed[K], S]]:
        scan = partial(self._bytes_store.scan, lower, upper, time_from, time_to, reverse=reverse)
        key_of, topic, size, from_disk = self._key_of, self._topic, self.window_size_ms, self._from_disk
        present = self._present
        is_cached = self._cache is not None and bool(self._cache.entries)
        found: Iterator[tuple[bytes, int, Any]]
        found = self._merged(scan, lower, upper, time_from, time_to, reverse) if is_cached else scan()

        def pair(row: tuple[bytes, int, Any]) -> KeyValue[Windowed[K], S]:
            key, start, value = row
            if not is_cached:
                value = from_disk(row, value)
            try:
                return KeyValue(
                    Windowed(key_of(topic, key), Window(start, min(start + size, MAX_LONG))), present(value)
                )
            except Exception as error:
                raise self._unreadable(row, error) from error

        return TypedRows(pair, found)

    def _merged(
        self,
        scan: Callable[[], WindowRows],
        lower: bytes | None,
        upper: bytes | None,
        time_from: int,
        time_to: int,
        reverse: bool,  # noqa: FBT001 (always passed on)
    ) -> Iterator[tuple[bytes, int, S]]:
        """Merge cached windows, which are collected first, over those from below."""
        assert self._cache is not None
        if lower is not None and lower == upper:
            entries = self._cached_of(lower, time_from, time_to)
        else:
            entries = self._cache.scan(None, None)
        order = partial(self._bytes_store.order, of_keys=lower is not None or upper is not None)
        cached: list[tuple[Any, CacheEntry]] = []
        for cache_key, entry in entries:
            key, start, _ = decode_window_key(cache_key)
            if time_from <= start <= time_to and (lower is None or key >= lower) and (upper is None or key <= upper):
                cached.append(((order(key, start), key, start), entry))
        cached.sort(key=lambda pair: pair[0], reverse=reverse)
        below = (((order(key, start), key, start), data) for key, start, data in scan())
        return self._typed_windows(merge_cached(cached, below, reverse=reverse))

    def _cached_of(self, key: bytes, time_from: int, time_to: int) -> list[tuple[bytes, CacheEntry]]:
        assert self._cache is not None
        if time_to < 0:
            return []
        lower = encode_window_key(key, max(time_from, 0))
        return self._cache.scan(lower, encode_window_key(key, min(time_to, MAX_LONG), MAX_INT))

    def _typed_windows(self, rows: Iterator[tuple[Any, bytes | None, Any]]) -> Iterator[tuple[bytes, int, S]]:
        def typed(row: tuple[Any, bytes | None, Any]) -> tuple[bytes, int, S]:
            (_, key, start), data, cached = row
            if data is not None:
                return key, start, self._from_disk((key, start, data), data)
            return key, start, (cached if self._shareable else self._from_parts((key, start, cached), cached))

        return TypedRows(typed, rows)

    def _shown(self, row: tuple[bytes, int] | tuple[bytes, int, object]) -> str:
        raw, start, *scanned = row
        key = raw if scanned else decode_window_key(raw).key
        return f"{super()._shown(key)} in the window that starts at {start}"

    def _compile_write_back(self) -> WriteBack:
        return self._write_back_of(
            self._bytes_store.get,
            self._write,
            self._write_through,
            self._listener,
            send_old_values=self._send_old_values,
            window_size_ms=self.window_size_ms,
        )


def _locate(key: bytes, start: int) -> WindowRow:
    return key + pack_window_suffix(start, 0), start


class WindowStore(PlainValues, TypedWindowStore[K, V]):
    """A window store of plain values."""


class JoinWindowStore(PlainValues, TypedWindowStore[K, V]):
    """The window store of one side of a stream-stream join: every record is kept, and logged with its headers (since 4.3)."""

    def _split(self, value: object) -> Parts:
        return self._value_bytes(self._topic, value), self._record.timestamp, self._record.headers

    def _tombstone_headers(self) -> Headers:
        return self._record.headers


class TimestampedWindowStore(TimestampedValues, TypedWindowStore[K, ValueAndTimestamp[V]]):
    """A window store of values with timestamps; windowed aggregations are kept in these."""

    def put(self, key: K, value: ValueAndTimestamp[V] | None, window_start: int) -> None:
        """Set the value of a key's window; None, or a value that is None, deletes it."""
        super().put(key, self._checked(key, value), window_start)


class TimestampedWindowStoreWithHeaders(HeaderValues, TypedWindowStore[K, ValueTimestampHeaders[V]]):
    """A window store of values with timestamp and headers (KIP-1271)."""

    def put(self, key: K, value: ValueTimestampHeaders[V] | None, window_start: int) -> None:
        """Set the value of a key's window; None, or a value that is None, deletes it."""
        super().put(key, self._checked(key, value), window_start)
