"""Joins of a stream with a table: each record of the stream looks up the table's value at that moment.

With a versioned table the look-up is as of the record's timestamp. With a grace period (KIP-923) a record first waits in a buffer
until the stream time of this operator has passed it by that much; a record that is already so late is joined at once.

Every instance holds all of a global table, so any key of it can be looked up.
"""

from __future__ import annotations

from functools import partial

from millrace.dropped_records import DropReason
from millrace.dsl.processors.stateless import KeyValueMapper
from millrace.dsl.processors.tables import Joiner, View
from millrace.processor.node import NodeContext, ProcessFn, forward_as, leave_out
from millrace.records import Headers, RecordContext


class StreamTableJoin:
    """Joins records with a table by their key.

    Records without a value are dropped, and so are those without a key; in a left join the latter are joined with None
    (KIP-962).

    Args:
        view: of the table.
        joiner: key, record's value, table's value → result.
        left: forward records without a match.
        buffer_name: the store in which records wait for the grace period; None: they do not wait.
    """

    def __init__(self, *, view: View, joiner: Joiner, left: bool, buffer_name: str | None = None) -> None:
        self._view = view
        self._joiner = joiner
        self._left = left
        self._buffer_name = buffer_name

    @property
    def store_names(self) -> tuple[str, ...]:
        """The stores that its node must be connected to."""
        return (*self._view.store_names, *(() if self._buffer_name is None else (self._buffer_name,)))

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        join = self._joining(node)
        return join if self._buffer_name is None else self._waiting(node, join, self._buffer_name)

    def _joining(self, node: NodeContext) -> ProcessFn:
        joiner, left = self._joiner, self._left
        forward, drop, fail = node.forward, node.drop_record, node.processing_failed
        getter = self._view.open(node)
        get, get_as_of = getter.get, getter.get_as_of

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            if value is None or (key is None and not left):
                drop(DropReason.NULL_VALUE if value is None else DropReason.NULL_KEY)
                return
            try:
                found = None if key is None else get(key) if get_as_of is None else get_as_of(key, timestamp)
                if found is None and not left:
                    return
                result = joiner(key, value, None if found is None else found[0])
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            forward(key, result, timestamp, headers)

        return process

    def _waiting(self, node: NodeContext, join: ProcessFn, buffer_name: str) -> ProcessFn:
        """Return the function that buffers records for the grace period before they are joined."""
        buffer, left = node.state_store(buffer_name), self._left
        put, evict, skip = buffer.put, buffer.evict, partial(leave_out, node)
        drop, fail, record = node.drop_record, node.processing_failed, node.record

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            if value is None or (key is None and not left):
                drop(DropReason.NULL_VALUE if value is None else DropReason.NULL_KEY)
                return
            record.timestamp = timestamp
            record.headers = headers
            try:
                waits = key is not None and put(key, value, record)
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            if waits:
                evict(emit, skip)
            else:
                join(key, value, timestamp, headers)

        def emit(key: object, value: object, context: RecordContext) -> None:
            forward_as(record, context, join, key, value)

        return process


class StreamGlobalTableJoin:
    """Joins records with a global table by a key made from the record.

    Records without a value are dropped, and so are those whose mapped key is None; in a left join the latter are joined with
    None (KIP-962).

    Args:
        view: of the global table.
        key_mapper: key and value of a record (which may be None) → key in the table.
        joiner: the record's key, its value, the table's value → result.
        left: forward records without a match.
    """

    def __init__(self, *, view: View, key_mapper: KeyValueMapper, joiner: Joiner, left: bool) -> None:
        self._view = view
        self._key_mapper = key_mapper
        self._joiner = joiner
        self._left = left

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        key_mapper, joiner, left = self._key_mapper, self._joiner, self._left
        forward, drop, fail = node.forward, node.drop_record, node.processing_failed
        get = self._view.open(node).get

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            try:
                table_key = key_mapper(key, value)
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            if value is None or (table_key is None and not left):
                drop(DropReason.NULL_VALUE if value is None else DropReason.NULL_KEY)
                return
            try:
                found = None if table_key is None else get(table_key)
                if found is None and not left:
                    return
                result = joiner(key, value, None if found is None else found[0])
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            forward(key, result, timestamp, headers)

        return process
