"""Rows of a versioned store: all versions of a key whose validity ends in the same segment (formats §7).

| row | value |
|---|---|
| latest value | timestamp(8) ‖ value |
| older versions | next(8) ‖ min(8) ‖ per version, newest first: timestamp(8) ‖ size(4, -1 tombstone) ‖ values, oldest first |

A version is valid from its timestamp to that of the next newer one in the row, and the newest until `next`. If there is a
gap between versions, it is filled with a tombstone. A row with `next` = `min` is degenerate: one tombstone where only the
time is known.

The rows of a store are in one RocksDB, divided into segments by a prefix of the row's key (KIP-889). Segment -1 holds the
latest value of each key. Any other version is in the segment of the timestamp where its validity ends, so that a segment can be
dropped as soon as it is older than the history retention, which is also the grace period for late writes.

A put looks for its place from the newest segment down: on top as the latest value, inside the row that covers its timestamp, or
at the edge of the row in the segment where its validity ends. Shortening a version's validity may move it to an older segment.
"""

# ruff: noqa: SLF001 (a view of a store is a changed copy of it, or reads its parts)

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from struct import Struct
from typing import Any, ParamSpec, TypeVar

from sortedcontainers import SortedSet

from millrace.records import TopicPartition
from millrace.state.api import StoreContext
from millrace.state.keys import encode_segment_key
from millrace.state.ordered_map import prefix_upper_bound
from millrace.state.rocksdb import RocksKeyValueStore
from millrace.state.segments import require_segments
from millrace.state.value_formats import pack_long, unpack_long

P = ParamSpec("P")
T = TypeVar("T")

_TWO_LONGS = Struct(">qq")
_VERSION = Struct(">qi")
_TOMBSTONE = -1

Version = tuple[int, "bytes | None"]
"""Valid-from timestamp (ms) and value (None = tombstone)."""


@dataclass(slots=True)
class VersionRow:
    """The versions of one key in one segment."""

    next_timestamp: int
    """When the validity of the newest version ends (ms)."""
    versions: list[Version]
    """Newest first; never empty."""

    @classmethod
    def of(cls, value: bytes | None, valid_from: int, valid_to: int) -> VersionRow:
        """Return a row with one version; a tombstone with valid_from = valid_to makes a degenerate one."""
        return cls(valid_to, [(valid_from, value)])

    @property
    def min_timestamp(self) -> int:
        """Return when the validity of the oldest version starts (ms)."""
        return self.versions[-1][0]

    @property
    def is_degenerate(self) -> bool:
        """Tell whether the row is a tombstone with nothing known but its time."""
        return self.next_timestamp == self.min_timestamp

    def find(self, timestamp: int) -> tuple[int, int, int, bytes | None]:
        """Return (index, valid from, valid to, value) of the version valid at a time within the row's bounds."""
        valid_to = self.next_timestamp
        for index, (valid_from, value) in enumerate(self.versions):
            if valid_from <= timestamp:
                return index, valid_from, valid_to, value
            valid_to = valid_from
        raise ValueError(f"{timestamp} is before the oldest version, {self.min_timestamp}")

    def insert_newest(self, valid_from: int, valid_to: int, value: bytes | None) -> None:
        """Add the newest version; a gap to the row's end becomes a tombstone, and versions that reach beyond it are truncated."""
        if valid_from < self.next_timestamp:
            self._cut(valid_from)
        if self.is_degenerate:
            self.versions.clear()
        if self.next_timestamp != valid_from:
            self.versions.insert(0, (self.next_timestamp, None))
        self.versions.insert(0, (valid_from, value))
        self.next_timestamp = valid_to

    def _cut(self, timestamp: int) -> None:
        kept = [version for version in self.versions if version[0] < timestamp]
        self.versions = kept or [(timestamp, None)]
        self.next_timestamp = timestamp

    def insert_oldest(self, timestamp: int, value: bytes | None) -> None:
        """Add the oldest version."""
        if self.is_degenerate:
            self.versions.clear()
        self.versions.append((timestamp, value))

    def encode(self) -> bytes:
        """Return the row's bytes."""
        heads = (_VERSION.pack(at, _TOMBSTONE if value is None else len(value)) for at, value in self.versions)
        values = (value for _, value in reversed(self.versions) if value is not None)
        return b"".join((_TWO_LONGS.pack(self.next_timestamp, self.min_timestamp), *heads, *values))

    @classmethod
    def decode(cls, data: bytes) -> VersionRow:
        """Read what `encode` or Java wrote."""
        next_timestamp, min_timestamp = _TWO_LONGS.unpack_from(data)
        versions: list[Version] = []
        at, end = 16, len(data)
        while True:
            timestamp, size = _VERSION.unpack_from(data, at)
            at += 12
            if size < 0:
                versions.append((timestamp, None))
            else:
                versions.append((timestamp, data[end - size : end]))
                end -= size
            if timestamp == min_timestamp:
                return cls(next_timestamp, versions)


