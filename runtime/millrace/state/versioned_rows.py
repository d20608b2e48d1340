"""Rows of a versioned store: all versions of a key whose validity ends in the same segment (formats §7).

| row | value |
|---|---|
| latest value | timestamp(8) ‖ value |
| older versions | next(8) ‖ min(8) ‖ per version, newest first: timestamp(8) ‖ size(4, -1 tombstone) ‖ values, oldest first |

A version is valid from its timestamp to that of the next newer one in the row, the newest to `next`. Where versions do not meet
there is a tombstone between them. A row with `next` = `min` is degenerate: one tombstone of which nothing is known but its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from millrace.state.value_formats import pack_long, unpack_long

_TWO_LONGS = Struct(">qq")
_VERSION = Struct(">qi")
_TOMBSTONE = -1

Version = tuple[int, "bytes | None"]
"""Valid-from timestamp (ms) and value (None = tombstone)."""


def encode_latest(value: bytes, timestamp: int) -> bytes:
    """Return timestamp(8) ‖ value."""
    return pack_long(timestamp) + value


def decode_latest(data: bytes) -> tuple[bytes, int]:
    """Return (value, timestamp)."""
    return data[8:], unpack_long(data)


@dataclass(slots=True)
class VersionRow:
    """The versions of one key in one segment."""

    next_timestamp: int
    """Where the validity of the newest version ends (ms)."""
    versions: list[Version]
    """Newest first; never empty."""

    @classmethod
    def of(cls, value: bytes | None, valid_from: int, valid_to: int) -> VersionRow:
        """Return a row with one version; a tombstone with valid_from = valid_to makes a degenerate one."""
        return cls(valid_to, [(valid_from, value)])

    @property
    def min_timestamp(self) -> int:
        """Return where the validity of the oldest version begins (ms)."""
        return self.versions[-1][0]

    @property
    def is_degenerate(self) -> bool:
        """Tell whether the row is a tombstone of which only the time is known."""
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
        """Put a version on top; a gap to the row's end becomes a tombstone, and what reaches beyond it is cut off."""
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
        """Put a version below all others."""
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
