"""A stream thread's membership in its group: joining it, reporting local state, and reading the assignment.

Combines the group client (`millrace.kafka.membership`) and the assignment protocol (`millrace.assignment`) into one object
for the thread. `stream_thread` receives its events; `task_manager` knows what revoked and lost partitions mean for tasks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from confluent_kafka.admin import AdminClient

from millrace.assignment import (
    AssignedTasks,
    AssignmentConfig,
    GroupLeader,
    HostInfo,
    MemberProtocol,
    select_assignor,
)
from millrace.assignment.payloads import AssignorError
from millrace.assignment.protocol import (
    Assigned,
    GroupEvent,
    Lost,
    MemberAssignment,
    MemberSubscription,
    TopicSubscription,
)
from millrace.config import GroupProtocol, StreamsConfig
from millrace.deadline import Deadline
from millrace.errors import MissingSourceTopicError, TaskAssignmentError
from millrace.instance import background
from millrace.instance.activity import LoopProgress
from millrace.instance.state_directory import StateDirectory
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.internal_topics import LeaderCluster
from millrace.kafka.membership.base import BaseMember
from millrace.kafka.membership.classic.member import GroupMember
from millrace.kafka.membership.offsets import CommittedOffsets
from millrace.kafka.membership.state import NO_GENERATION, MemberState
from millrace.kafka.membership.streams.heartbeat import StreamsMemberInfo
from millrace.kafka.membership.streams.member import StreamsGroupMember
from millrace.plan.topology_plan import TopologyPlan
from millrace.records import OffsetAndMetadata, TaskId, TopicPartition
from millrace.topology.physical_topology import BuiltTopology

TaskOffsetSums = Callable[[], Mapping[TaskId, int]]
"""Returns, for each task with state here, the sum of its changelog offsets or one of the sentinels (formats §10)."""

_SHUTDOWN_ANSWER_S = 10.0
"""How long the answer may take once the other members have rejoined, or have run out of time for it."""
_LEAVE_S = 5.0
"""How long leaving the group may take."""
_UNFIT_AGAIN_S = 10.0
"""How long to wait before asking a leader of another version again; rolling updates wait until the group is stable."""
_log = logging.getLogger(__name__)


def may_create_topics(plan: TopologyPlan, config: StreamsConfig) -> bool:
    """Return whether this application creates its internal topics; with `__internal.topics.create__=false` the operator does.

    A topology with source patterns always creates its own: its needs are known only when a topic matches.
    """
    by_pattern = any(item.source_patterns for item in plan.subtopologies)
    return by_pattern or str(config.internal("__internal.topics.create__", "true")).lower() != "false"


class GroupMembership(ABC):
    """The membership of one stream thread; used by that thread only."""

    def __init__(self, member: BaseMember, progress: LoopProgress, *, timeout_s: float) -> None:
        self.client = member
        """The group client; others use it only to look at its identity and state."""
        self.refused_tasks: tuple[str, ...] = ()
        """Assigned tasks that are refused, because the group's leader has another topology."""
        self._progress = progress
        self._timeout_s = timeout_s

    @property
    def rebalancing(self) -> bool:
        """Whether the group is between generations: commits wait."""
        return self.client.rebalancing

    @property
    def generation(self) -> int:
        """The group's generation that this member is in, -1 for none."""
        return self.client.generation

    def moves_on_from(self, generation: int) -> bool:
        """Whether a generation that the group has just refused is over, but not this membership.

        The member learns a moment later that it is in the next generation. As long as it is a member, nobody else gets its
        partitions before it has given them up.
        """
        client = self.client
        known = client.generation
        return known != NO_GENERATION and (client.state is MemberState.JOINING or known != generation)

    def start(self) -> None:
        """Connect to the brokers; the first `poll` joins."""
        self.client.start()

    def poll(self) -> list[GroupEvent]:
        """Return what happened in the group since the last call; does not wait.

        Raises:
            StreamsError: the group cannot be joined, or tasks cannot be assigned.
        """
        return self.client.poll()

    @abstractmethod
    def accept(self, event: Assigned) -> AssignedTasks:
        """Read an assignment that `poll` has just returned.

        Raises:
            MissingSourceTopicError: the leader found that input topics are missing.
            TaskAssignmentError: the leader could not assign.
        """

    @abstractmethod
    def rejoin_without_tasks(self, reason: str) -> None:
        """Rejoin without owning anything, because the thread has dropped its tasks."""

    @abstractmethod
    def request_shutdown_of_all(self) -> bool:
        """Tell every member of the application to stop, and wait for the answer; leaving earlier could lose the request.

        Returns:
            Whether this member has not lost its tasks meanwhile; otherwise they must not be committed.
        """

    def ask_committed(self, partitions: Collection[TopicPartition]) -> CommittedOffsets:
        """Request committed offsets without waiting; each arrives once no transaction is pending on it."""
        return self.client.ask_committed(partitions, self._timeout_s)

    def commit_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float | None = None
    ) -> None:
        """Commit offsets with the member's generation; waits for `task.timeout.ms` by default."""
        with self._progress.waiting_for("offsets to be committed"):
            self.client.commit_offsets(offsets, self._timeout_s if timeout_s is None else timeout_s)

    def group_metadata(self) -> bytes:
        """Return the argument of `send_offsets_to_transaction`."""
        return self.client.group_metadata()

    def close(self, *, leave_group: bool | None = None) -> None:
        """End the membership; with None dynamic members leave, and static ones keep their place until their session times out."""
        self.client.close(
            leave_group=False if self._progress.given_up else leave_group,
            timeout_s=min(_LEAVE_S, self._progress.left_s(at_least=1.0)),
        )


