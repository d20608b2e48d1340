"""Which task reads which partitions: a task is one sub-topology over the same partition number of each of its inputs."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.errors import TaskAssignmentError
from millrace.records import TaskId, TopicPartition
from millrace.topology.built import BuiltTopology

__all__ = ["TaskInputs"]


class TaskInputs:
    """Maps the partitions of a topology's inputs to tasks."""

    def __init__(self, topology: BuiltTopology) -> None:
        self.topology = topology
        self._subtopology_of: dict[str, int] = {
            topic: subtopology.id for subtopology in topology.subtopologies for topic in subtopology.source_topics
        }

    def tasks(self, partitions: Iterable[TopicPartition]) -> dict[TaskId, frozenset[TopicPartition]]:
        """Group partitions by the task that reads them.

        Raises:
            TaskAssignmentError: no sub-topology reads a topic.
        """
        grouped: dict[TaskId, set[TopicPartition]] = {}
        for partition in partitions:
            task_id = TaskId(self.subtopology_of(partition.topic), partition.partition)
            grouped.setdefault(task_id, set()).add(partition)
        return {task_id: frozenset(members) for task_id, members in sorted(grouped.items())}

    def subtopology_of(self, topic: str) -> int:
        """Return the sub-topology that reads a topic, by name or by pattern.

        Raises:
            TaskAssignmentError: none does.
        """
        known = self._subtopology_of.get(topic)
        if known is not None:
            return known
        for subtopology in self.topology.subtopologies:
            if any(pattern.fullmatch(topic) for pattern in subtopology.source_patterns):
                self._subtopology_of[topic] = subtopology.id
                return subtopology.id
        raise TaskAssignmentError(
            f"This member was assigned {topic}, which its topology does not read: all instances of application "
            f"{self.topology.application_id} must run the same topology"
        )
