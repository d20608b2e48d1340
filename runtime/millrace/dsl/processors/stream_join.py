"""Joins of two streams: each side keeps its records in a window store and looks up the other side's records.

The timestamp of a result is the later one of the two records. Records without a key or a value are dropped, except that an outer
side joins those without a key with None (KIP-962).

In left and outer joins, a record without a match may still find one until its window and the grace period have passed. Until
then it waits in a store that both sides share. A match takes it out, and a record of either side that advances stream time
sends on everything that has expired, joined with None; but it checks at most once per
`__emit.interval.ms.kstreams.outer.join.spurious.results.fix__` of wall-clock time, because that costs a scan. The store is in
order of timestamp, right before left, key. The two sides may wait for different times (asymmetric windows), so a scan goes on
until it has met one record of each side that has not expired.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from millrace.config import OUTER_JOIN_INTERVAL
from millrace.dropped_records import DropReason
from millrace.dsl.processors.tables import Joiner
from millrace.dsl.windows import JoinWindows
from millrace.processor.node import NodeContext, NodeFactory, ProcessFn, leave_out
from millrace.records import NO_HEADERS, UNKNOWN_TIMESTAMP, Headers
from millrace.state.outer_join_store import JoinSideKey, LeftOrRightValue


@dataclass(frozen=True, slots=True)
class StreamJoinFactories:
    """The node factories of one join; `left` and `right` belong together."""

    left_window: NodeFactory
    """Forwards the left stream's records and keeps them."""
    right_window: NodeFactory
    left: NodeFactory
    """Joins the left stream's records with the right window."""
    right: NodeFactory
    self_join: NodeFactory
    """Replaces `left`, `right` and their merge if both streams are the same."""


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
        windows: which records are joined, as seen from the left stream.
        joiner: key, left value, right value → result.
        left_store_name: the window store of the left stream.
        right_store_name: the window store of the right stream.
        outer_store_name: where records without a match wait; None for inner joins.
        left_outer: records of the left stream without a match have results too.
        right_outer: records of the right stream without a match have results too.
    """
    left: NodeFactory
    right: NodeFactory
    if outer_store_name is None:
        before, after = windows.before_ms, windows.after_ms
        left = InnerJoinSide(right_store_name, before, after, joiner)
        right = InnerJoinSide(left_store_name, after, before, lambda key, right, left: joiner(key, left, right))
    else:
        times: TimesOfTasks = WeakKeyDictionary()
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


class WindowedRecords:
    """Forwards records to the join, and then keeps those with a key for the other side.

    Args:
        store_name: of its window store, which retains duplicates.
    """

    def __init__(self, store_name: str) -> None:
        self._store_name = store_name

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        forward, fail, record = node.forward, node.processing_failed, node.record
        put = node.state_store(self._store_name).put

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            forward(key, value, timestamp, headers)
            if key is not None:
                record.timestamp = timestamp
                record.headers = headers
                try:
                    put(key, value, timestamp)
                except Exception as error:
                    fail(error, key, value, timestamp, headers)

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

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            if key is None or value is None:
                drop(DropReason.NULL_KEY if key is None else DropReason.NULL_VALUE)
                return
            try:
                for other_time, other in fetch(key, max(0, timestamp - before), max(0, timestamp + after)):
                    forward(key, join(key, value, other), max(timestamp, other_time), headers)
            except Exception as error:
                fail(error, key, value, timestamp, headers)

        return process


class SelfJoin:
    """Joins a stream with itself, using one store; results have the same order as in a join of two equal streams.

    Args:
        store_name: the stream's window store.
        windows: which records are joined.
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

        def process(key: object, value: object, timestamp: int, headers: Headers) -> None:
            nonlocal stream_time
            if key is None or value is None:
                drop(DropReason.NULL_KEY if key is None else DropReason.NULL_VALUE)
                return
            stream_time = max(stream_time, timestamp)
            itself_due = timestamp > stream_time - retention + 1
            try:
                with_itself = joiner(key, value, value)
                for other_time, other in fetch(key, max(0, timestamp - before), max(0, timestamp + after)):
                    forward(key, joiner(key, value, other), max(timestamp, other_time), headers)
                for other_time, other in fetch(key, max(0, timestamp - after), max(0, timestamp + before)):
                    if itself_due and other_time > timestamp:
                        itself_due = False
                        forward(key, with_itself, timestamp, headers)
                    forward(key, joiner(key, other, value), max(timestamp, other_time), headers)
                if itself_due:
                    forward(key, with_itself, timestamp, headers)
            except Exception as error:
                fail(error, key, value, timestamp, headers)

        return process


_DEFAULT_EMIT_INTERVAL_MS = 1000


class JoinTimes:
    """What the two sides of a join share in one task."""

    __slots__ = ("earliest_waiting", "next_look_ms", "stream_time")

    def __init__(self) -> None:
        self.stream_time = UNKNOWN_TIMESTAMP
        self.earliest_waiting: int | None = None
        """Records with this timestamp or later may be waiting (ms); None: not checked yet, or none were found."""
        self.next_look_ms = 0


TimesOfTasks = WeakKeyDictionary[Any, JoinTimes]
"""The `JoinTimes` of every task in which a join runs, by the store that both its sides share."""