def row_bounds(data: bytes) -> tuple[int, int]:
    """Return (next, min) of a row without decoding the rest."""
    next_timestamp, min_timestamp = _TWO_LONGS.unpack_from(data)
    return next_timestamp, min_timestamp


VALID_TO_UNDEFINED = -1
NOT_PUT = -(2**63)

_LATEST = -1
_FIRST_LATEST_ROW = pack_long(_LATEST)

FoundVersion = tuple[bytes, int, "int | None"]
"""Value, valid from, valid to (None = it is the latest), in ms."""


def default_segment_interval_ms(history_retention_ms: int) -> int:
    """Return Java's default: the longer the retention, the smaller the segments relative to it."""
    for up_to, parts, least in ((60_000, 3, 2_000), (300_000, 5, 20_000), (3_600_000, 12, 60_000)):
        if history_retention_ms <= up_to:
            return max(history_retention_ms // parts, least)
    return max(history_retention_ms // 24, 300_000)


class RocksVersionedStore(RocksKeyValueStore):
    """Versions of keys to values, in bytes, in `<task directory>/rocksdb/<store name>`."""

    def __init__(self, name: str, history_retention_ms: int, segment_interval_ms: int) -> None:
        super().__init__(name)
        self.history_retention_ms = history_retention_ms
        self.segment_interval_ms = segment_interval_ms
        self.observed_stream_time = -1
        self._segments: SortedSet[int] = SortedSet()
        """Replaced when it changes, as other threads read it."""
        self._committed: tuple[int, int, SortedSet[int]] = 0, -1, self._segments
        """The last commit's number, observed stream time and segments."""
        self._changes = 0
        """How often a put has begun or ended: while it lasts, a version may be in two rows, or in none."""

    def open(self, context: StoreContext) -> None:
        """Open the database and find its segments.

        Raises:
            TaskCorruptedError: their length has changed with the retention, so some rows would not be found.
        """
        super().open(context)
        require_segments(context, self.name, self.segment_interval_ms)
        self.observed_stream_time = -1
        segments: SortedSet[int] = SortedSet()
        lower = pack_long(0)
        while True:
            row = next(self.scan(lower, _FIRST_LATEST_ROW, upper_inclusive=False), None)
            if row is None:
                break
            segment = unpack_long(row[0])
            segments.add(segment)
            lower = pack_long(segment + 1)
        self._segments = segments
        self._committed = self.commits, -1, segments

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write all pending rows, the offsets and the position in one batch."""
        _, *reached = self._committed
        try:
            super().commit(offsets)
            reached = [self.observed_stream_time, self._segments]
        finally:
            self._committed = self.commits, *reached

    def view(self, *, committed: bool) -> Any:
        """Return the store as other threads may read it; `committed`: only what is on disk."""
        rows, view = super().view(committed=committed), copy(self)
        view.position = rows.position
        view.get = rows.get  # type: ignore[method-assign]
        view.as_of = self._settled(view, view.as_of, committed=committed)  # type: ignore[method-assign]
        view.versions = self._settled(view, view.versions, committed=committed)  # type: ignore[method-assign]
        return view

    def _settled(self, view: Any, read: Callable[P, T], *, committed: bool) -> Callable[P, T]:
        """Return a method of a view that reads several rows, again if a put or a commit has changed them meanwhile."""

        def settled(*arguments: P.args, **options: P.kwargs) -> T:
            while True:
                if committed:
                    number, view.observed_stream_time, view._segments = self._committed
                else:
                    number, view.observed_stream_time, view._segments = (
                        self._changes & ~1,  # differs while a put lasts
                        self.observed_stream_time,
                        self._segments,
                    )
                found = read(*arguments, **options)
                if number == (self.commits if committed else self._changes):
                    return found
                time.sleep(0)  # lets the store's thread go on

        return settled

    # Reading.

    def latest(self, key: bytes) -> FoundVersion | None:
        """Return the latest version of a key; it never expires."""
        data = self.get(encode_segment_key(_LATEST, key))
        return None if data is None else (data[8:], unpack_long(data), None)

    def as_of(self, key: bytes, timestamp: int) -> FoundVersion | None:
        """Return the version valid at a time; also None if that time is older than the history retention."""
        latest = self.latest(key)
        if latest is not None and latest[1] <= timestamp:
            return latest
        if timestamp < self.observed_stream_time - self.history_retention_ms:
            return None
        for segment in self._from(timestamp):
            data = self.get(encode_segment_key(segment, key))
            if data is None:
                continue
            row_end, row_start = row_bounds(data)
            if row_end <= timestamp:
                return None
            if row_start <= timestamp:
                _, valid_from, valid_to, value = VersionRow.decode(data).find(timestamp)
                return None if value is None else (value, valid_from, valid_to)
        return None

    def versions(self, key: bytes, time_from: int, time_to: int) -> list[FoundVersion]:
        """Return the versions valid at some time in [time_from, time_to], newest first (KIP-968)."""
        found: list[FoundVersion] = []
        latest = self.latest(key)
        if latest is not None and latest[1] <= time_to:
            found.append(latest)
        if time_to < self.observed_stream_time - self.history_retention_ms:
            return found
        for segment in reversed(self._segments):
            data = self.get(encode_segment_key(segment, key))
            if data is None:
                continue
            row = VersionRow.decode(data)
            valid_to = row.next_timestamp
            for valid_from, value in row.versions:
                if value is not None and valid_from <= time_to and valid_to > time_from:
                    found.append((value, valid_from, valid_to))
                valid_to = valid_from
        return found

    def _from(self, timestamp: int) -> Iterator[int]:
        """Iterate the segments that may hold versions valid at a time or later, newest first."""
        return self._segments.irange(self._segment_of(timestamp), None, reverse=True)  # type: ignore[no-any-return]

    def _segment_of(self, timestamp: int) -> int:
        return max(timestamp, 0) // self.segment_interval_ms

    # Writing.

    def put_version(self, key: bytes, value: bytes | None, timestamp: int) -> int:
        """Write one version (None = tombstone); return when its validity ends, or one of the two codes above."""
        if timestamp < self.observed_stream_time - self.history_retention_ms:
            return NOT_PUT
        self.observed_stream_time = max(self.observed_stream_time, timestamp)
        return self._place(key, value, timestamp, self.observed_stream_time)

    def restore_versions(
        self, changes: Iterable[tuple[bytes, bytes | None, int]], offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Apply restored changes (key, value, timestamp), skipping those that will have expired by the end of the batch."""
        batch = list(changes)
        end = max((timestamp for _, _, timestamp in batch), default=-1)
        end = max(end, self.observed_stream_time)
        for key, value, timestamp in batch:
            if timestamp >= self.observed_stream_time - self.history_retention_ms:
                self.observed_stream_time = max(self.observed_stream_time, timestamp)
                self._place(key, value, timestamp, end)
        self.commit(offsets)

    def _place(self, key: bytes, value: bytes | None, timestamp: int, stream_time: int) -> int:
        self._changes += 1
        try:
            return self._put_in_place(key, value, timestamp, stream_time)
        finally:
            self._changes += 1

    def _put_in_place(self, key: bytes, value: bytes | None, timestamp: int, stream_time: int) -> int:
        oldest_live = self._segment_of(stream_time - self.history_retention_ms)
        self._drop_before(oldest_live)
        valid_to: int | None = None
        latest = self.latest(key)
        if latest is not None:
            old_value, old_timestamp, _ = latest
            if timestamp >= old_timestamp:
                if timestamp > old_timestamp:
                    self._insert_newest(key, old_value, old_timestamp, timestamp, oldest_live)
                self._put_latest(key, value, timestamp)
                return VALID_TO_UNDEFINED
            valid_to = old_timestamp
        for segment in list(self._from(timestamp)):
            data = self.get(encode_segment_key(segment, key))
            if data is None:
                continue
            row_end, row_start = row_bounds(data)
            if row_end <= timestamp:
                break
            if row_start <= timestamp:
                return self._put_inside(segment, VersionRow.decode(data), key, value, timestamp, oldest_live)
            if row_start < stream_time - self.history_retention_ms:
                return NOT_PUT
            valid_to = row_start
        if valid_to is None:
            return self._put_on_top(key, value, timestamp, oldest_live)
        return self._put_at_edge(key, value, timestamp, valid_to, oldest_live)

    def _put_latest(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        self.put(encode_segment_key(_LATEST, key), None if value is None else pack_long(timestamp) + value)

    def _put_row(self, segment: int, key: bytes, row: VersionRow) -> None:
        if segment not in self._segments:
            self._segments = SortedSet([*self._segments, segment])
        self.put(encode_segment_key(segment, key), row.encode())

    def _row(self, segment: int, key: bytes) -> VersionRow | None:
        data = self.get(encode_segment_key(segment, key))
        return None if data is None else VersionRow.decode(data)

    def _insert_newest(self, key: bytes, value: bytes | None, valid_from: int, valid_to: int, oldest_live: int) -> None:
        """Put a version that ends at `valid_to` into that time's segment, unless it has expired."""
        segment = self._segment_of(valid_to)
        if segment < oldest_live:
            return
        row = self._row(segment, key)
        if row is None:
            row = VersionRow.of(value, valid_from, valid_to)
        else:
            row.insert_newest(valid_from, valid_to, value)
        self._put_row(segment, key, row)

    def _put_inside(
        self, segment: int, row: VersionRow, key: bytes, value: bytes | None, timestamp: int, oldest_live: int
    ) -> int:
        """Put a version into the row that covers its timestamp."""
        index, valid_from, valid_to, old = row.find(timestamp)
        if valid_from == timestamp:
            row.versions[index] = (timestamp, value)
        elif self._segment_of(timestamp) == segment:
            row.versions.insert(index, (timestamp, value))
        else:  # the previous version now ends in an older segment
            self._insert_newest(key, old, valid_from, timestamp, oldest_live)
            row.versions[index] = (timestamp, value)
        self._put_row(segment, key, row)
        return valid_to

    def _put_on_top(self, key: bytes, value: bytes | None, timestamp: int, oldest_live: int) -> int:
        """Put the newest version of a key that has no latest value."""
        if value is not None:
            self._put_latest(key, value, timestamp)
            return VALID_TO_UNDEFINED
        segment = self._segment_of(timestamp)
        if segment < oldest_live:
            return NOT_PUT
        row = self._row(segment, key)
        if row is None:
            row = VersionRow.of(None, timestamp, timestamp)
        elif row.next_timestamp == timestamp:
            return VALID_TO_UNDEFINED
        else:
            row.insert_newest(row.next_timestamp, timestamp, None)
        self._put_row(segment, key, row)
        return VALID_TO_UNDEFINED

    def _put_at_edge(self, key: bytes, value: bytes | None, timestamp: int, valid_to: int, oldest_live: int) -> int:
        """Put a version that no row covers into the segment where its validity ends."""
        segment = self._segment_of(valid_to)
        if segment < oldest_live:
            return NOT_PUT
        row = self._row(segment, key)
        if row is None:
            row = VersionRow.of(value, timestamp, valid_to)
        elif row.next_timestamp <= timestamp:
            row.insert_newest(timestamp, valid_to, value)
        else:
            row.insert_oldest(timestamp, value)
        self._put_row(segment, key, row)
        return valid_to

    def _drop_before(self, oldest_live: int) -> None:
        """Delete the segments that have expired."""
        while self._segments and self._segments[0] < oldest_live:
            prefix = pack_long(self._segments[0])
            self._segments = SortedSet(self._segments[1:])
            for row, _ in list(self.scan(prefix, prefix_upper_bound(prefix), upper_inclusive=False)):
                self.put(row, None)
