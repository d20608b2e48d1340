"""The metadata string that is committed with each input offset (formats §9).

Layout before base64: magic ‖ partition time (8). Magic 1 ends there; magic 2 may continue with the processor metadata: count (4),
then per entry key length (4) ‖ key (UTF-8) ‖ value (8). All integers are big-endian and signed. An empty string means that
nothing is known. So does a string that cannot be read: a partition time is a hint, not data.
"""

from __future__ import annotations

import base64
import binascii
import logging
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from millrace.records import UNKNOWN_TIMESTAMP

_log = logging.getLogger(__name__)
_HEAD = struct.Struct(">bq")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_NOTHING: Mapping[str, int] = MappingProxyType({})


class PartitionMetadata(NamedTuple):
    """What a commit stores about an input partition in addition to its offset."""

    partition_time: int = UNKNOWN_TIMESTAMP
    processor_metadata: Mapping[str, int] = _NOTHING


def encode_metadata(partition_time: int, processor_metadata: Mapping[str, int] = _NOTHING) -> str:
    """Return the metadata string of a commit.

    >>> encode_metadata(1500)
    'AgAAAAAAAAXc'
    """
    parts = [_HEAD.pack(2, partition_time)]
    if processor_metadata:
        parts.append(_INT.pack(len(processor_metadata)))
        for key, value in processor_metadata.items():
            name = key.encode()
            parts += (_INT.pack(len(name)), name, _LONG.pack(value))
    return base64.b64encode(b"".join(parts)).decode("ascii")


def decode_metadata(text: str) -> PartitionMetadata:
    """Decode a commit's metadata string; what cannot be read is logged and counts as unknown.

    >>> decode_metadata('AgAAAAAAAAXc').partition_time
    1500
    """
    if not text:
        return PartitionMetadata()
    try:
        data = base64.b64decode(text, validate=True)
        magic, partition_time = _HEAD.unpack_from(data)
        if magic not in (1, 2):
            _log.warning("Offset metadata %r has the unknown version %d; its partition time is ignored", text, magic)
            return PartitionMetadata()
        return PartitionMetadata(partition_time, _decode_processor_metadata(data) if magic == 2 else _NOTHING)
    except (binascii.Error, struct.error, ValueError) as error:
        _log.warning("Offset metadata %r cannot be read and is ignored: %s", text, error)
        return PartitionMetadata()


def _decode_processor_metadata(data: bytes) -> Mapping[str, int]:
    position = _HEAD.size
    if position == len(data):
        return _NOTHING
    (count,) = _INT.unpack_from(data, position)
    position += _INT.size
    entries: dict[str, int] = {}
    for _ in range(count):
        (length,) = _INT.unpack_from(data, position)
        position += _INT.size
        name = data[position : position + length].decode()
        (entries[name],) = _LONG.unpack_from(data, position + length)
        position += length + _LONG.size
    return entries


def merge_processor_metadata(parts: list[PartitionMetadata]) -> dict[str, int]:
    """Return the largest value of each key among the commits of all input partitions."""
    merged: dict[str, int] = {}
    for part in parts:
        for key, value in part.processor_metadata.items():
            merged[key] = max(value, merged.get(key, value))
    return merged
