"""Holds updates of a table back, so that fewer of them, or only final ones, are forwarded (KIP-328).

An update waits in a buffer, where a later update of the same key replaces it and keeps its place in the queue. It is emitted
when the operator's stream time, the largest timestamp it has seen, is later than the update's time by the suppression's
duration. The update's time is the timestamp of the key's first update, or the end of its window. A full buffer emits its oldest
updates early, or fails the task.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from millrace.dsl.options.suppressed import BufferConfig
from millrace.dsl.processors.tables import Found, TableProcessor, ValueGetter, View
from millrace.errors import StreamsError
from millrace.processor.node import NodeContext, ProcessFn, forward_as, leave_out
from millrace.records import UNKNOWN_TIMESTAMP, Headers, RecordContext

_NO_LIMIT = 2**63 - 1


class TableSuppress:
    """Holds back the updates of a table.

    Args:
        parent: the table; it sends old values, since look-ups in the buffer return the value before the one it holds.
        store_name: of the buffer.
        wait_ms: how long an update waits; for final results of windows that is their grace period.
        final_results: an update's time is the end of its window, and deletions are not forwarded, because nothing was forwarded
            before.
        buffer: its limits, and what happens when they are reached.
    """

    def __init__(
        self, *, parent: TableProcessor, store_name: str, wait_ms: int, final_results: bool, buffer: BufferConfig
    ) -> None:
        self._parent = parent
        self.store_name = store_name
        self._wait_ms = wait_ms
        self._final_results = final_results
        self._buffer = buffer
        parent.send_old_values(force=True)

    def send_old_values(self, *, force: bool) -> bool:
        """Send old values; the parent does."""
        return self._parent.send_old_values(force=force)

    def view(self) -> View:
        """Look up the last value that was forwarded: in the buffer, or in the parent if nothing is held back."""
        parent = self._parent.view()
        store_name = self.store_name

        def open_view(node: NodeContext) -> ValueGetter:
            prior = node.state_store(store_name).prior_value_for_buffered
            get_parent = parent.open(node).get

            def get(key: object) -> Found:
                is_buffered, found = prior(key)
                return found if is_buffered else get_parent(key)

            return ValueGetter(get)

        return View((store_name, *parent.store_names), open_view)

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        wait, final_results, limits = self._wait_ms, self._final_results, self._buffer
        max_records = _NO_LIMIT if limits.record_limit is None else limits.record_limit
        max_bytes = _NO_LIMIT if limits.byte_limit is None else limits.byte_limit
        shuts_down = limits.shuts_down
        buffer = node.state_store(self.store_name)
        forward, fail, record = node.forward, node.processing_failed, node.record
        put, evict_while, skip = buffer.put, buffer.evict_while, partial(leave_out, node)
        stream_time = UNKNOWN_TIMESTAMP

        def process(key: Any, change: Any, timestamp: int, headers: Headers) -> None:
            nonlocal stream_time
            stream_time = max(stream_time, timestamp)
            record.timestamp = timestamp
            record.headers = headers
            try:
                put(key[1][1] if final_results else timestamp, key, change, record)
            except Exception as error:
                fail(error, key, change, timestamp, headers)
                return
            expiry = stream_time - wait
            if buffer.min_timestamp <= expiry:
                evict_while(lambda: buffer.min_timestamp <= expiry, emit, skip)
            if buffer.num_records > max_records or buffer.buffer_size > max_bytes:
                if shuts_down:
                    fail(_full(), key, change, timestamp, headers)
                else:
                    evict_while(is_full, emit, skip)

        def is_full() -> bool:
            return bool(buffer.num_records > max_records or buffer.buffer_size > max_bytes)

        def emit(key: Any, change: Any, context: RecordContext) -> None:
            if change[0] is not None or not final_results:
                forward_as(record, context, forward, key, change)
                node.sensor("suppression-emit")

        def _full() -> StreamsError:
            return StreamsError(
                f"The suppression buffer {self.store_name} of node {node.name} is full: it holds {buffer.num_records} "
                f"records of at most {max_records} and {buffer.buffer_size} bytes of at most {max_bytes}. "
                "Raise its limits, or let it emit early"
            )

        return process
