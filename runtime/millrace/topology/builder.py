"""Assembles the physical graph (nodes, stores, internal topics) and divides it into sub-topologies.

Both `Topology` (users) and the DSL's compilation write into a `TopologyBuilder`. The order in which nodes are added matters:
it determines the numbers of sub-topologies, and the order of nodes and stores within a task.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from millrace.checks import Call, checked_name, users_call
from millrace.config import StreamsConfig
from millrace.errors import TopologyError
from millrace.java_collections import hash_order
from millrace.processor.node import NodeFactory
from millrace.topology.description import NodeGroup, TopologyDescription, describe
from millrace.topology.origins import Origins
from millrace.topology.physical_topology import (
    BuiltTopology,
    DeclaredStore,
    DeferredStore,
    GeneratedName,
    Node,
    ProcessorNode,
    RepartitionTopic,
    SinkNode,
    SourceNode,
    Subtopology,
    resolved_serde,
    resolved_store,
)
from millrace.topology.processor_wrapper import ProcessorWrapper, configured_wrapper, wrapped
from millrace.topology.topic_config import changelog_topic_config, repartition_topic_config


class UnionFind:
    """Disjoint sets over names, with path halving."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def copy(self) -> UnionFind:
        """Return a copy, which can be changed independently."""
        result = UnionFind()
        result._parent = dict(self._parent)
        return result

    def add(self, name: str) -> None:
        """Add a set of one name."""
        self._parent.setdefault(name, name)

    def root(self, name: str) -> str:
        """Return the name that represents the set."""
        parent = self._parent
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    def unite(self, name: str, others: Iterable[str]) -> None:
        """Merge the sets of all these names."""
        root = self.root(name)
        for other in others:
            self._parent[self.root(other)] = root

    def groups(self, names: Iterable[str]) -> list[list[str]]:
        """Return the sets in the order in which their first members appear in `names`."""
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(self.root(name), []).append(name)
        return list(found.values())


