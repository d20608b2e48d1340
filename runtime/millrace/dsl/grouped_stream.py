"""`KGroupedStream`: the records of a stream grouped by key, ready to be aggregated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, overload

from millrace.checks import callback
from millrace.dsl.cogrouped_stream import CogroupedKStream
from millrace.dsl.ktable import KTable
from millrace.dsl.options.materialized import Materialized
from millrace.dsl.options.named import Named, name_of
from millrace.dsl.processors.aggregate import StreamAggregate, StreamReduce, count_aggregator
from millrace.dsl.stores import table_options
from millrace.dsl.stream_aggregation import AbstractKGroupedStream, check_windows
from millrace.dsl.windowed_stream import SessionWindowedKStream, TimeWindowedKStream
from millrace.dsl.windows import SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows
from millrace.serdes import Serdes

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")

AGGREGATE = "KSTREAM-AGGREGATE-"
REDUCE = "KSTREAM-REDUCE-"


class KGroupedStream(AbstractKGroupedStream[K, V]):
    """Made by `KStream.group_by` and `group_by_key`. Records without key or value are dropped by the aggregations."""

    _ELSEWHERE: ClassVar = dict.fromkeys(
        ("to", "to_stream", "suppress", "map_values"), "aggregate it first: count(), reduce(…) or aggregate(…)"
    )

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
