"""Scaling: how many pods the StatefulSet should have now, and what has to happen before a pod is removed.

To add pods, or remove all, only the number changes. To remove one, the highest ordinal waits for copies of its state elsewhere
if there are standbys. Then it is told to leave the group, its tasks move, and only then the pod is removed. A pod that does not
respond, or that may not be told, delays this no longer than its grace period, and one that is known not to listen does not delay
it at all: on SIGTERM it commits and closes. Static members whose pods are gone for good are removed from the group, which would
otherwise wait for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from millrace_operator.children.naming import DRAIN_ANNOTATION
from millrace_operator.model import ConsumerGroupMember, Delete, DrainPod, Key
from millrace_operator.reconcile import consumer_group, copies, nodes
from millrace_operator.reconcile.children_view import Pod
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.context import ReconcileContext


@dataclass(frozen=True, slots=True)
class Scale:
    """How many replicas the StatefulSet should have now."""

    replicas: int
    leaving: Pod | None = None
    """The pod that hands over its tasks before it is removed."""
    since: int = 0
    """Since when it should, in seconds since the epoch."""

    @property
    def notes(self) -> dict[str, str]:
        """The annotations by which the StatefulSet remembers this."""
        return {} if self.leaving is None else {DRAIN_ANNOTATION: f"{self.leaving.uid} {self.since}"}


def scale(context: ReconcileContext, wanted: int, *, may_start: bool) -> Scale:
    """Return how many replicas the StatefulSet should have now.

    Args:
        context: What this pass works on.
        wanted: How many there should be in the end.
        may_start: Whether pods may be added.
    """
    current = context.view.replicas
    if current is None:
        return Scale(max([wanted, *(index + 1 for index in context.view.pods)]) if wanted else 0)
    if wanted >= current:
        return Scale(wanted if may_start else current)
    if wanted == 0:
        return Scale(0)
    pod = context.view.pods.get(current - 1)
    if pod is None or pod.terminating:
        return Scale(current - 1)
    annotations = (context.view.stateful_set or {"metadata": {}})["metadata"].get("annotations") or {}
    uid, _, noted_since = annotations.get(DRAIN_ANNOTATION, "").partition(" ")
    noted = int(noted_since) if uid == pod.uid and noted_since.isdecimal() else None
    if pod.drains_since is None and noted is None:
        staying = [item for index, item in context.view.pods.items() if index < pod.index]
        waits = copies.awaited(context, pod, staying)
        if waits is not None:
            context.set_condition("True", ConditionReason.DRAINING, waits)
            return Scale(current)
    since = pod.drains_since or noted or int(context.now)
    grace = context.spec.drain.termination_grace_period_seconds
    left = since + grace - context.now
    message = f"Pod {pod.name} hands over its tasks before it is removed."
    if pod.drains_since is None and noted is not None:
        message = f"Pod {pod.name} could not be told to hand over its tasks; after {grace} s it is removed regardless."
    context.set_condition("True", ConditionReason.DRAINING, message)
    if left <= 0 or not pod.reads_drain or _has_left(context, pod):
        return Scale(current - 1)
    context.recheck_after(min(left, 3))
    return Scale(current, pod, since)


def drain_pods(context: ReconcileContext, step: Scale) -> None:
    """Have the pod that leaves drain, and replace pods that drain but are wanted after all: those take no tasks again."""
    leaving = step.leaving
    if leaving is not None and leaving.drains_since is None:
        context.actions.append(DrainPod(leaving.name, leaving.uid, step.since))
    replicas = step.replicas if leaving is None else leaving.index
    for index, pod in sorted(context.view.pods.items()):
        instance = context.observed.instances.get(pod.name)
        drained = pod.drains_since is not None or (instance is not None and instance.state == "DRAINED")
        if index < replicas and drained and not pod.terminating:
            context.actions.append(Delete(Key("Pod", pod.name), pod.uid))


def _has_left(context: ReconcileContext, pod: Pod) -> bool:
    """Return whether the instance has left the group and others have its tasks."""
    instance = context.observed.instances.get(pod.name)
    if instance is None or instance.state != "DRAINED":
        return False
    own, _ = consumer_group.members(context)
    return context.group_is_stable and not any(_ordinal(context, item) == pod.index for item in own)


def _ordinal(context: ReconcileContext, member: ConsumerGroupMember) -> int | None:
    """Return the ordinal of the pod that one of the application's own members is of."""
    match = re.match(rf"{re.escape(context.desired.name)}-(\d+)", member.instance_id or member.client_id)
    return None if match is None else int(match[1])


def remove_members(context: ReconcileContext) -> None:
    """Remove members that will not come back: of higher ordinals, earlier StreamsApps of this name, dead processes and nodes.

    A process that dies does not leave the group, which would wait for it until its session times out. A dynamic member does not
    come back, not even when its pod does, and with standbys others can take over a static member's tasks at once; so these are
    removed. Without standbys a static member is left to its successor in the same pod, which needs no rebalance. This comes
    last, so that brokers refusing it block nothing else.
    """
    if not context.brokers_answer:
        return
    former, replicas = consumer_group.former_members(context), context.view.replicas
    gone = [item for item in former if item.instance_id is not None]  # others leave when their session is over
    own, _ = consumer_group.members(context)
    if replicas is not None:
        gone += [
            item
            for item in own
            if (index := _ordinal(context, item)) is not None and index >= replicas and index not in context.view.pods
        ]
    dead = frozenset().union(*(pod.dead_members for pod in context.view.pods.values()))
    may_leave = [item for item in own if item.static_id is None or context.spec.standby.replicas]
    lost = nodes.lost_ordinals(context, {_ordinal(context, item) for item in may_leave})
    gone += [item for item in may_leave if item.member_id in dead or _ordinal(context, item) in lost]
    context.actions.extend(consumer_group.removal_of(gone))
