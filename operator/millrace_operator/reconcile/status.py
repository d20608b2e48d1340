"""The status: what a turn has come to, so coarse that an application at rest is not written to.

Numbers that move all the time are rounded. A condition keeps the time of its last transition until its status changes, and
whatever a turn could not find out keeps what was known before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, get_args

from millrace.manifest import StreamsAppStatus
from millrace.manifest.status import (
    Condition,
    ConditionType,
    GroupStatus,
    LagStatus,
    RestorationStatus,
    StorageStatus,
    TasksStatus,
    TopologyStatus,
)
from millrace_operator.children.naming import selector
from millrace_operator.model import Event, Instance
from millrace_operator.reconcile.reasons import REASONS, Reason
from millrace_operator.reconcile.storage import max_used_percent
from millrace_operator.reconcile.turn import Turn

_TYPES: Final[tuple[ConditionType, ...]] = get_args(ConditionType)
_COMPATIBILITY: Final = {"True": "Compatible", "False": "NeedsReset", "Unknown": "Unknown"}
_LONGEST_MESSAGE: Final = 4000
_NO_LAG: Final = 100


def status_of(turn: Turn) -> StreamsAppStatus:
    """Return the status of a turn, in which everything is settled."""
    old = turn.status
    pods = turn.view.pods.values()
    ready = sum(pod.ready for pod in pods)
    instances = turn.observed.instances.values()
    kafka = turn.observed.kafka
    return old.model_copy(
        update={
            "observed_generation": turn.desired.generation,
            "lifecycle_state": turn.lifecycle,
            "replicas": len(turn.view.pods),
            "ready_replicas": ready,
            "desired_replicas": turn.wanted,
            "ready": f"{ready}/{turn.wanted}",
            "selector": ",".join(f"{name}={value}" for name, value in sorted(selector(turn.desired.name).items())),
            "current_revision": turn.target or old.current_revision,
            "stable_revision": turn.stable,
            "topology": _topology(turn),
            "group": old.group
            if kafka.error is not None
            else GroupStatus(protocol=kafka.group.protocol, state=kafka.group.state, members=len(kafka.group.members))
            if kafka.group is not None
            else None,
            "tasks": _tasks(instances) if turn.all_tell else old.tasks,
            "restoration": _restoration(instances) if turn.all_tell else old.restoration,
            "lag": _lag(turn),
            "internal_topics": old.internal_topics if turn.topics is None else turn.topics,
            "storage": old.storage
            if (used := max_used_percent(turn)) is None
            else StorageStatus(max_used_percent=used),
            "autoscaling": turn.autoscaling,
            "conditions": conditions_of(turn),
        }
    )


def conditions_of(turn: Turn) -> tuple[Condition, ...]:
    """Return all conditions, in the order of their declaration."""
    return tuple(_condition(turn, kind) for kind in _TYPES if kind in turn.verdicts or turn.condition(kind) is not None)


def _condition(turn: Turn, kind: ConditionType) -> Condition:
    old = turn.condition(kind)
    if kind not in turn.verdicts:
        assert old is not None
        return old
    verdict = turn.verdicts[kind]
    same = old is not None and old.status == verdict.status
    return Condition(
        type=kind,
        status=verdict.status,
        reason=verdict.reason.value,
        message=verdict.message[:_LONGEST_MESSAGE],
        last_transition_time=old.last_transition_time if same and old is not None else timestamp(turn.now),
        observed_generation=turn.desired.generation,
    )


def timestamp(seconds: float) -> str:
    """Return a time as Kubernetes writes it.

    >>> timestamp(0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(math.floor(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _topology(turn: Turn) -> TopologyStatus | None:
    old = turn.status.topology
    verdict = turn.verdicts.get("TopologyCompatible")
    compatibility = "Unknown" if verdict is None else _COMPATIBILITY[verdict.status]
    if turn.plan is None:
        return old
    return TopologyStatus.model_validate(
        {
            "hash": turn.plan.hash[:16],
            "subtopologies": len(turn.plan.subtopologies),
            "tasks": turn.tasks if turn.tasks is not None else (old.tasks if old is not None else None),
            "compatibility": compatibility,
        }
    )


def _tasks(instances: Iterable[Instance]) -> TasksStatus:
    items = list(instances)
    return TasksStatus(
        active=sum(item.active for item in items),
        standby=sum(item.standby for item in items),
        warmup=sum(item.warmup for item in items),
        restoring=sum(item.restoring for item in items),
    )


def _restoration(instances: Iterable[Instance]) -> RestorationStatus:
    items = [item for item in instances if item.restoring]
    remaining = [item.remaining_records for item in items]
    etas = [item.eta_seconds for item in items if item.eta_seconds is not None]
    return RestorationStatus(
        remaining_records=None if None in remaining else two_digits(sum(item or 0 for item in remaining)),
        eta_seconds=(10 * math.ceil(max(etas) / 10) if etas else None) if items else 0,
    )


def _lag(turn: Turn) -> LagStatus | None:
    """Return the lag. Fewer than a hundred records are on their way rather than late; a tenth more or less is no change."""
    lag, old = turn.observed.kafka.lag, turn.status.lag
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


def settle_defaults(turn: Turn) -> None:
    """Settle what no step had to say anything about: nothing to do, nothing in the way."""
    if "Stalled" not in turn.verdicts:
        turn.settle("False", Reason.NOT_STALLED)
    if "Reconciling" not in turn.verdicts:
        done = turn.verdicts["Stalled"].status == "False"
        _settle_rest(turn, Reason.UP_TO_DATE if done else Reason.HELD_BACK)
    if "ReconciliationPaused" not in turn.verdicts:
        turn.settle("False", Reason.NOT_PAUSED)


def _settle_rest(turn: Turn, reason: Reason) -> None:
    """Settle that nothing is being done, with what cannot be had here; an Event tells of that when it is new."""
    message = " ".join((REASONS[reason].meaning, *turn.notes))
    before = turn.condition("Reconciling")
    for note in turn.notes:
        if before is None or note not in before.message:
            turn.events.append(Event("NotAvailable", note, "Warning"))
    turn.settle("False", reason, message)
