"""Copies of state: which tasks could go on elsewhere at once if a pod went away, and which copies are still being built.

With standbys, a pod that ends leaves the group, and the tasks move to pods with caught-up copies of their state. So a pod is
replaced or removed, and may be evicted, only while each of its tasks with state has such a copy on another pod. StateReplicated
says whether that is so, and since when it is not: after `standby.catchUpTimeout` nothing waits for copies any more. Without
standbys nothing does: a pod comes back with its volume and, as a static member, to its tasks. That also holds for pods of a
revision without standbys, which get copies only by being replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from millrace.durations import duration_ms
from millrace.instance_status import TaskStatus
from millrace_operator.reconcile.children_view import Pod
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.context import ReconcileContext, Target
from millrace_operator.reconcile.revisions import as_of_revision, spec_of
from millrace_operator.reconcile.timestamps import seconds

_NAMED: Final = 5
"""How many tasks a message names."""
_LOOK_AGAIN_S: Final = 3.0


def set_state_replicated(context: ReconcileContext) -> None:
    """Set StateReplicated."""
    before, pods = context.condition("StateReplicated"), list(context.view.pods.values())
    if context.desired.spec is None or len(pods) < 2 or not any(_standbys(context, pod.revision) for pod in pods):
        context.set_condition("True", ConditionReason.NO_COPIES_WANTED)
        return
    if before is not None and before.status != "Unknown" and not context.all_ready_pods_report:
        context.keep(before)
    elif not context.observed.instances:
        context.set_condition("Unknown", ConditionReason.COPIES_UNKNOWN)
    elif found := sorted(task for pod in pods for task in _without_copy(context, pod, pods)):
        context.set_condition("False", ConditionReason.COPIES_BEHIND, f"{_listed(found)} no copy that could take over.")
    else:
        context.set_condition("True", ConditionReason.COPIES_CAUGHT_UP)


def awaited(context: ReconcileContext, pod: Pod, staying: Collection[Pod]) -> str | None:
    """Return why a pod has to wait for copies of its state before it may be replaced or removed; None if it need not.

    Args:
        context: What this pass works on, with StateReplicated set.
        pod: The pod that is to go.
        staying: Pods that may take over its tasks; it may be among them.
    """
    others = [item for item in staying if item.uid != pod.uid]
    if not others or not _standbys(context, pod.revision):
        return None
    if pod.name in context.observed.instances:
        found = sorted(_without_copy(context, pod, others))
        what = f"{_listed(found)} no copy on another pod" if found else ""
    else:
        what = f"Pod {pod.name} does not report its tasks" if pod.ready and _is_behind(context) else ""
    left = _seconds_left(context)
    if not what or left <= 0:
        return None
    if not _is_behind(context):  # as before a pod stopped reporting its copies: the time runs from now
        context.set_condition("False", ConditionReason.COPIES_BEHIND, f"{what} that could take over.")
    context.recheck_after(min(left, _LOOK_AGAIN_S))
    limit = context.spec.standby.catch_up_timeout
    return f"{what} that could take over from pod {pod.name} (standby.catchUpTimeout: {limit})."


def is_awaited(context: ReconcileContext) -> bool:
    """Return whether pods should be left alone for now, because a task has no copy elsewhere."""
    left = _seconds_left(context)
    if not _is_behind(context) or left <= 0:
        return False
    context.recheck_after(left)
    return True


def warming_up(context: ReconcileContext, target: Target | None) -> list[str]:
    """Return the tasks that are to move to another pod once a copy there, a warm-up, has caught up; in order.

    Members cannot tell warm-ups from standbys, but a task has more copies than standbys while one of them is a warm-up.
    """
    copies = Counter(task.id for _, task in _copies(context))
    standbys = (context.spec if target is None else target.spec).standby.replicas
    return sorted(task for task, count in copies.items() if count > standbys)


def _without_copy(context: ReconcileContext, pod: Pod, staying: Collection[Pod]) -> Iterator[str]:
    """Yield a pod's active tasks with state that none of the others could take over at once."""
    instance = context.observed.instances.get(pod.name)
    if instance is None or pod.terminating:
        return
    plan = context.view.plan(pod.revision)
    logged = (
        None
        if plan is None
        else {item.id for item in plan.subtopologies if any(store.changelog_topic for store in item.stores)}
    )
    names = {item.name for item in staying if item.uid != pod.uid and not item.terminating}
    copied = {task.id for name, task in _copies(context) if name in names and _is_caught_up(context, task)}
    for task in instance.tasks:
        is_logged = logged is None or int(task.id.partition("_")[0]) in logged
        if task.stores and task.role == "active" and is_logged and task.id not in copied:
            yield task.id


def _copies(context: ReconcileContext) -> Iterator[tuple[str, TaskStatus]]:
    """Yield all copies, with the names of their pods."""
    for name, instance in context.observed.instances.items():
        yield from ((name, task) for task in instance.tasks if task.stores and task.role != "active")


def _standbys(context: ReconcileContext, revision: str | None) -> int:
    """Return how many copies pods of a revision have of each task's state; none if the spec no longer wants any."""
    wanted, config_map = context.spec.standby.replicas, context.view.revision_config_map(revision)
    spec = None if config_map is None or not wanted else spec_of(config_map)
    return wanted if spec is None else as_of_revision(spec, context.spec).standby.replicas


def _is_caught_up(context: ReconcileContext, task: TaskStatus) -> bool:
    return task.remaining is not None and task.remaining <= context.spec.standby.acceptable_recovery_lag


def _is_behind(context: ReconcileContext) -> bool:
    condition = context.conditions.get("StateReplicated")
    return condition is not None and condition.status == "False"


def _seconds_left(context: ReconcileContext) -> float:
    """Return for how long copies are waited for: none were missing until StateReplicated last changed."""
    limit, before = duration_ms(context.spec.standby.catch_up_timeout) / 1000, context.condition("StateReplicated")
    if before is None or before.status == "True":
        return limit
    return seconds(before.last_transition_time) + limit - context.now


def _listed(tasks: Collection[str]) -> str:
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    names = ", ".join(list(tasks)[:_NAMED])
    return f"Task {names} has" if len(tasks) == 1 else f"Tasks {names}{more} have"
