"""One sub-topology out of many, because the test driver runs a whole topology as a single task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from millrace.topology.built import Subtopology

T = TypeVar("T")


def merge_subtopologies(parts: Iterable[Subtopology]) -> Subtopology:
    """Return sub-topologies side by side as one, in their order; their nodes and topics stay as they are."""
    subtopologies = tuple(parts)
    return Subtopology(
        id=0,
        nodes=tuple(node for part in subtopologies for node in part.nodes),
        store_builders=tuple(builder for part in subtopologies for builder in part.store_builders),
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
