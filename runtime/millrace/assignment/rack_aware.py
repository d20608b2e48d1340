"""Moving tasks between clients so that less is read from other racks (`rack.aware.assignment.strategy`, KIP-925).

`standbys` spreads copies over the values of `rack.aware.assignment.tags`.

Every client keeps its number of tasks. A task costs `traffic_cost` for each of its partitions without a replica in the client's
rack, and `non_overlap_cost` if the client is not the one that the assignor had chosen. The cheapest way to distribute the tasks
is a minimum-cost flow from tasks to clients. With the strategy `balance_subtopology` no client gets more than its share, rounded
up, of a sub-topology.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from uuid import UUID

from millrace.assignment.application_state import ApplicationState, AssignmentConfig, TaskInfo
from millrace.assignment.min_cost_flow import FlowGraph
from millrace.assignment.placement import Placement
from millrace.java_collections import signed
from millrace.records import TaskId, TopicPartition

_ROUNDS = 4
"""How often standbys are improved; usually three times are enough."""


@dataclass(frozen=True, slots=True)
class RackCosts:
    """What to weigh against each other: reading from other racks, and moving tasks from where the assignor has put them."""

    traffic: int
    non_overlap: int

    @classmethod
    def of(cls, config: AssignmentConfig, *, traffic: int, non_overlap: int) -> RackCosts:
        """Return the configured costs, or these where none is configured."""
        return cls(
            traffic if config.rack_aware_traffic_cost is None else config.rack_aware_traffic_cost,
            non_overlap if config.rack_aware_non_overlap_cost is None else config.rack_aware_non_overlap_cost,
        )


STATELESS_COSTS = RackCosts(traffic=1, non_overlap=0)
"""Stateless tasks can be moved freely."""


def costs_configured(config: AssignmentConfig) -> bool:
    """Return whether both costs are configured; only the high-availability assignor is rack-aware without that."""
    return config.rack_aware_traffic_cost is not None and config.rack_aware_non_overlap_cost is not None


def racks_known(state: ApplicationState, partitions: Callable[[TaskInfo], Collection[TopicPartition]]) -> bool:
    """Return whether the strategy is on, and the racks of all clients and of these partitions of all tasks are known."""
    return (
        state.config.rack_aware_strategy != "none"
        and all(client.rack is not None for client in state.clients.values())
        and all(state.racks.get(partition) for task in state.tasks.values() for partition in partitions(task))
    )


def optimise_active(
    state: ApplicationState,
    placement: Placement,
    tasks: Collection[TaskId],
    costs: RackCosts,
    partitions: Callable[[TaskInfo], Collection[TopicPartition]] = lambda task: task.partitions,
) -> None:
    """Redistribute active tasks.

    Args:
        state: The application, with known racks.
        placement: The draft to improve.
        tasks: The tasks that may move.
        costs: The costs.
        partitions: Returns the partitions of a task that cause traffic.
    """
    _redistribute(
        sorted(tasks),
        list(placement.clients),
        placement.active,
        _task_cost(state, placement.active, costs, partitions),
        by_subtopology=state.config.rack_aware_strategy == "balance_subtopology",
    )


def optimise_standbys(
    state: ApplicationState,
    placement: Placement,
    costs: RackCosts,
    may_move: Callable[[UUID, UUID, TaskId], bool],
    *,
    by_subtopology: bool = False,
) -> None:
    """Exchange standbys between pairs of clients in different racks.

    Args:
        state: The application, with known racks.
        placement: The draft to improve.
        costs: The costs.
        may_move: Returns whether a task may move from one client to another.
        by_subtopology: Whether an exchange also balances sub-topologies.
    """
    cost = _task_cost(state, placement.standby, costs, lambda task: task.changelogs)

    def movable(source: UUID, target: UUID) -> list[TaskId]:
        return [
            task
            for task in placement.standby[source]
            if not placement.has(target, task) and may_move(source, target, task)
        ]

    for _ in range(_ROUNDS):
        moved = False
        for one, other in combinations(placement.clients, 2):
            if placement.clients[one].rack == placement.clients[other].rack:
                continue
            there, back = movable(one, other), movable(other, one)
            if there and back:
                pair = sorted((one, other), key=signed)
                tasks = sorted(there + back)
                moved |= _redistribute(tasks, pair, placement.standby, cost, by_subtopology=by_subtopology)
        if not moved:
            return


def _task_cost(
    state: ApplicationState,
    holders: Mapping[UUID, set[TaskId]],
    costs: RackCosts,
    partitions: Callable[[TaskInfo], Collection[TopicPartition]],
) -> Callable[[TaskId, UUID], int]:
    def cost(task: TaskId, client: UUID) -> int:
        rack = state.clients[client].rack
        elsewhere = sum(rack not in state.racks[partition] for partition in partitions(state.tasks[task]))
        return costs.traffic * elsewhere + (0 if task in holders[client] else costs.non_overlap)

    return cost


def _redistribute(
    tasks: Sequence[TaskId],
    clients: Sequence[UUID],
    holders: dict[UUID, set[TaskId]],
    cost: Callable[[TaskId, UUID], int],
    *,
    by_subtopology: bool,
) -> bool:
    """Give tasks to the clients where they cost least; return whether any has moved.

    The graph's nodes are the source, -1, then tasks, then clients, then the sink, by number. To balance sub-topologies there is a
    node between tasks and client for each sub-topology of a client, which limits how many of its tasks the client gets.
    """
    if not tasks:
        return False
    counts = [sum(task in holders[client] for task in tasks) for client in clients]
    sizes = Counter(task.subtopology for task in tasks) if by_subtopology else Counter[int]()
    groups = {subtopology: len(tasks) + number * len(clients) for number, subtopology in enumerate(sorted(sizes))}
    last_stage = len(tasks) + len(groups) * len(clients)
    sink = last_stage + len(clients)
    graph = FlowGraph(-1, sink)
    for number, task in enumerate(tasks):
        graph.add(-1, number, 1, flow=int(not by_subtopology))
        for index, client in enumerate(clients):
            held = int(task in holders[client] and not by_subtopology)
            graph.add(number, groups.get(task.subtopology, last_stage) + index, 1, cost=cost(task, client), flow=held)
    for index, count in enumerate(counts):
        for subtopology, first in groups.items():
            share = math.ceil(count / len(tasks) * sizes[subtopology])
            graph.add(first + index, last_stage + index, share)
        graph.add(last_stage + index, sink, count, flow=0 if by_subtopology else count)
    if by_subtopology:
        graph.maximise()
    graph.minimise_cost()
    moved = False
    for number, task in enumerate(tasks):
        (node,) = graph.flows(number)
        target = clients[(node - len(tasks)) % len(clients)]
        if task not in holders[target]:
            for client in clients:
                holders[client].discard(task)
            holders[target].add(task)
            moved = True
    return moved
