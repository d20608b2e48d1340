"""What a topology has become for one application: the sub-topologies whose tasks the engine runs.

Names are final here: internal topics carry the application id. Nothing in it changes any more, and nothing refers back to
the builder, so that one value can serve all threads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.plan.model import (
    PlannedChangelogTopic,
    PlannedGlobalStore,
    PlannedRepartitionTopic,
    PlannedStore,
    PlannedSubtopology,
    TopologyPlan,
    plan_hash,
)
from millrace.state.api import StoreBuilder
from millrace.topology.nodes import Node, RepartitionTopic


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
    """Those known in advance; sinks with a topic extractor may write anywhere."""
    repartition_topics: Mapping[str, RepartitionTopic] = field(default_factory=dict)
    """Those among the source topics, by full name, with their complete configuration."""
    changelog_topics: Mapping[str, str] = field(default_factory=dict)
    """Store → topic it is restored from: its changelog, or the source topic it is a copy of."""
    changelog_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Changelog topics to be created, with their configuration."""
    copartition_groups: tuple[frozenset[str], ...] = ()
    source_changelogs: frozenset[str] = frozenset()
    """Stores restored from a source topic; changes of these are not logged, and standbys stop at committed offsets."""


@dataclass(frozen=True, slots=True)
class BuiltTopology:
    """A topology resolved for one application id."""

    application_id: str
    subtopologies: tuple[Subtopology, ...]
    global_subtopology: Subtopology | None = None
    """Sources, processors and stores of all global stores; every instance runs it once, over all partitions."""
    node_names: tuple[str, ...] = ()
    """Of all nodes, in the order in which they were added: what the whole topology goes by when it runs as one task."""
    dead_letter_topic: str | None = None
    """Where the exception handlers send what they skip or fail on (KIP-1034), by the configuration."""

    @property
    def persistent(self) -> bool:
        """Whether any of its stores keeps state on disk."""
        parts = [*self.subtopologies, self.global_subtopology]
        return any(builder.persistent for part in parts if part is not None for builder in part.store_builders)

    def subtopology(self, number: int) -> Subtopology:
        """Return the sub-topology of that id.

        Raises:
            KeyError: there is none; global ones do not count.
        """
        for subtopology in self.subtopologies:
            if subtopology.id == number:
                return subtopology
        raise KeyError(number)

    def plan(self) -> TopologyPlan:
        """Return what this topology needs of a cluster, as data."""
        subtopologies = tuple(_planned(subtopology) for subtopology in self.subtopologies)
        stores = _planned_global_stores(self.global_subtopology)
        return TopologyPlan(
            application_id=self.application_id,
            hash=plan_hash(self.application_id, subtopologies, stores),
            subtopologies=subtopologies,
            global_stores=stores,
            dead_letter_topic=self.dead_letter_topic,
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
