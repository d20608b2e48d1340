"""Which status and reason each condition has: brokers, restoration, readiness, scaling, and what is in progress or blocked.

The conditions that follow from a decision are set where it is taken:

* TopologyCompatible, TopicsReady and RolledBack in `target`, with the reasons of a plan that fails in `planning`;
* StorageHealthy in `storage`, ApplicationIdUnique in `consumer_group`, PodsCurrent in `rolling`;
* Stalled, where an action was refused or a pass failed, in `app.refusals`.

`condition_reason` explains all reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.manifest.streamsapp_status import ConditionType, LifecycleState
from millrace_operator.model import Event
from millrace_operator.reconcile import copies, rolling
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.context import NOT_ASKED, ReconcileContext, Target

_KAFKA_REASONS = {
    NOT_ASKED: ConditionReason.BROKERS_NOT_ASKED,
    "Unreachable": ConditionReason.UNREACHABLE,
    "AuthenticationFailed": ConditionReason.AUTHENTICATION_FAILED,
    "NotAuthorized": ConditionReason.NOT_AUTHORIZED,
    "BadConfiguration": ConditionReason.BAD_CONFIGURATION,
    "SecretMissing": ConditionReason.SECRET_MISSING,
    "TokenEndpointNotAllowed": ConditionReason.TOKEN_ENDPOINT_NOT_ALLOWED,
}
_NAMES_SHOWN = 3
_IN_THE_WAY: Final[tuple[tuple[ConditionType, str], ...]] = (
    ("ReconciliationPaused", "True"),
    ("Stalled", "True"),
    ("BrokersReachable", "False"),
    ("Reconciling", "True"),
)
"""What may keep an application from having pods; the first condition with the given status is the reason."""
_PREVENTS_SCALING: Final[Mapping[ConditionReason, ConditionReason]] = {
    ConditionReason.REPLACING_PODS: ConditionReason.UPGRADE_IN_PROGRESS,
    ConditionReason.ROLLING_BACK: ConditionReason.UPGRADE_IN_PROGRESS,
    ConditionReason.WAITING_FOR_GATE: ConditionReason.UPGRADE_IN_PROGRESS,
    ConditionReason.RENEWING_CREDENTIALS: ConditionReason.UPGRADE_IN_PROGRESS,
    ConditionReason.RENEWING_PODS: ConditionReason.UPGRADE_IN_PROGRESS,
    ConditionReason.DRAINING: ConditionReason.SCALING_IN_PROGRESS,
    ConditionReason.SWITCHING_GROUP_PROTOCOL: ConditionReason.UPGRADE_IN_PROGRESS,
    ConditionReason.SCALING_OUT: ConditionReason.SCALING_IN_PROGRESS,
    ConditionReason.STARTING_PODS: ConditionReason.SCALING_IN_PROGRESS,
    ConditionReason.SUSPENDING: ConditionReason.SCALING_IN_PROGRESS,
}
"""By reason of Reconciling: why scaling has to wait for what is being done to pods."""


def set_brokers_reachable(context: ReconcileContext) -> None:
    """Set BrokersReachable."""
    kafka = context.observed.kafka
    if kafka.error is None:
        context.set_condition("True", ConditionReason.BROKERS_ANSWER)
        return
    reason = _KAFKA_REASONS.get(kafka.reason, ConditionReason.UNREACHABLE)
    if reason is ConditionReason.BROKERS_NOT_ASKED:
        context.set_unknown(reason, kafka.error)
        context.recheck_after(15)  # the answer causes a pass by itself
    else:
        context.set_condition("False", reason, f"{kafka.error.rstrip('.')}.")
        context.recheck_after(15)


def set_state_restored(context: ReconcileContext) -> None:
    """Set StateRestored."""
    instances = context.observed.instances
    restoring = sum(item.task_counts.restoring for item in instances.values())
    if restoring:
        tasks = "One task restores" if restoring == 1 else f"{restoring} tasks restore"
        context.set_condition("False", ConditionReason.RESTORING, f"{tasks} state; the others are running.")
        context.recheck_after(15)
    else:
        _set_by_reports(context, ConditionReason.RESTORED, ConditionReason.RESTORATION_UNKNOWN)


def set_topology_shared(context: ReconcileContext) -> None:
    """Set TopologyShared."""
    instances = context.observed.instances
    refusing = {name: item.refused_tasks for name, item in sorted(instances.items()) if item.refused_tasks}
    if refusing:
        name, tasks = next(iter(refusing.items()))
        shown = ", ".join(tasks[:_NAMES_SHOWN]) + (" …" if len(tasks) > _NAMES_SHOWN else "")
        others = f" ({len(refusing)} pods refuse tasks.)" if len(refusing) > 1 else ""
        context.set_condition(
            "False",
            ConditionReason.TOPOLOGIES_DIFFER,
            f"Pod {name} does not take tasks {shown}, because the group's leader has another topology.{others}",
        )
        context.recheck_after(15)
    else:
        _set_by_reports(context, ConditionReason.TOPOLOGY_AGREES, ConditionReason.TOPOLOGY_UNKNOWN)


def _set_by_reports(context: ReconcileContext, true: ConditionReason, unknown: ConditionReason) -> None:
    """Set a condition that no pod speaks against: it stays as it was while a ready pod does not report."""
    before = context.condition(true.condition)
    if before is not None and before.status != "Unknown" and not context.all_ready_pods_report:
        context.keep(before)
    elif context.observed.instances or context.view.replicas == 0:
        context.set_condition("True", true)
    else:
        context.set_condition("Unknown", unknown)


def set_ready(context: ReconcileContext, wanted: int, *, suspended: bool) -> None:
    """Set Ready.

    Args:
        context: What this pass works on.
        wanted: How many pods there should be.
        suspended: Whether the application is suspended.
    """
    pods, spec = context.view.pods, context.desired.spec
    unready = [pod for _, pod in sorted(pods.items()) if not pod.ready]
    # A new pod without a node may only be waiting for its volume.
    failing = {
        pod.name: pod.trouble
        for pod in unready
        if pod.trouble is not None and (pod.trouble.reason != "Unschedulable" or pod.is_old(context.now))
    }
    late = [pod.name for pod in unready if pod.name not in failing]
    scaled_to_zero = spec is not None and not spec.replicas and spec.autoscaling.mode != "Auto"
    if (backfill := context.observed.backfill) is not None:
        what = "is stopped" if not pods and context.view.replicas in {None, 0} else "is stopping"
        why = f"for StreamsBackfill {backfill.name}, and continues afterwards."
        if backfill.then is not None:
            why = (
                f"for StreamsBackfill {backfill.name}. Afterwards it stays stopped because StreamsBackfill {backfill.then} has "
                "left an inconsistent state: see its message."
            )
        if backfill.has_ended:
            why = f"because StreamsBackfill {backfill.name} has left an inconsistent state: see its message."
        context.set_condition("False", ConditionReason.BACKFILLING, f"The application {what} {why}")
    elif suspended:
        # Ready, because it is as its spec says: tools that wait for a resource would otherwise wait forever.
        done = not pods and context.view.replicas in {None, 0}
        what = "no pods are left" if done else "its pods commit and stop"
        context.set_condition(
            "True" if done else "False", ConditionReason.SUSPENDED, f"The application is suspended; {what}."
        )
    elif failing:
        name, trouble = next(iter(failing.items()))
        others = f" ({len(failing)} pods fail.)" if len(failing) > 1 else ""
        context.set_condition("False", ConditionReason.PODS_FAILING, f"Pod {name}: {trouble.shown}{others}")
    elif not pods and scaled_to_zero and context.view.replicas == 0:  # as the spec says
        context.set_condition("True", ConditionReason.SCALED_TO_ZERO)
    elif not pods:
        context.set_condition("False", ConditionReason.NOTHING_RUNS)
    elif late or len(pods) < wanted:
        names = ", ".join(late[:_NAMES_SHOWN]) + (" …" if len(late) > _NAMES_SHOWN else "")
        missing = f"{wanted - len(pods)} not there yet" if len(pods) < wanted else ""
        context.set_condition(
            "False",
            ConditionReason.PODS_NOT_READY,
            "Pods that are not ready: " + ", ".join(filter(None, (names, missing))) + ".",
        )
        context.recheck_after(15)
    else:
        context.set_condition("True", ConditionReason.ALL_TASKS_RUN)


def why_nothing_runs(conditions: Mapping[str, tuple[str, str]]) -> str:
    """Return Ready's message when there are no pods: the message of the condition that is in the way.

    Args:
        conditions: The status and the message of conditions.
    """
    for kind, status in _IN_THE_WAY:
        found, message = conditions.get(kind, ("", ""))
        if found == status:
            return f"There are no pods yet: {message}"
    return ConditionReason.NOTHING_RUNS.meaning


def set_scaling_allowed(context: ReconcileContext, target: Target | None) -> None:
    """Set ScalingAllowed."""
    state = context.observed.kafka.group.state if context.observed.kafka.group is not None else ""
    if context.observed.kafka.reason == NOT_ASKED and context.condition("ScalingAllowed") is not None:
        return
    at_work = context.conditions.get("Reconciling")
    if not context.brokers_answer:
        context.set_condition("False", ConditionReason.BROKERS_AWAY)
    elif not any(pod.ready for pod in context.view.pods.values()):
        context.set_condition("False", ConditionReason.NOT_RUNNING)
    elif at_work is not None and at_work.reason in _PREVENTS_SCALING:
        context.set_condition("False", _PREVENTS_SCALING[at_work.reason])
    elif context.is_false("StateRestored"):
        context.set_condition("False", ConditionReason.STATE_IS_RESTORED)
    elif state != "Stable":
        context.set_condition("False", ConditionReason.TASKS_MOVE)
    elif tasks := copies.warming_up(context, target):
        context.set_condition("False", ConditionReason.TASKS_WARM_UP, f"Tasks warm up: {', '.join(tasks)}.")
        context.recheck_after(15)
    else:
        context.set_condition("True", ConditionReason.SCALING_POSSIBLE)


def set_waiting(context: ReconcileContext, target: Target) -> None:
    """Set Reconciling for a target that waits to be started, unless it must not be started anyway."""
    if not target.may_begin:
        return
    if not context.brokers_answer:
        context.set_condition("True", ConditionReason.WAITING_FOR_BROKERS)
    elif "Reconciling" not in context.conditions:
        context.set_condition("True", ConditionReason.WAITING_FOR_TOPICS, context.conditions["TopicsReady"].message)


def set_pods_changing(context: ReconcileContext, wanted: int) -> None:
    """Set Reconciling for pods that start or end, unless it is set already."""
    if "Reconciling" in context.conditions:
        return
    pods = len(context.view.pods)
    if context.spec.state == "suspended" or context.observed.backfill is not None:
        context.set_condition("True", ConditionReason.SUSPENDING)
    elif pods > wanted:
        context.set_condition("True", ConditionReason.DRAINING, "Pods that are no longer wanted are terminating.")
    elif context.stable is not None and pods:
        context.set_condition("True", ConditionReason.SCALING_OUT, f"{pods} of {wanted} pods exist.")
    else:
        context.set_condition("True", ConditionReason.STARTING_PODS, f"{pods} of {wanted} pods exist.")


def set_rolling(context: ReconcileContext, target: Target) -> None:
    """Set Reconciling for pods that are being moved to the target revision, or are waiting for it."""
    if not target.may_start:
        set_waiting(context, target)
    elif context.is_true("RolledBack"):
        context.set_condition(
            "True", ConditionReason.ROLLING_BACK, f"Pods are going back to revision {target.revision}."
        )
    elif "Reconciling" not in context.conditions:
        how = "all at once" if rolling.is_at_once(context, target.revision) else "one after another"
        context.set_condition(
            "True", ConditionReason.REPLACING_PODS, f"Pods are moved to revision {target.revision}, {how}."
        )


def set_stalled_by_failed_start(context: ReconcileContext, target: Target | None, stable: str | None) -> None:
    """Set Stalled if pods of the target revision fail and there is nothing to go back to."""
    if target is None or "Stalled" in context.conditions or stable == target.revision:
        return
    failure = rolling.failure_of(context, context.view.pods_of(target.revision))
    if failure is None:
        return
    reason = ConditionReason.START_FAILED if stable is None else ConditionReason.UPGRADE_FAILED
    context.set_condition("True", reason, f"{failure.message} Change the spec or the program.")
    if context.is_true("Reconciling"):
        # The roll has stopped, so nobody should wait for it to finish.
        context.set_condition("False", ConditionReason.HELD_BACK)


def set_stalled_by_name_conflicts(context: ReconcileContext) -> None:
    """Set Stalled for names that are taken by other people's objects, in addition to anything else that blocks the operator."""
    if not context.name_conflicts:
        return
    message = "\n".join(sorted(context.name_conflicts))
    known = context.conditions.get("Stalled")
    if known is None or known.status == "False":
        context.set_condition("True", ConditionReason.NAME_TAKEN, message)
    elif known.reason is ConditionReason.APPLICATION_ID_IN_USE:  # its members may be the pods that have the names
        context.set_condition("True", ConditionReason.NAME_TAKEN, f"{message}\n{known.message}")
    else:
        context.set_condition("True", known.reason, f"{known.message}\n{message}")


