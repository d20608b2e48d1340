"""Segments: a store whose rows expire is divided by time, so that expiry drops whole databases (formats §3).

Segment id = timestamp / interval; its database is `<task directory>/<store>/<store>.<id * interval>`. A segment lives while
id >= (observed stream time - retention) / interval. The stream time is the largest timestamp put into this store; as in
Java, it is not stored, and starts again each time the store is opened.

A new segment stays in memory until the first commit. That commit writes and flushes it before the older segments: whichever
databases a crash leaves behind, replaying from the smallest recorded offset restores all of them. An expired segment is deleted
at the next commit, because records that are replayed after a crash may still need to read it.
"""

# ruff: noqa: SLF001 (a view of a store is a changed copy of it, or reads its parts)

from __future__ import annotations

import shutil
import threading
from calendar import timegm
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from itertools import chain
from pathlib import Path
from time import strptime
from typing import Any, Self

from sortedcontainers import SortedDict

from millrace.errors import TaskCorruptedError
from millrace.records import TopicPartition
from millrace.state.api import StoreContext
from millrace.state.bytes_store import Position, Rows
from millrace.state.keys import MAX_LONG
from millrace.state.ordered_map import copied
from millrace.state.rocksdb import RocksDatabase
from millrace.state.value_formats import ValueFormat

MIN_SEGMENT_INTERVAL_MS = 60_000
_TRASH = ".deleted"
"""The suffix of a segment's directory while it is being deleted."""


