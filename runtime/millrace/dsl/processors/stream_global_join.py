"""Joins of a stream with a global table: every instance holds all of it, so any key of it can be looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.dsl.processors.stream_table_join import Joiner
from millrace.dsl.processors.tables import View
from millrace.processor.node import NodeContext, ProcessFn
from millrace.records import Headers


class StreamGlobalTableJoin:
    """Joins records with a global table by a key made from the record.

    Records without a value are dropped, and so are those whose mapped key is None; in a left join the latter are joined with
    nothing (KIP-962).

    Args:
        view: of the global table.
        key_mapper: key and value of a record (which may be None) → key in the table.
        joiner: the record's key, its value, the table's value → result.
        left: send records on that have no match.
    """

    def __init__(self, *, view: View, key_mapper: Callable[[Any, Any], Any], joiner: Joiner, left: bool) -> None:
        self._view = view
        self._key_mapper = key_mapper
        self._joiner = joiner
        self._left = left

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        key_mapper, joiner, left = self._key_mapper, self._joiner, self._left
        forward, drop, fail = node.forward, node.drop_record, node.processing_failed
        get = self._view.open(node).get

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            try:
                table_key = key_mapper(key, value)
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            if value is None or (table_key is None and not left):
                drop()
                return
            found = None if table_key is None else get(table_key)
            if found is None and not left:
                return
            try:
                result = joiner(key, value, None if found is None else found[0])
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            forward(key, result, timestamp, headers)

        return process