class OuterJoinSide:
    """One side of a left or outer join.

    Args:
        windows: which records are joined, as seen from the left stream.
        joiner: key, left value, right value → result.
        other_store_name: the other side's window store.
        outer_store_name: where records without a match wait; shared by both sides.
        times: shared by both sides.
        is_left: whether this is the left side.
        keeps_unmatched: whether records of this side without a match have results.
    """

    def __init__(
        self,
        windows: JoinWindows,
        joiner: Joiner,
        other_store_name: str,
        outer_store_name: str,
        times: TimesOfTasks,
        *,
        is_left: bool,
        keeps_unmatched: bool,
    ) -> None:
        self.windows = windows
        self.joiner = joiner
        self.other_store_name = other_store_name
        self.outer_store_name = outer_store_name
        self.times = times
        self.is_left = is_left
        self.keeps_unmatched = keeps_unmatched

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        process, fail = _OuterJoinTask(self, node).process, node.processing_failed

        def process_record(key: object, value: object, timestamp: int, headers: Headers) -> None:
            try:
                process(key, value, timestamp, headers)
            except Exception as error:
                fail(error, key, value, timestamp, headers)

        return process_record


class _OuterJoinTask:
    """One side in one task. While a record is processed, `_timestamp` and `_headers` are that record's."""

    def __init__(self, side: OuterJoinSide, node: NodeContext) -> None:
        def forget_times() -> None:
            side.times.pop(self._waiting, None)

        windows = side.windows
        self._node = node
        self._forward = node.forward
        self._joiner = side.joiner
        self._is_left = side.is_left
        self._keeps_unmatched = side.keeps_unmatched
        self._left_waits = windows.after_ms + windows.grace_ms
        self._right_waits = windows.before_ms + windows.grace_ms
        before, after = windows.before_ms, windows.after_ms
        self._before, self._after = (before, after) if side.is_left else (after, before)
        self._waits = self._after + windows.grace_ms
        self._fetch = node.state_store(side.other_store_name).fetch
        self._waiting = node.state_store(side.outer_store_name)
        self._times = side.times.setdefault(self._waiting, JoinTimes())
        node.on_close(forget_times)
        self._interval_ms: int = node.config.internal(OUTER_JOIN_INTERVAL, _DEFAULT_EMIT_INTERVAL_MS)
        self._timestamp = UNKNOWN_TIMESTAMP
        self._headers = NO_HEADERS

    def process(self, key: object, value: object, timestamp: int, headers: Headers) -> None:
        """Join one record; if it advances stream time, forward expired records."""
        times = self._times
        times.stream_time = max(times.stream_time, timestamp)
        if value is None or (key is None and not self._keeps_unmatched):
            self._node.drop_record(DropReason.NULL_VALUE if value is None else DropReason.NULL_KEY)
            return
        self._timestamp, self._headers = timestamp, headers
        if key is None:
            self._forward(None, self._joined(None, value, None), timestamp, headers)
            return
        if timestamp == times.stream_time:
            self._send_expired()
        until = max(0, timestamp + self._after)
        matched = False
        for other_time, other in self._fetch(key, max(0, timestamp - self._before), until):
            matched = True
            self._take(JoinSideKey(other_time, not self._is_left, key))
            self._forward(key, self._joined(key, value, other), max(timestamp, other_time), headers)
        if matched or not self._keeps_unmatched:
            return
        if until < times.stream_time:
            self._forward(key, self._joined(key, value, None), timestamp, headers)
            return
        if times.earliest_waiting is None or timestamp < times.earliest_waiting:
            times.earliest_waiting = timestamp
        self._put(JoinSideKey(timestamp, self._is_left, key), LeftOrRightValue(self._is_left, value))

    def _joined(self, key: object, value: object, other: object) -> Any:
        if self._is_left:
            return self._joiner(key, value, other)
        return self._joiner(key, other, value)

    def _take(self, other: JoinSideKey[Any]) -> None:
        """Remove the other record from the waiting ones, if it is one."""
        self._own_context()
        self._waiting.take(other)

    def _put(self, own: JoinSideKey[Any], value: LeftOrRightValue[Any] | None) -> None:
        self._own_context()
        self._waiting.put(own, value)

    def _own_context(self) -> None:
        record = self._node.record
        record.timestamp = self._timestamp
        record.headers = self._headers

    def _send_expired(self) -> None:
        if not self._time_to_look():
            return
        forward, headers = self._forward, self._headers
        sent: JoinSideKey[Any] | None = None
        for entry, value in self._expired():
            left, right = (value.value, None) if value.is_left else (None, value.value)
            forward(entry.key, self._joiner(entry.key, left, right), entry.timestamp, headers)
            if sent is not None and sent != entry:
                self._put(sent, None)
            sent = entry
        if sent is not None:
            self._put(sent, None)

    def _time_to_look(self) -> bool:
        times = self._times
        earliest = times.earliest_waiting
        if earliest is not None and earliest + self._waits >= times.stream_time:
            return False
        now = self._node.system_time()
        if now < times.next_look_ms:
            return False
        times.next_look_ms = now + self._interval_ms
        return True

    def _expired(self) -> list[tuple[JoinSideKey[Any], LeftOrRightValue[Any]]]:
        """Return the waiting records whose window has closed, and note the timestamp of the first one that is still open."""
        times = self._times
        stream_time = times.stream_time
        times.earliest_waiting = None
        self._own_context()
        left_open = right_open = False
        expired = []
        for entry, value in self._waiting.all(partial(leave_out, self._node)):
            times.earliest_waiting = entry.timestamp
            if left_open and right_open:
                break
            if entry.is_left:
                if entry.timestamp + self._left_waits >= stream_time:
                    left_open = True
                    continue
            elif entry.timestamp + self._right_waits >= stream_time:
                right_open = True
                continue
            expired.append((entry, value))
        return expired
