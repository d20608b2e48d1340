"""What a resource's status says when a pass over it fails, or when some of its actions are refused.

A pass always ends in a status that is true for this generation: what was observed, and in `Stalled` what was refused and why. A
refused action that others depend on stops those after it. One that nothing depends on (a PodDisruptionBudget, or telling a pod to
drain, or the group's settings) stops none: pods are rolled, scaled and brought back without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from millrace.manifest.streamsapp_status import Condition, ConditionType, StreamsAppStatus
from millrace_operator.model import (
    Action,
    Apply,
    ConfigureGroup,
    Decision,
    Delete,
    DeleteGroup,
    DeleteTopics,
    DesiredApp,
    DrainPod,
    ProvisionTopics,
    Release,
    RemoveMembers,
    ResizeClaim,
    SetFinalizer,
    TellNodeLabels,
)
from millrace_operator.reconcile.app_status import transitions
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.conditions import why_nothing_runs
from millrace_operator.reconcile.timestamps import timestamp

LONGEST_MESSAGE: Final = 2000
_SUPPORTING: Final = frozenset({"NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "Service", "ServiceAccount"})
"""Kinds of children that pods can run without."""
_GARBAGE: Final = frozenset({"ConfigMap", "Job"})
"""Kinds that do no harm, except for taking up space, when they are no longer wanted."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An action that was not carried out, and will not be until somebody intervenes."""

    action: Action
    reason: str
    """One CamelCase word; a reason of `Stalled`."""
    message: str
    """Which object it is about, who refuses it and why, and what to do."""

    @property
    def stops_the_rest(self) -> bool:
        """Whether the actions after this one may depend on it.

        Nothing in the same pass depends on a plan Job: until there is a plan, a pass is about what is already running. Pods and
        claims are deleted independently. A pod that cannot be told to drain is removed later anyway.
        """
        match self.action:
            case Apply(obj):
                return obj["kind"] not in {*_SUPPORTING, "Job"}
            case Delete(key):
                return key.kind == "StatefulSet"
            case ResizeClaim() | DrainPod() | ConfigureGroup() | TellNodeLabels():
                return False
        return True

    @property
    def is_minor(self) -> bool:
        """Whether the application can reach what the spec wants, except for this one object."""
        match self.action:
            case Apply(obj):
                return obj["kind"] in _SUPPORTING
            case Delete(key):
                return key.kind in _SUPPORTING | _GARBAGE
            case DrainPod() | ConfigureGroup() | TellNodeLabels():
                return True
        return False


def carry_out(actions: Iterable[Action], do: Callable[[Action], Refusal | None]) -> Sequence[Refusal]:
    """Carry out actions in order, as far as earlier refusals allow, and return the refusals.

    Args:
        actions: What to do.
        do: Carries out an action, or returns why it is refused.
    """
    refusals: list[Refusal] = []
    for action in actions:
        if refusals and action == SetFinalizer(present=False):
            break  # the resource must outlive what still has to be deleted
        refusal = do(action)
        if refusal is not None:
            refusals.append(refusal)
            if refusal.stops_the_rest:
                break
    return refusals


def with_refusals(desired: DesiredApp, decision: Decision, refusals: Sequence[Refusal]) -> Decision:
    """Return a decision whose status and events report what was refused, and nothing that was therefore not done.

    Args:
        desired: The resource that the decision is about.
        decision: The decision, not reported yet.
        refusals: What was refused, at least one.
    """
    old = desired.status or StreamsAppStatus()
    status = old if decision.status is None else decision.status
    first = next((item for item in refusals if not item.is_minor), refusals[0])
    messages = list(dict.fromkeys([first.message, *(item.message for item in refusals)]))
    minor, known = first.is_minor, status.condition("Stalled")
    reason: str = first.reason
    if known is not None and known.status == "True":  # what blocks the application comes first
        reason, messages = (known.reason, [known.message, *messages]) if minor else (reason, [*messages, known.message])
    actions = decision.actions
    skipped = min((actions.index(item.action) for item in refusals if item.stops_the_rest), default=len(actions))
    if any(_brings_pods(action) for action in actions[skipped:]):
        # The old values stay for what the skipped actions would have made true; the stable revision was observed on the pods.
        conditions = [item for item in status.conditions if item.type != "RolledBack"]
        conditions += [item for item in old.conditions if item.type == "RolledBack"]
        kept = {"current_revision": old.current_revision, "conditions": tuple(conditions)}
        status = status.model_copy(update=kept)
    reported = stalled_status(desired, reason, "\n".join(messages), status, goes_on=minor)
    derived = set() if decision.status is None else set(transitions(desired.status, decision.status))
    own = tuple(event for event in decision.events if event not in derived)
    return replace(decision, status=reported, events=(*(own if minor else ()), *transitions(desired.status, reported)))


