"""What a topology has become for one application: the sub-topologies whose tasks the engine runs.

Names are final here: internal topics carry the application id. Nothing in it changes any more, and nothing refers back to
the builder, so that one value can serve all threads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.state.api import StoreBuilder
from millrace.topology.nodes import Node, RepartitionTopic

if TYPE_CHECKING:
    from millrace.topology.plan import TopologyPlan


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
        from millrace.topology.plan import plan_of  # noqa: PLC0415 (the plan is made of this module's types)

        return plan_of(self)
