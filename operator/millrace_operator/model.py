"""The data that observation, reconciliation and execution share: what is wanted, what was observed, and what to do.

An `ObservedApp` says what was observed, the pure `reconcile` turns it into a `Decision`, and the executor carries out its
actions in order. None of these keeps anything from one pass to the next: what must be remembered is in the resource's status or
in a child. So a pass may start from any state, including one left by a crash between two actions.

Children are plain mappings, as the API gives them.

What waits in the queue: the name of a resource, never what was seen of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

from millrace.instance_status import StreamsStatus
from millrace.manifest import (
    StreamsApp,
    StreamsAppSpec,
    StreamsAppStatus,
    StreamsBackfill,
    StreamsBackfillSpec,
    StreamsBackfillStatus,
    StreamsReset,
    StreamsResetSpec,
    StreamsResetStatus,
)
from millrace.plan.reset import ActiveMember
from millrace.records import TopicPartition

Object = Mapping[str, Any]
"""A Kubernetes object, existing or still to be created."""
Json = dict[str, Any]
"""An object, or a part of one, that is being built."""
SpecT = TypeVar("SpecT")
StatusT = TypeVar("StatusT")


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Which object of a namespace."""

    kind: str
    name: str

    @classmethod
    def of(cls, item: Object) -> Self:
        """Return the key of an object."""
        return cls(str(item["kind"]), str(item["metadata"]["name"]))


def app_named_by(operation: Object) -> str:
    """Return the name of the application that a reset or backfill is for, even if its spec is invalid; empty if it names none."""
    return str(((operation.get("spec") or {}).get("appRef") or {}).get("name") or "")


def labels_of(item: Object) -> Mapping[str, str]:
    """Return the labels of an object or a template; empty if it has none."""
    return item.get("metadata", {}).get("labels") or {}


