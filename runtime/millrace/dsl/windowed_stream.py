"""`TimeWindowedKStream` and `SessionWindowedKStream`: a stream grouped by key and window, ready to be aggregated."""

# ruff: noqa: SLF001 (streams and their groupings are one facade)
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from millrace.checks import Suggesting, callback, instance, mistake
from millrace.dsl.ktable import KTable
from millrace.dsl.options.materialized import AnyMaterialized, Materialized
from millrace.dsl.options.named import Named, name_of
from millrace.dsl.processors.aggregate import count_aggregator
from millrace.dsl.processors.session_aggregate import SessionAggregate
from millrace.dsl.processors.tables import TableProcessor
from millrace.dsl.stores import table_options
from millrace.dsl.stream_aggregation import AbstractKGroupedStream, AnyWindows, WindowedTable, windowed_aggregate
from millrace.dsl.windows import (
    EmitStrategy,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
)
from millrace.records import Windowed
from millrace.serdes import Serdes
from millrace.serdes.base import AnySerde

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")

W = TypeVar("W", bound=AnyWindows)


class _WindowedKStream(Suggesting, Generic[K, V, W]):
    """A grouped stream with the windows to aggregate by."""

    def __init__(
        self, grouped: AbstractKGroupedStream[K, V], windows: W, emit: EmitStrategy = EmitStrategy.ON_WINDOW_UPDATE
    ) -> None:
        self._grouped = grouped
        self._windows = windows
        self._emit = emit

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._grouped!r}, {self._windows!r}, emits {self._emit.value})"

    def _table(
        self,
        prefix: str,
        materialized: AnyMaterialized | str | None,
        named: Named | str | None,
        value_serde: AnySerde | None,
        aggregation: Callable[[str], TableProcessor],
    ) -> KTable[Windowed[K], Any]:
        """Return the table of an aggregation, which is created once the name of its store is known."""
        grouped = self._grouped
        options = table_options(materialized, grouped._graph.names, prefix)
        options = options.with_defaults(grouped._key_serde, value_serde)
        name = grouped._graph.names.processor(prefix, name_of(named))
        processor = aggregation(options.store_name)
        return grouped._aggregated(name, options, processor, WindowedTable.of(self._windows, options, self._emit))


