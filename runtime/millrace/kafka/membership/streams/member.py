"""`StreamsGroupMember`: a member of a group with the streams protocol (KIP-1071), in which the brokers assign tasks.

The group's coordinator changes a member's tasks in steps: those that move are first revoked, and given to another member once
this one has reported that it no longer has them. It may report that only after they are closed, which the stream thread does
between the `poll` that returned `Revoked` and the next one.

`heartbeat` has the protocol, `state` the state shared with the IO thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from millrace.assignment.member import AssignedTasks
from millrace.assignment.protocol import Assigned, GroupEvent, Lost, Revoked
from millrace.deadline import Deadline
from millrace.errors import MissingSourceTopicError, StreamsError, TopologyError
from millrace.kafka.admin_requests import given_up
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.membership.base import BaseMember
from millrace.kafka.membership.offsets import STALE_MEMBER_EPOCH, MigratedCommitError
from millrace.kafka.membership.state import NO_GENERATION, MemberState
from millrace.kafka.membership.streams.heartbeat import StreamsHeartbeats, StreamsMemberInfo
from millrace.kafka.membership.streams.state import (
    INCORRECTLY_PARTITIONED_TOPICS,
    MISSING_SOURCE_TOPICS,
    SHUTDOWN_APPLICATION,
    Endpoints,
    OwnedTasks,
    StreamsState,
)
from millrace.kafka.membership.streams.topology import describe_topology
from millrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["StreamsGroupMember"]

_STALE_PAUSE_S: Final = 0.1
_TOPICS_APPEAR_S: Final = 3.0
"""How long the coordinator may take to know a topic that has just been created."""


class StreamsGroupMember(BaseMember):
    """The membership of one stream thread in its application's group.

    Example::

        member = StreamsGroupMember(clients, 1, StreamsMemberInfo(plan, process_id))
        member.start()
        for event in member.poll(0.1):
            handle(event, member.tasks)
    """

    def __init__(self, clients: ClientSettings, thread: int, info: StreamsMemberInfo) -> None:
        """Prepare a member; `start` connects it.

        Args:
            clients: The process's client settings.
            thread: The stream thread's number, from 1.
            info: The member's description of itself for the coordinator.

        Raises:
            UnsupportedFeatureError: The topology reads topics by a pattern.
        """
        settings = clients.membership(thread)
        self._state = StreamsState(settings)
        super().__init__(clients, thread, settings, self._state)
        self._info = info
        self._topology = describe_topology(info.plan, info.replication_factor)
        self._given: OwnedTasks | None = None
        """The last target that the stream thread was given; None if it has none since the member joined."""
        self._endpoints = Endpoints()
        self._told_to_shut_down = False

    def _begin(self) -> None:
        self._heartbeats = StreamsHeartbeats(
            self._connection, self._coordinator, self._settings, self._state, self._info, self._topology
        )
        self._in_background(self._heartbeats.run)

    # State

    @property
    def rebalancing(self) -> bool:
        """Whether this member is not in the group; it may commit at any time while it is."""
        return self._state.generation == NO_GENERATION

    @property
    def tasks(self) -> AssignedTasks:
        """The tasks of the last `Assigned`, and where the state of the application's other processes is."""
        given = self._given or OwnedTasks()
        return AssignedTasks(
            active=given.active,
            standby={**given.standby, **given.warmup},
            partitions_by_host=self._endpoints.active,
            standby_partitions_by_host=self._endpoints.standby,
            shutdown_requested=self._told_to_shut_down,
        )

    # Called by the stream thread

    def reset(self, reason: str) -> None:
        """Forget the epoch and rejoin because the thread has dropped its tasks; the owned partitions are `Lost`."""
        self._state.reset(reason)

    def commit_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float = 60.0) -> None:
        """Commit offsets with this member's epoch (at-least-once); with the next one if it was about to change.

        A coordinator also accepts partitions that this member does not own: the caller must own them.

        Raises:
            TaskMigratedError: The group has moved on without this member.
            AuthorizationError: A topic or the group may not be read.
            StreamsTimeoutError: The coordinator did not accept the commit in time.
        """
        if not offsets:
            return
        deadline = Deadline(timeout_s)
        while True:
            epoch, member_id = self._state.identity()
            try:
                self._wait_for(deadline.left_s(at_least=1.0), self._offsets.commit, offsets, epoch, member_id)
            except MigratedCommitError as error:
                if error.code != STALE_MEMBER_EPOCH or deadline.passed:
                    if self._state.generation == epoch:
                        self._state.reset("a commit was refused")
                    raise
            else:
                return
            if self._state.generation == epoch:
                self._in_background(self._heartbeats.refresh)
                time.sleep(_STALE_PAUSE_S)

    def shut_down_application(self, timeout_s: float) -> None:
        """Tell every member of the application to stop, and wait until the coordinator knows.

        Raises:
            StreamsError: The coordinator did not answer in time.
        """
        self._heartbeats.shutdown_application = True
        self._in_background(self._heartbeats.refresh)
        deadline = Deadline(timeout_s)
        while SHUTDOWN_APPLICATION not in self._state.statuses:
            if deadline.passed or given_up() or self._state.failure is not None:
                raise StreamsError(f"The coordinator of group {self._settings.group_id} does not answer")
            self._state.changed.clear()
            self._state.changed.wait(min(1.0, deadline.left_s()))

    # The group protocol

    def _polled(self) -> None:
        self._heartbeats.polled()

    def _wait_s(self) -> float | None:
        return self._state.heartbeat_interval_s

    def _advance(self) -> list[GroupEvent]:
        state = self._state
        with state.lock:
            if state.failure is not None:
                raise state.failure
            if state.closed:
                raise StreamsError(f"The member of group {self._settings.group_id} is closed")
            if state.state is MemberState.UNJOINED:
                self._given = None
            if state.lost:
                lost, state.owned, state.lost = state.owned, frozenset(), False
                return [Lost(lost)]
            if state.state is MemberState.UNJOINED:
                state.state = MemberState.JOINING
                self._in_background(self._heartbeats.beat)
                return []
            if state.state is MemberState.SYNCING and self._given is not None:
                state.current, state.state = self._given, MemberState.STABLE  # revoked tasks are closed by now
                self._in_background(self._heartbeats.beat)
            self._raise_problem()
            return self._follow_target()

    def _raise_problem(self) -> None:
        state, group = self._state, self._settings.group_id
        if INCORRECTLY_PARTITIONED_TOPICS in state.statuses:
            raise TopologyError(
                f"The topics of group {group} do not fit together: {state.statuses[INCORRECTLY_PARTITIONED_TOPICS]}. Create "
                "them with the right numbers of partitions, or reset the application if its input has got more partitions"
            )
        since_s = state.topics_missing_since_s
        patience_s = max(_TOPICS_APPEAR_S, 2 * state.heartbeat_interval_s)
        if since_s is not None and time.monotonic() - since_s > patience_s:
            raise MissingSourceTopicError(
                f"Input topics of group {group} do not exist: {state.statuses[MISSING_SOURCE_TOPICS]}. Create them (Millrace "
                "never creates input topics), or correct their names"
            )

    def _follow_target(self) -> list[GroupEvent]:
        """Return the events that lead from the stream thread's tasks to its target."""
        state = self._state
        target, shutdown = state.target, SHUTDOWN_APPLICATION in state.statuses
        if target is None:
            return []
        known = (self._given, self._endpoints, self._told_to_shut_down)
        if known == (target, state.endpoints, shutdown):
            return []
        if self._given is None and state.statuses and target == OwnedTasks() and not shutdown:
            return []  # the group is not ready to assign tasks
        changed = target != self._given
        self._given, self._endpoints, self._told_to_shut_down = target, state.endpoints, shutdown
        now_owned = target.partitions
        revoked, added = state.owned - now_owned, now_owned - state.owned
        state.owned = now_owned
        if changed:
            state.state, state.current = MemberState.SYNCING, state.current | target
        events: list[GroupEvent] = [Revoked(revoked)] if revoked else []
        return [*events, Assigned(tuple(sorted(now_owned)), added, b"", state.generation)]

    async def _send_leave(self, reason: str, timeout_ms: int) -> None:
        del reason  # the protocol has no field for it
        await self._heartbeats.leave(timeout_ms)
