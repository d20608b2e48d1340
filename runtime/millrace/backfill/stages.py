"""In which order a backfill runs the sub-topologies of an application.

A topic that one sub-topology writes and another reads makes the writer come first: repartition topics, and topics of the user
that the application both writes and reads. Sub-topologies that feed each other, as the two sides of a foreign-key join do, form
one stage together, which is run in passes until the records of their topics no longer change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter

from millrace.plan.partition_counts import PartitionCounts
from millrace.plan.topology_plan import TopologyPlan
from millrace.records import TaskId


@dataclass(frozen=True, slots=True)
class Stage:
    """One sub-topology, or several that feed each other."""

    tasks: tuple[TaskId, ...]
    """All their tasks; one Spark partition each, in this order."""
    sources: frozenset[str]
    """Topics it reads."""
    upstream: frozenset[str]
    """Those of them that the application writes."""
    circular: frozenset[str]
    """Those of them that the stage itself writes."""


def plan_stages(plan: TopologyPlan, counts: PartitionCounts) -> tuple[Stage, ...]:
    """Return the stages, each after those that it reads from.

    Args:
        plan: what the application consists of.
        counts: what each sub-topology reads, and how many tasks it has.
    """
    reads = {number: frozenset(topics) for number, topics in counts.sources.items()}
    feeds = {
        item.id: {number for number, topics in reads.items() if topics & set(item.sink_topics)}
        for item in plan.subtopologies
    }
    reachable = {number: _reachable(number, feeds) for number in feeds}
    group_of = {n: frozenset({n, *(m for m in reachable[n] if n in reachable[m])}) for n in sorted(feeds)}
    order = TopologicalSorter[frozenset[int]](dict.fromkeys(group_of.values(), ()))
    for writer, readers in feeds.items():
        for reader in readers:
            if group_of[reader] != group_of[writer]:
                order.add(group_of[reader], group_of[writer])
    written = {item.id: frozenset(item.sink_topics) for item in plan.subtopologies}
    return tuple(_stage(group, reads, written, counts) for group in order.static_order())


def shuffled_topics(plan: TopologyPlan, counts: PartitionCounts) -> frozenset[str]:
    """Return the topics that the application both writes and reads."""
    read = {topic for topics in counts.sources.values() for topic in topics}
    return frozenset(topic for item in plan.subtopologies for topic in item.sink_topics if topic in read)


def _stage(
    group: frozenset[int],
    reads: Mapping[int, frozenset[str]],
    written: Mapping[int, frozenset[str]],
    counts: PartitionCounts,
) -> Stage:
    numbers = sorted(group)
    sources = frozenset[str]().union(*(reads[number] for number in numbers))
    own = frozenset[str]().union(*(written[number] for number in numbers))
    return Stage(
        tasks=tuple(TaskId(number, partition) for number in numbers for partition in range(counts.tasks[number])),
        sources=sources,
        upstream=sources & frozenset[str]().union(*written.values()),
        circular=sources & own,
    )


def _reachable(start: int, feeds: Mapping[int, set[int]]) -> set[int]:
    found: set[int] = set()
    todo = [start]
    while todo:
        new = feeds[todo.pop()] - found
        found |= new
        todo += new
    return found
