"""SubscriptionInfo: what a member tells the leader, as user data of its subscription (formats §10).

Kafka's message encoding without tagged fields: arrays and bytes have an int32 length, strings an int16 one (-1 = null).

field                      versions  type
version                    1+        int32
latestSupportedVersion     3+        int32
processId                  1+        16 bytes
prevTasks, standbyTasks    1-6       [] {subtopology int32, partition int32}
userEndPoint               2+        bytes, `host:port`
taskOffsetSums             7-9       [] {subtopology int32, [] {partition int32, offsetSum int64}}
                           10+       [] {subtopology int32, partition int32, offsetSum int64, namedTopology string}
uniqueField                8+        int8, another one at each rejoin, so that the broker sees new metadata
errorCode                  9+        int32
clientTags                 11+       [] {key bytes, value bytes}
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from millrace.assignment.buffer import Reader, Writer
from millrace.assignment.model import LATEST_OFFSET, UNKNOWN_OFFSET_SUM
from millrace.errors import TaskAssignmentError
from millrace.records import TaskId

LATEST_VERSION: Final = 11
UNKNOWN_VERSION: Final = -1


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A member's process, its query endpoint, and how far the state of each of its tasks is."""

    process_id: UUID
    task_offset_sums: Mapping[TaskId, int] = field(default_factory=dict)
    """Task → sum of its changelog offsets; LATEST_OFFSET where it runs, UNKNOWN_OFFSET_SUM where that is not known."""
    user_end_point: str = ""
    unique_field: int = 0
    error_code: int = 0
    client_tags: Mapping[str, str] = field(default_factory=dict)
    version: int = LATEST_VERSION
    latest_supported_version: int = LATEST_VERSION


def encode_subscription_info(  # noqa: C901 (one branch per version of the format)
    info: SubscriptionInfo,
) -> bytes:
    """Return the bytes of a SubscriptionInfo in its version; fields that version lacks are left out."""
    version = info.version
    writer = Writer().int32(version)
    if version >= 3:
        writer.int32(info.latest_supported_version)
    writer.raw(info.process_id.bytes)
    if version <= 6:
        for tasks in _active_and_others(info.task_offset_sums):
            writer.int32(len(tasks))
            for task in tasks:
                writer.int32(task.subtopology).int32(task.partition)
    if version >= 2:
        writer.bytes32(info.user_end_point.encode())
    if version >= 7:
        _write_offset_sums(writer, info.task_offset_sums, version)
    if version >= 8:
        writer.int8(info.unique_field)
    if version >= 9:
        writer.int32(info.error_code)
    if version >= 11:
        writer.int32(len(info.client_tags))
        for key, value in info.client_tags.items():
            writer.bytes32(key.encode()).bytes32(value.encode())
    return writer.data


def _active_and_others(sums: Mapping[TaskId, int]) -> tuple[list[TaskId], list[TaskId]]:
    active = sorted(task for task, offset_sum in sums.items() if offset_sum == LATEST_OFFSET)
    return active, sorted(sums.keys() - set(active))


def _write_offset_sums(writer: Writer, sums: Mapping[TaskId, int], version: int) -> None:
    ordered = sorted(sums.items())
    if version >= 10:
        writer.int32(len(ordered))
        for task, offset_sum in ordered:
            writer.int32(task.subtopology).int32(task.partition).int64(offset_sum).int16(-1)
        return
    grouped: dict[int, list[tuple[int, int]]] = {}
    for task, offset_sum in ordered:
        grouped.setdefault(task.subtopology, []).append((task.partition, offset_sum))
    writer.int32(len(grouped))
    for subtopology, partitions in grouped.items():
        writer.int32(subtopology).int32(len(partitions))
        for partition, offset_sum in partitions:
            writer.int32(partition).int64(offset_sum)


def subscription_version(data: bytes) -> int:
    """Return the version of an encoded SubscriptionInfo, which may be newer than this code."""
    return Reader(data).int32() if len(data) >= 4 else UNKNOWN_VERSION


def decode_subscription_info(data: bytes) -> SubscriptionInfo:
    """Read a SubscriptionInfo of version 1 to 11.

    Raises:
        TaskAssignmentError: The version is newer, or the bytes are not a SubscriptionInfo.
    """
    try:
        return _decode(data)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise TaskAssignmentError(f"A group member sent subscription data that cannot be read: {error}") from error


def _decode(data: bytes) -> SubscriptionInfo:
    reader = Reader(data)
    version = reader.int32()
    if not 1 <= version <= LATEST_VERSION:
        raise ValueError(f"its version is {version}, and 1 to {LATEST_VERSION} are known")
    latest = reader.int32() if version >= 3 else UNKNOWN_VERSION
    process_id = UUID(bytes=reader.raw(16))
    sums: dict[TaskId, int] = {}
    if version <= 6:
        for offset_sum in (LATEST_OFFSET, UNKNOWN_OFFSET_SUM):
            for _ in range(reader.int32()):
                sums[TaskId(reader.int32(), reader.int32())] = offset_sum
    end_point = reader.bytes32().decode() if version >= 2 else ""
    if version >= 7:
        sums = _read_offset_sums(reader, version)
    return SubscriptionInfo(
        process_id=process_id,
        task_offset_sums=sums,
        user_end_point=end_point,
        unique_field=reader.int8() if version >= 8 else 0,
        error_code=reader.int32() if version >= 9 else 0,
        client_tags=_read_tags(reader) if version >= 11 else {},
        version=version,
        latest_supported_version=latest,
    )


def _read_offset_sums(reader: Reader, version: int) -> dict[TaskId, int]:
    sums: dict[TaskId, int] = {}
    for _ in range(reader.int32()):
        subtopology = reader.int32()
        if version >= 10:
            task = TaskId(subtopology, reader.int32())
            sums[task] = reader.int64()
            reader.nullable_string16()
        else:
            for _ in range(reader.int32()):
                task = TaskId(subtopology, reader.int32())
                sums[task] = reader.int64()
    return sums


def _read_tags(reader: Reader) -> dict[str, str]:
    pairs = ((reader.bytes32(), reader.bytes32()) for _ in range(reader.int32()))
    return {key.decode(): value.decode() for key, value in pairs}
