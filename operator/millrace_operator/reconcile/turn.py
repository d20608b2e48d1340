"""One turn of reconciliation: what it has seen, and what it comes to as its steps add to it.

Steps are functions over a turn. They read what is wanted and seen, add actions in the order in which they are to be done, and
settle conditions; none of them looks at what another has added, so their order is the order of actions and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from millrace.manifest import StreamsAppSpec, StreamsAppStatus
from millrace.manifest.status import AutoscalingStatus, Condition, ConditionType, InternalTopicStatus, LifecycleState
from millrace.plan.model import TopologyPlan
from millrace_operator.model import Action, Apply, Delete, Desired, Event, Key, Observed, Renewal
from millrace_operator.reconcile.applying import needs_apply, stamped
from millrace_operator.reconcile.ownership import key_of
from millrace_operator.reconcile.reasons import REASONS, Reason
from millrace_operator.reconcile.view import View, is_terminating

NOT_ASKED: Final = "Unknown"
"""The reason of a Kafka state that nobody has asked for yet, as after a restart of the operator."""

ConditionStatus = Literal["True", "False", "Unknown"]


class Verdict(NamedTuple):
    """What a turn says of a condition."""

    status: ConditionStatus
    reason: Reason
    message: str


@dataclass(slots=True)
class Turn:
    """What one call of `reconcile` works on."""

    desired: Desired
    observed: Observed
    view: View
    actions: list[Action] = field(default_factory=list)
    verdicts: dict[ConditionType, Verdict] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    """After how many seconds to look again."""
    taken: list[str] = field(default_factory=list)
    """What there is under names that children are to have, and is not the application's."""
    lifecycle: LifecycleState = "Running"
    target: str | None = None
    """The revision that pods are brought to."""
    stable: str | None = None
    """The revision that ran well last."""
    plan: TopologyPlan | None = None
    """The target's plan."""
    tasks: int | None = None
    topics: tuple[InternalTopicStatus, ...] | None = None
    """None keeps what the status says."""
    autoscaling: AutoscalingStatus | None = None
    renewal: Renewal | None = None
    may_begin: bool = True
    """False if the application has no pods, and must not get any because its application id is somebody else's as well."""
    notes: list[str] = field(default_factory=list)
    """What cannot be had here, though the spec asks for it and all else is done."""
    wanted: int = 0
    """How many pods there are to be."""

    @property
    def status(self) -> StreamsAppStatus:
        """The status written last."""
        return self.desired.status or StreamsAppStatus()

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self.observed.now

    @property
    def spec(self) -> StreamsAppSpec:
        """The spec, which has no problems when this is asked."""
        assert self.desired.spec is not None
        return self.desired.spec

    @property
    def brokers_answer(self) -> bool:
        """Whether the brokers could be asked."""
        return self.observed.kafka.error is None

    @property
    def group_is_stable(self) -> bool:
        """Whether the group has settled on who has which tasks."""
        group = self.observed.kafka.group
        return self.brokers_answer and group is not None and group.state == "Stable"

    def settle(self, status: ConditionStatus, reason: Reason, message: str = "") -> None:
        """Settle the condition that a reason belongs to; the reason's meaning stands in for a message."""
        explanation = REASONS[reason]
        self.verdicts[explanation.condition] = Verdict(status, reason, message or explanation.meaning)

    def settle_unknown(self, reason: Reason, message: str = "") -> None:
        """Settle a condition as unknown; while the brokers have only not been asked yet, what was known before stays."""
        if self.observed.kafka.reason != NOT_ASKED or self.condition(REASONS[reason].condition) is None:
            self.settle("Unknown", reason, message)

    def apply(self, wanted: Mapping[str, Any] | None) -> bool:
        """Have an object applied if it is not as wanted, and return whether it is as wanted already."""
        if wanted is None:
            return True
        item = stamped(wanted, self.desired.uid)
        key = key_of(item)
        seen = self.view.get(key.kind, key.name)
        if seen is None and key in self.observed.taken:  # it is tried again, as the other object may be gone
            self.taken.append(self.observed.taken[key])
        if seen is not None and is_terminating(seen):
            self.look_after(2)
            return False
        if not needs_apply(item, seen):
            return True
        self.actions.append(Apply(item, None if seen is None else seen["metadata"]["uid"]))
        return False

    def is_taken(self, kind: str, name: str) -> bool:
        """Return whether a name that a child is to have is an object's of somebody else."""
        return Key(kind, name) in self.observed.taken and self.view.get(kind, name) is None

    def delete(self, kind: str, name: str, *, orphan: bool = False) -> bool:
        """Have a child deleted, and return whether it is gone already."""
        seen = self.view.get(kind, name)
        if seen is None:
            return True
        if not is_terminating(seen):
            self.actions.append(Delete(Key(kind, name), seen["metadata"]["uid"], orphan))
        return False

    def look_after(self, seconds: float) -> None:
        """Look again after some seconds, if nothing happens before."""
        self.looks.append(max(1.0, seconds))

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return a condition as it was written last."""
        return next((item for item in self.status.conditions if item.type == kind), None)

    @property
    def all_tell(self) -> bool:
        """Whether all pods that are ready have told of their instances; one that is busy may not have answered in time."""
        return all(pod.name in self.observed.instances for pod in self.view.pods.values() if pod.ready)

    def is_true(self, kind: ConditionType) -> bool:
        """Return whether this turn has settled a condition as true."""
        return kind in self.verdicts and self.verdicts[kind].status == "True"
