"""Positions: up to which input offsets a store's content reaches (KIP-796; formats §9).

Java sizes the byte array in bits, so what it stores carries zeroes behind the content. They are written here as well, so
that the bytes are the same; readers ignore them.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import pack, unpack_from

Position = dict[tuple[str, int], int]
"""(topic, partition) → offset of the last record applied."""


def encode_position(position: Mapping[tuple[str, int], int]) -> bytes:
    """Return `00` ‖ topics(4) ‖ per topic: length(4) ‖ topic ‖ partitions(4) ‖ [partition(4) ‖ offset(8)], padded."""
    topics: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in position.items():
        topics.setdefault(topic, {})[partition] = offset
    out = bytearray(b"\0" + pack(">i", len(topics)))
    size = 8 + 32
    for topic, partitions in topics.items():
        name = topic.encode()
        out += pack(">i", len(name)) + name + pack(">i", len(partitions))
        for partition, offset in partitions.items():
            out += pack(">iq", partition, offset)
        size += 32 + len(name) + 32 + 96 * len(partitions)
    return bytes(out).ljust(size, b"\0")


def decode_position(data: bytes) -> Position:
    """Read what `encode_position` or Java wrote."""
    position: Position = {}
    (count,) = unpack_from(">i", data, 1)
    at = 5
    for _ in range(count):
        (length,) = unpack_from(">i", data, at)
        topic = data[at + 4 : at + 4 + length].decode()
        (partitions,) = unpack_from(">i", data, at + 4 + length)
        at += 8 + length
        for _ in range(partitions):
            partition, offset = unpack_from(">iq", data, at)
            position[topic, partition] = offset
            at += 12
    return position


def merge_position(into: Position, other: Mapping[tuple[str, int], int]) -> None:
    """Raise every offset of `into` to at least that of `other`."""
    for partition, offset in other.items():
        if into.get(partition, -1) < offset:
            into[partition] = offset
