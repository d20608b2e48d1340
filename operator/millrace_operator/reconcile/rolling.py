"""Rolling: moving pods to the target revision one at a time, and noticing that a new revision does not work.

The StatefulSet never replaces a pod on its own: a pod is replaced by deleting it, by uid, so that the same decision taken twice
deletes once. The highest ordinal comes first. While all other pods are healthy, the gate decides when; a pod that is broken
anyway is replaced first and without the gate, as waiting for it is pointless. A version that does not read what the old one reads
cannot share a group with it, because the leader would assign it such partitions: then all pods are replaced at once, as with
Recreate.

That a revision failed is remembered on its ConfigMap: it does not become the target again, so a roll never swings back and forth.

Renewing replaces pods of the right revision, one at a time, that use outdated credentials or were made from an older template.

A running instance picks up new passwords. Certificates and keys are read only once by the client libraries, so an instance that
finds different ones in its files reports that. It is restarted through the gate of a roll, which the first pod that does not
become ready with the new ones stops: the others continue with the old ones for as long as the brokers accept them.

Another version of the operator may build the pods of a revision differently. So that upgrading the operator does not restart
the pods of all applications at once, this needs a permit, which the operator gives to a few applications at a time. An
application keeps its permit until all its pods have run well from the new template for as long as the gate asks: a template
that does not work stops there. A rollback cannot undo it, as the revision is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.durations import duration_ms
from millrace_operator.model import Delete, Key, Renewal
from millrace_operator.reconcile import copies
from millrace_operator.reconcile.children_view import Pod
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.context import ReconcileContext, Target
from millrace_operator.reconcile.revisions import revision_of
from millrace_operator.reconcile.timestamps import seconds

_IMAGE_PATIENCE_S: Final = 60
"""How long an image may be unavailable before that counts as a failure rather than a hiccup."""
_CRASHES: Final = 2
"""After how many restarts a crash is no longer a coincidence."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a revision does not work."""

    reason: ConditionReason
    message: str

    def to_text(self) -> str:
        """Return it as the value of an annotation."""
        return f"{self.reason}: {self.message}"

    @classmethod
    def from_text(cls, text: str) -> Failure:
        """Read what `to_text` wrote."""
        word, _, message = text.partition(": ")
        reason = ConditionReason.named(word)
        return cls(ConditionReason.POD_CRASHED, text) if reason is None else cls(reason, message)


def failure_of(context: ReconcileContext, pods: Iterable[Pod]) -> Failure | None:
    """Return why the first failing one of these pods fails; None while they may still become ready."""
    failures = (_pod_failure(context, pod) for pod in pods if not pod.terminating)
    return next((failure for failure in failures if failure is not None), None)


def _pod_failure(context: ReconcileContext, pod: Pod) -> Failure | None:
    if pod.ready:
        return None
    trouble = pod.trouble
    if trouble is not None and trouble.is_image:
        left = pod.created + _IMAGE_PATIENCE_S - context.now
        if left <= 0:
            return Failure(ConditionReason.IMAGE_UNAVAILABLE, f"Pod {pod.name} cannot pull its image.")
        context.recheck_after(left)
        return None
    if not context.brokers_answer:  # this may be the only reason why it does not become ready
        return None
    away_until = _brokers_away_until(context)
    if trouble is not None and trouble.is_crash:
        if trouble.restarts < _CRASHES or (trouble.ended is not None and trouble.ended < away_until):
            context.recheck_after(10)
            return None
        return Failure(ConditionReason.POD_CRASHED, f"Pod {pod.name} crashes: {trouble.message}".rstrip(": "))
    limit = duration_ms(context.spec.upgrade.gate.ready_timeout) / 1000
    left = max(pod.unready_since, away_until) + limit - context.now
    if left > 0:
        context.recheck_after(left)
        return None
    why = f" ({trouble.reason}: {trouble.message})" if trouble is not None and not trouble.is_crash else ""
    why += f"; it crashed: {pod.last_words}" if pod.last_words else ""
    limit_text = context.spec.upgrade.gate.ready_timeout
    return Failure(ConditionReason.READY_TIMEOUT, f"Pod {pod.name} was not ready within {limit_text}{why}.")


def _brokers_away_until(context: ReconcileContext) -> float:
    """Return since when the brokers have answered: what happened before then is not the revision's fault."""
    known = context.condition("BrokersReachable")
    if known is None or known.status != "True":
        return context.now
    return seconds(known.last_transition_time)


def is_at_once(context: ReconcileContext, target: str) -> bool:
    """Return whether all pods are replaced at once: because the user wants it, or because the versions cannot share a group."""
    if context.spec.upgrade.strategy == "Recreate":
        return True
    new = context.view.plan(target)
    olds = [context.view.plan(pod.revision) for pod in context.view.pods.values() if pod.revision != target]
    if new is None:
        return False
    # A version has to be able to take every task that a leader of the older version may assign.
    reads = {item.id: {*item.source_topics, *item.source_patterns} for item in new.subtopologies}
    return any(
        not {*item.source_topics, *item.source_patterns} <= reads.get(item.id, set())
        for old in olds
        if old is not None
        for item in old.subtopologies
    )


