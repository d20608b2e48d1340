"""Joins stream threads to their group: topics from the topology, the assignor for when a member leads."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millrace.errors import StreamsTimeoutError
from millrace.kafka.clients import ClientSettings
from millrace.kafka.membership import GroupMember, TopicSubscription
from millrace.runtime.basic_assignor import BasicAssignor
from millrace.runtime.task_inputs import TaskInputs
from millrace.runtime.thread_resources import Member
from millrace.topology.built import BuiltTopology

__all__ = ["MemberFactory"]

_METADATA_TIMEOUT_S = 15.0


class MemberFactory:
    """Makes the group member of each thread of a client."""

    def __init__(self, topology: BuiltTopology, settings: ClientSettings, admin: AdminClient) -> None:
        self._settings = settings
        self._admin = admin
        self._assignor = BasicAssignor(TaskInputs(topology), self._partition_counts)
        self._subscription = TopicSubscription.of(
            {topic for subtopology in topology.subtopologies for topic in subtopology.source_topics},
            [pattern.pattern for subtopology in topology.subtopologies for pattern in subtopology.source_patterns],
        )

    def __call__(self, thread: int) -> Member:
        """Return the member of a thread, not started."""
        return GroupMember(self._settings, thread, self._subscription, user_data=lambda: b"", assign=self._assignor)

    def _partition_counts(self, topics: Collection[str]) -> Mapping[str, int]:
        try:
            present = self._admin.list_topics(timeout=_METADATA_TIMEOUT_S).topics
        except KafkaException as error:
            raise StreamsTimeoutError(f"Cannot assign tasks: no metadata ({error.args[0].str()})") from error
        return {
            topic: len(present[topic].partitions)
            for topic in topics
            if topic in present and present[topic].error is None and present[topic].partitions
        }
