"""The bytes stores of session stores: RocksDB segments in key order or in time order, and memory.

| layout | rows of a scan come in the order of |
|---|---|
| RocksDB, key order | segment of the end, then key, then end, then start |
| RocksDB, time order (emit on close) | the same, through the index; by end: end, then start, then key |
| memory | end, then key, then start |
"""

# ruff: noqa: SLF001 (a view of a store is a changed copy of it, or reads its parts)

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from struct import Struct
from typing import Any, Protocol

from sortedcontainers import SortedDict

from millrace.records import TopicPartition
from millrace.state.bytes_store import BytesStore
from millrace.state.keys import (
    BASE,
    INDEX,
    MAX_LONG,
    SessionKey,
    decode_session_key,
    decode_time_ordered_session_key,
    encode_session_key,
    encode_time_ordered_session_key,
    upper_range,
)
from millrace.state.memory import MemoryStore
from millrace.state.ordered_map import copied
from millrace.state.segments import SegmentedDatabase
from millrace.state.value_formats import pack_long

SessionRows = Iterator[tuple[SessionKey, bytes]]

_pack_two_longs = Struct(">qq").pack


class SessionBytesStore(BytesStore, Protocol):
    """Sessions of keys to aggregates, in bytes."""

    retention_ms: int
    observed_stream_time: int
    """The latest window start or session end that was written (ms)."""

    def put(self, session: SessionKey, value: bytes | None) -> bool:
        """Write one session (None deletes); return False when it has expired and is dropped."""

    def remove(self, session: SessionKey) -> bool:
        """Delete one session; return False when it has expired."""

    def get(self, session: SessionKey) -> bytes | None:
        """Return one session's aggregate, or None."""

    def find(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        earliest_end: int,
        latest_start: int,
        *,
        reverse: bool = False,
    ) -> SessionRows:
        """Iterate the sessions of some keys that end at `earliest_end` or later, and start at `latest_start` or earlier."""

    def find_ended(self, earliest_end: int, latest_end: int) -> SessionRows:
        """Iterate the sessions of all keys in order of their end."""

    def order(self, session: SessionKey) -> Any:
        """Return the sort key of a session in `find`."""

    def restore_batch(self, rows: Iterable[tuple[bytes, bytes | None]], offsets: Mapping[TopicPartition, int]) -> None:
        """Apply restored rows under their changelog keys."""


class _SegmentedSessions(SegmentedDatabase):
    """Sessions in segments, some of whose rows are in key order: key ‖ end(8) ‖ start(8), after a prefix."""

    _key_prefix = b""
    _after_keys: bytes | None = None
    """Where the rows in key order end; None: there are no others."""

    def put(self, session: SessionKey, value: bytes | None) -> bool:
        """Write one session; False when its segment has expired."""
        raise NotImplementedError

    def remove(self, session: SessionKey) -> bool:
        """Delete one session; False when its segment has expired."""
        return self.put(session, None)

    def restore_batch(self, rows: Iterable[tuple[bytes, bytes | None]], offsets: Mapping[TopicPartition, int]) -> None:
        """Apply restored rows; expired ones are skipped."""
        for row, value in rows:
            self.put(decode_session_key(row), value)
        self.commit(offsets)

    def find(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        earliest_end: int,
        latest_start: int,
        *,
        reverse: bool = False,
    ) -> SessionRows:
        """Iterate sessions by segment, then key."""
        oldest = self.oldest_readable()
        if earliest_end < oldest or earliest_end < 0:
            earliest_end = max(oldest, 0)
        if latest_start > MAX_LONG:
            latest_start = MAX_LONG
        if latest_start < 0:
            return iter(())
        prefix = self._key_prefix
        lower: bytes | None
        upper: bytes | None
        if key_from is not None and key_from == key_to:
            lower = prefix + encode_session_key(key_from, 0, earliest_end)
            # As low as possible: rows of longer keys lie between this key's rows and its greatest possible row.
            upper = prefix + encode_session_key(key_from, latest_start, self.latest_possible())
        else:
            lower = prefix + (key_from or b"") or None
            upper = self._after_keys
            if key_to is not None:
                upper = prefix + upper_range(key_to, _pack_two_longs(MAX_LONG, latest_start))
        rows = self.scan_segments(earliest_end, MAX_LONG, lower, upper, reverse=reverse)
        return _matching(self._sessions(rows), key_from, key_to, earliest_end, latest_start)

    def _sessions(self, rows: Iterator[tuple[bytes, bytes]]) -> SessionRows:
        """Return the sessions of rows in key order."""
        raise NotImplementedError

    def order(self, session: SessionKey) -> Any:
        """Return the segment and the key of the row in key order."""
        return session.end // self.segment_interval_ms, encode_session_key(*session)


