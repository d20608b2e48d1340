"""The terms in which stream threads, group members and assignors talk about a group; the same for every group protocol."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from millrace.records import TopicPartition


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What the leader knows about a member: its topics, its user data (SubscriptionInfo, formats §10) and what it owns."""

    topics: tuple[str, ...]
    user_data: bytes
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    """The generation in which the member was given what it owns; -1 = unknown."""
    instance_id: str | None = None
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """What the leader gives a member: partitions, sorted by topic and number, and user data (AssignmentInfo)."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes = b""


@dataclass(frozen=True, slots=True)
class Revoked:
    """These partitions go to another member: commit and close their tasks before the next `poll`, which rejoins."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Lost:
    """These partitions no longer belong to this member, and may already belong to another: drop their tasks without a commit."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Assigned:
    """A rebalance is over: all partitions of this member, sorted, with the leader's user data.

    It comes after every rebalance even if partitions have not changed, as standbys or the host map in the user data may have.
    """

    partitions: tuple[TopicPartition, ...]
    added: frozenset[TopicPartition]
    user_data: bytes
    generation: int


GroupEvent: TypeAlias = Revoked | Lost | Assigned

UserDataProvider: TypeAlias = Callable[[], bytes]
"""Returns this member's user data; called in `poll`, in the stream thread, when the member joins and now and then between."""

LeaderAssignor: TypeAlias = Callable[[Mapping[str, MemberSubscription]], Future[Mapping[str, MemberAssignment]]]
"""Begins to assign partitions by member id, in another thread; called in the member's IO thread if it leads."""


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """The topics that a group reads, by name and by regular expressions that match whole names."""

    topics: frozenset[str]
    patterns: tuple[str, ...] = ()

    @classmethod
    def of(cls, topics: Collection[str], patterns: Collection[str] = ()) -> TopicSubscription:
        """Return a subscription to these topics and patterns."""
        return cls(frozenset(topics), tuple(patterns))
