"""What passes over resets and backfills have in common: both are operations on one application, and each is done once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar

from millrace.manifest import Condition, StreamsBackfillStatus, StreamsResetStatus
from millrace_operator.model import DesiredApp, DesiredResource, Event, Key, Object, ObservedApp, SpecT
from millrace_operator.reconcile.children_view import ChildrenView, view_of
from millrace_operator.reconcile.timestamps import timestamp

ActionT = TypeVar("ActionT")
ObservedT = TypeVar("ObservedT", bound="ObservedOperation")
OperationStatus = StreamsResetStatus | StreamsBackfillStatus
OperationStatusT = TypeVar("OperationStatusT", bound=OperationStatus)
_ENDED: Final = frozenset({"Succeeded", "Failed", "Refused"})


def has_ended(status: OperationStatus | None) -> bool:
    """Return whether an operation with this status has finished, even if its phase is known only to a newer operator."""
    return status is not None and (status.phase in _ENDED or status.completion_time is not None)


@dataclass(frozen=True, slots=True)
class ObservedOperation:
    """What a pass over any operation has observed."""

    now: float
    """Seconds since the epoch."""
    app: DesiredApp | None = None
    """The application; None if there is none."""
    objects: Mapping[Key, Object] = field(default_factory=dict)
    """The application's children."""
    claimants: tuple[str, ...] = ()
    """Other StreamsApps with the same group and internal topics."""
    before: tuple[str, ...] = ()
    """Resets and backfills of the same application that come first."""
    problem: str | None = None
    """Why the brokers do not answer."""


@dataclass(frozen=True, slots=True)
class OperationDecision(Generic[ActionT, OperationStatusT]):
    """What a pass has decided; the actions are carried out in order, and the status is written after them."""

    actions: Sequence[ActionT] = ()
    status: OperationStatusT | None = None
    """None leaves it unchanged."""
    events: Sequence[Event] = ()
    again_after: float | None = None
    """Seconds after which to look again; None if nothing is left to do."""


@dataclass(frozen=True, slots=True)
class OperationContext(Generic[SpecT, OperationStatusT, ObservedT]):
    """One operation at the time of one pass.

    Args:
        desired: The resource as it stands.
        observed: What was seen of the application, its brokers, and what the operation has started.
    """

    desired: DesiredResource[SpecT, OperationStatusT]
    observed: ObservedT

    @property
    def status(self) -> OperationStatusT:
        """The status that was last written."""
        empty: OperationStatusT = self.desired.status_model()
        return self.desired.status or empty

    @property
    def spec(self) -> SpecT:
        """The spec, which is immutable and was valid when the operation began."""
        assert self.desired.spec is not None
        return self.desired.spec

    @property
    def app(self) -> DesiredApp:
        """The application, where there is one."""
        assert self.observed.app is not None
        return self.observed.app

    @property
    def view(self) -> ChildrenView:
        """The application's children."""
        return view_of(self.app, ObservedApp(now=self.observed.now, objects=self.observed.objects))

    def known(self, kind: str) -> Condition | None:
        """Return the condition of a type in the status; None if it has none."""
        return next((item for item in self.status.conditions if item.type == kind), None)

    def condition(self, kind: str, value: Literal["True", "False", "Unknown"], reason: str, message: str) -> Condition:
        """Return a condition, which keeps the time of its last change if it is in the status with the same value."""
        known = self.known(kind)
        same = known is not None and known.status == value
        return Condition(
            type=kind,
            status=value,
            reason=reason,
            message=message,
            last_transition_time=known.last_transition_time if same and known else timestamp(self.observed.now),
            observed_generation=self.desired.generation,
        )
