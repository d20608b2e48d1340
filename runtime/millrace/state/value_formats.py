"""How a store's values are laid out on disk, and which part goes to the changelog (formats §1, §2).

| format | disk | changelog value | record timestamp |
|---|---|---|---|
| plain | value | value | of the record being processed |
| timestamped | timestamp(8) ‖ value | value | the value's timestamp |
| headers | varint(size) ‖ headers ‖ timestamp(8) ‖ value | value | the value's timestamp |
| session headers | varint(size) ‖ headers ‖ aggregate | aggregate | of the record being processed |

The timestamp prefix exists only on disk: in the changelog it is the record's timestamp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from struct import Struct
from typing import NamedTuple

from millrace.records import NO_HEADERS, UNKNOWN_TIMESTAMP, Headers, new_tuple
from millrace.serdes.varint import decode_varint, encode_varint

_LONG = Struct(">q")
pack_long = _LONG.pack
unpack_long_from = _LONG.unpack_from
"""Returns a tuple of one; saves the call of `unpack_long`."""


def unpack_long(data: bytes, offset: int = 0) -> int:
    """Return the big-endian signed 8-byte integer at `offset`."""
    value: int = unpack_long_from(data, offset)[0]
    return value


def encode_headers(headers: Headers) -> bytes:
    """Return varint(count), then per header varint(length) ‖ name ‖ varint(length, -1 null) ‖ value; empty if none."""
    if not headers:
        return b""
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (encode_varint(len(encoded)), encoded)
        parts += (b"\x01",) if value is None else (encode_varint(len(value)), value)
    return b"".join(parts)


def decode_headers(data: bytes) -> Headers:
    """Read what `encode_headers` wrote."""
    if not data:
        return NO_HEADERS
    count, offset = decode_varint(data)
    pairs: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, offset = decode_varint(data, offset)
        name = data[offset : offset + length].decode()
        length, offset = decode_varint(data, offset + length)
        pairs.append((name, None if length < 0 else data[offset : offset + length]))
        offset += max(length, 0)
    return new_tuple(Headers, pairs)


class StoredValue(NamedTuple):
    """A decoded disk value: the serde's bytes, the timestamp (-1 unknown) and the headers."""

    value: bytes
    timestamp: int
    headers: Headers


def _plain_to_disk(value: bytes, _timestamp: int, _headers: Headers) -> bytes:
    return value


def _plain_from_disk(data: bytes) -> StoredValue:
    return StoredValue(data, UNKNOWN_TIMESTAMP, NO_HEADERS)


def _timestamped_to_disk(value: bytes, timestamp: int, _headers: Headers) -> bytes:
    return pack_long(timestamp) + value


def _timestamped_from_disk(data: bytes) -> StoredValue:
    return StoredValue(data[8:], unpack_long(data), NO_HEADERS)


def _headers_to_disk(value: bytes, timestamp: int, headers: Headers) -> bytes:
    if not headers:
        return b"\0" + pack_long(timestamp) + value
    encoded = encode_headers(headers)
    return encode_varint(len(encoded)) + encoded + pack_long(timestamp) + value


def _headers_from_disk(data: bytes) -> StoredValue:
    size, start = decode_varint(data)
    end = start + size
    return StoredValue(data[end + 8 :], unpack_long(data, end), decode_headers(data[start:end]))


def _session_headers_to_disk(value: bytes, _timestamp: int, headers: Headers) -> bytes:
    encoded = encode_headers(headers)
    return encode_varint(len(encoded)) + encoded + value


def _session_headers_from_disk(data: bytes) -> StoredValue:
    size, start = decode_varint(data)
    end = start + size
    return StoredValue(data[end:], UNKNOWN_TIMESTAMP, decode_headers(data[start:end]))


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """A disk layout: its name, its column family, and the functions to encode and decode it."""

    name: str
    """`plain`, `timestamped` or `headers`."""
    family: str
    """Column family of key-value stores and of segments in key order."""
    to_disk: Callable[[bytes, int, Headers], bytes]
    from_disk: Callable[[bytes], StoredValue]
    older: tuple[str, ...] = ()
    """Column families of older layouts that may still hold rows, newest first; they are moved when they are written."""


PLAIN = ValueFormat(
    "plain",
    "default",
    _plain_to_disk,
    _plain_from_disk,
)
TIMESTAMPED = ValueFormat(
    "timestamped",
    "keyValueWithTimestamp",
    _timestamped_to_disk,
    _timestamped_from_disk,
    ("default",),
)
HEADERS = ValueFormat(
    "headers",
    "keyValueWithTimestampAndHeaders",
    _headers_to_disk,
    _headers_from_disk,
    ("keyValueWithTimestamp", "default"),
)
SESSION_HEADERS = ValueFormat(
    "headers", "sessionKeyValueWithHeaders", _session_headers_to_disk, _session_headers_from_disk, ("default",)
)
TIME_ORDERED_SESSION_HEADERS = replace(PLAIN, name="headers", family="sessionKeyValueWithHeaders")
"""Java 4.3.1 puts emit-on-close sessions into the header-aware family without giving them headers."""
TIME_ORDERED_TIMESTAMPED = replace(TIMESTAMPED, family="default", older=())
"""Emit-on-close window stores keep timestamped values in the default family."""
TIME_ORDERED_HEADERS = replace(HEADERS, family="windowKeyValueWithHeaders", older=("default",))


def convert_from_family(family: str, target: ValueFormat) -> Callable[[bytes], bytes]:
    """Return how a row of an older column family becomes a row of `target` (timestamp -1 if there was none)."""
    if family == "default" and target.family in {"sessionKeyValueWithHeaders", "keyValueWithTimestamp"}:
        return lambda data: target.to_disk(data, UNKNOWN_TIMESTAMP, NO_HEADERS)
    if family == "default" and target == HEADERS:
        return lambda data: target.to_disk(data, UNKNOWN_TIMESTAMP, NO_HEADERS)
    return lambda data: b"\0" + data  # timestamped → headers: only the empty block of headers is missing
