"""The built-in task assignors, and which of them `task.assignor.class` selects.

*High availability* (KIP-441) is Kafka Streams' default: tasks move only to clients whose state is warm. It first draws up the
balanced assignment to reach in the end. Then each task whose target client would have to restore much stays where its state
is, while a *warm-up* copy grows on the target client; the group checks again (probing rebalance) until no task has to wait. The
draft depends only on process ids and tasks, so it is the same in every probing rebalance.

*Sticky* leaves tasks where they are as far as balance allows, and moves them at once where it does not. It is used where members
cannot host warm-ups. A client's share is its part of all threads, rounded down or up. A task goes, in this order, to the client
that runs it, to the one with the least to restore, to the least loaded one.

*Fallback prior* gives every task back to its previous owner. It is used when offsets cannot be read, so that how much each client
would have to restore is unknown; another rebalance follows soon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from uuid import UUID

from millrace.assignment.model import (
    LATEST_OFFSET,
    AssignmentConfig,
    ClientState,
    TaskAssignment,
    TaskAssignor,
)
from millrace.assignment.placement import Placement, assign_standbys, balance
from millrace.errors import ConfigError
from millrace.loading import load
from millrace.records import TaskId


def high_availability_assignor(
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
    """Keeps tasks on caught-up clients, with one budget of warm-ups for active tasks and standbys (KIP-441, steps 5 and 6)."""

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
        """Give active tasks back to clients that are further ahead than the target clients; return how many."""
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
        """Give standbys back to caught-up clients without a copy; return how many."""
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


def sticky_assignor(
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
    """Assigns either the stateful or the stateless tasks: each kind is balanced separately, as moving state is expensive."""

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
        """Assign every task: to the client that runs it, or has its state, or to any; each within the lower shares first."""
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


def fallback_prior_assignor(
    clients: Mapping[UUID, ClientState],
    tasks: frozenset[TaskId],
    stateful: frozenset[TaskId],
    config: AssignmentConfig,
) -> TaskAssignment:
    """Assign tasks to their previous owners; see `TaskAssignor`."""
    placement = Placement(clients)
    left = []
    for task in sorted(tasks):
        owners = [client for client, state in placement.clients.items() if task in state.previous_active]
        if owners:
            placement.active[owners[0]].add(task)
        else:
            left.append(task)
    for task in left:
        holders = [client for client, state in placement.clients.items() if task in state.previous_standby]
        best = min(holders or placement.clients, key=lambda client: (placement.load(client), client))
        placement.active[best].add(task)
    assign_standbys(placement, stateful, config, sticky=True)
    return placement.freeze(probing_rebalance_needed=True)


_BUILT_IN: Mapping[str, TaskAssignor] = {
    "HighAvailabilityTaskAssignor": high_availability_assignor,
    "StickyTaskAssignor": sticky_assignor,
    "FallbackPriorTaskAssignor": fallback_prior_assignor,
}


def select_assignor(task_assignor_class: object, *, allow_warmups: bool) -> TaskAssignor:
    """Return the assignor that `task.assignor.class` names.

    Args:
        task_assignor_class: None for the default, or what `millrace.loading` accepts: the name of a built-in one, a callable of
            the shape of `TaskAssignor`, or where to import it from.
        allow_warmups: Whether members can host warm-ups. If not the default is the sticky assignor: the high-availability
            one would have tasks wait for warm-ups that never come.

    Raises:
        ConfigError: There is no such assignor.
    """
    if task_assignor_class is None:
        return high_availability_assignor if allow_warmups else sticky_assignor
    assignor = load(task_assignor_class, "task.assignor.class", _BUILT_IN)
    if not callable(assignor):
        raise ConfigError(f"task.assignor.class: {task_assignor_class!r} is not a task assignor, which is a function")
    return assignor
