"""Which partition a key belongs to: Java's default partitioner, murmur2 of the serialised key (formats §8)."""

from __future__ import annotations

from typing import Final

_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SEED: Final = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data` as Java's signed int.

    >>> murmur2(b"a")
    -1563381124
    """
    length = len(data)
    h = (_SEED ^ length) & _MASK
    tail = length & ~3
    for position in range(0, tail, 4):
        k = (int.from_bytes(data[position : position + 4], "little") * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    if tail != length:
        h = ((h ^ int.from_bytes(data[tail:], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    h ^= h >> 15
    return h - 0x1_0000_0000 if h & 0x8000_0000 else h


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of a serialised key in a topic of that many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
