"""The topology plan: everything that a cluster, the operator or a reviewer needs to know about a topology, as JSON.

Provisioning, `millrace plan`, `millrace dev` and the operator work from the plan alone; none of them imports user code. The hash
covers what decides whether existing state still fits: ids, topics, stores and their formats, but neither topic configuration nor
the dead-letter topic. Nor does it cover windows, retention and origins, which plans of earlier versions do not have: another
version of Millrace gives a topology the same hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from pydantic.alias_generators import to_camel


class _PlanModel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")


def _without_none(content: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the content without these names where their value is None."""
    return {name: value for name, value in content.items() if value is not None or name not in names}


class PlannedWindows(_PlanModel):
    """The windows by which the DSL uses a store (times in ms)."""

    kind: str
    """`time`, `sliding`, `session`, `unlimited`, or `join`."""
    size_ms: int = 0
    """The size of time windows, the time difference of sliding ones, or the inactivity gap of sessions."""
    advance_ms: int = 0
    """How far apart time windows start."""
    before_ms: int = 0
    after_ms: int = 0
    """How far the other stream's records may be from this one's in a join."""
    grace_ms: int = 0
    in_order_of_time: bool = False
    """Whether the DSL orders them by time on disk, since results are emitted when they close."""


class PlannedOrigin(_PlanModel):
    """What identifies a store or repartition topic with a generated name, since its name may go to another operator."""

    topics: tuple[str, ...] = ()
    """The user's topics, and patterns of topics, that its records come from."""
    steps: str
    """A digest of the steps before it, their serdes, and its own kind and serdes."""
    results: tuple[str, ...] = ()
    """The user's topics that its results go to."""


class PlannedStore(_PlanModel):
    """A state store and the topic that backs it."""

    name: str
    kind: str
    value_format: str
    persistent: bool
    changelog_topic: str | None = None
    changelog_is_source: bool = False
    """Whether the store is restored from an input topic, which belongs to the user and is never created, changed or deleted."""
    retention_ms: int | None = None
    """How long windows, sessions or history are kept; None for other stores, and in plans of earlier versions."""
    windows: PlannedWindows | None = None
    """None for stores that the DSL does not use by windows, and in plans of earlier versions."""
    origin: PlannedOrigin | None = None
    """None for stores whose name was given, and in plans of earlier versions."""

    @model_serializer(mode="wrap")
    def _serialized(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out missing values, so that the plans of most stores look as in earlier versions."""
        return _without_none(serialize(self), "retentionMs", "retention_ms", "windows", "origin")


class PlannedRepartitionTopic(_PlanModel):
    """A repartition topic; without a count it gets as many partitions as the largest topic that its writers read."""

    name: str
    partitions: int | None = None
    enforced: bool = False
    config: Mapping[str, str] = Field(default_factory=dict)
    origin: PlannedOrigin | None = None
    """None for topics whose name was given, and in plans of earlier versions."""

    @model_serializer(mode="wrap")
    def _serialized(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out a missing origin."""
        return _without_none(serialize(self), "origin")


class PlannedChangelogTopic(_PlanModel):
    """A changelog topic to be created, with as many partitions as the sub-topology has tasks."""

    name: str
    config: Mapping[str, str] = Field(default_factory=dict)


class PlannedSubtopology(_PlanModel):
    """What the tasks of one sub-topology read, write and store."""

    id: int
    source_topics: tuple[str, ...] = ()
    source_patterns: tuple[str, ...] = ()
    sink_topics: tuple[str, ...] = ()
    stores: tuple[PlannedStore, ...] = ()
    repartition_topics: tuple[PlannedRepartitionTopic, ...] = ()
    changelog_topics: tuple[PlannedChangelogTopic, ...] = ()
    copartition_groups: tuple[tuple[str, ...], ...] = ()


class PlannedGlobalStore(_PlanModel):
    """A store that every instance fills from the whole of one topic."""

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
    """SHA-256, in hexadecimal, of the canonical JSON of everything that state must be compatible with."""
    subtopologies: tuple[PlannedSubtopology, ...] = ()
    global_stores: tuple[PlannedGlobalStore, ...] = ()
    dead_letter_topic: str | None = None
    """The user's topic for dead letters, which every sub-topology may write to (`errors.dead.letter.queue.topic.name`)."""

    @model_serializer(mode="wrap")
    def _serialized(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out a missing dead-letter topic, so that plans without one look as in earlier versions."""
        return _without_none(serialize(self), "deadLetterTopic", "dead_letter_topic")

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the JSON with camelCase names."""
        return self.model_dump_json(by_alias=True, indent=indent)

    @classmethod
    def of(
        cls,
        application_id: str,
        subtopologies: tuple[PlannedSubtopology, ...],
        global_stores: tuple[PlannedGlobalStore, ...],
        dead_letter_topic: str | None,
    ) -> TopologyPlan:
        """Return a plan with its hash."""
        parts = [item.model_dump(mode="json", by_alias=True) for item in subtopologies]
        for topic in (topic for part in parts for topic in (*part["repartitionTopics"], *part["changelogTopics"])):
            del topic["config"]
            topic.pop("origin", None)
        for store in (store for part in parts for store in part["stores"]):
            store.pop("retentionMs", None)
            store.pop("windows", None)
            store.pop("origin", None)
        content: dict[str, Any] = {
            "applicationId": application_id,
            "subtopologies": parts,
            "globalStores": [item.model_dump(mode="json", by_alias=True) for item in global_stores],
        }
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return cls(
            application_id=application_id,
            hash=hashlib.sha256(canonical.encode()).hexdigest(),
            subtopologies=subtopologies,
            global_stores=global_stores,
            dead_letter_topic=dead_letter_topic,
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> TopologyPlan:
        """Read a plan that `to_json` wrote."""
        return cls.model_validate_json(text)


def repartition_topics(plan: TopologyPlan) -> dict[str, PlannedRepartitionTopic]:
    """Return the plan's repartition topics by name."""
    return {topic.name: topic for item in plan.subtopologies for topic in item.repartition_topics}


def changelog_topics(plan: TopologyPlan) -> dict[str, PlannedChangelogTopic]:
    """Return the plan's changelog topics by name, excluding input topics that serve as changelogs."""
    return {topic.name: topic for item in plan.subtopologies for topic in item.changelog_topics}


def external_source_topics(plan: TopologyPlan) -> frozenset[str]:
    """Return the user's topics that the plan reads by name, including the topics of global stores."""
    named = {topic for item in plan.subtopologies for topic in item.source_topics}
    return frozenset((named | {store.topic for store in plan.global_stores}) - repartition_topics(plan).keys())
