"""Joins of two streams: each side keeps its records in a window store and looks up those of the other side.

The timestamp of a result is the later one of the two records. Records without a key or a value are dropped, except that an outer
side joins those without a key with None (KIP-962). What happens to records that find no partner is in `outer_join.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace.dsl.processors.outer_join import OuterJoinSide, TimesOfTasks
from millrace.dsl.processors.stream_table_join import Joiner
from millrace.dsl.windows import JoinWindows
from millrace.processor.node import NodeContext, NodeFactory, ProcessFn
from millrace.records import UNKNOWN_TIMESTAMP, Headers


@dataclass(frozen=True, slots=True)
class StreamJoinFactories:
    """The node factories of one join; `left` and `right` belong together."""

    left_window: NodeFactory
    """Passes the left stream's records on and keeps them."""
    right_window: NodeFactory
    left: NodeFactory
    """Joins the left stream's records with the right window."""
    right: NodeFactory
    self_join: NodeFactory
    """Stands for `left`, `right` and the merge of both, if both streams are the same."""


def stream_join(
    *,
    windows: JoinWindows,
    joiner: Joiner,
    left_store_name: str,
    right_store_name: str,
    outer_store_name: str | None = None,
    left_outer: bool = False,
    right_outer: bool = False,
) -> StreamJoinFactories:
    """Return the node factories of a join.

    Args:
        windows: which records belong together, seen from the left stream.
        joiner: key, left value, right value → result.
        left_store_name: the window store of the left stream.
        right_store_name: the window store of the right stream.
        outer_store_name: where records without a partner wait; None for inner joins.
        left_outer: records of the left stream without a partner give results too.
        right_outer: records of the right stream without a partner give results too.
    """
    left: NodeFactory
    right: NodeFactory
    if outer_store_name is None:
        before, after = windows.before_ms, windows.after_ms
        left = InnerJoinSide(right_store_name, before, after, joiner)
        right = InnerJoinSide(left_store_name, after, before, _reversed(joiner))
    else:
        times = TimesOfTasks()
        left = OuterJoinSide(
            windows, joiner, right_store_name, outer_store_name, times, is_left=True, keeps_unmatched=left_outer
        )
        right = OuterJoinSide(
            windows, joiner, left_store_name, outer_store_name, times, is_left=False, keeps_unmatched=right_outer
        )
    return StreamJoinFactories(
        left_window=WindowedRecords(left_store_name),
        right_window=WindowedRecords(right_store_name),
        left=left,
        right=right,
        self_join=SelfJoin(left_store_name, windows, joiner),
    )


def _reversed(joiner: Joiner) -> Joiner:
    return lambda key, right, left: joiner(key, left, right)


class WindowedRecords:
    """Passes records on to the join, and then keeps those that have a key for the other side.

    Args:
        store_name: of its window store, which retains duplicates.
    """

    def __init__(self, store_name: str) -> None:
        self._store_name = store_name

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        forward, record = node.forward, node.record
        put = node.state_store(self._store_name).put

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            forward(key, value, timestamp, headers)
            if key is not None:
                record.timestamp = timestamp
                record.headers = headers
                put(key, value, timestamp)

        return process


class InnerJoinSide:
    """Joins the records of one side with those in the other side's window.

    Args:
        other_store_name: the other side's window store.
        before_ms: how much earlier the other record may be.
        after_ms: how much later it may be.
        joiner: key, this side's value, the other side's value → result.
    """

    def __init__(self, other_store_name: str, before_ms: int, after_ms: int, joiner: Joiner) -> None:
        self._other_store_name = other_store_name
        self._before_ms = before_ms
        self._after_ms = after_ms
        self._joiner = joiner

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        before, after, join = self._before_ms, self._after_ms, self._joiner
        forward, drop, fail = node.forward, node.drop_record, node.processing_failed
        fetch = node.state_store(self._other_store_name).fetch

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                drop()
                return
            for other_time, other in fetch(key, max(0, timestamp - before), max(0, timestamp + after)):
                try:
                    result = join(key, value, other)
                except Exception as error:
                    fail(error, key, value, timestamp, headers)
                    return
                forward(key, result, max(timestamp, other_time), headers)

        return process


class SelfJoin:
    """Joins a stream with itself through one store; the results come in the order that a join of two equal streams gives.

    Args:
        store_name: the stream's window store.
        windows: which records belong together.
        joiner: key, left value, right value → result.
    """

    def __init__(self, store_name: str, windows: JoinWindows, joiner: Joiner) -> None:
        self._store_name = store_name
        self._windows = windows
        self._joiner = joiner

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        before, after = self._windows.before_ms, self._windows.after_ms
        retention = self._windows.size_ms + self._windows.grace_ms
        joiner, forward, drop, fail = self._joiner, node.forward, node.drop_record, node.processing_failed
        fetch = node.state_store(self._store_name).fetch
        stream_time = UNKNOWN_TIMESTAMP

        def process(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
            nonlocal stream_time
            if key is None or value is None:
                drop()
                return
            stream_time = max(stream_time, timestamp)
            itself_due = timestamp > stream_time - retention + 1
            try:
                with_itself = joiner(key, value, value)
            except Exception as error:
                fail(error, key, value, timestamp, headers)
                return
            for other_time, other in fetch(key, max(0, timestamp - before), max(0, timestamp + after)):
                try:
                    result = joiner(key, value, other)
                except Exception as error:
                    fail(error, key, value, timestamp, headers)
                    return
                forward(key, result, max(timestamp, other_time), headers)
            for other_time, other in fetch(key, max(0, timestamp - after), max(0, timestamp + before)):
                if itself_due and other_time > timestamp:
                    itself_due = False
                    forward(key, with_itself, timestamp, headers)
                try:
                    result = joiner(key, other, value)
                except Exception as error:
                    fail(error, key, value, timestamp, headers)
                    return
                forward(key, result, max(timestamp, other_time), headers)
            if itself_due:
                forward(key, with_itself, timestamp, headers)

        return process
