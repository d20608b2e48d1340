"""A member's part of the assignment protocol: reporting its tasks and state, and reading its assignment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from millrace.assignment.application_state import HostInfo
from millrace.assignment.payloads import (
    LATEST_VERSION,
    NO_REBALANCE,
    AssignmentInfo,
    AssignorError,
    SubscriptionInfo,
    decode_assignment_info,
    encode_subscription_info,
)
from millrace.assignment.protocol import Assigned
from millrace.errors import MissingSourceTopicError, TaskAssignmentError
from millrace.records import TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class AssignedTasks:
    """What a member has to do after a rebalance."""

    active: Mapping[TaskId, frozenset[TopicPartition]] = field(default_factory=dict)
    """Task → its input partitions."""
    standby: Mapping[TaskId, frozenset[TopicPartition]] = field(default_factory=dict)
    """Standbys and warm-ups."""
    partitions_by_host: Mapping[HostInfo, frozenset[TopicPartition]] = field(default_factory=dict)
    standby_partitions_by_host: Mapping[HostInfo, frozenset[TopicPartition]] = field(default_factory=dict)
    next_rebalance_ms: int | None = None
    """When to call `request_rejoin`, in milliseconds since the epoch; 0 = at once, None = never."""
    shutdown_requested: bool = False
    """Whether the application is to stop everywhere."""


class MemberProtocol:
    """The user data of one member, over all its rebalances; used by one thread."""

    def __init__(self, process_id: UUID, *, end_point: str = "", client_tags: Mapping[str, str] | None = None) -> None:
        """Create the protocol of one member.

        Args:
            process_id: The process's UUID.
            end_point: `application.server`, empty for none.
            client_tags: `client.tag.*`.
        """
        self._process_id = process_id
        self._end_point = end_point
        self._client_tags = dict(client_tags or {})
        self._version = LATEST_VERSION
        self._unique = 0
        self.error_code: int = AssignorError.NONE
        """SHUTDOWN_REQUESTED makes the next rejoin stop the whole application."""

    def user_data(self, task_offset_sums: Mapping[TaskId, int]) -> bytes:
        """Return this member's SubscriptionInfo; each one is different, so that the broker sees a change.

        Args:
            task_offset_sums: Task → sum of its changelog offsets, or LATEST_OFFSET if it is running here.
        """
        self._unique = (self._unique + 1) % 128
        return encode_subscription_info(
            SubscriptionInfo(
                process_id=self._process_id,
                task_offset_sums=task_offset_sums,
                user_end_point=self._end_point,
                unique_field=self._unique,
                error_code=self.error_code,
                client_tags=self._client_tags,
                version=self._version,
            )
        )

    def accept(self, event: Assigned) -> AssignedTasks:
        """Read an assignment.

        Raises:
            MissingSourceTopicError: The leader found that input topics do not exist.
            TaskAssignmentError: The leader could not assign tasks, or sent inconsistent data.
        """
        if not event.user_data:
            return AssignedTasks()
        info = decode_assignment_info(event.user_data)
        self._raise_error(info.error_code)
        next_rebalance_ms = None if info.next_rebalance_ms == NO_REBALANCE else info.next_rebalance_ms
        agreed = min(info.commonly_supported_version, LATEST_VERSION)
        if 0 < agreed != self._version:
            self._version = agreed  # version probing: rejoin with a version that all members understand
            next_rebalance_ms = 0
        return AssignedTasks(
            active=_active(event, info),
            standby=info.standby,
            partitions_by_host=info.partitions_by_host,
            standby_partitions_by_host=info.standby_partitions_by_host,
            next_rebalance_ms=next_rebalance_ms,
            shutdown_requested=info.error_code == AssignorError.SHUTDOWN_REQUESTED,
        )

    @staticmethod
    def _raise_error(code: int) -> None:
        if code == AssignorError.INCOMPLETE_SOURCE_TOPIC_METADATA:
            raise MissingSourceTopicError(
                "The group's leader found that input topics do not exist; its log names them. Create them and restart"
            )
        if code == AssignorError.ASSIGNMENT_ERROR:
            raise TaskAssignmentError("The group's leader could not assign tasks; see its log for the reason")


def _active(event: Assigned, info: AssignmentInfo) -> dict[TaskId, frozenset[TopicPartition]]:
    if len(info.active) != len(event.partitions):
        raise TaskAssignmentError(
            f"The group's leader gave {len(event.partitions)} partitions but tasks for {len(info.active)}"
        )
    active: dict[TaskId, set[TopicPartition]] = {}
    for task, partition in zip(info.active, event.partitions, strict=True):
        active.setdefault(task, set()).add(partition)
    return {task: frozenset(partitions) for task, partitions in active.items()}