class ClassicMembership(GroupMembership):
    """A membership with the classic protocol: the group's leader, which is one of its members, assigns the tasks."""

    def __init__(
        self,
        member: GroupMember,
        protocol: MemberProtocol,
        leader: GroupLeader,
        progress: LoopProgress,
        inputs: InputTopics,
        *,
        timeout_s: float,
        rebalance_s: float,
    ) -> None:
        super().__init__(member, progress, timeout_s=timeout_s)
        self._member = member
        self._protocol = protocol
        self._leader = leader
        self._rebalance_s = rebalance_s
        self._inputs = inputs
        self._asks = member.instance_id is not None and inputs.changed
        self._had_unfit = False
        self._rejoin: Deadline | None = None
        """When to ask for a follow-up rebalance."""

    def poll(self) -> list[GroupEvent]:
        """Return what happened in the group since the last call; does not wait."""
        if self._rejoin is not None and self._rejoin.passed:
            self._rejoin = None
            self._member.request_rejoin("a follow-up rebalance is due")
        return super().poll()

    def accept(self, event: Assigned) -> AssignedTasks:
        """Read an assignment, and leave out tasks whose input this topology does not read.

        If the leader could not assign, all members are told by a code; what this one raises if it leads says more. It learns that
        together with the others, and never if its assignment was obsolete before anybody was told.
        """
        try:
            tasks = self._protocol.accept(event)
        except (MissingSourceTopicError, TaskAssignmentError) as error:
            raise (self._leader.error if self._member.is_leader else None) or error from None
        at_ms = tasks.next_rebalance_ms  # of the wall clock, which may be set back while this member waits
        self._rejoin = None if at_ms is None else Deadline(at_ms / 1000 - time.time_ns() / 1e9)
        given = [*tasks.active.items(), *tasks.standby.items()]
        unfit = sorted({task for task, inputs in given if not self._inputs.fits(task, inputs)})
        if unfit:
            self._rejoin = Deadline(_UNFIT_AGAIN_S if self._had_unfit else 0)
            names = ", ".join(map(str, unfit))
            _log.warning(
                "The group's leader has another topology: tasks %s are not taken, because their input is not read here. "
                "Run the same program in all instances, or give this one its own application.id",
                names,
            )
            tasks = replace(
                tasks,
                active={task: inputs for task, inputs in tasks.active.items() if task not in unfit},
                standby={task: inputs for task, inputs in tasks.standby.items() if task not in unfit},
            )
        elif self._asks:
            self._rejoin = Deadline(0)
        else:
            self._inputs.keep()
        self._had_unfit, self._asks = bool(unfit), False
        self.refused_tasks = tuple(map(str, unfit))
        return tasks

    def rejoin_without_tasks(self, reason: str) -> None:
        """Rejoin without owning anything, because the thread has dropped its tasks."""
        self._member.reset(reason, keep_member_id=True)

    def request_shutdown_of_all(self) -> bool:
        """Tell every member of the application to stop, and wait for the answer, which this member gets too.

        It comes once all have rejoined, for which they have `max.poll.interval.ms`; if this member left earlier, its request
        would be lost.

        Returns:
            Whether this member has not lost its tasks meanwhile; otherwise they must not be committed.
        """
        self._protocol.error_code = AssignorError.SHUTDOWN_REQUESTED
        self._member.request_rejoin("the application is to stop everywhere")
        deadline, has_tasks = Deadline(self._rebalance_s + _SHUTDOWN_ANSWER_S), True
        while not deadline.passed and not self._progress.given_up:
            for event in self._member.poll(0.1):
                has_tasks = has_tasks and not isinstance(event, Lost)
                if isinstance(event, Assigned) and self._protocol.accept(event).shutdown_requested:
                    return has_tasks
        return has_tasks


class StreamsMembership(GroupMembership):
    """A membership with the streams protocol (KIP-1071): the brokers assign the tasks, and create the internal topics."""

    def __init__(self, member: StreamsGroupMember, progress: LoopProgress, *, timeout_s: float) -> None:
        super().__init__(member, progress, timeout_s=timeout_s)
        self._member = member

    def accept(self, event: Assigned) -> AssignedTasks:
        """Return the tasks that belong to an assignment."""
        del event  # has their partitions only
        return self._member.tasks

    def rejoin_without_tasks(self, reason: str) -> None:
        """Rejoin without owning anything, because the thread has dropped its tasks."""
        self._member.reset(reason)

    def request_shutdown_of_all(self) -> bool:
        """Tell every member of the application to stop, and wait for the coordinator's answer."""
        self._member.shut_down_application(_SHUTDOWN_ANSWER_S)
        return True  # partitions lost meanwhile are not known yet, and cannot be committed


