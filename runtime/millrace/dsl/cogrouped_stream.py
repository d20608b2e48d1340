"""`CogroupedKStream`: several grouped streams, each with its own aggregator, aggregated into one table (KIP-150)."""

# ruff: noqa: SLF001 (grouped streams and their tables are one facade)
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from millrace.checks import Suggesting, callback, instance
from millrace.dsl.graph.nodes import ProcessorStep
from millrace.dsl.ktable import KTable
from millrace.dsl.options.materialized import AnyMaterialized, Materialized
from millrace.dsl.options.named import Named, name_of
from millrace.dsl.processors.aggregate import CogroupMerge, StreamAggregate
from millrace.dsl.processors.session_aggregate import SessionAggregate
from millrace.dsl.stores import TableOptions, table_options
from millrace.dsl.stream_aggregation import WindowedTable, check_windows, windowed_aggregate
from millrace.dsl.windows import EmitStrategy, SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows
from millrace.records import Windowed

if TYPE_CHECKING:
    from millrace.dsl.grouped_stream import KGroupedStream

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")

AGGREGATE = "COGROUPKSTREAM-AGGREGATE-"

Aggregator = Callable[[Any, Any, Any], object]


class CogroupedKStream(Suggesting, Generic[K, A]):
    """Made by `KGroupedStream.cogroup`. All inputs must have keys of the same type and be partitioned in the same way."""

    def __init__(self, aggregators: dict[KGroupedStream[K, Any], Aggregator]) -> None:
        self._aggregators = aggregators

    def __repr__(self) -> str:
        return f"CogroupedKStream({', '.join(map(repr, self._aggregators))})"

    @classmethod
    def beginning_with(cls, grouped: KGroupedStream[K, V], aggregator: Aggregator) -> CogroupedKStream[K, A]:
        """Return a cogroup of one stream."""
        return cls({grouped: aggregator})

    def cogroup(
        self, grouped: KGroupedStream[K, V], aggregator: Callable[[K, V, A], A | None]
    ) -> CogroupedKStream[K, A]:
        """Add a stream.

        Args:
            grouped: a stream grouped by the same keys.
            aggregator: gets key and value of a record of that stream, and the aggregate so far.

        Raises:
            TopologyError: the streams come from different builders.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     small = words.filter(lambda key, value: value.islower()).group_by_key()
            ...     large = words.filter(lambda key, value: value.isupper()).group_by_key()
            ...     both = small.cogroup(lambda key, value, so_far: so_far + value)
            ...     return both.cogroup(large, lambda key, value, so_far: f"{so_far}({value})").aggregate(str).to_stream()
            >>> run(build, ("k", "a"), ("k", "B"))
            [('k', 'a'), ('k', 'a(B)')]
        """
        first = next(iter(self._aggregators))
        instance(grouped, "grouped", type(first), "a KGroupedStream", "group the stream first: group_by_key()")
        callback(aggregator, "aggregator", "key, value, aggregate")
        first._require_same_builder(grouped)
        return CogroupedKStream({**self._aggregators, grouped: aggregator})

    def aggregate(
        self,
        initializer: Callable[[], A],
        materialized: Materialized[K, A] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, A]:
        """Fold the records of all streams into one aggregate per key.

        Args:
            initializer: returns the initial aggregate of a key.
            materialized: how the table is kept; give it the serdes of keys and aggregates.
            named: prefix of the nodes' names.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     clicks = words.filter(lambda key, value: value == "click").group_by_key()
            ...     buys = words.filter(lambda key, value: value == "buy").group_by_key()
            ...     both = clicks.cogroup(lambda key, value, seen: seen + "c").cogroup(buys, lambda key, value, seen: seen + "B")
            ...     return both.aggregate(str).to_stream()
            >>> run(build, ("ann", "click"), ("ann", "buy"))
            [('ann', 'c'), ('ann', 'cB')]
        """
        callback(initializer, "initializer", "")
        options = self._options(materialized)
        return self._aggregated(
            options, named, lambda aggregator: StreamAggregate(options.store_name, initializer, aggregator)
        )

    @overload
    def windowed_by(
        self, windows: TimeWindows | UnlimitedWindows | SlidingWindows
    ) -> TimeWindowedCogroupedKStream[K, A]: ...
    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedCogroupedKStream[K, A]: ...
    def windowed_by(self, windows: Any) -> Any:
        """Aggregate by key and window of time.

        Example:
            >>> from millrace.dsl import TimeWindows
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     joined = words.group_by_key().cogroup(lambda key, value, so_far: so_far + value)
            ...     windowed = joined.windowed_by(TimeWindows.of_size_with_no_grace(2)).aggregate(str)
            ...     return windowed.to_stream().select_key(lambda windowed, value: f"{windowed.key}@{windowed.window.start}")
            >>> run(build, ("k", "a"), ("k", "b"), ("k", "c"))
            [('k@0', 'a'), ('k@0', 'ab'), ('k@2', 'c')]
        """
        check_windows(windows)
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self, windows)
        return TimeWindowedCogroupedKStream(self, windows)

    # Building blocks.

    def _options(self, materialized: AnyMaterialized | str | None) -> TableOptions:
        return table_options(materialized, next(iter(self._aggregators))._graph.names, AGGREGATE)

    def _aggregated(
        self,
        options: TableOptions,
        named: Named | str | None,
        make: Callable[[Aggregator], Any],
        windowed: WindowedTable | None = None,
    ) -> KTable[Any, Any]:
        """Add one aggregation per stream, all sharing one store, and a merge of their outputs."""
        groups = tuple(self._aggregators)
        graph = groups[0]._graph
        given = name_of(named)
        parents = [group._repartitioned(options)[0] for group in groups]
        graph.topology.copartition_sources(sorted(frozenset[str]().union(*(group._sources for group in groups))))
        store = options.store() if windowed is None else options.store(windowed.store, windowed.windows)
        steps: list[ProcessorStep] = []
        for index, aggregator in enumerate(self._aggregators.values()):
            name = graph.names.processor(AGGREGATE, given, f"-cogroup-agg-{index}")
            own = () if steps else (store,)
            steps.append(ProcessorStep(name, make(aggregator), stores=own, store_names=(store.name,) if steps else ()))
        merge = CogroupMerge([step.factory for step in steps])
        merge_step = ProcessorStep(graph.names.processor("COGROUPKSTREAM-MERGE-", given, "-cogroup-merge"), merge)
        for parent, step in zip(parents, steps, strict=True):
            step.window_grace_ms = None if windowed is None else windowed.grace_ms
            step.versioned_output = store.versioned
            graph.add(parent, step)
        graph.add(steps, merge_step)
        return KTable(
            graph,
            merge_step.name,
            merge_step,
            merge,
            sources=(merge_step.name,),
            key_serde=options.option.key_serde if windowed is None else windowed.key_serde,
            value_serde=options.option.value_serde,
            queryable_store_name=options.queryable_name,
        )


