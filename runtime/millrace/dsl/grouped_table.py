"""`KGroupedTable`: the entries of a table grouped by another key, ready to be aggregated."""

# ruff: noqa: SLF001 (tables and their groupings are one facade)
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from millrace.checks import callback
from millrace.config import StreamsConfig
from millrace.dsl.abstract_stream import AbstractStream
from millrace.dsl.graph.nodes import GraphNode, ProcessorStep
from millrace.dsl.graph.repartition import REPARTITION_SUFFIX, SINK, SOURCE, TableRepartition
from millrace.dsl.options.grouped import Grouped
from millrace.dsl.options.materialized import Materialized
from millrace.dsl.options.named import Named, name_of
from millrace.dsl.processors.table_aggregate import TableAggregate
from millrace.dsl.stores import TableOptions, table_options
from millrace.errors import ConfigError
from millrace.serdes import ChangeSerde, Serdes
from millrace.serdes.base import AnySerde
from millrace.topology.physical_topology import DeferredSerde

if TYPE_CHECKING:
    from millrace.dsl.ktable import KTable

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")

AGGREGATE = "KTABLE-AGGREGATE-"
REDUCE = "KTABLE-REDUCE-"


class KGroupedTable(AbstractStream[K, V]):
    """Made by `KTable.group_by`. When an entry changes, its old value is removed from its group and its new value added."""

    _ELSEWHERE: ClassVar = {
        "windowed_by": "only streams have windows: to_stream().group_by_key().windowed_by(…) of the table"
    }

    def __init__(self, table: KTable[Any, Any], node: GraphNode, grouped: Grouped[K, V]) -> None:
        super().__init__(
            table._graph,
            node.name,
            node,
            sources=table._sources,
            key_serde=grouped.key_serde,
            value_serde=grouped.value_serde,
        )
        self._table_class = type(table)
        self._grouped = grouped
        self._repartition_node: TableRepartition | None = None

    def count(
        self, materialized: Materialized[K, int] | str | None = None, *, named: Named | str | None = None
    ) -> KTable[K, int]:
        """Count the entries of each group, as a 64-bit integer.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     by_letter = words.to_table().group_by(lambda key, word: (word[0], word))
            ...     return by_letter.count().to_stream().map_values(str)
            >>> run(build, ("1", "ant"), ("2", "asp"), ("1", "bee"))
            [('a', '1'), ('a', '2'), ('a', '1'), ('b', '1')]
        """
        options = table_options(materialized, self._graph.names, AGGREGATE)
        options = options.with_defaults(self._grouped.key_serde, Serdes.long())
        processor = TableAggregate(
            options.store_name,
            lambda _key, _value, count: (count or 0) + 1,
            lambda _key, _value, count: count - 1,
            initial_time_counts=True,
        )
        return self._aggregated(AGGREGATE, options, named, processor)

    def reduce(
        self,
        adder: Callable[[V, V], V],
        subtractor: Callable[[V, V], V],
        materialized: Materialized[K, V] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, V]:
        """Combine the values of each group.

        Args:
            adder: gets the value so far and the one to add; the first value is the initial result.
            subtractor: gets the value so far and the one to remove.
            materialized: how the table is kept.
            named: the node's name.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(amounts):
            ...     grouped = amounts.to_table().group_by(lambda key, amount: ("sum", amount))
            ...     add = lambda total, amount: str(int(total) + int(amount))
            ...     take = lambda total, amount: str(int(total) - int(amount))
            ...     return grouped.reduce(add, take).to_stream()
            >>> run(build, ("a", "1"), ("b", "5"), ("a", "2"))
            [('sum', '1'), ('sum', '6'), ('sum', '7')]
        """
        callback(adder, "adder", "old, new")
        callback(subtractor, "subtractor", "old, new")
        options = table_options(materialized, self._graph.names, AGGREGATE)  # not REDUCE: Kafka Streams names it so
        options = options.with_defaults(self._grouped.key_serde, self._grouped.value_serde)
        processor = TableAggregate(
            options.store_name,
            lambda _key, value, so_far: value if so_far is None else adder(so_far, value),
            lambda _key, value, so_far: subtractor(so_far, value),
            initial_time_counts=False,
        )
        return self._aggregated(REDUCE, options, named, processor)

    def aggregate(
        self,
        initializer: Callable[[], A],
        adder: Callable[[K, V, A], A | None],
        subtractor: Callable[[K, V, A], A | None],
        materialized: Materialized[K, A] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, A]:
        """Fold the values of each group into an aggregate.

        Args:
            initializer: returns the initial aggregate of a group.
            adder: gets group key, value and aggregate when an entry is added to the group.
            subtractor: the same, when an entry is removed from the group.
            materialized: how the table is kept; give it the aggregates' serde.
            named: the node's name.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     grouped = words.to_table().group_by(lambda key, word: (word[0], word))
            ...     add = lambda key, word, joined: joined + word
            ...     take = lambda key, word, joined: joined.replace(word, "", 1)
            ...     return grouped.aggregate(str, add, take).to_stream()
            >>> run(build, ("1", "ant"), ("2", "asp"), ("1", "ape"))
            [('a', 'ant'), ('a', 'antasp'), ('a', 'aspape')]
        """
        callback(initializer, "initializer", "")
        callback(adder, "adder", "key, value, aggregate")
        callback(subtractor, "subtractor", "key, value, aggregate")
        options = table_options(materialized, self._graph.names, AGGREGATE).with_defaults(self._grouped.key_serde)
        processor = TableAggregate(
            options.store_name,
            lambda key, value, so_far: adder(key, value, initializer() if so_far is None else so_far),
            subtractor,
            initial_time_counts=True,
        )
        return self._aggregated(AGGREGATE, options, named, processor)

    def _aggregated(
        self, prefix: str, options: TableOptions, named: Named | str | None, processor: TableAggregate
    ) -> KTable[K, Any]:
        names, given = self._graph.names, name_of(named)
        sink = names.processor(SINK, given, "-sink")
        source = names.processor(SOURCE, given, "-source")
        name = names.processor(prefix, given)
        if self._repartition_node is None or self._grouped.name is None:
            self._repartition_node = self._new_repartition(sink, source, options)
        self._graph.add(self._node, self._repartition_node)
        store = options.store()
        node = ProcessorStep(name, processor, stores=(store,))
        node.versioned_output = store.versioned
        self._graph.add(self._repartition_node, node)
        return self._table_class(
            self._graph,
            name,
            node,
            processor,
            sources=(self._repartition_node.name,),
            key_serde=options.option.key_serde,
            value_serde=options.option.value_serde,
            queryable_store_name=options.queryable_name,
        )

    def _new_repartition(self, sink: str, source: str, options: TableOptions) -> TableRepartition:
        base = self._grouped.name if self._grouped.name is not None else options.store_name
        return TableRepartition(
            sink=sink,
            source=source,
            topic=base + REPARTITION_SUFFIX,
            key_serde=self._grouped.key_serde,
            change_serde=DeferredSerde(self._change_serde),
            name_is_generated=self._grouped.name is None and not options.queryable,
        )

    def _change_serde(self, config: StreamsConfig) -> AnySerde:
        """Return the serde of the repartition topic, which wraps the given or the default value serde."""
        given = self._grouped.value_serde
        inner = given if given is not None else Serdes.default_value(config)
        if inner is None:
            raise ConfigError(
                "A grouped table has no value serde: give group_by a Grouped with one, or set default.value.serde"
            )
        return ChangeSerde(inner, allow_both=not config.may_run_before(3, 5))
