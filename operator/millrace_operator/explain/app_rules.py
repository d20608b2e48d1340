"""Rules about the resource itself: its spec, its status, and above all its conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from millrace_operator.explain.facts import Facts
from millrace_operator.explain.findings import Finding, Severity, age
from millrace_operator.model import Object
from millrace_operator.reconcile.condition_reason import ConditionReason

_OPERATOR_ANSWERS_WITHIN_SECONDS: Final = 60
_LOOK: Final = "Look at "
_WAITING_IS_LONG_AFTER_SECONDS: Final = 3600

_BAD: Final = (
    ("Stalled", "True", Severity.BLOCKING),
    ("BrokersReachable", "False", Severity.BLOCKING),
    ("TopologyCompatible", "False", Severity.BLOCKING),
    ("TopicsReady", "False", Severity.BLOCKING),
    ("TopologyShared", "False", Severity.PROBLEM),
    ("StorageHealthy", "False", Severity.PROBLEM),
    ("RolledBack", "True", Severity.PROBLEM),
    ("Ready", "False", Severity.WAITING),
)
"""Conditions, the status that is bad, and how bad it is; in the order of causes."""
_PASSES: Final = frozenset(
    {"TopicsBeingCreated", "Planning", "PlanPending", "VolumePending", "PodsNotReady", "Deleting"}
)
_ABOUT_PODS: Final = frozenset({"StartFailed", "UpgradeFailed"})
"""Reasons for which the pods' own findings are more specific."""
_HARMLESS: Final = frozenset({"TopicDiffers", "NeedsResetIgnored"})


def _deletion(facts: Facts) -> Iterator[Finding]:
    since = facts.app["metadata"].get("deletionTimestamp")
    if since is None:
        return
    seconds = facts.age_seconds(since)
    what = f"The application has been terminating for {age(seconds)}."
    if seconds <= _OPERATOR_ANSWERS_WITHIN_SECONDS * 5:
        yield Finding(Severity.WANTED, facts.subject, what)
        return
    yield Finding(
        Severity.WANTED,
        facts.subject,
        what,
        "Check that the operator is running: it applies deletionPolicy and then removes its finalizer.",
    )


def _operator_is_away(facts: Facts) -> Iterator[Finding]:
    metadata = facts.app["metadata"]
    seen, created = facts.status.get("observedGeneration"), metadata.get("creationTimestamp")
    remedy = (
        "Check that the operator is running and watches this namespace: `kubectl get deployments -A -l "
        "app.kubernetes.io/name=millrace-operator`, then its log."
    )
    if seen is None:
        waited = facts.age_seconds(created)
        what = f"The operator has not seen the application yet, which was created {age(waited)} ago."
    elif seen < metadata.get("generation", 0):
        writes = (item for item in metadata.get("managedFields", ()) if item.get("subresource") != "status")
        waited = facts.age_seconds(max((str(item["time"]) for item in writes if "time" in item), default=created))
        what = f"The operator has not seen the latest change to the manifest, made {age(waited)} ago."
    else:
        return
    if waited > _OPERATOR_ANSWERS_WITHIN_SECONDS:
        yield Finding(Severity.BLOCKING, facts.subject, what, remedy)
    else:
        yield Finding(Severity.WAITING, facts.subject, what)


def _stopped(facts: Facts) -> Iterator[Finding]:
    """The user wants nothing to be done: pause, suspension, no replicas."""
    condition = facts.condition("ReconciliationPaused")
    if condition is not None and condition["status"] == "True":
        yield _of_condition(condition, facts, Severity.NOTE)
    if facts.spec.get("state") == "suspended":
        yield Finding(
            Severity.WANTED, facts.subject, "The application is suspended (spec.state).", "Set spec.state to running."
        )
    if facts.replicas == 0:
        yield Finding(
            Severity.WANTED,
            facts.subject,
            "The spec asks for no replicas (spec.replicas is 0).",
            "Set spec.replicas to 1 or more.",
        )


