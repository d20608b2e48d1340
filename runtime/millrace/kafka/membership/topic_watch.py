"""Watches the topics that a group reads, for new partitions (the leader reassigns) and for new matches of a pattern."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

import kafka.errors as kafka_errors

from millrace.assignment.protocol import TopicSubscription
from millrace.errors import ConfigError
from millrace.kafka.connection import Connection
from millrace.kafka.membership.coordinator import Coordinator
from millrace.kafka.membership.state import SharedState

log = logging.getLogger("millrace.kafka.membership")


class TopicWatch:
    """The topics of one member's group, refreshed every `metadata.max.age.ms` on its IO thread."""

    def __init__(
        self, connection: Connection, coordinator: Coordinator, member: SharedState, subscription: TopicSubscription
    ) -> None:
        """Compile the patterns; watches nothing yet.

        Raises:
            ConfigError: A pattern is not a regular expression.
        """
        self._connection = connection
        self._coordinator = coordinator
        self._member = member
        self._matched: frozenset[str] = frozenset()
        self._assigned: Mapping[str, int] | None = None
        try:
            self._patterns = [re.compile(pattern) for pattern in subscription.patterns]
        except re.error as error:
            raise ConfigError(f"A source topic pattern is not a regular expression: {error}") from None
        self._names = subscription.topics

    @property
    def topics(self) -> frozenset[str]:
        """The topics read now: subscribed by name, or matching a pattern."""
        return self._names | self._matched

    async def refresh(self) -> None:
        """Look for topics that match the patterns.

        Raises:
            kafka.errors.KafkaError: No broker answered.
        """
        if self._patterns:
            counts = await self._coordinator.partition_counts(None)
            self._matched = frozenset(name for name in counts if any(p.fullmatch(name) for p in self._patterns))

    async def assigned(self, topics: frozenset[str]) -> None:
        """Remember the partition counts on which this member, as the leader, bases its assignment."""
        self._assigned = {}  # if the counts cannot be read now, any found later will differ from this
        try:
            self._assigned = await self._coordinator.partition_counts(topics)
        except kafka_errors.KafkaError as error:
            log.debug("Partition counts could not be read: %s", error)

    def follow(self) -> None:
        """Stop watching for new partitions: another member leads the group and does so."""
        self._assigned = None

    async def run(self, max_age_ms: int) -> None:
        """Refresh until the member closes."""
        while not self._member.closed:
            await self._connection.sleep(max_age_ms / 1000)
            try:
                await self._compare()
            except kafka_errors.KafkaError as error:
                log.debug("Topic metadata could not be refreshed: %s", error)

    async def _compare(self) -> None:
        before = self.topics
        await self.refresh()
        if self.topics != before:
            changed = ", ".join(sorted(self.topics ^ before))
            self._member.request_rejoin(f"the topics that match the subscription changed: {changed}")
        assigned = self._assigned
        if assigned is not None:
            counts = await self._coordinator.partition_counts(self.topics | assigned.keys())
            if counts != assigned and self._assigned is assigned:
                self._assigned = counts
                changed = ", ".join(sorted(t for t in counts.keys() | assigned if counts.get(t) != assigned.get(t)))
                self._member.request_rejoin(f"the number of partitions changed: {changed}")
