"""The physical topology: nodes as `Topology.add_*` and the DSL declare them, and the sub-topologies that the engine runs.

What depends on the application's configuration is declared in a deferred form and resolved when the topology is built. In a
`BuiltTopology` all names are final: internal topics carry the application id. It never changes and does not refer to the builder,
so all threads can share it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from millrace.checks import Call, mistake, new_stores
from millrace.config import StreamsConfig
from millrace.plan.topology_plan import (
    PlannedChangelogTopic,
    PlannedGlobalStore,
    PlannedOrigin,
    PlannedRepartitionTopic,
    PlannedStore,
    PlannedSubtopology,
    TopologyPlan,
)
from millrace.processor.api import StreamPartitioner, TimestampExtractor, TopicNameExtractor
from millrace.processor.node import NodeFactory
from millrace.serdes.base import AnySerde, Serde
from millrace.state.api import StoreBuilder


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Reads records of some topics, or of all that match a pattern."""

    name: str
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    key_serde: AnySerde | None = None
    value_serde: AnySerde | None = None
    timestamp_extractor: TimestampExtractor | None = None
    offset_reset: str | None = None
    """`earliest`, `latest`, `none`, `by_duration:<ms>`, or None for the consumer's default (earliest)."""


@dataclass(frozen=True, slots=True)
class ProcessorNode:
    """Runs code on the records of its parents."""

    name: str
    factory: NodeFactory
    parents: tuple[str, ...]
    stores: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkNode:
    """Writes the records of its parents to a topic."""

    name: str
    parents: tuple[str, ...]
    topic: str | None = None
    topic_extractor: TopicNameExtractor | None = None
    key_serde: AnySerde | None = None
    value_serde: AnySerde | None = None
    partitioner: StreamPartitioner | None = None


Node = SourceNode | ProcessorNode | SinkNode


@dataclass(frozen=True, slots=True)
class RepartitionTopic:
    """An internal topic between two sub-topologies; `name` is without the application id."""

    name: str
    partitions: int | None = None
    """A fixed number, or None for the largest number of the upstream inputs (co-partitioning may raise it)."""
    enforced: bool = False
    config: Mapping[str, str] = field(default_factory=dict)


class DeferredSerde(Serde[Any]):
    """A placeholder for a serde made from the configuration, such as one that wraps the default value serde."""

    def __init__(self, make: Callable[[StreamsConfig], AnySerde]) -> None:
        self.for_config = make


@runtime_checkable
class DeferredStore(Protocol):
    """A store whose implementation and default serdes depend on the configuration."""

    name: str
    generated_name: bool
    """Whether the store's name was generated (KIP-1111)."""

    @property
    def logging_enabled(self) -> bool:
        """Whether the store has a changelog."""

    def for_config(self, config: StreamsConfig) -> StoreBuilder:
        """Return the builder of the store for an application."""


DeclaredStore = StoreBuilder | DeferredStore
"""A store as operators declare it."""


def resolved_serde(serde: AnySerde | None, config: StreamsConfig) -> AnySerde | None:
    """Return a serde for an application, configured."""
    found = serde.for_config(config) if isinstance(serde, DeferredSerde) else serde
    if found is not None:
        found.configure(config)
    return found


def resolved_store(store: DeclaredStore, config: StreamsConfig) -> StoreBuilder:
    """Return the builder of a store for an application.

    Raises:
        TopologyError: it would give all tasks the same store, or a store of another name.
    """
    builder = store.for_config(config) if isinstance(store, DeferredStore) else store
    if builder.name != store.name:
        raise mistake(
            f"The supplier that the DslStoreSuppliers returned for store {store.name} is named {builder.name}: make one with "
            "the name in its parameters"
        )
    get = getattr(getattr(builder, "supplier", None), "get", None)  # a user's builder may have anything there
    if callable(get):
        new_stores(get, "supplier", store.name)
    new_stores(builder.build, "builder", store.name)
    return builder


def _retention_ms(builder: StoreBuilder) -> int | None:
    """Return how long a store keeps its rows, which a supplier of the user may have decided."""
    if builder.kind not in {"window", "session", "versioned"}:
        return None
    kept: int | None = getattr(getattr(builder, "supplier", None), "retention_ms", builder.retention_ms)
    return kept


@dataclass(frozen=True, slots=True)
class GeneratedName:
    """A store or repartition topic that the user has not named, so that a change elsewhere in the topology may rename it."""

    resource: str
    """`store` or `repartition topic`."""
    name: str
    """Without the application id."""
    kind: str
    """The kind of the store; empty for a topic."""
    call: Call
    """The call of the DSL that needs it."""
    origin: PlannedOrigin
    """The sources it is made from, which identify it in another version of the program."""


