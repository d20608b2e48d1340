"""`GroupMember`: a member of a consumer group with the classic protocol, as in Kafka Streams.

Rebalancing is cooperative (KIP-429): a member keeps what it owns while the group rebalances. Partitions that move are first
revoked from their owner, which then rejoins, and only the next generation gives them to another member. The leader's assignor
must comply with that, as `millrace.assignment` does.

Stream threads only use this module; `joining` has the protocol, `state` the state shared with the IO thread.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.assignment.protocol import GroupEvent, LeaderAssignor, TopicSubscription, UserDataProvider
from millrace.errors import RebalanceInProgressError
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.membership.base import BaseMember
from millrace.kafka.membership.classic.heartbeat import Heartbeats
from millrace.kafka.membership.classic.joining import Joining
from millrace.kafka.membership.offsets import MigratedCommitError
from millrace.kafka.membership.state import NO_GENERATION, MemberState, SharedState
from millrace.kafka.membership.topic_watch import TopicWatch
from millrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["GroupMember"]


class GroupMember(BaseMember):
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
            assign: Begins to assign the tasks of all members when this member leads.
        """
        settings = clients.membership(thread)
        super().__init__(clients, thread, settings, SharedState(settings))
        self._subscription = subscription
        self._user_data = user_data
        self._assign = assign

    def _begin(self) -> None:
        shared, settings = self._shared, self._settings
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
        self._heartbeats = Heartbeats(
            self._connection, self._coordinator, settings, shared, self._joining.rebalance, self._leave_stuck
        )
        self._in_background(self._heartbeats.run)
        self._in_background(self._watch.run, settings.metadata_max_age_ms)

    # State

    @property
    def rebalancing(self) -> bool:
        """Whether this member is between generations, when it must not commit in a transaction."""
        return self._shared.state is not MemberState.STABLE

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """The topics read now, including those that match patterns."""
        return self._watch.topics

    # Called by the stream thread

    def _polled(self) -> None:
        self._heartbeats.polled()

    def _advance(self) -> list[GroupEvent]:
        return self._joining.advance()

    def _wait_s(self) -> float | None:
        return self._joining.wait_s()

    def request_rejoin(self, reason: str) -> None:
        """Rejoin at the next `poll`, for example for a follow-up or probing rebalance, or to tell the leader something."""
        self._joining.request_rejoin(reason)

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
            self._wait_for(timeout_s, self._offsets.commit, offsets, *identity)
        except MigratedCommitError as error:
            shared = self._shared
            moved_on = shared.state is MemberState.JOINING or shared.generation not in {identity[0], NO_GENERATION}
            if error.code == 22 and moved_on:
                raise RebalanceInProgressError(
                    f"Group {self._settings.group_id} has started its next generation: offsets are committed in that one"
                ) from error
            if error.code == 82:
                shared.fenced()
            elif identity == (shared.generation, shared.member_id):
                shared.reset("a commit was refused", keep_member_id=error.code == 22)
            raise

    # Leaving

    async def _send_leave(self, reason: str, timeout_ms: int) -> None:
        member_id = self._shared.leaving_member_id()
        if member_id is not None:
            await self._joining.requests.leave(member_id, reason, timeout_ms)

    async def _leave_stuck(self) -> None:
        """Leave because the stream thread does not poll; a static member only stops its heartbeats until its session expires."""
        shared, reason = self._shared, "max.poll.interval.ms was exceeded"
        identity = shared.heartbeat_identity()
        if self._settings.instance_id is None:
            timeout_ms = self._settings.request_timeout_ms
            await self._joining.requests.leave(shared.member_id, reason, timeout_ms)
        with shared.lock:
            has_rejoined = shared.heartbeat_identity() != identity  # or is about to: the thread has polled meanwhile
            if not has_rejoined:
                shared.reset(reason, keep_member_id=False)
