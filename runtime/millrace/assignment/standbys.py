"""Where standbys go: to the least loaded clients without a copy of the task, in other zones if tags say so (KIP-708)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from uuid import UUID

from millrace.assignment.application_state import AssignmentConfig
from millrace.assignment.placement import LeastLoaded, Placement
from millrace.java_collections import hash_order
from millrace.records import TaskId

__all__ = ["assign_standbys"]

log = logging.getLogger("millrace.assignment")


def assign_standbys(placement: Placement, tasks: Sequence[TaskId], config: AssignmentConfig) -> None:
    """Add `num.standby.replicas` copies of each task, each on another client.

    Args:
        placement: The draft, with the active tasks.
        tasks: The tasks that can have standbys, in the order in which they are placed.
        config: Has the number of replicas and the tags.
    """
    missing = dict.fromkeys(tasks, config.num_standby_replicas)
    if config.rack_aware_tags:
        for task in tasks:
            missing[task] -= _spread_over_tags(placement, task, config)
        tasks = [task for task in hash_order(tasks) if missing[task]]
    queue = LeastLoaded(placement.clients, placement.load)
    short = 0
    for task in tasks:
        for _ in range(missing[task]):
            client = queue.poll(_without(placement, task))
            if client is None:
                short += 1
                break
            placement.standby[client].add(task)
            queue.offer(client)
    if short:
        log.warning(
            "%d tasks have fewer than num.standby.replicas=%d standbys, as there are only %d instances: run more of them",
            *(short, config.num_standby_replicas, len(placement.clients)),
        )


def _spread_over_tags(placement: Placement, task: TaskId, config: AssignmentConfig) -> int:
    """Give standbys to clients without a tag value in common with another client that has the task; return how many.

    Once more clients have the task than a tag has values, that tag no longer counts.
    """
    clients = placement.clients
    holder = next((client for client in clients if task in placement.active[client]), None)
    if holder is None:
        return 0
    values: dict[str, set[str]] = {}
    for client in clients.values():
        for key, value in client.tags.items():
            values.setdefault(key, set()).add(value)
    queue = LeastLoaded(clients, placement.load)
    used: set[tuple[str, str]] = set()
    placed = 0
    while placed < config.num_standby_replicas:
        for key in clients[holder].tags.keys() & set(config.rack_aware_tags):
            if len(values[key]) <= placed + 1:
                used -= {(key, value) for value in values[key]}
            else:
                used.add((key, clients[holder].tags[key]))
        holder = queue.poll(_without(placement, task, frozenset(used)))
        if holder is None:
            break
        placement.standby[holder].add(task)
        placed += 1
    return placed


def _without(
    placement: Placement, task: TaskId, tags: frozenset[tuple[str, str]] = frozenset()
) -> Callable[[UUID], bool]:
    """Return whether a client has neither the task nor any of the tags."""
    return lambda client: not placement.has(client, task) and tags.isdisjoint(placement.clients[client].tags.items())
