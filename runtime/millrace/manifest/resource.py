"""The common part of all resources: API version and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from millrace.manifest.base_model import ManifestModel
from millrace.manifest.fields import ResourceName

ApiVersion = Literal["streams.millrace.dev/v1alpha1"]
API_VERSION: ApiVersion = "streams.millrace.dev/v1alpha1"
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
    """The resource's name and labels. Fields that only the API server writes are accepted and dropped."""

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

    @model_validator(mode="before")
    @classmethod
    def _without_server_fields(cls, value: object) -> object:
        if isinstance(value, Mapping):
            return {key: item for key, item in value.items() if key not in _WRITTEN_BY_THE_SERVER}
        return value


class Resource(ManifestModel):
    """A kind of the API group: `StreamsApp`, `StreamsReset` or `StreamsBackfill`."""

    plural: ClassVar[str]
    """The resource's name in URLs and in its CRD."""

    api_version: ApiVersion = API_VERSION
    """The version of this schema."""
    kind: str
    """The kind of resource."""
    metadata: ObjectMeta
    """The resource's name and labels."""
