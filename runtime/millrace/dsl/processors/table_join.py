"""Joins of two tables by their key: an update of either side is joined with the current value of the other."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.dropped_records import DropReason
from millrace.dsl.processors.tables import (
    IS_LATEST,
    NOT_PUT,
    ChangeParts,
    Found,
    Joiner,
    TableProcessor,
    TableStore,
    ValueGetter,
    View,
    change_forwarder,
    store_view,
)
from millrace.processor.node import NodeContext, ProcessFn
from millrace.records import Change, Headers, ValueAndTimestamp

_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class JoinSide:
    """Which values one side of a join requires.

    `needs_own`: a result needs a value of this side; `needs_other`: it needs one of the other side.
    """

    needs_own: bool
    needs_other: bool


class TableJoinSide:
    """Joins the updates of one table with the values of the other.

    Args:
        this: the table whose updates arrive.
        other: the table they are joined with.
        joiner: gets key, value of this side and value of the other.
        side: which values a result needs.
    """

    def __init__(self, *, this: TableProcessor, other: TableProcessor, joiner: Joiner, side: JoinSide) -> None:
        self._this = this
        self._other = other
        self._joiner = joiner
        self._side = side
        self._versioned = False
        self._sends_old_values = False
        self.other_view = other.view()
        """The node must be connected to its stores."""

    def use_versioned_semantics(self) -> None:
        """Drop out-of-order updates of this side (KIP-914)."""
        self._versioned = True

    def send_old_values(self, *, force: bool = True) -> bool:
        """Have both tables send old values."""
        self._this.send_old_values(force=force)
        self._other.send_old_values(force=force)
        self._sends_old_values = True
        return True

    def view(self) -> View:
        """Join the values of both tables on demand."""
        this, other, joiner, side = self._this.view(), self.other_view, self._joiner, self._side

        def open_view(node: NodeContext) -> ValueGetter:
            get_this, get_other = this.open(node).get, other.open(node).get

            def get(key: object) -> Found:
                mine, theirs = get_this(key), get_other(key)
                if (mine is None and (side.needs_own or theirs is None)) or (theirs is None and side.needs_other):
                    return None
                value = joiner(key, None if mine is None else mine[0], None if theirs is None else theirs[0])
                times = [found[1] for found in (mine, theirs) if found is not None]
                return ValueAndTimestamp(value, max(times))

            return ValueGetter(get)

        return View(tuple(dict.fromkeys((*this.store_names, *other.store_names))), open_view)

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        get_other, joiner = self.other_view.open(node).get, self._joiner
        drop, fail, forward = node.drop_record, node.processing_failed, node.forward
        versioned, sends_old = self._versioned, self._sends_old_values
        needs_own, needs_other = self._side.needs_own, self._side.needs_other

        def process(key: object, change: ChangeParts, timestamp: int, headers: Headers) -> None:
            new, old, is_latest = change
            if key is None or (versioned and not is_latest):
                drop(DropReason.NULL_KEY if key is None else DropReason.OUT_OF_ORDER)
                return
            try:
                found = get_other(key)
                other = None if found is None else found[0]
                if other is None and (needs_other or (new is None and old is None)):
                    return
                nothing_there = needs_own or other is None
                joined = None if new is None and nothing_there else joiner(key, new, other)
                before = None if not sends_old or (old is None and nothing_there) else joiner(key, old, other)
            except Exception as error:
                fail(error, key, change, timestamp, headers)
                return
            time = max(timestamp, _UNKNOWN if found is None else found[1])
            forward(key, Change(joined, before, is_latest), time, headers)

        return process


class TableJoinMerge:
    """Merges the results of both sides, and keeps them if the joined table is materialised."""

    def __init__(self, this: TableJoinSide, other: TableJoinSide, store_name: str | None) -> None:
        self._this = this
        self._other = other
        self._store_name = store_name
        self._sends_old_values = False

    def send_old_values(self, *, force: bool = True) -> bool:
        """Have both sides send old values."""
        self._this.send_old_values(force=force)
        self._other.send_old_values(force=force)
        self._sends_old_values = True
        return True

    def view(self) -> View:
        """Look into the own store, or join."""
        return self._this.view() if self._store_name is None else store_view(self._store_name)

    def __call__(self, node: NodeContext) -> ProcessFn:
        """Compile the node."""
        forward_change = node.forward

        def without_old_values(key: object, change: ChangeParts, timestamp: int, headers: Headers) -> None:
            forward_change(key, Change(change[0], None, change[2]), timestamp, headers)

        if self._store_name is None:
            return node.forward if self._sends_old_values else without_old_values
        fail, record = node.processing_failed, node.record
        table = TableStore(node.state_store(self._store_name))
        put = table.put
        forward = change_forwarder(node, table.store, send_old_values=self._sends_old_values)

        def process(key: object, change: ChangeParts, timestamp: int, headers: Headers) -> None:
            record.timestamp = timestamp
            record.headers = headers
            try:
                code = put(key, change[0], timestamp)
            except Exception as error:
                fail(error, key, change, timestamp, headers)
                return
            if code != NOT_PUT:
                forward(key, change[0], change[1], timestamp, headers, code == IS_LATEST)

        return process
