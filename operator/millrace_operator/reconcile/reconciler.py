"""`reconcile`: from what is wanted and what was seen to what is to be done.

A pure function, called again and again: it takes neither the time nor anything else from elsewhere, and keeps nothing. Each turn
does as much as may be done at once and leaves the rest to the turns that follow when the cluster has changed, so no step waits
and any turn may be lost, repeated or cut short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.manifest.status import LifecycleState
from millrace_operator.children import AppRevision, stateful_set
from millrace_operator.model import FINALIZER, Decision, Desired, Observed, SetFinalizer
from millrace_operator.reconcile import (
    autoscaling,
    deletion,
    health,
    history,
    renewing,
    rolling,
    scaling,
    status,
    storage,
)
from millrace_operator.reconcile.annotations import DRAIN, PAUSE
from millrace_operator.reconcile.events import transitions
from millrace_operator.reconcile.reasons import Reason
from millrace_operator.reconcile.supporting import collect_garbage, keep_supporting
from millrace_operator.reconcile.target import Target, choose, settle_waiting
from millrace_operator.reconcile.turn import Turn
from millrace_operator.reconcile.view import view_of


def reconcile(desired: Desired, observed: Observed) -> Decision:
    """Return what is to be done about an application, and its status.

    Args:
        desired: The resource as it stands.
        observed: Everything that was seen of its children, its brokers and its instances.
    """
    turn = Turn(desired, observed, view_of(desired, observed))
    turn.stable, turn.autoscaling = turn.status.stable_revision, turn.status.autoscaling
    if desired.deleting:
        if FINALIZER not in desired.finalizers:
            return Decision()
        _observe(turn)
        deletion.delete(turn)
    elif desired.annotations.get(PAUSE, "").lower() == "true":
        _pause(turn)
    elif desired.spec is None:
        _refuse(turn)
    else:
        _run(turn)
    status.settle_defaults(turn)
    new = status.status_of(turn)
    events = (*turn.events, *transitions(desired.status, new))
    return Decision(tuple(turn.actions), new, events, min(turn.looks, default=None))


def _observe(turn: Turn) -> None:
    health.settle_brokers(turn)
    health.settle_restoration(turn)


def _pause(turn: Turn) -> None:
    _observe(turn)
    message = f"The annotation {PAUSE} keeps the operator from changing anything. Remove it to go on."
    turn.settle("True", Reason.PAUSED_BY_ANNOTATION, message)
    turn.settle("False", Reason.HELD_BACK)
    turn.lifecycle = "Paused"
    health.settle_ready(turn, turn.view.replicas or 0, suspended=False)


def _refuse(turn: Turn) -> None:
    _observe(turn)
    turn.settle("True", Reason.INVALID_SPEC, "\n".join(turn.desired.problems) or "The spec cannot be read.")
    turn.lifecycle = "Blocked"
    health.settle_ready(turn, turn.view.replicas or 0, suspended=False)


def _run(turn: Turn) -> None:
    if FINALIZER not in turn.desired.finalizers:
        turn.actions.append(SetFinalizer(present=True))
    _observe(turn)
    keep_supporting(turn)
    target = choose(turn)
    suspended = turn.spec.state == "suspended"
    running = autoscaling.replicas(turn)
    wanted = 0 if suspended else running
    storage.resize_claims(turn)
    if target is not None:
        _bring_to(turn, target, wanted, running)
    collect_garbage(turn)
    scaling.remove_members(turn)
    health.settle_ready(turn, wanted, suspended=suspended)
    health.settle_scaling(turn, busy=_busy(turn))
    autoscaling.recommend(turn, running)
    _settle_failed_start(turn, target)
    turn.lifecycle = _lifecycle(turn, suspended=suspended)


def _bring_to(turn: Turn, target: Target, wanted: int, running: int) -> None:
    seen = turn.view.stateful_set
    if seen is None and not target.may_start and not turn.view.pods:
        settle_waiting(turn)
        return
    step = scaling.scale(turn, wanted, may_start=target.may_start)
    app = AppRevision(turn.desired.namespace, turn.desired.name, target.revision, target.spec)
    item = stateful_set(app, step.replicas)
    if step.note is not None:
        item["metadata"]["annotations"] = {DRAIN: step.note}
    if storage.needs_recreation(turn, item):
        turn.settle("True", Reason.RECREATING_STATEFUL_SET)
        turn.delete("StatefulSet", item["metadata"]["name"], orphan=True)
        return
    history.mark_started(turn, target.revision, step.replicas)
    applied = turn.apply(item)
    if step.drain is not None:
        turn.actions.append(step.drain)
    scaling.restart_drained(turn, step.replicas)
    storage.delete_claims_beyond(turn, running)
    if not applied or step.replicas != wanted or len(turn.view.pods) != wanted:
        _settle_pods_change(turn, wanted, suspended=turn.spec.state == "suspended")
    if step.replicas < wanted and not target.may_start:
        settle_waiting(turn)
    if not applied or step.replicas != turn.view.replicas or step.note is not None:
        return
    done = rolling.replace_pods(turn, target.revision, step.replicas, may_start=target.may_start)
    if not done:
        _settle_roll(turn, target)
    elif (
        renewing.renew_pods(turn, step.replicas, may_start=target.may_start)
        and step.replicas == wanted
        and rolling.has_settled(turn, target.revision, wanted)
    ):
        turn.stable = target.revision


def _settle_pods_change(turn: Turn, wanted: int, *, suspended: bool) -> None:
    if "Reconciling" in turn.verdicts:
        return
    pods = len(turn.view.pods)
    if suspended:
        turn.settle("True", Reason.SUSPENDING)
    elif pods > wanted:
        turn.settle("True", Reason.DRAINING, "Pods that are no longer wanted are ending.")
    elif turn.stable is not None and pods:
        turn.settle("True", Reason.SCALING_OUT, f"{pods} of {wanted} pods are there.")
    else:
        turn.settle("True", Reason.STARTING_PODS, f"{pods} of {wanted} pods are there.")


def _settle_roll(turn: Turn, target: Target) -> None:
    if not target.may_start:
        settle_waiting(turn)
    elif turn.is_true("RolledBack"):
        turn.settle("True", Reason.ROLLING_BACK, f"Pods go back to revision {target.revision}.")
    elif "Reconciling" not in turn.verdicts:
        how = "all at once" if rolling.is_at_once(turn, target.revision) else "one after another"
        turn.settle("True", Reason.REPLACING_PODS, f"Pods are brought to revision {target.revision}, {how}.")


_UPGRADES: Final = frozenset(
    {Reason.REPLACING_PODS, Reason.ROLLING_BACK, Reason.WAITING_FOR_GATE, Reason.RENEWING_CREDENTIALS}
)


def _busy(turn: Turn) -> Reason | None:
    verdict = turn.verdicts.get("Reconciling")
    if verdict is None:
        return None
    if verdict.reason in _UPGRADES:
        return Reason.UPGRADE_IN_PROGRESS
    if verdict.reason in {Reason.DRAINING, Reason.SCALING_OUT, Reason.STARTING_PODS, Reason.SUSPENDING}:
        return Reason.SCALING_IN_PROGRESS
    return None


def _settle_failed_start(turn: Turn, target: Target | None) -> None:
    """Settle Stalled for pods of a revision that fail with nothing to go back to."""
    if target is None or "Stalled" in turn.verdicts or turn.stable == target.revision:
        return
    failure = rolling.failure_of(turn, target.revision)
    if failure is None:
        return
    reason = Reason.START_FAILED if turn.stable is None else Reason.UPGRADE_FAILED
    turn.settle("True", reason, f"{failure.message} Change the spec or the program.")


_LIFECYCLES: Final[Mapping[Reason, LifecycleState]] = {
    Reason.PLANNING: "Planning",
    Reason.PROVISIONING_TOPICS: "Provisioning",
    Reason.STARTING_PODS: "Starting",
    Reason.REPLACING_PODS: "RollingOut",
    Reason.WAITING_FOR_GATE: "RollingOut",
    Reason.RENEWING_CREDENTIALS: "RollingOut",
    Reason.ROLLING_BACK: "RollingBack",
    Reason.SCALING_OUT: "Scaling",
    Reason.DRAINING: "Draining",
    Reason.SUSPENDING: "Suspending",
}
"""What an application does while a turn has said so."""


def _lifecycle(turn: Turn, *, suspended: bool) -> LifecycleState:
    """Return what the application is doing, in one word: what the operator does to it, and else how it is."""
    verdict = turn.verdicts.get("Reconciling")
    if verdict is not None and verdict.reason in _LIFECYCLES:
        return _LIFECYCLES[verdict.reason]
    if suspended:
        return "Suspended"
    if turn.is_true("Stalled") and not turn.view.pods:
        return "Blocked"
    if turn.is_true("Stalled") and not any(pod.ready for pod in turn.view.pods.values()):
        return "Failed"
    if not turn.view.pods:
        return "Pending"
    if turn.is_true("Ready"):
        return "Running"
    if turn.verdicts["StateRestored"].status == "False":
        return "Restoring"
    group = turn.observed.kafka.group
    return "Rebalancing" if group is not None and group.state.endswith("Rebalance") else "Starting"
