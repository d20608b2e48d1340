"""`reconcile`: from what is wanted and what was seen to what is to be done.

A pure function, called again and again: it takes neither the time nor anything else from elsewhere, and keeps nothing. Each turn
does as much as may be done at once and leaves the rest to the turns that follow when the cluster has changed, so no step waits
and any turn may be lost, repeated or cut short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millrace.manifest.status import LifecycleState
from millrace_operator.children.naming import FINALIZER, PAUSE_ANNOTATION, TEMPLATE_ANNOTATION, owner_reference
from millrace_operator.children.stateful_set import stateful_set
from millrace_operator.model import AppRevision, Decision, Desired, Observed, SetFinalizer
from millrace_operator.reconcile import (
    application_id,
    autoscaling,
    deletion,
    health,
    history,
    members,
    renewing,
    retained,
    rolling,
    scaling,
    status,
    storage,
)
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
    elif desired.annotations.get(PAUSE_ANNOTATION, "").lower() == "true":
        _pause(turn)
    elif desired.spec is None:
        _refuse(turn)
    else:
        _run(turn)
    status.settle_defaults(turn)
    if turn.verdicts["Ready"].reason is Reason.NOTHING_RUNS:
        verdicts = {str(kind): (item.status, item.message) for kind, item in turn.verdicts.items()}
        turn.settle("False", Reason.NOTHING_RUNS, health.why_nothing_runs(verdicts))
    new = status.status_of(turn)
    events = (*turn.events, *transitions(desired.status, new))
    return Decision(tuple(turn.actions), new, events, min(turn.looks, default=None), turn.renewal)


def _observe(turn: Turn) -> None:
    health.settle_brokers(turn)
    health.settle_restoration(turn)


def _pause(turn: Turn) -> None:
    _observe(turn)
    message = f"The annotation {PAUSE_ANNOTATION} keeps the operator from changing anything. Remove it to go on."
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
    application_id.settle(turn)
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
    _settle_taken(turn)
    if (
        turn.view.stateful_set is None and turn.view.pods
    ):  # somebody has deleted it, and nothing else tells when these end
        retained.note_members(turn, members.uids(turn.desired, turn.view))
    retained.forget(turn)
    turn.lifecycle = _lifecycle(turn, suspended=suspended)


def _bring_to(turn: Turn, target: Target, wanted: int, running: int) -> None:
    seen = turn.view.stateful_set
    if seen is None and not target.may_start and not turn.view.pods:
        settle_waiting(turn)
        return
    step = scaling.scale(turn, wanted, may_start=target.may_start)
    item = _stateful_set(turn, target, step)
    if storage.needs_recreation(turn, item):
        turn.settle("True", Reason.RECREATING_STATEFUL_SET)
        turn.delete("StatefulSet", item["metadata"]["name"], orphan=True)
        return
    history.mark_started(turn, target.revision, step.replicas)
    applied = turn.apply(item)
    if turn.is_taken("StatefulSet", item["metadata"]["name"]):
        return
    if step.leaving is not None:
        scaling.drain(turn, step.leaving, step.since)
    scaling.restart_drained(turn, step.replicas if step.leaving is None else step.leaving.index)
    storage.delete_claims_beyond(turn, running)
    if not applied or step.replicas != wanted or len(turn.view.pods) != wanted:
        _settle_pods_change(turn, wanted, suspended=turn.spec.state == "suspended")
    if step.replicas < wanted and not target.may_start:
        settle_waiting(turn)
    if not applied or step.replicas != turn.view.replicas or step.leaving is not None:
        return
    template = item["spec"]["template"]["metadata"]["annotations"][TEMPLATE_ANNOTATION]
    _replace_pods(turn, target, template, step.replicas, wanted)


def _replace_pods(turn: Turn, target: Target, template: str, replicas: int, wanted: int) -> None:
    """Replace what is of another revision, then what has old credentials, then what another template has made."""
    if not rolling.replace_pods(turn, target.revision, replicas, may_start=target.may_start):
        _settle_roll(turn, target)
    elif renewing.renew_pods(turn, replicas, may_start=target.may_start):
        if replicas == wanted and rolling.has_settled(turn, target.revision, wanted):
            turn.stable = target.revision
        renewing.renew_by_template(turn, target.revision, template, replicas, may_start=target.may_start)


def _stateful_set(turn: Turn, target: Target, step: scaling.Scale) -> dict[str, Any]:
    app = AppRevision(turn.desired.namespace, turn.desired.name, target.revision, target.spec, members.uid_of(turn))
    item = stateful_set(app, step.replicas)
    item["metadata"]["annotations"] = step.notes
    if turn.spec.deletion_policy != "Orphan":
        item["metadata"]["ownerReferences"] = [owner_reference(app.name, turn.desired.uid)]
    return item


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
    {
        Reason.REPLACING_PODS,
        Reason.ROLLING_BACK,
        Reason.WAITING_FOR_GATE,
        Reason.RENEWING_CREDENTIALS,
        Reason.RENEWING_PODS,
    }
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
    if turn.is_true("Reconciling"):
        turn.settle("False", Reason.HELD_BACK)  # the roll does not go on, so nobody is to wait for its end


def _settle_taken(turn: Turn) -> None:
    """Settle Stalled for names that somebody else's objects have, beside what else keeps the operator from going on."""
    if not turn.taken:
        return
    message = "\n".join(sorted(turn.taken))
    known = turn.verdicts.get("Stalled")
    if known is None or known.status == "False":
        turn.settle("True", Reason.NAME_TAKEN, message)
    elif known.reason is Reason.APPLICATION_ID_IN_USE:  # whose members may be the pods that have the names
        turn.settle("True", Reason.NAME_TAKEN, f"{message}\n{known.message}")
    else:
        turn.settle("True", known.reason, f"{known.message}\n{message}")


_LIFECYCLES: Final[Mapping[Reason, LifecycleState]] = {
    Reason.PLANNING: "Planning",
    Reason.PROVISIONING_TOPICS: "Provisioning",
    Reason.STARTING_PODS: "Starting",
    Reason.REPLACING_PODS: "RollingOut",
    Reason.WAITING_FOR_GATE: "RollingOut",
    Reason.RENEWING_CREDENTIALS: "RollingOut",
    Reason.RENEWING_PODS: "RollingOut",
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
    failed = turn.is_true("Stalled") and turn.verdicts["Stalled"].reason in {Reason.START_FAILED, Reason.UPGRADE_FAILED}
    if turn.is_true("Stalled") and not any(pod.ready for pod in turn.view.pods.values()):
        return "Failed"
    if failed and not turn.is_true("RolledBack"):
        return "Failed"
    if not turn.view.pods:
        return "Suspended" if turn.verdicts["Ready"].reason is Reason.SCALED_TO_ZERO else "Pending"
    if turn.is_true("Ready"):
        return "Running"
    if turn.verdicts["StateRestored"].status == "False":
        return "Restoring"
    group = turn.observed.kafka.group
    return "Rebalancing" if group is not None and group.state.endswith("Rebalance") else "Starting"
