"""`GroupMember`: a member of a consumer group with the classic protocol, as in Kafka Streams.

Rebalancing is cooperative (KIP-429): a member keeps what it owns while the group rebalances. Partitions that move are first
revoked from their owner, which then rejoins, and only the next generation gives them to another member. The leader's assignor
must comply with that, as `millrace.assignment` does.

Stream threads use this module only; `joining` has the protocol, `state` what is shared with the IO thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import kafka.errors as kafka_errors

from millrace.assignment.protocol import GroupEvent, LeaderAssignor, TopicSubscription, UserDataProvider
from millrace.deadline import Deadline
from millrace.errors import BrokerUnreachableError, RebalanceInProgressError, StreamsError
from millrace.kafka.admin_requests import given_up
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.connection import Connection
from millrace.kafka.connection_check import check_connection
from millrace.kafka.membership.coordinator import Coordinator
from millrace.kafka.membership.heartbeat import Heartbeats, fenced
from millrace.kafka.membership.joining import Joining
from millrace.kafka.membership.offsets import CommittedOffsets, GroupOffsets, MigratedCommitError
from millrace.kafka.membership.state import MemberState, SharedState
from millrace.kafka.membership.topic_watch import TopicWatch
from millrace.kafka.membership.wire import check_group_metadata, encode_group_metadata
from millrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["GroupMember"]

log = logging.getLogger("millrace.kafka.membership")


class GroupMember:
    """The membership of one stream thread in its application's group.

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
        """Prepare a member; `start` connects it.

        Args:
            clients: The process's client settings.
            thread: The stream thread's number, from 1.
            subscription: The topics that the topology reads.
            user_data: Returns the member's SubscriptionInfo each time it joins.
            assign: Assigns the tasks of all members when this member leads.
        """
        self._clients = clients
        self._thread = thread
        self._settings = clients.membership(thread)
        self._subscription = subscription
        self._user_data = user_data
        self._assign = assign
        self._shared = SharedState(self._settings)
        self._connection: Connection
        self._connected = False

    # Life cycle

    def start(self, timeout_s: float = 30.0) -> None:
        """Connect to the brokers; the first `poll` joins the group.

        Raises:
            BrokerUnreachableError: No broker answered in time.
            AuthenticationError: The credentials were refused, or the listener has another security protocol.
            UnsupportedFeatureError: This confluent-kafka cannot commit this member's offsets in transactions.
        """
        check_group_metadata()
        check_connection(self._clients, timeout_s)
        self._connection = Connection(self._clients.kafka_python(self._thread))
        self._connected = True  # before it is used: `close` has to close it even if a step fails
        try:
            self._connection.manager.bootstrap(int(timeout_s * 1000))
        except (kafka_errors.KafkaError, OSError) as error:
            self._connection.close()
            self._connected = False
            servers = ",".join(self._clients.config.bootstrap_servers)
            raise BrokerUnreachableError(
                f"The brokers of bootstrap.servers={servers} stopped answering ({error}): check that they are running"
            ) from error
        shared, settings = self._shared, self._settings
        self._coordinator = Coordinator(self._connection, settings, lambda: shared.closed)
        self._offsets = GroupOffsets(self._connection, self._coordinator, settings)
        self._watch = TopicWatch(self._connection, self._coordinator, shared, self._subscription)
        self._joining = Joining(
            shared,
            self._connection,
            self._coordinator,
            self._watch,
            settings,
            user_data=self._user_data,
            assign=self._assign,
        )
        self._heartbeats = Heartbeats(self._connection, self._coordinator, settings, shared, self._leave_stuck)
        self._connection.start(self._heartbeats.run)
        self._connection.start(self._watch.run, settings.metadata_max_age_ms)

    def close(self, *, leave_group: bool | None = None, timeout_s: float = 5.0) -> None:
        """End the membership; idempotent.

        Args:
            leave_group: Whether to give up the tasks at once. None: dynamic members do; static members do not, and get
                their tasks back if they return within the session timeout.
            timeout_s: How long leaving may take. If that is not enough, the session timeout ends the membership.
        """
        if self.closed:
            return
        leave = self._settings.instance_id is None if leave_group is None else leave_group
        if self._connected:
            if leave:
                self._leave("the application closes", timeout_s)
            self._shared.state = MemberState.CLOSED
            self._connection.close()
        self._shared.state = MemberState.CLOSED

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._shared.closed

    # State

    @property
    def state(self) -> MemberState:
        """The member's current state."""
        return self._shared.state

    @property
    def rebalancing(self) -> bool:
        """Whether this member is between generations, when it must not commit in a transaction."""
        return self._shared.state is not MemberState.STABLE

    @property
    def generation(self) -> int:
        """The group's generation; -1 if not a member."""
        return self._shared.generation

    @property
    def member_id(self) -> str:
        """The id that the broker assigned to this member; empty before that."""
        return self._shared.member_id

    @property
    def instance_id(self) -> str | None:
        """The static member's id (`group.instance.id`-<thread>); None for dynamic members."""
        return self._settings.instance_id

    @property
    def is_leader(self) -> bool:
        """Whether this member assigns for the group."""
        return self._shared.is_leader

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions this member owns, sorted."""
        return tuple(sorted(self._shared.owned))

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """The topics read now, including those that match patterns."""
        return self._watch.topics

    def group_metadata(self) -> bytes:
        """Return this member's identity for `Producer.send_offsets_to_transaction`.

        Raises:
            TaskMigratedError: The member is not in a generation; the broker would accept a commit without one from anybody.
        """
        generation, member_id = self._shared.identity()
        return encode_group_metadata(self._settings.group_id, generation, member_id, self._settings.instance_id)

    # Called by the stream thread

    def poll(self, timeout_s: float = 0.0) -> list[GroupEvent]:
        """Take part in the group and return what has changed; call this at least every `max.poll.interval.ms`.

        Args:
            timeout_s: How long to wait for an event; with 0 it never waits for the network.

        Raises:
            FencedInstanceIdError: Another member has replaced this static member.
            AuthorizationError: The group may not be read.
            InconsistentGroupError: The group has members other than Streams applications with the classic protocol.
            ConfigError: The broker does not accept the session timeout, or the group is full.
            StreamsError: Raised by the assignor, or a permanent error.
        """
        deadline = Deadline(timeout_s)
        changed = self._shared.changed
        while True:
            self._heartbeats.polled()
            changed.clear()
            events = self._joining.advance()
            if events or deadline.passed:
                return events
            retry_s = self._joining.wait_s()
            changed.wait(deadline.left_s() if retry_s is None else min(deadline.left_s(), retry_s))

    def request_rejoin(self, reason: str) -> None:
        """Rejoin at the next `poll`, for example for a follow-up or probing rebalance."""
        self._shared.request_rejoin(reason)

    def reset(self, reason: str, *, keep_member_id: bool) -> None:
        """Forget the generation and rejoin because the thread has dropped its tasks; the owned partitions are `Lost`."""
        self._shared.reset(reason, keep_member_id=keep_member_id)

    def commit_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float = 60.0) -> None:
        """Commit offsets as this member of this generation (at-least-once).

        Raises:
            TaskMigratedError: The group has moved on without this member.
            RebalanceInProgressError: The group is assigning; commit again once `rebalancing` is false.
            AuthorizationError: A topic or the group may not be read.
            StreamsTimeoutError: The coordinator did not accept the commit in time.
        """
        if not offsets:
            return
        identity = self._shared.identity()
        try:
            self._connection.run_unless(given_up, self._offsets.commit, offsets, *identity, timeout_s)
        except MigratedCommitError as error:
            shared = self._shared
            if error.code == 22 and shared.state is MemberState.JOINING:
                raise RebalanceInProgressError(
                    f"Group {self._settings.group_id} has started its next generation: offsets are committed in that one"
                ) from error
            if error.code == 82:
                shared.fail(fenced(self._settings))
            elif identity == (shared.generation, shared.member_id):
                shared.reset("a commit was refused", keep_member_id=error.code == 22)
            raise

    def ask_committed(self, partitions: Collection[TopicPartition], timeout_s: float = 60.0) -> CommittedOffsets:
        """Request the group's committed offsets with their metadata, without waiting for them.

        Each becomes known once no transaction of a predecessor is open on it, so that it can no longer change.
        """
        committed = CommittedOffsets(partitions)
        self._connection.start(self._offsets.fetch, committed, timeout_s).add_errback(committed.fail)
        return committed

    # Leaving

    def _leave(self, reason: str, timeout_s: float) -> None:
        shared = self._shared
        member_id = shared.leaving_member_id()
        if member_id is not None:
            try:
                leave, timeout_ms = self._joining.requests.leave, int(timeout_s * 1000)
                self._connection.run(leave, member_id, reason, timeout_ms)
            except (kafka_errors.KafkaError, StreamsError) as error:
                log.info("Leaving group %s failed: %s", self._settings.group_id, error)
        shared.left()

    async def _leave_stuck(self) -> None:
        """Leave because the stream thread does not poll; a static member only stops its heartbeats until its session expires."""
        reason = "max.poll.interval.ms was exceeded"
        if self._settings.instance_id is None:
            timeout_ms = self._settings.request_timeout_ms
            await self._joining.requests.leave(self._shared.member_id, reason, timeout_ms)
        self._shared.reset(reason, keep_member_id=False)
