"""AssignmentInfo: what the leader tells a member beside its partitions, as user data of its assignment (formats §10).

Java's DataOutput. A task id is subtopology int32, partition int32 and, from version 10, the name of its topology: a length int32
and that many UTF-16 units.

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
from typing import Final

from millrace.assignment.buffer import Reader, Writer
from millrace.assignment.model import HostInfo
from millrace.assignment.subscription_info import LATEST_VERSION, UNKNOWN_VERSION
from millrace.errors import TaskAssignmentError
from millrace.records import TaskId, TopicPartition

NO_REBALANCE: Final = 2**63 - 1


class AssignorError(IntEnum):
    """Why members get no tasks."""

    NONE = 0
    INCOMPLETE_SOURCE_TOPIC_METADATA = 1
    VERSION_PROBING = 2
    ASSIGNMENT_ERROR = 3
    SHUTDOWN_REQUESTED = 4


@dataclass(frozen=True, slots=True)
class AssignmentInfo:
    """A member's tasks, and where everybody's partitions are."""

    active: tuple[TaskId, ...] = ()
    """One per partition of the assignment: the task it belongs to."""
    standby: Mapping[TaskId, frozenset[TopicPartition]] = field(default_factory=dict)
    partitions_by_host: Mapping[HostInfo, frozenset[TopicPartition]] = field(default_factory=dict)
    standby_partitions_by_host: Mapping[HostInfo, frozenset[TopicPartition]] = field(default_factory=dict)
    error_code: int = AssignorError.NONE
    next_rebalance_ms: int = NO_REBALANCE
    """When this member is to rejoin; 0 = at once."""
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
        return _decode(data)
    except (struct.error, UnicodeDecodeError, ValueError, KeyError) as error:
        raise TaskAssignmentError(f"The group's leader sent assignment data that cannot be read: {error}") from error


def _decode(data: bytes) -> AssignmentInfo:
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
