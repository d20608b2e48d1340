"""Events: what changed since the status that was written last, told once.

They follow from the two statuses, so a turn that is repeated after a crash tells nothing twice unless its status was lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.manifest import StreamsAppStatus
from millrace.manifest.status import Condition, ConditionType
from millrace_operator.model import Event
from millrace_operator.reconcile.reasons import PASSES, REASONS

_BAD_WHEN_TRUE: Final[frozenset[ConditionType]] = frozenset({"Stalled", "RolledBack"})
_QUIET: Final[frozenset[ConditionType]] = frozenset({"Reconciling", "ScalingAllowed"})
_PLAIN: Final[frozenset[ConditionType]] = frozenset({"Ready", "PodsCurrent"})
"""Conditions that are false in the course of things."""
_LONGEST: Final = 1000


def transitions(old: StreamsAppStatus | None, new: StreamsAppStatus) -> Iterator[Event]:
    """Yield what an observer of both statuses would tell; what two conditions say in the same words is told once."""
    before = {item.type: item for item in old.conditions} if old is not None else {}
    told = [
        event
        for condition in new.conditions
        if condition.type not in _QUIET
        for event in _condition(before.get(condition.type), condition)
    ]
    messages = [event.message for event in told]
    yield from (event for place, event in enumerate(told) if event.message not in messages[:place])
    if old is None:
        return
    if new.lifecycle_state != old.lifecycle_state and new.lifecycle_state is not None:
        yield Event(new.lifecycle_state, f"The application was {old.lifecycle_state} and is {new.lifecycle_state} now.")
    if new.current_revision != old.current_revision and new.current_revision is not None:
        yield Event("RevisionChosen", f"Pods are to run revision {new.current_revision}.")
    if new.stable_revision != old.stable_revision and new.stable_revision is not None:
        yield Event("RevisionStable", f"Revision {new.stable_revision} runs well.")


def _condition(old: Condition | None, new: Condition) -> Iterator[Event]:
    is_bad = new.status == ("True" if new.type in _BAD_WHEN_TRUE else "False")
    if new.type == "ReconciliationPaused":
        is_bad = False
    changed = old is None or (old.status, old.reason) != (new.status, new.reason)
    if not changed or new.status == "Unknown":
        return
    if is_bad:
        known = REASONS.get(new.reason)
        passes = known is not None and known.remedy == PASSES
        yield Event(new.reason, new.message[:_LONGEST], "Normal" if new.type in _PLAIN or passes else "Warning")
    elif old is not None and old.status not in {new.status, "Unknown"}:
        yield Event(new.reason, f"{new.type}: {new.message}"[:_LONGEST])