def replace_pods(context: ReconcileContext, target: str, replicas: int, *, may_start: bool) -> bool:
    """Replace pods of other revisions as far as possible now, and return whether none is left.

    Args:
        context: What this pass works on; the StatefulSet has the target's template already.
        target: The revision that pods are moved to.
        replicas: How many pods there should be.
        may_start: Whether brokers and topics are such that a new pod could run.
    """
    there = [pod for index, pod in sorted(context.view.pods.items()) if index < replicas]
    outdated = [pod for pod in reversed(there) if pod.revision != target]
    if not outdated:
        return True
    if not context.view.pods_follow:
        context.recheck_after(1)
    elif not may_start:  # a pod without an image is useless with or without brokers
        delete_pods(context, [pod for pod in outdated if pod.trouble is not None and pod.trouble.is_image][:1])
    elif is_at_once(context, target):
        delete_pods(context, outdated)
    else:
        replace_one(context, replicas, there, outdated)
    return False


def replace_one(context: ReconcileContext, replicas: int, there: Sequence[Pod], outdated: Sequence[Pod]) -> None:
    """Replace the first of some outdated pods if the gate is open; a broken one is replaced without the gate.

    Args:
        context: What this pass works on; the StatefulSet has the template from which the pod is recreated.
        replicas: How many pods there should be.
        there: The existing pods.
        outdated: The pods among them that should be replaced.
    """
    absent = len(there) < replicas or any(pod.terminating for pod in there)
    coming = [pod for pod in there if pod not in outdated and not pod.ready]
    if absent or coming:
        return
    latest = context.now - duration_ms(context.spec.upgrade.gate.ready_timeout) / 1000
    answering = _brokers_away_until(context)
    broken = [
        pod
        for pod in outdated
        if not pod.ready and (pod.trouble is not None or max(pod.unready_since, answering) < latest)
    ]
    if broken:
        delete_pods(context, broken[:1])
    elif all(pod.ready for pod in there):
        closed = gate(context, there, outdated[0])
        if closed is None:
            delete_pods(context, outdated[:1])
        else:
            context.set_condition("True", ConditionReason.WAITING_FOR_GATE, closed)
    else:
        context.set_condition(
            "True",
            ConditionReason.WAITING_FOR_GATE,
            "A pod of the running revision is not ready; it may still become so.",
        )
        context.recheck_after(10)


def delete_pods(context: ReconcileContext, pods: Sequence[Pod]) -> None:
    """Delete pods, which the StatefulSet recreates from its template."""
    context.actions.extend(Delete(Key("Pod", pod.name), pod.uid) for pod in pods if not pod.terminating)


def gate(context: ReconcileContext, pods: Sequence[Pod], following: Pod) -> str | None:
    """Return what the next replacement has to wait for, or None.

    Args:
        context: What this pass works on.
        pods: The application's pods, which are all ready.
        following: The pod that is to be replaced next.
    """
    asked = context.spec.upgrade.gate
    ready_since = max((pod.ready_since or 0 for pod in pods), default=0)
    left = ready_since + duration_ms(asked.min_stable) / 1000 - context.now
    if len(pods) < len(context.view.pods):
        context.recheck_after(5)
        return "Pods that are no longer wanted are terminating."
    if not context.group_is_stable:
        context.recheck_after(5)
        return "The consumer group is not stable."
    if any(instance.task_counts.restoring for instance in context.observed.instances.values()):
        context.recheck_after(5)
        return "Tasks are restoring their state."
    if left > 0:
        context.recheck_after(left)
        return f"The group has to be stable for {asked.min_stable}."
    waits = copies.awaited(context, following, pods)
    if waits is not None or asked.max_lag is None:
        return waits
    lag = context.observed.kafka.lag
    if lag is None or lag > asked.max_lag:
        context.recheck_after(10)
        return f"The lag has to be at most {asked.max_lag} (upgrade.gate.maxLag)."
    return None


def has_settled(context: ReconcileContext, target: str, replicas: int) -> bool:
    """Return whether the revision has run well for as long as the gate asks."""
    pods = [context.view.pods.get(index) for index in range(replicas)]
    there = [pod for pod in pods if pod is not None and pod.ready and pod.revision == target]
    if not replicas or len(there) < replicas:
        return False
    ready_since = max(pod.ready_since or 0 for pod in there)
    left = ready_since + duration_ms(context.spec.upgrade.gate.min_stable) / 1000 - context.now
    if left > 0:
        context.recheck_after(left)
        return False
    return True