def description_of(action: Action) -> str:  # noqa: C901 - a line for each kind
    """Return an action in a few words, without its content."""
    match action:
        case Apply(obj):
            return f"Apply {obj['kind']} {obj['metadata']['name']}"
        case Delete(key) | Release(key):
            return f"{type(action).__name__} {key.kind} {key.name}"
        case DrainPod(name) | TellNodeLabels(name):
            return f"Annotate Pod {name} {'so that it drains' if isinstance(action, DrainPod) else 'with labels of its node'}"
        case ResizeClaim(name, _, size):
            return f"Resize PersistentVolumeClaim {name} to {size}"
        case SetFinalizer(present):
            return "Set the finalizer" if present else "Remove the finalizer"
        case ProvisionTopics(_, names):
            return f"Create topics {', '.join(names)}"
        case DeleteTopics(names):
            return f"Delete topics {', '.join(names)}"
        case RemoveMembers(names):
            return f"Remove members {', '.join(names)}"
        case ConfigureGroup(settings):
            return f"Set {', '.join(sorted(settings))} of the consumer group"
        case DeleteGroup():
            return "Delete the consumer group"


def _brings_pods(action: Action) -> bool:
    """Return whether an action moves pods to another revision, or prepares that."""
    match action:
        case Apply(obj):
            return obj["kind"] in {"ConfigMap", "StatefulSet"}
        case Delete(key):
            return key.kind == "StatefulSet"
    return isinstance(action, ProvisionTopics)


def stalled_status(
    desired: DesiredApp, reason: str, message: str, status: StreamsAppStatus | None = None, *, goes_on: bool = False
) -> StreamsAppStatus:
    """Return a status with `Stalled=True`.

    `Reconciling` becomes false, so that nobody waits in vain, unless everything else continues.

    Args:
        desired: The resource.
        reason: The condition's reason.
        message: Its message.
        status: What the pass has decided; the last status if it did not reach a decision.
        goes_on: Whether everything else continues.
    """
    status = status or desired.status or StreamsAppStatus()
    reconciling = status.condition("Reconciling")
    at_work = goes_on and reconciling is not None and reconciling.status == "True"
    changed = [_condition(desired, "Stalled", "True", reason, message)]
    if not at_work:
        changed.append(
            _condition(desired, "Reconciling", "False", ConditionReason.HELD_BACK, ConditionReason.HELD_BACK.meaning)
        )
    made = {item.type: item for item in changed}
    kept = {item.type: item for item in status.conditions}
    ready = kept.get("Ready")
    if ready is not None and ready.reason == ConditionReason.NOTHING_RUNS:
        why = why_nothing_runs({item.type: (item.status, item.message) for item in (kept | made).values()})
        made["Ready"] = ready.model_copy(update={"message": why[:LONGEST_MESSAGE]})
    state = "Deleting" if desired.deleting else status.lifecycle_state if at_work else "Blocked"
    return status.model_copy(
        update={
            "observed_generation": desired.generation,
            "lifecycle_state": state,
            "conditions": tuple((kept | made).values()),
        }
    )


def _condition(desired: DesiredApp, kind: ConditionType, status: str, reason: str, message: str) -> Condition:
    known = (desired.status or StreamsAppStatus()).condition(kind)
    since = known.last_transition_time if known is not None and known.status == status else timestamp(time.time())
    return Condition.model_validate(
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message[:LONGEST_MESSAGE],
            "last_transition_time": since,
            "observed_generation": desired.generation,
        }
    )
