"""The plain steps of the logical graph: a processor with its stores, a sink, a store on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.dsl.graph.node import GraphNode
from millrace.processor.api import StreamPartitioner, TopicNameExtractor
from millrace.processor.node import NodeFactory
from millrace.serdes.base import Serde
from millrace.state.api import StoreBuilder
from millrace.topology.builder import TopologyBuilder
from millrace.topology.model import SinkNode, SourceNode


class ProcessorStep(GraphNode):
    """One processor, the stores it brings and the names of those it uses besides."""

    def __init__(
        self,
        name: str,
        factory: NodeFactory,
        *,
        stores: Sequence[StoreBuilder] = (),
        store_names: Sequence[str] = (),
        key_changing: bool = False,
        value_changing: bool = False,
        is_merge: bool = False,
    ) -> None:
        super().__init__(name)
        self.factory = factory
        self.stores = tuple(stores)
        self.store_names = tuple(store_names)
        self.key_changing = key_changing
        self.value_changing = value_changing
        self.is_merge = is_merge
        self.versioned_output: bool | None = None
        """Whether its output is kept in a versioned store; None where it has no store of its own."""

    @property
    def output_versioned(self) -> bool | None:
        """Whether its output is kept in a versioned store."""
        return self.versioned_output

    def use_versioned_semantics(self, parent: str) -> None:  # noqa: ARG002 (one input is all a processor has)
        """Tell the definition of a table operator; others do not care."""
        method = getattr(self.factory, "use_versioned_semantics", None)
        if method is not None:
            method()

    def write(self, topology: TopologyBuilder) -> None:
        """Add the processor, its own stores, and connect the others."""
        topology.add_processor(self.name, self.factory, self.parent_names)
        for store in self.stores:
            topology.add_state_store(store, (self.name,))
        if self.store_names:
            topology.connect_processor_and_state_stores(self.name, self.store_names)


class SinkStep(GraphNode):
    """Writes to a topic."""

    def __init__(
        self,
        name: str,
        topic: str | TopicNameExtractor,
        key_serde: Serde[Any] | None,
        value_serde: Serde[Any] | None,
        partitioner: StreamPartitioner | None,
    ) -> None:
        super().__init__(name)
        self.topic = topic
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.partitioner = partitioner

    def write(self, topology: TopologyBuilder) -> None:
        """Add the sink."""
        static = isinstance(self.topic, str)
        topology.add_sink(
            SinkNode(
                self.name,
                self.parent_names,
                self.topic if isinstance(self.topic, str) else None,
                None if static else self.topic,  # type: ignore[arg-type]
                self.key_serde,
                self.value_serde,
                self.partitioner,
            )
        )


class StoreStep(GraphNode):
    """A store that operators refer to by name."""

    def __init__(self, store: StoreBuilder) -> None:
        super().__init__(store.name)
        self.store = store

    def write(self, topology: TopologyBuilder) -> None:
        """Add the store; adding the same builder twice is fine."""
        topology.add_state_store(self.store)


class GlobalStoreStep(GraphNode):
    """A store that every instance fills with a whole topic."""

    def __init__(self, store: StoreBuilder, source: SourceNode, processor_name: str, factory: NodeFactory) -> None:
        super().__init__(processor_name)
        self.store = store
        self.source = source
        self.factory = factory

    def write(self, topology: TopologyBuilder) -> None:
        """Add source, processor and store."""
        topology.add_global_store(self.store, source=self.source, processor_name=self.name, factory=self.factory)
