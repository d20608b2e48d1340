"""Distributing a client's tasks over its threads (group members): evenly, and where they ran before."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from millrace.assignment.application_state import ClientAssignment
from millrace.java_collections import PriorityQueue, hash_order
from millrace.records import TaskId


@dataclass(frozen=True, slots=True)
class ThreadAssignment:
    """The tasks of one thread."""

    active: frozenset[TaskId]
    standby: frozenset[TaskId]


def assign_to_threads(
    assignment: ClientAssignment,
    stateful: Collection[TaskId],
    previous: Mapping[str, Collection[TaskId]],
) -> dict[str, ThreadAssignment]:
    """Distribute a client's tasks over its threads.

    Stateful active tasks are distributed first, then standbys, then stateless active tasks, each to the threads with the fewest
    tasks so far. A thread gets at least the rounded-down share. A task with state stays on its thread as long as that has room.

    Args:
        assignment: The client's tasks.
        stateful: All tasks with changelogs.
        previous: Member id of each thread → its previous tasks with state, those with the least to restore first.
    """
    threads = sorted(previous)
    load = dict.fromkeys(threads, 0)
    nothing: dict[str, Collection[TaskId]] = dict.fromkeys(threads, ())
    with_state = _spread(hash_order(sorted(assignment.active.intersection(stateful))), previous, load)
    standby = _spread(sorted(assignment.standby), previous, load)
    without_state = _spread(hash_order(sorted(assignment.active.difference(stateful))), nothing, load)
    return {
        thread: ThreadAssignment(frozenset(with_state[thread] + without_state[thread]), frozenset(standby[thread]))
        for thread in threads
    }


def _spread(
    tasks: Iterable[TaskId], previous: Mapping[str, Collection[TaskId]], load: dict[str, int]
) -> dict[str, list[TaskId]]:
    """Distribute one kind of tasks.

    Args:
        tasks: The tasks.
        previous: Each thread's tasks that may stay.
        load: How many tasks each thread has; updated.
    """
    threads = sorted(load)
    given: dict[str, list[TaskId]] = {thread: [] for thread in threads}
    left = PriorityQueue[TaskId](lambda task: task, tasks)
    share = (len(list(left)) + sum(load.values())) // len(threads)
    room = {thread: share - load[thread] for thread in threads}

    def give(thread: str, task: TaskId) -> None:
        given[thread].append(task)
        left.remove(task)

    skipped: dict[TaskId, str] = {}
    for thread in threads:
        mine, fit = [task for task in previous[thread] if task in left], max(0, room[thread])
        skipped |= dict.fromkeys(mine[fit:], thread)
        for task in mine[:fit]:
            give(thread, task)
    below_share = deque(thread for thread in threads if len(given[thread]) < room[thread])
    while below_share:
        thread = below_share.popleft()
        given[thread].append(left.poll())
        if len(given[thread]) < room[thread]:
            below_share.append(thread)
    # A thread with exactly its share can get one of the remaining tasks, preferably one that it had.
    at_share = [thread for thread in threads if len(given[thread]) == room[thread]]
    for task, thread in sorted(skipped.items()):
        if thread in at_share and task in left:
            give(thread, task)
            at_share.remove(thread)
    for task, thread in zip(left, at_share, strict=False):
        given[thread].append(task)
    for thread in threads:
        load[thread] += len(given[thread])
    return given