class TimeWindowedKStream(_WindowedKStream[K, V, TimeWindows | UnlimitedWindows | SlidingWindows]):
    """Made by `KGroupedStream.windowed_by` with time, sliding or unlimited windows."""

    def emit_strategy(self, strategy: EmitStrategy) -> TimeWindowedKStream[K, V]:
        """Emit results with every update, or only when a window is final.

        Raises:
            TopologyError: unlimited windows are never final.

        Example:
            >>> from millrace.dsl import EmitStrategy, TimeWindows
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     windowed = words.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(2))
            ...     counts = windowed.emit_strategy(EmitStrategy.on_window_close()).count().to_stream()
            ...     return counts.map(lambda windowed, count: (windowed.key, f"{windowed.window.start}: {count}"))
            >>> run(build, ("k", "a"), ("k", "b"), ("k", "c"))
            [('k', '0: 2')]
        """
        instance(strategy, "strategy", EmitStrategy, "an EmitStrategy", "EmitStrategy.on_window_close() for example")
        if strategy is EmitStrategy.ON_WINDOW_CLOSE and isinstance(self._windows, UnlimitedWindows):
            raise mistake("Unlimited windows never close; emit their results on update")
        return TimeWindowedKStream(self._grouped, self._windows, strategy)

    def count(
        self, materialized: Materialized[K, int] | str | None = None, *, named: Named | str | None = None
    ) -> KTable[Windowed[K], int]:
        """Count the records of each key and window.

        Example:
            >>> from millrace.dsl import TimeWindows
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     windows = TimeWindows.of_size_with_no_grace(2)
            ...     counts = words.group_by_key().windowed_by(windows).count().to_stream()
            ...     return counts.map(lambda windowed, count: (windowed.key, f"{windowed.window.start}: {count}"))
            >>> run(build, ("k", "a"), ("k", "b"), ("k", "c"))
            [('k', '0: 1'), ('k', '0: 2'), ('k', '2: 1')]
        """
        return self._aggregated(
            "KSTREAM-AGGREGATE-",
            materialized,
            named,
            Serdes.long(),
            initializer=int,
            aggregator=count_aggregator,
        )

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        materialized: Materialized[K, V] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[Windowed[K], V]:
        """Combine the values of each key and window, starting with the first one.

        Example:
            >>> from millrace.dsl import SlidingWindows
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     windows = SlidingWindows.of_time_difference_with_no_grace(1)
            ...     latest = words.group_by_key().windowed_by(windows).reduce(lambda old, new: old + new).to_stream()
            ...     return latest.select_key(lambda windowed, value: f"{windowed.key}@{windowed.window.start}")
            >>> run(build, ("k", "a"), ("k", "b"))
            [('k@0', 'a'), ('k@0', 'ab'), ('k@1', 'b')]
        """
        callback(reducer, "reducer", "old, new")
        return self._aggregated(
            "KSTREAM-REDUCE-",
            materialized,
            named,
            self._grouped._value_serde,
            initializer=lambda: None,
            aggregator=lambda _key, value, so_far: value if so_far is None else reducer(so_far, value),
        )

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        materialized: Materialized[K, A] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Fold the values of each key and window into an aggregate.

        Args:
            initializer: returns the initial aggregate of a window.
            aggregator: gets key, value and the aggregate so far; returning None deletes the window.
            materialized: how the table is kept; give it the aggregates' serde.
            named: the node's name.

        Example:
            >>> from millrace.dsl import TimeWindows
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     windowed = words.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(10))
            ...     joined = windowed.aggregate(str, lambda key, value, so_far: so_far + value)
            ...     return joined.to_stream().select_key(lambda windowed, value: windowed.key)
            >>> run(build, ("k", "a"), ("k", "b"))
            [('k', 'a'), ('k', 'ab')]
        """
        callback(initializer, "initializer", "")
        callback(aggregator, "aggregator", "key, value, aggregate")
        return self._aggregated(
            "KSTREAM-AGGREGATE-", materialized, named, None, initializer=initializer, aggregator=aggregator
        )

    def _aggregated(
        self,
        prefix: str,
        materialized: AnyMaterialized | str | None,
        named: Named | str | None,
        value_serde: AnySerde | None,
        *,
        initializer: Callable[[], object],
        aggregator: Callable[[Any, Any, Any], object],
    ) -> KTable[Windowed[K], Any]:
        return self._table(
            prefix,
            materialized,
            named,
            value_serde,
            lambda store: windowed_aggregate(store, self._windows, self._emit, initializer, aggregator),
        )


class SessionWindowedKStream(_WindowedKStream[K, V, SessionWindows]):
    """Made by `KGroupedStream.windowed_by` with session windows."""

    def emit_strategy(self, strategy: EmitStrategy) -> SessionWindowedKStream[K, V]:
        """Emit results with every update, or only when a session is final.

        Example:
            >>> from millrace.dsl import EmitStrategy, SessionWindows
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     sessions = words.group_by_key().windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(1))
            ...     counts = sessions.emit_strategy(EmitStrategy.on_window_close()).count().to_stream()
            ...     return counts.map(lambda windowed, count: (windowed.key, str(count)))
            >>> run(build, ("k", "a"), ("k", "b"), ("x", "c"), ("x", "d"))
            [('k', '2')]
        """
        instance(strategy, "strategy", EmitStrategy, "an EmitStrategy", "EmitStrategy.on_window_close() for example")
        return SessionWindowedKStream(self._grouped, self._windows, strategy)

    def count(
        self, materialized: Materialized[K, int] | str | None = None, *, named: Named | str | None = None
    ) -> KTable[Windowed[K], int]:
        """Count the records of each key and session.

        When a session grows, it is deleted under its old bounds and forwarded under its new ones.

        Example:
            >>> from millrace.dsl import SessionWindows
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     sessions = words.group_by_key().windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(5))
            ...     counts = sessions.count().to_stream()
            ...     return counts.map(lambda windowed, count: (windowed.key, f"{windowed.window}: {count}"))
            >>> for key, value in run(build, ("k", "a"), ("k", "b")):
            ...     print(key, value)
            k Window(start=0, end=0): 1
            k Window(start=0, end=0): None
            k Window(start=0, end=1): 2
        """
        return self._aggregated(
            "KSTREAM-AGGREGATE-",
            materialized,
            named,
            Serdes.long(),
            initializer=int,
            aggregator=count_aggregator,
            merger=lambda _key, one, other: one + other,
        )

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        materialized: Materialized[K, V] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[Windowed[K], V]:
        """Combine the values of each key and session, starting with the first one.

        Example:
            >>> from millrace.dsl import SessionWindows
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     sessions = words.group_by_key().windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(5))
            ...     joined = sessions.reduce(lambda one, other: one + other).to_stream()
            ...     return joined.select_key(lambda windowed, value: f"{windowed.window.start}-{windowed.window.end}")
            >>> run(build, ("k", "a"), ("k", "b"))
            [('0-0', 'a'), ('0-0', None), ('0-1', 'ab')]
        """
        callback(reducer, "reducer", "old, new")

        def combine(_key: Any, one: Any, other: Any) -> Any:
            return other if one is None else reducer(one, other)

        return self._aggregated(
            "KSTREAM-REDUCE-",
            materialized,
            named,
            self._grouped._value_serde,
            initializer=lambda: None,
            aggregator=lambda key, value, so_far: combine(key, so_far, value),
            merger=combine,
        )

    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, V, A], A | None],
        merger: Callable[[K, A, A], A],
        materialized: Materialized[K, A] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[Windowed[K], A]:
        """Fold the values of each key and session into an aggregate.

        Args:
            initializer: returns the initial aggregate of a session.
            aggregator: gets key, value and the aggregate so far.
            merger: gets the key and the aggregates of two sessions that a record has merged.
            materialized: how the table is kept; give it the aggregates' serde.
            named: the node's name.

        Example:
            >>> from millrace.dsl import SessionWindows
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     sessions = words.group_by_key().windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(5))
            ...     add, merge = lambda key, value, so_far: so_far + value, lambda key, one, other: one + other
            ...     joined = sessions.aggregate(str, add, merge)
            ...     return joined.to_stream().select_key(lambda windowed, value: f"{windowed.window.start}-{windowed.window.end}")
            >>> run(build, ("k", "a"), ("k", "b"))
            [('0-0', 'a'), ('0-0', None), ('0-1', 'ab')]
        """
        callback(initializer, "initializer", "")
        callback(aggregator, "aggregator", "key, value, aggregate")
        callback(merger, "merger", "key, one, other")
        return self._aggregated(
            "KSTREAM-AGGREGATE-",
            materialized,
            named,
            None,
            initializer=initializer,
            aggregator=aggregator,
            merger=merger,
        )

    def _aggregated(
        self,
        prefix: str,
        materialized: AnyMaterialized | str | None,
        named: Named | str | None,
        value_serde: AnySerde | None,
        *,
        initializer: Callable[[], object],
        aggregator: Callable[[Any, Any, Any], object],
        merger: Callable[[Any, Any, Any], object],
    ) -> KTable[Windowed[K], Any]:
        return self._table(
            prefix,
            materialized,
            named,
            value_serde,
            lambda store: SessionAggregate(store, self._windows, self._emit, initializer, aggregator, merger),
        )
