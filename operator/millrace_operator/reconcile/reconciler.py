"""`reconcile`: from what is wanted and what was observed to what to do.

A pure function, called again and again: all its inputs are arguments, even the time, and it keeps no state. Each pass
does as much as it can now and leaves the rest to later passes, when the cluster has changed, so no step waits
and any pass may be lost, repeated or cut short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millrace.manifest.streamsapp_status import LifecycleState
from millrace_operator.children import naming
from millrace_operator.children.auxiliary_objects import (
    disruption_budget,
    headless_service,
    pod_monitor,
    service_account,
)
from millrace_operator.children.naming import FINALIZER, PAUSE_ANNOTATION, TEMPLATE_ANNOTATION, owner_reference
from millrace_operator.children.network_policy import network_policy, plan_network_policy
from millrace_operator.children.stateful_set import stateful_set
from millrace_operator.model import (
    AppRevision,
    Decision,
    DesiredApp,
    Json,
    Key,
    Object,
    ObservedApp,
    Renewal,
    SetFinalizer,
)
from millrace_operator.reconcile import (
    autoscaling,
    conditions,
    consumer_group,
    copies,
    deletion,
    group_protocol,
    nodes,
    retained,
    revision_history,
    rolling,
    scaling,
    storage,
)
from millrace_operator.reconcile.app_status import status_of, transitions
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.context import Outcome, ReconcileContext, Target
from millrace_operator.reconcile.revisions import revision_of
from millrace_operator.reconcile.target import choose

_NO_POD_MONITORS: Final = (
    "There is no PodMonitor, because this cluster does not know the kind or the operator may not list it: install the CRDs "
    "of Prometheus' operator, or set observability.metrics.podMonitor.enabled: false."
)


def reconcile(desired: DesiredApp, observed: ObservedApp) -> Decision:
    """Return what to do about an application, and its status.

    Args:
        desired: The resource as it stands.
        observed: Everything that was seen of its children, its brokers and its instances.
    """
    context = ReconcileContext.of(desired, observed)
    if desired.deleting and FINALIZER not in desired.finalizers:
        return Decision()
    conditions.set_brokers_reachable(context)
    conditions.set_topology_shared(context)
    conditions.set_state_restored(context)
    copies.set_state_replicated(context)
    if desired.deleting:
        outcome = _as_before(context, "Deleting", 0)
        if observed.backfill is None:
            deletion.delete(context)
        else:  # it notices the deletion too, and ends
            context.set_condition("False", ConditionReason.DELETING)
            message = f"StreamsBackfill {observed.backfill.name} ends first, so that nothing is written any more."
            context.set_condition("True", ConditionReason.DELETING_CHILDREN, message)
            context.recheck_after(2)
    elif desired.annotations.get(PAUSE_ANNOTATION, "").lower() == "true":
        outcome = _as_before(context, "Paused", context.view.replicas or 0)
        message = f"The annotation {PAUSE_ANNOTATION} keeps the operator from changing anything. Remove it to continue."
        context.set_condition("True", ConditionReason.PAUSED_BY_ANNOTATION, message)
        context.set_condition("False", ConditionReason.HELD_BACK)
        conditions.set_ready(context, outcome.replicas, suspended=False)
    elif desired.spec is None:
        outcome = _as_before(context, "Blocked", context.view.replicas or 0)
        message = "\n".join(desired.problems) or "The spec cannot be read."
        context.set_condition("True", ConditionReason.INVALID_SPEC, message)
        conditions.set_ready(context, outcome.replicas, suspended=False)
    else:
        outcome = _run(context)
    conditions.set_defaults(context)
    status = status_of(context, outcome)
    events = (*context.events, *transitions(desired.status, status))
    return Decision(tuple(context.actions), status, events, min(context.recheck_delays, default=None), outcome.renewal)


def _as_before(context: ReconcileContext, lifecycle: LifecycleState, replicas: int) -> Outcome:
    """Return the outcome of a pass that brings the application nowhere: what the status has stays."""
    return Outcome(lifecycle, replicas, context.status.stable_revision, context.status.autoscaling)


def _run(context: ReconcileContext) -> Outcome:
    """Bring the application to its spec."""
    if FINALIZER not in context.desired.finalizers:
        context.actions.append(SetFinalizer(present=True))
    may_begin = consumer_group.check_application_id(context)
    # Whatever the first has found: each of the two sets conditions of its own.
    may_begin = group_protocol.configure_group(context) and may_begin
    _apply_auxiliary_objects(context)
    target = choose(context, may_begin=may_begin)
    suspended = context.spec.state == "suspended" or context.observed.backfill is not None
    running = autoscaling.replicas(context)
    wanted = 0 if suspended else running
    storage.resize_claims(context)
    nodes.tell_labels(context)
    progress = _Progress()
    if target is not None:
        progress = _bring_to(context, target, 0 if group_protocol.has_to_stop(context, target) else wanted, running)
    stable = target.revision if target is not None and progress.has_settled else context.stable
    revision_history.collect_garbage(context, target, stable)
    scaling.remove_members(context)
    conditions.set_ready(context, wanted, suspended=suspended)
    conditions.set_scaling_allowed(context, target)
    recommended = autoscaling.recommend(context, running, target)
    conditions.set_stalled_by_failed_start(context, target, stable)
    conditions.set_stalled_by_name_conflicts(context)
    if context.view.stateful_set is None and context.view.pods:
        # Somebody has deleted the StatefulSet; once these pods have ended, nothing else knows their members' ids.
        retained.note_members(context, consumer_group.known_uids(context.desired, context.view))
    retained.forget(context, stable)
    lifecycle = conditions.lifecycle_of(context, suspended=suspended)
    return Outcome(lifecycle, wanted, stable, recommended, target, progress.renewal)


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far an application has been brought to its target."""

    has_settled: bool = False
    """Whether all its pods have run well for long enough."""
    renewal: Renewal | None = None
    """What it needs a permit for."""


