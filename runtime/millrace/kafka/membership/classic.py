"""`GroupMember`: a member of a consumer group by the classic protocol, as Kafka Streams is one.

Protocol type `consumer`, protocol name `stream`, cooperative (KIP-429): a member keeps what it owns while the group
rebalances; what is to move is first revoked from its owner, which then rejoins, and only the next generation gives it to
another. The leader's assignor must hold to that (`millrace.assignment` does).

Threads: all transitions but three are made in `poll`, on the stream thread, which also runs the callbacks. The IO thread
sends requests and heartbeats; it may only `request_rejoin`, `reset` the membership (the broker removed us) or `fail`, under
the lock.

State          what is in flight          next
UNJOINED       nothing                    `poll` sends JoinGroup → JOINING
JOINING        JoinGroup                  answer → (leader: assign) send SyncGroup → SYNCING; error → UNJOINED
SYNCING        SyncGroup                  answer → STABLE with events; error → UNJOINED
STABLE         heartbeats                 rejoin requested → JOINING; removed → UNJOINED with `Lost`
CLOSED         nothing                    —
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.future import Future
from kafka.protocol.consumer import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from millrace.errors import (
    AuthorizationError,
    BrokerUnreachableError,
    ConfigError,
    InconsistentGroupError,
    StreamsError,
    TaskMigratedError,
)
from millrace.kafka.check import check_connection
from millrace.kafka.clients import ClientSettings
from millrace.kafka.connection import Connection
from millrace.kafka.membership.api import (
    Assigned,
    GroupEvent,
    LeaderAssignor,
    Lost,
    MemberSubscription,
    Revoked,
    TopicSubscription,
    UserDataProvider,
)
from millrace.kafka.membership.coordinator import NOT_HERE, Coordinator
from millrace.kafka.membership.group_metadata import check_layout, encode_group_metadata
from millrace.kafka.membership.heartbeat import Heartbeats, fenced
from millrace.kafka.membership.offsets import GroupOffsets, MigratedCommitError
from millrace.kafka.membership.payloads import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from millrace.kafka.membership.watch import TopicWatch
from millrace.records import OffsetAndMetadata, TopicPartition

log = logging.getLogger("millrace.kafka.membership")

_PROTOCOL_TYPE: Final = "consumer"
_PROTOCOL_NAME: Final = "stream"
_NO_GENERATION: Final = -1


class MemberState(Enum):
    """Where a member is in its life."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"
    CLOSED = "closed"


