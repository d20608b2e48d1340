"""Joins in the logical graph: of two streams, and of two tables by key."""

from __future__ import annotations

from millrace.dsl.graph.nodes import GraphNode, ProcessorStep
from millrace.dsl.processors.table_join import TableJoinMerge, TableJoinSide
from millrace.processor.node import NodeFactory
from millrace.topology.builder import TopologyBuilder
from millrace.topology.physical_topology import DeclaredStore


class WindowedStore(ProcessorStep):
    """Puts the records of one side into its window store, and forwards them."""


class StreamStreamJoin(GraphNode):
    """Both join processors, the merge of their results, and the stores. It has the name of the merge."""

    def __init__(
        self,
        name: str,
        *,
        this_windowed_name: str,
        other_windowed_name: str,
        this_name: str,
        other_name: str,
        this_factory: NodeFactory,
        other_factory: NodeFactory,
        merge_factory: NodeFactory,
        self_join_factory: NodeFactory,
        this_store: DeclaredStore,
        other_store: DeclaredStore,
        outer_store: DeclaredStore | None,
        takes_null_keys: bool,
    ) -> None:
        super().__init__(name)
        self.this_windowed_name = this_windowed_name
        self.other_windowed_name = other_windowed_name
        self.takes_null_keys = takes_null_keys
        self._this_name = this_name
        self._other_name = other_name
        self._this_factory = this_factory
        self._other_factory = other_factory
        self._merge_factory = merge_factory
        self._self_join_factory = self_join_factory
        self._this_store = this_store
        self._other_store = other_store
        self._outer_store = outer_store
        self._is_self_join = False

    def become_self_join(self) -> None:
        """Join the only parent's records with the left side's store, and remove the right side's."""
        (parent,) = self.parents
        other = next(
            child
            for child in parent.children
            if isinstance(child, WindowedStore) and child.name == self.other_windowed_name
        )
        parent.remove_child(other)
        self._is_self_join = True

    def write(self, topology: TopologyBuilder) -> None:
        """Add the processors and stores."""
        if self._is_self_join:
            topology.add_processor(self.name, self._self_join_factory, (self.this_windowed_name,))
            topology.add_state_store(self._this_store, (self.this_windowed_name, self.name))
            return
        topology.add_processor(self._this_name, self._this_factory, (self.this_windowed_name,))
        topology.add_processor(self._other_name, self._other_factory, (self.other_windowed_name,))
        topology.add_processor(self.name, self._merge_factory, (self._this_name, self._other_name))
        topology.add_state_store(self._this_store, (self.this_windowed_name, self._other_name))
        topology.add_state_store(self._other_store, (self.other_windowed_name, self._this_name))
        if self._outer_store is not None:
            topology.add_state_store(self._outer_store, (self._this_name, self._other_name))


class TableTableJoin(GraphNode):
    """Both join processors, the merge of their results, and the joined table's store. It has the name of the merge."""

    def __init__(
        self,
        name: str,
        *,
        this_parent: str,
        other_parent: str,
        this_name: str,
        other_name: str,
        this: TableJoinSide,
        other: TableJoinSide,
        merge: TableJoinMerge,
        store: DeclaredStore | None,
        versioned_output: bool | None,
    ) -> None:
        super().__init__(name)
        self._this_parent = this_parent
        self._other_parent = other_parent
        self._this_name = this_name
        self._other_name = other_name
        self._this = this
        self._other = other
        self._merge = merge
        self._store = store
        self._versioned_output = versioned_output

    @property
    def output_versioned(self) -> bool | None:
        """Whether the joined table is kept in a versioned store; without a store the result of a join is never versioned."""
        return bool(self._versioned_output)

    def use_versioned_semantics(self, parent: str) -> None:
        """Tell the side whose updates come from that parent."""
        if parent == self._this_parent:
            self._this.use_versioned_semantics()
        if parent == self._other_parent:
            self._other.use_versioned_semantics()

    def write(self, topology: TopologyBuilder) -> None:
        """Add the processors, and connect each side to the stores of the other."""
        topology.add_processor(self._this_name, self._this, (self._this_parent,))
        topology.add_processor(self._other_name, self._other, (self._other_parent,))
        topology.add_processor(self.name, self._merge, (self._this_name, self._other_name))
        topology.connect_processor_and_state_stores(self._this_name, self._this.other_view.store_names)
        topology.connect_processor_and_state_stores(self._other_name, self._other.other_view.store_names)
        if self._store is not None:
            topology.add_state_store(self._store, (self.name,))
