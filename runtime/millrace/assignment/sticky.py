"""The sticky assignor, and the one that only keeps tasks where they are.

*Sticky* leaves tasks where they are as far as an equal share of tasks per thread allows, and moves them at once where it does
not. Of equally loaded clients, one is preferred on which the task would meet tasks that it has not been with before. A task that
its owner has given up, but that nobody has yet, counts as new; so a group may need several rebalances to settle, as in Java.

*Fallback prior* gives every task back to its previous owner. It is used when offsets cannot be read, so that how much each client
would have to restore is unknown; another rebalance follows soon. Of equally loaded clients it prefers the one with more threads;
so does Java.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from uuid import UUID

from millrace.assignment.application_state import ApplicationState, TaskAssignment, TaskInfo
from millrace.assignment.placement import Placement
from millrace.assignment.rack_aware import (
    STATELESS_COSTS,
    RackCosts,
    costs_configured,
    optimise_active,
    optimise_standbys,
    racks_known,
)
from millrace.java_collections import hash_order, tasks_in_hash_order
from millrace.records import TaskId, TopicPartition

log = logging.getLogger("millrace.assignment")


def sticky_assignor(state: ApplicationState) -> TaskAssignment:
    """Assign tasks with the fewest movements that balance allows; see `TaskAssignor`."""
    draft = _Sticky(state)
    draft.assign_active()
    config = state.config
    aware = costs_configured(config)
    costs = RackCosts.of(config, traffic=1, non_overlap=10)
    if aware and racks_known(state, _all_partitions):
        with_stores = {task for task, info in state.tasks.items() if info.stores}
        optimise_active(state, draft.placement, with_stores, costs, _all_partitions)
        optimise_active(state, draft.placement, state.tasks.keys() - with_stores, STATELESS_COSTS, _all_partitions)
    draft.assign_standbys(sorted(state.stateful))
    if aware and config.num_standby_replicas and racks_known(state, lambda task: task.changelogs):
        by_subtopology = config.rack_aware_strategy == "balance_subtopology"
        optimise_standbys(state, draft.placement, costs, lambda *_: True, by_subtopology=by_subtopology)
    return draft.placement.freeze()


def fallback_prior_assignor(state: ApplicationState) -> TaskAssignment:
    """Assign tasks to their previous owners; see `TaskAssignor`."""
    draft = _Sticky(state, keep_all=True)
    draft.assign_active()
    draft.assign_standbys(tasks_in_hash_order(state.stateful))
    return draft.placement.freeze(probing_rebalance_needed=True)


def _all_partitions(task: TaskInfo) -> frozenset[TopicPartition]:
    return task.partitions | task.changelogs


class _Sticky:
    """One decision.

    Args:
        state: The application.
        keep_all: Whether active tasks stay with their owners even if those have more than their share.
    """

    def __init__(self, state: ApplicationState, *, keep_all: bool = False) -> None:
        self._state = state
        self._keep_all = keep_all
        self._order = hash_order(state.clients)
        self.placement = Placement(state.clients, self._order)
        self._owner: dict[TaskId, UUID] = {}
        self._holders: dict[TaskId, list[UUID]] = {}
        for client in self._order:
            self._owner |= dict.fromkeys(sorted(state.clients[client].previous_active), client)
            for task in state.clients[client].previous_standby:
                self._holders.setdefault(task, []).append(client)
        self._pairs: set[frozenset[TaskId]] = set()
        self._all_pairs = len(state.tasks) * (len(state.tasks) - 1) // 2

    def assign_active(self) -> None:
        """Assign every task: to the client that ran it, to one that has its state, or to the best one."""
        state, placement = self._state, self.placement
        share = len(state.tasks) // sum(client.capacity for client in state.clients.values())

        def has_room(client: UUID) -> bool:
            return len(placement.active[client]) < state.clients[client].capacity * share

        left = dict.fromkeys(hash_order(tasks_in_hash_order(state.tasks), copied=True))
        for task in hash_order(self._owner):
            if task in left and (self._keep_all or has_room(self._owner[task])):
                self._give(placement.active, task, self._owner[task])
                del left[task]
        for task in list(left):
            for client in hash_order(self._holders.get(task, ())):
                if has_room(client):
                    self._give(placement.active, task, client)
                    del left[task]
                    break
        for task in sorted(left):
            self._give(placement.active, task, self._best(task, self._order))

    def assign_standbys(self, tasks: Iterable[TaskId]) -> None:
        """Add `num.standby.replicas` copies of each task, each on another client, where it was before if that has room."""
        replicas = self._state.config.num_standby_replicas
        short = 0
        for task in tasks:
            for _ in range(replicas):
                free = hash_order(client for client in self._order if not self.placement.has(client, task))
                if not free:
                    short += 1
                    break
                self._give(self.placement.standby, task, self._best(task, free))
        if short:
            log.warning(
                "%d tasks have fewer than num.standby.replicas=%d standbys, as there are only %d instances: run more of them",
                *(short, replicas, len(self._order)),
            )

    def _give(self, tasks: dict[UUID, set[TaskId]], task: TaskId, client: UUID) -> None:
        self._pairs |= {frozenset((task, other)) for other in self._assigned(client)}
        tasks[client].add(task)

    def _assigned(self, client: UUID) -> set[TaskId]:
        return self.placement.active[client] | self.placement.standby[client]

    def _best(self, task: TaskId, candidates: Sequence[UUID]) -> UUID:
        """Return who should have a task: its previous owner, a client with its state, or the least loaded one."""
        if len(candidates) == 1:
            return candidates[0]
        holders = [client for client in hash_order(self._holders.get(task, ()), copied=True) if client in candidates]
        previous = self._owner.get(task)
        if previous is None or previous not in candidates:
            previous = self._least_loaded(task, holders)
        if previous is not None and self._overloaded(previous):
            previous = self._least_loaded(task, holders)
            if previous is not None and self._overloaded(previous):
                previous = None
        if previous is None:
            previous = self._least_loaded(task, candidates)
        assert previous is not None
        return previous

    def _least_loaded(self, task: TaskId, candidates: Sequence[UUID]) -> UUID | None:
        for must_be_new in (True, False):
            least: UUID | None = None
            for client in candidates:
                if not self.placement.count(client):
                    return client
                lighter = least is None or self._has_more_room(client, least)
                if lighter and (not must_be_new or self._meets_new_task(task, client)):
                    least = client
            if least is not None:
                return least
        return None

    def _meets_new_task(self, task: TaskId, client: UUID) -> bool:
        return len(self._pairs) < self._all_pairs and any(
            frozenset((task, other)) not in self._pairs for other in self._assigned(client)
        )

    def _overloaded(self, client: UUID) -> bool:
        full = self.placement.count(client) >= self._state.clients[client].capacity
        return full and any(self._has_more_room(other, client) for other in self._order)

    def _has_more_room(self, client: UUID, than: UUID) -> bool:
        load, other = self.placement.load(client), self.placement.load(than)
        if load == other and self._keep_all:
            return self._state.clients[client].capacity > self._state.clients[than].capacity
        return load < other
