"""The metadata of a resource, as far as Millrace uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from millrace.manifest.fields import ResourceName
from millrace.manifest.model import ManifestModel

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


def _without_server_fields(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: item for key, item in value.items() if key not in _WRITTEN_BY_THE_SERVER}
    return value


Metadata = Annotated[ObjectMeta, BeforeValidator(_without_server_fields)]
"""Metadata as it is written, or read back from a cluster."""