def default_segment_interval_ms(retention_ms: int) -> int:
    """Return Java's default for window and session stores: half the retention, at least a minute."""
    return max(retention_ms // 2, MIN_SEGMENT_INTERVAL_MS)


def require_segments(context: StoreContext, store: str, interval_ms: int, order: str = "") -> None:
    """Check that a store on disk has segments of this length, with rows in this order: rows are found by them.

    Raises:
        TaskCorruptedError: the retention or the emit strategy was changed, so rows would not be found or be misread.
    """
    wanted, recorded = _described(interval_ms, order), ""
    with suppress(OSError):
        recorded = _segments_file(context, store).read_text()
    if not recorded:  # written by Java or an old version, or the machine failed before the file had its content
        record_segments(context, store, interval_ms, order)
        return
    if recorded != wanted and context.task_id.subtopology >= 0:
        raise TaskCorruptedError(
            frozenset({context.task_id}),
            f"State store {store} in {context.state_dir} has segments of {recorded} instead of {wanted} (ms): the store's "
            "retention was changed, or with the emit strategy the order of rows was changed; its task's state is wiped and "
            "restored",
        )


def record_segments(context: StoreContext, store: str, interval_ms: int, order: str = "") -> None:
    """Store the length and order of a store's segments beside it; a failure is ignored, as the store itself reports it."""
    with suppress(OSError):
        context.state_dir.mkdir(parents=True, exist_ok=True)
        _segments_file(context, store).write_text(_described(interval_ms, order))


def _described(interval_ms: int, order: str) -> str:
    return f"{interval_ms} {order}".rstrip()


def _segments_file(context: StoreContext, store: str) -> Path:
    return context.state_dir / f"millrace-segments-{store}"


class SegmentedDatabase:
    """The RocksDB segments of one store."""

    persistent = True
    order_of_rows = ""
    """Empty if rows are in order of keys."""
    readable_beyond_ms = 0
    """How much longer than the retention rows can be read (ms)."""

    def __init__(self, name: str, value_format: ValueFormat, retention_ms: int, segment_interval_ms: int) -> None:
        self.name = name
        self.retention_ms = retention_ms
        self.segment_interval_ms = segment_interval_ms
        self.observed_stream_time = -1
        self._next_expiry = 0
        """The stream time at which the oldest possible segment expires."""
        self.position: Position = {}
        self._format = value_format
        self._segments: SortedDict[int, RocksDatabase] = SortedDict()
        self._find: Callable[[int], RocksDatabase | None] = self._segments.get
        self._new: list[RocksDatabase] = []
        self._expired: list[tuple[int, RocksDatabase]] = []
        self._guard = threading.RLock()
        """Held during a commit and while scans of other threads begin, so that these find all segments at the same commit."""
        self._scanning: AbstractContextManager[object] = nullcontext()
        self._committed_stream_time = -1
        self._committed_position: Position = {}
        self._context: StoreContext | None = None

    def open(self, context: StoreContext) -> None:
        """Open the existing segments.

        Raises:
            TaskCorruptedError: their length or their order of rows has changed, so rows would not be found or be misread.
        """
        self._context = context
        self.observed_stream_time = self._committed_stream_time = -1
        self._next_expiry = 0
        for trash in context.state_dir.glob(f"{self.name}.*{_TRASH}"):
            shutil.rmtree(trash, ignore_errors=True)
        directory = context.state_dir / self.name
        if not directory.is_dir():
            return
        for path in sorted(directory.iterdir()):
            start = self._start_of(path.name)
            if start is None or not path.is_dir():
                continue
            if not self._segments:
                require_segments(context, self.name, self.segment_interval_ms, self.order_of_rows)
            if start % self.segment_interval_ms and context.task_id.subtopology >= 0:
                raise TaskCorruptedError(
                    frozenset({context.task_id}),
                    f"State store {directory} has a segment {path.name}, which does not start at a multiple of "
                    f"{self.segment_interval_ms} ms: the store's retention was changed; its task's state is wiped and restored",
                )
            current = directory / f"{self.name}.{start}"
            if path != current:
                path.rename(current)
            segment = self._segment(start // self.segment_interval_ms)
            segment.open(context)
        self._committed_position = dict(self.position)

    def _start_of(self, name: str) -> int | None:
        """Return the start (ms) in a directory name, in the current form or in one of the two forms of old versions."""
        for separator in (".", ":"):
            text = name.removeprefix(self.name + separator)
            if text != name and text.isdigit():
                return int(text)
        text = name.removeprefix(self.name + "-")
        if text != name and text.isdigit() and len(text) == 12:
            return timegm(strptime(text, "%Y%m%d%H%M")) * 1000
        return None

    def _segment(self, segment_id: int) -> RocksDatabase:
        assert self._context is not None
        start = segment_id * self.segment_interval_ms
        path = self._context.state_dir / self.name / f"{self.name}.{start}"
        segment = RocksDatabase(self.name, path, self._format)
        segment.position = self.position
        self._segments[segment_id] = segment
        return segment

    def oldest_readable(self) -> int:
        """Return the smallest timestamp within retention."""
        return self.observed_stream_time - self.retention_ms + 1 - self.readable_beyond_ms

    def latest_possible(self) -> int:
        """Return a timestamp that no row exceeds: the end of the last segment."""
        return min((self._segments.keys()[-1] + 1) * self.segment_interval_ms - 1, MAX_LONG) if self._segments else 0

    def for_reading(self, timestamp: int) -> RocksDatabase | None:
        """Return the segment of a timestamp, if it is within retention and exists."""
        if timestamp <= self.observed_stream_time - self.retention_ms - self.readable_beyond_ms:
            return None
        return self._find(timestamp // self.segment_interval_ms)

    def for_writing(self, timestamp: int) -> RocksDatabase | None:
        """Return the segment of a timestamp, created if needed; None if it has expired.

        Advances stream time, and drops segments that expire.
        """
        interval = self.segment_interval_ms
        if timestamp > self.observed_stream_time:
            self.observed_stream_time = timestamp
            if timestamp >= self._next_expiry:
                self._drop_expired()
        segment_id = timestamp // interval
        segment = self._find(segment_id)
        if segment is not None:
            return segment
        if segment_id < self._oldest_live():
            return None
        segment = self._segment(segment_id)
        self._new.append(segment)
        return segment

    def _oldest_live(self) -> int:
        return max(self.observed_stream_time - self.retention_ms, 0) // self.segment_interval_ms

    def _drop_expired(self) -> None:
        segments, oldest = self._segments, self._oldest_live()
        self._next_expiry = (oldest + 1) * self.segment_interval_ms + self.retention_ms
        while segments and segments.keys()[0] < oldest:
            number, segment = segments.popitem(0)
            if segment in self._new:
                self._new.remove(segment)
            else:
                self._expired.append((number, segment))

    def scan_segments(
        self, time_from: int, time_to: int, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Rows:
        """Iterate the rows between two keys, segment by segment in order of time."""
        interval = self.segment_interval_ms
        ids = self._segments.irange(max(time_from, 0) // interval, time_to // interval, reverse=reverse)
        with self._scanning:
            scans = [self._segments[segment_id].scan(lower, upper, reverse=reverse) for segment_id in ids]
        return scans[0] if len(scans) == 1 else chain.from_iterable(scans)

    def databases(self) -> Iterator[RocksDatabase]:
        """Iterate the live segments, oldest first."""
        return iter(self._segments.values())

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit every segment; new ones first, flushed, so that no recorded offset is ahead of the data."""
        assert self._context is not None
        with self._guard:
            self._commit(self._context, offsets)

    def _commit(self, context: StoreContext, offsets: Mapping[TopicPartition, int]) -> None:
        self._committed_stream_time = self.observed_stream_time
        created = self._new
        if created and len(created) == len(self._segments):
            record_segments(context, self.name, self.segment_interval_ms, self.order_of_rows)
        for segment in created:
            segment.open(context)
            segment.commit(offsets)
            segment.flush()
        for segment in self._segments.values():
            if segment not in created:
                segment.commit(offsets)
                if created:  # lets its recorded offset catch up once per interval, even if little is written to it
                    segment.flush()
        self._new = []
        self._committed_position = dict(self.position)
        while self._expired:
            _, segment = self._expired.pop()
            segment.destroy(context.state_dir / f"{segment.directory.name}{_TRASH}")

    def view(self, *, committed: bool) -> Self:
        """Return the store as other threads may read it; `committed`: only what is on disk."""
        view = copy(self)
        view.position = dict(self.position)  # before the rows, so that these have reached it
        with self._guard:
            found = copied(self._segments)
            if committed:  # what has expired since the last commit still belongs to it
                found += list(self._expired)
                view.observed_stream_time = self._committed_stream_time
                view.position = self._committed_position
        segments: Any = SortedDict({number: each.view(committed=committed) for number, each in found})
        view._scanning = self._guard
        view._segments = segments
        view._find = segments.get
        return view

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the smallest offset that a segment records."""
        known = [segment.committed_offset(partition) for segment in self._segments.values()]
        return min((offset for offset in known if offset is not None), default=None)

    def uncommitted_bytes(self) -> int:
        """Return the memory held by pending rows."""
        return sum(segment.uncommitted_bytes() for segment in self._segments.values())

    def is_open(self) -> bool:
        """Tell whether the store is open."""
        return self._context is not None

    def close(self) -> None:
        """Close all segments, and raise the first failure after trying all of them."""
        failure: Exception | None = None
        for segment in (*(each for _, each in self._expired), *self._segments.values()):
            try:
                segment.close()
            except Exception as error:
                failure = failure or error
        self._segments.clear()
        self._new = []
        self._expired = []
        self._context = None
        if failure is not None:
            raise failure
