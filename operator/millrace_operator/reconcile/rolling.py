"""Rolling: bringing pods to the target revision one at a time, and seeing that a new revision does not do.

The StatefulSet replaces nothing by itself: a pod is replaced by deleting it, under its uid, so that the same decision taken twice
deletes once. The highest ordinal comes first. While every other pod is as it should be the gate decides; a pod that is broken
anyway is replaced first and needs no gate, as it cannot be waited for. A version that does not read what the old one reads cannot
be in a group with it, whose leader would give it such partitions: then all pods are replaced at once, as with Recreate.

Whether a revision failed is remembered on its ConfigMap: it is then not the target again, so a roll never swings back and forth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.manifest.fields import duration_ms
from millrace.plan.model import TopologyPlan
from millrace_operator.model import Delete, Key
from millrace_operator.reconcile.reasons import Reason
from millrace_operator.reconcile.turn import Turn
from millrace_operator.reconcile.view import Pod, seconds

_IMAGE_PATIENCE_S: Final = 60
"""How long an image may not be pulled before that is the image's fault and not that of the moment."""
_CRASHES: Final = 2
"""How often a pod has been restarted when that is no chance any more."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a revision does not do."""

    reason: Reason
    message: str

    def to_text(self) -> str:
        """Return it as the value of an annotation."""
        return f"{self.reason}: {self.message}"

    @classmethod
    def from_text(cls, text: str) -> Failure:
        """Read what `to_text` wrote."""
        reason, _, message = text.partition(": ")
        try:
            return cls(Reason(reason), message)
        except ValueError:
            return cls(Reason.POD_CRASHED, text)


def failure_of(turn: Turn, revision: str) -> Failure | None:
    """Return why the pods of a revision show that it does not do; None while they may come up yet."""
    return failure_among(turn, [pod for _, pod in sorted(turn.view.pods.items()) if pod.revision == revision])


def failure_among(turn: Turn, pods: Iterable[Pod]) -> Failure | None:
    """Return why the first of some pods that fails does; None while they may come up yet."""
    failures = (_pod_failure(turn, pod) for pod in pods if not pod.terminating)
    return next((failure for failure in failures if failure is not None), None)


def _pod_failure(turn: Turn, pod: Pod) -> Failure | None:
    if pod.ready:
        return None
    trouble = pod.trouble
    if trouble is not None and trouble.is_image:
        left = pod.created + _IMAGE_PATIENCE_S - turn.now
        if left <= 0:
            return Failure(Reason.IMAGE_UNAVAILABLE, f"Pod {pod.name} cannot pull its image.")
        turn.look_after(left)
        return None
    if not turn.brokers_answer:  # which may be the only reason that it does not come up
        return None
    away_until = _brokers_away_until(turn)
    if trouble is not None and trouble.is_crash:
        if trouble.restarts < _CRASHES or (trouble.ended is not None and trouble.ended < away_until):
            turn.look_after(10)
            return None
        return Failure(Reason.POD_CRASHED, f"Pod {pod.name} crashes: {trouble.message}".rstrip(": "))
    limit = duration_ms(turn.spec.upgrade.gate.ready_timeout) / 1000
    left = max(pod.unready_since, away_until) + limit - turn.now
    if left > 0:
        turn.look_after(left)
        return None
    why = f" ({trouble.reason}: {trouble.message})" if trouble is not None and not trouble.is_crash else ""
    why += f"; it crashed: {pod.last_words}" if pod.last_words else ""
    limit_text = turn.spec.upgrade.gate.ready_timeout
    return Failure(Reason.READY_TIMEOUT, f"Pod {pod.name} was not ready within {limit_text}{why}.")


def _brokers_away_until(turn: Turn) -> float:
    """Return since when the brokers have answered: what happened before then is no fault of a revision."""
    known = turn.condition("BrokersReachable")
    if known is None or known.status != "True":
        return turn.now
    return seconds(known.last_transition_time)


def is_at_once(turn: Turn, target: str) -> bool:
    """Return whether all pods are replaced at once: by the user's wish, or because the versions cannot be in a group together."""
    if turn.spec.upgrade.strategy == "Recreate":
        return True
    new = turn.view.plan(target)
    olds = [turn.view.plan(pod.revision) for pod in turn.view.pods.values() if pod.revision != target]
    return new is not None and any(old is not None and not _reads_all_of(new, old) for old in olds)