class RocksSessionStore(_SegmentedSessions):
    """Session store in key order: key ‖ end(8) ‖ start(8)."""

    def put(self, session: SessionKey, value: bytes | None) -> bool:
        """Write one session; False when its segment has expired."""
        segment = self.for_writing(session[2])
        if segment is None:
            return False
        segment.put(encode_session_key(*session), value)
        return True

    def get(self, session: SessionKey) -> bytes | None:
        """Return one session's aggregate, or None."""
        segment = self.for_reading(session[2])
        return None if segment is None else segment.get(encode_session_key(*session))

    def _sessions(self, rows: Iterator[tuple[bytes, bytes]]) -> SessionRows:
        return ((decode_session_key(row), value) for row, value in rows)

    def find_ended(self, earliest_end: int, latest_end: int) -> SessionRows:
        """Iterate sessions by end; reads all of them, unlike the time-ordered layout."""
        rows = self.find(None, None, earliest_end, MAX_LONG)
        found = [(session, value) for session, value in rows if session.end <= latest_end]
        return iter(sorted(found, key=lambda pair: (pair[0].end, pair[0].start, pair[0].key)))


class RocksTimeOrderedSessionStore(_SegmentedSessions):
    """Session store in order of ends, with an index by key, for results emitted when a session closes (KIP-825)."""

    order_of_rows = "in order of time, with an index"
    _key_prefix = INDEX
    _after_keys = b"\2"

    def put(self, session: SessionKey, value: bytes | None) -> bool:
        """Write one session and its index row; False when its segment has expired."""
        segment = self.for_writing(session[2])
        if segment is None:
            return False
        segment.put(INDEX + encode_session_key(*session), None if value is None else b"")
        segment.put(encode_time_ordered_session_key(*session), value)
        return True

    def get(self, session: SessionKey) -> bytes | None:
        """Return one session's aggregate, or None."""
        segment = self.for_reading(session[2])
        return None if segment is None else segment.get(encode_time_ordered_session_key(*session))

    def _sessions(self, rows: Iterator[tuple[bytes, bytes]]) -> SessionRows:
        for row, _ in rows:
            session = decode_session_key(row[1:])
            value = self.get(session)
            if value is not None:
                yield session, value

    def find_ended(self, earliest_end: int, latest_end: int) -> SessionRows:
        """Iterate sessions by end, including sessions past retention whose segment still exists: their results are due."""
        earliest_end = max(earliest_end, 0)
        latest_end = min(latest_end, MAX_LONG)
        if latest_end < earliest_end:
            return iter(())
        upper = INDEX if latest_end == MAX_LONG else BASE + pack_long(latest_end + 1)
        rows = self.scan_segments(earliest_end, latest_end, BASE + pack_long(earliest_end), upper)
        sessions = ((decode_time_ordered_session_key(row), value) for row, value in rows)
        return (pair for pair in sessions if pair[0].end <= latest_end)


