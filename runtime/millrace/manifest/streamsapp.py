"""`StreamsApp`: how one Kafka Streams application is to run, as its user writes it in a manifest.

The models mirror the manifest, one class per mapping. The larger parts of the spec have their own modules: `kafka`, `pods`,
`upgrade` and `observability`; the status is in `streamsapp_status`. Defaults are Kafka Streams' unless a description says
otherwise.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from millrace.config import GroupProtocol, ProcessingGuarantee
from millrace.durations import duration_ms
from millrace.manifest.base_model import KubernetesModel, ManifestModel
from millrace.manifest.fields import (
    ENTRYPOINT_PATTERN,
    LABEL_KEY_PATTERN,
    ApplicationId,
    Duration,
    Entrypoint,
    Image,
    Int32,
    Int64,
    LocalReference,
    ObjectName,
    PositiveQuantity,
    TopicName,
    atomic_list,
    int_or_string,
    map_list,
    text,
)
from millrace.manifest.kafka import InternalTopics, Kafka
from millrace.manifest.observability import Observability
from millrace.manifest.pods import PodTemplate
from millrace.manifest.resource import Resource
from millrace.manifest.rules import Rule
from millrace.manifest.streamsapp_status import StreamsAppStatus
from millrace.manifest.upgrade import Autoscaling, Drain, Handover, Upgrade

MemoryFraction = Annotated[
    float,
    Rule(lambda value: 0.05 <= value <= 0.9, "self >= 0.05 && self <= 0.9", "must be between 0.05 and 0.9"),
]


class Retention(ManifestModel):
    """What happens to volumes that no pod uses."""

    when_deleted: Literal["Retain", "Delete"] = "Retain"
    """When the StreamsApp is deleted. `spec.deletionPolicy: Purge` deletes them in any case."""
    when_scaled: Literal["Retain", "Delete"] = "Retain"
    """When there are fewer replicas."""


class Storage(ManifestModel):
    """Where each replica keeps its state stores."""

    size: PositiveQuantity = "1Gi"
    """The size of each replica's volume. It can grow, if the storage class allows that, but not shrink."""
    storage_class_name: ObjectName | None = None
    """The storage class of the volumes; the cluster's default if not given. Immutable."""
    retention: Retention = Retention()
    """What happens to volumes that no pod uses."""
    memory_fraction: MemoryFraction | None = None
    """The part of the container's memory limit that RocksDB may use for its caches and write buffers. `rocksdb.memory.max.bytes`
    in `kafka.config` takes precedence. Without either, or without a memory limit, it is 256 MiB."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            None,
            "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            "size must not shrink: volumes can only grow",
        ),
        Rule(
            None,
            "has(self.storageClassName) == has(oldSelf.storageClassName) && "
            "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
            "storageClassName is immutable: volumes cannot move to another class",
        ),
    )


INT_OR_PERCENT_PATTERN = "^(100|[1-9][0-9]?)%$|^[1-9][0-9]{0,4}$"
IntOrPercent = Annotated[
    str,
    *int_or_string(
        INT_OR_PERCENT_PATTERN, "must be a number of pods, at least 1, or a percentage such as 25%", most=8, least=1
    ),
]
"""A number of pods or a percentage of them."""


class PodDisruptionBudget(ManifestModel):
    """How many pods may be down when nodes are drained."""

    enabled: bool = True
    """Whether there is a PodDisruptionBudget."""
    max_unavailable: IntOrPercent = "1"
    """How many pods, or what percentage of them, may be down at a time."""


NetworkPeer = Annotated[
    KubernetesModel, Field(description="A Kubernetes NetworkPolicyPeer: pods, namespaces or addresses.")
]
IngressRule = Annotated[
    KubernetesModel,
    Field(description="A Kubernetes NetworkPolicyIngressRule: who may connect, and to which ports."),
]
EgressRule = Annotated[
    KubernetesModel,
    Field(description="A Kubernetes NetworkPolicyEgressRule: where the pods may connect, and to which ports."),
]


class NetworkPolicy(ManifestModel):
    """Who may connect to the pods, and where they may connect."""

    enabled: bool = True
    """Whether there is a NetworkPolicy. The operator, in its own namespace, and the application's own pods can always
    connect to the pods."""
    ingress_from: (
        Annotated[
            tuple[NetworkPeer, ...],
            *atomic_list(32),
        ]
        | None
    ) = None
    """Who else may connect to the port for health, status and metrics, for example Prometheus' namespace. Each is a Kubernetes
    NetworkPolicyPeer. If not given: everybody if there is a PodMonitor, otherwise nobody."""
    ingress: Annotated[
        tuple[IngressRule, ...],
        *atomic_list(32),
    ] = ()
    """Who may connect to other ports, for example one where the program serves queries of its stores. Each is a Kubernetes
    NetworkPolicyIngressRule."""
    egress: (
        Annotated[
            tuple[EgressRule, ...],
            *atomic_list(32),
        ]
        | None
    ) = None
    """Where the pods may connect, in addition to DNS and each other: at least to the brokers. Each is a Kubernetes
    NetworkPolicyEgressRule. Everywhere if not given."""


_HANDLER = ENTRYPOINT_PATTERN.removeprefix("^").removesuffix("$")
_OF_YOUR_OWN = "or your own handler as `package.module:name`"
Decision = Annotated[str, *text(f"^(Fail|Continue|{_HANDLER})$", f"must be Fail, Continue {_OF_YOUR_OWN}", most=253)]
"""What happens to a record that failed."""
ProductionDecision = Annotated[str, *text(f"^(Fail|{_HANDLER})$", f"must be Fail {_OF_YOUR_OWN}", most=253)]


class ErrorPolicy(ManifestModel):
    """What happens to records that fail: `Fail` stops the replica, `Continue` logs and skips the record. Your own handler is
    named as `package.module:name`."""  # noqa: D205, D209 (the text is one in the CRD)

    deserialization: Decision = "Fail"
    """Records that cannot be read."""
    processing: Decision = "Fail"
    """Records for which a processor raised an exception."""
    production: ProductionDecision = "Fail"
    """Records that cannot be written; Kafka Streams has no handler that skips these."""


class Processing(ManifestModel):
    """How records are processed."""

    guarantee: Annotated[ProcessingGuarantee, Field(strict=False)] = ProcessingGuarantee.AT_LEAST_ONCE
    """How often a record may take effect."""
    commit_interval: Duration | None = None
    """How often progress is committed; 30s by default, 100ms with `exactly_once_v2`."""
    dead_letter_topic: TopicName | None = None
    """The topic for records that fail, with the reason in their headers; none if not given."""
    error_policy: ErrorPolicy = ErrorPolicy()
    """What happens to records that fail."""


class Standby(ManifestModel):
    """Copies of the state on other replicas, which can take over without restoring."""

    replicas: Annotated[Int32, Field(le=16)] = 0
    """How many copies of each task's state exist in addition to the active one. If `kafka.groupProtocol` is `streams`, the
    operator sets this for the group in the brokers, which have their own limit, by default 2."""
    max_warmups: Annotated[Int32, Field(ge=1, le=10_000)] = 2
    """How many tasks may be warmed up at a time: their state is built on the new replica before they move. Without effect if
    `kafka.groupProtocol` is `streams`."""
    acceptable_recovery_lag: Int64 = 10_000
    """How many records a copy may be behind and still take over at once."""
    catch_up_timeout: Duration = "10m"
    """How long removing, replacing and evicting pods waits while copies that could take over elsewhere are missing."""


NodeLabel = Annotated[str, *text(LABEL_KEY_PATTERN, "must be a label such as `example.com/row`", least=1, most=317)]
_TAG_PATTERN = "^[A-Za-z0-9_-]{1,20}$"
ClientTags = Annotated[
    dict[str, NodeLabel],
    Field(max_length=4),
    Rule(
        lambda tags: all(tag != "rack" and re.match(_TAG_PATTERN, tag) for tag in tags),
        f"self.all(tag, tag != 'rack' && tag.matches('{_TAG_PATTERN}'))",
        "must have names of up to 20 letters, digits, `-` and `_`, other than rack",
    ),
]


class Racks(ManifestModel):
    """Where replicas run, from the labels of their nodes: copies of state are kept on other racks if possible."""

    node_label: NodeLabel = "topology.kubernetes.io/zone"
    """The label whose value is `client.rack` and `client.tag.rack` of the pods on a node."""
    tags: ClientTags = Field(default_factory=dict)
    """Further client tags that keep copies apart, each with the node label that its value comes from. With the rack, they
    are `rack.aware.assignment.tags`."""

    @property
    def labels_by_tag(self) -> dict[str, str]:
        """The label of each tag, starting with the rack's."""
        return {"rack": self.node_label, **self.tags}


