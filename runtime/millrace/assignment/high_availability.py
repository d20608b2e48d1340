"""The high-availability assignor (KIP-441), Kafka Streams' default: tasks move only to clients whose state is warm.

First the balanced assignment that is wanted in the end is drawn up. Then each task whose wanted client would have to restore much
stays where its state is, while a *warm-up* copy grows on the wanted client; the group looks again (probing rebalance) until
nothing has to wait. The draft depends only on process ids and tasks, so that every probing rebalance wants the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from millrace.assignment.balance import balance
from millrace.assignment.model import LATEST_OFFSET, AssignmentConfig, ClientState, Placement, TaskAssignment
from millrace.assignment.standby import assign_standbys
from millrace.records import TaskId


def assign(
    clients: Mapping[UUID, ClientState],
    tasks: frozenset[TaskId],
    stateful: frozenset[TaskId],
    config: AssignmentConfig,
) -> TaskAssignment:
    """Assign tasks so that none of them waits for its state; see `TaskAssignor`."""
    placement = Placement(clients)
    _round_robin(placement, stateful)
    balance(placement, placement.active, lambda *_: True)
    assign_standbys(placement, stateful, config, sticky=False)
    movements = 0
    if config.allow_warmups:
        movement = _Movement(placement, stateful, config)
        movements = movement.move_actives() + movement.move_standbys()
    _assign_stateless(placement, tasks - stateful)
    return placement.freeze(probing_rebalance_needed=movements > 0)


def _round_robin(placement: Placement, stateful: frozenset[TaskId]) -> None:
    order = list(placement.clients)
    for number, task in enumerate(sorted(stateful)):
        placement.active[order[number % len(order)]].add(task)


def _assign_stateless(placement: Placement, stateless: frozenset[TaskId]) -> None:
    for task in sorted(stateless):
        least = min(placement.clients, key=lambda client: (placement.active_load(client), client))
        placement.active[least].add(task)


class _Movement:
    """Steps 5 and 6: keep tasks at caught-up clients, with one budget of warm-ups for actives and standbys."""

    def __init__(self, placement: Placement, stateful: frozenset[TaskId], config: AssignmentConfig) -> None:
        self._placement = placement
        self._warmups_left = config.max_warmup_replicas
        self._warmups: set[tuple[UUID, TaskId]] = set()
        limit = config.acceptable_recovery_lag
        self._caught_up: dict[TaskId, frozenset[UUID]] = {
            task: frozenset(
                process_id
                for process_id, client in placement.clients.items()
                if (lag := client.lag(task)) == LATEST_OFFSET or 0 <= lag <= limit
            )
            for task in stateful
        }

    def move_actives(self) -> int:
        """Give actives back to clients that are further than the wanted ones; returns how many."""
        placement = self._placement
        waiting = [
            (len(self._caught_up[task]), task, target)
            for target in placement.clients
            for task in placement.active[target]
            if task in self._caught_up
            and target not in self._caught_up[task]
            and self._most_caught_up_lag(task) < placement.clients[target].lag(task)
        ]
        for _, task, target in sorted(waiting):
            self._move_active(task, target)
        return len(waiting)

    def _most_caught_up_lag(self, task: TaskId) -> int:
        return min(client.lag(task) for client in self._placement.clients.values())

    def _move_active(self, task: TaskId, target: UUID) -> None:
        placement, ready = self._placement, self._caught_up[task]
        standbys = [client for client in ready if task in placement.standby[client]]
        if standbys:
            source = min(standbys, key=lambda client: (placement.load(client), client))
        elif ready:
            source = min(ready, key=lambda client: (placement.load(client), client))
        else:
            source = min(placement.clients, key=lambda client: (placement.clients[client].lag(task), client))
        placement.active[target].discard(task)
        placement.active[source].add(task)
        if task in placement.standby[source]:
            placement.standby[source].discard(task)
            placement.standby[target].add(task)
        elif self._take_warmup():
            placement.standby[target].add(task)
            self._warmups.add((target, task))

    def move_standbys(self) -> int:
        """Give standbys back to caught-up clients without a copy; returns how many."""
        placement = self._placement
        waiting = [
            (len(self._caught_up[task]), task, target)
            for target in placement.clients
            for task in placement.standby[target]
            if (target, task) not in self._warmups and self._caught_up[task] and target not in self._caught_up[task]
        ]
        moved = 0
        for _, task, target in sorted(waiting):
            free = [client for client in self._caught_up[task] if not placement.has(client, task)]
            if not free:
                continue
            source = min(free, key=lambda client: (placement.load(client), client))
            placement.standby[source].add(task)
            if not self._take_warmup():
                placement.standby[target].discard(task)
            moved += 1
        return moved

    def _take_warmup(self) -> bool:
        self._warmups_left -= 1
        return self._warmups_left >= 0