class MemorySessionStore(MemoryStore):
    """Session store in memory: ends to keys to starts."""

    def __init__(self, name: str, retention_ms: int) -> None:
        super().__init__(name)
        self.retention_ms = retention_ms
        self.observed_stream_time = -1
        self._ends: SortedDict[int, dict[bytes, SortedDict[int, bytes]]] = SortedDict()

    def put(self, session: SessionKey, value: bytes | None) -> bool:
        """Write one session; False when it is older than the retention."""
        key, start, end = session
        self._drop_expired()
        self.observed_stream_time = max(self.observed_stream_time, end)
        if end <= self.observed_stream_time - self.retention_ms:
            return False
        if value is None:
            return self.remove(session)
        self._ends.setdefault(end, {}).setdefault(key, SortedDict())[start] = value
        return True

    def remove(self, session: SessionKey) -> bool:
        """Delete one session; stream time stays as it is."""
        key, start, end = session
        keys = self._ends.get(end)
        starts = None if keys is None else keys.get(key)
        if keys is not None and starts is not None:
            starts.pop(start, None)
            if not starts:
                del keys[key]
            if not keys:
                del self._ends[end]
        return True

    def _drop_expired(self) -> None:
        ends, oldest = self._ends, self.observed_stream_time - self.retention_ms + 1
        while ends and ends.keys()[0] < oldest:
            ends.popitem(0)

    def get(self, session: SessionKey) -> bytes | None:
        """Return one session's aggregate, or None."""
        key, start, end = session
        self._drop_expired()
        starts = self._ends.get(end, {}).get(key)
        return None if starts is None else starts.get(start)

    def find(
        self,
        key_from: bytes | None,
        key_to: bytes | None,
        earliest_end: int,
        latest_start: int,
        *,
        reverse: bool = False,
    ) -> SessionRows:
        """Iterate sessions by end, then key, then start."""
        self._drop_expired()
        rows: list[tuple[SessionKey, bytes]] = []
        for end in self._ends.irange(earliest_end, None, reverse=reverse):
            keys = self._ends[end]
            wanted = [key_from] if key_from is not None and key_from == key_to else sorted(list(keys), reverse=reverse)  # noqa: C414 (a copy, in one step)
            for key in wanted:
                starts = keys.get(key)
                if starts is None or not _within(key, key_from, key_to):
                    continue
                found = [pair for pair in copied(starts) if pair[0] <= latest_start]
                found.sort(reverse=reverse)
                rows += ((SessionKey(key, start, end), value) for start, value in found)
        return iter(rows)

    def view(self, *, committed: bool) -> MemorySessionStore:  # noqa: ARG002 (memory has no committed state of its own)
        """Return the store as other threads may read it."""
        view = copy(self)
        view.position = dict(self.position)
        view._ends = SortedDict(copied(self._ends))
        return view

    def find_ended(self, earliest_end: int, latest_end: int) -> SessionRows:
        """Iterate sessions by end, then key, then start."""
        return ((s, value) for s, value in self.find(None, None, earliest_end, MAX_LONG) if s.end <= latest_end)

    def order(self, session: SessionKey) -> Any:
        """Return end, key and start."""
        return session.end, session.key, session.start

    def restore_batch(self, rows: Iterable[tuple[bytes, bytes | None]], offsets: Mapping[TopicPartition, int]) -> None:
        """Apply restored rows."""
        for row, value in rows:
            self.put(decode_session_key(row), value)
        self.commit(offsets)

    def close(self) -> None:
        """Forget everything."""
        super().close()
        self._ends.clear()
        self.observed_stream_time = -1


def _within(key: bytes, key_from: bytes | None, key_to: bytes | None) -> bool:
    return (key_from is None or key >= key_from) and (key_to is None or key <= key_to)


def _matching(
    rows: SessionRows, key_from: bytes | None, key_to: bytes | None, earliest_end: int, latest_start: int
) -> SessionRows:
    """Keep the sessions within bounds: the scanned range contains others too."""
    for session, value in rows:
        key, start, end = session
        if end >= earliest_end and start <= latest_start and _within(key, key_from, key_to):
            yield session, value