SessionTimeout = Annotated[
    Duration,
    Rule(
        lambda value: 6_000 <= duration_ms(value) <= 1_800_000,
        "duration(self) >= duration('6s') && duration(self) <= duration('30m')",
        "must be between 6s and 30m, as brokers require",
    ),
]


class Membership(ManifestModel):
    """How replicas take part in the consumer group."""

    static: bool = True
    """Whether a replica keeps its place in the group, and so its tasks, while its pod restarts. Without effect if
    `kafka.groupProtocol` is `streams`: brokers do not serve static members then."""
    session_timeout: SessionTimeout | None = None
    """How long a replica may send no heartbeat before its tasks go to others; 45s by default. With static membership this is
    also how long a pod may take to restart and keep its tasks. If `kafka.groupProtocol` is `streams`, the operator sets this
    for the group in the brokers, which have their own limits, by default 45s to 60s."""


class App(ManifestModel):
    """The user's program."""

    entrypoint: Entrypoint
    """The function that returns the topology, as `package.module:callable`. It may take a `StreamsBuilder`, followed by
    the mapping `config`."""
    args: Annotated[
        tuple[str, ...],
        *atomic_list(256),
    ] = ()
    """Arguments of the program, in `sys.argv` after its name."""
    config: Annotated[
        dict[str, Any],
        WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
    ] = Field(default_factory=dict)
    """The program's own settings, passed to the entrypoint unchanged."""


