"""`StreamsApp`: how one Kafka Streams application is to run, as its user writes it in a manifest.

The models are grouped as the manifest is, one class per mapping, so that a new field has one obvious place. Defaults are
those of Kafka Streams unless its description says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from millrace.config import ProcessingGuarantee
from millrace.manifest.fields import (
    ApplicationId,
    BootstrapServer,
    Duration,
    Entrypoint,
    Image,
    KafkaConfig,
    Quantity,
    ResourceName,
)
from millrace.manifest.model import ManifestModel
from millrace.manifest.status import StreamsAppStatus

API_VERSION: Literal["streams.millrace.dev/v1alpha1"] = "streams.millrace.dev/v1alpha1"
GROUP, _, VERSION = API_VERSION.partition("/")

_WRITTEN_BY_THE_SERVER = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
    }
)


class ObjectMeta(ManifestModel):
    """The resource's name and labels; what only the API server writes is accepted and left out."""

    name: ResourceName
    """The resource's name, unique in its namespace; pods and static members are named after it."""
    namespace: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """The namespace."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations."""
    uid: str | None = None
    """The id the API server gave to the resource."""
    generation: int | None = None
    """How many times the spec has been changed."""


class App(ManifestModel):
    """The user's program."""

    entrypoint: Entrypoint
    """The function that returns the topology, as `package.module:callable`. It may take a `StreamsBuilder`, and after it
    the mapping `config`."""
    args: Annotated[tuple[str, ...], Field(strict=False, max_length=256)] = ()
    """What the program finds in `sys.argv`, after its name."""
    config: Annotated[
        dict[str, Any],
        WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
    ] = Field(default_factory=dict)
    """Any settings of the program's own, handed to the entrypoint as they are."""


class Kafka(ManifestModel):
    """The Kafka cluster and the settings of Kafka Streams and its clients."""

    bootstrap_servers: Annotated[
        tuple[BootstrapServer, ...],
        Field(strict=False, min_length=1, max_length=64, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    ]
    """Addresses (host:port) of some of the brokers. `millrace dev up` does not use them but a Kafka of its own."""
    config: KafkaConfig = Field(default_factory=dict)
    """Settings under Kafka's dotted names, for Kafka Streams or (with the prefixes `consumer.`, `producer.`, …) its clients.
    Values are strings or integers."""


class Processing(ManifestModel):
    """How records are processed."""

    guarantee: Annotated[ProcessingGuarantee, Field(strict=False)] = ProcessingGuarantee.AT_LEAST_ONCE
    """How often the effects of a record may show."""
    commit_interval: Duration | None = None
    """How often progress is committed; 30s by default, 100ms with `exactly_once_v2`."""


class Storage(ManifestModel):
    """Where each replica keeps its state stores."""

    size: Quantity = "1Gi"
    """The size of each replica's volume."""
    storage_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """The class of the volumes; the cluster's default if not given."""


class StreamsAppSpec(ManifestModel):
    """What is to run, how often, and against which Kafka."""

    application_id: ApplicationId
    """Kafka's `application.id`: the name of the consumer group and the prefix of the internal topics. Immutable."""
    image: Image
    """The container image with the program and Millrace in it. `millrace dev up` runs the program from the machine instead."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled; Kubernetes' default if not given."""
    app: App
    """The program."""
    replicas: Annotated[int, Field(ge=0, le=10_000, json_schema_extra={"format": "int32"})] = 1
    """How many instances run. More than there are tasks are idle."""
    threads: Annotated[int, Field(ge=1, le=256, json_schema_extra={"format": "int32"})] = 1
    """How many stream threads each instance runs."""
    kafka: Kafka
    """The Kafka cluster and the settings of its clients."""
    processing: Processing = Processing()
    """How records are processed."""
    storage: Storage = Storage()
    """Where state stores are kept."""


def _without_server_fields(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: item for key, item in value.items() if key not in _WRITTEN_BY_THE_SERVER}
    return value


class StreamsApp(ManifestModel):
    """A Kafka Streams application written in Python, and how it is to run."""

    plural: ClassVar[str] = "streamsapps"

    api_version: Literal["streams.millrace.dev/v1alpha1"] = API_VERSION
    """The version of this schema."""
    kind: Literal["StreamsApp"] = "StreamsApp"
    """The kind of resource."""
    metadata: Annotated[ObjectMeta, BeforeValidator(_without_server_fields)]
    """The resource's name and labels."""
    spec: StreamsAppSpec
    """What is to run."""
    status: StreamsAppStatus | None = None
    """What the operator has seen and done."""
