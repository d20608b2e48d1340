"""The nodes of the logical graph, and how each is written into the physical topology.

A logical node may become several physical ones (a repartition is a filter, a sink and a source). `name` is the name
of the physical node whose output is the logical node's output. The optimiser looks at the flags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from millrace.checks import Call
from millrace.processor.api import StreamPartitioner, TopicNameExtractor
from millrace.processor.node import NodeFactory
from millrace.serdes.base import AnySerde
from millrace.topology.builder import TopologyBuilder
from millrace.topology.physical_topology import DeclaredStore, SinkNode, SourceNode

T = TypeVar("T")


class GraphNode:
    """A node with ordered parents and children."""

    key_changing = False
    value_changing = False
    is_merge = False
    takes_null_keys = False
    """Whether it is a join that keeps records with null keys (KIP-962)."""
    window_grace_ms: int | None = None
    """How long after their end the windows of its output can change; None if that depends on the parents."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.build_priority = 0
        self.written = False
        self.call = Call("", "")
        """The user's call that added it."""
        self._parents: dict[GraphNode, None] = {}
        self._children: dict[GraphNode, None] = {}

    @property
    def parents(self) -> tuple[GraphNode, ...]:
        """Where its records come from, in the order they were connected."""
        return tuple(self._parents)

    @property
    def children(self) -> tuple[GraphNode, ...]:
        """Where its records go."""
        return tuple(self._children)

    @property
    def parent_names(self) -> tuple[str, ...]:
        """The physical names of its parents."""
        return tuple(parent.name for parent in self._parents)

    @property
    def origin(self) -> str:
        """Where its records come from, for people."""
        return f"from {', '.join(self.parent_names)}"

    def add_child(self, child: GraphNode) -> None:
        """Connect a child below this node."""
        self._children[child] = None
        child._parents[self] = None

    def remove_child(self, child: GraphNode) -> None:
        """Cut the edge to a child."""
        self._children.pop(child, None)
        child._parents.pop(self, None)

    def clear_children(self) -> None:
        """Cut the edges to all children."""
        for child in self.children:
            self.remove_child(child)

    @property
    def output_versioned(self) -> bool | None:
        """Whether the records it forwards come from a versioned table; None if that depends on its parents."""
        return None

    @property
    def is_versioned(self) -> bool:
        """Whether the records it forwards come from a versioned table, its own or one upstream."""
        return all(self._nearest(lambda node: node.output_versioned))

    def longest_grace_ms(self) -> int | None:
        """Return how long windows can change after their end, by the windowed aggregations upstream; None if there are none."""
        return max(self._nearest(lambda node: node.window_grace_ms), default=None)

    def _nearest(self, value: Callable[[GraphNode], T | None]) -> Iterator[T]:
        """Yield the value of this node or, if it has none, of the nearest nodes upstream that have one.

        It visits each node once: chains may be long, and branches that meet again and again have many paths.
        """
        waiting, seen = [self], {self}
        while waiting:
            node = waiting.pop()
            found = value(node)
            if found is not None:
                yield found
            else:
                waiting += (parent for parent in node.parents if parent not in seen)
                seen.update(node.parents)

    def use_versioned_semantics(self, parent: str) -> None:
        """Expect out-of-order updates from this parent; called if the parent is versioned."""

    def write(self, topology: TopologyBuilder) -> None:
        """Add the physical nodes."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class Root(GraphNode):
    """The root, whose children are the sources."""

    def __init__(self) -> None:
        super().__init__("root")

    @property
    def output_versioned(self) -> bool | None:
        """Sources read topics, not tables."""
        return False

    def write(self, topology: TopologyBuilder) -> None:
        """Write nothing."""


class ProcessorStep(GraphNode):
    """A processor, its own stores, and the names of other stores it uses."""

    def __init__(
        self,
        name: str,
        factory: NodeFactory,
        *,
        stores: Sequence[DeclaredStore] = (),
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
        """Whether its output is kept in a versioned store; None if it does not have its own store."""

    @property
    def output_versioned(self) -> bool | None:
        """Whether its output is kept in a versioned store."""
        return self.versioned_output

    def use_versioned_semantics(self, parent: str) -> None:  # noqa: ARG002 (one input is all a processor has)
        """Tell the operator, if it treats out-of-order updates of a versioned table in a special way (KIP-914)."""
        use: Callable[[], None] | None = getattr(self.factory, "use_versioned_semantics", None)
        if use is not None:
            use()

    def write(self, topology: TopologyBuilder) -> None:
        """Add the processor and its own stores, and connect the others."""
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
        key_serde: AnySerde | None,
        value_serde: AnySerde | None,
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

    def __init__(self, store: DeclaredStore) -> None:
        super().__init__(store.name)
        self.store = store

    def write(self, topology: TopologyBuilder) -> None:
        """Add the store; adding the same builder twice is fine."""
        topology.add_state_store(self.store)


class GlobalStoreStep(GraphNode):
    """A store that every instance fills with a whole topic."""

    def __init__(self, store: DeclaredStore, source: SourceNode, processor_name: str, factory: NodeFactory) -> None:
        super().__init__(processor_name)
        self.store = store
        self.source = source
        self.factory = factory

    def write(self, topology: TopologyBuilder) -> None:
        """Add source, processor and store."""
        topology.add_global_store(self.store, source=self.source, processor_name=self.name, factory=self.factory)
