"""The state that a member's two threads share: its membership state, generation and id, and the partitions it owns.

Both threads change it under its lock. The IO thread, which sends requests and heartbeats, may begin to rejoin, enter the
generation of JoinGroup's answer, `reset` the membership (the broker has removed the member) or `fail`; the stream thread
makes the other transitions, in `poll`. Only there does it learn which partitions it owns. Every change sets `changed`, which
`poll` waits for.
"""

from __future__ import annotations

import logging
import threading
from enum import Enum
from typing import Final

from kafka.future import Future

from millrace.errors import FencedInstanceIdError, StreamsError, TaskMigratedError
from millrace.kafka.client_settings import MembershipSettings
from millrace.records import TopicPartition

__all__ = ["NO_GENERATION", "MemberState", "SharedState"]

log = logging.getLogger("millrace.kafka.membership")

NO_GENERATION: Final = -1


class MemberState(Enum):
    """The state of a membership."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"
    CLOSED = "closed"


class SharedState:
    """The state of one member, shared by its stream thread and its IO thread."""

    def __init__(self, settings: MembershipSettings) -> None:
        """Start as a member that has not joined yet."""
        self._settings = settings
        self.lock = threading.RLock()
        self.changed = threading.Event()
        self.state = MemberState.UNJOINED
        self.generation = NO_GENERATION
        self.member_id = ""
        self.id_is_stored = True
        """Whether a generation with `member_id` has begun: until then its coordinator has the id in memory only."""
        self.leader_id = ""
        self.owned: frozenset[TopicPartition] = frozenset()
        self.lost = False
        """Whether the partitions `owned` may belong to others, which the stream thread does not know yet."""
        self.failure: StreamsError | None = None
        """The error that ended the membership."""
        self.rejoin_reason: str | None = "the member starts"
        self.step: Future | None = None
        """The attempt to rejoin whose outcome the stream thread does not know yet; None if it no longer matters."""

    @property
    def closed(self) -> bool:
        """Whether the member is closed."""
        return self.state is MemberState.CLOSED

    @property
    def is_leader(self) -> bool:
        """Whether this member assigns for the group."""
        return bool(self.member_id) and self.leader_id == self.member_id

    def identity(self) -> tuple[int, str]:
        """Return generation and member id.

        Raises:
            TaskMigratedError: The member is not in a generation.
        """
        with self.lock:
            if self.generation == NO_GENERATION or self.lost:
                raise TaskMigratedError(
                    f"This thread is currently not a member of group {self._settings.group_id}: its tasks may have gone to "
                    "other members"
                )
            return self.generation, self.member_id

    def heartbeat_identity(self) -> tuple[int, str] | None:
        """Return generation and member id if heartbeats are due, None when the member is joining or has not joined.

        A member whose attempt to join has failed is still in its generation, until its thread polls and tries again.
        """
        with self.lock:
            joining = self.state is MemberState.JOINING and (self.step is None or not self.step.is_done)
            if joining or self.state is MemberState.CLOSED or self.generation == NO_GENERATION:
                return None
            return self.generation, self.member_id

    def leaving_member_id(self) -> str | None:
        """Return the member id to leave with, or None if the group does not have this member.

        A broker adds a static member before the member learns its id from the answer to JoinGroup, which may be delayed by
        others. Until then the member leaves by its instance id alone, with an empty member id.
        """
        with self.lock:
            if self.failure is not None:
                return None
            if self.member_id or self.state is not MemberState.JOINING or self.step is None:
                return self.member_id or None
            refused = self.step.is_done
            return None if refused or self._settings.instance_id is None else ""

    def request_rejoin(self, reason: str) -> None:
        """Rejoin at the next `poll`."""
        with self.lock:
            if self.rejoin_reason is None:
                log.info("Member %s of group %s will rejoin: %s", self.member_id, self._settings.group_id, reason)
                self.rejoin_reason = reason
        self.changed.set()

    def reset(self, reason: str, *, keep_member_id: bool) -> None:
        """Forget the generation: the group has moved on, and others may own what this member owned."""
        with self.lock:
            log.warning(
                "Member %s is no longer in generation %d of group %s: %s",
                *(self.member_id, self.generation, self._settings.group_id, reason),
            )
            self.generation = NO_GENERATION
            self.leader_id = ""
            if not keep_member_id:
                self.member_id = ""
            self.lost = self.lost or bool(self.owned)
            if self.state is MemberState.JOINING:
                return  # the request in flight rejoins; dropping it would leave an orphaned member in the group
            self.rejoin_reason = self.rejoin_reason or reason
            if self.state is not MemberState.CLOSED:
                self.state = MemberState.UNJOINED
                self.step = None
        self.changed.set()

    def fenced(self) -> None:
        """Handle the answer that another member has taken this static member's place.

        A coordinator that fails after giving a member id, before a generation begins, loses the id: its successor only knows
        the former process's. So a member with such a new id joins again without one, like a new process.
        """
        if not self.id_is_stored:
            self.reset("the group's coordinator does not know its new id", keep_member_id=False)
        else:
            group, instance_id = self._settings.group_id, self._settings.instance_id
            self.fail(
                FencedInstanceIdError(
                    f"Another member of group {group} has joined with group.instance.id={instance_id}: give each process its own "
                    "id, and make sure that the former process has ended"
                )
            )

    def fail(self, error: StreamsError) -> None:
        """End the membership with an error that every `poll` raises from now on."""
        with self.lock:
            self.failure = error
            self.generation = NO_GENERATION
            self.state = MemberState.UNJOINED
            self.step = None
        self.changed.set()

    def left(self) -> None:
        """Record that the member has left the group and owns nothing."""
        with self.lock:
            self.generation, self.member_id, self.leader_id = NO_GENERATION, "", ""
            self.owned, self.lost = frozenset(), False
            if self.state is not MemberState.CLOSED:
                self.state = MemberState.UNJOINED
                self.step = None
