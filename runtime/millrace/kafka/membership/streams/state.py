"""The state of a member of a streams group (KIP-1071), shared by its stream thread and its IO thread.

The generation is the member's epoch. The *target* is the tasks that the group's coordinator wants this member to own, and
`current` the tasks that the stream thread has: until it has closed revoked tasks, it has these and the added ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from millrace.assignment.application_state import HostInfo
from millrace.kafka.client_settings import MembershipSettings
from millrace.kafka.membership.state import SharedState
from millrace.records import TaskId, TopicPartition

__all__ = ["Endpoints", "OwnedTasks", "StreamsState"]

MISSING_SOURCE_TOPICS: Final = 1
INCORRECTLY_PARTITIONED_TOPICS: Final = 2
MISSING_INTERNAL_TOPICS: Final = 3
SHUTDOWN_APPLICATION: Final = 4
ASSIGNMENT_DELAYED: Final = 5

_TaskInputs = Mapping[TaskId, frozenset[TopicPartition]]


@dataclass(frozen=True, slots=True)
class OwnedTasks:
    """The tasks that a member owns or should own, each with its input partitions."""

    active: _TaskInputs = field(default_factory=dict)
    standby: _TaskInputs = field(default_factory=dict)
    warmup: _TaskInputs = field(default_factory=dict)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The input partitions of the active tasks."""
        return frozenset().union(*self.active.values())

    def __or__(self, other: OwnedTasks) -> OwnedTasks:
        """Return the tasks of both."""
        return OwnedTasks(
            {**self.active, **other.active}, {**self.standby, **other.standby}, {**self.warmup, **other.warmup}
        )


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The partitions whose state each process of the application has, by `application.server`."""

    active: Mapping[HostInfo, frozenset[TopicPartition]] = field(default_factory=dict)
    standby: Mapping[HostInfo, frozenset[TopicPartition]] = field(default_factory=dict)


class StreamsState(SharedState):
    """The state of one member."""

    def __init__(self, settings: MembershipSettings) -> None:
        """Start as a member that has not joined yet; it keeps its id as long as it lives."""
        super().__init__(settings)
        self.member_id = str(uuid.uuid4())
        self.target: OwnedTasks | None = None
        """None until the coordinator has given this member a target."""
        self.current = OwnedTasks()
        self.endpoints = Endpoints()
        self.statuses: Mapping[int, str] = {}
        """The group's problems: status code → detail."""
        self.topics_missing_since_s: float | None = None
        """When the coordinator first reported MISSING_SOURCE_TOPICS (monotonic); None if it does not."""
        self.heartbeat_interval_s = settings.heartbeat_interval_ms / 1000
        """The coordinator's requests since the member joined."""

    def may_own(self) -> OwnedTasks:
        """Return the tasks that the stream thread has, or may take at any moment."""
        return self.current if self.target is None else self.current | self.target

    def reset(self, reason: str, *, keep_member_id: bool = True) -> None:
        """Forget the epoch and the tasks: others may own what this member owned."""
        with self.lock:
            self.target, self.current = None, OwnedTasks()
            super().reset(reason, keep_member_id=keep_member_id)