def renew_credentials(context: ReconcileContext, replicas: int, *, may_start: bool) -> bool:
    """Restart a pod with stale credentials if that is possible now, and return whether there is none.

    Args:
        context: What this pass works on; all pods are of the target revision.
        replicas: How many pods there should be.
        may_start: Whether brokers and topics are such that a new pod could run.
    """
    there = [pod for index, pod in sorted(context.view.pods.items()) if index < replicas]
    instances = context.observed.instances
    outdated = {name for name, instance in instances.items() if instance.credentials_stale}
    stale = [pod for pod in reversed(there) if pod.name in outdated and not pod.terminating]
    if not stale:
        return True
    names = ", ".join(sorted(pod.name for pod in stale))
    context.set_condition(
        "True", ConditionReason.RENEWING_CREDENTIALS, f"Pods to be restarted with new certificates or keys: {names}."
    )
    absent = len(there) < replicas or any(pod.terminating for pod in there)
    coming = any(not pod.ready and pod not in stale for pod in there)
    if not may_start:
        context.recheck_after(15)
    elif absent or coming:
        context.recheck_after(10)
    elif cut_off := [pod for pod in stale if not pod.ready and not instances[pod.name].task_counts.restoring]:
        delete_pods(context, cut_off[:1])
    elif (closed := gate(context, there, stale[0])) is None:
        delete_pods(context, stale[:1])
    else:
        context.set_condition("True", ConditionReason.WAITING_FOR_GATE, closed)
    return False


def renew_by_template(
    context: ReconcileContext, target: Target, template: str, replicas: int, *, is_stable: bool
) -> Renewal | None:
    """Replace a pod made from another template if the application has a permit and the gate is open; set PodsCurrent.

    Args:
        context: What this pass works on; all pods are of the target revision, and the StatefulSet has its template.
        target: The target.
        template: The template's hash.
        replicas: How many pods there should be.
        is_stable: Whether the target revision has run well.

    Returns:
        What the application needs a permit for; None if it needs none.
    """
    revision = target.revision
    there = [pod for index, pod in sorted(context.view.pods.items()) if index < replicas]
    outdated = [pod for pod in reversed(there) if pod.template != template]
    coming = [pod for pod in there if pod not in outdated and not pod.ready]
    is_down = bool(coming) or len(there) < replicas or any(pod.terminating for pod in there)
    before = context.condition("PodsCurrent")
    is_held = _held_back(context, revision) is not None
    has_permit = context.observed.renewal == "Now" and not is_held
    under_way = has_permit or (is_down and before is not None and before.reason == ConditionReason.RENEWAL_UNDER_WAY)
    if not replicas or (not outdated and (not under_way or has_settled(context, revision, replicas))):
        context.set_condition("True", ConditionReason.TEMPLATE_IN_USE)
        return None
    needs_permit = has_permit or (bool(outdated) and target.may_start and not is_held)
    renewal = Renewal(left=len(outdated), coming=is_down) if needs_permit else None
    if not under_way:
        context.set_condition(
            "False", ConditionReason.TEMPLATE_OUTDATED, _outdated_message(context, revision, outdated, replicas)
        )
        return renewal
    names = ", ".join(sorted(pod.name for pod in outdated))
    left = f"Pods left as they are: {names}." if outdated else "No pod is left as it was."
    context.set_condition("False", ConditionReason.RENEWAL_UNDER_WAY, f"Pods still to be replaced: {names or 'none'}.")
    failure = failure_of(context, coming) if is_stable else None
    if failure is not None:
        context.set_condition(
            "True",
            ConditionReason.RENEWAL_FAILED,
            f"{failure.message} This version of the operator built it. {left}",
        )
        return renewal
    context.set_condition(
        "True",
        ConditionReason.RENEWING_PODS,
        f"Pods are replaced one after another; still to be replaced: {names or 'none'}.",
    )
    if not context.view.pods_follow:
        context.recheck_after(1)
    elif has_permit and target.may_start and outdated:
        replace_one(context, replicas, there, outdated)
    return renewal


def _held_back(context: ReconcileContext, revision: str) -> str | None:
    """Return why pods are not replaced because of the template even with a permit; None if they may be."""
    if context.is_true("Stalled"):
        return "They are not replaced while the application is stalled."
    if revision_of(context.spec) != revision:
        return "They are replaced with the next revision, which is being prepared."
    return None


def _outdated_message(context: ReconcileContext, revision: str, outdated: Sequence[Pod], replicas: int) -> str:
    names = ", ".join(sorted(pod.name for pod in outdated))
    what = f"{len(outdated)} of {replicas} pods are not as this version of the operator builds them: {names}."
    held_back = _held_back(context, revision)
    if held_back is not None:
        return f"{what} {held_back}"
    if context.observed.renewal == "Never":
        return (
            f"{what} The operator is configured not to replace them for that (MILLRACE_OPERATOR_TEMPLATE_ROLLS is 0). "
            "Change restartNonce to have them replaced."
        )
    return f"{what} They keep running until it is the application's turn to have them replaced."
