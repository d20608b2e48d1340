"""The tasks of an application on a cluster: which partitions each reads, and which changelogs hold its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.plan.model import TopologyPlan
from millrace.plan.partition_counts import PartitionCounts
from millrace.records import TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class TaskTopology:
    """Every task of an application."""

    partitions: Mapping[TaskId, frozenset[TopicPartition]]
    """Task → input partitions: partition n of each source topic that has one."""
    changelogs: Mapping[TaskId, frozenset[TopicPartition]]
    """Stateful task → changelog partitions that are topics of their own."""
    source_changelogs: Mapping[TaskId, frozenset[TopicPartition]]
    """Stateful task → input partitions that serve as changelogs; their end is the committed offset."""

    @property
    def tasks(self) -> frozenset[TaskId]:
        """Every task."""
        return frozenset(self.partitions)

    @property
    def stateful(self) -> frozenset[TaskId]:
        """Tasks with state that is in changelogs."""
        return frozenset(self.changelogs.keys() | self.source_changelogs.keys())

    def task_of(self) -> dict[TopicPartition, TaskId]:
        """Return which task reads each partition."""
        return {partition: task for task, partitions in self.partitions.items() for partition in partitions}


def task_topology(plan: TopologyPlan, counts: PartitionCounts) -> TaskTopology:
    """Derive the tasks of a plan from the partition counts of a cluster."""
    partitions: dict[TaskId, frozenset[TopicPartition]] = {}
    changelogs: dict[TaskId, frozenset[TopicPartition]] = {}
    source_changelogs: dict[TaskId, frozenset[TopicPartition]] = {}
    for item in plan.subtopologies:
        logged = {s.changelog_topic for s in item.stores if s.changelog_topic and not s.changelog_is_source}
        from_source = {s.changelog_topic for s in item.stores if s.changelog_topic and s.changelog_is_source}
        topics = counts.sources[item.id]
        for number in range(counts.tasks[item.id]):
            task = TaskId(item.id, number)
            partitions[task] = frozenset(
                TopicPartition(topic, number) for topic in topics if number < counts.topics.get(topic, 0)
            )
            if logged:
                changelogs[task] = frozenset(TopicPartition(topic, number) for topic in logged)
            if from_source:
                held = frozenset(TopicPartition(topic, number) for topic in from_source)
                source_changelogs[task] = held & partitions[task]
    return TaskTopology(partitions, changelogs, source_changelogs)