class TimeWindowedCogroupedKStream(Suggesting, Generic[K, A]):
    """Made by `CogroupedKStream.windowed_by` with time, sliding or unlimited windows."""

    def __init__(
        self, cogrouped: CogroupedKStream[K, A], windows: TimeWindows | UnlimitedWindows | SlidingWindows
    ) -> None:
        self._cogrouped = cogrouped
        self._windows = windows

    def __repr__(self) -> str:
        return f"TimeWindowedCogroupedKStream({self._cogrouped!r}, {self._windows!r})"

    def aggregate(
        self,
        initializer: Callable[[], A],
        materialized: Materialized[K, A] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Fold the records of all streams into one aggregate per key and window.

        Args:
            initializer: returns the initial aggregate of a window.
            materialized: how the table is kept; give it the serdes of keys and aggregates.
            named: prefix of the nodes' names.

        Example:
            >>> from millrace.dsl import SlidingWindows
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     joined = words.group_by_key().cogroup(lambda key, value, so_far: so_far + value)
            ...     sliding = joined.windowed_by(SlidingWindows.of_time_difference_with_no_grace(1)).aggregate(str)
            ...     return sliding.to_stream().select_key(lambda windowed, value: f"{windowed.key}@{windowed.window.start}")
            >>> run(build, ("k", "a"), ("k", "b"))
            [('k@0', 'a'), ('k@0', 'ab'), ('k@1', 'b')]
        """
        callback(initializer, "initializer", "")
        windows, update = self._windows, EmitStrategy.ON_WINDOW_UPDATE
        options = self._cogrouped._options(materialized)
        return self._cogrouped._aggregated(
            options,
            named,
            lambda aggregator: windowed_aggregate(options.store_name, windows, update, initializer, aggregator),
            WindowedTable.of(windows, options, update),
        )


class SessionWindowedCogroupedKStream(Suggesting, Generic[K, A]):
    """Made by `CogroupedKStream.windowed_by` with session windows."""

    def __init__(self, cogrouped: CogroupedKStream[K, A], windows: SessionWindows) -> None:
        self._cogrouped = cogrouped
        self._windows = windows

    def __repr__(self) -> str:
        return f"SessionWindowedCogroupedKStream({self._cogrouped!r}, {self._windows!r})"

    def aggregate(
        self,
        initializer: Callable[[], A],
        merger: Callable[[K, A, A], A],
        materialized: Materialized[K, A] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Fold the records of all streams into one aggregate per key and session.

        Args:
            initializer: returns the initial aggregate of a session.
            merger: gets the key and the aggregates of two sessions that a record has merged.
            materialized: how the table is kept; give it the serdes of keys and aggregates.
            named: prefix of the nodes' names.

        Example:
            >>> from millrace.dsl import SessionWindows
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     joined = words.group_by_key().cogroup(lambda key, value, so_far: so_far + value)
            ...     sessions = joined.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(5))
            ...     table = sessions.aggregate(str, lambda key, one, other: one + other)
            ...     return table.to_stream().select_key(lambda windowed, value: f"{windowed.window.start}-{windowed.window.end}")
            >>> run(build, ("k", "a"), ("k", "b"))
            [('0-0', 'a'), ('0-0', None), ('0-1', 'ab')]
        """
        callback(initializer, "initializer", "")
        callback(merger, "merger", "key, one, other")
        windows, update = self._windows, EmitStrategy.ON_WINDOW_UPDATE
        options = self._cogrouped._options(materialized)
        return self._cogrouped._aggregated(
            options,
            named,
            lambda aggregator: SessionAggregate(options.store_name, windows, update, initializer, aggregator, merger),
            WindowedTable.of(windows, options, update),
        )
