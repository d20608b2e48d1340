"""The bytes stores of window stores: RocksDB segments in key order or in time order, and memory.

| layout | rows of a scan come in the order of |
|---|---|
| RocksDB, key order | segment, then key, then window start |
| RocksDB, time order (emit on close) | window start, then key |
| the same with an index, if only some keys are wanted | segment, then key, then window start |
| memory | window start, then key |

A scan is bounded by keys and by window starts, both inclusive, None meaning no bound. Windows older than the retention are
not returned, even if their segment still exists.
"""

# ruff: noqa: SLF001 (a view of a store is a changed copy of it, or reads its parts)

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from typing import Any, Protocol

from sortedcontainers import SortedDict

from millrace.records import TopicPartition
from millrace.state.bytes_store import BytesStore, Rows
from millrace.state.keys import (
    BASE,
    INDEX,
    MAX_INT,
    MAX_LONG,
    decode_time_ordered_window_key,
    decode_window_key,
    encode_window_key,
    pack_window_suffix,
    time_ordered_window_key,
    upper_range,
    window_start,
)
from millrace.state.memory import MemoryStore
from millrace.state.ordered_map import OrderedMap, OrderedMapView, copied
from millrace.state.segments import SegmentedDatabase
from millrace.state.value_formats import pack_long

_AFTER_INDEX = b"\2"

WindowRow = tuple[bytes, int]
"""One window: its row in the changelog, key ‖ start(8) ‖ seq(4), and the start."""

WindowRows = Iterator[tuple[bytes, int, bytes]]
"""Key, window start, disk value."""


class WindowBytesStore(BytesStore, Protocol):
    """Windows of keys to values, in bytes."""

    retention_ms: int
    observed_stream_time: int
    """The latest window start or session end that was written (ms)."""

    def put(self, window: WindowRow, value: bytes | None) -> bool:
        """Write one window (None deletes); return False when it has expired and is dropped."""

    def observe(self, start: int) -> bool:
        """Note a delete of duplicates, which changes no row; return False if it counts as expired."""

    def get(self, window: WindowRow) -> bytes | None:
        """Return one window's value, or None."""

    def scan(
        self, key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int, *, reverse: bool = False
    ) -> WindowRows:
        """Iterate windows."""

    def largest_number(self) -> int:
        """Return the largest sequence number of any row, 0 if there is none; reads them all."""

    def order(self, key: bytes, start: int, *, of_keys: bool) -> Any:
        """Return the sort key of a window in a scan, of some keys or of all."""

    def restore_batch(self, rows: Iterable[tuple[bytes, bytes | None]], offsets: Mapping[TopicPartition, int]) -> None:
        """Apply restored rows under their changelog keys."""


