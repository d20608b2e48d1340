"""Assigning a group's tasks: from the subscriptions of all members to their assignments, in one call of the leader.

Members are grouped by process; an assignor places tasks on processes; `threads` places them on members; and then cooperative
rebalancing (KIP-429) takes out what another member still owns: its owner gives it up first, and the next rebalance assigns it.
A process is told when to ask for the next one, if tasks warm up; `millrace.instance.membership` keeps that time.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from millrace.assignment.application_state import (
    LATEST_OFFSET,
    UNKNOWN_OFFSET_SUM,
    ApplicationState,
    AssignmentConfig,
    ClientState,
    HostInfo,
    TaskAssignment,
    TaskAssignor,
    TaskInfo,
)
from millrace.assignment.custom import AssignmentError, validate_task_assignment
from millrace.assignment.payloads import (
    LATEST_VERSION,
    NO_REBALANCE,
    AssignmentInfo,
    AssignorError,
    SubscriptionInfo,
    decode_subscription_info,
    encode_assignment_info,
    subscription_version,
)
from millrace.assignment.protocol import MemberAssignment, MemberSubscription
from millrace.assignment.threads import ThreadAssignment, assign_to_threads
from millrace.errors import TaskAssignmentError
from millrace.java_collections import hash_order
from millrace.plan.topology_plan import TopologyPlan, changelog_topics, repartition_topics
from millrace.records import TaskId, TopicPartition

log = logging.getLogger("millrace.assignment")

_RETRY_WITHOUT_LAGS_MS = 60_000


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The members of a group, with their user data decoded."""

    members: Mapping[str, MemberSubscription]
    infos: Mapping[str, SubscriptionInfo]
    """The members' user data, except for those with an unknown version."""
    owners: Mapping[TopicPartition, str]
    """Which member owns each partition now; if two claim it, the one with the later generation."""
    newer: frozenset[str] = frozenset()
    """Members with a later version than this code knows; they keep what they own until all members agree on a version."""
    processes: Mapping[UUID, tuple[str, ...]] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The version that all members can read."""
        return min((info.version for info in self.infos.values()), default=LATEST_VERSION)

    @property
    def supported_version(self) -> int:
        """The latest version that all members support."""
        known = [info.latest_supported_version for info in self.infos.values() if info.latest_supported_version > 0]
        return min([*known, LATEST_VERSION])

    @property
    def shutdown_requested(self) -> bool:
        """Whether a member has requested that the whole application stop."""
        return any(info.error_code == AssignorError.SHUTDOWN_REQUESTED for info in self.infos.values())


def read_group(members: Mapping[str, MemberSubscription]) -> GroupMembers:
    """Decode the members' user data.

    Raises:
        TaskAssignmentError: A member sent data that cannot be read.
    """
    newer = frozenset(m for m, sub in members.items() if subscription_version(sub.user_data) > LATEST_VERSION)
    infos = {m: decode_subscription_info(sub.user_data) for m, sub in members.items() if m not in newer}
    return group_members(members, infos)


def group_members(members: Mapping[str, MemberSubscription], infos: Mapping[str, SubscriptionInfo]) -> GroupMembers:
    """Find out who owns what, and which members form a process.

    Args:
        members: All members.
        infos: Their user data, except for those with an unknown version.
    """
    owners: dict[TopicPartition, str] = {}
    for member, subscription in sorted(members.items(), key=lambda item: (item[1].generation, item[0])):
        owners.update(dict.fromkeys(subscription.owned, member))
    processes: dict[UUID, list[str]] = {}
    for member in hash_order(sorted(infos)):
        processes.setdefault(infos[member].process_id, []).append(member)
    return GroupMembers(
        members,
        infos,
        owners,
        frozenset(members.keys() - infos.keys()),
        {process: tuple(sorted(ids)) for process, ids in processes.items()},
    )


def assign_group(
    group: GroupMembers,
    tasks: Mapping[TaskId, TaskInfo],
    end_offset_sums: Mapping[TaskId, int] | None,
    racks: Mapping[TopicPartition, frozenset[str]],
    config: AssignmentConfig,
    assignor: TaskAssignor,
    *,
    leader: UUID,
    now_ms: int,
) -> dict[str, MemberAssignment]:
    """Assign a group's tasks.

    Args:
        group: All members.
        tasks: All tasks.
        end_offset_sums: Stateful task → sum of its changelogs' end offsets; None if they could not be read.
        racks: Partition → racks of its replicas, for rack-aware assignment.
        config: The settings of assignors.
        assignor: Places tasks on processes.
        leader: The process that asks for a probing rebalance if one is needed.
        now_ms: Milliseconds since the epoch.

    Raises:
        TaskAssignmentError: The assignor's decision is not valid.
    """
    task_of = {tp: task for task, info in tasks.items() for tp in info.partitions}
    kept = {task_of[tp] for tp, member in group.owners.items() if member in group.newer and tp in task_of}
    clients = client_states(group, tasks, end_offset_sums)
    state = ApplicationState(clients, {task: tasks[task] for task in tasks if task not in kept}, config, racks)
    decision = assignor(state) if clients else TaskAssignment({})
    error = validate_task_assignment(state, decision)
    if error is not AssignmentError.NONE:
        raise TaskAssignmentError(f"The task assignor's decision is not valid: {error}")
    stateful = state.stateful
    threads: dict[str, ThreadAssignment] = {}
    for process, members in group.processes.items():
        previous = {member: clients[process].previous_tasks_by_lag(member) for member in members}
        threads |= assign_to_threads(decision.clients[process], stateful, previous)
    probe_ms = config.probing_rebalance_interval_ms
    if end_offset_sums is None:
        probe_ms = min(probe_ms, _RETRY_WITHOUT_LAGS_MS)
    due_ms = {process: assigned.followup_rebalance_ms for process, assigned in decision.clients.items()}
    if decision.probing_rebalance_needed:
        due_ms[leader] = now_ms + probe_ms
    return _encode(group, tasks, state, decision, threads, due_ms)


def error_assignments(group: GroupMembers, error: AssignorError) -> dict[str, MemberAssignment]:
    """Return assignments that tell every member why it gets no tasks."""
    info = AssignmentInfo(error_code=error, version=group.version, commonly_supported_version=group.supported_version)
    return dict.fromkeys(group.members, MemberAssignment((), encode_assignment_info(info)))


def kept_assignments(
    group: GroupMembers, plan: TopologyPlan, *, leader: UUID, retry_at_ms: int
) -> dict[str, MemberAssignment]:
    """Return assignments with which every member keeps the tasks that it has, and the leader asks for another rebalance.

    Args:
        group: All members.
        plan: The application, which says whose topics these are: partition counts are not known.
        leader: The process that asks.
        retry_at_ms: When, in milliseconds since the epoch.
    """
    read_by = {topic: subtopology.id for subtopology in plan.subtopologies for topic in subtopology.source_topics}
    internal = repartition_topics(plan).keys() | changelog_topics(plan).keys()
    for topic in {tp.topic for tp in group.owners} - read_by.keys() - internal:
        for subtopology in plan.subtopologies:
            if any(re.fullmatch(pattern, topic) for pattern in subtopology.source_patterns):
                read_by[topic] = subtopology.id
    task_of = {tp: TaskId(read_by[tp.topic], tp.partition) for tp in group.owners if tp.topic in read_by}
    inputs: dict[TaskId, frozenset[TopicPartition]] = {}
    for tp, task in task_of.items():
        inputs[task] = inputs.get(task, frozenset()) | {tp}
    active = {member: sorted(tp for tp in task_of if group.owners[tp] == member) for member in group.members}
    standby = {member: tasks & inputs.keys() for member, tasks in _standbys(group, task_of).items()}
    hosts: dict[HostInfo, frozenset[TopicPartition]] = {}
    standby_hosts: dict[HostInfo, frozenset[TopicPartition]] = {}
    for process, members in group.processes.items():
        if (host := _host(group, process)) is not None:
            hosts[host] = frozenset(tp for member in members for tp in active[member])
            copies = frozenset[TaskId]().union(*(standby[member] for member in members))
            standby_hosts[host] = frozenset(tp for task in copies for tp in inputs[task])
    asking = group.processes.get(leader, ())[:1]
    assignments = {}
    for member, kept in active.items():
        info = AssignmentInfo(
            active=tuple(task_of[tp] for tp in kept),
            standby={task: inputs[task] for task in standby.get(member, ())},
            partitions_by_host=hosts,
            standby_partitions_by_host=standby_hosts,
            next_rebalance_ms=retry_at_ms if member in asking else NO_REBALANCE,
            version=group.version,
            commonly_supported_version=group.supported_version,
        )
        assignments[member] = MemberAssignment(tuple(kept), encode_assignment_info(info))
    return assignments


def _standbys(group: GroupMembers, task_of: Mapping[TopicPartition, TaskId]) -> dict[str, frozenset[TaskId]]:
    """Return which standbys each member has, as far as its state says.

    A member also reports what lies in the directory of its process and nobody uses. If it has several members, all of them
    report that, and a standby only one.
    """
    found = {}
    for members in group.processes.values():
        reported = Counter(task for member in members for task in group.infos[member].task_offset_sums)
        active = {task_of[tp] for tp, owner in group.owners.items() if owner in members and tp in task_of}
        for member in members:
            had = group.infos[member].task_offset_sums
            found[member] = frozenset(task for task in had if reported[task] == 1 and task not in active)
    return found


def client_states(
    group: GroupMembers, tasks: Mapping[TaskId, TaskInfo], end_offset_sums: Mapping[TaskId, int] | None
) -> dict[UUID, ClientState]:
    """Return what the members of each process have reported.

    Args:
        group: All members.
        tasks: All tasks.
        end_offset_sums: Stateful task → sum of its changelogs' end offsets; None if they could not be read.
    """
    task_of = {tp: task for task, info in tasks.items() for tp in info.partitions}
    stateful = [task for task, info in tasks.items() if info.changelogs]
    if end_offset_sums is None:
        end_offset_sums = dict.fromkeys(stateful, UNKNOWN_OFFSET_SUM)
    clients = {}
    for process, members in group.processes.items():
        sums: dict[TaskId, int] = {}
        for member in members:
            for task, offset_sum in group.infos[member].task_offset_sums.items():
                sums[task] = offset_sum if task not in sums else _better(sums[task], offset_sum)
        owned = {
            task_of[tp]
            for member in members
            for tp in group.members[member].owned
            if group.owners.get(tp) == member and tp in task_of
        }
        active = frozenset(owned | {task for task, offset_sum in sums.items() if offset_sum == LATEST_OFFSET})
        racks = {group.members[member].rack_id for member in members}
        clients[process] = ClientState(
            process_id=process,
            capacity=len(members),
            previous_active=active,
            previous_standby=frozenset(sums) - active,
            lags={task: _lag(sums.get(task, 0), end_offset_sums.get(task, 0)) for task in stateful},
            tags=group.infos[members[0]].client_tags,
            rack=racks.pop() if len(racks) == 1 else None,
            host=_host(group, process),
            threads={member: frozenset(group.infos[member].task_offset_sums) for member in members},
        )
    return clients


def _better(one: int, other: int) -> int:
    return LATEST_OFFSET if LATEST_OFFSET in {one, other} else max(one, other)


def _lag(offset_sum: int, end_offset_sum: int) -> int:
    if offset_sum in {LATEST_OFFSET, UNKNOWN_OFFSET_SUM}:
        return offset_sum
    if offset_sum > end_offset_sum:
        return end_offset_sum  # the changelog was recreated: everything has to be restored
    return end_offset_sum - offset_sum


def _host(group: GroupMembers, process: UUID) -> HostInfo | None:
    end_point = next((e for member in group.processes[process] if (e := group.infos[member].user_end_point)), "")
    try:
        return HostInfo.parse(end_point) if end_point else None
    except ValueError:
        log.warning("Members of process %s have application.server=%s, which is not host:port", process, end_point)
        return None


def _encode(
    group: GroupMembers,
    tasks: Mapping[TaskId, TaskInfo],
    state: ApplicationState,
    decision: TaskAssignment,
    threads: Mapping[str, ThreadAssignment],
    due_ms: dict[UUID, int | None],
) -> dict[str, MemberAssignment]:
    """Return what every member is told.

    Args:
        group: All members.
        tasks: All tasks.
        state: The application, without the tasks of members with a newer version.
        decision: Which process gets which tasks.
        threads: Which member gets which tasks.
        due_ms: When a process has to ask for another rebalance.
    """
    hosts, standby_hosts = _hosts(state, decision)
    assignments = {}
    for member, thread in threads.items():
        process = group.infos[member].process_id
        waiting = {
            task
            for task in thread.active
            if any(group.owners.get(tp, member) != member for tp in state.tasks[task].partitions)
        }
        given = sorted((tp, task) for task in thread.active - waiting for tp in state.tasks[task].partitions)
        # State that is here already is kept until its task is.
        standby = thread.standby | (waiting & state.stateful & state.clients[process].previous_standby)
        next_rebalance_ms = NO_REBALANCE
        if waiting:
            next_rebalance_ms, due_ms[process] = 0, None
            log.info("Member %s will get %d more tasks once their owners have given them up", member, len(waiting))
        elif (due := due_ms.get(process)) is not None:
            next_rebalance_ms, due_ms[process] = due, None
        info = AssignmentInfo(
            active=tuple(task for _, task in given),
            standby={task: state.tasks[task].partitions for task in standby},
            partitions_by_host=hosts,
            standby_partitions_by_host=standby_hosts,
            next_rebalance_ms=next_rebalance_ms,
            version=group.version,
            commonly_supported_version=group.supported_version,
        )
        assignments[member] = MemberAssignment(tuple(tp for tp, _ in given), encode_assignment_info(info))
    for member in group.newer:
        assignments[member] = _keep(group, tasks, member, hosts, standby_hosts)
    return assignments


def _keep(
    group: GroupMembers,
    tasks: Mapping[TaskId, TaskInfo],
    member: str,
    hosts: Mapping[HostInfo, frozenset[TopicPartition]],
    standby_hosts: Mapping[HostInfo, frozenset[TopicPartition]],
) -> MemberAssignment:
    """Version probing: a member with a later version keeps its tasks, and learns which version to rejoin with.

    The two versions tell it that. There is no error code, because Java's members ignore an assignment that has one.
    """
    task_of = {tp: task for task, info in tasks.items() for tp in info.partitions}
    kept = sorted(tp for tp, owner in group.owners.items() if owner == member and tp in task_of)
    info = AssignmentInfo(
        active=tuple(task_of[tp] for tp in kept),
        partitions_by_host=hosts,
        standby_partitions_by_host=standby_hosts,
        version=group.version,
        commonly_supported_version=group.supported_version,
    )
    return MemberAssignment(tuple(kept), encode_assignment_info(info))


def _hosts(
    state: ApplicationState, decision: TaskAssignment
) -> tuple[dict[HostInfo, frozenset[TopicPartition]], dict[HostInfo, frozenset[TopicPartition]]]:
    hosts, standby_hosts = {}, {}
    for process, client in state.clients.items():
        if client.host is not None:
            assigned = decision.clients[process]
            hosts[client.host] = frozenset(tp for task in assigned.active for tp in state.tasks[task].partitions)
            standby_hosts[client.host] = frozenset(
                tp for task in assigned.standby for tp in state.tasks[task].partitions
            )
    return hosts, standby_hosts
