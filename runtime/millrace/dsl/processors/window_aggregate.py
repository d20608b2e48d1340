"""Aggregations over tumbling, hopping and unlimited windows.

Stream time is the operator's own: the largest timestamp it has seen. A window accepts records until its end plus grace has
passed; a record that is too late for a window is dropped for that window only.

Results are emitted with every update, or once when a window is final (KIP-825); the latter is shared with sliding and session
windows. The store is checked for final results after a record has been processed, but at most once per
`__emit.interval.ms.kstreams.windowed.aggregation__` of wall-clock time, because that costs a scan. How far they have been
emitted is kept in the task's metadata and committed with its offsets (formats §9), so that a restart neither repeats nor skips
windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from millrace.config import FINAL_RESULTS_INTERVAL
from millrace.dropped_records import DropReason
from millrace.dsl.processors.aggregate import Aggregator, Initializer
from millrace.dsl.processors.tables import View, forwards_when_flushed, window_view
from millrace.dsl.windows import EmitStrategy, TimeWindows
from millrace.errors import TopologyError
from millrace.processor.node import NodeContext, ProcessFn, leave_out
from millrace.records import UNKNOWN_TIMESTAMP, Change, Headers, Window, Windowed, new_tuple

_DEFAULT_EMIT_INTERVAL_MS = 1000

NO_CLOSE_TIME = -1
"""Nothing has been emitted yet."""

Range = tuple[int, int]
FinalResult = tuple[Windowed[Any], object, int]
"""The key with its window, the aggregate, and the timestamp (ms) of the result."""


def final_result(found: tuple[Windowed[Any], tuple[object, int]]) -> FinalResult:
    """Return what a timestamped window store holds as a final result."""
    key, (value, timestamp) = found
    return key, value, timestamp


class FinalResults:
    """Emits the results of windows that have closed, in order of their start.

    Args:
        node: whose children get the results.
        store_name: names the entry in the task's metadata.
        due: last and new close time (ms) → the range to look in, or None when no window has closed between them.
        fetch: returns the results of a range (both bounds inclusive); it continues after one that cannot be read.
    """

    def __init__(
        self,
        node: NodeContext,
        store_name: str,
        *,
        due: Callable[[int, int], Range | None],
        fetch: Callable[[int, int], Iterator[FinalResult]],
    ) -> None:
        self._node = node
        self._store_name = store_name
        self._due = due
        self._fetch = fetch
        self._interval_ms: int = node.config.internal(FINAL_RESULTS_INTERVAL, _DEFAULT_EMIT_INTERVAL_MS)
        self._next_ms = 0
        self._last_close_time = NO_CLOSE_TIME
        node.on_init(self._remember)

    def _remember(self) -> None:
        self._last_close_time = self._node.metadata.get(self._store_name, NO_CLOSE_TIME)

    def emit(self, close_time: int, headers: Headers) -> None:
        """Emit closed windows, if it is time to check.

        Args:
            close_time: windows that end at this time or earlier are final (ms).
            headers: of the record that advanced stream time; the results get them too.
        """
        node = self._node
        now = node.system_time()
        if now < self._next_ms:
            return
        self._next_ms = now + self._interval_ms
        last = self._last_close_time
        if last != NO_CLOSE_TIME and last >= close_time:
            return
        due = self._due(last, close_time)
        if due is None:
            return
        forward = node.forward
        count = 0
        results = self._fetch(*due)
        while True:
            try:
                found = next(results, None)
            except Exception as error:
                leave_out(node, error)
                continue
            if found is None:
                break
            key, value, timestamp = found
            count += 1
            forward(key, Change(value, None), timestamp, headers)
        node.sensor("window-aggregate-final-emit", count)
        self._last_close_time = close_time
        node.metadata[self._store_name] = close_time


class Windows(Protocol):
    """Windows that depend only on a record's timestamp."""

    @property
    def size_ms(self) -> int:
        """The length from start to end."""

    @property
    def grace_ms(self) -> int:
        """How long after its end a window still accepts records."""

    def windows_for(self, timestamp: int) -> list[Window]:
        """Return the windows a record belongs to, the earliest first."""


