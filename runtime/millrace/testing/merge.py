"""One sub-topology out of many, because the test driver runs a whole topology as a single task.

Nodes are initialised, and stores flushed, in the order in which the nodes were added to the topology; a task of production has it
for one sub-topology, this one for all. So what a commit sends comes in the order of Kafka Streams' driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from millrace.topology.built import BuiltTopology, Subtopology
from millrace.topology.java_order import hash_ordered
from millrace.topology.nodes import ProcessorNode

T = TypeVar("T")


def merge_subtopologies(topology: BuiltTopology) -> Subtopology:
    """Return a topology's sub-topologies side by side as one; their nodes and topics stay as they are."""
    subtopologies = topology.subtopologies
    known = {node.name: node for part in subtopologies for node in part.nodes}
    nodes = tuple(known[name] for name in topology.node_names if name in known)
    builders = {builder.name: builder for part in subtopologies for builder in part.store_builders}
    stores = _distinct(name for node in nodes if isinstance(node, ProcessorNode) for name in hash_ordered(node.stores))
    return Subtopology(
        id=0,
        nodes=nodes,
        store_builders=tuple(builders[name] for name in stores),
        source_topics=_distinct(topic for part in subtopologies for topic in part.source_topics),
        source_patterns=_distinct(pattern for part in subtopologies for pattern in part.source_patterns),
        sink_topics=_distinct(topic for part in subtopologies for topic in part.sink_topics),
        repartition_topics=_union(part.repartition_topics for part in subtopologies),
        changelog_topics=_union(part.changelog_topics for part in subtopologies),
        changelog_configs=_union(part.changelog_configs for part in subtopologies),
        copartition_groups=tuple(group for part in subtopologies for group in part.copartition_groups),
        source_changelogs=frozenset().union(*(part.source_changelogs for part in subtopologies)),
    )


def _distinct(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))


def _union(maps: Iterable[Mapping[str, T]]) -> dict[str, T]:
    return {key: value for mapping in maps for key, value in mapping.items()}