@dataclass(frozen=True, slots=True)
class DesiredResource(Generic[SpecT, StatusT]):
    """One resource as it stands in the API."""

    resource: ClassVar[type[StreamsApp | StreamsReset | StreamsBackfill]]
    """Validates the manifest."""
    status_model: ClassVar[type[Any]]

    namespace: str
    name: str
    uid: str
    generation: int
    spec: SpecT | None
    """None if the spec is invalid; `problems` says why."""
    problems: tuple[str, ...] = ()
    status: StatusT | None = None
    """The status that was last written."""
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    deletion_time: float | None = None
    """When its deletion was requested, in seconds since the epoch; None unless `deleting`."""
    created: str = ""
    """The creation time, as the API server writes it."""
    manifest: Object = field(default_factory=dict)
    """The spec as the user wrote it (camelCase, without defaults): what pods are given."""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def ref(self) -> ResourceRef:
        """The resource's kind, namespace and name."""
        return ResourceRef(self.resource.__name__, self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class DesiredApp(DesiredResource[StreamsAppSpec, StreamsAppStatus]):
    """One `StreamsApp`."""

    resource = StreamsApp
    status_model = StreamsAppStatus


@dataclass(frozen=True, slots=True)
class DesiredReset(DesiredResource[StreamsResetSpec, StreamsResetStatus]):
    """One `StreamsReset`."""

    resource = StreamsReset
    status_model = StreamsResetStatus


@dataclass(frozen=True, slots=True)
class DesiredBackfill(DesiredResource[StreamsBackfillSpec, StreamsBackfillStatus]):
    """One `StreamsBackfill`."""

    resource = StreamsBackfill
    status_model = StreamsBackfillStatus


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic on the cluster."""

    id: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=dict)
    """`cleanup.policy`, `retention.ms`, `min.insync.replicas`, and any other that the plan sets."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember:
    """A member of the consumer group. Each thread of a pod of ours is one, with the pod's name as `instance_id`."""

    member_id: str
    instance_id: str | None
    host: str = ""
    client_id: str = ""
    """For a static member, that of the first member that joined with this instance id."""
    static_id: str | None = None
    """Its full instance id."""

    def __str__(self) -> str:
        """Return its client id with its host, and its instance id if it is static."""
        static = f", static {self.static_id}" if self.static_id else ""
        return f"{self.client_id or self.member_id} ({self.host}{static})"


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """The application's consumer group."""

    state: str
    """Kafka's: Stable, PreparingRebalance, CompletingRebalance, Empty, Dead; with the streams protocol also NotReady, Assigning,
    Reconciling."""
    protocol: str = "classic"
    members: tuple[ConsumerGroupMember, ...] = ()


@dataclass(frozen=True, slots=True)
class KafkaState:
    """What the brokers know about an application, asked with the application's own credentials."""

    error: str | None = None
    """Why the brokers could not be asked, in words for the user; everything else is then empty."""
    reason: str = ""
    """The error in one CamelCase word: Unreachable, AuthenticationFailed, NotAuthorized, BadConfiguration, SecretMissing,
    TokenEndpointNotAllowed."""
    topics: Mapping[str, Topic] = field(default_factory=dict)
    """The existing internal and input topics of the plans among the application's ConfigMaps."""
    internal: frozenset[str] = frozenset()
    """All internal topics that the operator knows of, including those of plans whose ConfigMaps are gone; they may not exist."""
    asked: frozenset[str] | None = None
    """The topics that were asked about, according to the plans known then; None if all were."""
    brokers: int = 0
    cluster_id: str | None = None
    """What the brokers call their cluster."""
    group: ConsumerGroup | None = None
    lag: int | None = None
    """Records of the input and repartition topics that are not yet committed; None if not known."""
    brokers_assign: bool | None = None
    """Whether the brokers serve the streams group protocol; None unless the manifest asks for it."""
    wrong_group_settings: Mapping[str, str | None] = field(default_factory=dict)
    """The settings that the manifest wants the group to have in the brokers and that it does not have; None for their default."""
    group_settings_error: str | None = None
    """Why the brokers do not tell the group's settings, although the manifest wants some."""

    @property
    def members(self) -> tuple[ConsumerGroupMember, ...]:
        """The group's members, as far as known."""
        return () if self.group is None else self.group.members


RenewalPermit = Literal["Never", "Waits", "Now"]
"""Whether the operator may replace an application's pods because its own template has changed: never, not yet, or now."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """The progress of replacing pods of the right revision that were made from another version's template."""

    left: int
    """How many pods were made from another template."""
    coming: bool
    """Whether a replaced pod is not running yet."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another StreamsApp on the same brokers."""

    namespace: str
    name: str
    uid: str
    created: str
    """The creation time, as the API server writes it; times in this form can be sorted."""
    same_id: bool
    """Whether it has the same `applicationId`."""
    runs: bool
    """Whether it has pods or should have some."""
    backfill: str | None = None
    """The StreamsBackfill that keeps it stopped, because it writes to the same group and topics, or did so in part."""
    takes_over: bool = False
    """Whether its `handover` names the application whose neighbour it is."""
    topics: frozenset[str] = frozenset()
    """Topics that its plans name; only filled while the application is being deleted."""

    def __str__(self) -> str:
        """Return its namespace and name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node on which a pod of the application runs."""

    labels: Mapping[str, str]
    ready: bool = True
    """Whether its kubelet reports that it is."""


@dataclass(frozen=True, slots=True)
class HoldingBackfill:
    """A StreamsBackfill that keeps the application stopped."""

    name: str
    has_ended: bool = False
    """Whether it has left half a state, and will do no more about it."""
    then: str | None = None
    """Another one that has left half a state, which keeps the application stopped after this one."""


@dataclass(frozen=True, slots=True)
class ObservedApp:
    """Everything that a pass has observed."""

    now: float
    """Seconds since the epoch."""
    objects: Mapping[Key, Object] = field(default_factory=dict)
    """The app's children: all objects with its label in its namespace."""
    kafka: KafkaState = KafkaState(error="not asked yet", reason="Unknown")
    instances: Mapping[str, StreamsStatus] = field(default_factory=dict)
    """By pod name, without pods that did not answer."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """By Job name: what the finished plan Job printed (its plan as JSON), or why it failed."""
    storage_class_expandable: bool | None = None
    """Whether claims of the application's storage class may grow; None if that is not known."""
    pod_monitors: bool = False
    """Whether the cluster knows `PodMonitor`."""
    neighbours: tuple[Neighbour, ...] = ()
    """Other StreamsApps with the same `applicationId`, and while the application is being deleted all others, on its brokers."""
    operator_namespace: str = "default"
    """Where the operator runs."""
    taken: Mapping[Key, str] = field(default_factory=dict)
    """Names that are taken by other people's objects, as earlier passes found, with a description of each object."""
    nodes: Mapping[str, SeenNode] = field(default_factory=dict)
    """The nodes that were looked at, by name: of pods that are not ready, or are to be told where they run."""
    lost_pods: frozenset[str] = frozenset()
    """The uids of pods whose nodes no longer exist, or are marked as out of service: nothing runs there any more."""
    backfill: HoldingBackfill | None = None
    """The StreamsBackfill that keeps the application stopped."""
    renewal: RenewalPermit = "Never"
    """Whether this application may have its pods renewed."""

    @property
    def claimants(self) -> tuple[Neighbour, ...]:
        """The other StreamsApps with the same group and internal topics."""
        return tuple(item for item in self.neighbours if item.same_id)


@dataclass(frozen=True, slots=True)
class Apply:
    """Create an object, or update exactly the one that was seen; other people's objects are left alone."""

    object: Object
    uid: str | None = None
    """The uid of the object that was seen; None if there was none."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete exactly the object that was seen. Idempotent: succeeds if it is already deleted."""

    key: Key
    uid: str
    orphan: bool = False
    """Leave its dependents (a StatefulSet's pods) as they are."""


@dataclass(frozen=True, slots=True)
class Release:
    """Remove the application's uid and owner reference from exactly the object that was seen, so that another may take it."""

    key: Key
    uid: str
    retained: bool = False
    """Whether it is kept so that the next application of this name can be compared with it."""


@dataclass(frozen=True, slots=True)
class ResizeClaim:
    """Request a larger volume."""

    name: str
    uid: str
    size: str


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Add the operator's finalizer to the resource, or remove it."""

    present: bool


@dataclass(frozen=True, slots=True)
class ProvisionTopics:
    """Create some of a plan's internal topics."""

    plan: str
    """The plan's JSON, which has the settings of the topics."""
    names: tuple[str, ...]
    replication_factor: int = -1
    """Replicas of each partition; -1 for the brokers' default."""


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    """Delete internal topics."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoveMembers:
    """Remove members from the group whose processes are gone."""

    names: tuple[str, ...]
    """The pods; of dynamic members, the client ids."""
    member_ids: tuple[str, ...]
    """The exact members that were seen: whoever has replaced one stays."""


@dataclass(frozen=True, slots=True)
class ConfigureGroup:
    """Change settings of the group in the brokers."""

    settings: Mapping[str, str | None]
    """The new values; None for the brokers' default."""


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Delete the consumer group with its offsets."""

    backfill: str | None = None
    """The uid of a backfill that has ended: the groups by which its attempts knew of each other are deleted instead."""


@dataclass(frozen=True, slots=True)
class DrainPod:
    """Tell the instance in a pod, by an annotation, to leave the group and hand over its tasks."""

    pod: str
    uid: str
    since: int
    """When it was first told, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class TellNodeLabels:
    """Tell the instance in a pod, by an annotation, on what kind of node it runs."""

    pod: str
    uid: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SetOffsets:
    """Set where the group continues reading; it must have no members except those that are leaving."""

    leaving: tuple[ActiveMember, ...]
    """Members that were killed and did not leave the group."""
    offsets: Mapping[TopicPartition, int]


Action = (
    Apply
    | Delete
    | Release
    | ResizeClaim
    | SetFinalizer
    | ProvisionTopics
    | DeleteTopics
    | RemoveMembers
    | ConfigureGroup
    | DeleteGroup
    | DrainPod
    | TellNodeLabels
)
KafkaAction = ProvisionTopics | DeleteTopics | RemoveMembers | ConfigureGroup | DeleteGroup | SetOffsets


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the user should see in `kubectl describe`."""

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a pass has decided.

    The actions are carried out in order, and status and events are written after them; if an action fails, the rest is left to
    the next pass.
    """

    actions: Sequence[Action] = ()
    status: StreamsAppStatus | None = None
    """The status to be written if it differs from the one read; None leaves it."""
    events: Sequence[Event] = ()
    again_after: float | None = None
    """Seconds after which to look again even if nothing happens; None for the resync interval."""
    renewal: Renewal | None = None
    """What the application needs a renewal permit for; None if it needs none."""


@dataclass(frozen=True, slots=True)
class AppRevision:
    """One revision of an application: all that its children are made from.

    Pods, the plan Job and the revision's ConfigMaps follow the spec of their revision, which in a rollback is not the newest.
    The rest (disruption budget, network policies, service account, pod monitor) follows the current spec.
    """

    namespace: str
    name: str
    revision: str
    """Ten hexadecimal digits."""
    spec: StreamsAppSpec
    uid: str = ""
    """The StreamsApp's; only pods need it."""


class ResourceRef(NamedTuple):
    """One resource that the operator serves."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"
