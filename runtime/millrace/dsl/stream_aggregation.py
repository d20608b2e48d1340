"""What the aggregations of a stream share, in windows or not: the stream grouped by key, and the table that they make.

Windows are written against `AbstractKGroupedStream`, so they do not need to import `KGroupedStream`, which imports them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from millrace.checks import mistake, wrong
from millrace.dsl.abstract_stream import AbstractStream
from millrace.dsl.graph.builder import GraphBuilder
from millrace.dsl.graph.nodes import GraphNode, ProcessorStep
from millrace.dsl.graph.repartition import Repartition
from millrace.dsl.ktable import KTable
from millrace.dsl.processors.aggregate import Aggregator, Initializer
from millrace.dsl.processors.sliding_window_aggregate import SlidingWindowAggregate
from millrace.dsl.processors.tables import TableProcessor
from millrace.dsl.processors.window_aggregate import WindowAggregate, Windows
from millrace.dsl.store_suppliers import DslSessionParams, DslWindowParams
from millrace.dsl.stores import TableOptions
from millrace.dsl.windows import (
    EmitStrategy,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    planned_windows,
)
from millrace.plan.topology_plan import PlannedWindows
from millrace.serdes.base import AnySerde, Serde
from millrace.serdes.windowed import SessionWindowedSerde, TimeWindowedSerde

K = TypeVar("K")
V = TypeVar("V")

AnyWindows = TimeWindows | UnlimitedWindows | SlidingWindows | SessionWindows


class AbstractKGroupedStream(AbstractStream[K, V]):
    """A grouped stream without its operators."""

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


@dataclass(frozen=True, slots=True)
class WindowedTable:
    """The settings of a windowed aggregation's table, apart from the aggregates."""

    store: DslWindowParams | DslSessionParams
    key_serde: AnySerde | None
    """Of windowed keys; None if the grouping has no serde, since the default serde may not be the one of the inner keys."""
    grace_ms: int
    """How long after its end a window can change."""
    windows: PlannedWindows

    @classmethod
    def of(cls, windows: AnyWindows, options: TableOptions, emit: EmitStrategy) -> WindowedTable:
        """Return the store, key serde and grace period of an aggregation by these windows.

        Raises:
            TopologyError: the store's retention is shorter than windows can change.
        """
        key_serde, emits_on_close = options.option.key_serde, emit is EmitStrategy.ON_WINDOW_CLOSE
        if isinstance(windows, SessionWindows):
            grace_ms = windows.grace_ms + windows.inactivity_gap_ms
            retention_ms = _retention(options, grace_ms, "session", "the inactivity gap and grace")
            return cls(
                DslSessionParams(options.store_name, retention_ms, emits_on_close),
                None if key_serde is None else SessionWindowedSerde(key_serde),
                grace_ms,
                planned_windows(windows, in_order_of_time=emits_on_close),
            )
        sliding = isinstance(windows, SlidingWindows)
        size_ms = windows.time_difference_ms if isinstance(windows, SlidingWindows) else windows.size_ms
        needed_ms = min((2 * size_ms if sliding else size_ms) + windows.grace_ms, 2**63 - 1)
        retention_ms = _retention(options, needed_ms, "window", "the windows' size and grace")
        return cls(
            DslWindowParams(
                options.store_name, retention_ms, size_ms, emits_on_close=emits_on_close, is_sliding=sliding
            ),
            None if key_serde is None else TimeWindowedSerde(key_serde, size_ms),
            windows.grace_ms,
            planned_windows(windows, in_order_of_time=emits_on_close),
        )


def _retention(options: TableOptions, needed_ms: int, kind: str, reason: str) -> int:
    retention_ms = options.option.retention_ms
    if retention_ms is None:
        return needed_ms
    if retention_ms < needed_ms:
        raise mistake(
            f"The retention of {kind} store {options.store_name} must be at least {needed_ms} ms, {reason}, not {retention_ms} ms"
        )
    return retention_ms


def windowed_aggregate(
    store_name: str,
    windows: Windows | SlidingWindows,
    emit_strategy: EmitStrategy,
    initializer: Initializer,
    aggregator: Aggregator,
) -> WindowAggregate | SlidingWindowAggregate:
    """Return the aggregation for a kind of windows.

    Raises:
        TopologyError: results are to be emitted on close, but the windows never close.
    """
    if isinstance(windows, SlidingWindows):
        return SlidingWindowAggregate(store_name, windows, emit_strategy, initializer, aggregator)
    return WindowAggregate(store_name, windows, emit_strategy, initializer, aggregator)


def check_windows(windows: object) -> None:
    """Check windows to aggregate by.

    Raises:
        TopologyError: they are windows of joins, or none.
    """
    if not isinstance(windows, AnyWindows):
        joins = isinstance(windows, JoinWindows)
        hint = "JoinWindows are for joins" if joins else "write TimeWindows.of_size_with_no_grace(…) for example"
        raise wrong("windows", "TimeWindows, SlidingWindows, SessionWindows or UnlimitedWindows", windows, hint)
