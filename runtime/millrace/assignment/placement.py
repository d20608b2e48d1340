"""The draft of an assignment that assignors work on: who is least loaded, and how to balance."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from millrace.assignment.application_state import ClientAssignment, ClientState, TaskAssignment
from millrace.java_collections import PriorityQueue, hash_order, signed
from millrace.records import TaskId

log = logging.getLogger("millrace.assignment")


class Placement:
    """The draft of an assignment; mutable, and private to assignors."""

    def __init__(self, clients: Mapping[UUID, ClientState], order: Iterable[UUID]) -> None:
        """Start with nothing assigned.

        Args:
            clients: All processes.
            order: In which order to look at them.
        """
        self.clients = {process: clients[process] for process in order}
        self.active: dict[UUID, set[TaskId]] = {process: set() for process in self.clients}
        self.standby: dict[UUID, set[TaskId]] = {process: set() for process in self.clients}

    def has(self, process: UUID, task: TaskId) -> bool:
        """Return whether a client has a copy of a task."""
        return task in self.active[process] or task in self.standby[process]

    def count(self, process: UUID) -> int:
        """Return how many tasks a client has."""
        return len(self.active[process]) + len(self.standby[process])

    def load(self, process: UUID) -> float:
        """Return how many tasks a client has per thread."""
        return self.count(process) / self.clients[process].capacity

    def active_load(self, process: UUID) -> float:
        """Return how many active tasks a client has per thread."""
        return len(self.active[process]) / self.clients[process].capacity

    def freeze(self, *, probing_rebalance_needed: bool = False) -> TaskAssignment:
        """Return the draft as a decision."""
        return TaskAssignment(
            {
                process: ClientAssignment(frozenset(self.active[process]), frozenset(self.standby[process]))
                for process in self.clients
            },
            probing_rebalance_needed,
        )


class LeastLoaded:
    """Clients by their load. One whose load changes has to be offered again to be at its right place."""

    def __init__(self, clients: Iterable[UUID], load: Callable[[UUID], float]) -> None:
        """Offer clients.

        Args:
            clients: Who is offered.
            load: Returns a client's load.
        """
        self._queue = PriorityQueue[UUID](lambda process: (load(process), signed(process)))
        for client in clients:
            self.offer(client)

    def offer(self, client: UUID) -> None:
        """Put a client at its place, according to its load now."""
        if client in self._queue:
            self._queue.remove(client)
        self._queue.offer(client)

    def poll(self, accept: Callable[[UUID], bool] = lambda _: True) -> UUID | None:
        """Remove the least loaded client that is accepted, and return it; None if there is none."""
        refused: list[UUID] = []
        found = None
        while self._queue and found is None:
            client = self._queue.poll()
            if accept(client):
                found = client
            else:
                refused.append(client)
        for client in hash_order(refused):
            self.offer(client)
        return found


def balance(placement: Placement, tasks: dict[UUID, set[TaskId]], may_move: Callable[[UUID, UUID], bool]) -> None:
    """Move tasks between pairs of clients until no move makes their loads more equal; the load is all tasks per thread.

    Args:
        placement: The draft.
        tasks: The tasks that may move: `placement.active` or `placement.standby`.
        may_move: Returns whether tasks may move from one client to another.
    """
    moved = True
    while moved:
        moved = False
        for source in placement.clients:
            for target in placement.clients:
                for task in sorted(tasks[source]):
                    if source == target or not _improves(placement, source, target):
                        break
                    if not placement.has(target, task) and may_move(source, target):
                        tasks[source].discard(task)
                        tasks[target].add(task)
                        moved = True


def _improves(placement: Placement, source: UUID, target: UUID) -> bool:
    """Return whether one task moved lowers the skew between two clients without turning it round."""
    skew = placement.load(source) - placement.load(target)
    source_after = (placement.count(source) - 1) / placement.clients[source].capacity
    target_after = (placement.count(target) + 1) / placement.clients[target].capacity
    return 0 <= source_after - target_after < skew
