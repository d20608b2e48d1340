"""The high-availability assignor (KIP-441), which is the default, as in Kafka Streams.

Tasks move only to clients whose state is warm. It first draws up the balanced assignment to reach in the end. Then each task
whose target client would have to restore more than `acceptable.recovery.lag` stays where its state is, while a *warm-up* copy
grows on the target client; the group checks again (probing rebalance) until no task has to wait. The draft depends only on
process ids and tasks, so it is the same in every probing rebalance.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from millrace.assignment.application_state import LATEST_OFFSET, ApplicationState, TaskAssignment
from millrace.assignment.placement import LeastLoaded, Placement, balance
from millrace.assignment.rack_aware import STATELESS_COSTS, RackCosts, optimise_active, optimise_standbys, racks_known
from millrace.assignment.standbys import assign_standbys
from millrace.java_collections import PriorityQueue, signed
from millrace.records import TaskId

_UNBOUNDED = 2**63 - 1


def high_availability_assignor(state: ApplicationState) -> TaskAssignment:
    """Assign tasks so that none of them waits for its state; see `TaskAssignor`."""
    config = state.config
    placement = Placement(state.clients, sorted(state.clients, key=signed))
    stateful = sorted(state.stateful)
    rack_aware = racks_known(state, lambda task: task.partitions) and (
        not config.num_standby_replicas or racks_known(state, lambda task: task.changelogs)
    )
    costs = RackCosts.of(config, traffic=10, non_overlap=1)
    order = list(placement.clients)
    for number, task in enumerate(stateful):
        placement.active[order[number % len(order)]].add(task)
    balance(placement, placement.active, lambda *_: True)
    if rack_aware:
        optimise_active(state, placement, stateful, costs)
    if config.num_standby_replicas:
        assign_standbys(placement, stateful, config)
        tagged = bool(config.rack_aware_tags)
        clients = placement.clients
        balance(
            placement,
            placement.standby,
            lambda source, target: not tagged or clients[source].tags.items() <= clients[target].tags.items(),
        )
        if rack_aware:
            optimise_standbys(
                state,
                placement,
                costs,
                lambda source, target, task: not tagged or _keeps_spread(placement, source, target, task),
            )
    movement = _Movement(placement, stateful, state)
    movements = movement.move_actives() + movement.move_standbys()
    stateless = sorted(state.tasks.keys() - set(stateful))
    queue = LeastLoaded(order, placement.active_load)
    for task in stateless:
        client = queue.poll()
        assert client is not None
        placement.active[client].add(task)
        queue.offer(client)
    if rack_aware:
        optimise_active(state, placement, stateless, STATELESS_COSTS)
    return placement.freeze(probing_rebalance_needed=movements > 0)


def _keeps_spread(placement: Placement, source: UUID, target: UUID, task: TaskId) -> bool:
    """Return whether the copies of a task have as many different tag values if one of them moves."""
    clients = placement.clients
    others = {
        tag
        for client in clients
        if client not in {source, target} and placement.has(client, task)
        for tag in clients[client].tags.items()
    }
    return len(others | clients[target].tags.items()) >= len(others | clients[source].tags.items())


class _Movement:
    """Keeps tasks on caught-up clients, with one budget of warm-ups for active tasks and standbys (KIP-441, steps 5 and 6)."""

    def __init__(self, placement: Placement, stateful: list[TaskId], state: ApplicationState) -> None:
        self._placement = placement
        self._warmups_left = state.config.max_warmup_replicas
        self._warmups: set[tuple[UUID, TaskId]] = set()
        limit = state.config.acceptable_recovery_lag
        self._by_lag: dict[TaskId, list[UUID]] = {}
        self._caught_up: dict[TaskId, frozenset[UUID]] = {}
        for task in stateful:
            lags = {process: client.lag(task) for process, client in placement.clients.items()}
            self._by_lag[task] = sorted(lags, key=lags.__getitem__)
            self._caught_up[task] = frozenset(
                process
                for process, lag in lags.items()
                if lag == LATEST_OFFSET or limit == _UNBOUNDED or 0 <= lag <= limit
            )

    def move_actives(self) -> int:
        """Give active tasks back to clients that are further ahead than the target clients; return how many."""
        waiting = self._waiting(self._placement.active)
        count = len(list(waiting))
        queue = LeastLoaded(self._placement.clients, self._placement.load)
        while waiting:
            self._move_active(*waiting.poll(), queue)
        return count

    def _waiting(self, tasks: Mapping[UUID, set[TaskId]]) -> PriorityQueue[tuple[TaskId, UUID]]:
        """Return tasks whose client has not caught up while another has more of their state, those with least choice first."""
        clients = self._placement.clients
        waiting = PriorityQueue[tuple[TaskId, UUID]](lambda item: (len(self._caught_up[item[0]]), *item[0]))
        for target, client in clients.items():
            for task in sorted(tasks[target]):
                if (
                    (target, task) not in self._warmups
                    and target not in self._caught_up[task]
                    and clients[self._by_lag[task][0]].lag(task) < client.lag(task)
                ):
                    waiting.offer((task, target))
        return waiting

    def _move_active(self, task: TaskId, target: UUID, queue: LeastLoaded) -> None:
        placement, ready = self._placement, self._caught_up[task]
        source = queue.poll(lambda client: client in ready and task in placement.standby[client])
        source = source or queue.poll(lambda client: client in ready) or self._by_lag[task][0]
        placement.active[target].discard(task)
        placement.active[source].add(task)
        if task in placement.standby[source]:
            placement.standby[source].discard(task)
            placement.standby[target].add(task)
        elif self._take_warmup():
            placement.standby[target].add(task)
            self._warmups.add((target, task))
        queue.offer(source)
        queue.offer(target)

    def move_standbys(self) -> int:
        """Give standbys back to clients that are further ahead and without a copy; return how many."""
        placement = self._placement
        waiting = self._waiting(placement.standby)
        queue = LeastLoaded(placement.clients, placement.load)
        moved = 0
        while waiting:
            task, target = waiting.poll()
            source = self._new_home(task, target, queue)
            if source is None:
                continue
            placement.standby[source].add(task)
            if not self._take_warmup():
                placement.standby[target].discard(task)
            queue.offer(source)
            queue.offer(target)
            moved += 1
        return moved

    def _new_home(self, task: TaskId, target: UUID, queue: LeastLoaded) -> UUID | None:
        placement, ready, by_lag = self._placement, self._caught_up[task], self._by_lag[task]
        caught_up = queue.poll(lambda client: client in ready and not placement.has(client, task))
        further_ahead = by_lag[: by_lag.index(target)]
        return caught_up or next((client for client in further_ahead if not placement.has(client, task)), None)

    def _take_warmup(self) -> bool:
        self._warmups_left -= 1
        return self._warmups_left >= 0
