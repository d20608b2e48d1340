"""The draft of an assignment that assignors work on, how they balance it, and how they place standby replicas.

Standbys go to clients without a copy of the task, in other zones where tags say so, evenly, and to where they were before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from uuid import UUID

from millrace.assignment.model import AssignmentConfig, ClientAssignment, ClientState, TaskAssignment
from millrace.records import TaskId


class Placement:
    """The draft of an assignment; mutable, and private to assignors."""

    def __init__(self, clients: Mapping[UUID, ClientState]) -> None:
        """Start with nothing assigned."""
        self.clients = {process_id: clients[process_id] for process_id in sorted(clients)}
        self.active: dict[UUID, set[TaskId]] = {process_id: set() for process_id in self.clients}
        self.standby: dict[UUID, set[TaskId]] = {process_id: set() for process_id in self.clients}

    def has(self, process_id: UUID, task: TaskId) -> bool:
        """Return whether a client has a copy of a task."""
        return task in self.active[process_id] or task in self.standby[process_id]

    def count(self, process_id: UUID) -> int:
        """Return how many tasks a client has."""
        return len(self.active[process_id]) + len(self.standby[process_id])

    def load(self, process_id: UUID) -> float:
        """Return how many tasks a client has per thread."""
        return self.count(process_id) / self.clients[process_id].capacity

    def active_load(self, process_id: UUID) -> float:
        """Return how many active tasks a client has per thread."""
        return len(self.active[process_id]) / self.clients[process_id].capacity

    def freeze(self, *, probing_rebalance_needed: bool = False) -> TaskAssignment:
        """Return the draft as a decision."""
        return TaskAssignment(
            {
                process_id: ClientAssignment(frozenset(self.active[process_id]), frozenset(self.standby[process_id]))
                for process_id in self.clients
            },
            probing_rebalance_needed,
        )


def balance(
    placement: Placement, tasks: dict[UUID, set[TaskId]], may_move: Callable[[TaskId, UUID, UUID], bool]
) -> None:
    """Move tasks between pairs of clients until no move makes their loads more equal; the load is all tasks per thread.

    Args:
        placement: The draft.
        tasks: The tasks that may move: `placement.active` or `placement.standby`.
        may_move: Returns whether a task may move from one client to another.
    """
    moved = True
    while moved:
        moved = False
        for source in placement.clients:
            for target in placement.clients:
                for task in sorted(tasks[source]):
                    if source == target or not _improves(placement, source, target):
                        break
                    if not placement.has(target, task) and may_move(task, source, target):
                        tasks[source].discard(task)
                        tasks[target].add(task)
                        moved = True


def _improves(placement: Placement, source: UUID, target: UUID) -> bool:
    """Return whether one task moved lowers the skew between two clients without turning it round."""
    skew = placement.load(source) - placement.load(target)
    source_after = (placement.count(source) - 1) / placement.clients[source].capacity
    target_after = (placement.count(target) + 1) / placement.clients[target].capacity
    return 0 <= source_after - target_after < skew


log = logging.getLogger("millrace.assignment")


def assign_standbys(
    placement: Placement, stateful: frozenset[TaskId], config: AssignmentConfig, *, sticky: bool
) -> None:
    """Add `num.standby.replicas` copies of each stateful task, each on another client.

    With `rack.aware.assignment.tags` (KIP-708) a copy goes to the client whose tag values differ from those of the clients with
    the task's other copies in as many tags as possible; otherwise, and among equals, to the least loaded client.

    Args:
        placement: The draft, with the active tasks.
        stateful: The tasks that can have standbys.
        config: Has the number of replicas and the tags.
        sticky: Whether to prefer clients that already have the task's state.
    """
    if config.num_standby_replicas == 0:
        return
    short: list[TaskId] = []
    fair_load = _fair_load(placement, len(stateful) * config.num_standby_replicas) if sticky else 0.0
    for task in sorted(stateful):
        for _ in range(config.num_standby_replicas):
            free = [client for client in placement.clients if not placement.has(client, task)]
            if not free:
                short.append(task)
                break
            best = min(free, key=lambda client: _preference(placement, task, client, config, fair_load))
            placement.standby[best].add(task)
    if short:
        log.warning(
            "%d tasks have fewer than num.standby.replicas=%d standbys, as there are only %d instances: run more of them",
            *(len(short), config.num_standby_replicas, len(placement.clients)),
        )
    if not sticky:
        tags = config.rack_aware_tags
        balance(
            placement,
            placement.standby,
            lambda task, source, target: _keeps_spread(placement, task, source, target, tags),
        )


def _preference(
    placement: Placement, task: TaskId, client: UUID, config: AssignmentConfig, fair_load: float
) -> tuple[int, int, float, UUID]:
    state, load = placement.clients[client], placement.load(client)
    stays = load < fair_load and (task in state.previous_standby or task in state.previous_active)
    distance = _distance(placement, task, client, config.rack_aware_tags)
    return (-distance, 0 if stays else 1, load, client)


def _fair_load(placement: Placement, standbys: int) -> float:
    """Return how many tasks each thread will have on average when all standbys are placed."""
    total = sum(placement.count(client) for client in placement.clients) + standbys
    return total / sum(client.capacity for client in placement.clients.values())


def _distance(placement: Placement, task: TaskId, client: UUID, tags: tuple[str, ...]) -> int:
    """Return the number of tags in which a client differs from every client that has a copy of the task."""
    if not tags:
        return 0
    holders = [placement.clients[other] for other in placement.clients if placement.has(other, task)]
    own = placement.clients[client].tags
    return sum(all(own.get(tag) != holder.tags.get(tag) for holder in holders) for tag in tags)


def _keeps_spread(placement: Placement, task: TaskId, source: UUID, target: UUID, tags: tuple[str, ...]) -> bool:
    if not tags:
        return True
    before = _distance_without(placement, task, source, tags)
    placement.standby[source].discard(task)
    after = _distance(placement, task, target, tags)
    placement.standby[source].add(task)
    return after >= before


def _distance_without(placement: Placement, task: TaskId, client: UUID, tags: tuple[str, ...]) -> int:
    placement.standby[client].discard(task)
    distance = _distance(placement, task, client, tags)
    placement.standby[client].add(task)
    return distance
