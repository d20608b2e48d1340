"""The status of a `StreamsApp`: what the operator has seen and done. It grows with the operator."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from millrace.manifest.model import StatusModel


class Condition(StatusModel):
    """One aspect of an application's health, in the form Kubernetes' tools know."""

    type: Annotated[str, Field(max_length=316)]
    """What the condition is about, for example `Ready`."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(max_length=1024)]
    """One word in CamelCase that says why, for programs."""
    message: Annotated[str, Field(max_length=32768)]
    """A sentence that says why and what to do, for people."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When `status` last changed."""
    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] | None = None
    """The generation of the manifest that the condition is about."""


class StreamsAppStatus(StatusModel):
    """What the operator has seen and done; written by the operator only."""

    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] | None = None
    """The generation of the manifest that this status is about."""
    lifecycle_state: str | None = None
    """What the application is doing, in one word, for example `Running`."""
    replicas: Annotated[int, Field(ge=0, json_schema_extra={"format": "int32"})] | None = None
    """How many pods there are."""
    ready_replicas: Annotated[int, Field(ge=0, json_schema_extra={"format": "int32"})] | None = None
    """How many pods run all the tasks assigned to them."""
    selector: str | None = None
    """The label selector of the pods, for autoscalers."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            strict=False,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    """The aspects of the application's health, one entry each."""
