"""How a member gets from outside into a generation, and into the next one: the state machine that `poll` drives.

State          what is in flight          next
UNJOINED       nothing                    `advance` sends JoinGroup → JOINING
JOINING        JoinGroup                  answer → (leader: assign) send SyncGroup → SYNCING; error → UNJOINED
SYNCING        SyncGroup                  answer → STABLE with events; error → UNJOINED
STABLE         heartbeats                 rejoin requested → JOINING; removed → UNJOINED with `Lost`
CLOSED         nothing                    —

`advance` runs on the stream thread, as do the callbacks, and never waits for the network.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import kafka.errors as kafka_errors

from millrace.assignment.protocol import (
    Assigned,
    GroupEvent,
    LeaderAssignor,
    Lost,
    MemberSubscription,
    Revoked,
    UserDataProvider,
)
from millrace.errors import StreamsError
from millrace.kafka.clients import MembershipSettings
from millrace.kafka.connection import Connection
from millrace.kafka.membership.coordinator import NOT_HERE, Coordinator
from millrace.kafka.membership.heartbeat import fenced
from millrace.kafka.membership.payloads import decode_assignment, decode_subscription, encode_assignment
from millrace.kafka.membership.requests import GroupRequests, refusal
from millrace.kafka.membership.standing import MemberState, Standing
from millrace.kafka.membership.watch import TopicWatch

__all__ = ["Joining"]

log = logging.getLogger("millrace.kafka.membership")


class Joining:
    """The transitions of one member that are made on its stream thread."""

    def __init__(
        self,
        standing: Standing,
        connection: Connection,
        coordinator: Coordinator,
        watch: TopicWatch,
        settings: MembershipSettings,
        *,
        user_data: UserDataProvider,
        assign: LeaderAssignor,
    ) -> None:
        """Describe a member that is to join at the first `advance`."""
        self._standing = standing
        self._connection = connection
        self._coordinator = coordinator
        self._watch = watch
        self._settings = settings
        self._requests = GroupRequests(coordinator, watch, settings)
        self._user_data = user_data
        self._assign = assign
        self._retry_at_s = 0.0
        self._backoff_ms = settings.retry_backoff_ms

    @property
    def requests(self) -> GroupRequests:
        """The member's requests."""
        return self._requests

    def wait_s(self, now_s: float) -> float | None:
        """Return how long to wait (from monotonic seconds) until joining is tried again; None if an answer comes first."""
        if self._standing.step is None and self._standing.state is MemberState.UNJOINED:
            return max(0.001, self._retry_at_s - now_s)
        return None

    def advance(self) -> list[GroupEvent]:
        """Take the next step if its time has come; return what changed for the stream thread.

        Raises:
            StreamsError: See `GroupMember.poll`.
        """
        standing = self._standing
        with standing.lock:
            if standing.failure is not None:
                raise standing.failure
            if standing.lost:
                lost, standing.owned, standing.lost = standing.owned, frozenset(), False
                return [Lost(lost)]
            step, state = standing.step, standing.state
            if step is not None and not step.is_done:
                return []
            standing.step = None
        if state is MemberState.CLOSED:
            raise StreamsError(f"The member of group {self._settings.group_id} is closed")
        if step is None:
            wanted = state is MemberState.UNJOINED or standing.rejoin_reason is not None
            if wanted and time.monotonic() >= self._retry_at_s:
                self._join()
            return []
        if step.exception is not None:
            self._retry_after(step.exception)
            return []
        return self._joined(step.value) if state is MemberState.JOINING else self._synced(step.value)

    def _start_step(self, state: MemberState, function: Any, *args: Any) -> None:
        standing = self._standing
        with standing.lock:
            standing.state = state
            standing.step = step = self._connection.start(function, *args)
        step.add_both(lambda _: standing.changed.set())

    def _join(self) -> None:
        standing, user_data = self._standing, self._user_data()
        with standing.lock:  # the answer to a heartbeat comes before, as a reason to join, or is passed over
            if standing.lost or standing.failure is not None:
                return  # of which `advance` tells first
            reason, standing.rejoin_reason = standing.rejoin_reason, None
            subscription = MemberSubscription(
                topics=tuple(sorted(self._watch.topics)),
                user_data=user_data,
                owned=standing.owned,
                generation=standing.generation,
                rack_id=self._settings.rack_id,
            )
            self._start_step(MemberState.JOINING, self._requests.join, standing.member_id, subscription, reason or "")

    def _joined(self, response: Any) -> list[GroupEvent]:
        if response.error_code:
            self._refused(response.error_code, response.member_id)
            return []
        standing = self._standing
        with standing.lock:
            standing.generation, standing.member_id = response.generation_id, response.member_id
            standing.leader_id = response.leader
            standing.state = MemberState.SYNCING  # heartbeats keep the member while the leader thinks
        assignments: dict[str, bytes] = {}
        if standing.is_leader and not response.skip_assignment:
            assignments = self._assign_to(response)
        with standing.lock:
            if standing.state is MemberState.SYNCING:  # else removed from the group while assigning
                identity = standing.generation, standing.member_id
                self._start_step(MemberState.SYNCING, self._requests.sync, *identity, assignments)
        return []

    def _assign_to(self, response: Any) -> dict[str, bytes]:
        members = {
            member.member_id: decode_subscription(member.metadata, member.group_instance_id)
            for member in response.members
        }
        group = self._settings.group_id
        log.info("Assigning generation %d of group %s to %d members", response.generation_id, group, len(members))
        try:
            given = self._assign(members)
        except BaseException:  # the next `poll`, if there is one, joins again
            with self._standing.lock:
                self._standing.state = MemberState.UNJOINED
            raise
        return {member_id: encode_assignment(assignment) for member_id, assignment in given.items()}

    def _synced(self, response: Any) -> list[GroupEvent]:
        if response.error_code:
            self._refused(response.error_code, "")
            return []
        assignment = decode_assignment(response.assignment)
        now_owned = frozenset(assignment.partitions)
        standing = self._standing
        with standing.lock:
            revoked, added = standing.owned - now_owned, now_owned - standing.owned
            standing.owned = now_owned
            standing.state = MemberState.STABLE
            self._backoff_ms = self._settings.retry_backoff_ms
            generation = standing.generation
        log.info(
            "Generation %d of group %s gives this member %d partitions: %d added, %d revoked",
            *(generation, self._settings.group_id, len(now_owned), len(added), len(revoked)),
        )
        events: list[GroupEvent] = []
        if revoked:
            events.append(Revoked(revoked))
            standing.request_rejoin(f"{len(revoked)} partitions were revoked and can go to other members now")
        events.append(Assigned(assignment.partitions, added, assignment.user_data, generation))
        return events

    def _refused(self, code: int, member_id: str) -> None:
        """Act on an error answer to JoinGroup or SyncGroup: go on, or raise."""
        standing = self._standing
        with standing.lock:
            standing.state = MemberState.UNJOINED
            if code == 79:  # MEMBER_ID_REQUIRED: the broker gave an id to join with
                standing.member_id = member_id
                return
        final = refusal(code, self._settings)
        if final is not None:
            raise final
        if code in {22, 25}:
            standing.reset("it was removed while the group rebalanced", keep_member_id=code == 22)
        elif code == 82:
            standing.fail(fenced(self._settings))
            raise fenced(self._settings)
        elif code in NOT_HERE:
            self._retry_after(f"error {code}")
        elif code != 27:  # REBALANCE_IN_PROGRESS: join again at once
            self._retry_after(kafka_errors.for_code(code).__name__)

    def _retry_after(self, problem: object) -> None:
        if isinstance(problem, StreamsError):
            raise problem
        if isinstance(problem, BaseException) and not isinstance(problem, kafka_errors.KafkaError | OSError):
            raise StreamsError(f"Joining group {self._settings.group_id} failed: {problem}") from problem
        log.info("Joining group %s is repeated: %s", self._settings.group_id, problem)
        self._coordinator.forget(problem)
        with self._standing.lock:
            self._standing.state = MemberState.UNJOINED
            self._retry_at_s = time.monotonic() + self._backoff_ms / 1000
            self._backoff_ms = min(self._backoff_ms * 2, self._settings.retry_backoff_max_ms)
