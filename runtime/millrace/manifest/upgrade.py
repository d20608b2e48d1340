"""`spec.upgrade`, `spec.handover`, `spec.autoscaling` and `spec.drain`: how what runs, and on how many replicas, may change."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from millrace.manifest.fields import Duration, Int64, PositiveDuration, ResourceName
from millrace.manifest.model import ManifestModel, Rule, rule_error


class Gate(ManifestModel):
    """What must hold before the next pod is replaced."""

    ready_timeout: PositiveDuration = "10m"
    """How long a new pod may take until all its tasks run. After it the upgrade has failed."""
    max_lag: Int64 | None = None
    """How many records the application may be behind; its lag does not matter if not given."""
    min_stable: Duration = "10s"
    """How long the group must have been stable."""


class Rollback(ManifestModel):
    """What is done about a failed upgrade."""

    enabled: bool = True
    """Whether the revision that ran before is brought back."""


class Upgrade(ManifestModel):
    """How a changed manifest reaches the pods."""

    strategy: Literal["Rolling", "Recreate"] = "Rolling"
    """`Rolling`: one pod after another. `Recreate`: all at once, for changes that two versions cannot share."""
    topology_policy: Literal["Enforce", "Warn"] = "Enforce"
    """Whether a topology that cannot go on from the existing state is held back (`Enforce`) or only reported (`Warn`)."""
    gate: Gate = Gate()
    """What must hold before the next pod is replaced."""
    rollback: Rollback = Rollback()
    """What is done about a failed upgrade."""


def _off(value: Any) -> Any:
    if value is False:
        raise rule_error('must be "Off" in quotes: YAML reads the bare word as a boolean')
    return value


class Cooldown(ManifestModel):
    """How long autoscaling waits."""

    rebalance: Duration = "3m"
    """After tasks have moved."""
    scale_down: Duration = "10m"
    """Until fewer replicas have been enough for that long."""


class Autoscaling(ManifestModel):
    """How the number of replicas follows the load."""

    mode: Annotated[Literal["Off", "Recommend", "Auto"], BeforeValidator(_off)] = "Off"
    """`Recommend` only says in the status what `Auto` would do. Put "Off" in quotes: YAML takes the bare word for a boolean."""
    min: Annotated[int, Field(ge=1, le=10_000, json_schema_extra={"format": "int32"})] = 1
    """The least replicas."""
    max: Annotated[int, Field(ge=1, le=10_000, json_schema_extra={"format": "int32"})] | None = None
    """The most replicas. More than there are tasks are never used."""
    target_catch_up: PositiveDuration = "5m"
    """In what time the application is to catch up with its input."""
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
    """What has used the application id until now: one of these."""

    name: ResourceName | None = None
    """A StreamsApp of the same namespace. Suspend it, or delete it with the policy `Retain`."""
    group: bool = False
    """Whether it is an application that no StreamsApp of this cluster describes, for example one in Java. Stop it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda predecessor: (predecessor.name is not None) != predecessor.group,
            "has(self.name) != (has(self.group) && self.group)",
            "must have either name or group: true",
        ),
    )


class Handover(ManifestModel):
    """How the application takes over the consumer group, and with it the offsets and internal topics, of another one."""

    from_: Predecessor = Field(alias="from")
    """What has used the application id until now. The application begins when nobody else is left in the group."""
    allow_foreign_members: bool = False
    """Whether it joins at once, beside the members of the other one, which has to have the same topology: tasks move as the other
    one is scaled in."""
