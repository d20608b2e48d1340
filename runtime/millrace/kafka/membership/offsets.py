"""Commits and reads a group's offsets with the member's own generation, so that brokers refuse a stale member."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

import kafka.errors as kafka_errors
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from millrace.deadline import Deadline
from millrace.errors import (
    AuthorizationError,
    RebalanceInProgressError,
    StreamsError,
    StreamsTimeoutError,
    TaskMigratedError,
)
from millrace.kafka.client_settings import MembershipSettings
from millrace.kafka.connection import Connection
from millrace.kafka.membership.coordinator import NOT_HERE, Coordinator
from millrace.records import OffsetAndMetadata, TopicPartition

log = logging.getLogger("millrace.kafka.membership")

STALE_MEMBER_EPOCH: Final = 113
MIGRATED: Final = {
    22: "ILLEGAL_GENERATION",
    25: "UNKNOWN_MEMBER_ID",
    82: "FENCED_INSTANCE_ID",
    110: "FENCED_MEMBER_EPOCH",
    STALE_MEMBER_EPOCH: "STALE_MEMBER_EPOCH",
}
"""Error codes for a member whose tasks the group has given to others."""

_REBALANCE_IN_PROGRESS = 27
_FORBIDDEN = {29: "READ on the topic", 30: "READ on the group"}
_UNSTABLE_OFFSET_COMMIT = 88
_RETRIABLE = {*NOT_HERE, 3, 7, _UNSTABLE_OFFSET_COMMIT}  # and UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT
_COMMIT_VERSION = 9  # version 10 names topics by id
_FETCH_VERSION = 9
_LOG_EVERY_S: Final = 5.0


class MigratedCommitError(TaskMigratedError):
    """A commit was refused because the group has moved on without this member; has the broker's error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class CommittedOffsets:
    """The group's committed offsets of some partitions. The IO thread fills them in as they arrive; one other thread reads."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self._partitions = frozenset(partitions)
        self._known: dict[TopicPartition, OffsetAndMetadata | None] = {}
        self._failure: BaseException | None = None

    def of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata] | None:
        """Return the committed offsets of some partitions, except those that have none; None = not yet known.

        Raises:
            AuthorizationError: A topic or the group may not be read.
            StreamsTimeoutError: The coordinator did not answer in time, or a transaction stayed open.
            StreamsError: The broker refused permanently.
        """
        known = self._known.copy()
        if known.keys() >= set(partitions):
            return {partition: position for partition in partitions if (position := known[partition]) is not None}
        if self._failure is not None:
            raise self._failure
        return None

    def missing(self) -> frozenset[TopicPartition]:
        """Return the partitions whose offsets are not yet known."""
        return self._partitions - self._known.keys()

    def fill(self, known: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Add offsets that have arrived."""
        self._known.update(known)

    def fail(self, error: BaseException) -> None:
        """Record that the missing offsets will not arrive."""
        self._failure = error


