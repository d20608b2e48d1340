"""A model of a streams group's coordinator (KIP-1071): topology, epochs, tasks, and how they move from member to member.

Takes the request objects that Millrace's members send, and answers at once with objects that have the same fields as the
library's. So our own member runs against it unchanged. It follows the brokers of release 4.3: no static members and no warm-ups.

Epochs: a change of members or topics raises the group's. At the next heartbeat for which that is not too early, a target for all
members is made, which has the group's epoch. Every member moves towards it at its own heartbeats:

STABLE      has the target's tasks and epoch
UNREVOKED   keeps its epoch until it reports that it no longer owns what it has to give up
UNRELEASED  has the target's epoch, and lacks tasks that others have not yet given up
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any, Final

from millrace.kafka.membership.streams.state import (
    ASSIGNMENT_DELAYED,
    MISSING_INTERNAL_TOPICS,
    MISSING_SOURCE_TOPICS,
    SHUTDOWN_APPLICATION,
)
from millrace.kafka.streams_messages import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from millrace.records import TaskId, TopicPartition
from millrace.testing.simulation.group_offsets import (
    ILLEGAL_GENERATION,
    UNKNOWN_MEMBER,
    BaseGroup,
    Handler,
    Timer,
    Timers,
)

__all__ = ["CreateTopic", "GroupSettings", "MemberTasks", "StreamsGroup"]

INVALID_REQUEST: Final = 42
GROUP_ID_NOT_FOUND: Final = 69
FENCED_MEMBER_EPOCH: Final = 110
STALE_MEMBER_EPOCH: Final = 113

CreateTopic = Callable[[str, int, Mapping[str, str]], None]
"""Creates a topic, given its name, number of partitions and settings."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a streams group, which its members do not know."""

    standbys: int = 0
    """`streams.num.standby.replicas`."""
    session_s: float = 10.0
    heartbeat_s: float = 3.0
    assignment_interval_s: float = 1.0
    """The minimum time between two targets."""
    initial_delay_s: float = 1.0
    """How long a group that was empty waits for more members."""
    creation_s: float = 0.2
    """How long it takes until internal topics exist."""

    @classmethod
    def of(cls, config: Mapping[str, object]) -> GroupSettings:
        """Read them from settings under Kafka's names."""

        def number(key: str, default: float) -> float:
            return float(str(config.get(f"streams.{key}", default)))

        return cls(
            standbys=int(number("num.standby.replicas", 0)),
            session_s=number("session.timeout.ms", 10_000) / 1000,
            heartbeat_s=number("heartbeat.interval.ms", 3_000) / 1000,
            assignment_interval_s=number("assignment.interval.ms", 1_000) / 1000,
            initial_delay_s=number("initial.rebalance.delay.ms", 1_000) / 1000,
        )


class _State(Enum):
    STABLE = "stable"
    UNREVOKED = "unrevoked"
    UNRELEASED = "unreleased"


@dataclass(slots=True)
class MemberTasks:
    """The tasks that a member has, or should have."""

    active: dict[TaskId, int] = field(default_factory=dict)
    """Each with the epoch in which the member was given it."""
    standby: set[TaskId] = field(default_factory=set)


@dataclass(slots=True)
class _Member:
    member_id: str
    process_id: str
    rebalance_s: float
    epoch: int = 0
    previous_epoch: int = -1
    state: _State = _State.STABLE
    tasks: MemberTasks = field(default_factory=MemberTasks)
    leaving: MemberTasks = field(default_factory=MemberTasks)
    """The tasks it has not yet given up."""
    session: Timer | None = None
    revocation: Timer | None = None


