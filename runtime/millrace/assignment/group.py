"""Assigning a group's tasks: from the subscriptions of all members to their assignments, in one call of the leader.

Members are grouped by process; an assignor places tasks on processes; `threads` places them on members; and then cooperative
rebalancing (KIP-429) takes out what another member still owns: its owner gives it up first, and the next rebalance assigns it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from millrace.assignment.model import (
    LATEST_OFFSET,
    UNKNOWN_OFFSET_SUM,
    AssignmentConfig,
    ClientState,
    HostInfo,
    TaskAssignment,
    TaskAssignor,
    TaskTopology,
)
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
    owners: dict[TopicPartition, str] = {}
    for member, subscription in sorted(members.items(), key=lambda item: (item[1].generation, item[0])):
        owners.update(dict.fromkeys(subscription.owned, member))
    processes: dict[UUID, list[str]] = {}
    for member, info in sorted(infos.items()):
        processes.setdefault(info.process_id, []).append(member)
    return GroupMembers(members, infos, owners, newer, {process: tuple(ids) for process, ids in processes.items()})


def assign_group(
    group: GroupMembers,
    topology: TaskTopology,
    end_offset_sums: Mapping[TaskId, int] | None,
    config: AssignmentConfig,
    assignor: TaskAssignor,
    *,
    leader: UUID,
    now_ms: int,
) -> dict[str, MemberAssignment]:
    """Assign a group's tasks.

    Args:
        group: All members.
        topology: All tasks.
        end_offset_sums: Stateful task → sum of its changelogs' end offsets; None if they could not be read.
        config: The settings of assignors.
        assignor: Places tasks on processes.
        leader: The process that asks for a probing rebalance if one is needed.
        now_ms: Milliseconds since the epoch.
    """
    task_of = topology.task_of()
    kept = {task_of[tp] for tp, member in group.owners.items() if member in group.newer and tp in task_of}
    clients = _clients(group, topology, end_offset_sums or {}, task_of)
    tasks, stateful = topology.tasks - kept, topology.stateful - kept
    decision = assignor(clients, tasks, stateful, config) if clients else TaskAssignment({})
    threads: dict[str, ThreadAssignment] = {}
    for process, members in group.processes.items():
        previous = {member: _previous(group, member, clients[process], task_of) for member in members}
        threads |= assign_to_threads(decision.clients[process], stateful, previous)
    probe_ms = config.probing_rebalance_interval_ms
    if end_offset_sums is None:
        probe_ms = min(probe_ms, _RETRY_WITHOUT_LAGS_MS)
    return _encode(
        group,
        topology,
        decision,
        threads,
        config,
        prober=leader if decision.probing_rebalance_needed else None,
        next_probe_ms=now_ms + probe_ms,
    )


def error_assignments(group: GroupMembers, error: AssignorError) -> dict[str, MemberAssignment]:
    """Return assignments that tell every member why it gets no tasks."""
    info = AssignmentInfo(error_code=error, version=group.version, commonly_supported_version=group.supported_version)
    return dict.fromkeys(group.members, MemberAssignment((), encode_assignment_info(info)))


def _clients(
    group: GroupMembers,
    topology: TaskTopology,
    end_offset_sums: Mapping[TaskId, int],
    task_of: Mapping[TopicPartition, TaskId],
) -> dict[UUID, ClientState]:
    clients = {}
    for process, members in group.processes.items():
        sums: dict[TaskId, int] = {}
        for member in members:
            for task, offset_sum in group.infos[member].task_offset_sums.items():
                sums[task] = offset_sum if task not in sums else _better(sums[task], offset_sum)
        active = frozenset(
            task_of[tp]
            for member in members
            for tp in group.members[member].owned
            if group.owners.get(tp) == member and tp in task_of
        )
        first = group.infos[members[0]]
        clients[process] = ClientState(
            process_id=process,
            capacity=len(members),
            previous_active=active,
            previous_standby=frozenset(sums) & topology.stateful - active,
            lags={task: _lag(sums.get(task, 0), end_offset_sums.get(task, 0)) for task in topology.stateful},
            tags=first.client_tags,
        )
    return clients


def _better(one: int, other: int) -> int:
    return LATEST_OFFSET if LATEST_OFFSET in {one, other} else max(one, other)


def _lag(offset_sum: int, end_offset_sum: int) -> int:
    if offset_sum == LATEST_OFFSET:
        return LATEST_OFFSET
    if offset_sum == UNKNOWN_OFFSET_SUM or offset_sum > end_offset_sum:
        return end_offset_sum  # the changelog was recreated, or nothing is known: everything has to be restored
    return end_offset_sum - offset_sum


def _previous(
    group: GroupMembers, member: str, client: ClientState, task_of: Mapping[TopicPartition, TaskId]
) -> tuple[TaskId, ...]:
    owned = {task_of[tp] for tp in group.members[member].owned if group.owners.get(tp) == member and tp in task_of}
    has = group.infos[member].task_offset_sums.keys() - owned
    return (*sorted(owned), *sorted(has, key=lambda task: (client.lag(task), task)))


def _encode(
    group: GroupMembers,
    topology: TaskTopology,
    decision: TaskAssignment,
    threads: Mapping[str, ThreadAssignment],
    config: AssignmentConfig,
    *,
    prober: UUID | None,
    next_probe_ms: int,
) -> dict[str, MemberAssignment]:
    hosts, standby_hosts = _hosts(group, topology, decision)
    assignments = {}
    probing = prober is not None
    for member, thread in threads.items():
        waiting = {task for task in thread.active if _owned_by_another(group, member, topology.partitions[task])}
        given = sorted((tp, task) for task in thread.active - waiting for tp in topology.partitions[task])
        standby = set(thread.standby)
        if config.allow_warmups:
            standby |= waiting & topology.stateful
        next_rebalance_ms = NO_REBALANCE
        if waiting:
            next_rebalance_ms, probing = 0, False
        elif probing and group.infos[member].process_id == prober:
            next_rebalance_ms, probing = next_probe_ms, False
        info = AssignmentInfo(
            active=tuple(task for _, task in given),
            standby={task: topology.partitions[task] for task in standby},
            partitions_by_host=hosts,
            standby_partitions_by_host=standby_hosts,
            next_rebalance_ms=next_rebalance_ms,
            version=group.version,
            commonly_supported_version=group.supported_version,
        )
        assignments[member] = MemberAssignment(tuple(tp for tp, _ in given), encode_assignment_info(info))
        if waiting:
            log.info("Member %s will get %d more tasks once their owners have given them up", member, len(waiting))
    for member in group.newer:
        assignments[member] = _keep(group, topology, member, hosts, standby_hosts)
    return assignments


def _owned_by_another(group: GroupMembers, member: str, partitions: frozenset[TopicPartition]) -> bool:
    return any(group.owners.get(partition, member) != member for partition in partitions)


def _keep(
    group: GroupMembers,
    topology: TaskTopology,
    member: str,
    hosts: Mapping[HostInfo, frozenset[TopicPartition]],
    standby_hosts: Mapping[HostInfo, frozenset[TopicPartition]],
) -> MemberAssignment:
    """Version probing: a member with a later version keeps its tasks, and learns which version to rejoin with."""
    task_of = topology.task_of()
    kept = sorted(tp for tp, owner in group.owners.items() if owner == member and tp in task_of)
    info = AssignmentInfo(
        active=tuple(task_of[tp] for tp in kept),
        partitions_by_host=hosts,
        standby_partitions_by_host=standby_hosts,
        error_code=AssignorError.VERSION_PROBING,
        version=group.version,
        commonly_supported_version=group.supported_version,
    )
    return MemberAssignment(tuple(kept), encode_assignment_info(info))


def _hosts(
    group: GroupMembers, topology: TaskTopology, decision: TaskAssignment
) -> tuple[dict[HostInfo, frozenset[TopicPartition]], dict[HostInfo, frozenset[TopicPartition]]]:
    hosts, standby_hosts = {}, {}
    for process, members in group.processes.items():
        end_point = next((e for m in members if (e := group.infos[m].user_end_point)), "")
        if not end_point:
            continue
        try:
            host = HostInfo.parse(end_point)
        except ValueError:
            log.warning("Members of process %s have application.server=%s, which is not host:port", process, end_point)
            continue
        assignment = decision.clients[process]
        hosts[host] = frozenset(tp for task in assignment.active for tp in topology.partitions[task])
        standby_hosts[host] = frozenset(tp for task in assignment.standby for tp in topology.partitions[task])
    return hosts, standby_hosts