@dataclass(frozen=True, slots=True)
class Subtopology:
    """Nodes and stores that one task runs for each partition of the source topics."""

    id: int
    nodes: tuple[Node, ...]
    """Parents before their children."""
    store_builders: tuple[StoreBuilder, ...] = ()
    source_topics: tuple[str, ...] = ()
    source_patterns: tuple[re.Pattern[str], ...] = ()
    sink_topics: tuple[str, ...] = ()
    """The topics known in advance; sinks with a topic extractor can write to any topic."""
    repartition_topics: Mapping[str, RepartitionTopic] = field(default_factory=dict)
    """The repartition topics among the source topics, by full name, with their complete configuration."""
    changelog_topics: Mapping[str, str] = field(default_factory=dict)
    """Store → topic it is restored from: its changelog, or the source topic it is a copy of."""
    changelog_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Changelog topics to be created, with their configuration."""
    copartition_groups: tuple[frozenset[str], ...] = ()
    source_changelogs: frozenset[str] = frozenset()
    """Stores restored from a source topic: their changes are not logged, and standbys stop at committed offsets."""
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Node or store → file and line of the user's call that made it, where known."""

    def plan(self, origins: Mapping[tuple[str, str], PlannedOrigin]) -> PlannedSubtopology:
        """Return what this sub-topology needs from a cluster, as data.

        Args:
            origins: by resource and name as in `GeneratedName`.
        """
        return PlannedSubtopology(
            id=self.id,
            source_topics=self.source_topics,
            source_patterns=tuple(pattern.pattern for pattern in self.source_patterns),
            sink_topics=self.sink_topics,
            stores=tuple(
                PlannedStore(
                    name=builder.name,
                    kind=builder.kind,
                    value_format=builder.value_format,
                    persistent=builder.persistent,
                    changelog_topic=self.changelog_topics.get(builder.name),
                    changelog_is_source=builder.name in self.source_changelogs,
                    retention_ms=_retention_ms(builder),
                    windows=builder.windows,
                    origin=origins.get(("store", builder.name)),
                )
                for builder in self.store_builders
            ),
            repartition_topics=tuple(
                PlannedRepartitionTopic(
                    name=name,
                    partitions=topic.partitions,
                    enforced=topic.enforced,
                    config=topic.config,
                    origin=origins.get(("repartition topic", topic.name)),
                )
                for name, topic in sorted(self.repartition_topics.items())
            ),
            changelog_topics=tuple(
                PlannedChangelogTopic(name=name, config=config)
                for name, config in sorted(self.changelog_configs.items())
            ),
            copartition_groups=tuple(tuple(sorted(group)) for group in self.copartition_groups),
        )


@dataclass(frozen=True, slots=True)
class BuiltTopology:
    """A topology resolved for one application id."""

    application_id: str
    subtopologies: tuple[Subtopology, ...]
    global_subtopology: Subtopology | None = None
    """Sources, processors and stores of all global stores; every instance runs it once, over all partitions."""
    node_names: tuple[str, ...] = ()
    """All nodes in the order in which they were added, which is used when the whole topology runs as one task."""
    dead_letter_topic: str | None = None
    """The configured topic to which exception handlers send the records they skip or fail on (KIP-1034)."""
    generated_names: tuple[GeneratedName, ...] = ()
    """The stores and repartition topics that the user has not named."""

    @property
    def persistent(self) -> bool:
        """Whether any of its stores keeps state on disk."""
        parts = [*self.subtopologies, self.global_subtopology]
        return any(builder.persistent for part in parts if part is not None for builder in part.store_builders)

    def subtopology(self, number: int) -> Subtopology:
        """Return the sub-topology with this id.

        Raises:
            KeyError: there is no such sub-topology; global ones are not included.
        """
        for subtopology in self.subtopologies:
            if subtopology.id == number:
                return subtopology
        raise KeyError(number)

    def plan(self) -> TopologyPlan:
        """Return what this topology needs from a cluster, as data."""
        origins = {(name.resource, name.name): name.origin for name in self.generated_names}
        subtopologies = tuple(subtopology.plan(origins) for subtopology in self.subtopologies)
        instances = self.global_subtopology
        stores = (
            ()
            if instances is None
            else tuple(
                PlannedGlobalStore(
                    name=builder.name,
                    topic=instances.changelog_topics[builder.name],
                    kind=builder.kind,
                    value_format=builder.value_format,
                    persistent=builder.persistent,
                )
                for builder in instances.store_builders
            )
        )
        return TopologyPlan.of(self.application_id, subtopologies, stores, self.dead_letter_topic)
