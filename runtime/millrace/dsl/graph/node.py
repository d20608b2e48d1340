"""One step of the logical graph, and how it is written into the physical topology.

A logical node may become several physical ones (a repartition is a filter, a sink and a source). `name` is that of the
physical node whose output is the step's output. The flags are what the optimiser looks at.
"""

from __future__ import annotations

from millrace.topology.builder import TopologyBuilder


class GraphNode:
    """A node with ordered parents and children."""

    key_changing = False
    value_changing = False
    is_merge = False
    takes_null_keys = False
    """Whether it is a join in which records with null keys take part (KIP-962)."""
    window_grace_ms: int | None = None
    """How long after its end the windows of its output can change; None where the parents decide that."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.build_priority = 0
        self.written = False
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
        """Whether the records it sends on come from a versioned table; None when that depends on its parents."""
        return None

    def use_versioned_semantics(self, parent: str) -> None:
        """Take out-of-order updates of the named parent for what they are; called when that parent is versioned."""

    def write(self, topology: TopologyBuilder) -> None:
        """Add the physical nodes."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class Root(GraphNode):
    """What all sources hang from."""

    def __init__(self) -> None:
        super().__init__("root")

    def write(self, topology: TopologyBuilder) -> None:
        """Write nothing."""
