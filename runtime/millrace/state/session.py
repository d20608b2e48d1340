"""Session stores as processors use them: typed → record cache → change log → bytes store (segments or memory).

A session is a key with the times of its first and its last record (ms, both inclusive); it is written under `Windowed(key,
Window(start, end))`. The caller merges sessions: it finds those that a record touches, removes them, and puts the merged one.

Sessions with headers (KIP-1271) are stored in the session format with headers (formats §2) if the supplier has it; otherwise
only the aggregates are stored. Changelog records have the headers in any case, and deletions have the headers of the record
that caused them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast

from millrace.checks import shown
from millrace.dropped_records import DropReason
from millrace.errors import SerializationError, UnreadableRowError
from millrace.records import NO_HEADERS, Headers, KeyValue, Window, Windowed
from millrace.state.api import ChangelogRecord, LogChange, StoreContext
from millrace.state.cache import CacheEntry
from millrace.state.change_log import disk_rows, restored_offsets
from millrace.state.key_value import merge_cached
from millrace.state.keys import MAX_LONG, SessionKey, decode_session_key, encode_session_key
from millrace.state.layered_store import LayeredStore, TypedRows
from millrace.state.session_bytes_store import SessionBytesStore, SessionRows
from millrace.state.value_formats import SESSION_HEADERS
from millrace.state.values import Parts, PlainValues, Values, value_size

K = TypeVar("K")
A = TypeVar("A")

_CACHE_SEGMENT_BYTES = 8


class TypedSessionStore(Values, LayeredStore[SessionBytesStore], Generic[K, A]):
    """What all session stores do; A is what `put` takes and `fetch` returns."""

    kind = "session"

    def _wire(self, context: StoreContext, log: LogChange | None) -> None:
        self._log = log
        self._drop_record = context.drop_record
        self._from_disk = self._disk_reader()
        self._latest_cached_end = 0

    def view(self, *, committed: bool, cached: bool = True) -> Self:
        """Return the store as threads other than its own may read it (see `LayeredStore.view`)."""
        view = super().view(committed=committed, cached=cached)
        view._latest_cached_end = MAX_LONG  # noqa: SLF001 (a changed copy)
        return view

    def restore(self, records: Sequence[ChangelogRecord]) -> None:
        """Apply changelog records, and note the offset they reach."""
        assert self._context is not None
        if self._cache is not None and self._cache.entries:
            for record in records:
                self._cache.forget(record.key)
        rows = disk_rows(records, self._format, self._bytes_store)
        self._bytes_store.restore_batch(rows, restored_offsets(records[-1:], self._context, self.name))

    def put(self, session: Windowed[K], aggregate: A | None) -> None:
        """Set a session's aggregate; None deletes it."""
        raw = self._session_key(session)
        if self._cache is None:
            self._write(raw, None if aggregate is None else self._split(aggregate))
        else:
            self._latest_cached_end = max(self._latest_cached_end, raw.end)
            self._put_cached(self._cache_key(raw), aggregate)

    def remove(self, session: Windowed[K]) -> None:
        """Delete a session. Unlike a put of None, it is never counted as a dropped record and never advances stream time."""
        if self._cache is None:
            self._write(self._session_key(session), None, removes=True)
        else:
            self.put(session, None)

    def _session_key(self, session: Windowed[K]) -> SessionKey:
        try:
            key, (start, end) = session
        except (TypeError, ValueError):
            raise SerializationError(
                f"Store {self.name!r}: a session is a Windowed(key, Window(start, end)), not {shown(session)}"
            ) from None
        if type(start) is not int or type(end) is not int or not 0 <= start <= end <= MAX_LONG:
            start = self._timestamp(key, "the start of a session", start, 0)
            end = self._timestamp(key, "the end of a session", end, start)
        return SessionKey(self._key_bytes(self._topic, key), start, end)

    def _cache_key(self, session: SessionKey) -> bytes:
        return encode_session_key(*session)

    def _put_cached(self, cache_key: bytes, aggregate: A | None) -> None:
        assert self._cache is not None
        if aggregate is None:
            self._cache.put(cache_key, None, _CACHE_SEGMENT_BYTES)
        elif self._shareable:
            aggregate = cast("A", self._as_read(aggregate))
            self._cache.put(cache_key, aggregate, self._size(aggregate) + _CACHE_SEGMENT_BYTES)
        else:
            parts = self._split(aggregate)
            self._cache.put(cache_key, parts, len(parts[0]) + _CACHE_SEGMENT_BYTES)

    def _write(self, session: SessionKey, parts: Parts | None, *, removes: bool = False) -> None:
        """Write one session below the cache: bytes store, position, changelog."""
        record = self._record
        if parts is None:
            data, disk, headers = None, None, self._tombstone_headers()
        else:
            data, timestamp, headers = parts
            disk = self._format.to_disk(data, timestamp, headers)
        if not (self._bytes_store.remove(session) if removes else self._bytes_store.put(session, disk)):
            if not removes:
                late_ms, retention_ms = (
                    self._bytes_store.observed_stream_time - session.end,
                    self._bytes_store.retention_ms,
                )
                self._drop_record(self.name, DropReason.EXPIRED, late_ms, retention_ms)
        elif record.topic is not None:
            position, at = self._bytes_store.position, (record.topic, record.partition)
            if record.offset > position.get(at, -1):  # evicted entries can be written after newer ones
                position[at] = record.offset
        if self._log is not None:
            self._log(encode_session_key(*session), data, record.timestamp, headers)

    def fetch_session(self, key: K, start: int, end: int) -> A | None:
        """Return the aggregate of the session with exactly these bounds, or None."""
        raw = SessionKey(self._key_bytes(self._topic, key), start, end)
        if self._cache is not None:
            cache_key = self._cache_key(raw)
            entry = self._cache.entries.get(cache_key)
            if entry is not None:
                self._cache.touch(cache_key)
                value = entry.value
                return cast("A | None", value if self._shareable or value is None else self._from_parts(raw, value))
        data = self._bytes_store.get(raw)
        return None if data is None else cast("A", self._from_disk(raw, data))

    def find_sessions(self, key: K, earliest_end: int, latest_start: int) -> Iterator[KeyValue[Windowed[K], A]]:
        """Iterate a key's sessions that end at `earliest_end` or later and start at `latest_start` or earlier."""
        raw = self._key_bytes(self._topic, key)
        return self._find(raw, raw, earliest_end, latest_start, reverse=False)

    def backward_find_sessions(
        self, key: K, earliest_end: int, latest_start: int
    ) -> Iterator[KeyValue[Windowed[K], A]]:
        """Iterate like `find_sessions`, latest session first."""
        raw = self._key_bytes(self._topic, key)
        return self._find(raw, raw, earliest_end, latest_start, reverse=True)

    def find_sessions_of_keys(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int
    ) -> Iterator[KeyValue[Windowed[K], A]]:
        """Iterate like `find_sessions` for all keys in [key_from, key_to]; None is open."""
        return self._find(self._raw(key_from), self._raw(key_to), earliest_end, latest_start, reverse=False)

    def backward_find_sessions_of_keys(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int
    ) -> Iterator[KeyValue[Windowed[K], A]]:
        """Iterate like `find_sessions_of_keys`, in the opposite order."""
        return self._find(self._raw(key_from), self._raw(key_to), earliest_end, latest_start, reverse=True)

    def find_sessions_ended(self, earliest_end: int, latest_end: int) -> Iterator[KeyValue[Windowed[K], A]]:
        """Iterate the sessions of all keys that end in [earliest_end, latest_end], in order of their end; for emit on close."""
        find = partial(self._bytes_store.find_ended, earliest_end, latest_end)
        if self._cache is None or not self._cache.entries:
            return self._typed(find())
        return self._merged(
            find,
            self._cache.scan(None, None),
            lambda session: earliest_end <= session.end <= latest_end,
            lambda session: (session.end, session.start, session.key),
        )

    def fetch(self, key: K) -> Iterator[KeyValue[Windowed[K], A]]:
        """Iterate all sessions of a key."""
        return self.find_sessions(key, 0, MAX_LONG)

    def backward_fetch(self, key: K) -> Iterator[KeyValue[Windowed[K], A]]:
        """Iterate all sessions of a key, latest first."""
        return self.backward_find_sessions(key, 0, MAX_LONG)

    def fetch_keys(self, key_from: K | None, key_to: K | None) -> Iterator[KeyValue[Windowed[K], A]]:
        """Iterate all sessions of the keys in [key_from, key_to]; None is open."""
        return self.find_sessions_of_keys(key_from, key_to, 0, MAX_LONG)

    def backward_fetch_keys(self, key_from: K | None, key_to: K | None) -> Iterator[KeyValue[Windowed[K], A]]:
        """Iterate like `fetch_keys`, in the opposite order."""
        return self.backward_find_sessions_of_keys(key_from, key_to, 0, MAX_LONG)

    def _raw(self, key: K | None) -> bytes | None:
        return None if key is None else self._key_bytes(self._topic, key)

    def _find(
        self, lower: bytes | None, upper: bytes | None, earliest_end: int, latest_start: int, *, reverse: bool
    ) -> Iterator[KeyValue[Windowed[K], A]]:
        if lower is not None and upper is not None and lower > upper:
            return iter(())
        find = partial(self._bytes_store.find, lower, upper, earliest_end, latest_start, reverse=reverse)
        if self._cache is None or not self._cache.entries:
            return self._typed(find())
        if lower is not None and lower == upper:
            first = encode_session_key(lower, 0, max(earliest_end, 0))
            entries = self._cache.scan(first, encode_session_key(lower, MAX_LONG, self._latest_cached_end))
        else:
            entries = self._cache.scan(None, None)
        return self._merged(
            find,
            entries,
            lambda session: (
                session.end >= earliest_end
                and session.start <= latest_start
                and (lower is None or session.key >= lower)
                and (upper is None or session.key <= upper)
            ),
            self._bytes_store.order,
            reverse=reverse,
        )

    def _typed(self, rows: SessionRows) -> Iterator[KeyValue[Windowed[K], A]]:
        from_disk, windowed = self._from_disk, self._windowed

        def typed(row: tuple[SessionKey, bytes]) -> KeyValue[Windowed[K], A]:
            return KeyValue(windowed(row[0]), from_disk(*row))

        return TypedRows(typed, rows)

    def _windowed(self, session: SessionKey) -> Windowed[K]:
        try:
            key = self._key_of(self._topic, session.key)
        except Exception as error:
            raise self._unreadable(session, error) from error
        return Windowed(key, Window(session.start, session.end))

    def _shown(self, row: SessionKey) -> str:
        return f"{super()._shown(row.key)} in the session from {row.start} to {row.end}"

    def _merged(
        self,
        find: Callable[[], SessionRows],
        entries: list[tuple[bytes, CacheEntry]],
        wanted: Callable[[SessionKey], bool],
        order: Callable[[SessionKey], Any],
        *,
        reverse: bool = False,
    ) -> Iterator[KeyValue[Windowed[K], A]]:
        """Merge cached sessions, which are collected first, over those from below."""
        sessions = [(decode_session_key(cache_key), entry) for cache_key, entry in entries]
        cached: list[tuple[Any, CacheEntry]] = [((order(s), s), entry) for s, entry in sessions if wanted(s)]
        cached.sort(key=lambda pair: pair[0], reverse=reverse)
        below = (((order(session), session), data) for session, data in find())
        return self._typed_merged(merge_cached(cached, below, reverse=reverse))

    def _typed_merged(self, rows: Iterator[tuple[Any, bytes | None, Any]]) -> Iterator[KeyValue[Windowed[K], A]]:
        def typed(row: tuple[Any, bytes | None, Any]) -> KeyValue[Windowed[K], A]:
            (_, session), data, cached = row
            if data is not None:
                return KeyValue(self._windowed(session), self._from_disk(session, data))
            return KeyValue(self._windowed(session), cached if self._shareable else self._from_parts(session, cached))

        return TypedRows(typed, rows)

    def _write_back(self, cache_key: bytes, entry: CacheEntry) -> None:
        session = decode_session_key(cache_key)
        cached, listener = entry.value, self._listener
        old_data: bytes | None = None
        if listener is not None and (cached is None or self._send_old_values):
            old_data = self._bytes_store.get(session)
            if old_data is None and cached is None:
                return
        try:
            parts = None if cached is None else self._split(cached) if self._shareable else cached
        except Exception as error:
            self._write_failed(session, error)
        self._write(session, parts)
        if listener is None:
            return
        key = new = None
        try:
            key = self._windowed(session)
            new = (
                None if cached is None else self._bare(cached if self._shareable else self._from_parts(session, cached))
            )
            old = (
                None
                if old_data is None or not self._send_old_values
                else self._bare(self._from_disk(session, old_data))
            )
        except UnreadableRowError as error:
            self._flush_failed(error, key, new, entry)
            return
        headers = NO_HEADERS if self._format == SESSION_HEADERS else entry.headers
        listener(key, (new, old, True), entry.timestamp, headers)


