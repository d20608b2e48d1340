"""The common part of members of both group protocols: their connection, their offsets, and how `poll` waits."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import kafka.errors as kafka_errors

from millrace.assignment.protocol import GroupEvent
from millrace.deadline import Deadline
from millrace.errors import StreamsError
from millrace.kafka.admin_requests import given_up
from millrace.kafka.client_settings import ClientSettings, MembershipSettings
from millrace.kafka.client_supplier import client_supplier
from millrace.kafka.connection import Connection
from millrace.kafka.group_metadata import encode_group_metadata
from millrace.kafka.membership.coordinator import Coordinator
from millrace.kafka.membership.offsets import CommittedOffsets, GroupOffsets
from millrace.kafka.membership.state import MemberState, SharedState
from millrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["BaseMember"]

log = logging.getLogger("millrace.kafka.membership")

_MESSAGE_S: Final = 1.0
"""How much longer to wait for the error that contains the coordinator's last answer."""


class BaseMember(ABC):
    """A member of a group: its life cycle, identity and offsets; the group protocol is in the subclasses.

    Args:
        clients: The process's client settings.
        thread: The stream thread's number, from 1.
        settings: The member's settings.
        shared: The member's state.
    """

    def __init__(self, clients: ClientSettings, thread: int, settings: MembershipSettings, shared: SharedState) -> None:
        self._clients = clients
        self._thread = thread
        self._settings = settings
        self._shared = shared
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
        self._connection = client_supplier(self._clients.config).member(self._clients, self._thread, timeout_s)
        self._connected = True  # before it is used: `close` has to close it even if a step fails
        self._coordinator = Coordinator(self._connection, self._settings, lambda: self._shared.closed)
        self._offsets = GroupOffsets(self._connection, self._coordinator, self._settings)
        self._begin()

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
    def generation(self) -> int:
        """The group's generation, or the member's epoch; -1 if not a member."""
        return self._shared.generation

    @property
    def member_id(self) -> str:
        """The id by which the coordinator knows this member; empty before it has one."""
        return self._shared.member_id

    @property
    def instance_id(self) -> str | None:
        """The static member's id (`group.instance.id`-<thread>); None for dynamic members."""
        return self._settings.instance_id

    @property
    def is_leader(self) -> bool:
        """Whether this member assigns for the group; never with the streams protocol."""
        return self._shared.is_leader

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The input partitions this member owns, sorted."""
        return tuple(sorted(self._shared.owned))

    @property
    @abstractmethod
    def rebalancing(self) -> bool:
        """Whether this member must not commit in a transaction now."""

    def group_metadata(self) -> bytes:
        """Return this member's identity for `Producer.send_offsets_to_transaction`.

        Raises:
            TaskMigratedError: The member is not in a generation; the broker would accept a commit without one from anybody.
        """
        generation, member_id = self._shared.identity()
        return encode_group_metadata(self._settings.group_id, generation, member_id, self._settings.instance_id)

    # Called by the stream thread

    def poll(self, timeout_s: float = 0.0) -> list[GroupEvent]:
        """Take part in the group and return its events; call this at least every `max.poll.interval.ms`.

        Args:
            timeout_s: How long to wait for an event; with 0 it never waits for the network.

        Raises:
            AuthorizationError: The group may not be read.
            InconsistentGroupError: The group has members other than Streams applications with the same `group.protocol`.
            ConfigError: The broker does not accept a setting, or the group is full.
            FencedInstanceIdError: Another member has replaced this static member.
            StreamsError: Raised by the assignor, or a permanent error.
        """
        deadline = Deadline(timeout_s)
        changed = self._shared.changed
        while True:
            self._polled()
            changed.clear()
            events = self._advance()
            if events or deadline.passed:
                return events
            retry_s = self._wait_s()
            changed.wait(deadline.left_s() if retry_s is None else min(deadline.left_s(), retry_s))

    def ask_committed(self, partitions: Collection[TopicPartition], timeout_s: float = 60.0) -> CommittedOffsets:
        """Request the group's committed offsets with their metadata, without waiting for them.

        Each becomes known once no transaction of a predecessor is open on it, so that it can no longer change.
        """
        committed = CommittedOffsets(partitions)
        self._connection.start(self._offsets.fetch, committed, timeout_s).add_errback(committed.fail)
        return committed

    def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_s: float = 60.0
    ) -> dict[TopicPartition, int]:
        """Wait for the group's committed offsets; partitions without one are left out.

        Raises:
            AuthorizationError: A topic or the group may not be read.
            StreamsTimeoutError: The coordinator did not answer in time, or a transaction stayed open.
            StreamsError: The broker refused permanently.
        """
        committed = CommittedOffsets(partitions)
        self._wait_for(timeout_s, self._offsets.fetch, committed)
        return {partition: position.offset for partition, position in (committed.of(partitions) or {}).items()}

    def _wait_for(self, timeout_s: float, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a coroutine function, whose last argument is the timeout, and wait for its result.

        Raises:
            StreamsTimeoutError: It took longer, as an unanswered request has its own timeout; or the wait was given up.
        """
        deadline = Deadline(timeout_s + _MESSAGE_S)
        self._connection.run_unless(lambda: given_up() or deadline.passed, function, *args, timeout_s)

    @abstractmethod
    def commit_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float = 60.0) -> None:
        """Commit offsets with this member's generation or epoch (at-least-once).

        Raises:
            TaskMigratedError: The group has moved on without this member.
            RebalanceInProgressError: The group is assigning; commit again once `rebalancing` is false.
            AuthorizationError: A topic or the group may not be read.
            StreamsTimeoutError: The coordinator did not accept the commit in time.
        """

    def _in_background(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a coroutine function on the IO thread; if it fails while the member is open, so does the membership."""

        def failed(error: BaseException) -> None:
            if not self.closed:
                log.error("The membership in group %s ends: %r", self._settings.group_id, error, exc_info=error)
                self._shared.fail(
                    StreamsError(f"What keeps this member in group {self._settings.group_id} has failed: {error!r}")
                )

        self._connection.start(function, *args).add_errback(failed)

    def _leave(self, reason: str, timeout_s: float) -> None:
        try:
            self._connection.run(self._send_leave, reason, int(timeout_s * 1000))
        except (kafka_errors.KafkaError, StreamsError) as error:
            log.info("Leaving group %s failed: %s", self._settings.group_id, error)
        self._shared.left()

    # The group protocol

    @abstractmethod
    def _begin(self) -> None:
        """Start the coroutines on the IO thread; the connection is open."""

    @abstractmethod
    def _polled(self) -> None:
        """Record that the stream thread has polled."""

    @abstractmethod
    def _advance(self) -> list[GroupEvent]:
        """Take the next step if it is due; return the events for the stream thread."""

    @abstractmethod
    def _wait_s(self) -> float | None:
        """Return the seconds until the next step is due; None if it waits for the coordinator."""

    @abstractmethod
    async def _send_leave(self, reason: str, timeout_ms: int) -> None:
        """Tell the coordinator that the member leaves."""
