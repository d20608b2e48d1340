"""How many partitions each topic and sub-topology of a plan has, derived from the existing topics.

A repartition topic without a count gets the largest count of the topics that its writers read, through other repartition topics
if necessary; then the topics of each co-partition group get the same count; then each sub-topology gets as many tasks, and its
changelogs as many partitions, as its largest source topic has. The order is Kafka Streams' own, and it affects the result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from millrace.errors import TopologyError
from millrace.plan.topology_plan import (
    PlannedRepartitionTopic,
    PlannedSubtopology,
    TopologyPlan,
    changelog_topics,
    repartition_topics,
)


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """The counts of one plan on one cluster."""

    topics: Mapping[str, int]
    """Partitions of each source and repartition topic."""
    tasks: Mapping[int, int]
    """Number of tasks of each sub-topology; 0 where a pattern matches nothing."""
    sources: Mapping[int, tuple[str, ...]]
    """The topics that each sub-topology reads, sorted, including those that match its patterns."""
    changelogs: Mapping[str, int]
    """Partitions that each changelog topic should have."""


def resolve_partition_counts(plan: TopologyPlan, existing: Mapping[str, int]) -> PartitionCounts:
    """Derive every count.

    Args:
        plan: What the application needs.
        existing: Partitions of the user's topics; of all visible topics if the plan has patterns.

    Raises:
        TopologyError: Topics that must be co-partitioned have different counts, or a count cannot be derived.
    """
    internal = repartition_topics(plan)
    sources = {
        item.id: _sources(item, existing, internal.keys() | changelog_topics(plan).keys())
        for item in plan.subtopologies
    }
    counts = {topic: existing[topic] for topics in sources.values() for topic in topics if topic in existing}
    for name in internal:
        counts.pop(name, None)
    counts |= {name: topic.partitions for name, topic in internal.items() if topic.partitions is not None}
    _derive_from_writers(plan, internal, sources, counts)
    for item in plan.subtopologies:
        for group in item.copartition_groups:
            _copartition(group, internal, counts)
    tasks = {number: max((counts[t] for t in topics if t in counts), default=0) for number, topics in sources.items()}
    changelogs = {topic.name: tasks[item.id] for item in plan.subtopologies for topic in item.changelog_topics}
    return PartitionCounts(counts, tasks, sources, {name: count for name, count in changelogs.items() if count})


def _sources(item: PlannedSubtopology, existing: Mapping[str, int], internal: set[str]) -> tuple[str, ...]:
    patterns = [re.compile(pattern) for pattern in item.source_patterns]
    matched = {name for name in existing.keys() - internal if any(p.fullmatch(name) for p in patterns)}
    return tuple(sorted({*item.source_topics, *matched}))


def _derive_from_writers(
    plan: TopologyPlan,
    internal: Mapping[str, PlannedRepartitionTopic],
    sources: Mapping[int, tuple[str, ...]],
    counts: dict[str, int],
) -> None:
    writers = {name: [item for item in plan.subtopologies if name in item.sink_topics] for name in internal}
    left = [name for name in internal if name not in counts]
    patient = True
    while left:
        derived = {}
        for name in left:
            read = [topic for item in writers[name] for topic in sources[item.id]]
            known = [counts[topic] for topic in read if topic in counts]
            waits = patient and any(topic in internal and topic not in counts for topic in read)
            if known and not waits:
                derived[name] = max(known)
        if not derived and not patient:
            raise TopologyError(
                f"The number of partitions of {', '.join(sorted(left))} cannot be derived, because none of the inputs of its "
                "writers has a known number: set one with Repartitioned.with_number_of_partitions"
            )
        patient = bool(derived)  # topics that feed each other in a cycle use what is known
        counts |= derived
        left = [name for name in left if name not in counts]


def _copartition(
    group: tuple[str, ...], internal: Mapping[str, PlannedRepartitionTopic], counts: dict[str, int]
) -> None:
    external = {topic: counts[topic] for topic in group if topic not in internal and topic in counts}
    enforced = {topic: counts[topic] for topic in group if topic in internal and internal[topic].enforced}
    if len({*external.values(), *enforced.values()}) > 1:
        shown = ", ".join(f"{topic} ({count})" for topic, count in sorted((external | enforced).items()))
        raise TopologyError(
            f"Topics that are joined or merged by key must have the same number of partitions, but have: {shown}. "
            "Create them with the same number, or repartition one of the inputs"
        )
    inside = [topic for topic in group if topic in internal and topic in counts]
    if not inside:
        return
    agreed = next(iter({*external.values(), *enforced.values()}), max(counts[topic] for topic in inside))
    counts.update(dict.fromkeys(inside, agreed))
