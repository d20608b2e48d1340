"""Distributing a client's tasks over its threads (group members): evenly, and where they ran before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from millrace.assignment.model import ClientAssignment
from millrace.records import TaskId


@dataclass(frozen=True, slots=True)
class ThreadAssignment:
    """The tasks of one thread."""

    active: frozenset[TaskId]
    standby: frozenset[TaskId]


def assign_to_threads(
    assignment: ClientAssignment,
    stateful: frozenset[TaskId],
    previous: Mapping[str, Collection[TaskId]],
) -> dict[str, ThreadAssignment]:
    """Distribute a client's tasks over its threads.

    Stateful active tasks are distributed first, then standbys, then stateless active tasks, each to the threads with the fewest
    tasks so far. A thread gets at least the rounded-down share, and a task stays on its thread as long as that has room.

    Args:
        assignment: The client's tasks.
        stateful: All tasks with state.
        previous: Member id of each thread → its previous tasks, those with the least to restore first.
    """
    threads = sorted(previous)
    load = dict.fromkeys(threads, 0)
    active: dict[str, set[TaskId]] = {thread: set() for thread in threads}
    standby: dict[str, set[TaskId]] = {thread: set() for thread in threads}
    for tasks, target in (
        (assignment.active & stateful, active),
        (assignment.standby, standby),
        (assignment.active - stateful, active),
    ):
        for thread, given in _spread(tasks, threads, previous, load).items():
            target[thread] |= given
            load[thread] += len(given)
    return {thread: ThreadAssignment(frozenset(active[thread]), frozenset(standby[thread])) for thread in threads}


def _spread(
    tasks: frozenset[TaskId],
    threads: list[str],
    previous: Mapping[str, Collection[TaskId]],
    load: Mapping[str, int],
) -> dict[str, set[TaskId]]:
    share = (len(tasks) + sum(load.values())) // len(threads)
    given: dict[str, set[TaskId]] = {thread: set() for thread in threads}
    left = set(tasks)

    def total(thread: str) -> int:
        return load[thread] + len(given[thread])

    def keep(room: Callable[[str], bool]) -> None:
        for thread in threads:
            for task in previous[thread]:
                if task in left and room(thread):
                    given[thread].add(task)
                    left.discard(task)

    keep(lambda thread: total(thread) < share)
    spare = len(left) - sum(max(0, share - total(thread)) for thread in threads)
    for task in sorted(left):
        owner = next((thread for thread in threads if task in previous[thread]), None)
        if owner is not None and total(owner) == share and spare > 0:
            given[owner].add(task)
            left.discard(task)
            spare -= 1
    for task in sorted(left):
        given[min(threads, key=lambda thread: (total(thread), thread))].add(task)
    return given