class StreamsGroup(BaseGroup):
    """One group and its coordinator.

    Args:
        timers: for sessions and rebalances.
        topics: the cluster's topics, with their partition counts.
        create_topic: creates an internal topic.
        settings: the group's.
        assign: assigns tasks to members, instead of the model's own simple rule.
    """

    def __init__(
        self,
        timers: Timers,
        topics: Mapping[str, int],
        create_topic: CreateTopic,
        settings: GroupSettings,
        assign: Callable[[], dict[str, MemberTasks]] | None = None,
    ) -> None:
        super().__init__()
        self.generation = self._target_epoch = 1  # so that a member never has epoch 0
        self._timers = timers
        self._topics = topics
        self._create_topic = create_topic
        self._settings = settings
        self._assign = assign or self._assign_fairly
        self.members: dict[str, _Member] = {}
        self._topology: Any = None
        self._counts: dict[str, int | None] = {}
        """Of the topology's topics, as of the last heartbeat."""
        self._tasks: list[TaskId] | None = None
        """All tasks; None while topics are missing."""
        self._problem: tuple[int, str] | None = None
        self._target: dict[str, MemberTasks] = {}
        self._starting = self._resting = self._creating = False
        """Whether the group waits for more members; has just made a target; creates topics."""
        self._shutdown = False

    def _handlers(self) -> dict[type, Handler]:
        return {
            **super()._handlers(),
            StreamsGroupHeartbeatRequest: lambda request, answer: answer(self._heartbeat(request)),
            StreamsGroupDescribeRequest: lambda _request, answer: answer(self._describe()),
        }

    def is_settled(self, members: Collection[str]) -> bool:
        """Whether these are its members, and each has all tasks of the latest target."""
        return (
            self.members.keys() == set(members)
            and self._target_epoch == self.generation
            and all(one.state is _State.STABLE and one.epoch == self.generation for one in self.members.values())
        )

    def moves(self, member_id: str) -> bool:
        """Whether a member has yet to reach the group's epoch, or lacks tasks."""
        member = self.members.get(member_id)
        return member is not None and (member.state is not _State.STABLE or member.epoch != self.generation)

    # Offsets

    def _check_commit(
        self, partitions: Collection[TopicPartition], generation: int, member_id: str, instance_id: str | None
    ) -> int:
        """Refuse non-members, and partitions that the member was given after its epoch."""
        del instance_id
        if generation < 0 and not self.members:
            return 0
        member = self.members.get(member_id)
        if member is None:
            return UNKNOWN_MEMBER
        if generation == member.epoch:
            return 0
        if generation > member.epoch:
            return STALE_MEMBER_EPOCH
        given = {**member.leaving.active, **member.tasks.active}
        readers = {topic: int(each.subtopology_id) for each in self._topology.subtopologies for topic in _read(each)}
        since = [given.get(TaskId(readers.get(topic, -1), number)) for topic, number in partitions]
        return 0 if all(epoch is not None and epoch <= generation for epoch in since) else STALE_MEMBER_EPOCH

    def _check_transaction(
        self, partitions: Collection[TopicPartition], generation: int, member_id: str, instance_id: str | None
    ) -> int:
        code = self._check_commit(partitions, generation, member_id, instance_id)
        return ILLEGAL_GENERATION if code == STALE_MEMBER_EPOCH else code

    # Heartbeats

    def _heartbeat(self, request: Any) -> SimpleNamespace:
        member, joins = self.members.get(request.member_id), request.member_epoch == 0
        owned = None if request.active_tasks is None else _reported(request)
        code = self._check_join(request, owned) if joins else self._check_member(request, owned)
        if code:
            return _answer(error_code=code, error_message=f"error {code}")
        if request.member_epoch < 0:
            assert member is not None
            self._remove(member)
            return _answer(member_id=member.member_id, member_epoch=request.member_epoch)
        self._topology = self._topology or request.topology
        is_new = member is None
        if member is None:
            member = self._add(request)
        if self._look_at_topics() or is_new:
            self.generation += 1
        self._make_target()
        before = (member.tasks.active.keys(), member.tasks.standby)
        self._reconcile(member, owned)
        self._keep(member)
        self._shutdown = self._shutdown or request.shutdown_application
        answer = _answer(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=int(self._settings.heartbeat_s * 1000),
            status=self._statuses(),
        )
        if joins or before != (member.tasks.active.keys(), member.tasks.standby):
            vars(answer).update(_given(member.tasks))
        return answer

    def _check_join(self, request: Any, owned: MemberTasks | None) -> int:
        """Return why a heartbeat that joins is refused: an error code, or 0."""
        complete = request.topology is not None and request.rebalance_timeout_ms >= 0 and owned == MemberTasks()
        return 0 if complete and (self._topology is None or self._topology == request.topology) else INVALID_REQUEST

    def _check_member(self, request: Any, owned: MemberTasks | None) -> int:
        """Return why a member's heartbeat is refused: an error code, or 0.

        The epoch before its latest is accepted if it only has tasks of its target: it has missed the last answer.
        """
        if self._topology is None:
            return GROUP_ID_NOT_FOUND
        member = self.members.get(request.member_id)
        if member is None:
            return UNKNOWN_MEMBER
        missed = (
            request.member_epoch == member.previous_epoch
            and owned is not None
            and owned.active.keys() <= member.tasks.active.keys()
            and owned.standby <= member.tasks.standby
        )
        return 0 if request.member_epoch in {-1, member.epoch} or missed else FENCED_MEMBER_EPOCH

    def _add(self, request: Any) -> _Member:
        if not self.members and self._settings.initial_delay_s > 0 and not self._starting:
            self._starting = True
            self._timers.later(self._settings.initial_delay_s, self._started)
        member = _Member(request.member_id, request.process_id, request.rebalance_timeout_ms / 1000)
        self.members[member.member_id] = member
        return member

    def _started(self) -> None:
        self._starting = False

    def _remove(self, member: _Member) -> None:
        for timer in (member.session, member.revocation):
            if timer is not None:
                timer.cancel()
        del self.members[member.member_id]
        self._target.pop(member.member_id, None)
        self.generation += 1
        self._shutdown = self._shutdown and bool(self.members)

    def _keep(self, member: _Member) -> None:
        """Begin a member's session, or extend it."""
        if member.session is not None:
            member.session.cancel()
        member.session = self._timers.later(self._settings.session_s, lambda: self._remove(member))

    def _statuses(self) -> list[SimpleNamespace]:
        found = [] if self._problem is None else [self._problem]
        if self._target_epoch < self.generation:
            found.append((ASSIGNMENT_DELAYED, "the assignment is delayed"))
        if self._shutdown:
            found.append((SHUTDOWN_APPLICATION, "a member has asked for it"))
        return [SimpleNamespace(status_code=code, status_detail=detail) for code, detail in found]

    def _describe(self) -> SimpleNamespace:
        members = [
            SimpleNamespace(member_id=one.member_id, assignment=SimpleNamespace(**_given(one.tasks)))
            for one in self.members.values()
        ]
        return SimpleNamespace(groups=[SimpleNamespace(error_code=0, members=members)])

    # Topics

    def _look_at_topics(self) -> bool:
        """Find out which tasks there are, and create internal topics that are missing; return whether topics have changed."""
        wanted = _partitions_needed(self._topology, self._topics)
        counts = {topic: self._topics.get(topic) for topic in wanted}
        changed, self._counts = counts != self._counts, counts
        internal = _internal(self._topology)
        sources = sorted(topic for topic, count in counts.items() if count is None and topic not in internal)
        missing = sorted(topic for topic, count in counts.items() if count is None and topic in internal)
        if sources:
            self._problem = MISSING_SOURCE_TOPICS, f"Source topics {', '.join(sources)} are missing"
        elif missing:
            self._problem = MISSING_INTERNAL_TOPICS, f"Internal topics {', '.join(missing)} are missing"
            if not self._creating:
                self._creating = True
                self._timers.later(
                    self._settings.creation_s, lambda: self._create({topic: wanted[topic] for topic in missing})
                )
        else:
            self._problem = None
        self._tasks = None
        if self._problem is None:
            self._tasks = [
                TaskId(int(each.subtopology_id), number)
                for each in self._topology.subtopologies
                for number in range(max(self._topics[topic] for topic in _read(each)))
            ]
        return changed

    def _create(self, wanted: Mapping[str, int]) -> None:
        self._creating = False
        internal = _internal(self._topology)
        for topic, count in wanted.items():
            if topic not in self._topics:
                self._create_topic(topic, count, {item.key: item.value for item in internal[topic].topic_configs})

    # Tasks

    def _make_target(self) -> None:
        """Assign all tasks, if something has changed and it is not too early."""
        if self._target_epoch == self.generation or self._starting or self._resting:
            return
        self._target_epoch = self.generation
        self._target = self._assign()
        if self._settings.assignment_interval_s > 0:
            self._resting = True
            self._timers.later(self._settings.assignment_interval_s, self._rested)

    def _assign_fairly(self) -> dict[str, MemberTasks]:
        stateful = {int(each.subtopology_id) for each in self._topology.subtopologies if each.state_changelog_topics}
        tasks = self._tasks or []
        copies = [task for task in tasks if task.subtopology in stateful] * self._settings.standbys
        return _assign(tasks, copies, self.members.values(), self._target)

    def _rested(self) -> None:
        self._resting = False

    def _reconcile(self, member: _Member, owned: MemberTasks | None) -> None:
        """Let a member come closer to the target.

        Args:
            member: the member.
            owned: the tasks that it reports to own; None if it reports none.
        """
        epoch = member.epoch
        if member.state is _State.STABLE and epoch == self._target_epoch:
            return
        if member.state is _State.UNREVOKED:
            if owned is None or _share(owned, member.leaving):
                return
            epoch += 1
        had, target = member.tasks, self._target.get(member.member_id, MemberTasks())
        kept = MemberTasks({task: since for task, since in had.active.items() if task in target.active})
        kept.standby = had.standby & target.standby
        leaving = MemberTasks({task: since for task, since in had.active.items() if task not in target.active})
        leaving.standby = had.standby - target.standby
        was_revoking = member.revocation
        if was_revoking is not None:
            was_revoking.cancel()
            member.revocation = None
        member.previous_epoch = member.epoch
        if (leaving.active or leaving.standby) and (owned is None or _share(owned, leaving)):
            member.state, member.epoch, member.tasks, member.leaving = _State.UNREVOKED, epoch, kept, leaving
            member.revocation = self._timers.later(member.rebalance_s, lambda: self._remove(member))
            return
        # What the member has just given up is not free for it yet: a task whose role changes takes two steps.
        free_active = {task for task in target.active if task not in kept.active and self._is_free(task, member)}
        free_standby = {
            task for task in target.standby - kept.standby if not self._is_in_process(task, member.process_id)
        }
        member.tasks, member.leaving = kept, MemberTasks()
        lacks = len(kept.active) + len(free_active) < len(target.active) or (
            len(kept.standby) + len(free_standby) < len(target.standby)
        )
        member.state = _State.UNRELEASED if lacks else _State.STABLE
        member.epoch = self._target_epoch
        kept.active.update(dict.fromkeys(sorted(free_active), self._target_epoch))
        kept.standby |= free_standby

    def _is_free(self, task: TaskId, member: _Member) -> bool:
        """Whether nobody has an active task, and the process of its future member has no copy of it."""
        taken = any(task in one.tasks.active or task in one.leaving.active for one in self.members.values())
        return not taken and not self._is_in_process(task, member.process_id)

    def _is_in_process(self, task: TaskId, process_id: str) -> bool:
        return any(
            task in tasks.active or task in tasks.standby
            for one in self.members.values()
            if one.process_id == process_id
            for tasks in (one.tasks, one.leaving)
        )


