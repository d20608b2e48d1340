"""The status: what a pass has concluded, so coarse that an application at rest causes no writes.

Numbers that move all the time are rounded. A condition keeps the time of its last transition until its status changes, and
whatever a pass could not find out keeps what was known before.

Events report what changed since the last status, once. They follow from the two statuses, so a pass that is repeated after a
crash reports nothing twice unless its status was lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final, get_args

from millrace.instance_status import StreamsStatus
from millrace.manifest import StreamsAppStatus
from millrace.manifest.streamsapp_status import (
    MOST_PODS_LISTED,
    Condition,
    ConditionType,
    GroupStatus,
    LagStatus,
    PodTasksStatus,
    RestorationStatus,
    StorageStatus,
    TasksStatus,
    TopologyStatus,
)
from millrace_operator.children.naming import selector
from millrace_operator.model import Event
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.context import Outcome, ReconcileContext, Target
from millrace_operator.reconcile.storage import max_used_percent
from millrace_operator.reconcile.timestamps import timestamp

_COMPATIBILITY: Final = {"True": "Compatible", "False": "NeedsReset", "Unknown": "Unknown"}
_LONGEST_MESSAGE: Final = 4000
_NO_LAG: Final = 100


def status_of(context: ReconcileContext, outcome: Outcome) -> StreamsAppStatus:
    """Return the status of a pass.

    Args:
        context: The context of the pass, in which all conditions are set.
        outcome: What else the pass has concluded.
    """
    old, target, lifecycle, replicas = context.status, outcome.target, outcome.lifecycle, outcome.replicas
    topics = None if target is None else target.topics
    pods = context.view.pods.values()
    ready = sum(pod.ready for pod in pods)
    instances = context.observed.instances.values()
    kafka, backfill = context.observed.kafka, context.observed.backfill
    return old.model_copy(
        update={
            "observed_generation": context.desired.generation,
            "lifecycle_state": lifecycle,
            "replicas": len(context.view.pods),
            "ready_replicas": ready,
            "desired_replicas": replicas,
            "ready": f"{ready}/{replicas}",
            "selector": ",".join(f"{name}={value}" for name, value in sorted(selector(context.desired.name).items())),
            "current_revision": old.current_revision if target is None else target.revision,
            "stable_revision": outcome.stable,
            "topology": _topology(context, target),
            "group": old.group
            if kafka.error is not None
            else GroupStatus(protocol=kafka.group.protocol, state=kafka.group.state, members=len(kafka.group.members))
            if kafka.group is not None
            else None,
            "tasks": old.tasks
            if not context.all_ready_pods_report
            else TasksStatus(
                active=sum(item.task_counts.active for item in instances),
                standby=sum(item.task_counts.standby for item in instances),
                warmup=sum(item.task_counts.warmup for item in instances),
                restoring=sum(item.task_counts.restoring for item in instances),
                pods=tuple(_pods_tasks(context)),
            ),
            "restoration": _restoration(instances) if context.all_ready_pods_report else old.restoration,
            "lag": _lag(context),
            "internal_topics": old.internal_topics if topics is None else topics.statuses,
            "storage": old.storage
            if (used := max_used_percent(context)) is None
            else StorageStatus(max_used_percent=used),
            "autoscaling": outcome.autoscaling,
            "backfill": backfill.name if backfill and lifecycle not in {"Deleting", "Paused", "Blocked"} else None,
            "conditions": tuple(
                _condition(context, kind)
                for kind in get_args(ConditionType)
                if kind in context.conditions or context.condition(kind) is not None
            ),
        }
    )


def _pods_tasks(context: ReconcileContext) -> Iterator[PodTasksStatus]:
    """Yield the tasks of the pods that have reported theirs, by ordinal."""
    for _, pod in sorted(context.view.pods.items())[:MOST_PODS_LISTED]:
        instance = context.observed.instances.get(pod.name)
        if instance is not None:
            counts = instance.task_counts
            yield PodTasksStatus(
                name=pod.name, active=counts.active, standby=counts.standby, restoring=counts.restoring
            )


def _condition(context: ReconcileContext, kind: ConditionType) -> Condition:
    old = context.condition(kind)
    if kind not in context.conditions:
        assert old is not None
        return old
    condition = context.conditions[kind]
    same = old is not None and old.status == condition.status
    return Condition(
        type=kind,
        status=condition.status,
        reason=condition.reason.value,
        message=condition.message[:_LONGEST_MESSAGE],
        last_transition_time=old.last_transition_time if same and old is not None else timestamp(context.now),
        observed_generation=context.desired.generation,
    )


def _topology(context: ReconcileContext, target: Target | None) -> TopologyStatus | None:
    old = context.status.topology
    condition = context.conditions.get("TopologyCompatible")
    compatibility = "Unknown" if condition is None else _COMPATIBILITY[condition.status]
    if target is None or target.plan is None:
        return old
    plan, tasks = target.plan, None if target.topics is None else target.topics.tasks
    return TopologyStatus.model_validate(
        {
            "hash": plan.hash[:16],
            "subtopologies": len(plan.subtopologies),
            "tasks": tasks if tasks is not None else (old.tasks if old is not None else None),
            "compatibility": compatibility,
        }
    )


def _restoration(instances: Iterable[StreamsStatus]) -> RestorationStatus:
    items = [item.restoration for item in instances if item.task_counts.restoring]
    remaining = [item.remaining_records for item in items]
    etas = [item.eta_seconds for item in items if item.eta_seconds is not None]
    return RestorationStatus(
        remaining_records=None if None in remaining else two_digits(sum(item or 0 for item in remaining)),
        eta_seconds=(10 * math.ceil(max(etas) / 10) if etas else None) if items else 0,
    )


def _lag(context: ReconcileContext) -> LagStatus | None:
    """Return the lag. Fewer than a hundred records count as none; a change of up to a tenth is ignored."""
    lag, old = context.observed.kafka.lag, context.status.lag
    if lag is None:
        return old
    total = 0 if lag < _NO_LAG else two_digits(lag)
    before = total if old is None or old.total is None else old.total
    if abs(total - before) * 10 <= before:
        return LagStatus(total=before, trend="Steady")
    return LagStatus(total=total, trend="Growing" if total > before else "Shrinking")


def two_digits(number: int) -> int:
    """Return a number rounded to its two first digits.

    >>> two_digits(99), two_digits(12_345), two_digits(996)
    (99, 12000, 1000)
    """
    return number if number < 100 else round(number, 2 - len(str(number)))


_BAD_WHEN_TRUE: Final[frozenset[ConditionType]] = frozenset({"Stalled", "RolledBack"})
_QUIET: Final[frozenset[ConditionType]] = frozenset({"Reconciling", "ScalingAllowed", "StateReplicated"})
_PLAIN: Final[frozenset[ConditionType]] = frozenset({"Ready", "PodsCurrent", "TopologyShared"})
"""Conditions that are false from time to time without anything being wrong."""
_LONGEST_EVENT: Final = 1000


def transitions(old: StreamsAppStatus | None, new: StreamsAppStatus) -> Iterator[Event]:
    """Yield Events for the differences of two statuses; a message that two conditions share is reported once."""
    before = {item.type: item for item in old.conditions} if old is not None else {}
    events = [
        event
        for condition in new.conditions
        if condition.type not in _QUIET
        for event in _condition_events(before.get(condition.type), condition)
    ]
    messages = [event.message for event in events]
    yield from (event for place, event in enumerate(events) if event.message not in messages[:place])
    if old is None:
        return
    if new.lifecycle_state != old.lifecycle_state and new.lifecycle_state is not None:
        yield Event(new.lifecycle_state, f"The application was {old.lifecycle_state} and is now {new.lifecycle_state}.")
    if new.current_revision != old.current_revision and new.current_revision is not None:
        yield Event("RevisionChosen", f"Pods are to run revision {new.current_revision}.")
    if new.stable_revision != old.stable_revision and new.stable_revision is not None:
        yield Event("RevisionStable", f"Revision {new.stable_revision} runs well.")


def _condition_events(old: Condition | None, new: Condition) -> Iterator[Event]:
    is_bad = new.status == ("True" if new.type in _BAD_WHEN_TRUE else "False")
    if new.type == "ReconciliationPaused":
        is_bad = False
    changed = old is None or (old.status, old.reason) != (new.status, new.reason)
    if not changed or new.status == "Unknown":
        return
    if is_bad:
        known = ConditionReason.named(new.reason)
        passes = known is not None and known.passes
        yield Event(new.reason, new.message[:_LONGEST_EVENT], "Normal" if new.type in _PLAIN or passes else "Warning")
    elif old is not None and old.status not in {new.status, "Unknown"}:
        yield Event(new.reason, f"{new.type}: {new.message}"[:_LONGEST_EVENT])
