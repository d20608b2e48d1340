"""Aggregations over tumbling, hopping and unlimited windows.

Stream time is that of the operator: the largest timestamp it has seen itself. A window takes records until its end plus grace
has passed; a record that is late for a window is dropped for that window only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from millrace.dsl.emit_strategy import EmitStrategy
from millrace.dsl.processors.aggregate import Aggregator, Initializer
from millrace.dsl.processors.sliding_window_aggregate import SlidingWindowAggregate
from millrace.dsl.processors.tables import View, forwards_when_flushed
from millrace.dsl.processors.window_close import NO_CLOSE_TIME, FinalResult, FinalResults, Range
from millrace.dsl.processors.window_views import window_view
from millrace.dsl.windows import SlidingWindows, TimeWindows
from millrace.errors import TopologyError
from millrace.processor.node import NodeContext, ProcessFn
from millrace.records import UNKNOWN_TIMESTAMP, Headers, Window, Windowed, new_tuple


class Windows(Protocol):
    """Windows that follow from a record's timestamp alone."""

    @property
    def size_ms(self) -> int:
        """From start to end."""

    @property
    def grace_ms(self) -> int:
        """How long after its end a window still takes records."""

    def windows_for(self, timestamp: int) -> list[Window]:
        """Return the windows a record belongs to, the earliest first."""


def windowed_aggregate(
    store_name: str,
    windows: Windows | SlidingWindows,
    emit_strategy: EmitStrategy,
    initializer: Initializer,
    aggregator: Aggregator,
) -> WindowAggregate | SlidingWindowAggregate:
    """Return the aggregation for a kind of windows.

    Raises:
        TopologyError: results are asked for on close of windows that never are.
    """
    if isinstance(windows, SlidingWindows):
        return SlidingWindowAggregate(store_name, windows, emit_strategy, initializer, aggregator)
    return WindowAggregate(store_name, windows, emit_strategy, initializer, aggregator)


class WindowAggregate:
    """Keeps one aggregate per key and window. Records without a key are dropped.

    Args:
        store_name: of its timestamped window store.
        windows: `TimeWindows`, `UnlimitedWindows` or any other whose windows follow from the timestamp.
        emit_strategy: when results are sent on.
        initializer: makes a new window's aggregate.
        aggregator: key, value, aggregate so far → new aggregate, None to delete it.

    Raises:
        TopologyError: results are asked for on close of windows that are not `TimeWindows`.
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

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            nonlocal stream_time, window
            if key is None:
                drop()
                return
            if timestamp > stream_time:
                stream_time = timestamp
            start = timestamp - timestamp % size
            if start + size + grace <= stream_time:
                drop()
                return
            record.timestamp = timestamp
            record.headers = headers
            row = locate(key_bytes(topic, key), start)
            found = get(row)
            try:
                if found is None:
                    old = initialize()
                    time = timestamp
                else:
                    old, time = found
                    if timestamp > time:
                        time = timestamp
                new = aggregate(key, value, old)
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            put(row, (new, time))
            if silent:
                return
            if window[0] != start:  # else it is the window of the record before, as most often
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

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            nonlocal stream_time
            if key is None:
                drop()
                return
            if timestamp > stream_time:
                stream_time = timestamp
            close_time = stream_time - grace
            raw = key_bytes(topic, key)
            for window in windows_for(timestamp):
                start, end = window
                if end <= close_time:
                    drop()
                    continue
                record.timestamp = timestamp
                record.headers = headers
                row = locate(raw, start)
                found = get(row)
                try:
                    if found is None:
                        old = initialize()
                        time = timestamp
                    else:
                        old, time = found
                        if timestamp > time:
                            time = timestamp
                    new = aggregate(key, value, old)
                except Exception as error:
                    fail(error, key, value, timestamp, headers)
                    return
                put(row, (new, time))
                if not silent:
                    update = (new, old if sends_old else None, True)
                    forward(new_tuple(Windowed, (key, window)), update, time, headers)
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
            for key, (value, timestamp) in fetch_all(first_start, latest_start):
                yield key, value, timestamp

        results = FinalResults(node, self.store_name, due=due, fetch=fetch)
        return self._general(node, windows_for, windows.grace_ms, results)
