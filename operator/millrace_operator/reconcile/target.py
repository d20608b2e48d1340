"""Which revision pods are moved to: the wanted one, unless it failed, has no plan, or cannot continue from the existing state.

Until the wanted revision may run, the running one stays the target: scaling and healing continue with it, and no pod is touched
because of the new one. If the running revision is itself an upgrade that turns out to fail, the stable revision replaces it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from millrace.manifest import StreamsAppSpec
from millrace.plan.topology_plan import TopologyPlan
from millrace_operator.children.config_maps import revision_config_map
from millrace_operator.children.naming import ACCEPT_LOSS_ANNOTATION, FAILED_ANNOTATION
from millrace_operator.model import AppRevision, Event, ProvisionTopics
from millrace_operator.reconcile import conditions, planning, retained, revision_history, rolling, topics
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.context import ReconcileContext, Target
from millrace_operator.reconcile.revisions import as_of_revision, pods_part, revision_of, spec_of
from millrace_operator.reconcile.rolling import Failure
from millrace_operator.reconcile.storage import with_possible_storage
from millrace_operator.reconcile.topics import TopicReport

_RETRY: Final = "It is not tried again: correct the spec, or change restartNonce to try it once more."


def choose(context: ReconcileContext, *, may_begin: bool) -> Target | None:
    """Return the target and set the conditions that follow from it; None if nothing may run yet.

    Args:
        context: What this pass works on.
        may_begin: Whether the application may get pods if it has none.
    """
    spec = context.spec
    wanted = revision_of(spec)
    examined = partial(_with_topics, context, may_begin=may_begin)
    running = _running(context, wanted)
    failure = _failure(context, wanted)
    item = revision_config_map(
        AppRevision(context.desired.namespace, context.desired.name, wanted, spec), pods_part(spec)
    )
    if failure is not None:
        item["metadata"]["annotations"] = {FAILED_ANNOTATION: failure.to_text()}
    context.apply(item)
    if context.is_taken("ConfigMap", item["metadata"]["name"]):
        context.set_condition("Unknown", ConditionReason.PLAN_PENDING)
        kept = _kept(context, running, decided=True)  # pods of the wanted revision would get somebody else's manifest
        return None if kept in {None, wanted} else examined(kept)
    if failure is not None and context.stable is not None and context.stable != wanted:
        _set_rolled_back(context, wanted, failure)
        context.set_condition(
            "Unknown", ConditionReason.PLAN_PENDING, f"Revision {wanted} failed and is not looked at again."
        )
        return examined(context.stable)
    context.set_condition("False", ConditionReason.NOT_ROLLED_BACK)
    plan = planning.planned(context, wanted, spec)
    if plan.plan is None:
        kept = _kept(context, running, decided=plan.failure is not None)
        _set_unplanned(context, wanted, kept, plan)
        return None if kept is None else examined(kept)
    if not _is_compatible(context, wanted, plan.plan) and not (
        running == wanted and wanted in revision_history.started(context)
    ):
        context.set_condition("True", ConditionReason.TOPOLOGY_HELD_BACK)
        kept = None if running == wanted else _kept(context, running, decided=True)
        return None if kept is None else examined(kept)
    target = examined(wanted)
    if target.may_start or running in {None, wanted}:
        return target
    # The pods stay where they are, but the status reports the topics that the wanted revision waits for.
    conditions.set_waiting(context, target)
    kept_target = _of(context, running, may_start=_may_run_on(context, running))
    return replace(kept_target, may_begin=may_begin, topics=target.topics)


def _kept(context: ReconcileContext, running: str | None, *, decided: bool) -> str | None:
    """Return the revision that is the target while the wanted one may not run; None if nothing should run.

    A revision without pods, as after a suspension, is not started just to be replaced. It is started if the wanted revision is
    refused and it has run on the existing state before.

    Args:
        context: What this pass works on.
        running: The revision that runs, or ran last.
        decided: Whether the wanted revision is refused, and not only awaited.
    """
    return running if context.view.has_pods or (decided and running in revision_history.started(context)) else None


def _running(context: ReconcileContext, wanted: str) -> str | None:
    """Return what runs until the wanted revision may; an unfinished upgrade that fails gives way to the stable revision."""
    running = context.view.running_revision or context.stable or context.view.revision_of_pods
    if running in {None, wanted, context.stable} or context.stable is None or not _rolls_back(context):
        return running
    return running if rolling.failure_of(context, context.view.pods_of(running)) is None else context.stable


def _rolls_back(context: ReconcileContext) -> bool:
    return context.spec.upgrade.rollback.enabled and context.spec.state == "running"


def _failure(context: ReconcileContext, wanted: str) -> Failure | None:
    """Return why the wanted revision failed: as recorded, or as its pods show right now."""
    kept = context.view.revision_config_map(wanted)
    text = {} if kept is None else kept["metadata"].get("annotations") or {}
    if FAILED_ANNOTATION in text:
        return Failure.from_text(text[FAILED_ANNOTATION])
    upgrade = context.stable is not None and wanted != context.stable and context.view.running_revision == wanted
    if upgrade and _rolls_back(context):
        return rolling.failure_of(context, context.view.pods_of(wanted))
    return None


def _set_rolled_back(context: ReconcileContext, wanted: str, failure: Failure) -> None:
    what = f"Revision {wanted} was rolled back to {context.stable}."
    before = context.condition("RolledBack")
    # The status is written last: what it reports has been done.
    if before is None or not before.message.startswith(what):
        context.events.append(Event("RolledBack", f"{what} {failure.message}", "Warning"))
    context.set_condition("True", failure.reason, f"{what} {failure.message} {_RETRY}")
    context.set_condition(
        "True", ConditionReason.UPGRADE_FAILED, f"Revision {wanted} failed and was rolled back. {failure.message}"
    )


def _set_unplanned(context: ReconcileContext, wanted: str, running: str | None, plan: planning.Planned) -> None:
    context.set_condition("Unknown", ConditionReason.PLAN_PENDING)
    if plan.failure is None:
        context.set_condition("True", ConditionReason.PLANNING, plan.message)
        return
    context.set_condition("True", plan.failure, plan.message)
    if running is not None and running != wanted:
        message = f"Revision {wanted} was not started; revision {running} keeps running. {plan.message}"
        context.set_condition("True", ConditionReason.UPGRADE_NOT_BEGUN, message)


def _is_compatible(context: ReconcileContext, wanted: str, plan: TopologyPlan) -> bool:
    """Return whether a plan may follow what has run, and set TopologyCompatible."""
    reasons = revision_history.obstacles(context, wanted, plan)
    if not reasons:
        context.set_condition("True", ConditionReason.COMPATIBLE)
        return True
    listed = "\n".join(f"- {item}" for item in reasons)
    if context.spec.upgrade.topology_policy == "Warn":
        context.set_condition(
            "False",
            ConditionReason.NEEDS_RESET_IGNORED,
            f"{listed}\nIt runs nevertheless: upgrade.topologyPolicy is Warn.",
        )
        return True
    remedy = "Undo the change, reset the application with a StreamsReset, or set upgrade.topologyPolicy: Warn."
    context.set_condition("False", ConditionReason.NEEDS_RESET, f"{listed}\n{remedy}{retained.remedy(context)}")
    return False


def _of(context: ReconcileContext, revision: str | None, *, may_start: bool) -> Target:
    assert revision is not None
    kept = context.view.revision_config_map(revision)
    old = None if kept is None else spec_of(kept)
    spec = context.spec if old is None else as_of_revision(old, context.spec)
    return Target(revision, with_possible_storage(context, spec), context.view.plan(revision), may_start)


def _with_topics(context: ReconcileContext, revision: str | None, *, may_begin: bool) -> Target:
    """Return a revision as target, with its topics examined and, if they never existed, created."""
    target, found = _of(context, revision, may_start=False), None
    if target.plan is None:
        context.set_condition("Unknown", ConditionReason.TOPICS_UNKNOWN)
        may_start = context.brokers_answer
    elif not context.brokers_answer:
        context.set_unknown(ConditionReason.TOPICS_UNKNOWN, "The brokers cannot be asked: look at BrokersReachable.")
        may_start = False
    elif (found := _found(context, target.spec, target.plan)) is None:
        context.set_unknown(
            ConditionReason.TOPICS_UNKNOWN, "The brokers are being asked for the topics of the newest plan."
        )
        context.recheck_after(1)
        may_start = False
    else:
        _provision(context, target.spec, target.plan, found, may_begin=may_begin)
        may_start = found.ready
    return replace(target, may_start=may_start and may_begin, may_begin=may_begin, topics=found)


def _may_run_on(context: ReconcileContext, running: str | None) -> bool:
    """Return whether pods of the running revision may be added while the wanted one has to wait for its topics."""
    plan = context.view.plan(running)
    if plan is None or not context.brokers_answer or not context.view.replicas:
        return False
    found = _found(context, context.spec, plan)
    return found is not None and found.ready


def _found(context: ReconcileContext, spec: StreamsAppSpec, plan: TopologyPlan) -> TopicReport | None:
    known = retained.topic_ids(context)
    accepted = frozenset(
        part.strip() for part in context.desired.annotations.get(ACCEPT_LOSS_ANNOTATION, "").split(",")
    )
    return topics.examine(plan, spec, context.observed.kafka, known, accepted)


def _provision(
    context: ReconcileContext, spec: StreamsAppSpec, plan: TopologyPlan, found: TopicReport, *, may_begin: bool
) -> None:
    """Set TopicsReady, and create the topics that never existed if the application is to run."""
    if found.findings:
        context.set_condition("False", found.findings[0].reason, "\n".join(item.message for item in found.findings))
        if any(item.is_unfit for item in found.findings):
            context.set_condition("True", ConditionReason.TOPICS_UNFIT, found.findings[0].message)
    elif found.create:
        context.set_condition(
            "False", ConditionReason.TOPICS_BEING_CREATED, f"Being created: {', '.join(found.create)}."
        )
    else:
        context.set_condition("True", ConditionReason.TOPICS_FIT)
    if found.create and context.spec.state == "running" and may_begin:
        context.set_condition(
            "True",
            ConditionReason.PROVISIONING_TOPICS,
            f"Internal topics are being created: {', '.join(found.create)}.",
        )
        replicas = spec.internal_topics.replication_factor
        context.actions.append(ProvisionTopics(plan.to_json(), found.create, -1 if replicas is None else replicas))
        context.recheck_after(2)
    elif not found.ready:
        context.recheck_after(10)