class TopologyBuilder:
    """The physical graph while it is being assembled."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.stores: dict[str, DeclaredStore] = {}
        self.global_stores: dict[str, DeclaredStore] = {}
        self._generated_topics: dict[str, Call] = {}
        self.store_calls: dict[str, Call] = {}
        """The call of the DSL that needs a store."""
        self.places: dict[str, str] = {}
        """Node → file and line of the user's call that added it."""
        self._users: dict[str, list[str]] = {}
        self._source_changelogs: dict[str, str] = {}
        self._repartition_topics: dict[str, RepartitionTopic] = {}
        self._copartitioned: list[tuple[str, ...]] = []
        self._global_topics: dict[str, str] = {}
        self._connected = UnionFind()

    # Nodes.

    def add_source(self, node: SourceNode) -> None:
        """Add a source.

        Raises:
            TopologyError: the name is taken, there is neither a topic nor a pattern, or a topic is already read.
        """
        self._require_new(node.name)
        if node.pattern is None and not node.topics:
            raise TopologyError(f"Source {node.name} reads nothing: give it at least one topic, or a pattern")
        for topic in node.topics:
            self._require_topic_unread(topic)
        if node.pattern is not None:
            self._require_pattern_unread(node.pattern)
        self._add(node, ())

    def add_processor(self, name: str, factory: NodeFactory, parents: Sequence[str]) -> None:
        """Add a processor below its parents.

        Raises:
            TopologyError: the name is taken, or a parent is missing, unknown or a sink.
        """
        self._require_new(name)
        self._require_parents(name, parents)
        self._add(ProcessorNode(name, factory, tuple(parents)), parents)

    def add_sink(self, node: SinkNode) -> None:
        """Add a sink below its parents.

        Raises:
            TopologyError: as for processors, or neither a topic nor an extractor is given.
        """
        self._require_new(node.name)
        self._require_parents(node.name, node.parents)
        if (node.topic is None) == (node.topic_extractor is None):
            raise TopologyError(f"Sink {node.name} needs a topic or a topic extractor, and not both")
        self._add(node, node.parents)

    def _add(self, node: Node, parents: Iterable[str]) -> None:
        self.nodes[node.name] = node
        self.places[node.name] = users_call().place
        self._connected.add(node.name)
        self._connected.unite(node.name, parents)

    # Stores.

    def add_state_store(self, builder: DeclaredStore, processors: Sequence[str] = ()) -> None:
        """Add a store, and connect it to processors; adding the same builder again only connects it.

        Raises:
            TopologyError: another store has that name, or it cannot be part of a topic's name.
        """
        checked_name(builder.name)
        known = self.stores.get(builder.name)
        if (known is not None and known is not builder) or builder.name in self.global_stores:
            raise TopologyError(
                f"A different state store named {builder.name} has already been added; rename one of them"
            )
        self.stores[builder.name] = builder
        for processor in processors:
            self.connect_processor_and_state_stores(processor, (builder.name,))

    def connect_processor_and_state_stores(self, processor: str, stores: Sequence[str]) -> None:
        """Let a processor use stores; processors that share a store end up in one sub-topology.

        Raises:
            TopologyError: the processor or a store is unknown, or the store is a global one.
        """
        node = self.nodes.get(processor)
        if not isinstance(node, ProcessorNode):
            what = "is not added yet" if node is None else "is a source or a sink, which have no stores"
            raise TopologyError(f"Cannot connect state stores {', '.join(stores)}: processor {processor} {what}")
        for store in stores:
            if store in self.global_stores:
                raise TopologyError(
                    f"Global store {store} is open to every processor; do not connect it to {processor}"
                )
            if store not in self.stores:
                raise TopologyError(f"State store {store} is not added yet; add it before connecting it to {processor}")
            users = self._users.setdefault(store, [])
            self._connected.unite(processor, users[:1])
            if processor not in users:
                users.append(processor)
        current = self.nodes[processor]
        assert isinstance(current, ProcessorNode)
        names = tuple(dict.fromkeys((*current.stores, *stores)))
        self.nodes[processor] = dataclasses.replace(current, stores=names)

    def use_source_as_changelog(self, store: str, topic: str) -> None:
        """Restore a store from the topic its table is read from, and create no changelog for it.

        Raises:
            TopologyError: the store is already restored from a topic.
        """
        if store in self._source_changelogs:
            raise TopologyError(f"Store {store} is already restored from topic {self._source_changelogs[store]}")
        self._source_changelogs[store] = topic

    def add_global_store(
        self,
        builder: DeclaredStore,
        *,
        source: SourceNode,
        processor_name: str,
        factory: NodeFactory,
    ) -> None:
        """Add a store that every instance fills with a whole topic, through the given processor.

        Raises:
            TopologyError: a name is taken, or the store logs its changes (its topic is its changelog).
        """
        checked_name(builder.name)
        if builder.logging_enabled:
            raise TopologyError(f"Global store {builder.name} must not log its changes: its topic is its changelog")
        if builder.name in self.stores or builder.name in self.global_stores:
            raise TopologyError(
                f"A different state store named {builder.name} has already been added; rename one of them"
            )
        if processor_name == source.name:
            raise TopologyError(f"Source and processor of global store {builder.name} are both named {source.name}")
        self._require_new(processor_name)
        self.add_source(source)
        self._global_topics[source.topics[0]] = builder.name
        self.global_stores[builder.name] = builder
        self._add(ProcessorNode(processor_name, factory, (source.name,), (builder.name,)), (source.name,))

    # Topics.

    def add_internal_topic(self, topic: RepartitionTopic) -> None:
        """Declare a topic that the application owns, between two sub-topologies."""
        self._repartition_topics[topic.name] = topic

    def copartition_sources(self, sources: Iterable[str]) -> None:
        """Require the topics of these source nodes to have the same number of partitions."""
        self._copartitioned.append(tuple(sources))

    def replace_copartitioned_source(self, replaced: str, replacement: str) -> None:
        """Replace a source that the optimiser removed with another one."""
        self._copartitioned = [
            tuple(replacement if name == replaced else name for name in sources) for sources in self._copartitioned
        ]

    def note_generated_topic(self, name: str, call: Call) -> None:
        """Note that the name of this repartition topic was generated, and the user's call that needs it (KIP-1111)."""
        self._generated_topics.setdefault(name, call)

    # Results.

    def groups(self) -> list[NodeGroup]:
        """Return the nodes by sub-topology; every instance runs groups that read global topics itself."""
        return [
            NodeGroup(number, [self.nodes[name] for name in names], any(map(self._is_global_source, names)))
            for number, names in enumerate(self._connected.groups(self.nodes))
        ]

    def describe(self) -> TopologyDescription:
        """Return the result of `Topology.describe()`."""
        return describe(self.groups())

    def build(self, config: StreamsConfig) -> BuiltTopology:
        """Resolve everything that depends on the application: full topic names and topic configurations.

        Raises:
            ConfigError: the configured processor wrapper cannot be used.
            TopologyError: internal resources have generated names although the configuration forbids it.
        """
        wrapper = configured_wrapper(config)
        builder: TopologyBuilder = self if wrapper is None else self._wrapped(wrapper)
        return builder._resolve(config)

    def _wrapped(self, wrapper: ProcessorWrapper) -> TopologyBuilder:
        """Return a copy in which every processor is wrapped, with the stores that the wrapper adds."""
        result = self._copy()
        for node in self.nodes.values():
            if isinstance(node, ProcessorNode):
                factory, stores = wrapped(node, wrapper)
                result.nodes[node.name] = dataclasses.replace(node, factory=factory)
                if stores and any(store in self.global_stores for store in node.stores):
                    raise TopologyError(
                        f"The processor wrapper gives {node.name} the store {stores[0].name}, but {node.name} fills a "
                        "global store, and such a processor has no other stores"
                    )
                for store in stores:
                    result.add_state_store(store, (node.name,))
        return result

    def _copy(self) -> TopologyBuilder:
        result = TopologyBuilder()
        result.nodes = dict(self.nodes)
        result.stores = dict(self.stores)
        result.global_stores = dict(self.global_stores)
        result._generated_topics = dict(self._generated_topics)
        result.store_calls = dict(self.store_calls)
        result.places = dict(self.places)
        result._users = {store: list(users) for store, users in self._users.items()}
        result._source_changelogs = dict(self._source_changelogs)
        result._repartition_topics = dict(self._repartition_topics)
        result._copartitioned = list(self._copartitioned)
        result._global_topics = dict(self._global_topics)
        result._connected = self._connected.copy()
        return result

    def _resolve(self, config: StreamsConfig) -> BuiltTopology:
        self._require_explicit_names(config)
        copartitioned = self._copartition_groups(config.application_id)
        groups = self.groups()
        tasks = tuple(self._subtopology(group, config, copartitioned) for group in groups if not group.is_global)
        filled = [group for group in groups if group.is_global]
        of_global_stores = self._global_subtopology(filled, config) if filled else None
        return BuiltTopology(
            config.application_id,
            tasks,
            of_global_stores,
            tuple(self.nodes),
            config.errors_dead_letter_queue_topic_name or None,
            tuple(self._generated_names(tasks, config.application_id)),
        )

    def _generated_names(self, subtopologies: Sequence[Subtopology], application_id: str) -> Iterator[GeneratedName]:
        origins = Origins(subtopologies)
        for item in subtopologies:
            for builder in item.store_builders:
                declared = self.stores[builder.name]
                if getattr(declared, "generated_name", False):
                    call = self.store_calls.get(builder.name, Call("", ""))
                    yield GeneratedName("store", builder.name, builder.kind, call, origins.of_store(builder.name))
        for name, call in self._generated_topics.items():
            origin = origins.of_topic(self._full_name(name, application_id))
            yield GeneratedName("repartition topic", name, "", call, origin)

    def _subtopology(self, group: NodeGroup, config: StreamsConfig, copartitioned: list[frozenset[str]]) -> Subtopology:
        application_id = config.application_id
        nodes = tuple(self._resolved(node, config) for node in group.nodes)
        sources = [node for node in nodes if isinstance(node, SourceNode)]
        builders = tuple(resolved_store(builder, config) for builder in self._builders(group.nodes))
        changelogs = {
            builder.name: self._source_changelogs.get(builder.name) or f"{application_id}-{builder.name}-changelog"
            for builder in builders
            if builder.logging_enabled or builder.name in self._source_changelogs
        }
        changelogs = {
            store: self._full_name(topic, application_id) if store in self._source_changelogs else topic
            for store, topic in changelogs.items()
        }
        topics = tuple(sorted({topic for node in sources for topic in node.topics}))
        repartition = {
            name: dataclasses.replace(topic, config=repartition_topic_config(topic, config))
            for topic in self._repartition_topics.values()
            if (name := f"{application_id}-{topic.name}") in topics
        }
        return Subtopology(
            id=group.id,
            nodes=nodes,
            store_builders=builders,
            source_topics=topics,
            source_patterns=tuple(node.pattern for node in sources if node.pattern is not None),
            sink_topics=tuple(sorted({n.topic for n in nodes if isinstance(n, SinkNode) and n.topic is not None})),
            repartition_topics=repartition,
            changelog_topics=changelogs,
            changelog_configs={
                changelogs[builder.name]: changelog_topic_config(builder, config)
                for builder in builders
                if builder.name in changelogs and builder.name not in self._source_changelogs
            },
            copartition_groups=tuple(group for group in copartitioned if group & set(topics)),
            source_changelogs=frozenset(self._source_changelogs) & {builder.name for builder in builders},
            places=self._places(nodes),
        )

    def _global_subtopology(self, groups: list[NodeGroup], config: StreamsConfig) -> Subtopology:
        nodes = tuple(self._resolved(node, config) for group in groups for node in group.nodes)
        topics = self._global_topics
        return Subtopology(
            id=groups[0].id,
            nodes=nodes,
            store_builders=tuple(resolved_store(builder, config) for builder in self.global_stores.values()),
            source_topics=tuple(sorted(topics)),
            changelog_topics={store: topic for topic, store in topics.items()},
            source_changelogs=frozenset(topics.values()),
            places=self._places(nodes),
        )

    def _places(self, nodes: Sequence[Node]) -> dict[str, str]:
        """Return where the user's code makes these nodes and, for each store, the first node that uses it."""
        places = {node.name: self.places[node.name] for node in nodes if node.name in self.places}
        for node in nodes:
            for store in node.stores if isinstance(node, ProcessorNode) else ():
                places.setdefault(store, places.get(node.name, ""))
        return places

    def _builders(self, nodes: Sequence[Node]) -> tuple[DeclaredStore, ...]:
        names = (store for node in nodes if isinstance(node, ProcessorNode) for store in hash_order(node.stores))
        return tuple(self.stores[name] for name in dict.fromkeys(names))

    def _resolved(self, node: Node, config: StreamsConfig) -> Node:
        if isinstance(node, ProcessorNode):
            return node
        keys, values = resolved_serde(node.key_serde, config), resolved_serde(node.value_serde, config)
        if isinstance(node, SourceNode):
            topics = tuple(self._full_name(topic, config.application_id) for topic in node.topics)
            return dataclasses.replace(node, topics=topics, key_serde=keys, value_serde=values)
        topic = None if node.topic is None else self._full_name(node.topic, config.application_id)
        return dataclasses.replace(node, topic=topic, key_serde=keys, value_serde=values)

    def _full_name(self, topic: str, application_id: str) -> str:
        return f"{application_id}-{topic}" if topic in self._repartition_topics else topic

    def _copartition_groups(self, application_id: str) -> list[frozenset[str]]:
        group_of: dict[str, set[str]] = {}
        for sources in self._copartitioned:
            topics = {
                self._full_name(topic, application_id)
                for source in map(self.nodes.get, sources)
                if isinstance(source, SourceNode)
                for topic in source.topics
            }
            group = topics.union(*(group_of.get(topic, ()) for topic in topics))
            group_of.update(dict.fromkeys(group, group))
        return sorted({frozenset(group) for group in group_of.values()}, key=sorted)

    def _is_global_source(self, name: str) -> bool:
        node = self.nodes[name]
        return isinstance(node, SourceNode) and len(node.topics) == 1 and node.topics[0] in self._global_topics

    # Checks.

    def _require_new(self, name: str) -> None:
        if name in self.nodes:
            raise TopologyError(f"A node named {name} has already been added; give one of them another name")

    def _require_parents(self, name: str, parents: Sequence[str]) -> None:
        if not parents:
            raise TopologyError(f"Node {name} has no parents; name at least one source or processor")
        for parent in parents:
            if parent == name:
                raise TopologyError(f"Node {name} cannot be its own parent")
            if parent not in self.nodes:
                raise TopologyError(f"Parent {parent} of node {name} is not added yet; add it first")
            if isinstance(self.nodes[parent], SinkNode):
                raise TopologyError(f"Parent {parent} of node {name} is a sink, and sinks have no children")

    def _require_topic_unread(self, topic: str) -> None:
        for node in self.nodes.values():
            if isinstance(node, SourceNode) and (
                topic in node.topics or (node.pattern is not None and node.pattern.fullmatch(topic))
            ):
                raise TopologyError(f"Topic {topic} is already read by source {node.name}; use that source's records")

    def _require_pattern_unread(self, pattern: re.Pattern[str]) -> None:
        for node in self.nodes.values():
            if not isinstance(node, SourceNode):
                continue
            matched = next((topic for topic in node.topics if pattern.fullmatch(topic)), None)
            if matched is not None:
                raise TopologyError(
                    f"Pattern {pattern.pattern} matches topic {matched}, which source {node.name} reads"
                )

    def _require_explicit_names(self, config: StreamsConfig) -> None:
        if not config.ensure_explicit_internal_resource_naming:
            return
        generated = {"repartition topic": list(self._generated_topics)} if self._generated_topics else {}
        for name, builder in self.stores.items():
            if isinstance(builder, DeferredStore) and builder.generated_name:
                generated.setdefault("state store", []).append(name)
        if generated:
            listing = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in generated.items())
            raise TopologyError(
                "ensure.explicit.internal.resource.naming is set, but these internal resources have generated names "
                f"({listing}); name the stores with Materialized and the repartition topics with Grouped, Joined, "
                "StreamJoined, TableJoined or Repartitioned"
            )
