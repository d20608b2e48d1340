"""Joins of two tables by key in the logical graph."""

from __future__ import annotations

from millrace.dsl.graph.node import GraphNode
from millrace.dsl.processors.table_join import TableJoinMerge, TableJoinSide
from millrace.state.api import StoreBuilder
from millrace.topology.builder import TopologyBuilder


class TableTableJoin(GraphNode):
    """Both join processors, the merge of their results, and the joined table's store. Its name is that of the merge."""

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
        store: StoreBuilder | None,
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
        """Whether the joined table is kept in a versioned store; without a store nothing behind a join is versioned."""
        return bool(self._versioned_output)

    def use_versioned_semantics(self, parent: str) -> None:
        """Tell the side that the parent feeds."""
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