class GroupMember:
    """One stream thread's membership in its application's group.

    Example::

        member = GroupMember(clients, 1, TopicSubscription.of({"words"}), user_data=join_data, assign=assign)
        member.start()
        for event in member.poll(0.1):
            handle(event)
    """

    def __init__(
        self,
        clients: ClientSettings,
        thread: int,
        subscription: TopicSubscription,
        *,
        user_data: UserDataProvider,
        assign: LeaderAssignor,
    ) -> None:
        """Describe a member; `start` connects it.

        Args:
            clients: The process's client settings.
            thread: The stream thread's number, from 1.
            subscription: What the topology reads.
            user_data: Gives the member's SubscriptionInfo each time it joins.
            assign: Assigns all members' tasks when this member leads.
        """
        self._clients = clients
        self._thread = thread
        self._settings = clients.membership(thread)
        self._subscription = subscription
        self._user_data = user_data
        self._assign = assign
        self._lock = threading.RLock()
        self._changed = threading.Event()
        self._state = MemberState.UNJOINED
        self._generation, self._member_id, self._leader_id = _NO_GENERATION, "", ""
        self._owned: frozenset[TopicPartition] = frozenset()
        self._lost = False
        self._failure: StreamsError | None = None
        self._rejoin_reason: str | None = "the member starts"
        self._step: Future | None = None
        self._retry_at_s = 0.0
        self._backoff_ms = self._settings.retry_backoff_ms
        self._connection: Connection

    # Life cycle

    def start(self, timeout_s: float = 30.0) -> None:
        """Connect to the brokers; the first `poll` joins the group.

        Raises:
            BrokerUnreachableError: No broker answered in time.
            AuthenticationError: The credentials were refused, or the security protocol is not the listener's.
            UnsupportedFeatureError: This confluent-kafka cannot commit this member's offsets in transactions.
        """
        check_layout()
        check_connection(self._clients.config, timeout_s)
        self._connection = Connection(self._clients.kafka_python(self._thread))
        try:
            self._connection.manager.bootstrap(int(timeout_s * 1000))
        except (kafka_errors.KafkaError, OSError) as error:
            self._connection.close()
            servers = ",".join(self._clients.config.bootstrap_servers)
            raise BrokerUnreachableError(
                f"The brokers of bootstrap.servers={servers} stopped answering ({error}): check that they run"
            ) from error
        self._coordinator = Coordinator(self._connection, self._settings, lambda: self.closed)
        self._offsets = GroupOffsets(self._connection, self._coordinator, self._settings)
        self._watch = TopicWatch(self._connection, self._coordinator, self, self._subscription)
        self._heartbeats = Heartbeats(self._connection, self._coordinator, self._settings, self)
        self._connection.start(self._heartbeats.run)
        self._connection.start(self._watch.run, self._settings.metadata_max_age_ms)

    def close(self, *, leave_group: bool | None = None, timeout_s: float = 5.0) -> None:
        """End the membership; may be called more than once.

        Args:
            leave_group: Whether to give the tasks up at once. None: dynamic members do, static members do not, so that
                they get their tasks back if they return within the session time-out.
            timeout_s: How long leaving may take; it is given up silently, as the session time-out does the same.
        """
        if self.closed:
            return
        leave = self._settings.instance_id is None if leave_group is None else leave_group
        if hasattr(self, "_connection"):
            if leave:
                self._leave("the application closes", timeout_s)
            self._state = MemberState.CLOSED
            self._connection.close()
        self._state = MemberState.CLOSED

    def leave(self, reason: str = "asked to leave", timeout_s: float = 5.0) -> None:
        """Leave the group, static or not; what is owned is dropped without an event. The next `poll` joins anew."""
        self._leave(reason, timeout_s)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._state is MemberState.CLOSED

    # What the member is

    @property
    def state(self) -> MemberState:
        """Where the member is in its life."""
        return self._state

    @property
    def rebalancing(self) -> bool:
        """Whether the group is between generations for this member: do not commit in a transaction now."""
        return self._state is not MemberState.STABLE

    @property
    def generation(self) -> int:
        """The group's generation, -1 when not a member."""
        return self._generation

    @property
    def member_id(self) -> str:
        """The id the broker gave this member, empty before it did."""
        return self._member_id

    @property
    def instance_id(self) -> str | None:
        """The static member's id (`group.instance.id`-<thread>), None for dynamic members."""
        return self._settings.instance_id

    @property
    def is_leader(self) -> bool:
        """Whether this member assigns for the group."""
        return bool(self._member_id) and self._leader_id == self._member_id

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions this member owns, sorted."""
        return tuple(sorted(self._owned))

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """The topics read now, those that match the patterns included."""
        return self._watch.topics

    def group_metadata(self) -> bytes:
        """Return this member's identity for `Producer.send_offsets_to_transaction`.

        Raises:
            TaskMigratedError: The member is in no generation, and the broker would take anything from nobody.
        """
        with self._lock:
            if self._generation == _NO_GENERATION or self._lost:
                raise self._not_a_member()
            return encode_group_metadata(
                self._settings.group_id, self._generation, self._member_id, self._settings.instance_id
            )

    # The stream thread's side

    def poll(self, timeout_s: float = 0.0) -> list[GroupEvent]:
        """Take part in the group, and return what changed; call it at least every `max.poll.interval.ms`.

        Args:
            timeout_s: How long to wait for an event; 0 never waits for the network.

        Raises:
            FencedInstanceIdError: Another member has taken this static member's place.
            AuthorizationError: The group may not be read.
            InconsistentGroupError: The group is not one of Streams applications by the classic protocol.
            ConfigError: The broker does not take the session time-out, or the group is full.
            StreamsError: What the assignor raised, or an error that does not pass.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self._heartbeats.polled()
            self._changed.clear()
            events = self._advance()
            now = time.monotonic()
            if events or now >= deadline:
                return events
            wait_s = deadline - now
            if self._step is None and self._state is MemberState.UNJOINED:
                wait_s = min(wait_s, max(0.001, self._retry_at_s - now))
            self._changed.wait(wait_s)

    def request_rejoin(self, reason: str) -> None:
        """Rejoin at the next `poll`, for example for a follow-up or probing rebalance."""
        with self._lock:
            if self._rejoin_reason is None:
                log.info("Member %s of group %s will rejoin: %s", self._member_id, self._settings.group_id, reason)
                self._rejoin_reason = reason
        self._changed.set()

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Read other topics from the next rebalance on, which this asks for.

        Raises:
            ConfigError: A pattern is not a regular expression.
        """
        self._watch.subscribe(subscription)
        self.request_rejoin("the subscription changed")

    def commit_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float = 60.0) -> None:
        """Commit offsets as this member of this generation (at-least-once).

        Raises:
            TaskMigratedError: The group has gone on without this member.
            RebalanceInProgressError: The group is assigning; commit again when `rebalancing` is over.
            AuthorizationError: A topic or the group may not be read.
            StreamsTimeoutError: The coordinator did not take the commit in time.
        """
        if not offsets:
            return
        with self._lock:
            if self._generation == _NO_GENERATION or self._lost:
                raise self._not_a_member()
            identity = self._generation, self._member_id
        try:
            self._connection.run(self._offsets.commit, offsets, *identity, timeout_s)
        except MigratedCommitError as error:
            if error.code == 82:
                self.fail(fenced(self._settings))
            elif identity == (self._generation, self._member_id):
                self.reset("a commit was refused", keep_member_id=error.code == 22)
            raise

    def committed(
        self, partitions: Collection[TopicPartition], timeout_s: float = 60.0
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets with their metadata; partitions without one are left out.

        Waits for transactions that are open on them (a predecessor's), so that what is read is what will stay.

        Raises:
            AuthorizationError: A topic or the group may not be read.
            StreamsTimeoutError: The coordinator did not answer in time, or a transaction stayed open.
        """
        return self._connection.run(self._offsets.fetch, list(partitions), timeout_s)

    # The IO thread's side

    def beating_as(self) -> tuple[int, str] | None:
        """Return generation and member id while heartbeats are due."""
        with self._lock:
            if self._state in {MemberState.STABLE, MemberState.SYNCING} and self._generation != _NO_GENERATION:
                return self._generation, self._member_id
            return None

    def reset(self, reason: str, *, keep_member_id: bool) -> None:
        """Forget the generation: the group has gone on, and what was owned may be another's."""
        with self._lock:
            log.warning(
                "Member %s is no longer in generation %d of group %s: %s",
                *(self._member_id, self._generation, self._settings.group_id, reason),
            )
            self._generation = _NO_GENERATION
            self._leader_id = ""
            if not keep_member_id:
                self._member_id = ""
            self._lost = self._lost or bool(self._owned)
            if self._state is MemberState.JOINING:
                return  # what is in flight joins anew; forgetting it would leave a member behind that nobody is
            self._rejoin_reason = self._rejoin_reason or reason
            if self._state is not MemberState.CLOSED:
                self._state = MemberState.UNJOINED
                self._step = None
        self._changed.set()

    def fail(self, error: StreamsError) -> None:
        """End the membership with an error, which every `poll` raises from now on."""
        with self._lock:
            self._failure = error
            self._generation = _NO_GENERATION
            self._state = MemberState.UNJOINED
            self._step = None
        self._changed.set()

    async def leave_stuck(self) -> None:
        """Leave because the stream thread does not poll; a static member only falls silent, until its session ends."""
        if self._settings.instance_id is None:
            await self._send_leave("max.poll.interval.ms was exceeded", self._settings.request_timeout_ms)
        self.reset("max.poll.interval.ms was exceeded", keep_member_id=False)

    # Transitions

    def _advance(self) -> list[GroupEvent]:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._lost:
                lost, self._owned, self._lost = self._owned, frozenset(), False
                return [Lost(lost)]
            step, state = self._step, self._state
            if step is not None and not step.is_done:
                return []
            self._step = None
        if state is MemberState.CLOSED:
            raise StreamsError(f"The member of group {self._settings.group_id} is closed")
        if step is None:
            wanted = state is MemberState.UNJOINED or self._rejoin_reason is not None
            if wanted and time.monotonic() >= self._retry_at_s:
                self._join()
            return []
        if step.exception is not None:
            self._retry_after(step.exception)
            return []
        return self._joined(step.value) if state is MemberState.JOINING else self._synced(step.value)

    def _start_step(self, state: MemberState, function: Any, *args: Any) -> None:
        with self._lock:
            self._state = state
            self._step = step = self._connection.start(function, *args)
        step.add_both(lambda _: self._changed.set())

    def _join(self) -> None:
        with self._lock:
            reason, self._rejoin_reason = self._rejoin_reason, None
            generation, member_id, owned = self._generation, self._member_id, self._owned
        subscription = MemberSubscription(
            topics=tuple(sorted(self._watch.topics)),
            user_data=self._user_data(),
            owned=owned,
            generation=generation,
            rack_id=self._settings.rack_id,
        )
        self._start_step(MemberState.JOINING, self._send_join, member_id, subscription, reason or "")

    async def _send_join(self, member_id: str, subscription: MemberSubscription, reason: str) -> Any:
        topics = self._watch.topics
        await self._watch.refresh()
        if self._watch.topics != topics or not subscription.topics:
            matched = tuple(sorted(self._watch.topics))
            subscription = MemberSubscription(
                matched, subscription.user_data, subscription.owned, subscription.generation, None, subscription.rack_id
            )
        protocol = JoinGroupRequest.JoinGroupRequestProtocol
        request = JoinGroupRequest(
            group_id=self._settings.group_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms,
            member_id=member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocols=[protocol(name=_PROTOCOL_NAME, metadata=encode_subscription(subscription))],
            reason=reason[:255],
            max_version=9,
        )
        # The broker answers when all members have joined, for which they have the rebalance time-out.
        timeout_ms = max(self._settings.request_timeout_ms, self._settings.max_poll_interval_ms + 5_000)
        response = await self._coordinator.send(request, timeout_ms)
        if response.error_code == 0 and response.leader == response.member_id:
            members = [decode_subscription(member.metadata) for member in response.members]
            await self._watch.assigned(frozenset(topic for member in members for topic in member.topics))
        else:
            self._watch.follow()
        return response

    def _joined(self, response: Any) -> list[GroupEvent]:
        if response.error_code:
            self._refused(response.error_code, response.member_id)
            return []
        with self._lock:
            self._generation, self._member_id = response.generation_id, response.member_id
            self._leader_id = response.leader
            self._state = MemberState.SYNCING  # heartbeats keep the member while the leader thinks
        assignments: dict[str, bytes] = {}
        if self.is_leader and not response.skip_assignment:
            members = {
                member.member_id: decode_subscription(member.metadata, member.group_instance_id)
                for member in response.members
            }
            log.info("Assigning generation %d of group %s to %d members", *self._described(), len(members))
            try:
                given = self._assign(members)
            except BaseException:
                with self._lock:
                    self._state = MemberState.UNJOINED
                raise
            assignments = {member_id: encode_assignment(assignment) for member_id, assignment in given.items()}
        with self._lock:
            if self._state is not MemberState.SYNCING:
                return []  # removed from the group while assigning
            self._start_step(MemberState.SYNCING, self._send_sync, assignments)
        return []

    async def _send_sync(self, assignments: Mapping[str, bytes]) -> Any:
        item = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            group_id=self._settings.group_id,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=_PROTOCOL_NAME,
            assignments=[item(member_id=member_id, assignment=data) for member_id, data in assignments.items()],
            max_version=5,
        )
        timeout_ms = max(self._settings.request_timeout_ms, self._settings.max_poll_interval_ms + 5_000)
        return await self._coordinator.send(request, timeout_ms)

    def _synced(self, response: Any) -> list[GroupEvent]:
        if response.error_code:
            self._refused(response.error_code, "")
            return []
        assignment = decode_assignment(response.assignment)
        now_owned = frozenset(assignment.partitions)
        with self._lock:
            revoked, added = self._owned - now_owned, now_owned - self._owned
            self._owned = now_owned
            self._state = MemberState.STABLE
            self._backoff_ms = self._settings.retry_backoff_ms
            generation = self._generation
        log.info(
            "Generation %d of group %s gives this member %d partitions: %d added, %d revoked",
            *(generation, self._settings.group_id, len(now_owned), len(added), len(revoked)),
        )
        events: list[GroupEvent] = []
        if revoked:
            events.append(Revoked(revoked))
            self.request_rejoin(f"{len(revoked)} partitions were revoked and can go to other members now")
        events.append(Assigned(assignment.partitions, added, assignment.user_data, generation))
        return events

    def _refused(self, code: int, member_id: str) -> None:
        """Act on an error answer to JoinGroup or SyncGroup: go on, or raise."""
        group = self._settings.group_id
        with self._lock:
            self._state = MemberState.UNJOINED
            if code == 79:  # MEMBER_ID_REQUIRED: the broker gave an id to join with
                self._member_id = member_id
                return
        if code in {22, 25}:
            self.reset("it was removed while the group rebalanced", keep_member_id=code == 22)
        elif code == 82:
            self.fail(fenced(self._settings))
            raise fenced(self._settings)
        elif code == 23:
            raise InconsistentGroupError(
                f"Group {group} has members that are not Kafka Streams applications, or uses another group.protocol: "
                "use another application.id, or end those members"
            )
        elif code == 26:
            raise ConfigError(
                f"session.timeout.ms={self._settings.session_timeout_ms} is outside of what the broker allows "
                "(group.min.session.timeout.ms to group.max.session.timeout.ms)"
            )
        elif code == 30:
            raise AuthorizationError(f"The principal may not read group {group}: allow READ on that group")
        elif code in {24, 81}:
            raise ConfigError(
                f"The broker does not let this member into group {group}: {kafka_errors.for_code(code).message}"
            )
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
        with self._lock:
            self._state = MemberState.UNJOINED
            self._retry_at_s = time.monotonic() + self._backoff_ms / 1000
            self._backoff_ms = min(self._backoff_ms * 2, self._settings.retry_backoff_max_ms)

    # Leaving

    def _leave(self, reason: str, timeout_s: float) -> None:
        if self._member_id and self._failure is None:
            try:
                self._connection.run(self._send_leave, reason, int(timeout_s * 1000))
            except (kafka_errors.KafkaError, StreamsError) as error:
                log.info("Leaving group %s failed: %s", self._settings.group_id, error)
        with self._lock:
            self._generation, self._member_id, self._leader_id = _NO_GENERATION, "", ""
            self._owned, self._lost = frozenset(), False
            if self._state is not MemberState.CLOSED:
                self._state = MemberState.UNJOINED
                self._step = None

    async def _send_leave(self, reason: str, timeout_ms: int) -> None:
        request = LeaveGroupRequest(
            group_id=self._settings.group_id,
            member_id=self._member_id,
            members=[
                LeaveGroupRequest.MemberIdentity(
                    member_id=self._member_id, group_instance_id=self._settings.instance_id, reason=reason[:255]
                )
            ],
        )
        try:
            await self._coordinator.send(request, timeout_ms, time.monotonic() + timeout_ms / 1000)
        except kafka_errors.KafkaError as error:
            log.info("Leaving group %s failed: %s", self._settings.group_id, error)

    def _described(self) -> tuple[int, str]:
        return self._generation, self._settings.group_id

    def _not_a_member(self) -> TaskMigratedError:
        return TaskMigratedError(
            f"This thread is not a member of group {self._settings.group_id} at the moment: its tasks may be others' now"
        )