class SessionStore(PlainValues, TypedSessionStore[K, A]):
    """A session store of aggregates A."""


class AggregationWithHeaders(NamedTuple, Generic[A]):
    """A session's aggregate and its headers.

    >>> AggregationWithHeaders(7, Headers([("trace", b"1")])).headers.last("trace")
    b'1'
    """

    aggregation: A
    headers: Headers = NO_HEADERS


class SessionStoreWithHeaders(TypedSessionStore[K, AggregationWithHeaders[A]]):
    """A session store of aggregates with headers; changelog records have the timestamp of the record being processed."""

    def put(self, session: Windowed[K], aggregate: AggregationWithHeaders[A] | None) -> None:
        """Set a session's aggregate; None, or an aggregate that is None, deletes it."""
        if aggregate is not None and (not isinstance(aggregate, tuple) or len(aggregate) != 2):
            raise self._wrong_value(session[0], "an AggregationWithHeaders(aggregation, headers), or None", aggregate)
        if aggregate is None or aggregate[0] is None:
            super().put(session, None)
        else:
            aggregation, headers = aggregate
            super().put(session, AggregationWithHeaders(aggregation, Headers(headers)))

    def _split(self, value: Any) -> Parts:
        return self._value_bytes(self._topic, value[0]), self._record.timestamp, value[1]

    def _join(self, parts: Parts) -> Any:
        return AggregationWithHeaders(self._value_of(self._topic, parts[0]), parts[2])

    def _bare(self, value: Any) -> Any:
        return value[0]

    def _size(self, value: Any) -> int:
        return value_size(value[0]) + 1

    def _tombstone_headers(self) -> Headers:
        return self._record.headers
