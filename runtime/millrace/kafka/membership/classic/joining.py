"""Joining a group by the classic protocol: the state machine that `poll` drives, and the requests it sends.

State          what is in flight          next
UNJOINED       nothing                    `advance` begins to rejoin → JOINING
JOINING        JoinGroup                  answer → SYNCING; error → UNJOINED
SYNCING        the leader assigns;        answer → STABLE with events; error → UNJOINED
               SyncGroup
STABLE         heartbeats                 a rebalance → JOINING; removed → UNJOINED with `Lost`
CLOSED         nothing                    —

Rejoining, from JoinGroup to the answer of SyncGroup, is one coroutine of the member's IO thread, so that the group does not
wait for a stream thread that is busy with a slow record; assigning, which asks brokers, has its own thread. The stream
thread reads the outcome in `advance`, and only then gives anything up. It also begins to rejoin, except when the group
rebalances while the thread is busy and has nothing to give up: then the IO thread does, with the thread's last data.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import kafka.errors as kafka_errors
from kafka.protocol.consumer import (
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

from millrace.assignment.protocol import (
    Assigned,
    GroupEvent,
    LeaderAssignor,
    Lost,
    MemberSubscription,
    Revoked,
    UserDataProvider,
)
from millrace.deadline import Deadline
from millrace.errors import AuthorizationError, ConfigError, InconsistentGroupError, StreamsError
from millrace.kafka.client_settings import MembershipSettings
from millrace.kafka.connection import Connection
from millrace.kafka.membership.coordinator import NOT_HERE, Coordinator
from millrace.kafka.membership.state import MemberState, SharedState
from millrace.kafka.membership.topic_watch import TopicWatch
from millrace.kafka.membership.wire import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

__all__ = ["Joining"]

log = logging.getLogger("millrace.kafka.membership")

_PROTOCOL_TYPE: Final = "consumer"
_PROTOCOL_NAME: Final = "stream"
_REASON_LENGTH: Final = 255
_LOOK_EVERY_S: Final = 0.01
_TELL_EVERY_S: Final = 0.2


class Joining:
    """The transitions that a member's stream thread makes."""

    def __init__(
        self,
        shared: SharedState,
        connection: Connection,
        coordinator: Coordinator,
        watch: TopicWatch,
        settings: MembershipSettings,
        *,
        user_data: UserDataProvider,
        assign: LeaderAssignor,
    ) -> None:
        """Prepare a member that joins at the first `advance`."""
        self._shared = shared
        self._connection = connection
        self._coordinator = coordinator
        self._watch = watch
        self._settings = settings
        self._requests = GroupRequests(coordinator, watch, settings)
        self._user_data = user_data
        self._assign = assign
        self._attempts = 0
        """How often it has begun to rejoin: what earlier attempts still do is obsolete."""
        self._data: tuple[float, bytes] | None = None
        """When the stream thread made the member's user data last, and the data; None = not since it was asked to rejoin."""
        self._retry_at_s = 0.0
        self._backoff_ms = settings.retry_backoff_ms

    @property
    def requests(self) -> GroupRequests:
        """The member's requests."""
        return self._requests

    def wait_s(self) -> float | None:
        """Return the seconds until the next attempt to join; None if no attempt is due."""
        if self._shared.step is None and self._shared.state is MemberState.UNJOINED:
            return max(0.001, self._retry_at_s - time.monotonic())
        return None

    def advance(self) -> list[GroupEvent]:
        """Take the next step if it is due; return the events for the stream thread.

        Raises:
            StreamsError: See `GroupMember.poll`.
        """
        shared = self._shared
        with shared.lock:
            if shared.failure is not None:
                raise shared.failure
            if shared.lost:
                lost, shared.owned, shared.lost = shared.owned, frozenset(), False
                return [Lost(lost)]
            step, state = shared.step, shared.state
            if step is not None and not step.is_done:
                return []
            shared.step = None
        if state is MemberState.CLOSED:
            raise StreamsError(f"The member of group {self._settings.group_id} is closed")
        if step is None:
            wanted = state is MemberState.UNJOINED or shared.rejoin_reason is not None
            if not wanted:
                self._tell()
            elif time.monotonic() >= self._retry_at_s:
                self._data = time.monotonic(), self._user_data()
                self._begin()
            return []
        if step.exception is not None:
            self._retry_after(step.exception)
            return []
        joined, synced = step.value
        if synced is None:
            self._refused(joined.error_code, joined.member_id)
            return []
        return self._synced(synced)

    def _tell(self) -> None:
        """Make the user data for a rebalance that begins while this thread is busy."""
        now = time.monotonic()
        if self._data is None or now - self._data[0] >= _TELL_EVERY_S:
            self._data = now, self._user_data()

    def request_rejoin(self, reason: str) -> None:
        """Rejoin at the thread's next poll, with user data made then; not before, with that from before the request."""
        with self._shared.lock:
            self._data = None
            self._shared.request_rejoin(reason)

    def rebalance(self, *, busy: bool) -> None:
        """Rejoin because the group rebalances: at the thread's next poll, or now if it is busy and has nothing to give up."""
        shared, reason = self._shared, "the group is rebalancing"
        with shared.lock:
            settled = (
                shared.state is MemberState.STABLE and shared.step is None and shared.rejoin_reason in {None, reason}
            )
            shared.request_rejoin(reason)
            if settled and busy and time.monotonic() >= self._retry_at_s:
                self._begin()

    def _begin(self) -> None:
        """Begin to rejoin; in any thread."""
        shared, data = self._shared, self._data
        with shared.lock:  # a heartbeat's answer either came before, as the reason to join, or is ignored
            if shared.lost or shared.failure is not None or shared.step is not None or shared.closed or data is None:
                return  # `advance` reports that first
            reason, shared.rejoin_reason = shared.rejoin_reason, None
            subscription = MemberSubscription(
                topics=tuple(sorted(self._watch.topics)),
                user_data=data[1],
                owned=shared.owned,
                generation=shared.generation,
                rack_id=self._settings.rack_id,
            )
            shared.state = MemberState.JOINING
            self._attempts += 1
            shared.step = step = self._connection.start(
                self._rejoin, self._attempts, shared.member_id, subscription, reason or ""
            )
        step.add_both(lambda _: shared.changed.set())

    async def _rejoin(
        self, attempt: int, member_id: str, subscription: MemberSubscription, reason: str
    ) -> tuple[JoinGroupResponse, SyncGroupResponse | None]:
        """Join and, unless refused, assign if this member leads, and sync; on the IO thread. Return both answers."""
        joined = await self._requests.join(member_id, subscription, reason)
        if joined.error_code:
            self._watch.follow()
            return joined, None
        self._enter(joined)
        identity = self._in_generation(attempt)
        assignments: Mapping[str, bytes] = {}
        if joined.leader != joined.member_id:
            self._watch.follow()
        else:
            members = {
                member.member_id: decode_subscription(member.metadata, member.group_instance_id)
                for member in joined.members
            }
            await self._watch.assigned(frozenset(topic for member in members.values() for topic in member.topics))
            if not joined.skip_assignment:
                assignments = await self._assigned(joined.generation_id, members)
        return joined, await self._sync(*identity, assignments)

    async def _assigned(self, generation: int, members: Mapping[str, MemberSubscription]) -> dict[str, bytes]:
        """Return the assignments of the group's members."""
        group = self._settings.group_id
        log.info("Assigning generation %d of group %s to %d members", generation, group, len(members))
        assigning = self._assign(members)
        while not assigning.done():
            await self._connection.sleep(_LOOK_EVERY_S)
        try:
            return {member_id: encode_assignment(given) for member_id, given in assigning.result().items()}
        except (kafka_errors.KafkaError, OSError) as error:
            # It is no error of the coordinator, which would be asked again and again.
            raise StreamsError(f"The tasks of group {group} cannot be assigned: {error!r}") from error

    def _enter(self, response: JoinGroupResponse) -> None:
        """Note the generation that has begun; heartbeats keep the membership while the leader assigns."""
        shared = self._shared
        with shared.lock:
            if response.member_id != shared.member_id:
                shared.id_is_stored = False
            shared.generation, shared.member_id = response.generation_id, response.member_id
            shared.leader_id = response.leader
            if shared.state is MemberState.JOINING:  # it may be closed
                shared.state = MemberState.SYNCING

    async def _sync(
        self, generation: int, member_id: str, current: Callable[[], bool], assignments: Mapping[str, bytes]
    ) -> SyncGroupResponse:
        """Sync; on the IO thread."""
        synced = await self._requests.sync(generation, member_id, current, assignments)
        with self._shared.lock:
            if not synced.error_code and self._shared.member_id == member_id:
                self._shared.id_is_stored = True
        return synced

    def _in_generation(self, attempt: int) -> tuple[int, str, Callable[[], bool]]:
        """Return generation and member id, and a function that returns whether they still belong to the latest attempt.

        The next attempt may have the same: a coordinator that failed may count a generation again.
        """
        identity = self._shared.generation, self._shared.member_id
        return *identity, lambda: self._attempts == attempt and self._shared.heartbeat_identity() == identity

    def _synced(self, response: SyncGroupResponse) -> list[GroupEvent]:
        if response.error_code:
            self._refused(response.error_code, "")
            return []
        if not response.assignment:
            self._left_out()
        assignment = decode_assignment(response.assignment)
        now_owned = frozenset(assignment.partitions)
        shared = self._shared
        with shared.lock:
            if shared.state is not MemberState.SYNCING:  # the broker has removed it since
                return []
            revoked, added = shared.owned - now_owned, now_owned - shared.owned
            shared.owned = now_owned
            shared.state = MemberState.STABLE
            self._data = None
            self._backoff_ms = self._settings.retry_backoff_ms
            generation = shared.generation
        log.info(
            "Generation %d of group %s gives this member %d partitions: %d added, %d revoked",
            *(generation, self._settings.group_id, len(now_owned), len(added), len(revoked)),
        )
        events: list[GroupEvent] = []
        if revoked:
            events.append(Revoked(revoked))
            shared.request_rejoin(f"{len(revoked)} partitions were revoked and can now go to other members")
        events.append(Assigned(assignment.partitions, added, assignment.user_data, generation))
        return events

    def _left_out(self) -> None:
        """Rejoin after a while: the generation has this member, but its leader did not know that and assigned it nothing at all.

        A coordinator that failed may count a generation again, with other member ids, and accept the leader's assignment of the
        first one. Java's member ends with an IllegalStateException then.
        """
        shared = self._shared
        log.warning(
            "The leader of group %s has not assigned anything to member %s in generation %d, not even nothing: it rejoins",
            *(self._settings.group_id, shared.member_id, shared.generation),
        )
        self._retry_at_s = time.monotonic() + self._settings.retry_backoff_max_ms / 1000
        shared.request_rejoin("the group's leader did not know this member")

    def _refused(self, code: int, member_id: str) -> None:
        """Handle an error answer to JoinGroup or SyncGroup: retry or raise."""
        shared = self._shared
        with shared.lock:
            shared.state = MemberState.UNJOINED
            if code == 79:  # MEMBER_ID_REQUIRED: the broker assigned an id to join with
                shared.member_id = member_id
                return
        final = refusal(code, self._settings)
        if final is not None:
            raise final
        if code in {22, 25}:
            shared.reset("it was removed while the group rebalanced", keep_member_id=code == 22)
        elif code == 82:
            shared.fenced()
        elif code in NOT_HERE:
            self._retry_after(f"error {code}")
        elif code != 27:  # REBALANCE_IN_PROGRESS: rejoin at once
            self._retry_after(kafka_errors.for_code(code).__name__)

    def _retry_after(self, problem: object) -> None:
        if isinstance(problem, StreamsError):
            raise problem
        if isinstance(problem, BaseException) and not isinstance(problem, kafka_errors.KafkaError | OSError):
            raise StreamsError(f"Joining group {self._settings.group_id} failed: {problem}") from problem
        log.info("Joining group %s again: %s", self._settings.group_id, problem)
        self._coordinator.forget(problem)
        with self._shared.lock:
            self._shared.state = MemberState.UNJOINED
            self._retry_at_s = time.monotonic() + self._backoff_ms / 1000
            self._backoff_ms = min(self._backoff_ms * 2, self._settings.retry_backoff_max_ms)


