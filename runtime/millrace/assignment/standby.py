"""Placing standby replicas: on clients without a copy, in other zones where tags say so, evenly, and where they were."""

from __future__ import annotations

import logging
from uuid import UUID

from millrace.assignment.balance import balance
from millrace.assignment.model import AssignmentConfig, Placement
from millrace.records import TaskId

log = logging.getLogger("millrace.assignment")


def assign_standbys(
    placement: Placement, stateful: frozenset[TaskId], config: AssignmentConfig, *, sticky: bool
) -> None:
    """Add `num.standby.replicas` copies of each stateful task, each on another client.

    With `rack.aware.assignment.tags` (KIP-708) a copy goes where its tag values differ from those of all other copies of the
    task in as many tags as possible; else, and among equals, to the least loaded client.

    Args:
        placement: Has the active tasks.
        stateful: Tasks that can have standbys.
        config: Number of replicas and tags.
        sticky: Whether to prefer clients that have the task's state already.
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
            "%d tasks have fewer than num.standby.replicas=%d standbys, as there are %d instances: run more of them",
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
    """Return how many tasks per thread there will be when all standbys are placed."""
    total = sum(placement.count(client) for client in placement.clients) + standbys
    return total / sum(client.capacity for client in placement.clients.values())


def _distance(placement: Placement, task: TaskId, client: UUID, tags: tuple[str, ...]) -> int:
    """Return in how many tags a client differs from every client that has a copy of the task."""
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
