"""The data that task assignors work with: an application's tasks, the clients that may run them, and the decision.

A *client* is a process, with as many threads as it has group members. Assignors place tasks on clients; `threads` then places a
client's tasks on its threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from millrace.config import StreamsConfig
from millrace.plan.model import TopologyPlan
from millrace.plan.partition_counts import PartitionCounts
from millrace.records import TaskId, TopicPartition

LATEST_OFFSET: Final = -2
"""As an offset sum or lag: the client runs the task as an active one."""

UNKNOWN_OFFSET_SUM: Final = -3
"""As an offset sum: the client has state of the task, but does not know how much."""


class HostInfo(NamedTuple):
    """The address at which a process answers interactive queries (`application.server`)."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HostInfo:
        """Parse `host:port` or `[ipv6]:port`.

        >>> HostInfo.parse("words-0.words:8080").port
        8080

        Raises:
            ValueError: it is neither.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdigit():
            raise ValueError(f"{text!r} is not host:port")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        """Return what `parse` reads.

        >>> str(HostInfo.parse("[2001:db8::1]:8080"))
        '[2001:db8::1]:8080'
        """
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClientState:
    """What the leader knows about one process."""

    process_id: UUID
    capacity: int
    """Its number of stream threads."""
    previous_active: frozenset[TaskId] = frozenset()
    previous_standby: frozenset[TaskId] = frozenset()
    """Tasks whose state it has without running them: standbys, and directories on its disk."""
    lags: Mapping[TaskId, int] = field(default_factory=dict)
    """For every stateful task, how many records it would have to restore, or LATEST_OFFSET if it runs the task."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """`client.tag.*`, for example its zone."""

    def lag(self, task: TaskId) -> int:
        """Return how many records the client would have to restore for a task."""
        return self.lags.get(task, 0)


@dataclass(frozen=True, slots=True)
class AssignmentConfig:
    """The settings of task assignors."""

    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = 2
    num_standby_replicas: int = 0
    probing_rebalance_interval_ms: int = 600_000
    rack_aware_tags: tuple[str, ...] = ()
    allow_warmups: bool = True
    """False as long as members cannot host warm-ups: tasks then move at once and restore where they arrive."""

    @classmethod
    def of(cls, config: StreamsConfig, *, allow_warmups: bool = True) -> AssignmentConfig:
        """Return the settings of an application."""
        return cls(
            acceptable_recovery_lag=config.acceptable_recovery_lag,
            max_warmup_replicas=config.max_warmup_replicas,
            num_standby_replicas=config.num_standby_replicas,
            probing_rebalance_interval_ms=config.probing_rebalance_interval_ms,
            rack_aware_tags=config.rack_aware_assignment_tags,
            allow_warmups=allow_warmups,
        )


@dataclass(frozen=True, slots=True)
class ClientAssignment:
    """The tasks of one process."""

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    """Including warm-ups, which a member cannot tell from standbys."""


@dataclass(frozen=True, slots=True)
class TaskAssignment:
    """An assignor's decision: each task is active on exactly one client, and each copy is on a different one."""

    clients: Mapping[UUID, ClientAssignment]
    probing_rebalance_needed: bool = False
    """Whether tasks wait to move until their state has been warmed up, so that the group must rebalance again later."""


class TaskAssignor(Protocol):
    """A pure function from the state of the clients to an assignment."""

    def __call__(
        self,
        clients: Mapping[UUID, ClientState],
        tasks: frozenset[TaskId],
        stateful: frozenset[TaskId],
        config: AssignmentConfig,
    ) -> TaskAssignment:
        """Assign tasks.

        Args:
            clients: All processes of the group, at least one.
            tasks: Every task.
            stateful: The tasks with state in changelogs.
            config: The settings of assignors.
        """


@dataclass(frozen=True, slots=True)
class TaskTopology:
    """Every task of an application, with its input and changelog partitions."""

    partitions: Mapping[TaskId, frozenset[TopicPartition]]
    """Task → input partitions: partition n of each source topic that has one."""
    changelogs: Mapping[TaskId, frozenset[TopicPartition]]
    """Stateful task → partitions of its changelog topics."""
    source_changelogs: Mapping[TaskId, frozenset[TopicPartition]]
    """Stateful task → input partitions that serve as changelogs; they end at the committed offset."""

    @property
    def tasks(self) -> frozenset[TaskId]:
        """Every task."""
        return frozenset(self.partitions)

    @property
    def stateful(self) -> frozenset[TaskId]:
        """The tasks with state in changelogs."""
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
