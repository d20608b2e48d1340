"""The common part of both group models: committed offsets, and offsets that open transactions will commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, Final, Protocol

from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from millrace.records import OffsetAndMetadata, TopicPartition
from millrace.testing.simulation.broker import Outcome, RefusedError, Transaction

__all__ = ["Answer", "BaseGroup", "Handler", "Timer", "Timers"]

ILLEGAL_GENERATION: Final = 22
UNKNOWN_MEMBER: Final = 25
UNSTABLE_OFFSET: Final = 88

Answer = Callable[[Any], None]
"""Takes the answer to a request."""
Handler = Callable[[Any, Answer], None]
"""Answers a request, maybe later."""


class Timer(Protocol):
    """Something that will happen later."""

    def cancel(self) -> None:
        """Do not let it happen."""


class Timers(Protocol):
    """Calls functions later."""

    def later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call a function after some seconds."""


class BaseGroup(ABC):
    """One group and its coordinator; who its members are, and what they may commit, is in the subclasses."""

    def __init__(self) -> None:
        self.generation = 0
        """The group's generation or epoch."""
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._pending: dict[Transaction, dict[TopicPartition, OffsetAndMetadata]] = {}

    def handle(self, request: object, answer: Answer) -> None:
        """Answer a request, maybe later."""
        self._handlers()[type(request)](request, answer)

    def _handlers(self) -> dict[type, Handler]:
        """Return what answers each kind of request."""
        return {OffsetCommitRequest: self._commit, OffsetFetchRequest: self._fetch}

    @abstractmethod
    def is_settled(self, members: Collection[str]) -> bool:
        """Whether its members' tasks will not change soon, if these are all its members."""

    def moves(self, member_id: str) -> bool:
        """Whether a member's next heartbeat may change what it owns; never with the classic protocol."""
        del member_id
        return False

    # Offsets

    @property
    def committed(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The committed offsets."""
        return self._committed

    def pending(self, partition: TopicPartition) -> bool:
        """Whether a transaction that has not ended commits this partition's offset."""
        return any(partition in offsets for offsets in self._pending.values())

    def commit_in_transaction(
        self,
        transaction: Transaction,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        generation: int,
        member_id: str,
        instance_id: str | None,
    ) -> None:
        """Add offsets to a transaction.

        Raises:
            RefusedError: this is not a current member (KIP-447). Offsets without a member and generation are not refused.
        """
        if generation >= 0 or member_id or instance_id is not None:
            code = self._check_transaction(offsets, generation, member_id, instance_id)
            if code:
                raise RefusedError(code)
        self._pending.setdefault(transaction, {}).update(offsets)

    def offsets_of(self, transaction: Transaction) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that a transaction commits."""
        return dict(self._pending.get(transaction, {}))

    def end(self, transaction: Transaction) -> None:
        """Take a transaction's marker."""
        offsets = self._pending.pop(transaction, {})
        if transaction.outcome is Outcome.COMMITTED:
            self._committed.update(offsets)

    @abstractmethod
    def _check_transaction(
        self, partitions: Collection[TopicPartition], generation: int, member_id: str, instance_id: str | None
    ) -> int:
        """Return why a member must not commit offsets in a transaction: an error code, or 0."""

    @abstractmethod
    def _check_commit(
        self, partitions: Collection[TopicPartition], generation: int, member_id: str, instance_id: str | None
    ) -> int:
        """Return why a member must not commit offsets: an error code, or 0."""

    def _commit(self, request: Any, answer: Answer) -> None:
        offsets = {
            TopicPartition(topic.name, part.partition_index): OffsetAndMetadata(
                part.committed_offset, part.committed_metadata or ""
            )
            for topic in request.topics
            for part in topic.partitions
        }
        code = self._check_commit(
            offsets, request.generation_id_or_member_epoch, request.member_id, request.group_instance_id
        )
        if not code:
            self._committed.update(offsets)
        parts = [
            SimpleNamespace(
                name=topic.name,
                partitions=[
                    SimpleNamespace(partition_index=part.partition_index, error_code=code) for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        answer(SimpleNamespace(topics=parts))

    def _fetch(self, request: Any, answer: Answer) -> None:
        topics = []
        for topic in request.groups[0].topics:
            parts = []
            for number in topic.partition_indexes:
                partition = TopicPartition(topic.name, number)
                unstable = request.require_stable and self.pending(partition)
                known = None if unstable else self._committed.get(partition)
                parts.append(
                    SimpleNamespace(
                        partition_index=number,
                        error_code=UNSTABLE_OFFSET if unstable else 0,
                        committed_offset=-1 if known is None else known.offset,
                        metadata="" if known is None else known.metadata,
                    )
                )
            topics.append(SimpleNamespace(name=topic.name, partitions=parts))
        answer(SimpleNamespace(groups=[SimpleNamespace(error_code=0, topics=topics)]))
