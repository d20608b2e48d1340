"""The status of a `StreamsApp`: what the operator has seen and done.

Fields of one observation stand together, so that one can be missing (Kafka does not answer) while the others are told.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from millrace.manifest.fields import Int32, Int64, map_list
from millrace.manifest.model import StatusModel

UNSEEN_GENERATION: Final = -1
"""The `observedGeneration` of a resource that the operator has not seen yet."""

ObservedGeneration = Annotated[int, Field(ge=UNSEEN_GENERATION, json_schema_extra={"format": "int64"})]
"""The generation of a manifest, or that none was seen yet."""

LifecycleState = Literal[
    "Pending",
    "Planning",
    "Provisioning",
    "Starting",
    "Running",
    "Restoring",
    "Rebalancing",
    "RollingOut",
    "RollingBack",
    "Scaling",
    "Suspending",
    "Suspended",
    "Paused",
    "Draining",
    "Deleting",
    "Blocked",
    "Failed",
]
"""What an application is doing, in one word."""

ConditionType = Literal[
    "Ready",
    "Reconciling",
    "Stalled",
    "BrokersReachable",
    "TopicsReady",
    "TopologyCompatible",
    "StateRestored",
    "ScalingAllowed",
    "StorageHealthy",
    "RolledBack",
    "PodsCurrent",
    "ReconciliationPaused",
    "ApplicationIdUnique",
]
"""The conditions of a StreamsApp; a newer operator may have more."""


class Condition(StatusModel):
    """One aspect of an application's health, in the form Kubernetes' tools know."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """What the condition is about, for example `Ready`."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    """One word in CamelCase that says why, for programs."""
    message: Annotated[str, Field(max_length=32768)]
    """A sentence that says why and what to do, for people."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When `status` last changed."""
    observed_generation: Int64 | None = None
    """The generation of the manifest that the condition is about."""


Conditions = Annotated[
    tuple[Condition, ...],
    *map_list(64, "type"),
]


class TopologyStatus(StatusModel):
    """What the program's topology needs."""

    hash: str | None = None
    """A fingerprint of it."""
    subtopologies: Int32 | None = None
    """How many sub-topologies it has."""
    tasks: Int32 | None = None
    """How many tasks: no more threads than these have work."""
    compatibility: Literal["Compatible", "NeedsReset", "Incompatible", "Unknown"] | None = None
    """Whether the wanted topology can go on from the state of the running one."""


class GroupStatus(StatusModel):
    """The consumer group."""

    protocol: str | None = None
    """Its protocol."""
    state: str | None = None
    """Its state, in Kafka's words."""
    members: Int32 | None = None
    """How many members it has."""


class TasksStatus(StatusModel):
    """Tasks, as the pods tell of them."""

    active: Int32 | None = None
    """How many are worked on."""
    standby: Int32 | None = None
    """How many copies are kept up to date."""
    warmup: Int32 | None = None
    """How many are prepared on another replica."""
    restoring: Int32 | None = None
    """How many of the active ones are restoring state."""


class RestorationStatus(StatusModel):
    """State that is being restored."""

    remaining_records: Int64 | None = None
    """How many records of changelogs are left to read."""
    eta_seconds: Int64 | None = None
    """How long that will take, at the present rate."""


class LagStatus(StatusModel):
    """How far the application is behind: what waits in input and repartition topics."""

    total: Int64 | None = None
    """How many records."""
    trend: Literal["Growing", "Steady", "Shrinking"] | None = None
    """Where that is going."""


class InternalTopicStatus(StatusModel):
    """One internal topic."""

    name: Annotated[str, Field(min_length=1, max_length=249)]
    """Its name."""
    topic_id: str | None = None
    """Kafka's id of it: another one means that the topic was deleted and made anew."""
    partitions: Int32 | None = None
    """How many partitions it has."""
    replication_factor: Int32 | None = None
    """How many brokers hold each of them."""
    ok: bool
    """Whether it is as the topology needs it."""
    message: Annotated[str, Field(max_length=1024)] | None = None
    """What is wrong with it."""


class StorageStatus(StatusModel):
    """The volumes."""

    max_used_percent: Annotated[int, Field(ge=0, le=100, json_schema_extra={"format": "int32"})] | None = None
    """How full the fullest one is."""


class AutoscalingStatus(StatusModel):
    """What autoscaling thinks."""

    recommended: Int32 | None = None
    """How many replicas it would have."""
    reason: Annotated[str, Field(max_length=1024)] | None = None
    """Why."""
    blocked_by: Annotated[str, Field(max_length=1024)] | None = None
    """What keeps it from having them."""
    fewer_since: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Since when fewer replicas have been enough."""


class StreamsAppStatus(StatusModel):
    """What the operator has seen and done; written by the operator only."""

    observed_generation: ObservedGeneration | None = None
    """The generation of the manifest that this status is about; -1 until the operator has seen the resource."""
    lifecycle_state: LifecycleState | None = None
    """What the application is doing, in one word."""
    replicas: Int32 | None = None
    """How many pods there are."""
    ready_replicas: Int32 | None = None
    """How many pods run all the tasks assigned to them."""
    desired_replicas: Int32 | None = None
    """How many pods there are to be: as the spec or autoscaling says, and none while the application is suspended."""
    ready: Annotated[str, Field(max_length=32)] | None = None
    """Ready pods of those that there are to be, as in `2/3`, for kubectl."""
    selector: str | None = None
    """The label selector of the pods, for autoscalers."""
    current_revision: str | None = None
    """The revision of the manifest that pods are brought to."""
    stable_revision: str | None = None
    """The last revision that ran well: what an upgrade that fails goes back to."""
    topology: TopologyStatus | None = None
    """What the program's topology needs."""
    group: GroupStatus | None = None
    """The consumer group."""
    tasks: TasksStatus | None = None
    """Tasks, as the pods tell of them."""
    restoration: RestorationStatus | None = None
    """State that is being restored."""
    lag: LagStatus | None = None
    """How far the application is behind its input."""
    internal_topics: Annotated[
        tuple[InternalTopicStatus, ...],
        *map_list(10_000),
    ] = ()
    """The internal topics."""
    storage: StorageStatus | None = None
    """The volumes."""
    autoscaling: AutoscalingStatus | None = None
    """What autoscaling thinks."""
    conditions: Conditions = ()
    """The aspects of the application's health, one entry each."""
