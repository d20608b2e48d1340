"""Which revision pods are brought to: the wanted one, unless it failed, is not planned, or cannot go on from the state there is.

Until the wanted revision may run, what runs stays the target: scaling and healing go on with it, and no pod is touched for the
sake of the new one. Where what runs is an earlier upgrade that turns out to fail, the stable revision takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millrace.manifest import StreamsAppSpec
from millrace.plan.model import TopologyPlan
from millrace_operator.children import naming
from millrace_operator.children.config_maps import revision_config_map
from millrace_operator.children.naming import ACCEPT_LOSS_ANNOTATION, FAILED_ANNOTATION
from millrace_operator.model import AppRevision, Event, ProvisionTopics
from millrace_operator.reconcile import history, planning, retained, rolling, topics
from millrace_operator.reconcile.reasons import Reason
from millrace_operator.reconcile.revisions import as_of_revision, pods_part, revision_of, spec_of
from millrace_operator.reconcile.rolling import Failure
from millrace_operator.reconcile.storage import with_possible_storage
from millrace_operator.reconcile.topics import Topics
from millrace_operator.reconcile.turn import Turn

_RETRY: Final = "It is not tried again: correct the spec, or set another restartNonce to try it once more."


@dataclass(frozen=True, slots=True)
class Target:
    """What pods are brought to."""

    revision: str
    spec: StreamsAppSpec
    may_start: bool
    """Whether brokers and topics are such that pods may be started or replaced."""


def choose(turn: Turn) -> Target | None:
    """Return the target and settle what follows from the choice; None if there is nothing that may run yet."""
    spec = turn.spec
    wanted = revision_of(spec)
    stable = turn.status.stable_revision
    turn.stable = stable if turn.view.revision_config_map(stable) is not None else None
    running = _running(turn, wanted)
    failure = _failure(turn, wanted)
    _keep_revision(turn, wanted, failure)
    if turn.is_taken("ConfigMap", naming.revision_config_map(turn.desired.name, wanted)):
        turn.settle("Unknown", Reason.PLAN_PENDING)
        kept = _kept(turn, running, decided=True)  # pods of the wanted revision would be given somebody else's manifest
        return None if kept in {None, wanted} else _with_topics(turn, kept)
    if failure is not None and turn.stable is not None and turn.stable != wanted:
        _settle_rolled_back(turn, wanted, failure)
        turn.settle("Unknown", Reason.PLAN_PENDING, f"Revision {wanted} failed and is not looked at again.")
        return _with_topics(turn, turn.stable)
    turn.settle("False", Reason.NOT_ROLLED_BACK)
    plan = planning.planned(turn, wanted, spec)
    if plan.plan is None:
        kept = _kept(turn, running, decided=plan.failure is not None)
        _settle_unplanned(turn, wanted, kept, plan)
        return None if kept is None else _with_topics(turn, kept)
    if not _is_compatible(turn, wanted, plan.plan) and not (running == wanted and history.has_started(turn, wanted)):
        turn.settle("True", Reason.TOPOLOGY_HELD_BACK)
        kept = None if running == wanted else _kept(turn, running, decided=True)
        return None if kept is None else _with_topics(turn, kept)
    target = _with_topics(turn, wanted)
    if target.may_start or running in {None, wanted}:
        return target
    settle_waiting(turn)
    return _of(turn, running, may_start=_may_run_on(turn, running))


def _kept(turn: Turn, running: str | None, *, decided: bool) -> str | None:
    """Return the revision that is the target while the wanted one may not run; None if nothing is to run.

    What has no pods, as after a suspension, is not started just to be replaced. It is when the wanted revision is refused, and it
    has run before on the state there is.

    Args:
        turn: The turn.
        running: The revision that runs, or ran last.
        decided: Whether the wanted revision is refused, and not only awaited.
    """
    return running if turn.view.has_pods or (decided and history.has_started(turn, running)) else None


def _running(turn: Turn, wanted: str) -> str | None:
    """Return what runs until the wanted revision may; an upgrade that was left half done and fails gives way to the stable."""
    running = turn.view.running_revision or turn.stable or turn.view.revision_of_pods
    if running in {None, wanted, turn.stable} or turn.stable is None or not _rolls_back(turn):
        return running
    return running if rolling.failure_of(turn, running) is None else turn.stable


def _rolls_back(turn: Turn) -> bool:
    return turn.spec.upgrade.rollback.enabled and turn.spec.state == "running"


def _failure(turn: Turn, wanted: str) -> Failure | None:
    """Return why the wanted revision failed: as remembered, or as its pods show just now."""
    kept = turn.view.revision_config_map(wanted)
    text = {} if kept is None else kept["metadata"].get("annotations") or {}
    if FAILED_ANNOTATION in text:
        return Failure.from_text(text[FAILED_ANNOTATION])
    upgrade = turn.stable is not None and wanted != turn.stable and turn.view.running_revision == wanted
    if upgrade and _rolls_back(turn):
        return rolling.failure_of(turn, wanted)
    return None


def _keep_revision(turn: Turn, wanted: str, failure: Failure | None) -> None:
    app = AppRevision(turn.desired.namespace, turn.desired.name, wanted, turn.spec)
    item = revision_config_map(app, pods_part(turn.spec))
    if failure is not None:
        item["metadata"]["annotations"] = {FAILED_ANNOTATION: failure.to_text()}
    turn.apply(item)


def _settle_rolled_back(turn: Turn, wanted: str, failure: Failure) -> None:
    what = f"Revision {wanted} was rolled back to {turn.stable}."
    told = turn.condition("RolledBack")
    if told is None or not told.message.startswith(what):  # the status is written last: what it tells of was done
        turn.events.append(Event("RolledBack", f"{what} {failure.message}", "Warning"))
    turn.settle("True", failure.reason, f"{what} {failure.message} {_RETRY}")
    turn.settle("True", Reason.UPGRADE_FAILED, f"Revision {wanted} failed and was rolled back. {failure.message}")


def _settle_unplanned(turn: Turn, wanted: str, running: str | None, plan: planning.Planned) -> None:
    turn.settle("Unknown", Reason.PLAN_PENDING)
    if plan.failure is None:
        turn.settle("True", Reason.PLANNING, plan.message)
        return
    turn.settle("True", plan.failure, plan.message)
    if running is not None and running != wanted:
        message = f"Revision {wanted} was not begun; revision {running} runs on. {plan.message}"
        turn.settle("True", Reason.UPGRADE_NOT_BEGUN, message)


def _is_compatible(turn: Turn, wanted: str, plan: TopologyPlan) -> bool:
    """Return whether a plan may follow what has run, and settle TopologyCompatible."""
    reasons = history.obstacles(turn, wanted, plan)
    if not reasons:
        turn.settle("True", Reason.COMPATIBLE)
        return True
    listed = "\n".join(f"- {item}" for item in reasons)
    if turn.spec.upgrade.topology_policy == "Warn":
        turn.settle(
            "False", Reason.NEEDS_RESET_IGNORED, f"{listed}\nIt runs all the same: upgrade.topologyPolicy is Warn."
        )
        return True
    remedy = "Take the change back, reset the application with a StreamsReset, or set upgrade.topologyPolicy: Warn."
    turn.settle("False", Reason.NEEDS_RESET, f"{listed}\n{remedy}{retained.remedy(turn)}")
    return False


def _of(turn: Turn, revision: str | None, *, may_start: bool) -> Target:
    assert revision is not None
    turn.target, turn.plan = revision, turn.view.plan(revision)
    kept = turn.view.revision_config_map(revision)
    old = None if kept is None else spec_of(kept)
    spec = turn.spec if old is None else as_of_revision(old, turn.spec)
    return Target(revision, with_possible_storage(turn, spec), may_start)


def _with_topics(turn: Turn, revision: str | None) -> Target:
    """Return a revision as target, with its topics examined and, where they never were, created."""
    target = _of(turn, revision, may_start=False)
    if turn.plan is None:
        turn.settle("Unknown", Reason.TOPICS_UNKNOWN)
        may_start = turn.brokers_answer
    elif not turn.brokers_answer:
        turn.settle_unknown(Reason.TOPICS_UNKNOWN, "The brokers cannot be asked: look at BrokersReachable.")
        may_start = False
    else:
        may_start = _examine(turn, target.spec, turn.plan)
    return Target(target.revision, target.spec, may_start and turn.may_begin)


def settle_waiting(turn: Turn) -> None:
    """Settle that something is to be started and has to wait, and for what."""
    if not turn.may_begin:
        return
    if not turn.brokers_answer:
        turn.settle("True", Reason.WAITING_FOR_BROKERS)
    elif "Reconciling" not in turn.verdicts:
        turn.settle("True", Reason.WAITING_FOR_TOPICS, turn.verdicts["TopicsReady"].message)


def _may_run_on(turn: Turn, running: str | None) -> bool:
    """Return whether pods of the running revision may be added while the wanted one has to wait for its topics."""
    plan = turn.view.plan(running)
    if plan is None or not turn.brokers_answer or not turn.view.replicas:
        return False
    found = _found(turn, turn.spec, plan)
    return found is not None and found.ready


def _found(turn: Turn, spec: StreamsAppSpec, plan: TopologyPlan) -> Topics | None:
    known = retained.topic_ids(turn)
    accepted = frozenset(part.strip() for part in turn.desired.annotations.get(ACCEPT_LOSS_ANNOTATION, "").split(","))
    return topics.examine(plan, spec, turn.observed.kafka, known, accepted)


def _examine(turn: Turn, spec: StreamsAppSpec, plan: TopologyPlan) -> bool:
    found = _found(turn, spec, plan)
    if found is None:
        turn.settle_unknown(Reason.TOPICS_UNKNOWN, "The brokers are being asked for the topics of the newest plan.")
        turn.look_after(1)
        return False
    turn.topics, turn.tasks = found.statuses, found.tasks
    _settle_topics(turn, found)
    if found.create and turn.spec.state == "running" and turn.may_begin:
        replicas = spec.internal_topics.replication_factor
        turn.actions.append(ProvisionTopics(plan.to_json(), found.create, -1 if replicas is None else replicas))
        turn.look_after(2)
    return found.ready


def _settle_topics(turn: Turn, found: Topics) -> None:
    if found.findings:
        turn.settle("False", found.findings[0].reason, "\n".join(item.message for item in found.findings))
        if any(item.is_unfit for item in found.findings):
            turn.settle("True", Reason.TOPICS_UNFIT, found.findings[0].message)
    elif found.create:
        turn.settle("False", Reason.TOPICS_BEING_CREATED, f"Being created: {', '.join(found.create)}.")
    else:
        turn.settle("True", Reason.TOPICS_FIT)
    if found.create and turn.spec.state == "running" and turn.may_begin:
        turn.settle("True", Reason.PROVISIONING_TOPICS, f"Internal topics are created: {', '.join(found.create)}.")
    elif not found.ready:
        turn.look_after(10)