def _bring_to(context: ReconcileContext, target: Target, wanted: int, running: int) -> _Progress:
    """Bring the StatefulSet and its pods to the target, as far as possible now.

    Args:
        context: What this pass works on.
        target: The revision that pods are moved to.
        wanted: How many pods there should be.
        running: How many there should be while the application runs.
    """
    seen = context.view.stateful_set
    if seen is None and not target.may_start and not context.view.pods:
        conditions.set_waiting(context, target)
        return _Progress()
    step = scaling.scale(context, wanted, may_start=target.may_start)
    item = _stateful_set(context, target, step)
    if storage.needs_recreation(context, item):
        context.set_condition("True", ConditionReason.RECREATING_STATEFUL_SET)
        context.delete("StatefulSet", item["metadata"]["name"], orphan=True)
        return _Progress()
    # Before the StatefulSet may start a pod: if the operator dies in between, state that nobody knows of would be left.
    revision_history.mark_started(context, target.revision, step.replicas)
    applied = context.apply(item)
    if context.is_taken("StatefulSet", item["metadata"]["name"]):
        return _Progress()
    scaling.drain_pods(context, step)
    storage.delete_claims_beyond(context, running)
    if not applied or step.replicas != wanted or len(context.view.pods) != wanted:
        conditions.set_pods_changing(context, wanted)
    if step.replicas < wanted and not target.may_start:
        conditions.set_waiting(context, target)
    if not applied or step.replicas != context.view.replicas or step.leaving is not None:
        return _Progress()
    # Replace pods of other revisions first, then those with stale credentials, then those from another template.
    if not rolling.replace_pods(context, target.revision, step.replicas, may_start=target.may_start):
        conditions.set_rolling(context, target)
        return _Progress()
    if not rolling.renew_credentials(context, step.replicas, may_start=target.may_start):
        return _Progress()
    has_settled = step.replicas == wanted and rolling.has_settled(context, target.revision, wanted)
    template = item["spec"]["template"]["metadata"]["annotations"][TEMPLATE_ANNOTATION]
    is_stable = has_settled or context.stable == target.revision
    renewal = rolling.renew_by_template(context, target, template, step.replicas, is_stable=is_stable)
    return _Progress(has_settled, renewal)


def _stateful_set(context: ReconcileContext, target: Target, step: scaling.Scale) -> Json:
    app = AppRevision(
        context.desired.namespace,
        context.desired.name,
        target.revision,
        target.spec,
        consumer_group.uid_in_member_ids(context),
    )
    item = stateful_set(app, step.replicas)
    item["metadata"]["annotations"] = step.notes
    if context.spec.deletion_policy != "Orphan":
        item["metadata"]["ownerReferences"] = [owner_reference(app.name, context.desired.uid)]
    return item


def _apply_auxiliary_objects(context: ReconcileContext) -> None:
    """Apply the wanted ones among Service, ServiceAccount, policies, budget and monitor, and delete the others."""
    name = context.desired.name
    app = AppRevision(context.desired.namespace, name, revision_of(context.spec), context.spec)
    context.apply(service_account(app))  # not deleted before the app is: pods of an older revision may still need it
    monitor = pod_monitor(app)
    wanted: list[tuple[Key, Object | None]] = [
        (Key("NetworkPolicy", name), network_policy(app, context.observed.operator_namespace)),
        (Key("NetworkPolicy", naming.plan_network_policy(name)), plan_network_policy(app)),
        (Key("NetworkPolicy", naming.former_plan_network_policy(name)), None),
        (Key("Service", name), headless_service(app)),
        (Key("PodDisruptionBudget", name), disruption_budget(app, hold=copies.is_awaited(context))),
    ]
    if context.observed.pod_monitors:
        wanted.append((Key("PodMonitor", name), monitor))
    elif monitor is not None:
        context.unavailable.append(_NO_POD_MONITORS)
    for key, item in wanted:
        if item is None:
            context.delete(key.kind, key.name)
        else:
            context.apply(item)
