"""The topology plan: all that a cluster, the operator or a reviewer must know of a topology, as JSON.

Provisioning, `millrace plan`, `millrace dev` and the operator work from this alone; none of them imports user code. The
hash covers what decides whether running state still fits: ids, topics, stores and their formats; neither topic configuration
nor where dead letters go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel

from millrace.topology.built import BuiltTopology, Subtopology


class _PlanModel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")


class PlannedStore(_PlanModel):
    """A state store and the topic that backs it."""

    name: str
    kind: str
    value_format: str
    persistent: bool
    changelog_topic: str | None = None
    changelog_is_source: bool = False
    """The store is restored from an input topic, which is the user's and is never created, changed or deleted."""


class PlannedRepartitionTopic(_PlanModel):
    """A repartition topic; without a count it gets the largest of the topics its writers read."""

    name: str
    partitions: int | None = None
    enforced: bool = False
    config: Mapping[str, str] = Field(default_factory=dict)


class PlannedChangelogTopic(_PlanModel):
    """A changelog topic to be created, with as many partitions as the sub-topology has tasks."""

    name: str
    config: Mapping[str, str] = Field(default_factory=dict)


class PlannedSubtopology(_PlanModel):
    """What the tasks of one sub-topology read, write and keep."""

    id: int
    source_topics: tuple[str, ...] = ()
    source_patterns: tuple[str, ...] = ()
    sink_topics: tuple[str, ...] = ()
    stores: tuple[PlannedStore, ...] = ()
    repartition_topics: tuple[PlannedRepartitionTopic, ...] = ()
    changelog_topics: tuple[PlannedChangelogTopic, ...] = ()
    copartition_groups: tuple[tuple[str, ...], ...] = ()


class PlannedGlobalStore(_PlanModel):
    """A store that every instance fills with the whole of one topic."""

    name: str
    topic: str
    kind: str
    value_format: str
    persistent: bool


class TopologyPlan(_PlanModel):
    """The plan of one application."""

    version: int = 1
    application_id: str
    hash: str
    """SHA-256, hexadecimal, over the canonical JSON of what compatibility of state depends on."""
    subtopologies: tuple[PlannedSubtopology, ...] = ()
    global_stores: tuple[PlannedGlobalStore, ...] = ()
    dead_letter_topic: str | None = None
    """An output topic of the user's that every sub-topology may write (`errors.dead.letter.queue.topic.name`)."""

    @model_serializer(mode="wrap")
    def _serialized(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the dead-letter topic out if there is none: plans without it read as they did before it was known."""
        absent = {"deadLetterTopic", "dead_letter_topic"} if self.dead_letter_topic is None else set()
        return {name: value for name, value in serialize(self).items() if name not in absent}

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the JSON with camelCase names."""
        return self.model_dump_json(by_alias=True, indent=indent)

    @classmethod
    def from_json(cls, text: str | bytes) -> TopologyPlan:
        """Read a plan that `to_json` wrote."""
        return cls.model_validate_json(text)


def plan_of(topology: BuiltTopology) -> TopologyPlan:
    """Return the plan of a built topology."""
    subtopologies = tuple(_planned(subtopology) for subtopology in topology.subtopologies)
    stores = _planned_global_stores(topology.global_subtopology)
    return TopologyPlan(
        application_id=topology.application_id,
        hash=_hash(topology.application_id, subtopologies, stores),
        subtopologies=subtopologies,
        global_stores=stores,
        dead_letter_topic=topology.dead_letter_topic,
    )


def _planned(subtopology: Subtopology) -> PlannedSubtopology:
    return PlannedSubtopology(
        id=subtopology.id,
        source_topics=subtopology.source_topics,
        source_patterns=tuple(pattern.pattern for pattern in subtopology.source_patterns),
        sink_topics=subtopology.sink_topics,
        stores=tuple(
            PlannedStore(
                name=builder.name,
                kind=builder.kind,
                value_format=builder.value_format,
                persistent=builder.persistent,
                changelog_topic=subtopology.changelog_topics.get(builder.name),
                changelog_is_source=builder.name in subtopology.source_changelogs,
            )
            for builder in subtopology.store_builders
        ),
        repartition_topics=tuple(
            PlannedRepartitionTopic(
                name=name, partitions=topic.partitions, enforced=topic.enforced, config=topic.config
            )
            for name, topic in sorted(subtopology.repartition_topics.items())
        ),
        changelog_topics=tuple(
            PlannedChangelogTopic(name=name, config=config)
            for name, config in sorted(subtopology.changelog_configs.items())
        ),
        copartition_groups=tuple(tuple(sorted(group)) for group in subtopology.copartition_groups),
    )


def _planned_global_stores(subtopology: Subtopology | None) -> tuple[PlannedGlobalStore, ...]:
    if subtopology is None:
        return ()
    return tuple(
        PlannedGlobalStore(
            name=builder.name,
            topic=subtopology.changelog_topics[builder.name],
            kind=builder.kind,
            value_format=builder.value_format,
            persistent=builder.persistent,
        )
        for builder in subtopology.store_builders
    )


def _hash(
    application_id: str, subtopologies: tuple[PlannedSubtopology, ...], stores: tuple[PlannedGlobalStore, ...]
) -> str:
    content: dict[str, Any] = {
        "applicationId": application_id,
        "subtopologies": [_without_config(item.model_dump(mode="json", by_alias=True)) for item in subtopologies],
        "globalStores": [item.model_dump(mode="json", by_alias=True) for item in stores],
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _without_config(subtopology: dict[str, Any]) -> dict[str, Any]:
    for topic in (*subtopology["repartitionTopics"], *subtopology["changelogTopics"]):
        topic.pop("config")
    return subtopology
