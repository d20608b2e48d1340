"""An application's topology as the streams group protocol (KIP-1071) describes it to the group's coordinator.

All members must send the same description, so everything in it is sorted, as Java's Kafka Streams does: members of both kinds can
share a group. The coordinator derives the partition counts and creates the internal topics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millrace.errors import UnsupportedFeatureError
from millrace.kafka.streams_messages import StreamsGroupHeartbeatRequest
from millrace.plan.topology_plan import PlannedSubtopology, TopologyPlan, repartition_topics

__all__ = ["describe_topology"]

_Topology = StreamsGroupHeartbeatRequest.Topology
_Subtopology = _Topology.Subtopology
_TopicInfo = _Subtopology.TopicInfo


def describe_topology(plan: TopologyPlan, replication_factor: int) -> object:
    """Return the description that a member sends when it joins (the field `topology` of StreamsGroupHeartbeat).

    Changelogs have 0 partitions, which stands for the number of tasks; so do repartition topics without a set count.

    Args:
        plan: What the application needs.
        replication_factor: `replication.factor` of the internal topics; -1 = the broker's default.

    Raises:
        UnsupportedFeatureError: The topology reads topics by a pattern, for which coordinators do not assign tasks.
    """
    if any(item.source_patterns for item in plan.subtopologies):
        raise UnsupportedFeatureError(
            "group.protocol=streams: brokers do not assign topics that are read by a pattern. Name the topics, or set "
            "group.protocol=classic"
        )
    internal = repartition_topics(plan).keys()
    ordered = sorted(plan.subtopologies, key=lambda item: str(item.id))
    return _Topology(epoch=0, subtopologies=[_subtopology(item, internal, replication_factor) for item in ordered])


def _subtopology(item: PlannedSubtopology, internal: Collection[str], replication_factor: int) -> object:
    sources = sorted(set(item.source_topics).difference(internal))
    repartition = sorted(item.repartition_topics, key=lambda topic: topic.name)
    names = [topic.name for topic in repartition]
    return _Subtopology(
        subtopology_id=str(item.id),
        source_topics=sources,
        source_topic_regex=[],
        state_changelog_topics=[
            _topic(topic.name, 0, topic.config, replication_factor)
            for topic in sorted(item.changelog_topics, key=lambda topic: topic.name)
        ],
        repartition_sink_topics=sorted(set(item.sink_topics).intersection(internal)),
        repartition_source_topics=[
            _topic(topic.name, topic.partitions or 0, topic.config, replication_factor) for topic in repartition
        ],
        copartition_groups=[
            _Subtopology.CopartitionGroup(
                source_topics=[sources.index(topic) for topic in sorted(group) if topic in sources],
                source_topic_regex=[],
                repartition_source_topics=[names.index(topic) for topic in sorted(group) if topic in names],
            )
            for group in sorted(item.copartition_groups)
        ],
    )


def _topic(name: str, partitions: int, config: Mapping[str, str], replication_factor: int) -> object:
    entry = _TopicInfo.KeyValue
    return _TopicInfo(
        name=name,
        partitions=partitions,
        replication_factor=replication_factor,
        topic_configs=[entry(key=key, value=value) for key, value in sorted(config.items())],
    )
