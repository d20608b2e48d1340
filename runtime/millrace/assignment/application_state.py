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
from millrace.plan.partition_counts import PartitionCounts
from millrace.plan.topology_plan import TopologyPlan
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
    """For every task with a changelog, how many records it would have to restore, or LATEST_OFFSET if it runs the task.

    UNKNOWN_OFFSET_SUM if the client does not know what it has, or the changelogs' end offsets could not be read.
    """
    tags: Mapping[str, str] = field(default_factory=dict)
    """`client.tag.*`, for example its zone."""
    rack: str | None = None
    """`client.rack`; None if not all of its threads have the same."""
    host: HostInfo | None = None
    """`application.server`."""
    threads: Mapping[str, frozenset[TaskId]] = field(default_factory=dict)
    """Member id of each thread → the tasks of whose state it has reported."""

    def lag(self, task: TaskId) -> int:
        """Return how many records the client would have to restore for a task."""
        return self.lags.get(task, 0)

    def previous_tasks_by_lag(self, thread: str) -> list[TaskId]:
        """Return the tasks of whose state a thread has reported, those with the least to restore first."""
        return sorted(self.threads[thread] & self.lags.keys(), key=lambda task: (self.lags[task], task))


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """What a task reads and stores."""

    partitions: frozenset[TopicPartition]
    """Its input partitions: partition n of each source topic that has one."""
    changelogs: frozenset[TopicPartition] = frozenset()
    """Partitions from which its state is restored; those among `partitions` end at the committed offset."""
    stores: frozenset[str] = frozenset()
    """Names of its stores, with or without a changelog."""


@dataclass(frozen=True, slots=True)
class AssignmentConfig:
    """The settings of task assignors."""

    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = 2
    num_standby_replicas: int = 0
    probing_rebalance_interval_ms: int = 600_000
    rack_aware_tags: tuple[str, ...] = ()
    rack_aware_strategy: str = "none"
    """none, min_traffic or balance_subtopology (KIP-925)."""
    rack_aware_traffic_cost: int | None = None
    """What it costs if a partition has no replica in its reader's rack; None = the assignor's own default."""
    rack_aware_non_overlap_cost: int | None = None
    """What it costs if rack awareness moves a task from where the assignor has put it; None = the assignor's own default."""

    @classmethod
    def of(cls, config: StreamsConfig) -> AssignmentConfig:
        """Return the settings of an application."""
        return cls(
            acceptable_recovery_lag=config.acceptable_recovery_lag,
            max_warmup_replicas=config.max_warmup_replicas,
            num_standby_replicas=config.num_standby_replicas,
            probing_rebalance_interval_ms=config.probing_rebalance_interval_ms,
            rack_aware_tags=config.rack_aware_assignment_tags,
            rack_aware_strategy=config.rack_aware_assignment_strategy,
            rack_aware_traffic_cost=config.rack_aware_assignment_traffic_cost,
            rack_aware_non_overlap_cost=config.rack_aware_assignment_non_overlap_cost,
        )


@dataclass(frozen=True, slots=True)
class ApplicationState:
    """All that an assignor decides on (KIP-924)."""

    clients: Mapping[UUID, ClientState]
    """All processes of the group, at least one."""
    tasks: Mapping[TaskId, TaskInfo]
    """Every task to assign."""
    config: AssignmentConfig = AssignmentConfig()
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)
    """Partition → the racks of its replicas, unless one is unknown. Only filled with `rack.aware.assignment.strategy`."""

    @property
    def stateful(self) -> frozenset[TaskId]:
        """The tasks with state in changelogs, which can have standbys."""
        return frozenset(task for task, info in self.tasks.items() if info.changelogs)


@dataclass(frozen=True, slots=True)
class ClientAssignment:
    """The tasks of one process.

    Raises:
        ValueError: A task is both active and a standby.
    """

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    """Including warm-ups, which a member cannot tell from standbys."""
    followup_rebalance_ms: int | None = None
    """When this process has to ask for another rebalance, in milliseconds since the epoch; 0 = at once, None = never."""

    def __post_init__(self) -> None:
        """Check that no task is assigned twice."""
        if self.active & self.standby:
            raise ValueError(f"tasks {sorted(map(str, self.active & self.standby))} are both active and standbys")


@dataclass(frozen=True, slots=True)
class TaskAssignment:
    """An assignor's decision: each task is active on exactly one client, and each copy is on a different one."""

    clients: Mapping[UUID, ClientAssignment]
    probing_rebalance_needed: bool = False
    """Whether tasks wait to move until their state has been warmed up, so that the leader's process rebalances later."""


class TaskAssignor(Protocol):
    """A pure function from the state of an application to an assignment."""

    def __call__(self, state: ApplicationState) -> TaskAssignment:
        """Assign tasks."""


def planned_tasks(plan: TopologyPlan, counts: PartitionCounts) -> dict[TaskId, TaskInfo]:
    """Derive the tasks of a plan from the partition counts of a cluster."""
    tasks: dict[TaskId, TaskInfo] = {}
    for item in plan.subtopologies:
        logged = {s.changelog_topic for s in item.stores if s.changelog_topic and not s.changelog_is_source}
        from_source = {s.changelog_topic for s in item.stores if s.changelog_topic and s.changelog_is_source}
        stores = frozenset(store.name for store in item.stores)
        for number in range(counts.tasks[item.id]):
            partitions = frozenset(
                TopicPartition(topic, number)
                for topic in counts.sources[item.id]
                if number < counts.topics.get(topic, 0)
            )
            changelogs = frozenset(TopicPartition(topic, number) for topic in logged)
            source_changelogs = partitions & {TopicPartition(topic, number) for topic in from_source}
            tasks[TaskId(item.id, number)] = TaskInfo(partitions, changelogs | source_changelogs, stores)
    return tasks
