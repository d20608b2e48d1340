"""Keys of window, session and versioned stores on disk and in changelogs (formats §3, §4, §6, §7).

| key | layout |
|---|---|
| window | key ‖ start(8) ‖ seq(4) |
| session | key ‖ end(8) ‖ start(8) |
| window, time-ordered base row | `00` ‖ start(8) ‖ key ‖ seq(4) |
| window, time-ordered index row | `01` ‖ key ‖ start(8) ‖ seq(4) |
| session, time-ordered base row | `00` ‖ end(8) ‖ start(8) ‖ key |
| session, time-ordered index row | `01` ‖ key ‖ end(8) ‖ start(8) |
| versioned | segment(8) ‖ key |
| outer join | timestamp(8) ‖ side(1: `01` left, `00` right) ‖ key |
| foreign-key subscription | length(4) ‖ foreign key ‖ primary key |

Changelogs always have the first two, regardless of the layout on disk.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

MAX_LONG = 2**63 - 1
MAX_INT = 2**31 - 1
BASE, INDEX = b"\0", b"\1"

_WINDOW_SUFFIX = Struct(">qi")
_TWO_LONGS = Struct(">qq")
_LONG = Struct(">q")
_INT = Struct(">i")
_LONG_BYTE = Struct(">qb")

pack_window_suffix = _WINDOW_SUFFIX.pack
unpack_long_from = _LONG.unpack_from


class WindowKey(NamedTuple):
    """A key with a window start (ms) and the sequence number that distinguishes duplicates (0 without duplicates)."""

    key: bytes
    start: int
    seq: int


class SessionKey(NamedTuple):
    """A key with the start and the (inclusive) end of a session, in ms."""

    key: bytes
    start: int
    end: int


def encode_window_key(key: bytes, start: int, seq: int = 0) -> bytes:
    """Return key ‖ start(8) ‖ seq(4).

    >>> encode_window_key(b"a", 1000).hex()
    '6100000000000003e800000000'
    """
    return key + pack_window_suffix(start, seq)


def decode_window_key(data: bytes) -> WindowKey:
    """Read what `encode_window_key` wrote."""
    start, seq = _WINDOW_SUFFIX.unpack_from(data, len(data) - 12)
    return WindowKey(data[:-12], start, seq)


def window_start(data: bytes) -> int:
    """Return only the start in what `encode_window_key` wrote."""
    start: int = unpack_long_from(data, len(data) - 12)[0]
    return start


def encode_session_key(key: bytes, start: int, end: int) -> bytes:
    """Return key ‖ end(8) ‖ start(8).

    >>> encode_session_key(b"a", 1500, 1900).hex()
    '61000000000000076c00000000000005dc'
    """
    return key + _TWO_LONGS.pack(end, start)


def decode_session_key(data: bytes) -> SessionKey:
    """Read what `encode_session_key` wrote."""
    end, start = _TWO_LONGS.unpack_from(data, len(data) - 16)
    return SessionKey(data[:-16], start, end)


def encode_time_ordered_window_key(key: bytes, start: int, seq: int = 0) -> bytes:
    """Return the base row's key, `00` ‖ start(8) ‖ key ‖ seq(4)."""
    return BASE + _LONG.pack(start) + key + _INT.pack(seq)


def time_ordered_window_key(row: bytes) -> bytes:
    """Return the base row's key for the same window's key ‖ start(8) ‖ seq(4)."""
    return BASE + row[-12:-4] + row[:-12] + row[-4:]


def decode_time_ordered_window_key(data: bytes) -> WindowKey:
    """Read what `encode_time_ordered_window_key` wrote."""
    return WindowKey(data[9:-4], _LONG.unpack_from(data, 1)[0], _INT.unpack_from(data, len(data) - 4)[0])


def encode_time_ordered_session_key(key: bytes, start: int, end: int) -> bytes:
    """Return the base row's key, `00` ‖ end(8) ‖ start(8) ‖ key."""
    return BASE + _TWO_LONGS.pack(end, start) + key


def decode_time_ordered_session_key(data: bytes) -> SessionKey:
    """Read what `encode_time_ordered_session_key` wrote."""
    end, start = _TWO_LONGS.unpack_from(data, 1)
    return SessionKey(data[17:], start, end)


def encode_segment_key(segment: int, key: bytes) -> bytes:
    """Return segment(8) ‖ key; segment -1 holds the latest values of a versioned store."""
    return _LONG.pack(segment) + key


def encode_join_side_key(timestamp: int, key: bytes, *, left: bool) -> bytes:
    """Return timestamp(8) ‖ side(1) ‖ key.

    >>> encode_join_side_key(1000, b"a", left=True).hex()
    '00000000000003e80161'
    """
    return _LONG_BYTE.pack(timestamp, left) + key


def decode_join_side_key(data: bytes) -> tuple[int, bool, bytes]:
    """Return (timestamp ms, whether it is the left side, key)."""
    timestamp, left = _LONG_BYTE.unpack_from(data)
    return timestamp, bool(left), data[9:]


def upper_range(key: bytes, max_suffix: bytes) -> bytes:
    """Return the greatest row of any key <= `key` with a suffix <= `max_suffix`, for keys of any length.

    Keys of different lengths interleave with their suffixes: the row of a prefix of the key may come after the key's own.
    (Java's bound is smaller if a byte of the key equals the suffix's first byte, and misses such rows.)
    """
    return max(key[:length] + max_suffix for length in range(len(key) + 1))