class MembershipFactory:
    """Creates the memberships of a client's threads.

    Args:
        topology: what the group reads.
        config: the application's settings.
        settings: the clients' settings.
        directory: this instance's, locked.
        admin: used when a member leads the group.
    """

    def __init__(
        self,
        topology: BuiltTopology,
        config: StreamsConfig,
        settings: ClientSettings,
        directory: StateDirectory,
        admin: AdminClient,
    ) -> None:
        self._config = config
        self._settings = settings
        self._process_id = directory.process_id
        self._admin = admin
        self._inputs = InputTopics(topology, directory.path if directory.persistent else None)
        self._plan = topology.plan()
        self._assignor = select_assignor(config.task_assignor_class)
        self._subscription = TopicSubscription.of(
            {topic for subtopology in topology.subtopologies for topic in subtopology.source_topics},
            [pattern.pattern for subtopology in topology.subtopologies for pattern in subtopology.source_patterns],
        )

    def __call__(self, thread: int, offset_sums: TaskOffsetSums, progress: LoopProgress) -> GroupMembership:
        """Return the membership of a thread, not started.

        Args:
            thread: its number, from 1.
            offset_sums: returns the local state; called each time the member joins.
            progress: the thread's; records waits for a broker.
        """
        config, timeout_s = self._config, self._config.task_timeout_ms / 1000
        if config.group_protocol is GroupProtocol.STREAMS:
            info = StreamsMemberInfo(
                self._plan,
                self._process_id,
                HostInfo.parse(config.application_server) if config.application_server else None,
                config.prefixed("client.tag."),
                config.replication_factor,
            )
            return StreamsMembership(StreamsGroupMember(self._settings, thread, info), progress, timeout_s=timeout_s)
        protocol = MemberProtocol(
            self._process_id, end_point=config.application_server, client_tags=config.prefixed("client.tag.")
        )

        def committed_offsets(partitions: Collection[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, int]:
            return member.committed_offsets(partitions, timeout_s)

        may_create = may_create_topics(self._plan, config)
        cluster = LeaderCluster(self._plan, self._admin, config, committed_offsets, create_topics=may_create)
        assignment_config = AssignmentConfig.of(config)
        leader = GroupLeader(
            self._plan,
            self._process_id,
            cluster,
            assignment_config,
            assignor=self._assignor,
            patience_ms=config.task_timeout_ms,
        )

        def assign(members: Mapping[str, MemberSubscription]) -> Future[Mapping[str, MemberAssignment]]:
            name = f"{self._settings.thread_name(thread)}-assignment"
            return background.in_background(name, lambda: leader(members), lambda: progress.given_up)

        member = GroupMember(
            self._settings,
            thread,
            self._subscription,
            user_data=lambda: protocol.user_data(offset_sums()),
            assign=assign,
        )
        return ClassicMembership(
            member,
            protocol,
            leader,
            progress,
            self._inputs,
            timeout_s=timeout_s,
            rebalance_s=self._settings.membership(thread).max_poll_interval_ms / 1000,
        )


INPUT_TOPICS_FILE = "millrace-reads"


class InputTopics:
    """The topics that each sub-topology reads now, and read when this instance was last given tasks.

    A returning static member gets its old assignment without a rebalance, even if its program now reads other topics, as
    brokers do not inspect subscriptions. So the instance stores the topics in its state directory, and asks for a rebalance
    when they have changed. It ignores partitions that its topology does not read, which a leader of another version may
    assign.

    Args:
        topology: The topology.
        path: The application's directory; None if nothing is stored on disk.
    """

    def __init__(self, topology: BuiltTopology, path: Path | None) -> None:
        self._topics = {item.id: frozenset(item.source_topics) for item in topology.subtopologies}
        self._patterns = {item.id: [each.pattern for each in item.source_patterns] for item in topology.subtopologies}
        self._path = None if path is None else path / INPUT_TOPICS_FILE
        self._kept = False

    @property
    def changed(self) -> bool:
        """Whether the topics are, or may be, different from when this instance was last given tasks."""
        if self._path is None:
            return True
        try:
            return self._path.read_text() != self._text()
        except OSError:
            return False  # a new instance, for which the group rebalances anyway

    def keep(self) -> None:
        """Store the topics read now; failures are ignored, as the stores report a directory that cannot be written to."""
        if self._path is None or self._kept:
            return
        with contextlib.suppress(OSError):
            self._path.write_text(self._text())
            self._kept = True

    def fits(self, task: TaskId, partitions: Collection[TopicPartition]) -> bool:
        """Return whether a task's input matches what its sub-topology reads here."""
        if self._patterns.get(task.subtopology):
            return True
        return {item.topic for item in partitions} <= self._topics.get(task.subtopology, frozenset())

    def _text(self) -> str:
        content = {
            str(number): [sorted(self._topics[number]), self._patterns[number]] for number in sorted(self._topics)
        }
        return json.dumps(content)