class GroupRequests:
    """JoinGroup, SyncGroup and LeaveGroup of one member."""

    def __init__(self, coordinator: Coordinator, watch: TopicWatch, settings: MembershipSettings) -> None:
        """Use the member's coordinator and topics."""
        self._coordinator = coordinator
        self._watch = watch
        self._settings = settings
        # The broker answers after all members have joined or synced, for which they have the rebalance timeout.
        self._timeout_ms = max(settings.request_timeout_ms, settings.max_poll_interval_ms + 5_000)

    async def join(self, member_id: str, subscription: MemberSubscription, reason: str) -> JoinGroupResponse:
        """Send JoinGroup and return its answer.

        Args:
            member_id: Empty for a new member.
            subscription: Its topics are replaced if the patterns match other ones by now.
            reason: For the broker's log.

        Raises:
            AuthorizationError: The principal may not use the group.
            kafka.errors.KafkaError: The coordinator did not answer.
        """
        topics = self._watch.topics
        await self._watch.refresh()
        if self._watch.topics != topics or not subscription.topics:
            subscription = replace(subscription, topics=tuple(sorted(self._watch.topics)))
        protocol = JoinGroupRequest.JoinGroupRequestProtocol
        request = JoinGroupRequest(
            group_id=self._settings.group_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms,
            member_id=member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[protocol(name=_PROTOCOL_NAME, metadata=encode_subscription(subscription))],
            reason=reason[:_REASON_LENGTH],
            max_version=9,
        )
        response: JoinGroupResponse = await self._coordinator.send(request, self._timeout_ms)
        return response

    async def sync(
        self, generation: int, member_id: str, current: Callable[[], bool], assignments: Mapping[str, bytes]
    ) -> SyncGroupResponse:
        """Send SyncGroup and return its answer.

        Args:
            generation: The member's.
            member_id: The member's.
            current: Whether to send it still, once the coordinator is found: not if the member has left that generation, even
                if it has joined one with the same number since.
            assignments: By member id; empty unless this member leads.

        Raises:
            kafka.errors.Cancelled: The generation is over for this member.
            AuthorizationError: The principal may not use the group.
            kafka.errors.KafkaError: The coordinator did not answer.
        """
        item = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            group_id=self._settings.group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=_PROTOCOL_NAME,
            assignments=[item(member_id=member, assignment=data) for member, data in assignments.items()],
            max_version=5,
        )
        return await self._coordinator.send(request, self._timeout_ms, wanted=current)

    async def leave(self, member_id: str, reason: str, timeout_ms: int) -> None:
        """Send LeaveGroup; a failure is only logged, as the session timeout has the same effect later.

        Args:
            member_id: Empty for a static member that has not learned its id.
            reason: For the broker's log.
            timeout_ms: How long it may take.
        """
        request = LeaveGroupRequest(
            group_id=self._settings.group_id,
            member_id=member_id,
            members=[
                LeaveGroupRequest.MemberIdentity(
                    member_id=member_id,
                    group_instance_id=self._settings.instance_id,
                    reason=reason[:_REASON_LENGTH],
                )
            ],
        )
        try:
            await self._coordinator.send(request, timeout_ms, Deadline(timeout_ms / 1000))
        except kafka_errors.KafkaError as error:
            log.info("Leaving group %s failed: %s", self._settings.group_id, error)


def refusal(code: int, settings: MembershipSettings) -> StreamsError | None:
    """Return the error to raise for an error code of JoinGroup or SyncGroup; None if rejoining may help."""
    group = settings.group_id
    if code == 23:
        return InconsistentGroupError(
            f"Group {group} has members that are not Kafka Streams applications, or uses another group.protocol: "
            "use another application.id, or stop those members"
        )
    if code == 26:
        return ConfigError(
            f"session.timeout.ms={settings.session_timeout_ms} is outside the range that the broker allows "
            "(group.min.session.timeout.ms to group.max.session.timeout.ms)"
        )
    if code == 30:
        return AuthorizationError(f"The principal may not read group {group}: allow READ on that group")
    if code in {24, 81}:
        return ConfigError(
            f"The broker does not admit this member to group {group}: {kafka_errors.for_code(code).message}"
        )
    return None
