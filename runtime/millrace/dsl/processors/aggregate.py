"""Aggregations of streams by key: count, reduce, aggregate; and the node that merges the aggregations of a cogroup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millrace.dropped_records import DropReason
from millrace.dsl.processors.tables import (
    NOT_PUT,
    TableStore,
    View,
    forwards_when_flushed,
    store_view,
)
from millrace.processor.node import NodeContext, ProcessFn
from millrace.records import Headers

Initializer = Callable[[], Any]
Aggregator = Callable[[Any, Any, Any], Any]
"""key, value, aggregate so far; returns the new aggregate, or None to delete it."""
Reducer = Callable[[Any, Any], Any]


def count_aggregator(key: object, value: object, count: int) -> int:  # noqa: ARG001 (any record counts)
    """Count one more record."""
    return count + 1


class StreamAggregate:
    """Keeps one aggregate per key. Records without key or value are dropped.

    As in Kafka Streams, the first old value that is forwarded is the initial one.
    """

    def __init__(self, store_name: str, initializer: Initializer, aggregator: Aggregator) -> None:
        self.store_name = store_name
        self._initializer = initializer
        self._aggregator = aggregator
        self._sends_old_values = False

    def send_old_values(self, *, force: bool = True) -> bool:  # noqa: ARG002 (there always is a store)
        """Send old values."""
        self._sends_old_values = True
        return True

    def view(self) -> View:
        """Look into the store."""
        return store_view(self.store_name)

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        initialize, aggregate, sends_old = self._initializer, self._aggregator, self._sends_old_values
        forward, drop, fail, record = node.forward, node.drop_record, node.processing_failed, node.record
        table = TableStore(node.state_store(self.store_name))
        topic, key_bytes, _, get, put = table.direct
        silent = forwards_when_flushed(node, table.store, send_old_values=sends_old)

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                drop(DropReason.NULL_KEY if key is None else DropReason.NULL_VALUE)
                return
            record.timestamp = timestamp
            record.headers = headers
            try:
                raw = key_bytes(topic, key)
                found = get(raw)
                if found is None:
                    old = initialize()
                    time = timestamp
                else:
                    old, time = found
                    if timestamp > time:
                        time = timestamp
                new = aggregate(key, value, old)
                code = put(raw, (new, time))
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            if not silent and code != NOT_PUT:
                forward(key, (new, old if sends_old else None, code is None), time, headers)

        return process


class StreamReduce(StreamAggregate):
    """Keeps one value per key, combined from all values so far, starting with the first one."""

    def __init__(self, store_name: str, reducer: Reducer) -> None:
        super().__init__(store_name, lambda: None, lambda _key, value, so_far: reducer(so_far, value))
        self._reducer = reducer

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        reduce, sends_old = self._reducer, self._sends_old_values
        forward, drop, fail, record = node.forward, node.drop_record, node.processing_failed, node.record
        table = TableStore(node.state_store(self.store_name))
        topic, key_bytes, _, get, put = table.direct
        silent = forwards_when_flushed(node, table.store, send_old_values=sends_old)

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                drop(DropReason.NULL_KEY if key is None else DropReason.NULL_VALUE)
                return
            record.timestamp = timestamp
            record.headers = headers
            try:
                raw = key_bytes(topic, key)
                found = get(raw)
                if found is None:
                    old, new, time = None, value, timestamp
                else:
                    old, time = found
                    new = reduce(old, value)
                    if timestamp > time:
                        time = timestamp
                code = put(raw, (new, time))
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            if not silent and code != NOT_PUT:
                forward(key, (new, old if sends_old else None, code is None), time, headers)

        return process


class CogroupMerge:
    """Merges the outputs of a cogroup's aggregations, which share one store."""

    def __init__(self, parents: Sequence[Any]) -> None:
        self._parents = tuple(parents)

    def send_old_values(self, *, force: bool = True) -> bool:
        """Have all aggregations send old values."""
        for parent in self._parents:
            parent.send_old_values(force=force)
        return True

    def view(self) -> View:
        """Look into the shared store."""
        view: View = self._parents[0].view()
        return view

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        return node.forward
