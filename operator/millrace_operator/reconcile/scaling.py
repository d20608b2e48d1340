"""Scaling: how many pods the StatefulSet is to have now, and what has to happen before there are fewer.

More pods, or none at all, are a matter of a number. One pod fewer means: the highest ordinal is told to leave the group, its
tasks move, and only then the pod goes. A pod that does not answer holds this up no longer than its grace period. Static members
whose pods are gone for good are removed from the group, which would wait for them otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from millrace_operator.model import Delete, DrainPod, Key, RemoveMembers
from millrace_operator.reconcile.annotations import DRAIN
from millrace_operator.reconcile.reasons import Reason
from millrace_operator.reconcile.turn import Turn
from millrace_operator.reconcile.view import Pod

_STILL_WORKS: Final = frozenset({"CREATED", "STARTING", "REBALANCING", "RUNNING"})


@dataclass(frozen=True, slots=True)
class Scale:
    """How many replicas the StatefulSet is to have now."""

    replicas: int
    drain: DrainPod | None = None
    """What is to be done once the StatefulSet has the note."""
    note: str | None = None
    """What the StatefulSet's annotation is to say of a pod that drains."""


def scale(turn: Turn, wanted: int, *, may_start: bool) -> Scale:
    """Return how many replicas the StatefulSet is to have now.

    Args:
        turn: The turn.
        wanted: How many there are to be in the end.
        may_start: Whether pods may be added.
    """
    current = turn.view.replicas
    if current is None:
        return Scale(max([wanted, *(index + 1 for index in turn.view.pods)]) if wanted else 0)
    if wanted >= current:
        return Scale(wanted if may_start else current)
    if wanted == 0:
        return Scale(0)
    return _one_fewer(turn, current)


def _one_fewer(turn: Turn, current: int) -> Scale:
    pod = turn.view.pods.get(current - 1)
    if pod is None or pod.terminating:
        return Scale(current - 1)
    started = _drain_started(turn, pod)
    left = started + turn.spec.drain.termination_grace_period_seconds - turn.now
    turn.settle("True", Reason.DRAINING, f"Pod {pod.name} hands its tasks over before it is removed.")
    if left <= 0 or _has_left(turn, pod):
        return Scale(current - 1)
    instance = turn.observed.instances.get(pod.name)
    works = instance is not None and instance.state in _STILL_WORKS
    turn.look_after(min(left, 3))
    return Scale(current, DrainPod(pod.name, pod.uid) if works else None, f"{pod.uid} {started:.0f}")


def restart_drained(turn: Turn, replicas: int) -> None:
    """Start those pods anew that were drained and are wanted after all: a drained instance takes no tasks again."""
    for index, pod in sorted(turn.view.pods.items()):
        instance = turn.observed.instances.get(pod.name)
        if index < replicas and instance is not None and instance.state == "DRAINED" and not pod.terminating:
            turn.actions.append(Delete(Key("Pod", pod.name), pod.uid))


def _drain_started(turn: Turn, pod: Pod) -> float:
    stateful_set = turn.view.stateful_set
    annotations = {} if stateful_set is None else stateful_set["metadata"].get("annotations", {})
    uid, _, since = annotations.get(DRAIN, "").partition(" ")
    return float(since) if uid == pod.uid and since.isdigit() else turn.now


def _has_left(turn: Turn, pod: Pod) -> bool:
    """Return whether the instance is out of the group and others have its tasks."""
    instance = turn.observed.instances.get(pod.name)
    if instance is None or instance.state != "DRAINED":
        return False
    group = turn.observed.kafka.group
    if group is None:
        return False
    return turn.group_is_stable and not any(_ordinal(turn, item.instance_id) == pod.index for item in group.members)


def _ordinal(turn: Turn, instance_id: str | None) -> int | None:
    """Return the ordinal of the pod that a static member is of."""
    match = re.fullmatch(rf"{re.escape(turn.desired.name)}-(\d+)", instance_id or "")
    return None if match is None else int(match[1])


def remove_members(turn: Turn) -> None:
    """Let those static members leave whose pods are gone for good; those of lower ordinals come back.

    This is the last thing done, as brokers that refuse it should keep nothing else from being done.
    """
    group, replicas = turn.observed.kafka.group, turn.view.replicas
    if not turn.brokers_answer or group is None or replicas is None:
        return
    gone = {
        item.instance_id
        for item in group.members
        if item.instance_id is not None
        and (index := _ordinal(turn, item.instance_id)) is not None
        and index >= replicas
        and index not in turn.view.pods
    }
    if gone:
        turn.actions.append(RemoveMembers(tuple(sorted(gone))))