class GroupOffsets:
    """Offset requests of one member; coroutines of its IO thread."""

    def __init__(self, connection: Connection, coordinator: Coordinator, settings: MembershipSettings) -> None:
        """Use the member's connection and coordinator."""
        self._connection = connection
        self._coordinator = coordinator
        self._settings = settings
        self._log_at_s = 0.0

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        generation: int,
        member_id: str,
        timeout_s: float,
    ) -> None:
        """Commit offsets; retries after transient errors until the timeout.

        Raises:
            MigratedCommitError: The group no longer has this generation or member.
            RebalanceInProgressError: The group is assigning right now.
            AuthorizationError: A topic or the group may not be read.
            StreamsTimeoutError: The coordinator did not accept the commit in time.
            StreamsError: The broker refused it permanently.
        """
        topics: defaultdict[str, list[object]] = defaultdict(list)
        for (topic, partition), (offset, metadata) in offsets.items():
            topics[topic].append(
                OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata=metadata,
                )
            )
        item = OffsetCommitRequest.OffsetCommitRequestTopic
        deadline = Deadline(timeout_s)
        what = f"Offsets of {len(offsets)} partitions could not be committed"
        while True:
            request = OffsetCommitRequest(
                group_id=self._settings.group_id,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                group_instance_id=self._settings.instance_id,
                topics=[item(name=topic, partitions=parts) for topic, parts in topics.items()],
                max_version=_COMMIT_VERSION,
            )
            problem: object
            try:
                response = await self._coordinator.send(request, deadline=deadline)
            except kafka_errors.KafkaError as error:
                problem = error
            else:
                errors = {
                    TopicPartition(topic.name, part.partition_index): part.error_code
                    for topic in response.topics
                    for part in topic.partitions
                    if part.error_code
                }
                if not errors:
                    return
                self._raise_final(errors, "commit the offsets of")
                problem = _describe(errors)
                if any(code in NOT_HERE[1:] for code in errors.values()):
                    self._coordinator.forget(problem)
            await self._pause(deadline, what, problem)

    async def fetch(self, committed: CommittedOffsets, timeout_s: float) -> None:
        """Fill in the committed offsets as they become stable, that is once no transaction is pending on them.

        Raises:
            AuthorizationError: A topic or the group may not be read.
            StreamsTimeoutError: The coordinator did not answer in time, or a transaction stayed open.
            StreamsError: The broker refused permanently.
        """
        group = OffsetFetchRequest.OffsetFetchRequestGroup
        item = group.OffsetFetchRequestTopics
        deadline = Deadline(timeout_s)
        while missing := committed.missing():
            wanted: defaultdict[str, list[int]] = defaultdict(list)
            for topic, partition in sorted(missing):
                wanted[topic].append(partition)
            request = OffsetFetchRequest(
                groups=[
                    group(
                        group_id=self._settings.group_id,
                        topics=[item(name=topic, partition_indexes=numbers) for topic, numbers in wanted.items()],
                    )
                ],
                require_stable=True,
                max_version=_FETCH_VERSION,
            )
            problem: object
            level = logging.WARNING
            try:
                answer = (await self._coordinator.send(request, deadline=deadline)).groups[0]
            except kafka_errors.KafkaError as error:
                problem = error
            else:
                found = {
                    TopicPartition(topic.name, part.partition_index): part
                    for topic in answer.topics
                    for part in topic.partitions
                }
                errors = {partition: part.error_code for partition, part in found.items() if part.error_code}
                if answer.error_code:
                    errors = dict.fromkeys(missing, answer.error_code)
                self._raise_final(errors, "read the committed offsets of")
                committed.fill(
                    {
                        partition: None
                        if part.committed_offset < 0
                        else OffsetAndMetadata(part.committed_offset, part.metadata or "")
                        for partition, part in found.items()
                        if partition not in errors
                    }
                )
                if not errors:
                    continue
                problem = _describe(errors)
                if set(errors.values()) == {_UNSTABLE_OFFSET_COMMIT}:
                    level = logging.INFO  # usual after the end of an instance: its transaction has yet to time out
                if any(code in NOT_HERE[1:] for code in errors.values()):
                    self._coordinator.forget(problem)
            what = f"Committed offsets of {len(missing)} partitions could not be read"
            await self._pause(deadline, what, problem, level)

    async def _pause(self, deadline: Deadline, what: str, problem: object, level: int = logging.WARNING) -> None:
        if deadline.passed:
            raise StreamsTimeoutError(
                f"{what} in group {self._settings.group_id} in time; the last problem was: {problem}"
            )
        now = time.monotonic()
        if now >= self._log_at_s:  # this may last for minutes, and nothing else is logged
            self._log_at_s = now + _LOG_EVERY_S
            log.log(level, "%s in group %s yet; retrying: %s", what, self._settings.group_id, problem)
        await self._connection.sleep(self._settings.retry_backoff_ms / 1000)

    def _raise_final(self, errors: Mapping[TopicPartition, int], what: str) -> None:
        codes = set(errors.values())
        group = self._settings.group_id
        for code in codes & MIGRATED.keys():
            raise MigratedCommitError(
                code,
                f"Group {group} has moved on without this member ({MIGRATED[code]}): its tasks belong to others now",
            )
        if _REBALANCE_IN_PROGRESS in codes:
            raise RebalanceInProgressError(f"Group {group} is rebalancing: offsets are committed afterwards")
        for partition, code in errors.items():
            if code in _FORBIDDEN:
                raise AuthorizationError(
                    f"The principal may not {what} {partition} in group {group}: allow {_FORBIDDEN[code]}"
                )
            if code not in _RETRIABLE:
                raise StreamsError(f"The broker refused to {what} {partition} in group {group}: {_name(code)}")


def _name(code: int) -> str:
    error: type[kafka_errors.BrokerResponseError] = kafka_errors.for_code(code)
    return f"{error.message} ({code})"


def _describe(errors: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{partition}: {_name(code)}" for partition, code in sorted(errors.items())[:3])