def _assign(
    tasks: Sequence[TaskId], copies: Sequence[TaskId], members: Collection[_Member], before: Mapping[str, MemberTasks]
) -> dict[str, MemberTasks]:
    """Return the tasks of each member: as before where that is fair, then where there was a standby.

    Args:
        tasks: all tasks.
        copies: the tasks to have standbys, each as often as it needs some.
        members: the group's members.
        before: the previous target.
    """
    target = {one.member_id: MemberTasks() for one in members}
    if not target:
        return target
    most, larger = -(-len(tasks) // len(members)), len(tasks) % len(members)
    load: Counter[str] = Counter()

    def has_room(name: str) -> bool:
        at_most = sum(1 for count in load.values() if count == most)
        return load[name] < most - 1 or (load[name] < most and (not larger or at_most < larger))

    def least(names: Iterable[str]) -> str:
        return min(names, key=lambda name: load[name])

    homeless = []
    for task in tasks:
        owners = [name for name, had in before.items() if task in had.active and name in target]
        if owners and has_room(owners[0]):
            target[owners[0]].active[task] = 0
            load[owners[0]] += 1
        else:
            homeless.append(task)
    for task in homeless:
        owners = [name for name, had in before.items() if task in had.standby and name in target and has_room(name)]
        name = least(owners or target)
        target[name].active[task] = 0
        load[name] += 1
    processes = {one.member_id: one.process_id for one in members}
    for task in copies:
        busy = {processes[name] for name, has in target.items() if task in has.active or task in has.standby}
        free = [name for name in target if processes[name] not in busy]
        if free:
            name = least([name for name in free if name in before and task in before[name].standby] or free)
            target[name].standby.add(task)
            load[name] += 1
    return target


def _read(subtopology: Any) -> list[str]:
    return [*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics)]


