"""Aggregations of tables: each update removes its old value from the aggregate and adds its new value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.dsl.processors.stateless import result_error
from millrace.dsl.processors.tables import (
    IS_LATEST,
    NOT_PUT,
    ChangeParts,
    TableStore,
    View,
    change_forwarder,
    store_view,
)
from millrace.errors import StreamsError
from millrace.processor.node import NodeContext, ProcessFn
from millrace.records import Change, Headers

Selector = Callable[[Any, Any], tuple[object, object] | None]
"""key and value → key of the group and value to aggregate; None, like a pair with None in it, is no entry of any group."""
_NO_ENTRY = (None, None)


class TableGroupBy:
    """Sends the old and the new value of every update to the groups they belong to.

    Both go in one record when they belong to the same group (KIP-904), unless an application is being upgraded from 3.4 or
    older, whose instances could not read that.
    """

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._versioned = False

    def use_versioned_semantics(self) -> None:
        """Ignore out-of-order updates, without counting them as dropped: the group has seen newer ones (KIP-914)."""
        self._versioned = True

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        selector, forward, fail = self._selector, node.forward, node.processing_failed
        versioned, both_at_once = self._versioned, not node.config.may_run_before(3, 5)

        def process(key: object, change: ChangeParts, timestamp: int, headers: Headers) -> None:
            new, old, is_latest = change
            if versioned and not is_latest:
                return
            try:
                new_pair = None if new is None else selector(key, new)
                new_key, new_value = _NO_ENTRY if new_pair is None else new_pair
                old_pair = None if old is None else selector(key, old)
                old_key, old_value = _NO_ENTRY if old_pair is None else old_pair
            except Exception as error:
                fail(result_error(error, "a pair of key and value, or None"), key, change, timestamp, headers)
                return
            has_new = new_key is not None and new_value is not None
            has_old = old_key is not None and old_value is not None
            if both_at_once and has_new and has_old and new_key == old_key:
                forward(new_key, Change(new_value, old_value), timestamp, headers)
                return
            if has_old:
                forward(old_key, Change(None, old_value), timestamp, headers)
            if has_new:
                forward(new_key, Change(new_value, None), timestamp, headers)

        return process


class TableAggregate:
    """Keeps one aggregate per group of a table.

    Args:
        store_name: of the aggregates' store.
        add: gets key, new value and aggregate (None before the first), returns the new aggregate.
        remove: gets key, old value and aggregate.
    """

    def __init__(
        self,
        store_name: str,
        add: Callable[[Any, Any, Any], object],
        remove: Callable[[Any, Any, Any], object],
        *,
        initial_time_counts: bool,
    ) -> None:
        self._store_name = store_name
        self._add = add
        self._remove = remove
        self._initial_time_counts = initial_time_counts
        self._sends_old_values = False

    def send_old_values(self, *, force: bool = True) -> bool:  # noqa: ARG002 (there always is a store)
        """Send old values."""
        self._sends_old_values = True
        return True

    def view(self) -> View:
        """Look into the store."""
        return store_view(self._store_name)

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        add, remove, fail, record = self._add, self._remove, node.processing_failed, node.record
        initial_time_counts, name = self._initial_time_counts, node.name
        table = TableStore(node.state_store(self._store_name))
        get, put = table.get, table.put
        forward = change_forwarder(node, table.store, send_old_values=self._sends_old_values)

        def process(key: object, change: ChangeParts, timestamp: int, headers: Headers) -> None:
            if key is None:
                raise StreamsError(
                    f"Node {name} received an update without a key, which cannot come from its repartition topic"
                )
            record.timestamp = timestamp
            record.headers = headers
            new_value, old_value, _ = change
            try:
                found = get(key)
                before = None if found is None else found[0]
                time, aggregate = timestamp, before
                if old_value is not None and found is not None:
                    aggregate = remove(key, old_value, before)
                    time = max(timestamp, found[1])
                if new_value is not None:
                    if found is not None and (initial_time_counts or aggregate is not None):
                        time = max(timestamp, found[1])
                    aggregate = add(key, new_value, aggregate)
                code = put(key, aggregate, time)
            except Exception as error:
                fail(error, key, change, timestamp, headers)
                return
            if code != NOT_PUT:
                forward(key, aggregate, before, time, headers, code == IS_LATEST)

        return process