class WindowAggregate:
    """Keeps one aggregate per key and window. Records without a key are dropped.

    Args:
        store_name: of its timestamped window store.
        windows: `TimeWindows`, `UnlimitedWindows` or any other whose windows depend only on the timestamp.
        emit_strategy: when results are emitted.
        initializer: returns a new window's aggregate.
        aggregator: key, value, aggregate so far → new aggregate, None to delete it.

    Raises:
        TopologyError: results are to be emitted on close, but the windows are not `TimeWindows`.
    """

    def __init__(
        self,
        store_name: str,
        windows: Windows,
        emit_strategy: EmitStrategy,
        initializer: Initializer,
        aggregator: Aggregator,
    ) -> None:
        if emit_strategy is EmitStrategy.ON_WINDOW_CLOSE and not isinstance(windows, TimeWindows):
            raise TopologyError(
                f"{type(windows).__name__} cannot be emitted on close; use TimeWindows or SlidingWindows"
            )
        self.store_name = store_name
        self._windows = windows
        self._initializer = initializer
        self._aggregator = aggregator
        self._emit_strategy = emit_strategy
        self._sends_old_values = False

    def send_old_values(self, *, force: bool = True) -> bool:  # noqa: ARG002 (there always is a store)
        """Send old values."""
        self._sends_old_values = True
        return True

    def view(self) -> View:
        """Look into the store."""
        return window_view(self.store_name)

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        windows = self._windows
        if self._emit_strategy is EmitStrategy.ON_WINDOW_CLOSE and isinstance(windows, TimeWindows):
            return self._emitting_on_close(node, windows)
        if isinstance(windows, TimeWindows) and windows.advance_ms == windows.size_ms:
            return self._tumbling(node, windows.size_ms, windows.grace_ms)
        return self._general(node, windows.windows_for, windows.grace_ms)

    def _tumbling(self, node: NodeContext, size: int, grace: int) -> ProcessFn:
        initialize, aggregate, sends_old = self._initializer, self._aggregator, self._sends_old_values
        forward, drop, fail, record = node.forward, node.drop_record, node.processing_failed, node.record
        store = node.state_store(self.store_name)
        topic, key_bytes, locate, get, put = store.direct()
        silent = forwards_when_flushed(node, store, send_old_values=sends_old)
        stream_time = UNKNOWN_TIMESTAMP
        window = Window(-1, -1)

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            nonlocal stream_time, window
            if key is None:
                drop(DropReason.NULL_KEY)
                return
            if timestamp > stream_time:
                stream_time = timestamp
            start = timestamp - timestamp % size
            if start + size + grace <= stream_time:
                drop(DropReason.LATE, stream_time - start - size, grace)
                return
            record.timestamp = timestamp
            record.headers = headers
            try:
                row = locate(key_bytes(topic, key), start)
                found = get(row)
                if found is None:
                    old = initialize()
                    time = timestamp
                else:
                    old, time = found
                    if timestamp > time:
                        time = timestamp
                new = aggregate(key, value, old)
                put(row, (new, time))
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            if silent:
                return
            if window[0] != start:  # otherwise it is the same window as for the previous record, the usual case
                window = Window(start, start + size)
            forward(new_tuple(Windowed, (key, window)), (new, old if sends_old else None, True), time, headers)

        return process

    def _general(  # noqa: C901 (one closure on the path of every record)
        self,
        node: NodeContext,
        windows_for: Callable[[int], list[Window]],
        grace: int,
        final_results: FinalResults | None = None,
    ) -> ProcessFn:
        initialize, aggregate, sends_old = self._initializer, self._aggregator, self._sends_old_values
        forward, drop, fail, record = node.forward, node.drop_record, node.processing_failed, node.record
        store = node.state_store(self.store_name)
        topic, key_bytes, locate, get, put = store.direct()
        stream_time = UNKNOWN_TIMESTAMP
        silent = final_results is not None or forwards_when_flushed(node, store, send_old_values=sends_old)

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            nonlocal stream_time
            if key is None:
                drop(DropReason.NULL_KEY)
                return
            if timestamp > stream_time:
                stream_time = timestamp
            close_time = stream_time - grace
            try:
                raw = key_bytes(topic, key)
                for window in windows_for(timestamp):
                    start, end = window
                    if end <= close_time:
                        drop(DropReason.LATE, stream_time - end, grace)
                        continue
                    record.timestamp = timestamp
                    record.headers = headers
                    row = locate(raw, start)
                    found = get(row)
                    if found is None:
                        old = initialize()
                        time = timestamp
                    else:
                        old, time = found
                        if timestamp > time:
                            time = timestamp
                    new = aggregate(key, value, old)
                    put(row, (new, time))
                    if not silent:
                        update = (new, old if sends_old else None, True)
                        forward(new_tuple(Windowed, (key, window)), update, time, headers)
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            if final_results is not None:
                final_results.emit(close_time, headers)

        return process

    def _emitting_on_close(self, node: NodeContext, windows: TimeWindows) -> ProcessFn:
        size, windows_for = windows.size_ms, windows.windows_for
        fetch_all = node.state_store(self.store_name).fetch_all

        def due(last: int, close_time: int) -> Range | None:
            latest_start = close_time - size
            if latest_start < 0:
                return None
            if last == NO_CLOSE_TIME:
                return 0, latest_start
            sent_up_to = max(0, last - size)
            if windows_for(latest_start) == windows_for(sent_up_to):
                return None
            return sent_up_to + 1, latest_start

        def fetch(first_start: int, latest_start: int) -> Iterator[FinalResult]:
            return map(final_result, fetch_all(first_start, latest_start))

        results = FinalResults(node, self.store_name, due=due, fetch=fetch)
        return self._general(node, windows_for, windows.grace_ms, results)
