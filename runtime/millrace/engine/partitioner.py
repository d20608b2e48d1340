"""Which partition a key belongs to: Java's default partitioner, murmur2 of the serialised key (formats §8)."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final

_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SEED: Final = 0x9747B28C
_UNPACK_BLOCKS: Final = tuple(Struct(f"<{number}I").unpack_from for number in range(33))
"""By number of 4-byte blocks: longer keys are rare enough to compile their format each time."""


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data` as Java's signed int.

    >>> murmur2(b"a")
    -1563381124
    """
    length = len(data)
    blocks = length >> 2
    unpack = _UNPACK_BLOCKS[blocks] if blocks < len(_UNPACK_BLOCKS) else Struct(f"<{blocks}I").unpack_from
    h = _SEED ^ (length & _MASK)
    for block in unpack(data):
        k = (block * _M) & _MASK
        h = ((h * _M) & _MASK) ^ (((k ^ (k >> 24)) * _M) & _MASK)
    if length & 3:
        h = ((h ^ int.from_bytes(data[length & ~3 :], "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    h ^= h >> 15
    return h - 0x1_0000_0000 if h & 0x8000_0000 else h


@lru_cache(maxsize=16_384)  # the hash costs ten times as much as finding it again
def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of a serialised key in a topic with this many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
