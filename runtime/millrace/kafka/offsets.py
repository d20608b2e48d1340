"""Offsets through the admin client: partitions' first and last offsets, and purging up to one.

A group's committed offsets are read by its members (`millrace.kafka.membership.offsets`), and from outside by
`millrace.kafka.group_admin`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import OFFSET_INVALID, IsolationLevel
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, DeletedRecords, ListOffsetsResultInfo, OffsetSpec  # type: ignore[attr-defined]

from millrace.deadline import Deadline
from millrace.kafka.admin_requests import ask_leaders, pause, request_timeout
from millrace.records import TopicPartition

__all__ = ["delete_records", "earliest_offsets", "latest_offsets", "offsets_for_time"]

_SPEC: Any = OffsetSpec  # its factories carry no types


def earliest_offsets(
    admin: AdminClient, partitions: Collection[TopicPartition], timeout_s: float = 30.0
) -> dict[TopicPartition, int]:
    """Return the offset of the first retained record of each partition.

    Raises:
        AuthorizationError: A topic may not be described.
        StreamsTimeoutError: The brokers did not answer in time.
        StreamsError: The brokers refused.
    """
    return _offsets(admin, partitions, _SPEC.earliest(), timeout_s)


def latest_offsets(
    admin: AdminClient,
    partitions: Collection[TopicPartition],
    timeout_s: float = 30.0,
    *,
    committed_only: bool = False,
) -> dict[TopicPartition, int]:
    """Return the end of each partition: the next record's offset or, with `committed_only`, the last stable offset.

    Raises:
        AuthorizationError: A topic may not be described.
        StreamsTimeoutError: The brokers did not answer in time.
        StreamsError: The brokers refused.
    """
    return _offsets(admin, partitions, _SPEC.latest(), timeout_s, committed_only=committed_only)


def offsets_for_time(
    admin: AdminClient, partitions: Collection[TopicPartition], timestamp_ms: int, timeout_s: float = 30.0
) -> dict[TopicPartition, int]:
    """Return the offset of the first record of each partition that is not older than a time; the end if all are older.

    Raises:
        AuthorizationError: A topic may not be described.
        StreamsTimeoutError: The brokers did not answer in time.
        StreamsError: The brokers refused.
    """
    found = _offsets(admin, partitions, _SPEC.for_timestamp(timestamp_ms), timeout_s)
    older = [partition for partition, offset in found.items() if offset < 0]
    return {**found, **latest_offsets(admin, older, timeout_s)}


def _offsets(
    admin: AdminClient,
    partitions: Collection[TopicPartition],
    spec: OffsetSpec,
    timeout_s: float,
    *,
    committed_only: bool = False,
) -> dict[TopicPartition, int]:
    deadline = Deadline(timeout_s)
    isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED

    def request(wanted: list[TopicPartition]) -> Mapping[ClientTopicPartition, Future[ListOffsetsResultInfo]]:
        specs = {ClientTopicPartition(*partition): spec for partition in wanted}
        return admin.list_offsets(specs, isolation_level=isolation, request_timeout=request_timeout(deadline))

    found: dict[TopicPartition, int] = {}
    while left := [partition for partition in partitions if partition not in found]:
        answers = ask_leaders("list offsets of", request, left, deadline.left_s(), admin)
        # A request that timed out is answered with neither an error nor an offset.
        found |= {partition: answer.offset for partition, answer in answers.items() if answer.offset != OFFSET_INVALID}
        if missing := [partition for partition in left if partition not in found]:
            pause(deadline, f"list offsets of {', '.join(map(str, missing[:3]))}", "the brokers did not answer")
    return found


def delete_records(admin: AdminClient, offsets: Mapping[TopicPartition, int], timeout_s: float = 30.0) -> None:
    """Delete the records of partitions up to an offset (exclusive), as repartition topics are purged.

    Raises:
        AuthorizationError: Records may not be deleted.
        StreamsTimeoutError: They were not deleted in time.
        StreamsError: The brokers refused: an offset is beyond the partition's end.
    """
    deadline = Deadline(timeout_s)

    def request(wanted: list[TopicPartition]) -> Mapping[ClientTopicPartition, Future[DeletedRecords]]:
        limits = [ClientTopicPartition(*partition, offsets[partition]) for partition in wanted]
        return admin.delete_records(limits, request_timeout=request_timeout(deadline))

    ask_leaders("delete records of", request, offsets, timeout_s, admin)