def _conditions(facts: Facts, *, of_pods: bool) -> Iterator[Finding]:
    """Conditions that are bad: those that follow from failing pods, or all others."""
    stopped = facts.spec.get("state") == "suspended" or facts.replicas == 0
    processes = facts.processes
    for kind, bad, severity in _BAD:
        condition = facts.condition(kind)
        if condition is None or condition["status"] != bad or (kind == "Ready" and stopped):
            continue
        reason = condition["reason"]
        if (reason in _ABOUT_PODS) is not of_pods:
            continue
        if reason in _PASSES:
            yield _of_condition(condition, facts, Severity.WAITING)
        elif reason in _HARMLESS or (severity is Severity.BLOCKING and processes):
            yield _of_condition(condition, facts, Severity.PROBLEM)
        else:
            yield _of_condition(condition, facts, severity)


def _of_condition(condition: Object, facts: Facts, severity: Severity) -> Finding:
    known = ConditionReason.named(condition["reason"])
    remedy = known.remedy if known is not None else ""
    since = age(facts.age_seconds(condition.get("lastTransitionTime")))
    message = condition["message"] or (known.meaning if known is not None else condition["reason"])
    return Finding(
        severity,
        f"{condition['type']}={condition['status']}, {condition['reason']}",
        f"{message} (for {since})",
        remedy,
        points_elsewhere=remedy.startswith(_LOOK) or condition["type"] == "Ready",
    )


def _restoration(facts: Facts) -> Iterator[Finding]:
    condition = facts.condition("StateRestored")
    if condition is None or condition["status"] != "False":
        return
    restoration = facts.status.get("restoration") or {}
    left, eta = restoration.get("remainingRecords"), restoration.get("etaSeconds")
    tasks = (facts.status.get("tasks") or {}).get("restoring")
    what = f"{'Tasks' if tasks is None else f'{tasks} tasks'} are restoring their state before they process records"
    what += "" if left is None else f"; {left:,} changelog records remain"
    what += "." if eta is None else f", about {age(eta)}."
    since = facts.age_seconds(condition.get("lastTransitionTime"))
    long = since > _WAITING_IS_LONG_AFTER_SECONDS
    remedy = (
        f"This has taken {age(since)} so far: check that brokers and volumes are not at their limits." if long else ""
    )
    yield Finding(Severity.WAITING, "StateRestored=False", what, remedy)


def _lag(facts: Facts) -> Iterator[Finding]:
    lag = facts.status.get("lag") or {}
    total = lag.get("total")
    if total is None or not facts.processes:
        return
    if total == 0:
        yield Finding(
            Severity.NOTE,
            "Lag",
            "All records in the input topics have been processed: a missing record was never written to them.",
        )
    elif lag.get("trend") == "Growing":
        tasks = (facts.status.get("topology") or {}).get("tasks")
        workers = facts.replicas * int(facts.spec.get("threads", 1))
        more = tasks is None or workers < tasks
        yield Finding(
            Severity.PROBLEM,
            "Lag",
            f"{total:,} input records are waiting, and the lag is growing.",
            "Raise spec.replicas or spec.threads."
            if more
            else f"Each of the {tasks} tasks has its own thread: faster code or more partitions help, more replicas do not.",
        )
    else:
        yield Finding(Severity.NOTE, "Lag", f"{total:,} input records are waiting.")


def _idle_replicas(facts: Facts) -> Iterator[Finding]:
    tasks = (facts.status.get("topology") or {}).get("tasks")
    if tasks is not None and facts.replicas > max(tasks, 1):
        yield Finding(
            Severity.NOTE,
            facts.subject,
            f"There are {facts.replicas} replicas but only {tasks} tasks: {facts.replicas - tasks} are idle.",
            f"Set spec.replicas to {tasks} or less.",
        )


def _unreadable(facts: Facts) -> Iterator[Finding]:
    for what in facts.unreadable:
        yield Finding(
            Severity.NOTE,
            "Permissions",
            f"You are not allowed to list {what}, so they were not checked.",
            "Ask for the role `view`.",
        )


Rule = Callable[[Facts], Iterator[Finding]]

APP_RULES: Final[tuple[Rule, ...]] = (_deletion, _operator_is_away, _stopped, partial(_conditions, of_pods=False))
"""The rules that come before those for pods, in the order of causes."""
LATER_APP_RULES: Final[tuple[Rule, ...]] = (
    partial(_conditions, of_pods=True),
    _restoration,
    _lag,
    _idle_replicas,
    _unreadable,
)
"""The rules that come after those for pods: consequences of failing pods, and useful information."""
