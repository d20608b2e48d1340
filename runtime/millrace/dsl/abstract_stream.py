"""What streams, tables and their groupings share: a node of the graph, the sources upstream of it, and serdes.

Joins are written against these base classes and return objects of the type they are given, so they do not need to import
`KStream` and `KTable`, which import them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Self, TypeVar

from millrace.checks import Suggesting, mistake
from millrace.dsl.graph.builder import GraphBuilder
from millrace.dsl.graph.nodes import GraphNode
from millrace.dsl.graph.repartition import Repartition
from millrace.dsl.processors.tables import TableProcessor
from millrace.dsl.stores import TableOptions
from millrace.serdes.base import Serde

K = TypeVar("K")
V = TypeVar("V")


class AbstractStream(Suggesting, Generic[K, V]):
    """A stream, a table, or a grouping of either."""

    def __init__(
        self,
        graph: GraphBuilder,
        name: str,
        node: GraphNode,
        *,
        sources: Iterable[str],
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
    ) -> None:
        self._graph = graph
        self._name = name
        self._node = node
        self._sources = frozenset(sources)
        self._key_serde = key_serde
        self._value_serde = value_serde

    def _require_same_builder(self, other: AbstractStream[Any, Any]) -> None:
        """Check that another stream or table comes from the same builder.

        Raises:
            TopologyError: it does not.
        """
        if self._graph is not other._graph:
            raise mistake(f"{self!r} and {other!r} belong to different StreamsBuilders; build both with the same one")

    def _copartition_with(self, other: AbstractStream[Any, Any]) -> frozenset[str]:
        """Require equal partition counts, and return the sources of both."""
        sources = self._sources | other._sources
        self._graph.topology.copartition_sources(sorted(sources))
        return sources

    def _details(self) -> tuple[str, ...]:
        """Return what else to show of it."""
        return ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join((self._name, self._node.origin, *self._details()))})"


class AbstractKStream(AbstractStream[K, V]):
    """A stream without its operators."""

    def __init__(
        self,
        graph: GraphBuilder,
        name: str,
        node: GraphNode,
        *,
        sources: Iterable[str],
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
        repartition_required: bool = False,
    ) -> None:
        super().__init__(graph, name, node, sources=sources, key_serde=key_serde, value_serde=value_serde)
        self._repartition_required = repartition_required
        self._repartition_node: Repartition | None = None

    def _details(self) -> tuple[str, ...]:
        return ("its key has changed",) if self._repartition_required else ()

    def _repartitioned_for_join(self, name: str, key_serde: Serde[K] | None, value_serde: Serde[V] | None) -> Self:
        """Return this stream behind a repartition topic; joins without a name of their own share one."""
        keys = key_serde if key_serde is not None else self._key_serde
        values = value_serde if value_serde is not None else self._value_serde
        generated = name == self._name
        node = Repartition(self._graph.names, name, key_serde=keys, value_serde=values, name_is_generated=generated)
        if self._repartition_node is None or not generated:
            self._repartition_node = node
            self._graph.add(self._node, node)
        return type(self)(
            self._graph,
            node.name,
            self._repartition_node,
            sources=(node.name,),
            key_serde=keys,
            value_serde=values,
        )


class AbstractKTable(AbstractStream[K, V]):
    """A table without its operators."""

    def __init__(
        self,
        graph: GraphBuilder,
        name: str,
        node: GraphNode,
        processor: TableProcessor,
        *,
        sources: Iterable[str],
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
        queryable_store_name: str | None = None,
    ) -> None:
        super().__init__(graph, name, node, sources=sources, key_serde=key_serde, value_serde=value_serde)
        self._processor = processor
        self._queryable_store_name = queryable_store_name

    def _details(self) -> tuple[str, ...]:
        return () if self._queryable_store_name is None else (f"store {self._queryable_store_name}",)

    @classmethod
    def _from_node(
        cls,
        graph: GraphBuilder,
        node: GraphNode,
        processor: TableProcessor,
        options: TableOptions,
        *,
        sources: Iterable[str],
    ) -> Self:
        """Return the table that a node yields, with the serdes and the name of the options."""
        return cls(
            graph,
            node.name,
            node,
            processor,
            sources=sources,
            key_serde=options.option.key_serde,
            value_serde=options.option.value_serde,
            queryable_store_name=options.queryable_name,
        )