def _reads_all_of(new: TopologyPlan, old: TopologyPlan) -> bool:
    """Return whether a version can take any task that the leader of an older version knows of."""
    after = {item.id: {*item.source_topics, *item.source_patterns} for item in new.subtopologies}
    return all({*item.source_topics, *item.source_patterns} <= after.get(item.id, set()) for item in old.subtopologies)


def replace_pods(turn: Turn, target: str, replicas: int, *, may_start: bool) -> bool:
    """Replace what is not of the target revision as far as may be done now, and return whether all are.

    Args:
        turn: The turn; the StatefulSet has the target's template already.
        target: The revision that pods are brought to.
        replicas: How many there are to be.
        may_start: Whether brokers and topics are such that a new pod could run.
    """
    there = [pod for index, pod in sorted(turn.view.pods.items()) if index < replicas]
    outdated = [pod for pod in reversed(there) if pod.revision != target]
    if not outdated:
        return True
    if not turn.view.pods_follow:
        turn.look_after(1)
    elif not may_start:  # a pod without an image is of no use with or without brokers
        delete_pods(turn, [pod for pod in outdated if pod.trouble is not None and pod.trouble.is_image][:1])
    elif is_at_once(turn, target):
        delete_pods(turn, outdated)
    else:
        replace_one(turn, replicas, there, outdated)
    return False


def replace_one(turn: Turn, replicas: int, there: Sequence[Pod], outdated: Sequence[Pod]) -> None:
    """Replace the first of some outdated pods if the gate is open, or one that is broken anyway.

    Args:
        turn: The turn; the StatefulSet has the template that the pod is to come back by.
        replicas: How many pods there are to be.
        there: Those that there are.
        outdated: Those of them that are to be replaced.
    """
    absent = len(there) < replicas or any(pod.terminating for pod in there)
    coming = [pod for pod in there if pod not in outdated and not pod.ready]
    if absent or coming:
        return
    broken = [pod for pod in outdated if _is_broken(turn, pod)]
    if broken:
        delete_pods(turn, broken[:1])
    elif all(pod.ready for pod in there):
        closed = gate(turn, there)
        if closed is None:
            delete_pods(turn, outdated[:1])
        else:
            turn.settle("True", Reason.WAITING_FOR_GATE, closed)
    else:
        turn.settle("True", Reason.WAITING_FOR_GATE, "A pod of the running revision is not ready; it may come up.")
        turn.look_after(10)


def _is_broken(turn: Turn, pod: Pod) -> bool:
    limit = duration_ms(turn.spec.upgrade.gate.ready_timeout) / 1000
    waited = turn.now - max(pod.unready_since, _brokers_away_until(turn))
    return not pod.ready and (pod.trouble is not None or waited > limit)


def delete_pods(turn: Turn, pods: Sequence[Pod]) -> None:
    """Delete pods, which come back as the StatefulSet's template has them."""
    turn.actions.extend(Delete(Key("Pod", pod.name), pod.uid) for pod in pods if not pod.terminating)


def gate(turn: Turn, pods: Sequence[Pod]) -> str | None:
    """Return what the next replacement has to wait for; None if for nothing. All pods are ready."""
    asked = turn.spec.upgrade.gate
    settled = settled_since(pods)
    left = settled + duration_ms(asked.min_stable) / 1000 - turn.now
    if len(pods) < len(turn.view.pods):
        turn.look_after(5)
        return "Pods that are no longer wanted are ending."
    if not turn.group_is_stable:
        turn.look_after(5)
        return "The consumer group is not stable."
    if any(instance.restoring for instance in turn.observed.instances.values()):
        turn.look_after(5)
        return "Tasks restore their state."
    if left > 0:
        turn.look_after(left)
        return f"The group has to be stable for {asked.min_stable}."
    if asked.max_lag is None:
        return None
    lag = turn.observed.kafka.lag
    if lag is None or lag > asked.max_lag:
        turn.look_after(10)
        return f"The lag has to be at most {asked.max_lag} (upgrade.gate.maxLag)."
    return None


def settled_since(pods: Sequence[Pod]) -> float:
    """Return since when all of some ready pods have been ready."""
    return max((pod.ready_since or 0 for pod in pods), default=0)


def has_settled(turn: Turn, target: str, replicas: int) -> bool:
    """Return whether the revision has run well for as long as the gate asks."""
    pods = [turn.view.pods.get(index) for index in range(replicas)]
    there = [pod for pod in pods if pod is not None and pod.ready and pod.revision == target]
    if not replicas or len(there) < replicas:
        return False
    left = settled_since(there) + duration_ms(turn.spec.upgrade.gate.min_stable) / 1000 - turn.now
    if left > 0:
        turn.look_after(left)
        return False
    return True