class RocksWindowStore(SegmentedDatabase):
    """Window store in key order: key ‖ start(8) ‖ seq(4)."""

    def put(self, window: WindowRow, value: bytes | None) -> bool:
        """Write one window; False when its segment has expired."""
        row, start = window
        segment = None
        if start <= self.observed_stream_time:  # the usual case, without a call
            segment = self._find(start // self.segment_interval_ms)
        if segment is None:
            segment = self.for_writing(start)
            if segment is None:
                return False
        segment.put(row, value)
        return True

    def observe(self, start: int) -> bool:  # noqa: ARG002 (segments expire by what is written)
        """Return True."""
        return True

    def get(self, window: WindowRow) -> bytes | None:
        """Return one window's value, or None."""
        row, start = window
        segment = self.for_reading(start)
        return None if segment is None else segment.get(row)

    def scan(
        self, key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int, *, reverse: bool = False
    ) -> WindowRows:
        """Iterate windows by segment, then key, then start."""
        time_from = max(time_from, self.oldest_readable(), 0)
        time_to = min(time_to, MAX_LONG)
        if time_to < time_from:
            return iter(())
        if key_from is not None and key_from == key_to:
            lower: bytes | None = encode_window_key(key_from, time_from, 0)
            upper: bytes | None = encode_window_key(key_from, time_to, MAX_INT)
        else:
            lower = key_from
            upper = None if key_to is None else upper_range(key_to, pack_window_suffix(time_to, MAX_INT))
        rows = self.scan_segments(time_from, time_to, lower, upper, reverse=reverse)
        return _matching(rows, decode_window_key, key_from, key_to, time_from, time_to)

    def largest_number(self) -> int:
        """Return the largest sequence number of any row, 0 if there is none."""
        return _largest_number(self.scan_segments(0, MAX_LONG, None, None))

    def order(self, key: bytes, start: int, *, of_keys: bool) -> Any:  # noqa: ARG002 (there is one order)
        """Return segment and row key."""
        return start // self.segment_interval_ms, encode_window_key(key, start)

    def restore_batch(self, rows: Iterable[tuple[bytes, bytes | None]], offsets: Mapping[TopicPartition, int]) -> None:
        """Apply restored rows; expired ones are skipped."""
        for row, value in rows:
            self.put((row, window_start(row)), value)
        self.commit(offsets)


class RocksTimeOrderedWindowStore(SegmentedDatabase):
    """Window store in time order, for results emitted when a window closes (KIP-825); optionally with an index by key."""

    with_index = False
    order_of_rows = "in order of time"
    readable_beyond_ms = 1
    """Otherwise the last windows to close would be lost."""

    def put(self, window: WindowRow, value: bytes | None) -> bool:
        """Write one window and its index row; False when its segment has expired."""
        row, start = window
        segment = self.for_writing(start)
        if segment is None:
            return False
        if self.with_index:
            segment.put(INDEX + row, None if value is None else b"")
        segment.put(time_ordered_window_key(row), value)
        return True

    def observe(self, start: int) -> bool:  # noqa: ARG002 (segments expire by what is written)
        """Return True."""
        return True

    def get(self, window: WindowRow) -> bytes | None:
        """Return one window's value, or None."""
        row, start = window
        segment = self.for_reading(start)
        return None if segment is None else segment.get(time_ordered_window_key(row))

    def scan(
        self, key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int, *, reverse: bool = False
    ) -> WindowRows:
        """Iterate windows by start, then key; for some keys by segment, then key, through the index if there is one."""
        time_from = max(time_from, self.oldest_readable(), 0)
        time_to = min(time_to, MAX_LONG)
        if time_to < time_from:
            return iter(())
        bounds = key_from, key_to, time_from, time_to
        if self.with_index and not (key_from is None and key_to is None):
            if key_from is not None and key_from == key_to:
                lower = INDEX + encode_window_key(key_from, time_from, 0)
                upper = INDEX + encode_window_key(key_from, time_to, MAX_INT)
            else:
                lower = INDEX + (key_from or b"")
                upper = (
                    _AFTER_INDEX
                    if key_to is None
                    else INDEX + upper_range(key_to, pack_window_suffix(time_to, MAX_INT))
                )
            index = self.scan_segments(time_from, time_to, lower, upper, reverse=reverse)
            return self._through_index(_matching(index, lambda row: decode_window_key(row[1:]), *bounds))
        lower = BASE + pack_long(time_from)
        upper = INDEX if time_to == MAX_LONG else BASE + pack_long(time_to + 1)
        rows = self.scan_segments(time_from, time_to, lower, upper, reverse=reverse)
        return _matching(rows, decode_time_ordered_window_key, *bounds)

    def _through_index(self, index: WindowRows) -> WindowRows:
        for key, start, _ in index:
            value = self.get((encode_window_key(key, start), start))
            if value is not None:
                yield key, start, value

    def largest_number(self) -> int:
        """Return the largest sequence number of any row, 0 if there is none."""
        return _largest_number(self.scan_segments(0, MAX_LONG, None, None))

    def order(self, key: bytes, start: int, *, of_keys: bool) -> Any:
        """Return start and key, or segment and key of the index row."""
        if self.with_index and of_keys:
            return start // self.segment_interval_ms, encode_window_key(key, start)
        return start, key

    def restore_batch(self, rows: Iterable[tuple[bytes, bytes | None]], offsets: Mapping[TopicPartition, int]) -> None:
        """Apply restored rows; expired ones are skipped."""
        for row, value in rows:
            self.put((row, window_start(row)), value)
        self.commit(offsets)


class RocksIndexedWindowStore(RocksTimeOrderedWindowStore):
    """Window store in time order with an index row per window, by key."""

    with_index = True
    order_of_rows = "in order of time, with an index"


class MemoryWindowStore(MemoryStore):
    """Window store in memory: starts to keys; windows older than the retention are removed at the next access."""

    def __init__(self, name: str, retention_ms: int, *, retain_duplicates: bool = False) -> None:
        super().__init__(name)
        self.retention_ms = retention_ms
        self.observed_stream_time = -1
        self._retain_duplicates = retain_duplicates
        self._starts: SortedDict[int, OrderedMap[bytes]] = SortedDict()

    def put(self, window: WindowRow, value: bytes | None) -> bool:
        """Write one window; False when it is older than the retention."""
        row, start = window
        if not self.observe(start):
            return False
        row = self._row(row)
        windows = self._starts.get(start)
        if value is not None:
            if windows is None:
                windows = self._starts[start] = OrderedMap()
            windows.set(row, value)
        elif windows is not None:
            windows.remove(row)
            if not windows:
                del self._starts[start]
        return True

    def observe(self, start: int) -> bool:
        """Advance stream time; return False if this start is older than the retention."""
        if start > self.observed_stream_time:
            self.observed_stream_time = start
            self._drop_expired()
            return True
        return start > self.observed_stream_time - self.retention_ms

    def _row(self, row: bytes) -> bytes:
        """Return key ‖ seq, or the key alone: it identifies a window among those with the same start."""
        return row[:-12] + row[-4:] if self._retain_duplicates else row[:-12]

    def _drop_expired(self) -> None:
        starts, oldest = self._starts, self.observed_stream_time - self.retention_ms + 1
        while starts and starts.keys()[0] < oldest:
            starts.popitem(0)

    def get(self, window: WindowRow) -> bytes | None:
        """Return one window's value, or None."""
        row, start = window
        windows = self._starts.get(start)
        return None if windows is None else windows.data.get(self._row(row))

    def scan(
        self, key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int, *, reverse: bool = False
    ) -> WindowRows:
        """Iterate windows by start, then key."""
        starts = list(self._starts.irange(max(time_from, 0), time_to, reverse=reverse))
        single = key_from is not None and key_from == key_to and not self._retain_duplicates
        rows: list[tuple[bytes, int, bytes]] = []
        for start in starts:
            windows = self._starts[start]
            if single and key_from is not None:
                value = windows.data.get(key_from)
                if value is not None:
                    rows.append((key_from, start, value))
                continue
            upper = key_to
            if self._retain_duplicates and key_to is not None:
                upper = upper_range(key_to, b"\x7f\xff\xff\xff")
            for row, value in windows.items(key_from, upper, reverse=reverse):
                key = row[:-4] if self._retain_duplicates else row
                if (key_from is None or key >= key_from) and (key_to is None or key <= key_to):
                    rows.append((key, start, value))
        return iter(rows)

    def view(self, *, committed: bool) -> MemoryWindowStore:  # noqa: ARG002 (memory has no committed state of its own)
        """Return the store as other threads may read it."""
        view = copy(self)
        view.position = dict(self.position)
        view._starts = SortedDict({start: OrderedMapView(windows) for start, windows in copied(self._starts)})
        return view

    def largest_number(self) -> int:
        """Return 0: it is asked for when the store is opened, and then there are no rows."""
        return 0

    def order(self, key: bytes, start: int, *, of_keys: bool) -> Any:  # noqa: ARG002 (there is one order)
        """Return start and key."""
        return start, key

    def restore_batch(self, rows: Iterable[tuple[bytes, bytes | None]], offsets: Mapping[TopicPartition, int]) -> None:
        """Apply restored rows."""
        for row, value in rows:
            self.put((row, window_start(row)), value)
        self.commit(offsets)

    def close(self) -> None:
        """Forget everything."""
        super().close()
        self._starts.clear()
        self.observed_stream_time = -1


def _largest_number(rows: Rows) -> int:
    return max((decode_window_key(row).seq for row, _ in rows), default=0)  # every layout has it at the end


def _matching(
    rows: Iterator[tuple[bytes, bytes]],
    decode: Callable[[bytes], tuple[bytes, int, int]],
    key_from: bytes | None,
    key_to: bytes | None,
    time_from: int,
    time_to: int,
) -> WindowRows:
    """Keep the windows within bounds: the scanned range contains others too."""
    for row, value in rows:
        key, start, _ = decode(row)
        if (
            time_from <= start <= time_to
            and (key_from is None or key >= key_from)
            and (key_to is None or key <= key_to)
        ):
            yield key, start, value
