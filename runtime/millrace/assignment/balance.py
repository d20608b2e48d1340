"""Moving tasks between pairs of clients until no move makes their loads more equal."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from millrace.assignment.model import Placement
from millrace.records import TaskId


def balance(
    placement: Placement, tasks: dict[UUID, set[TaskId]], may_move: Callable[[TaskId, UUID, UUID], bool]
) -> None:
    """Move tasks from fuller to emptier clients; the load is all tasks per thread.

    Args:
        placement: What the loads are of.
        tasks: The part that may move: `placement.active` or `placement.standby`.
        may_move: Whether a task may go from one client to another.
    """
    moved = True
    while moved:
        moved = False
        for source in placement.clients:
            for target in placement.clients:
                for task in sorted(tasks[source]):
                    if source == target or not _improves(placement, source, target):
                        break
                    if not placement.has(target, task) and may_move(task, source, target):
                        tasks[source].discard(task)
                        tasks[target].add(task)
                        moved = True


def _improves(placement: Placement, source: UUID, target: UUID) -> bool:
    """Return whether one task moved lowers the skew between two clients without turning it round."""
    skew = placement.load(source) - placement.load(target)
    source_after = (placement.count(source) - 1) / placement.clients[source].capacity
    target_after = (placement.count(target) + 1) / placement.clients[target].capacity
    return 0 <= source_after - target_after < skew
