"""The group leader: it creates internal topics, measures lags, assigns tasks, and tells every member if that is impossible.

`GroupLeader` is the callable that a `GroupMember` runs if it is the leader. It has three outcomes:

* tasks are assigned;
* the brokers do not answer, or refuse what they allowed before: every member keeps what it has, and the leader tries again soon,
  for `task.timeout.ms` in all;
* they cannot be assigned: all members are told by a code, so that they fail instead of waiting for tasks. The leader's own thread
  finds the error in `GroupLeader.error` when it is told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol
from uuid import UUID

from millrace.assignment.application_state import AssignmentConfig, TaskAssignor, TaskInfo, planned_tasks
from millrace.assignment.group import GroupMembers, assign_group, error_assignments, kept_assignments, read_group
from millrace.assignment.high_availability import high_availability_assignor
from millrace.assignment.payloads import AssignorError
from millrace.assignment.protocol import MemberAssignment, MemberSubscription
from millrace.assignment.sticky import fallback_prior_assignor
from millrace.deadline import Deadline
from millrace.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerUnreachableError,
    MissingSourceTopicError,
    StreamsError,
    StreamsTimeoutError,
)
from millrace.plan.partition_counts import PartitionCounts
from millrace.plan.topology_plan import TopologyPlan
from millrace.records import TaskId, TopicPartition

log = logging.getLogger("millrace.assignment")

_SILENT = (StreamsTimeoutError, BrokerUnreachableError)
_REFUSED = (AuthorizationError, AuthenticationError)
_AGAIN_MS = 5_000
_FORGET_S = 180.0
"""A failure that comes so long after the last one begins a new time of trouble: another member may have led meanwhile."""


class ClusterAccess(Protocol):
    """What the leader asks the cluster for; implemented by `millrace.kafka.internal_topics.LeaderCluster`."""

    def provision(self) -> PartitionCounts:
        """Create and check the internal topics; return all partition counts."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offsets of changelog partitions."""

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's committed offsets, without partitions that have none."""

    def racks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, frozenset[str]]:
        """Return the racks of partitions' replicas, except partitions with a replica whose rack is unknown."""


class GroupLeader:
    """Assigns the tasks of one application's group when its member is the leader.

    The last error is kept in `error`, as members only get a code.
    """

    def __init__(
        self,
        plan: TopologyPlan,
        process_id: UUID,
        cluster: ClusterAccess,
        config: AssignmentConfig,
        *,
        assignor: TaskAssignor | None = None,
        patience_ms: int = 300_000,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Create the leader.

        Args:
            plan: What the application needs.
            process_id: This process, which asks for probing rebalances.
            cluster: Creates topics and reads offsets.
            config: The settings of assignors.
            assignor: From `select_assignor`; high availability if not given.
            patience_ms: How long to try again while brokers do not answer (`task.timeout.ms`).
            clock_ms: Returns milliseconds since the epoch; only for what members are told, as it may be set.
        """
        self._plan = plan
        self._process_id = process_id
        self._cluster = cluster
        self._config = config
        self._assignor = assignor or high_availability_assignor
        self._patience_s = patience_ms / 1000
        self._clock_ms = clock_ms
        self._lock = threading.RLock()
        self._gives_up: Deadline | None = None
        """When not to try again; None while there is no trouble."""
        self._forget = Deadline(0.0)
        """When the last failure no longer counts."""
        self.error: StreamsError | None = None

    def __call__(self, members: Mapping[str, MemberSubscription]) -> dict[str, MemberAssignment]:
        """Assign tasks to all members; if that fails, send them an error code that ends them.

        One call after the other, in whatever thread: a member that was removed while it assigned may lead again.
        """
        with self._lock:
            return self._assign_group(members)

    def _assign_group(self, members: Mapping[str, MemberSubscription]) -> dict[str, MemberAssignment]:
        self.error = None
        group = read_group(members)
        if group.shutdown_requested:
            log.warning("A member has asked for the application to stop: all members are told")
            return error_assignments(group, AssignorError.SHUTDOWN_REQUESTED)
        try:
            assignments = self._assign(group)
        except MissingSourceTopicError as error:
            return self._refuse(group, AssignorError.INCOMPLETE_SOURCE_TOPIC_METADATA, error)
        except StreamsError as error:
            if self._may_pass(group, error):
                return self._keep(group, error)
            return self._refuse(group, AssignorError.ASSIGNMENT_ERROR, error)
        self._gives_up = None
        return assignments

    def _may_pass(self, group: GroupMembers, error: StreamsError) -> bool:
        """Return whether to try again: also what is refused, if it was allowed when members were given what they have."""
        if not isinstance(error, _SILENT) and not (isinstance(error, _REFUSED) and group.owners):
            return False
        if self._gives_up is None or self._forget.passed:
            self._gives_up = Deadline(self._patience_s)
        self._forget = Deadline(_FORGET_S)
        return not self._gives_up.passed

    def _keep(self, group: GroupMembers, error: StreamsError) -> dict[str, MemberAssignment]:
        log.warning("Tasks cannot be assigned now, so members keep theirs until the next attempt: %s", error)
        again_ms = self._clock_ms() + _AGAIN_MS
        return kept_assignments(group, self._plan, leader=self._process_id, retry_at_ms=again_ms)

    def _refuse(self, group: GroupMembers, code: AssignorError, error: StreamsError) -> dict[str, MemberAssignment]:
        log.error("Tasks cannot be assigned: %s", error)
        self.error = error
        return error_assignments(group, code)

    def _assign(self, group: GroupMembers) -> dict[str, MemberAssignment]:
        tasks = planned_tasks(self._plan, self._cluster.provision())
        assignor = self._assignor
        end_offset_sums: Mapping[TaskId, int] | None = None
        try:
            end_offset_sums = self._end_offset_sums(tasks)
        except StreamsTimeoutError as error:
            log.warning("Offsets cannot be read (%s), so it is unknown how much state each member has", error)
            if assignor is high_availability_assignor:
                assignor = fallback_prior_assignor
        return assign_group(
            group,
            tasks,
            end_offset_sums,
            self._racks(tasks),
            self._config,
            assignor,
            leader=self._process_id,
            now_ms=self._clock_ms(),
        )

    def _end_offset_sums(self, tasks: Mapping[TaskId, TaskInfo]) -> dict[TaskId, int]:
        logged = {tp for task in tasks.values() for tp in task.changelogs - task.partitions}
        from_source = {tp for task in tasks.values() for tp in task.changelogs & task.partitions}
        ends = {
            **(self._cluster.end_offsets(logged) if logged else {}),
            **(self._cluster.committed_offsets(from_source) if from_source else {}),
        }
        return {task: sum(ends.get(tp, 0) for tp in info.changelogs) for task, info in tasks.items() if info.changelogs}

    def _racks(self, tasks: Mapping[TaskId, TaskInfo]) -> Mapping[TopicPartition, frozenset[str]]:
        if self._config.rack_aware_strategy == "none":
            return {}
        try:
            return self._cluster.racks({tp for task in tasks.values() for tp in task.partitions | task.changelogs})
        except (StreamsTimeoutError, AuthorizationError) as error:
            log.warning("The racks of brokers cannot be read (%s): tasks are assigned without regard to racks", error)
            return {}
