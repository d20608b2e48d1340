"""Replays what Java's assignors have decided on random groups, recorded by `java/AssignmentRecorder.java`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from millrace.assignment import (
    ApplicationState,
    AssignmentConfig,
    ClientAssignment,
    TaskAssignment,
    TaskAssignor,
    TaskInfo,
    default_standby_task_assignment,
    identity_assignment,
    optimize_rack_aware_active_tasks,
    optimize_rack_aware_standby_tasks,
)
from millrace.assignment.group import GroupMembers, client_states, group_members
from millrace.assignment.high_availability import high_availability_assignor
from millrace.assignment.payloads import SubscriptionInfo
from millrace.assignment.protocol import MemberSubscription
from millrace.assignment.sticky import fallback_prior_assignor, sticky_assignor
from millrace.assignment.threads import assign_to_threads
from millrace.java_collections import signed
from millrace.records import TaskId, TopicPartition

STATELESS, LOGGED, FROM_SOURCE, UNLOGGED = range(4)


def helped_assignor(state: ApplicationState) -> TaskAssignment:
    """Deal out active tasks like cards, and leave the rest to the helpers for custom assignors."""
    clients = sorted(state.clients, key=signed)
    tasks = sorted(state.tasks)
    dealt = TaskAssignment(
        {client: ClientAssignment(frozenset(tasks[number :: len(clients)])) for number, client in enumerate(clients)}
    )
    stateful = {task for task, info in state.tasks.items() if info.stores}
    dealt = optimize_rack_aware_active_tasks(state, dealt, stateful)
    stateless = state.tasks.keys() - stateful
    dealt = optimize_rack_aware_active_tasks(state, dealt, stateless, traffic_cost=7, non_overlap_cost=2)
    return optimize_rack_aware_standby_tasks(state, default_standby_task_assignment(state, dealt))


ASSIGNORS: Mapping[str, TaskAssignor] = {
    "ha": high_availability_assignor,
    "sticky": sticky_assignor,
    "fallback": fallback_prior_assignor,
    "helpers": helped_assignor,
}


def differences(case: Mapping[str, Any]) -> dict[str, tuple[object, object]]:
    """Return in what a decision differs from the recorded one: for each part, what Java has decided and what Millrace has."""
    state = _state(case)
    known = case["assignor"] != "ha" or "ends" in case
    decision = (ASSIGNORS[case["assignor"]] if known else fallback_prior_assignor)(state)
    threads = {}
    for process, client in state.clients.items():
        previous = {thread: client.previous_tasks_by_lag(thread) for thread in client.threads}
        threads |= assign_to_threads(decision.clients[process], state.stateful, previous)
    compared: dict[str, tuple[object, object]] = {
        "previous": (_clients(case["previous"]), identity_assignment(state).clients),
        "lags": (
            {UUID(process): _by_task(lags) for process, lags in case["lags"].items()},
            {process: client.lags for process, client in state.clients.items()},
        ),
        "decision": (_clients(case["decision"]), decision.clients),
        "probing": (case["probing"], decision.probing_rebalance_needed),
        "threads": (
            {thread: (_tasks(active), _tasks(standby)) for thread, (active, standby) in case["threads"].items()},
            {thread: (given.active, given.standby) for thread, given in threads.items()},
        ),
    }
    return {part: (expected, got) for part, (expected, got) in compared.items() if expected != got}


def _state(case: Mapping[str, Any]) -> ApplicationState:
    tasks = {}
    for subtopology, (partitions, others, kind) in enumerate(case["subtopologies"]):
        for number in range(partitions):
            inputs = {TopicPartition(f"a{subtopology}", number)}
            if number < others:
                inputs.add(TopicPartition(f"b{subtopology}", number))
            changelogs = {
                LOGGED: {TopicPartition(f"log{subtopology}", number)},
                FROM_SOURCE: {TopicPartition(f"a{subtopology}", number)},
            }.get(kind, set())
            stores = {"store"} if kind != STATELESS else set()
            tasks[TaskId(subtopology, number)] = TaskInfo(frozenset(inputs), frozenset(changelogs), frozenset(stores))
    group = _group(case, tasks)
    ends = _by_task(case["ends"]) if "ends" in case else None
    config = {**case["config"], "rack_aware_tags": tuple(case["config"]["rack_aware_tags"])}
    racks = {
        TopicPartition(topic, int(number)): frozenset(names.split(","))
        for partition, names in case.get("racks", {}).items()
        if names
        for topic, number in [partition.split("-")]
    }
    return ApplicationState(client_states(group, tasks, ends), tasks, AssignmentConfig(**config), racks)


def _group(case: Mapping[str, Any], tasks: Mapping[TaskId, TaskInfo]) -> GroupMembers:
    subscriptions, infos = {}, {}
    for member, given in case["members"].items():
        owned = frozenset(partition for task in _tasks(given["owned"]) for partition in tasks[task].partitions)
        subscriptions[member] = MemberSubscription((), b"", owned, generation=1, rack_id=given.get("rack"))
        infos[member] = SubscriptionInfo(
            UUID(given["client"]), _by_task(given["sums"]), client_tags=case["tags"][given["client"]]
        )
    return group_members(subscriptions, infos)


def _tasks(text: str) -> frozenset[TaskId]:
    return frozenset(map(TaskId.parse, text.split()))


def _by_task(numbers: Mapping[str, int]) -> dict[TaskId, int]:
    return {TaskId.parse(task): number for task, number in numbers.items()}


def _clients(decision: Mapping[str, tuple[str, str]]) -> dict[UUID, ClientAssignment]:
    return {
        UUID(process): ClientAssignment(_tasks(active), _tasks(standby))
        for process, (active, standby) in decision.items()
    }
