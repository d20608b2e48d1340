"""The user data of group membership, byte for byte as Kafka Streams writes it (formats §10).

SubscriptionInfo is what a member tells the leader, as user data of its subscription. Kafka's message encoding without tagged
fields: arrays and bytes have an int32 length, strings an int16 one (-1 = null).

field                      versions  type
version                    1+        int32
latestSupportedVersion     3+        int32
processId                  1+        16 bytes
prevTasks, standbyTasks    1-6       [] {subtopology int32, partition int32}
userEndPoint               2+        bytes, `host:port`
taskOffsetSums             7-9       [] {subtopology int32, [] {partition int32, offsetSum int64}}
                           10+       [] {subtopology int32, partition int32, offsetSum int64, namedTopology string}
uniqueField                8+        int8, different at each rejoin, so that the broker sees new metadata
errorCode                  9+        int32
clientTags                 11+       [] {key bytes, value bytes}

AssignmentInfo is what the leader tells a member in addition to its partitions, as user data of its assignment. Java's
DataOutput. A task id is subtopology int32, partition int32 and, from version 10, the name of its topology: a length int32 and
that many UTF-16 units.

field                     versions  layout
version                   1+        int32
commonlySupportedVersion  3+        int32
active                    1+        n, task ids; parallel to the partitions of the assignment, sorted by topic and number
standby                   1+        n, {task id, n, {topic UTF, partition int32}}
partitions by host        2-4       n, {host UTF, port int32, n, {topic UTF, partition int32}}
                          5+        topic dictionary n, {index int32, topic UTF}; then the same with indexes for topics
standby partitions        6+        the same, sharing the dictionary
errorCode                 4+        int32
nextRebalanceMs           7+        int64, milliseconds since the epoch; the largest number = none
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Self
from uuid import UUID

from millrace.assignment.application_state import LATEST_OFFSET, UNKNOWN_OFFSET_SUM, HostInfo
from millrace.errors import TaskAssignmentError
from millrace.records import TaskId, TopicPartition

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
        return _decode_subscription(data)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise TaskAssignmentError(f"A group member sent subscription data that cannot be read: {error}") from error


def _decode_subscription(data: bytes) -> SubscriptionInfo:
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


NO_REBALANCE: Final = 2**63 - 1


class AssignorError(IntEnum):
    """Codes that tell members why they get no tasks."""

    NONE = 0
    INCOMPLETE_SOURCE_TOPIC_METADATA = 1
    VERSION_PROBING = 2
    ASSIGNMENT_ERROR = 3
    SHUTDOWN_REQUESTED = 4


@dataclass(frozen=True, slots=True)
class AssignmentInfo:
    """A member's tasks, and the hosts of all partitions."""

    active: tuple[TaskId, ...] = ()
    """One per partition of the assignment: the task it belongs to."""
    standby: Mapping[TaskId, frozenset[TopicPartition]] = field(default_factory=dict)
    partitions_by_host: Mapping[HostInfo, frozenset[TopicPartition]] = field(default_factory=dict)
    standby_partitions_by_host: Mapping[HostInfo, frozenset[TopicPartition]] = field(default_factory=dict)
    error_code: int = AssignorError.NONE
    next_rebalance_ms: int = NO_REBALANCE
    """When this member must rejoin; 0 = at once."""
    version: int = LATEST_VERSION
    commonly_supported_version: int = LATEST_VERSION


def encode_assignment_info(info: AssignmentInfo) -> bytes:
    """Return the bytes of an AssignmentInfo in its version; fields that version lacks are left out."""
    version = info.version
    writer = Writer().int32(version)
    if version >= 3:
        writer.int32(info.commonly_supported_version)
    writer.int32(len(info.active))
    for task in info.active:
        _write_task(writer, task, version)
    writer.int32(len(info.standby))
    for task, partitions in sorted(info.standby.items()):
        _write_task(writer, task, version)
        _write_partitions(writer, partitions, None)
    if version >= 5:
        hosts = [info.partitions_by_host, *([info.standby_partitions_by_host] if version >= 6 else [])]
        topics = sorted({tp.topic for host in hosts for partitions in host.values() for tp in partitions})
        dictionary = {topic: index for index, topic in enumerate(topics)}
        writer.int32(len(dictionary))
        for topic, index in dictionary.items():
            writer.int32(index).utf(topic)
        for host in hosts:
            _write_hosts(writer, host, dictionary)
    elif version >= 2:
        _write_hosts(writer, info.partitions_by_host, None)
    if version >= 4:
        writer.int32(info.error_code)
    if version >= 7:
        writer.int64(info.next_rebalance_ms)
    return writer.data


def _write_task(writer: Writer, task: TaskId, version: int) -> None:
    writer.int32(task.subtopology).int32(task.partition)
    if version >= 10:
        writer.int32(0)


def _write_partitions(
    writer: Writer, partitions: Iterable[TopicPartition], dictionary: Mapping[str, int] | None
) -> None:
    ordered = sorted(partitions)
    writer.int32(len(ordered))
    for topic, partition in ordered:
        if dictionary is None:
            writer.utf(topic)
        else:
            writer.int32(dictionary[topic])
        writer.int32(partition)


