"""The status of a `StreamsApp`: what the operator has seen and done.

The fields of one observation are grouped, so that a group can be missing (Kafka does not answer) while the others are reported.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from millrace.manifest.base_model import StatusModel
from millrace.manifest.fields import Int32, Int64, map_list

UNSEEN_GENERATION: Final = -1
"""The `observedGeneration` of a resource that the operator has not seen yet."""

MOST_PODS_LISTED: Final = 100
"""How many pods a status lists."""

ObservedGeneration = Annotated[int, Field(ge=UNSEEN_GENERATION, json_schema_extra={"format": "int64"})]
"""The generation of a manifest, or -1 if none has been seen yet."""

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
    "Backfilling",
    "Paused",
    "Draining",
    "Deleting",
    "Blocked",
    "Failed",
]
"""The state of an application, in one word."""

ConditionType = Literal[
    "Ready",
    "Reconciling",
    "Stalled",
    "BrokersReachable",
    "TopicsReady",
    "TopologyCompatible",
    "TopologyShared",
    "StateRestored",
    "StateReplicated",
    "ScalingAllowed",
    "StorageHealthy",
    "RolledBack",
    "PodsCurrent",
    "ReconciliationPaused",
    "ApplicationIdUnique",
]
"""The conditions of a StreamsApp; a newer operator may have more."""


class Condition(StatusModel):
    """One aspect of an application's health, in the form that Kubernetes' tools understand."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """What the condition is about, for example `Ready`."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    """The reason, as one word in CamelCase, for programs."""
    message: Annotated[str, Field(max_length=32768)]
    """The reason and what to do, as a sentence, for people."""
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
    """How many tasks it has, which limits how many threads have work."""
    compatibility: Literal["Compatible", "NeedsReset", "Incompatible", "Unknown"] | None = None
    """Whether the desired topology can continue from the running one's state."""


class GroupStatus(StatusModel):
    """The consumer group."""

    protocol: str | None = None
    """Its protocol."""
    state: str | None = None
    """Its state, as Kafka names it."""
    members: Int32 | None = None
    """How many members it has."""


class PodTasksStatus(StatusModel):
    """The tasks of one pod."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """The pod's name."""
    active: Int32
    """How many are active."""
    standby: Int32
    """How many copies of other pods' state it keeps up to date, warm-ups included."""
    restoring: Int32
    """How many of the active ones are restoring state."""


class TasksStatus(StatusModel):
    """Tasks, as reported by the pods."""

    active: Int32 | None = None
    """How many are active."""
    standby: Int32 | None = None
    """How many standby copies are kept up to date."""
    warmup: Int32 | None = None
    """How many are being warmed up on another replica."""
    restoring: Int32 | None = None
    """How many of the active ones are restoring state."""
    pods: Annotated[
        tuple[PodTasksStatus, ...],
        *map_list(MOST_PODS_LISTED),
    ] = ()
    """Which pod has how many; of many pods, only those with the lowest numbers are listed."""


class RestorationStatus(StatusModel):
    """State that is being restored."""

    remaining_records: Int64 | None = None
    """How many changelog records are left to read."""
    eta_seconds: Int64 | None = None
    """How long that will take at the current rate."""


class LagStatus(StatusModel):
    """How far the application lags behind in its input and repartition topics."""

    total: Int64 | None = None
    """How many records."""
    trend: Literal["Growing", "Steady", "Shrinking"] | None = None
    """Whether it grows or shrinks."""


class InternalTopicStatus(StatusModel):
    """One internal topic."""

    name: Annotated[str, Field(min_length=1, max_length=249)]
    """Its name."""
    topic_id: str | None = None
    """Kafka's id of the topic; it changes when the topic is deleted and created again."""
    partitions: Int32 | None = None
    """How many partitions it has."""
    replication_factor: Int32 | None = None
    """How many brokers hold each of them."""
    ok: bool
    """Whether it is as the topology requires."""
    message: Annotated[str, Field(max_length=1024)] | None = None
    """What is wrong with it."""


class StorageStatus(StatusModel):
    """The volumes."""

    max_used_percent: Annotated[int, Field(ge=0, le=100, json_schema_extra={"format": "int32"})] | None = None
    """How full the fullest volume is."""


class AutoscalingStatus(StatusModel):
    """What autoscaling recommends."""

    recommended: Int32 | None = None
    """How many replicas it recommends."""
    reason: Annotated[str, Field(max_length=1024)] | None = None
    """The reason."""
    blocked_by: Annotated[str, Field(max_length=1024)] | None = None
    """What prevents it from scaling."""
    fewer_since: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Since when fewer replicas have been enough."""
    fewer: Int32 | None = None
    """How many replicas have been enough at all times since then."""


class StreamsAppStatus(StatusModel):
    """What the operator has seen and done; only the operator writes it."""

    observed_generation: ObservedGeneration | None = None
    """The generation of the manifest that this status is about; -1 until the operator has seen the resource."""
    lifecycle_state: LifecycleState | None = None
    """The state of the application, in one word."""
    replicas: Int32 | None = None
    """How many pods there are."""
    ready_replicas: Int32 | None = None
    """How many pods run all the tasks assigned to them."""
    desired_replicas: Int32 | None = None
    """How many pods there should be, by the spec or autoscaling; 0 while the application is suspended."""
    ready: Annotated[str, Field(max_length=32)] | None = None
    """Ready and desired pods, as in `2/3`, for kubectl."""
    selector: str | None = None
    """The label selector of the pods, for autoscalers."""
    current_revision: str | None = None
    """The revision of the manifest that the pods are being moved to."""
    stable_revision: str | None = None
    """The last revision that ran well, to which a failed upgrade returns."""
    topology: TopologyStatus | None = None
    """What the program's topology needs."""
    group: GroupStatus | None = None
    """The consumer group."""
    tasks: TasksStatus | None = None
    """Tasks, as reported by the pods."""
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
    """What autoscaling recommends."""
    backfill: str | None = None
    """The StreamsBackfill for which the application is stopped."""
    conditions: Conditions = ()
    """The aspects of the application's health, with one entry each."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of a type; None if there is none yet."""
        return next((item for item in self.conditions if item.type == kind), None)
