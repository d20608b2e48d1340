"""A plain assignor: tasks spread evenly over members, staying where they are if that is even enough.

Cooperative (KIP-429): a task that is to move is given to nobody until its owner has revoked it and rejoined. It knows of
no state, standbys or lag; `millrace.assignment` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from millrace.errors import MissingSourceTopicError
from millrace.kafka.membership.api import MemberAssignment, MemberSubscription
from millrace.records import TaskId, TopicPartition
from millrace.runtime.task_inputs import TaskInputs

__all__ = ["BasicAssignor"]

PartitionCounts = Callable[[Collection[str]], Mapping[str, int]]


class BasicAssignor:
    """Assigns the tasks of a topology when its member leads.

    Args:
        inputs: which sub-topology reads which topic.
        partition_counts: gives the number of partitions of topics; those that do not exist are left out.
    """

    def __init__(self, inputs: TaskInputs, partition_counts: PartitionCounts) -> None:
        self._inputs = inputs
        self._partition_counts = partition_counts

    def __call__(self, members: Mapping[str, MemberSubscription]) -> Mapping[str, MemberAssignment]:
        """Return each member's partitions.

        Raises:
            MissingSourceTopicError: an input topic does not exist.
        """
        topics = {topic for member in members.values() for topic in member.topics}
        counts = self._partition_counts(topics)
        missing = sorted(topics - counts.keys())
        if missing:
            raise MissingSourceTopicError(
                f"Input topics {', '.join(missing)} do not exist: create them, then start again"
            )
        tasks = self._inputs.tasks(TopicPartition(topic, number) for topic in topics for number in range(counts[topic]))
        owners = self._owners(members)
        targets = self._balance(tasks, list(members), owners)
        given: dict[str, list[TopicPartition]] = {member: [] for member in members}
        for task_id, target in targets.items():
            owner = owners.get(task_id)
            if owner is None or owner == target:
                given[target].extend(tasks[task_id])
        return {member: MemberAssignment(tuple(sorted(partitions))) for member, partitions in given.items()}

    def _owners(self, members: Mapping[str, MemberSubscription]) -> dict[TaskId, str]:
        newest: dict[TaskId, tuple[int, str]] = {}
        for member, subscription in members.items():
            for task_id in self._inputs.tasks(subscription.owned):
                newest[task_id] = max(newest.get(task_id, (-2, "")), (subscription.generation, member))
        return {task_id: member for task_id, (_, member) in newest.items()}

    @staticmethod
    def _balance(tasks: Collection[TaskId], members: list[str], owners: Mapping[TaskId, str]) -> dict[TaskId, str]:
        members = sorted(members)
        floor, extra = divmod(len(tasks), len(members))
        targets: dict[TaskId, str] = {}
        load = dict.fromkeys(members, 0)
        for task_id in sorted(tasks):
            owner = owners.get(task_id)
            if owner in load and (load[owner] < floor or (load[owner] == floor and extra > 0)):
                extra -= load[owner] == floor
                load[owner] += 1
                targets[task_id] = owner
        for task_id in sorted(tasks):
            if task_id not in targets:
                target = min(members, key=lambda member: (load[member], member))
                load[target] += 1
                targets[task_id] = target
        return targets
