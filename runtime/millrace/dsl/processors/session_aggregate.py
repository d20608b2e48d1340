"""Aggregations over session windows.

A record within the gap of existing sessions merges them into one: the old sessions are removed, and deleted downstream, before
the new one is stored. The timestamp of an update is the end of its session. A session accepts records until its end plus gap
plus grace has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from millrace.dropped_records import DropReason
from millrace.dsl.processors.aggregate import Aggregator, Initializer
from millrace.dsl.processors.tables import View, forward_flushed, session_view
from millrace.dsl.processors.window_aggregate import FinalResult, FinalResults, Range
from millrace.dsl.windows import EmitStrategy, SessionWindows
from millrace.processor.node import NodeContext, ProcessFn
from millrace.records import NO_HEADERS, UNKNOWN_TIMESTAMP, Change, Headers, Window, Windowed

Merger = Callable[[Any, Any, Any], object]
"""key, one aggregate, another; returns the merged session's aggregate."""


class SessionAggregate:
    """Keeps one aggregate per key and session. Records without a key are dropped.

    Args:
        store_name: of its session store.
        windows: gap and grace.
        emit_strategy: when results are emitted.
        initializer: returns a new session's aggregate.
        aggregator: key, value, aggregate so far → new aggregate, None to delete it.
        merger: key and two aggregates → the aggregate of both.
    """

    def __init__(
        self,
        store_name: str,
        windows: SessionWindows,
        emit_strategy: EmitStrategy,
        initializer: Initializer,
        aggregator: Aggregator,
        merger: Merger,
    ) -> None:
        self.store_name = store_name
        self.windows = windows
        self.initializer = initializer
        self.aggregator = aggregator
        self.merger = merger
        self.emit_strategy = emit_strategy
        self.sends_old_values = False

    def send_old_values(self, *, force: bool = True) -> bool:  # noqa: ARG002 (there always is a store)
        """Send old values."""
        self.sends_old_values = True
        return True

    def view(self) -> View:
        """Look into the store."""
        return session_view(self.store_name)

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        process, drop, fail = _SessionTask(self, node).process, node.drop_record, node.processing_failed

        def process_record(key: object, value: object, timestamp: int, headers: Headers) -> None:
            if key is None:
                drop(DropReason.NULL_KEY)
                return
            try:
                process(key, value, timestamp, headers)
            except Exception as error:
                fail(error, key, value, timestamp, headers)

        return process_record


class _SessionTask:
    """The sessions of one task."""

    def __init__(self, definition: SessionAggregate, node: NodeContext) -> None:
        windows = definition.windows
        self._gap = windows.inactivity_gap_ms
        self._closes_after = windows.grace_ms + windows.inactivity_gap_ms
        self._initializer = definition.initializer
        self._aggregator = definition.aggregator
        self._merger = definition.merger
        self._sends_old_values = definition.sends_old_values
        self._node = node
        self._store = node.state_store(definition.store_name)
        self._stream_time = UNKNOWN_TIMESTAMP
        self._final_results: FinalResults | None = None
        self._silent = definition.emit_strategy is EmitStrategy.ON_WINDOW_CLOSE
        """Updates are not forwarded here: the cache does it, or only final results are emitted."""
        if self._silent:
            self._final_results = self._emitting_on_close(definition.store_name)
        else:
            node.on_init(self._listen)

    def _listen(self) -> None:
        self._silent = forward_flushed(
            self._node,
            self._store,
            send_old_values=self._sends_old_values,
            timestamp_of=lambda session, _timestamp: session.window.end,
        )

    def process(self, key: object, value: object, timestamp: int, headers: Headers) -> None:
        """Add one record to its session."""
        self._stream_time = max(self._stream_time, timestamp)
        close_time = self._stream_time - self._closes_after
        start = end = timestamp
        merged = list(self._store.find_sessions(key, timestamp - self._gap, timestamp + self._gap))
        total = self._initializer()
        for (_, session), part in merged:
            total = self._merger(key, total, part)
            start, end = min(start, session.start), max(end, session.end)
        if end < close_time:
            self._node.drop_record(DropReason.LATE, self._stream_time - self._gap - end, self._closes_after - self._gap)
        else:
            self._replace(merged, Windowed(key, Window(start, end)), value, total, timestamp, headers)
        if self._final_results is not None:
            self._final_results.emit(close_time, headers)

    def _replace(
        self,
        merged: list[tuple[Windowed[Any], Any]],
        session: Windowed[Any],
        value: object,
        total: object,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Replace the merged sessions with the new one. An existing session with exactly these bounds is overwritten."""
        key, (start, end) = session
        node, store, forward, silent = self._node, self._store, self._node.forward, self._silent
        record = node.record
        if start != timestamp or end != timestamp:
            for old_session, part in merged:
                record.timestamp, record.headers = timestamp, headers
                store.remove(old_session)
                if not silent:
                    change = Change(None, part if self._sends_old_values else None)
                    forward(old_session, change, old_session.window.end, NO_HEADERS)
        total = self._aggregator(key, value, total)
        record.timestamp, record.headers = timestamp, headers
        store.put(session, total)
        if not silent:
            forward(session, Change(total, None), end, NO_HEADERS)

    def _emitting_on_close(self, store_name: str) -> FinalResults:
        find_ended = self._store.find_sessions_ended

        def due(last: int, close_time: int) -> Range | None:
            earliest_end, latest_end = max(0, last), close_time - 1
            return (earliest_end, latest_end) if latest_end >= earliest_end else None

        def final(found: tuple[Windowed[Any], object]) -> FinalResult:
            session, value = found
            return session, value, session.window.end

        def fetch(earliest_end: int, latest_end: int) -> Iterator[FinalResult]:
            return map(final, find_ended(earliest_end, latest_end))

        return FinalResults(self._node, store_name, due=due, fetch=fetch)
