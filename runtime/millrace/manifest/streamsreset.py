"""`StreamsReset`: one reset of one application, described once and done once.

A reset throws state away, so it is a separate resource and not a field of the application: its start, end and result can be
read later, and applying it again does nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from millrace.manifest.base_model import ManifestModel, StatusModel
from millrace.manifest.fields import Int64, ResourceName, TopicName, atomic_list, text
from millrace.manifest.resource import Resource
from millrace.manifest.rules import Rule
from millrace.manifest.streamsapp_status import Conditions, ObservedGeneration
from millrace.plan.reset import OffsetTarget, Start

_TIMESTAMP = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})"
TARGET_PATTERN = rf"^(earliest|latest|offset:[0-9]{{1,18}}|shift:[+-]?[0-9]{{1,18}}|timestamp:{_TIMESTAMP})$"
_TARGET_RULE = (
    "must be earliest, latest, offset:NUMBER, shift:NUMBER (records, back if negative) or timestamp:TIME, for example "
    "timestamp:2026-01-31T12:00:00Z"
)


def _is_a_time(target: str) -> bool:
    kind, _, value = target.partition(":")
    if kind != "timestamp":
        return True
    try:
        return datetime.fromisoformat(value).timestamp() >= 0
    except ValueError:
        return False


Target = Annotated[
    str,
    *text(TARGET_PATTERN, _TARGET_RULE, most=64),
    Rule(
        _is_a_time,
        "!self.startsWith('timestamp:') || timestamp(self.substring(10)) >= timestamp('1970-01-01T00:00:00Z')",
        "must name a time since 1970",
    ),
]


Timestamp = Annotated[
    str,
    *text(f"^{_TIMESTAMP}$", "must be a time, for example 2026-01-31T12:00:00Z", most=64),
    Rule(
        lambda value: _is_a_time(f"timestamp:{value}"),
        "timestamp(self) >= timestamp('1970-01-01T00:00:00Z')",
        "must name a time since 1970",
    ),
]


class AppReference(ManifestModel):
    """A StreamsApp in the same namespace."""

    name: ResourceName
    """Its name."""


class StreamsResetSpec(ManifestModel):
    """What to throw away, and where the application starts again. Immutable."""

    app_ref: AppReference
    """The application. It must be stopped: `state: suspended`."""
    to_offset: Target = "earliest"
    """Where it starts in its input topics: `earliest`, `latest`, `offset:NUMBER`, `shift:NUMBER` (records from its last
    position, back if negative) or `timestamp:TIME`, for example `timestamp:2026-01-31T12:00:00Z`."""
    input_topics: Annotated[
        tuple[TopicName, ...],
        Field(strict=False, max_length=256, json_schema_extra={"x-kubernetes-list-type": "set"}),
        Rule(lambda items: len(set(items)) == len(items), None, "must not have the same entry twice"),
    ] = ()
    """Further input topics whose offsets are set, in addition to the topology's."""
    delete_internal_topics: bool = True
    """Whether changelog and repartition topics are deleted. They are created again when the application starts."""
    delete_volumes: bool = True
    """Whether the replicas' volumes are deleted. If kept, their state does not match deleted topics."""
    dry_run: bool = False
    """Whether the reset is only described in the status, not done."""
    force: bool = False
    """Whether killed members are removed from the group instead of waiting for their session to time out."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda reset: reset.delete_volumes or not reset.delete_internal_topics,
            "self.deleteVolumes || !self.deleteInternalTopics",
            "deleteVolumes must be true when deleteInternalTopics is: state on the volumes would not match the new topics",
        ),
        Rule(
            None,
            "self == oldSelf",
            "is immutable: a reset is done once; for another one create another StreamsReset",
        ),
    )

    def target(self) -> OffsetTarget:
        """Return `toOffset` as an offset target.

        >>> StreamsResetSpec(app_ref=AppReference(name="a"), to_offset="shift:-10").target()
        OffsetTarget(start=<Start.SHIFT: 'shift'>, value=-10)
        """
        kind, _, value = self.to_offset.partition(":")
        match kind:
            case "earliest" | "latest":
                return OffsetTarget(Start(kind))
            case "timestamp":
                return OffsetTarget(Start.TIMESTAMP_MS, int(datetime.fromisoformat(value).timestamp() * 1000))
        return OffsetTarget(Start(kind), int(value))


class PartitionOffset(StatusModel):
    """The offset that one partition is set to."""

    topic: str
    """The topic."""
    partition: Annotated[int, Field(ge=0, json_schema_extra={"format": "int32"})]
    """The partition."""
    offset: Int64
    """The offset."""


class ResetResult(StatusModel):
    """The changes that a reset makes, or would make."""

    offsets: Annotated[tuple[PartitionOffset, ...], *atomic_list(1000)] = ()
    """The offsets that are set; the first thousand."""
    deleted_topics: Annotated[tuple[str, ...], *atomic_list(1000)] = ()
    """The topics that are deleted."""
    deleted_volumes: Annotated[tuple[str, ...], *atomic_list(1000)] = ()
    """The claims of the volumes that are deleted."""
    notes: Annotated[tuple[str, ...], *atomic_list(1000)] = ()
    """Resources that are left unchanged, where that may be surprising."""


class StreamsResetStatus(StatusModel):
    """The progress of the reset; only the operator writes it."""

    observed_generation: ObservedGeneration | None = None
    """The generation of the manifest that this status is about; -1 until the operator has seen the resource."""
    phase: Literal["Pending", "Waiting", "Running", "Succeeded", "Failed", "Refused"] | None = None
    """Its progress. `Refused`: the application is running or does not exist."""
    message: Annotated[str, Field(max_length=32_768)] | None = None
    """The reason and what to do, as a sentence."""
    start_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When it started."""
    completion_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When it finished or was given up."""
    plan: ResetResult | None = None
    """The planned changes, determined before anything is changed."""
    result: ResetResult | None = None
    """The changes that were made."""
    conditions: Conditions = ()
    """The aspects of its progress, with one entry each."""


class StreamsReset(Resource):
    """A reset of an application: its offsets, internal topics and volumes together, so that it starts from scratch."""

    plural: ClassVar[str] = "streamsresets"

    kind: Literal["StreamsReset"] = "StreamsReset"
    """The kind of resource."""
    spec: StreamsResetSpec
    """What to throw away."""
    status: StreamsResetStatus | None = None
    """The progress of the reset."""
