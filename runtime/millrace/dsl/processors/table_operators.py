"""Tables from topics and streams, and their simple operators: filter, map_values, transform_values, to_stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from millrace.dropped_records import DropReason
from millrace.dsl.processors.tables import (
    NOT_PUT,
    ChangeParts,
    TableProcessor,
    TableStore,
    ValueGetter,
    View,
    change_forwarder,
    mapped_view,
    store_view,
)
from millrace.processor.adapter import NodeProcessorContext
from millrace.processor.api import ProcessingContext
from millrace.processor.node import NodeContext, ProcessFn
from millrace.records import Change, Headers, ValueAndTimestamp

Compute = Callable[[Any, Any], object]
"""Gets key and value of an entry (None: it is deleted); returns its value in a computed table."""


class TableSourceProcessor:
    """Keeps the latest value of each key of a topic; without a store it forwards updates without old values.

    Args:
        store_name: of the table's store, which exists only if `materialize` is called.
        materialized: the user asked for the store.
        on_materialize: called when something needs the store.
    """

    def __init__(self, store_name: str, *, materialized: bool, on_materialize: Callable[[], None]) -> None:
        self._store_name = store_name
        self._materialized = materialized
        self._on_materialize = on_materialize
        self._sends_old_values = False

    def materialize(self) -> None:
        """Keep the table in its store."""
        self._materialized = True
        self._on_materialize()

    def send_old_values(self, *, force: bool) -> bool:
        """Send old values if there is a store; if forced, create one."""
        if not (force or self._materialized):
            return False
        self.materialize()
        self._sends_old_values = True
        return True

    def view(self) -> View:
        """Look into the store, making sure there is one."""
        self.materialize()
        return store_view(self._store_name)

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        return self._with_store(node) if self._materialized else self._without_store(node)

    def _without_store(self, node: NodeContext) -> ProcessFn:
        forward, drop = node.forward, node.drop_record

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            if key is None:
                drop(DropReason.NULL_KEY)
                return
            forward(key, Change(value, None, True), timestamp, headers)

        return process

    def _with_store(self, node: NodeContext) -> ProcessFn:
        drop, fail, record = node.drop_record, node.processing_failed, node.record
        table = TableStore(node.state_store(self._store_name))
        get, put = table.get, table.put
        forward = change_forwarder(node, table.store, send_old_values=self._sends_old_values)

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            if key is None:
                drop(DropReason.NULL_KEY)
                return
            record.timestamp = timestamp
            record.headers = headers
            try:
                old = get(key)
                code = put(key, value, timestamp)
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            if code != NOT_PUT:
                forward(key, value, None if old is None else old[0], timestamp, headers, code == -1)

        return process


class _ComputedTable:
    """A table whose values are computed from another table's, and kept in a store if the user named one."""

    def __init__(self, parent: TableProcessor, queryable_name: str | None) -> None:
        self._parent = parent
        self._store_name = queryable_name
        self._sends_old_values = False

    def send_old_values(self, *, force: bool) -> bool:
        """Send old values from the own store, or computed from the parent's."""
        if self._store_name is not None or self._parent.send_old_values(force=force):
            self._sends_old_values = True
        return self._sends_old_values

    def view(self) -> View:
        """Look into the own store, or compute from the parent's values."""
        if self._store_name is not None:
            return store_view(self._store_name)
        return self._computed_view(self._parent.view())

    def _compute(self, key: object, value: object) -> object:
        """Return the value that key and value of the parent give, which may be None."""
        raise NotImplementedError

    def _compile(self, node: NodeContext) -> Compute:  # noqa: ARG002 (most operators need nothing of the task)
        """Return `_compute` as the node calls it."""
        return self._compute

    def _computed_view(self, parent: View) -> View:
        return mapped_view(parent, self._compute)

    def _skips_absent(self) -> bool:
        """Whether nothing is forwarded for a key that has neither an old nor a new value."""
        return False

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        compute, sends_old, skips_absent = self._compile(node), self._sends_old_values, self._skips_absent()
        forward, fail, record = node.forward, node.processing_failed, node.record

        if self._store_name is None:

            def process(key: object, change: ChangeParts, timestamp: int, headers: Headers) -> None:
                record.timestamp = timestamp
                record.headers = headers
                try:
                    new = compute(key, change[0])
                    old = compute(key, change[1]) if sends_old else None
                except Exception as error:
                    fail(error, key, change, timestamp, headers)
                    return
                if skips_absent and new is None and old is None:
                    return
                forward(key, Change(new, old, change[2]), timestamp, headers)

            return process

        table = TableStore(node.state_store(self._store_name))
        get, put = table.get, table.put
        forward_change = change_forwarder(node, table.store, send_old_values=sends_old)

        def process_stored(key: object, change: ChangeParts, timestamp: int, headers: Headers) -> None:
            record.timestamp = timestamp
            record.headers = headers
            try:
                new = compute(key, change[0])
                found = get(key) if sends_old else None
                old = None if found is None else found[0]
                if skips_absent and new is None and old is None:
                    return
                code = put(key, new, timestamp)
            except Exception as error:
                fail(error, key, change, timestamp, headers)
                return
            if code != NOT_PUT:
                forward_change(key, new, old, timestamp, headers, code == -1)

        return process_stored


