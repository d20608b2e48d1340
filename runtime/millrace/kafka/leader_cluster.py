"""The cluster as a group leader sees it while it assigns."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.kafka.internal_topics import provision
from millrace.kafka.offsets import group_offsets, latest_offsets
from millrace.plan.model import TopologyPlan
from millrace.plan.partition_counts import PartitionCounts
from millrace.records import TopicPartition


class LeaderCluster:
    """Provisions topics and reads offsets with an admin client."""

    def __init__(
        self,
        plan: TopologyPlan,
        admin: AdminClient,
        config: StreamsConfig,
        *,
        create_topics: bool = True,
        offsets_timeout_s: float = 10.0,
    ) -> None:
        """Describe what to ask.

        Args:
            plan: What the application needs.
            admin: Client of the cluster.
            config: The application's settings.
            create_topics: Whether missing internal topics are created, or reported as missing.
            offsets_timeout_s: How long the leader may wait for offsets; without them tasks stay where they are.
        """
        self._plan = plan
        self._admin = admin
        self._config = config
        self._create_topics = create_topics
        self._offsets_timeout_s = offsets_timeout_s

    def provision(self) -> PartitionCounts:
        """Create and check the internal topics; return all partition counts."""
        return provision(self._plan, self._admin, self._config, create=self._create_topics).counts

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the ends of changelog partitions."""
        return latest_offsets(self._admin, partitions, self._offsets_timeout_s)

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's committed offsets."""
        group = self._config.application_id
        return group_offsets(self._admin, group, partitions, self._offsets_timeout_s)