def _internal(topology: Any) -> dict[str, Any]:
    """Return the descriptions of a topology's internal topics."""
    return {
        topic.name: topic
        for each in topology.subtopologies
        for topic in (*each.repartition_source_topics, *each.state_changelog_topics)
    }


def _partitions_needed(topology: Any, topics: Mapping[str, int]) -> dict[str, int]:
    """Return how many partitions each topic of a topology has or should have; 0 if that depends on a missing topic."""
    needed = {topic: topics.get(topic, 0) for each in topology.subtopologies for topic in each.source_topics}
    repartition = {topic.name: topic for each in topology.subtopologies for topic in each.repartition_source_topics}
    needed.update({name: topics.get(name, topic.partitions) for name, topic in repartition.items()})
    for _ in topology.subtopologies:  # the longest way from a source topic has no more steps
        for each in topology.subtopologies:
            most = max(needed[topic] for topic in _read(each))
            for name in each.repartition_sink_topics:
                if name not in topics and not repartition[name].partitions:
                    needed[name] = max(needed[name], most)
    for each in topology.subtopologies:
        most = max(needed[topic] for topic in _read(each))
        needed.update({topic.name: topics.get(topic.name, most) for topic in each.state_changelog_topics})
    return needed


def _share(some: MemberTasks, others: MemberTasks) -> bool:
    return bool(some.active.keys() & others.active.keys() or some.standby & others.standby)


