"""What is known of a reset, and what is to be done about it: the words of `reconcile_reset`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millrace.manifest import StreamsResetSpec, StreamsResetStatus
from millrace.plan import reset
from millrace_operator.kafka.actions import SetOffsets
from millrace_operator.model import Apply, Delete, DeleteTopics, Desired, Event, Key, Object, SetFinalizer


@dataclass(frozen=True, slots=True)
class DesiredReset:
    """One `StreamsReset` as it stands in the API."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: StreamsResetSpec | None
    """None if the spec breaks a rule: `problems` says which."""
    problems: tuple[str, ...] = ()
    status: StreamsResetStatus | None = None
    """The status written last."""
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    deletion_time: float | None = None
    """When its deletion was asked for, in seconds since the epoch; None unless `deleting`."""


@dataclass(frozen=True, slots=True)
class ObservedReset:
    """Everything a pass over a reset has seen."""

    now: float
    """Seconds since the epoch."""
    app: Desired | None = None
    """The application; None if there is none."""
    objects: Mapping[Key, Object] = field(default_factory=dict)
    """The application's children."""
    brokers: reset.ObservedApplication | None = None
    """What the brokers have of the application; None if they were not asked or do not tell."""
    problem: str | None = None
    """Why they do not tell."""
    claimants: tuple[str, ...] = ()
    """Other StreamsApps with the same group and internal topics."""
    before: tuple[str, ...] = ()
    """Names of older resets of the same application that are not finished."""


@dataclass(frozen=True, slots=True)
class PatchApp:
    """Change the application's resource by a merge patch; only the very one that was seen."""

    uid: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    status: Mapping[str, None] = field(default_factory=dict)
    """Fields of the status that are forgotten."""


ResetAction = SetOffsets | PatchApp | DeleteTopics | Delete | Apply | SetFinalizer


@dataclass(frozen=True, slots=True)
class ResetDecision:
    """What a pass over a reset has come to; the actions are done in order, the status is written after them."""

    actions: Sequence[ResetAction] = ()
    status: StreamsResetStatus | None = None
    """None leaves it."""
    events: Sequence[Event] = ()
    again_after: float | None = None
    """Seconds after which to look again; None if nothing is left to be done."""
