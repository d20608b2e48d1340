"""`StreamsApp`: how one Kafka Streams application is to run, as its user writes it in a manifest.

The models are grouped as the manifest is, one class per mapping and one module per subject, so that a new field has one obvious
place. Defaults are those of Kafka Streams unless its description says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from millrace.config import ProcessingGuarantee
from millrace.manifest.fields import ApplicationId, Entrypoint, Image, ObjectName, duration_ms
from millrace.manifest.group import API_VERSION, ApiVersion
from millrace.manifest.internal_topics import InternalTopics
from millrace.manifest.kafka import Kafka
from millrace.manifest.lists import by_key, in_order
from millrace.manifest.metadata import Metadata
from millrace.manifest.model import ManifestModel, Rule
from millrace.manifest.observability import Observability
from millrace.manifest.pods import PodTemplate
from millrace.manifest.processing import Membership, Processing, Standby
from millrace.manifest.protection import NetworkPolicy, PodDisruptionBudget
from millrace.manifest.references import LocalReference
from millrace.manifest.status import StreamsAppStatus
from millrace.manifest.storage import Storage
from millrace.manifest.upgrade import Autoscaling, Drain, Handover, Upgrade


class App(ManifestModel):
    """The user's program."""

    entrypoint: Entrypoint
    """The function that returns the topology, as `package.module:callable`. It may take a `StreamsBuilder`, and after it
    the mapping `config`."""
    args: Annotated[
        tuple[str, ...],
        *in_order(256),
    ] = ()
    """What the program finds in `sys.argv`, after its name."""
    config: Annotated[
        dict[str, Any],
        WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
    ] = Field(default_factory=dict)
    """Any settings of the program's own, handed to the entrypoint as they are."""


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
    """What is to run, how often, and against which Kafka."""

    application_id: ApplicationId
    """Kafka's `application.id`: the name of the consumer group and the prefix of the internal topics. Immutable."""
    image: Image
    """The container image with the program and Millrace in it. `millrace dev up` runs the program from the machine instead."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled; Kubernetes' default if not given."""
    image_pull_secrets: Annotated[
        tuple[LocalReference, ...],
        *by_key(16),
    ] = ()
    """Secrets with the credentials of the image's registry."""
    app: App
    """The program."""
    state: Literal["running", "suspended"] = "running"
    """Whether it runs. `suspended` stops all pods and keeps volumes, topics and offsets."""
    restart_nonce: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] = 0
    """Any other number than before restarts the pods, one after another."""
    replicas: Annotated[int, Field(ge=0, le=10_000, json_schema_extra={"format": "int32"})] = 1
    """How many instances run. More than there are tasks are idle."""
    threads: Annotated[int, Field(ge=1, le=256, json_schema_extra={"format": "int32"})] = 1
    """How many stream threads each instance runs."""
    kafka: Kafka
    """The Kafka cluster and the settings of its clients."""
    processing: Processing = Processing()
    """How records are processed."""
    standby: Standby = Standby()
    """Copies of the state on other replicas."""
    membership: Membership = Membership()
    """How replicas belong to the consumer group."""
    internal_topics: InternalTopics = InternalTopics()
    """The changelog and repartition topics."""
    storage: Storage = Storage()
    """Where state stores are kept."""
    upgrade: Upgrade = Upgrade()
    """How a changed manifest reaches the pods."""
    handover: Handover | None = None
    """Whose place the application takes, if another one has its application id until now."""
    autoscaling: Autoscaling = Autoscaling()
    """How the number of replicas follows the load."""
    drain: Drain = Drain()
    """How a replica stops."""
    pod_disruption_budget: PodDisruptionBudget = PodDisruptionBudget()
    """How many pods may be away when nodes are drained."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """Who may talk to the pods, and to whom they may talk."""
    service_account_name: ObjectName | None = None
    """The pods' service account, of which they get no token; one of the operator's making if not given."""
    pod_template: PodTemplate = PodTemplate()
    """What the pods have beyond what the operator gives them."""
    observability: Observability = Observability()
    """Where metrics, traces and logs go."""
    deletion_policy: Literal["Retain", "Purge", "Orphan"] = "Retain"
    """What is deleted with the StreamsApp. `Retain`: the pods; volumes and topics as `storage.retention` and
    `internalTopics.deletionPolicy` say. `Purge`: volumes, internal topics and offsets too. `Orphan`: nothing, pods run on."""

    @property
    def handover_is_rolling(self) -> bool:
        """Whether it may join a group in which others are."""
        return self.handover is not None and self.handover.allow_foreign_members

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            _commits_within_transaction,
            "self.processing.guarantee == 'at_least_once' || !has(self.processing.commitInterval) || "
            f"duration(self.processing.commitInterval) < duration('{_TRANSACTION_TIMEOUT}') || "
            f"(has(self.kafka.config) && {list(_TRANSACTION_SETTINGS)!r}.exists(key, key in self.kafka.config))",
            f"processing.commitInterval must be less than {_TRANSACTION_TIMEOUT} with processing.guarantee exactly_once_v2: the "
            f"brokers abort transactions that are open longer (kafka.config {_TRANSACTION_SETTINGS[0]} lets them live longer)",
        ),
        Rule(
            lambda spec: spec.autoscaling.mode != "Auto" or spec.replicas <= (spec.autoscaling.max or 0),
            "self.autoscaling.mode != 'Auto' || !has(self.autoscaling.max) || self.replicas <= self.autoscaling.max",
            "replicas must not be more than autoscaling.max while autoscaling.mode is Auto",
        ),
    )


class StreamsApp(ManifestModel):
    """A Kafka Streams application written in Python, and how it is to run."""

    plural: ClassVar[str] = "streamsapps"

    api_version: ApiVersion = API_VERSION
    """The version of this schema."""
    kind: Literal["StreamsApp"] = "StreamsApp"
    """The kind of resource."""
    metadata: Metadata
    """The resource's name and labels."""
    spec: StreamsAppSpec
    """What is to run."""
    status: StreamsAppStatus | None = None
    """What the operator has seen and done."""