def _reported(request: Any) -> MemberTasks:
    return MemberTasks(dict.fromkeys(_ids(request.active_tasks), 0), set(_ids(request.standby_tasks)))


def _ids(items: Iterable[Any]) -> list[TaskId]:
    return [TaskId(int(item.subtopology_id), number) for item in items for number in item.partitions]


def _given(tasks: MemberTasks) -> dict[str, list[SimpleNamespace]]:
    return {
        "active_tasks": _grouped(tasks.active),
        "standby_tasks": _grouped(tasks.standby),
        "warmup_tasks": [],
    }


def _grouped(tasks: Iterable[TaskId]) -> list[SimpleNamespace]:
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    for task in sorted(tasks):
        numbers[task.subtopology].append(task.partition)
    return [SimpleNamespace(subtopology_id=str(number), partitions=parts) for number, parts in numbers.items()]


def _answer(**fields: object) -> SimpleNamespace:
    given = {
        "error_code": 0,
        "error_message": None,
        "member_id": "",
        "member_epoch": -1,
        "heartbeat_interval_ms": 0,
        "status": None,
        "active_tasks": None,
        "standby_tasks": None,
        "warmup_tasks": None,
        "endpoint_information_epoch": 0,
        "partitions_by_user_endpoint": None,
    }
    return SimpleNamespace(**(given | fields))