def set_defaults(context: ReconcileContext) -> None:
    """Set the conditions that no step has set: nothing to do, nothing blocked."""
    if "Stalled" not in context.conditions:
        context.set_condition("False", ConditionReason.NOT_STALLED)
    if "Reconciling" not in context.conditions:
        done = context.conditions["Stalled"].status == "False"
        reason = ConditionReason.UP_TO_DATE if done else ConditionReason.HELD_BACK
        before = context.condition("Reconciling")
        for note in context.unavailable:
            if before is None or note not in before.message:  # an Event reports it when it is new
                context.events.append(Event("NotAvailable", note, "Warning"))
        context.set_condition("False", reason, " ".join((reason.meaning, *context.unavailable)))
    if "ReconciliationPaused" not in context.conditions:
        context.set_condition("False", ConditionReason.NOT_PAUSED)
    if context.conditions["Ready"].reason is ConditionReason.NOTHING_RUNS:
        known = {str(kind): (item.status, item.message) for kind, item in context.conditions.items()}
        context.set_condition("False", ConditionReason.NOTHING_RUNS, why_nothing_runs(known))


_REBALANCING: Final = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})
"""States of groups, with either protocol, whose members do not have all their tasks yet."""
_LIFECYCLES: Final[Mapping[ConditionReason, LifecycleState]] = {
    ConditionReason.PLANNING: "Planning",
    ConditionReason.PROVISIONING_TOPICS: "Provisioning",
    ConditionReason.STARTING_PODS: "Starting",
    ConditionReason.REPLACING_PODS: "RollingOut",
    ConditionReason.WAITING_FOR_GATE: "RollingOut",
    ConditionReason.RENEWING_CREDENTIALS: "RollingOut",
    ConditionReason.RENEWING_PODS: "RollingOut",
    ConditionReason.ROLLING_BACK: "RollingBack",
    ConditionReason.SWITCHING_GROUP_PROTOCOL: "RollingOut",
    ConditionReason.SCALING_OUT: "Scaling",
    ConditionReason.DRAINING: "Draining",
    ConditionReason.SUSPENDING: "Suspending",
}
"""What an application is doing while Reconciling has this reason."""


def lifecycle_of(context: ReconcileContext, *, suspended: bool) -> LifecycleState:
    """Return what the application is doing, in one word: what the operator is doing to it, or else its state."""
    condition = context.conditions.get("Reconciling")
    if condition is not None and condition.reason in _LIFECYCLES:
        return _LIFECYCLES[condition.reason]
    if context.observed.backfill is not None:
        return "Backfilling"
    if suspended:
        return "Suspended"
    if context.is_true("Stalled") and not context.view.pods:
        return "Blocked"
    failed = context.is_true("Stalled") and context.conditions["Stalled"].reason in {
        ConditionReason.START_FAILED,
        ConditionReason.UPGRADE_FAILED,
    }
    if context.is_true("Stalled") and not any(pod.ready for pod in context.view.pods.values()):
        return "Failed"
    if failed and not context.is_true("RolledBack"):
        return "Failed"
    if not context.view.pods:
        return "Suspended" if context.conditions["Ready"].reason is ConditionReason.SCALED_TO_ZERO else "Pending"
    if context.is_true("Ready"):
        return "Running"
    if context.is_false("StateRestored"):
        return "Restoring"
    group = context.observed.kafka.group
    return "Rebalancing" if group is not None and group.state in _REBALANCING else "Starting"
