"""`spec.upgrade`, `spec.handover`, `spec.autoscaling` and `spec.drain`: how a running application changes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from millrace.manifest.base_model import ManifestModel
from millrace.manifest.fields import Duration, Int64, PositiveDuration, ResourceName
from millrace.manifest.rules import Rule, rule_error


class Gate(ManifestModel):
    """What must be true before the next pod is replaced."""

    ready_timeout: PositiveDuration = "10m"
    """How long a new pod may take until all its tasks run. If it takes longer the upgrade has failed."""
    max_lag: Int64 | None = None
    """How many records the application may be behind; any number if not given."""
    min_stable: Duration = "10s"
    """How long the group must have been stable."""


class Rollback(ManifestModel):
    """What happens after a failed upgrade."""

    enabled: bool = True
    """Whether the previous revision is restored."""


class Upgrade(ManifestModel):
    """How a changed manifest is rolled out to the pods."""

    strategy: Literal["Rolling", "Recreate"] = "Rolling"
    """`Rolling`: one pod after another. `Recreate`: all at once, for changes that two versions cannot share."""
    topology_policy: Literal["Enforce", "Warn"] = "Enforce"
    """Whether a topology that cannot continue from the existing state is blocked (`Enforce`) or only reported (`Warn`)."""
    gate: Gate = Gate()
    """What must be true before the next pod is replaced."""
    rollback: Rollback = Rollback()
    """What happens after a failed upgrade."""


def _off(value: object) -> object:
    if value is False:
        raise rule_error('must be "Off" in quotes: YAML reads the bare word as a boolean')
    return value


class Cooldown(ManifestModel):
    """How long autoscaling waits."""

    rebalance: Duration = "3m"
    """After tasks have moved."""
    scale_down: Duration = "10m"
    """How long fewer replicas must have been enough."""


class Autoscaling(ManifestModel):
    """How the number of replicas follows the load."""

    mode: Annotated[Literal["Off", "Recommend", "Auto"], BeforeValidator(_off)] = "Off"
    """`Recommend` only reports in the status what `Auto` would do. Put "Off" in quotes: YAML reads the bare word as a boolean."""
    min: Annotated[int, Field(ge=1, le=10_000, json_schema_extra={"format": "int32"})] = 1
    """The minimum number of replicas."""
    max: Annotated[int, Field(ge=1, le=10_000, json_schema_extra={"format": "int32"})] | None = None
    """The maximum number of replicas. There are never more than tasks."""
    target_catch_up: PositiveDuration = "5m"
    """The time in which the application should catch up with its input."""
    cooldown: Cooldown = Cooldown()
    """How long autoscaling waits."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda scaling: scaling.max is None or scaling.min <= scaling.max,
            "!has(self.max) || self.min <= self.max",
            "min must not be more than max",
        ),
        Rule(
            lambda scaling: scaling.mode == "Off" or scaling.max is not None,
            "self.mode == 'Off' || has(self.max)",
            "max must be given when mode is Recommend or Auto",
        ),
    )


class Drain(ManifestModel):
    """How a replica stops."""

    termination_grace_period_seconds: Annotated[int, Field(ge=1, le=3600, json_schema_extra={"format": "int64"})] = 60
    """How long it may take to commit and close its stores before it is killed."""


class Predecessor(ManifestModel):
    """The previous user of the application id: one of these."""

    name: ResourceName | None = None
    """A StreamsApp in the same namespace. Suspend it, or delete it with the policy `Retain`."""
    group: bool = False
    """Whether it is an application without a StreamsApp in this cluster, for example one in Java. Stop it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda predecessor: (predecessor.name is not None) != predecessor.group,
            "has(self.name) != (has(self.group) && self.group)",
            "must have either name or group: true",
        ),
    )


class Handover(ManifestModel):
    """How the application takes over the consumer group of another one, with its offsets and internal topics."""

    from_: Predecessor = Field(alias="from")
    """The previous user of the application id. The application starts when nobody else is left in the group."""
    allow_foreign_members: bool = False
    """Whether it joins the group immediately, alongside the members of the other application, which must have the same topology.
    Tasks move as the other one is scaled down."""
