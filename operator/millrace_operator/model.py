"""The words that observation, reconciliation and execution share: what is wanted, what was seen, what is to be done.

`observe` fills `Observed`, the pure `reconcile` answers it with a `Decision`, and the hands carry its actions out in their
order. None of these keeps anything from one pass to the next: what must be remembered stands in the resource's status or in a
child. So a pass may start from anything, also from what a crash between two actions has left.

Children are plain mappings, as the API gives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from millrace.manifest import StreamsAppSpec
from millrace.manifest.group import GROUP
from millrace.manifest.status import StreamsAppStatus

FINALIZER: Final = f"{GROUP}/finalizer"
"""What keeps a StreamsApp until its deletion policy is carried out."""

Object = Mapping[str, Any]
"""A Kubernetes object, or what is to become one."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Which object of a namespace."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Desired:
    """One `StreamsApp` as it stands in the API."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: StreamsAppSpec | None
    """None if the spec breaks a rule: `problems` says which."""
    manifest: Object = field(default_factory=dict)
    """The spec as the user wrote it (camelCase, without defaults): what pods are given."""
    problems: tuple[str, ...] = ()
    status: StreamsAppStatus | None = None
    """The status written last."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    deletion_time: float | None = None
    """When its deletion was asked for, in seconds since the epoch; None unless `deleting`."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic on the cluster."""

    id: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=dict)
    """`cleanup.policy`, `retention.ms`, `min.insync.replicas`, and any other that the plan sets."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the consumer group; `instance_id` is a pod's name for those of ours, of which each thread is a member."""

    member_id: str
    instance_id: str | None
    host: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """The application's consumer group."""

    state: str
    """Kafka's: Stable, PreparingRebalance, CompletingRebalance, Empty, Dead."""
    protocol: str = "classic"
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class KafkaState:
    """What the application's brokers say of it, asked with its own credentials."""

    error: str | None = None
    """Why nothing could be asked, in words for the user; all else is empty then."""
    reason: str = ""
    """The error in one CamelCase word: Unreachable, AuthenticationFailed, NotAuthorized, BadConfiguration, SecretMissing."""
    topics: Mapping[str, Topic] = field(default_factory=dict)
    """Those internal and input topics of the plans among the app's ConfigMaps that exist."""
    asked: frozenset[str] | None = None
    """The topics that were asked for, by the plans that were known then; None for all that there could be."""
    brokers: int = 0
    group: Group | None = None
    lag: int | None = None
    """Records of the input topics that are not yet committed; None if not known."""


@dataclass(frozen=True, slots=True)
class Instance:
    """What a pod's `/status` says; see docs/operations.md."""

    state: str
    """KafkaStreams' state: RUNNING, REBALANCING, …, or DRAINED once it was told to leave and has handed its tasks over."""
    error: str | None = None
    topology_hash: str | None = None
    ready: bool = False
    active: int = 0
    standby: int = 0
    warmup: int = 0
    restoring: int = 0
    remaining_records: int | None = 0
    """Changelog records left to restore; None if not known yet."""
    eta_seconds: float | None = None
    lag: int | None = None
    records_per_second: float | None = None
    busy_ratio: float | None = None
    """Which part of their time the stream threads process rather than wait, from 0 to 1."""
    storage_used_percent: float | None = None
    credentials_stale: bool = False
    rebalances: int = 0


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a pass has seen."""

    now: float
    """Seconds since the epoch."""
    objects: Mapping[Key, Object] = field(default_factory=dict)
    """The app's children: all objects with its label in its namespace."""
    kafka: KafkaState = KafkaState(error="not asked yet", reason="Unknown")
    instances: Mapping[str, Instance] = field(default_factory=dict)
    """By pod name; pods that did not answer are left out."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """By Job name: what the finished plan Job printed (its plan as JSON), or why it failed."""
    storage_class_expandable: bool | None = None
    """Whether claims of the app's storage class may grow; None if that could not be seen."""
    pod_monitors: bool = False
    """Whether the cluster knows `PodMonitor`."""
    operator_namespace: str = "default"
    """Where the operator runs."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Create an object or bring it to what is wanted, by server-side apply."""

    object: Object


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the very object that was seen; gone already is well done."""

    key: Key
    uid: str
    orphan: bool = False
    """Leave its dependents (a StatefulSet's pods) as they are."""


@dataclass(frozen=True, slots=True)
class ResizeClaim:
    """Ask for a larger volume."""

    name: str
    uid: str
    size: str


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Put the operator's finalizer on the resource, or take it off."""

    present: bool


@dataclass(frozen=True, slots=True)
class ProvisionTopics:
    """Create those internal topics of a plan that are named."""

    plan: str
    """The plan's JSON; its topic settings are those to be created with."""
    names: tuple[str, ...]
    replication_factor: int = -1
    """How many brokers are to hold each partition; -1 for the brokers' default."""


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    """Delete internal topics."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoveMembers:
    """Let static members leave the group whose pods are gone for good."""

    instance_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Delete the consumer group with its offsets."""


@dataclass(frozen=True, slots=True)
class DrainPod:
    """Tell the instance in a pod to leave the group and hand its tasks over."""

    pod: str
    uid: str


Action = (
    Apply
    | Delete
    | ResizeClaim
    | SetFinalizer
    | ProvisionTopics
    | DeleteTopics
    | RemoveMembers
    | DeleteGroup
    | DrainPod
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something the user should find in `kubectl describe`."""

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a pass has come to.

    The actions are done in order, and the status and events are written after them; if an action fails, the rest is left to
    the next pass.
    """

    actions: Sequence[Action] = ()
    status: StreamsAppStatus | None = None
    """The status to be written if it differs from the one read; None leaves it."""
    events: Sequence[Event] = ()
    again_after: float | None = None
    """Seconds after which to look again though nothing was reported; None for the resync interval."""
