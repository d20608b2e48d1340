"""`KTable`: the latest value of each key, as it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from millrace.dsl.graph.builder import GraphBuilder
from millrace.dsl.graph.node import GraphNode
from millrace.dsl.graph.steps import ProcessorStep
from millrace.dsl.materializing import TableOptions, table_options
from millrace.dsl.options.grouping import Materialized
from millrace.dsl.options.naming import Named, name_of
from millrace.dsl.processors import stateless
from millrace.dsl.processors.table_basics import TableFilter, TableMapValues, table_to_stream
from millrace.dsl.processors.tables import TableProcessor
from millrace.serdes.base import Serde

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")

FILTER = "KTABLE-FILTER-"
MAP_VALUES = "KTABLE-MAPVALUES-"
TO_STREAM = "KTABLE-TOSTREAM-"


class KTable(Generic[K, V]):
    """A table with keys of type K and values of type V. Made by `StreamsBuilder.table`, aggregations and operators."""

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
        self._graph = graph
        self._name = name
        self._node = node
        self._processor = processor
        self._sources = frozenset(sources)
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._queryable_store_name = queryable_store_name

    @property
    def queryable_store_name(self) -> str | None:
        """The name by which the store can be queried, None if there is none."""
        return self._queryable_store_name

    def filter(
        self,
        predicate: Callable[[K, V], Any],
        materialized: Materialized[K, V] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, V]:
        """Keep the entries for which the predicate is true; others are deleted downstream."""
        return self._filtered(predicate, materialized, named, negate=False)

    def filter_not(
        self,
        predicate: Callable[[K, V], Any],
        materialized: Materialized[K, V] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, V]:
        """Drop the entries for which the predicate is true."""
        return self._filtered(predicate, materialized, named, negate=True)

    def _filtered(
        self, predicate: Callable[[K, V], Any], materialized: Any, named: Named | str | None, *, negate: bool
    ) -> KTable[K, V]:
        options = table_options(materialized).with_defaults(self._key_serde, self._value_serde)
        name = self._graph.names.processor(FILTER, name_of(named))
        processor = TableFilter(
            self._processor, predicate, negate=negate, queryable_name=options.queryable_name
        )
        return self._derived(name, options, processor)

    def map_values(
        self,
        mapper: Callable[[V], V2],
        materialized: Materialized[K, V2] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, V2]:
        """Replace the values; deletions stay deletions."""
        return self.map_values_with_key(lambda _key, value: mapper(value), materialized, named=named)

    def map_values_with_key(
        self,
        mapper: Callable[[K, V], V2],
        materialized: Materialized[K, V2] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, V2]:
        """Replace the values by what key and value make."""
        options = table_options(materialized).with_defaults(self._key_serde)
        name = self._graph.names.processor(MAP_VALUES, name_of(named))
        processor = TableMapValues(self._processor, mapper, queryable_name=options.queryable_name)
        return self._derived(name, options, processor)

    def to_stream(self, *, named: Named | str | None = None) -> KStream[K, V]:
        """Send every update on as a record; None is a deletion."""
        node = ProcessorStep(self._graph.names.processor(TO_STREAM, name_of(named)), table_to_stream())
        self._graph.add(self._node, node)
        return KStream(
            self._graph,
            node.name,
            node,
            sources=self._sources,
            key_serde=self._key_serde,
            value_serde=self._value_serde,
        )

    def _derived(self, name: str, options: TableOptions, processor: Any) -> KTable[K, Any]:
        stores = (options.store(),) if options.queryable else ()
        node = ProcessorStep(name, processor, stores=stores)
        self._graph.add(self._node, node)
        return KTable(
            self._graph,
            name,
            node,
            processor,
            sources=self._sources,
            key_serde=options.option.key_serde,
            value_serde=options.option.value_serde,
            queryable_store_name=options.queryable_name,
        )


from millrace.dsl.kstream import KStream  # noqa: E402 (streams and tables make each other)