def _write_hosts(
    writer: Writer, hosts: Mapping[HostInfo, frozenset[TopicPartition]], dictionary: Mapping[str, int] | None
) -> None:
    writer.int32(len(hosts))
    for host, partitions in sorted(hosts.items()):
        writer.utf(host.host).int32(host.port)
        _write_partitions(writer, partitions, dictionary)


def decode_assignment_info(data: bytes) -> AssignmentInfo:
    """Read an AssignmentInfo of version 1 to 11.

    Raises:
        TaskAssignmentError: The version is newer, or the bytes are not an AssignmentInfo.
    """
    try:
        return _decode_assignment(data)
    except (struct.error, UnicodeDecodeError, ValueError, KeyError) as error:
        raise TaskAssignmentError(f"The group's leader sent assignment data that cannot be read: {error}") from error


def _decode_assignment(data: bytes) -> AssignmentInfo:
    reader = Reader(data)
    version = reader.int32()
    if not 1 <= version <= LATEST_VERSION:
        raise ValueError(f"its version is {version}, and 1 to {LATEST_VERSION} are known")
    common = reader.int32() if version >= 3 else UNKNOWN_VERSION
    active = tuple(_read_task(reader, version) for _ in range(reader.int32()))
    standby = {}
    for _ in range(reader.int32()):
        task = _read_task(reader, version)
        standby[task] = _read_partitions(reader, None)
    dictionary = None
    if version >= 5:
        dictionary = {reader.int32(): reader.utf() for _ in range(reader.int32())}
    return AssignmentInfo(
        active=active,
        standby=standby,
        partitions_by_host=_read_hosts(reader, dictionary) if version >= 2 else {},
        standby_partitions_by_host=_read_hosts(reader, dictionary) if version >= 6 else {},
        error_code=reader.int32() if version >= 4 else AssignorError.NONE,
        next_rebalance_ms=reader.int64() if version >= 7 else NO_REBALANCE,
        version=version,
        commonly_supported_version=common,
    )


def _read_task(reader: Reader, version: int) -> TaskId:
    task = TaskId(reader.int32(), reader.int32())
    if version >= 10:
        reader.raw(2 * reader.int32())
    return task


def _read_partitions(reader: Reader, dictionary: Mapping[int, str] | None) -> frozenset[TopicPartition]:
    def topic() -> str:
        return reader.utf() if dictionary is None else dictionary[reader.int32()]

    return frozenset(TopicPartition(topic(), reader.int32()) for _ in range(reader.int32()))


def _read_hosts(reader: Reader, dictionary: Mapping[int, str] | None) -> dict[HostInfo, frozenset[TopicPartition]]:
    hosts = {}
    for _ in range(reader.int32()):
        host = HostInfo(reader.utf(), reader.int32())
        hosts[host] = _read_partitions(reader, dictionary)
    return hosts


class Writer:
    """Collects bytes."""

    def __init__(self) -> None:
        """Start empty."""
        self._parts: list[bytes] = []

    @property
    def data(self) -> bytes:
        """Everything written so far."""
        return b"".join(self._parts)

    def raw(self, data: bytes) -> Self:
        """Write bytes as they are."""
        self._parts.append(data)
        return self

    def int8(self, value: int) -> Self:
        """Write a signed byte."""
        return self.raw(struct.pack(">b", value))

    def int16(self, value: int) -> Self:
        """Write a signed 16-bit integer."""
        return self.raw(struct.pack(">h", value))

    def int32(self, value: int) -> Self:
        """Write a signed 32-bit integer."""
        return self.raw(struct.pack(">i", value))

    def int64(self, value: int) -> Self:
        """Write a signed 64-bit integer."""
        return self.raw(struct.pack(">q", value))

    def bytes32(self, value: bytes) -> Self:
        """Write bytes prefixed with their 32-bit length."""
        return self.int32(len(value)).raw(value)

    def utf(self, value: str) -> Self:
        """Write a string prefixed with its unsigned 16-bit length, as Java's DataOutput does (topic and host names are ASCII)."""
        data = value.encode()
        return self.raw(struct.pack(">H", len(data))).raw(data)


class Reader:
    """Reads bytes; running out of them raises struct.error or ValueError."""

    def __init__(self, data: bytes) -> None:
        """Start at the beginning."""
        self._data = bytes(data)
        self._position = 0

    def raw(self, size: int) -> bytes:
        """Read `size` bytes."""
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"it ends after {len(self._data)} bytes, but announces {end}")
        part = self._data[self._position : end]
        self._position = end
        return part

    def int8(self) -> int:
        """Read a signed byte."""
        return int.from_bytes(self.raw(1), signed=True)

    def int16(self) -> int:
        """Read a signed 16-bit integer."""
        return int.from_bytes(self.raw(2), signed=True)

    def int32(self) -> int:
        """Read a signed 32-bit integer."""
        return int.from_bytes(self.raw(4), signed=True)

    def int64(self) -> int:
        """Read a signed 64-bit integer."""
        return int.from_bytes(self.raw(8), signed=True)

    def bytes32(self) -> bytes:
        """Read bytes prefixed with their 32-bit length."""
        return self.raw(self.int32())

    def utf(self) -> str:
        """Read a string prefixed with its unsigned 16-bit length."""
        return self.raw(int.from_bytes(self.raw(2))).decode()

    def nullable_string16(self) -> str | None:
        """Read a string prefixed with its signed 16-bit length, -1 = None."""
        size = self.int16()
        return None if size < 0 else self.raw(size).decode()
