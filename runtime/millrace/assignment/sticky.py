"""The sticky assignor: tasks stay where they are as far as balance allows, and move at once where it does not.

Used where members cannot host warm-ups, and by choice (`task.assignor.class`). A client's share is its part of all threads:
it gets its share rounded down or up. A task goes, in this order, to the client that runs it, to the one with the least to
restore, to the least loaded one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from uuid import UUID

from millrace.assignment.model import AssignmentConfig, ClientState, Placement, TaskAssignment
from millrace.assignment.standby import assign_standbys
from millrace.records import TaskId


def assign(
    clients: Mapping[UUID, ClientState],
    tasks: frozenset[TaskId],
    stateful: frozenset[TaskId],
    config: AssignmentConfig,
) -> TaskAssignment:
    """Assign tasks with the fewest movements that balance allows; see `TaskAssignor`."""
    placement = Placement(clients)
    for part in (stateful, tasks - stateful):
        _Shares(placement, part).assign()
    assign_standbys(placement, stateful, config, sticky=True)
    return placement.freeze()


class _Shares:
    """Assigns tasks of one kind, stateful or not: each kind is balanced by itself, as state is what costs."""

    def __init__(self, placement: Placement, tasks: frozenset[TaskId]) -> None:
        self._placement = placement
        self._tasks = tasks
        threads = sum(client.capacity for client in placement.clients.values())
        shares = {client: len(tasks) * state.capacity / threads for client, state in placement.clients.items()}
        self._least = {client: math.floor(share) for client, share in shares.items()}
        self._most = {client: math.ceil(share) for client, share in shares.items()}
        self._given = dict.fromkeys(placement.clients, 0)
        self._extras = len(tasks) - sum(self._least.values())

    def assign(self) -> None:
        """Assign every task: to who runs it, to who has its state, to anyone; each within the lower shares first."""
        # Partition first, so that what a full client gives up is spread over the sub-topologies.
        left = sorted(self._tasks, key=lambda task: (task.partition, task.subtopology))
        for candidates in (self._running, self._holding):
            for room in (self._has_room, self._has_extra_room):
                left = [task for task in left if not self._to_first(task, candidates(task), room)]
        for task in left:
            total = self._placement.load
            open_clients = [client for client in self._given if self._has_room(client)] or [
                client for client in self._given if self._has_extra_room(client)
            ]
            self._give(task, min(open_clients, key=lambda c: (self._given[c] / self._capacity(c), total(c), c)))

    def _running(self, task: TaskId) -> list[UUID]:
        return [client for client, state in self._placement.clients.items() if task in state.previous_active]

    def _holding(self, task: TaskId) -> list[UUID]:
        clients = self._placement.clients
        holders = [client for client, state in clients.items() if task in state.previous_standby]
        return sorted(holders, key=lambda client: (clients[client].lag(task), client))

    def _to_first(self, task: TaskId, candidates: list[UUID], room: Callable[[UUID], bool]) -> bool:
        for client in candidates:
            if room(client):
                self._give(task, client)
                return True
        return False

    def _capacity(self, client: UUID) -> int:
        return self._placement.clients[client].capacity

    def _has_room(self, client: UUID) -> bool:
        return self._given[client] < self._least[client]

    def _has_extra_room(self, client: UUID) -> bool:
        return self._has_room(client) or (self._extras > 0 and self._given[client] < self._most[client])

    def _give(self, task: TaskId, client: UUID) -> None:
        if not self._has_room(client):
            self._extras -= 1
        self._given[client] += 1
        self._placement.active[client].add(task)
