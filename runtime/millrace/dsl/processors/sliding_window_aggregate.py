"""Aggregations over sliding windows (KIP-450): one window for every set of records that are at most a time difference apart.

Only windows with different sets of records are kept. Seen from a record at `t`, with difference `d`:

* its *left* window [t - d, t] ends at the record, its *right* window [t + 1, t + 1 + d] starts after it;
* it belongs to every stored window that starts in [t - d, t], and to the right window of the previous record if that is near;
* its right window is needed only if there are later records within `d`, that is, if a stored window that holds `t` has a later
  record (the timestamp kept with an aggregate is the largest of its records).

A window that would start before the epoch does not exist; instead, [0, d] holds all records earlier than `d`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from millrace.dropped_records import DropReason
from millrace.dsl.processors.aggregate import Aggregator, Initializer
from millrace.dsl.processors.tables import View, forward_flushed, window_view
from millrace.dsl.processors.window_aggregate import NO_CLOSE_TIME, FinalResult, FinalResults, Range, final_result
from millrace.dsl.windows import EmitStrategy, SlidingWindows
from millrace.processor.node import NodeContext, ProcessFn
from millrace.records import NO_HEADERS, UNKNOWN_TIMESTAMP, Change, Headers, ValueAndTimestamp, Window, Windowed

_Aggregate = ValueAndTimestamp[Any]


class SlidingWindowAggregate:
    """Keeps one aggregate per key and sliding window. Records without key or value are dropped.

    Args:
        store_name: of its timestamped window store.
        windows: time difference and grace.
        emit_strategy: when results are emitted.
        initializer: returns a new window's aggregate.
        aggregator: key, value, aggregate so far → new aggregate, None to delete it.
    """

    def __init__(
        self,
        store_name: str,
        windows: SlidingWindows,
        emit_strategy: EmitStrategy,
        initializer: Initializer,
        aggregator: Aggregator,
    ) -> None:
        self.store_name = store_name
        self.windows = windows
        self.initializer = initializer
        self.aggregator = aggregator
        self.emit_strategy = emit_strategy
        self.sends_old_values = False

    def send_old_values(self, *, force: bool = True) -> bool:  # noqa: ARG002 (there always is a store)
        """Send old values."""
        self.sends_old_values = True
        return True

    def view(self) -> View:
        """Look into the store."""
        return window_view(self.store_name)

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        task = _SlidingTask(self, node)
        drop, fail, process = node.drop_record, node.processing_failed, task.process

        def process_record(key: object, value: object, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                drop(DropReason.NULL_KEY if key is None else DropReason.NULL_VALUE)
                return
            try:
                process(key, value, timestamp, headers)
            except Exception as error:
                fail(error, key, value, timestamp, headers)

        return process_record


class _SlidingTask:
    """The windows of one task. While a record is processed, `_key` … `_headers` hold its parts."""

    def __init__(self, definition: SlidingWindowAggregate, node: NodeContext) -> None:
        self._node = node
        self._difference = definition.windows.time_difference_ms
        self._grace = definition.windows.grace_ms
        self._initializer = definition.initializer
        self._aggregator = definition.aggregator
        self._sends_old_values = definition.sends_old_values
        store = node.state_store(definition.store_name)
        self._put = store.put
        self._fetch: Callable[[Any, int, int], Iterator[tuple[int, _Aggregate]]] = store.fetch
        self._backward_fetch: Callable[[Any, int, int], Iterator[tuple[int, _Aggregate]]] = store.backward_fetch
        self._stream_time = UNKNOWN_TIMESTAMP
        self._close_time = UNKNOWN_TIMESTAMP
        self._key: Any = None
        self._value: Any = None
        self._timestamp = UNKNOWN_TIMESTAMP
        self._headers = NO_HEADERS
        self._silent = False
        self._final_results: FinalResults | None = None
        if definition.emit_strategy is EmitStrategy.ON_WINDOW_CLOSE:
            self._silent = True
            self._final_results = self._emitting_on_close(store.fetch_all, definition.store_name)
        else:
            node.on_init(lambda: self._listen(store))

    def _listen(self, store: object) -> None:
        self._silent = forward_flushed(self._node, store, send_old_values=self._sends_old_values)

    def process(self, key: object, value: object, timestamp: int, headers: Headers) -> None:
        """Update and create the windows of one record."""
        if timestamp > self._stream_time:
            self._stream_time = timestamp
            self._close_time = timestamp - self._grace
        if timestamp + 1 + self._difference <= self._close_time:
            self._drop_late(timestamp + self._difference)
            return
        self._key, self._value, self._timestamp, self._headers = key, value, timestamp, headers
        if timestamp < self._difference:
            self._process_early()
        else:
            self._process()
        if self._final_results is not None:
            self._final_results.emit(self._close_time, headers)

    def _process(self) -> None:
        timestamp, difference = self._timestamp, self._difference
        starts: set[int] = set()
        before: _Aggregate | None = None
        later: _Aggregate | None = None
        previous: int | None = None
        has_left = has_right = False
        for start, found in self._backward_fetch(self._key, max(0, timestamp - 2 * difference), timestamp + 1):
            starts.add(start)
            end = start + difference
            if start == timestamp + 1:
                has_right = True
            elif end > timestamp:
                if later is None:
                    later = found
                self._update(start, found)
            elif end == timestamp:
                has_left = True
                self._update(start, found)
                if found.timestamp >= timestamp:
                    return  # there was a record with the same timestamp: all other windows exist
                previous = found.timestamp
            else:
                before = found
                previous = found.timestamp
                break
        if previous is not None and previous + 1 not in starts and previous + 1 + difference >= timestamp:
            self._create(previous + 1)
        if not has_left:
            self._create_left(before)
        if not has_right:
            self._create_right(later)

    def _process_early(self) -> None:
        timestamp = self._timestamp
        starts: set[int] = set()
        combined: _Aggregate | None = None
        later: _Aggregate | None = None
        previous: int | None = None
        has_right = False
        for start, found in self._fetch(self._key, 0, timestamp + 1):
            starts.add(start)
            if start == 0:
                combined = found
                if found.timestamp < timestamp:
                    previous = found.timestamp
            elif start <= timestamp:
                later = found
                self._update(start, found)
            else:
                has_right = True
        if later is None and combined is not None and combined.timestamp > timestamp:
            later = combined
        if not has_right:
            self._create_right(later)
        if previous is not None and previous + 1 not in starts:
            self._create(previous + 1)
        if combined is None:
            self._create(0)
        else:
            self._update(0, combined)

    def _create(self, start: int) -> None:
        """Create a window with this record as its first."""
        self._update(start, ValueAndTimestamp(self._initializer(), self._timestamp))

    def _create_left(self, before: _Aggregate | None) -> None:
        """Create the window that ends at this record, with the records of the previous window if the last of them is near."""
        start = self._timestamp - self._difference
        if before is not None and before.timestamp >= start:
            self._update(start, ValueAndTimestamp(before.value, self._timestamp))
        else:
            self._create(start)

    def _create_right(self, later: _Aggregate | None) -> None:
        """Create the window after this record, if there are later records near it; it holds only those."""
        if later is None or later.timestamp <= self._timestamp:
            return
        self._store_and_forward(self._timestamp + 1, None, later.value, later.timestamp)

    def _update(self, start: int, so_far: _Aggregate) -> None:
        """Add this record to a window, unless it is too late."""
        if start + self._difference < self._close_time:
            self._drop_late(start + self._difference)
            return
        old, time = so_far
        new = self._aggregator(self._key, self._value, old)
        if old is None or time < self._timestamp:
            time = self._timestamp
        self._store_and_forward(start, old, new, time)

    def _drop_late(self, end: int) -> None:
        self._node.drop_record(DropReason.LATE, self._stream_time - end, self._grace)

    def _store_and_forward(self, start: int, old: object, new: object, time: int) -> None:
        node = self._node
        record = node.record
        record.timestamp = self._timestamp
        record.headers = self._headers
        self._put(self._key, None if new is None else ValueAndTimestamp(new, time), start)
        if not self._silent:
            windowed = Windowed(self._key, Window(start, start + self._difference))
            node.forward(windowed, Change(new, old if self._sends_old_values else None), time, self._headers)

    def _emitting_on_close(self, fetch_all: Callable[[int, int], Any], store_name: str) -> FinalResults:
        difference = self._difference

        def due(last: int, close_time: int) -> Range | None:
            latest_start = close_time - difference - 1  # the end is inclusive
            if latest_start < 0:
                return None
            first_start = 0 if last == NO_CLOSE_TIME else max(0, last - difference)
            return (first_start, latest_start) if latest_start >= first_start else None

        def fetch(first_start: int, latest_start: int) -> Iterator[FinalResult]:
            return map(final_result, fetch_all(first_start, latest_start))

        return FinalResults(self._node, store_name, due=due, fetch=fetch)