class TableFilter(_ComputedTable):
    """Keeps the entries of a table for which a predicate is true; others are deleted downstream.

    Old values are used if the parent can send them without a new store, so that entries that never existed are not deleted
    again and again.
    """

    def __init__(
        self,
        parent: TableProcessor,
        predicate: Callable[[Any, Any], object],
        *,
        negate: bool,
        queryable_name: str | None,
    ) -> None:
        super().__init__(parent, queryable_name)
        self._predicate = predicate
        self._negate = negate
        self._versioned = False
        self._sends_old_values = parent.send_old_values(force=False)

    def use_versioned_semantics(self) -> None:
        """Forward deletions even if there was no entry: out-of-order updates need them."""
        self._versioned = True

    def _skips_absent(self) -> bool:
        return self._sends_old_values and not self._versioned

    def _compute(self, key: object, value: object) -> object:
        return value if value is not None and bool(self._predicate(key, value)) is not self._negate else None


class TableMapValues(_ComputedTable):
    """Replaces the values of a table."""

    def __init__(
        self, parent: TableProcessor, mapper: Callable[[Any, Any], object], *, queryable_name: str | None
    ) -> None:
        super().__init__(parent, queryable_name)
        self._mapper = mapper

    def _compute(self, key: object, value: object) -> object:
        return None if value is None else self._mapper(key, value)


def table_to_stream(node: NodeContext) -> ProcessFn:
    """Forward the new values of a table's updates as records of a stream."""
    forward = node.forward

    def process(key: object, change: ChangeParts, timestamp: int, headers: Headers) -> None:
        forward(key, change[0], timestamp, headers)

    return process


KIn = TypeVar("KIn", contravariant=True)  # noqa: PLC0105 (Kafka Streams' names)
VIn = TypeVar("VIn", contravariant=True)  # noqa: PLC0105 (Kafka Streams' names)
VOut = TypeVar("VOut", covariant=True)  # noqa: PLC0105 (Kafka Streams' names)


class ValueTransformer(Protocol[KIn, VIn, VOut]):
    """What `KTable.transform_values` runs (Java's ValueTransformerWithKey)."""

    def init(self, context: ProcessingContext) -> None:
        """Fetch stores; called once per task."""

    def transform(self, key: KIn, value: VIn) -> VOut:
        """Return the new value: always the same for the same key and value, unless the result is materialised."""

    def close(self) -> None:
        """Release what `init` acquired."""


class TableTransformValues(_ComputedTable):
    """Replaces the values of a table with the results of a stateful transformer.

    Without its own store, its results are not kept, so a look-up transforms the parent's current value again.
    """

    def __init__(
        self,
        parent: TableProcessor,
        supplier: Callable[[], ValueTransformer[Any, Any, object]],
        *,
        queryable_name: str | None,
    ) -> None:
        super().__init__(parent, queryable_name)
        self._supplier = supplier

    def _compile(self, node: NodeContext) -> Compute:
        """Make a transformer that starts and ends with the node, and return its function."""
        transformer = self._supplier()
        node.on_init(lambda: transformer.init(NodeProcessorContext(node)))
        node.on_close(transformer.close)
        return transformer.transform

    def _computed_view(self, parent: View) -> View:
        def open_view(node: NodeContext) -> ValueGetter:
            get_parent, transform = parent.open(node).get, self._compile(node)

            def get(key: object) -> ValueAndTimestamp[object] | None:
                found = get_parent(key)
                value = transform(key, None if found is None else found[0])
                return None if value is None else ValueAndTimestamp(value, -1 if found is None else found[1])

            return ValueGetter(get)

        return View(parent.store_names, open_view)