_TRANSACTION_TIMEOUT = "10s"
"""Kafka Streams' `transaction.timeout.ms`."""
_TRANSACTION_SETTINGS = ("producer.transaction.timeout.ms", "transaction.timeout.ms")


def _commits_within_transaction(spec: StreamsAppSpec) -> bool:
    interval = spec.processing.commit_interval
    if spec.processing.guarantee is ProcessingGuarantee.AT_LEAST_ONCE or interval is None:
        return True
    return duration_ms(interval) < duration_ms(_TRANSACTION_TIMEOUT) or any(
        key in spec.kafka.config for key in _TRANSACTION_SETTINGS
    )


class StreamsAppSpec(ManifestModel):
    """What to run, in how many replicas, and with which Kafka."""

    application_id: ApplicationId
    """Kafka's `application.id`: the name of the consumer group and the prefix of the internal topics. Immutable."""
    image: Image
    """The container image, which contains the program and Millrace. `millrace dev up` runs the local program instead."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled; Kubernetes' default if not given."""
    image_pull_secrets: Annotated[
        tuple[LocalReference, ...],
        *map_list(16),
    ] = ()
    """Secrets with the credentials of the image's registry."""
    app: App
    """The program."""
    state: Literal["running", "suspended"] = "running"
    """Whether the application runs. `suspended` stops all pods and keeps volumes, topics and offsets."""
    restart_nonce: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] = 0
    """Changing this number restarts the pods, one after another."""
    replicas: Annotated[int, Field(ge=0, le=10_000, json_schema_extra={"format": "int32"})] = 1
    """How many instances run. Instances beyond the number of tasks are idle."""
    threads: Annotated[int, Field(ge=1, le=256, json_schema_extra={"format": "int32"})] = 1
    """How many stream threads each instance runs. Python runs them on one processor: for more throughput raise `replicas`."""
    kafka: Kafka
    """The Kafka cluster and the settings of its clients."""
    processing: Processing = Processing()
    """How records are processed."""
    standby: Standby = Standby()
    """Copies of the state on other replicas."""
    racks: Racks | None = None
    """Which node labels say where replicas run; if not given, their location does not affect the assignment of tasks."""
    membership: Membership = Membership()
    """How replicas take part in the consumer group."""
    internal_topics: InternalTopics = InternalTopics()
    """The changelog and repartition topics."""
    storage: Storage = Storage()
    """Where state stores are kept."""
    upgrade: Upgrade = Upgrade()
    """How a changed manifest reaches the pods."""
    handover: Handover | None = None
    """The application it takes over from, if its application id has been in use."""
    autoscaling: Autoscaling = Autoscaling()
    """How the number of replicas follows the load."""
    drain: Drain = Drain()
    """How a replica stops."""
    pod_disruption_budget: PodDisruptionBudget = PodDisruptionBudget()
    """How many pods may be down when nodes are drained."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """Who may connect to the pods, and where they may connect."""
    service_account_name: ObjectName | None = None
    """The pods' service account, whose token is not mounted; the operator creates one if not given."""
    pod_template: PodTemplate = PodTemplate()
    """Additions to the pods that the operator builds."""
    observability: Observability = Observability()
    """Where metrics, traces and logs go."""
    deletion_policy: Literal["Retain", "Purge", "Orphan"] = "Retain"
    """What is deleted with the StreamsApp. `Retain`: the pods; volumes and topics depend on `storage.retention` and
    `internalTopics.deletionPolicy`. `Purge`: volumes, internal topics and offsets too. `Orphan`: nothing, and the pods
    keep running."""

    @property
    def handover_is_rolling(self) -> bool:
        """Whether the application may join a group that still has other members."""
        return self.handover is not None and self.handover.allow_foreign_members

    @property
    def static_members(self) -> bool:
        """Whether replicas are static members, which the streams group protocol does not have."""
        return self.membership.static and self.kafka.group_protocol is GroupProtocol.CLASSIC

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            _commits_within_transaction,
            "self.processing.guarantee == 'at_least_once' || !has(self.processing.commitInterval) || "
            f"duration(self.processing.commitInterval) < duration('{_TRANSACTION_TIMEOUT}') || "
            f"(has(self.kafka.config) && {list(_TRANSACTION_SETTINGS)!r}.exists(key, key in self.kafka.config))",
            f"processing.commitInterval must be less than {_TRANSACTION_TIMEOUT} with processing.guarantee exactly_once_v2: the "
            f"brokers abort transactions that are open longer (kafka.config {_TRANSACTION_SETTINGS[0]} raises the limit)",
        ),
        Rule(
            lambda spec: spec.autoscaling.mode != "Auto" or spec.replicas <= (spec.autoscaling.max or 0),
            "self.autoscaling.mode != 'Auto' || !has(self.autoscaling.max) || self.replicas <= self.autoscaling.max",
            "replicas must not be more than autoscaling.max while autoscaling.mode is Auto",
        ),
    )


class StreamsApp(Resource):
    """A Kafka Streams application written in Python, and how it is to run."""

    plural: ClassVar[str] = "streamsapps"

    kind: Literal["StreamsApp"] = "StreamsApp"
    """The kind of resource."""
    spec: StreamsAppSpec
    """What is to run."""
    status: StreamsAppStatus | None = None
    """What the operator has seen and done."""
