"""What one call of `reconcile` works on: what was observed, and what its steps set and add.

Steps are functions of a context, called in the order that `reconciler` and `target` show. A step sets conditions and adds actions
in the order in which they are carried out; whatever else it concludes it returns. It may read the conditions that steps before it
have set. It never reads their actions, so an action added or left out changes no other step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Self

from millrace.manifest import StreamsAppSpec, StreamsAppStatus
from millrace.manifest.streamsapp_status import AutoscalingStatus, Condition, ConditionType, LifecycleState
from millrace.plan.topology_plan import TopologyPlan
from millrace_operator.model import Action, Apply, Delete, DesiredApp, Event, Key, Object, ObservedApp, Renewal
from millrace_operator.reconcile.children_view import ChildrenView, is_terminating, view_of
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.drift import needs_apply, stamped
from millrace_operator.reconcile.topics import TopicReport

NOT_ASKED: Final = "Unknown"
"""The reason of a Kafka state that nobody has asked for yet, for example after a restart of the operator."""

ConditionStatus = Literal["True", "False", "Unknown"]


class ConditionValue(NamedTuple):
    """The value that a pass gives a condition."""

    status: ConditionStatus
    reason: ConditionReason
    message: str


@dataclass(frozen=True, slots=True)
class Target:
    """The revision that pods are moved to."""

    revision: str
    spec: StreamsAppSpec
    plan: TopologyPlan | None
    may_start: bool
    """Whether brokers and topics allow pods to be started or replaced."""
    may_begin: bool = True
    """False if the application has no pods and must not get any, because somebody else has its application id too."""
    topics: TopicReport | None = None
    """The state of the topics that it waits for; None if unknown, which keeps what the status says."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass has concluded, beside conditions, actions and events."""

    lifecycle: LifecycleState
    """What the application is doing."""
    replicas: int
    """How many pods there should be."""
    stable: str | None
    """The revision that last ran well."""
    autoscaling: AutoscalingStatus | None
    target: Target | None = None
    renewal: Renewal | None = None
    """What the application needs a permit for; None if it needs none."""


@dataclass(slots=True)
class ReconcileContext:
    """What was observed of one application, and the conditions, actions and events of this pass so far."""

    desired: DesiredApp
    observed: ObservedApp
    view: ChildrenView
    actions: list[Action] = field(default_factory=list)
    conditions: dict[ConditionType, ConditionValue] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    recheck_delays: list[float] = field(default_factory=list)
    """Seconds after which to look again, from each step."""
    name_conflicts: list[str] = field(default_factory=list)
    """Descriptions of other people's objects whose names children need."""
    unavailable: list[str] = field(default_factory=list)
    """What the spec asks for but this cluster cannot provide, although everything else is done."""

    @classmethod
    def of(cls, desired: DesiredApp, observed: ObservedApp) -> Self:
        """Return the context of a pass that begins."""
        return cls(desired, observed, view_of(desired, observed))

    @property
    def status(self) -> StreamsAppStatus:
        """The status that was last written."""
        return self.desired.status or StreamsAppStatus()

    @property
    def stable(self) -> str | None:
        """The revision that had last run well when the pass began; None if its manifest is gone, so that it cannot run again."""
        known = self.status.stable_revision
        # A deletion removes the manifest, and has to record the revision all the same.
        return known if self.desired.deleting or self.view.revision_config_map(known) is not None else None

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self.observed.now

    @property
    def spec(self) -> StreamsAppSpec:
        """The spec, which is known to be valid when this is used."""
        assert self.desired.spec is not None
        return self.desired.spec

    @property
    def brokers_answer(self) -> bool:
        """Whether the brokers answered."""
        return self.observed.kafka.error is None

    @property
    def group_is_stable(self) -> bool:
        """Whether the group is stable: every member knows its tasks."""
        group = self.observed.kafka.group
        return self.brokers_answer and group is not None and group.state == "Stable"

    def set_condition(self, status: ConditionStatus, reason: ConditionReason, message: str = "") -> None:
        """Set the condition that a reason belongs to; the message defaults to the reason's meaning."""
        self.conditions[reason.condition] = ConditionValue(status, reason, message or reason.meaning)

    def set_unknown(self, reason: ConditionReason, message: str = "") -> None:
        """Set a condition to unknown; what was known before stays while the brokers have merely not been asked yet."""
        if self.observed.kafka.reason != NOT_ASKED or self.condition(reason.condition) is None:
            self.set_condition("Unknown", reason, message)

    def keep(self, before: Condition) -> None:
        """Set a condition to what it was."""
        reason = ConditionReason.named(before.reason)
        if reason is not None:  # else a newer operator has written it, and a condition that is not set stays
            self.set_condition(before.status, reason, before.message)

    def apply(self, wanted: Object | None) -> bool:
        """Apply an object unless it is as wanted, and return whether it already is."""
        if wanted is None:
            return True
        item = stamped(wanted, self.desired.uid)
        key = Key.of(item)
        seen = self.view.get(key.kind, key.name)
        if seen is None and key in self.observed.taken:  # applied anyway, as the other object may be gone
            self.name_conflicts.append(self.observed.taken[key])
        if seen is not None and is_terminating(seen):
            self.recheck_after(2)
            return False
        if not needs_apply(item, seen):
            return True
        self.actions.append(Apply(item, None if seen is None else seen["metadata"]["uid"]))
        return False

    def is_taken(self, kind: str, name: str) -> bool:
        """Return whether somebody else's object has a name that a child needs."""
        return Key(kind, name) in self.observed.taken and self.view.get(kind, name) is None

    def delete(self, kind: str, name: str, *, orphan: bool = False) -> bool:
        """Delete a child, and return whether it is already gone."""
        seen = self.view.get(kind, name)
        if seen is None:
            return True
        if not is_terminating(seen):
            self.actions.append(Delete(Key(kind, name), seen["metadata"]["uid"], orphan))
        return False

    def recheck_after(self, seconds: float) -> None:
        """Look again after some seconds, unless something happens first."""
        self.recheck_delays.append(max(1.0, seconds))

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return a condition as it was last written."""
        return self.status.condition(kind)

    @property
    def all_ready_pods_report(self) -> bool:
        """Whether all ready pods have reported their status; a busy one may not have answered in time."""
        return all(pod.name in self.observed.instances for pod in self.view.pods.values() if pod.ready)

    def is_true(self, kind: ConditionType) -> bool:
        """Return whether this pass has set a condition to true."""
        return kind in self.conditions and self.conditions[kind].status == "True"

    def is_false(self, kind: ConditionType) -> bool:
        """Return whether this pass has set a condition to false."""
        return kind in self.conditions and self.conditions[kind].status == "False"
