"""`KGroupedStream`: the records of a stream grouped by key, ready to be aggregated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar, overload

from millrace.checks import callback
from millrace.dsl.abstract_stream import AbstractStream
from millrace.dsl.cogrouped_stream import CogroupedKStream
from millrace.dsl.graph.builder import GraphBuilder
from millrace.dsl.graph.nodes import GraphNode, ProcessorStep
from millrace.dsl.graph.repartition import Repartition
from millrace.dsl.ktable import KTable
from millrace.dsl.options.materialized import Materialized
from millrace.dsl.options.named import Named, name_of
from millrace.dsl.processors.aggregate import StreamAggregate, StreamReduce, count_aggregator
from millrace.dsl.processors.tables import TableProcessor
from millrace.dsl.stores import TableOptions, table_options
from millrace.dsl.windowed_stream import SessionWindowedKStream, TimeWindowedKStream, WindowedTable, check_windows
from millrace.dsl.windows import SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows
from millrace.serdes import Serdes
from millrace.serdes.base import Serde

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")

AGGREGATE = "KSTREAM-AGGREGATE-"
REDUCE = "KSTREAM-REDUCE-"


class KGroupedStream(AbstractStream[K, V]):
    """Made by `KStream.group_by` and `group_by_key`. Records without key or value are dropped by the aggregations."""

    _ELSEWHERE: ClassVar = dict.fromkeys(
        ("to", "to_stream", "suppress", "map_values"), "aggregate it first: count(), reduce(…) or aggregate(…)"
    )

    def __init__(
        self,
        graph: GraphBuilder,
        name: str,
        node: GraphNode,
        *,
        sources: Iterable[str],
        key_serde: Serde[K] | None,
        value_serde: Serde[V] | None,
        repartition_required: bool,
        repartition_name: str | None,
    ) -> None:
        super().__init__(graph, name, node, sources=sources, key_serde=key_serde, value_serde=value_serde)
        self._repartition_required = repartition_required
        self._repartition_name = repartition_name
        self._repartition_node: Repartition | None = None

    def _details(self) -> tuple[str, ...]:
        if not self._repartition_required:
            return ()
        name = "a topic named after the store" if self._repartition_name is None else self._repartition_name
        return (f"to be repartitioned through {name}",)

    def count(
        self, materialized: Materialized[K, int] | str | None = None, *, named: Named | str | None = None
    ) -> KTable[K, int]:
        """Count the records of each key, as a 64-bit integer.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.group_by_key().count("counts").to_stream().map_values(str), ("a", "x"), ("a", "y"))
            [('a', '1'), ('a', '2')]
        """
        options = table_options(materialized, self._graph.names, AGGREGATE)
        options = options.with_defaults(self._key_serde, Serdes.long())
        name = self._graph.names.processor(AGGREGATE, name_of(named))
        processor = StreamAggregate(options.store_name, int, count_aggregator)
        return self._aggregated(name, options, processor)

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        materialized: Materialized[K, V] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, V]:
        """Combine the values of each key, starting with the first one.

        Args:
            reducer: gets the value so far and the new one; returning None deletes the key.
            materialized: how the table is kept.
            named: the node's name.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.group_by_key().reduce(lambda old, new: old + new).to_stream(), ("k", "a"), ("k", "b"))
            [('k', 'a'), ('k', 'ab')]
        """
        callback(reducer, "reducer", "old, new")
        options = table_options(materialized, self._graph.names, REDUCE)
        options = options.with_defaults(self._key_serde, self._value_serde)
        name = self._graph.names.processor(REDUCE, name_of(named))
        return self._aggregated(name, options, StreamReduce(options.store_name, reducer))

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        materialized: Materialized[K, A] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, A]:
        """Fold the values of each key into an aggregate.

        Args:
            initializer: returns the initial aggregate of a key.
            aggregator: gets key, value and the aggregate so far; returning None deletes the key.
            materialized: how the table is kept; give it the aggregates' serde.
            named: the node's name.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     return words.group_by_key().aggregate(str, lambda key, value, joined: joined + value).to_stream()
            >>> run(build, ("k", "a"), ("k", "b"))
            [('k', 'a'), ('k', 'ab')]
        """
        callback(initializer, "initializer", "")
        callback(aggregator, "aggregator", "key, value, aggregate")
        options = table_options(materialized, self._graph.names, AGGREGATE).with_defaults(self._key_serde)
        name = self._graph.names.processor(AGGREGATE, name_of(named))
        return self._aggregated(name, options, StreamAggregate(options.store_name, initializer, aggregator))

    @overload
    def windowed_by(self, windows: TimeWindows | UnlimitedWindows | SlidingWindows) -> TimeWindowedKStream[K, V]: ...
    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream[K, V]: ...
    def windowed_by(self, windows: Any) -> Any:
        """Aggregate by key and window of time.

        Example:
            >>> from millrace.dsl import TimeWindows
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     windows = TimeWindows.of_size_with_no_grace(10)
            ...     counts = words.group_by_key().windowed_by(windows).count().to_stream()
            ...     return counts.map(lambda windowed, count: (windowed.key, f"{windowed.window.start}: {count}"))
            >>> run(build, ("k", "a"), ("k", "b"))
            [('k', '0: 1'), ('k', '0: 2')]
        """
        check_windows(windows)
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(self, windows)
        return TimeWindowedKStream(self, windows)

    def cogroup(self, aggregator: Callable[[K, V, A], A | None]) -> CogroupedKStream[K, A]:
        """Start aggregating several grouped streams into one table, this one with the given aggregator.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     return words.group_by_key().cogroup(lambda key, value, so_far: so_far + value).aggregate(str).to_stream()
            >>> run(build, ("k", "a"), ("k", "b"))
            [('k', 'a'), ('k', 'ab')]
        """
        callback(aggregator, "aggregator", "key, value, aggregate")
        return CogroupedKStream.beginning_with(self, aggregator)

    # Building blocks.

    def _aggregated(
        self,
        name: str,
        options: TableOptions,
        processor: TableProcessor,
        windowed: WindowedTable | None = None,
    ) -> KTable[Any, Any]:
        """Add an aggregation; the stream is repartitioned first if its key has changed."""
        parent, sources = self._repartitioned(options)
        store = options.store() if windowed is None else options.store(windowed.store, windowed.windows)
        node = ProcessorStep(name, processor, stores=(store,))
        node.window_grace_ms = None if windowed is None else windowed.grace_ms
        node.versioned_output = store.versioned
        self._graph.add(parent, node)
        return KTable(
            self._graph,
            name,
            node,
            processor,
            sources=sources,
            key_serde=options.option.key_serde if windowed is None else windowed.key_serde,
            value_serde=options.option.value_serde,
            queryable_store_name=options.queryable_name,
        )

    def _repartitioned(self, options: TableOptions) -> tuple[GraphNode, frozenset[str]]:
        """Return the node whose records are aggregated; all aggregations share a repartition topic that has a name."""
        if not self._repartition_required:
            return self._node, self._sources
        node = self._new_repartition(options)
        if self._repartition_node is None or self._repartition_name is None:
            self._repartition_node = node
        self._graph.add(self._node, self._repartition_node)
        return self._repartition_node, frozenset((node.name,))

    def _new_repartition(self, options: TableOptions) -> Repartition:
        given = self._repartition_name
        return Repartition(
            self._graph.names,
            given if given is not None else options.store_name,
            key_serde=self._key_serde,
            value_serde=self._value_serde,
            name_is_generated=given is None and not options.queryable,
        )
