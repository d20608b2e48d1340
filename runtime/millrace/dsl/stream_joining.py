"""Joins of a stream: with a stream, a table or a global table. What `KStream.join`, `left_join` and `outer_join` call."""

# ruff: noqa: SLF001 (streams, tables and their joins are one facade)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.config import StreamsConfig
from millrace.dsl.global_table import GlobalKTable
from millrace.dsl.graph.joins import StreamStreamJoin, WindowedStore
from millrace.dsl.graph.nodes import ProcessorStep
from millrace.dsl.kstream import KStream, require_same_builder
from millrace.dsl.ktable import KTable
from millrace.dsl.options.joined import Joined, StreamJoined, ValueJoinerWithKey
from millrace.dsl.options.named import name_of
from millrace.dsl.processors.stateless import pass_through
from millrace.dsl.processors.stream_join import stream_join
from millrace.dsl.processors.stream_table_join import Joiner, StreamGlobalTableJoin, StreamTableJoin
from millrace.dsl.store_suppliers import DslKeyValueParams, InMemoryDslStoreSuppliers, dsl_suppliers
from millrace.dsl.table_stores import TableStoreSpec, WindowSpec
from millrace.dsl.windows import JoinWindows
from millrace.errors import TopologyError
from millrace.serdes.base import Serde
from millrace.state.api import StoreBuilder
from millrace.state.grace_buffer import GraceBufferBuilder
from millrace.state.outer_join_store import OuterJoinStoreBuilder
from millrace.topology.model import DeclaredStore

JOIN = "KSTREAM-JOIN-"
LEFT_JOIN = "KSTREAM-LEFTJOIN-"
WINDOWED = "KSTREAM-WINDOWED-"
JOIN_THIS, JOIN_OTHER = "KSTREAM-JOINTHIS-", "KSTREAM-JOINOTHER-"
OUTER_THIS, OUTER_OTHER = "KSTREAM-OUTERTHIS-", "KSTREAM-OUTEROTHER-"
OUTER_SHARED = "KSTREAM-OUTERSHARED-"
MERGE = "KSTREAM-MERGE-"
_INDEX_LENGTH = 10


def join(
    stream: KStream[Any, Any],
    other: Any,
    joiner: Any,
    windows: Any,
    joined: Any,
    key_selector: Any,
    named: Any,
    *,
    kind: str,
) -> KStream[Any, Any]:
    """Join a stream with whatever it is.

    Args:
        stream: the left side.
        other: a stream, table or global table.
        joiner: of two values, or a `ValueJoinerWithKey`.
        windows: with a stream: `JoinWindows`.
        joined: `StreamJoined` with a stream, `Joined` with a table.
        key_selector: with a global table: maps key and value to a key of the table.
        named: with a global table: the node's name.
        kind: `inner`, `left` or `outer`.

    Raises:
        TopologyError: the arguments do not fit what is joined.
    """
    if isinstance(other, KStream):
        if not isinstance(windows, JoinWindows):
            raise TopologyError(
                f"A join of two streams needs JoinWindows as its third argument, not {windows!r}: "
                "records are joined within a time"
            )
        return _with_stream(stream, other, with_key(joiner), windows, joined or StreamJoined(), kind)
    if windows is not None:
        raise TopologyError(f"A join with {other!r} takes no windows; the current value of the table is looked up")
    if isinstance(other, KTable):
        return _with_table(stream, other, with_key(joiner), joined or Joined(), left=kind == "left")
    if isinstance(other, GlobalKTable):
        if key_selector is None:
            raise TopologyError(
                "A join with a global table needs key_selector, which maps a record to a key of the table"
            )
        return _with_global_table(stream, other, with_key(joiner), key_selector, name_of(named), left=kind == "left")
    raise TopologyError(f"A stream can be joined with a KStream, KTable or GlobalKTable, not with {other!r}")


def with_key(joiner: Any) -> Joiner:
    """Return a joiner as a function of key, left and right value."""
    if isinstance(joiner, ValueJoinerWithKey):
        return joiner.joiner
    return lambda _key, left, right: joiner(left, right)


# With a table.


def _with_table(
    stream: KStream[Any, Any],
    table: KTable[Any, Any],
    joiner: Joiner,
    joined: Joined[Any, Any, Any],
    *,
    left: bool,
) -> KStream[Any, Any]:
    require_same_builder(stream, table)
    if stream._repartition_required:
        name = joined.name if joined.name is not None else stream._name
        stream = stream._repartitioned_for_join(name, joined.key_serde, joined.value_serde)
    sources = stream._copartition_with(table)
    graph = stream._graph
    name = graph.names.processor(LEFT_JOIN if left else JOIN, joined.name)
    view = table._processor.view()
    stores: tuple[DeclaredStore, ...] = ()
    buffer_name = None
    if joined.grace_period_ms is not None:
        if table._node.output_versioned is False:
            raise TopologyError(
                f"Join {name} has a grace period, for which the table must be kept in a versioned store: "
                "Materialized.as_(Stores.persistent_versioned_key_value_store(…))"
            )
        buffer_name = f"{name}-Buffer"
        stores = (
            GraceBufferBuilder(
                buffer_name,
                joined.key_serde if joined.key_serde is not None else stream._key_serde,
                joined.value_serde if joined.value_serde is not None else stream._value_serde,
                grace_ms=joined.grace_period_ms,
            ),
        )
    node = ProcessorStep(
        name,
        StreamTableJoin(view=view, joiner=joiner, left=left, buffer_name=buffer_name),
        stores=stores,
        store_names=view.store_names,
    )
    node.takes_null_keys = left
    graph.add(stream._node, node)
    key_serde = joined.key_serde if joined.key_serde is not None else stream._key_serde
    return KStream(graph, name, node, sources=sources, key_serde=key_serde)


# With a global table.


def _with_global_table(
    stream: KStream[Any, Any],
    table: GlobalKTable[Any, Any],
    joiner: Joiner,
    key_selector: Any,
    given_name: str | None,
    *,
    left: bool,
) -> KStream[Any, Any]:
    graph = stream._graph
    name = graph.names.processor(LEFT_JOIN, given_name)  # inner joins too, as in Kafka Streams
    factory = StreamGlobalTableJoin(view=table._view, key_mapper=key_selector, joiner=joiner, left=left)
    node = ProcessorStep(name, factory)
    node.takes_null_keys = left
    graph.add(stream._node, node)
    return KStream(
        graph,
        name,
        node,
        sources=stream._sources,
        key_serde=stream._key_serde,
        repartition_required=stream._repartition_required,
    )


# With a stream.


@dataclass(frozen=True, slots=True)
class _JoinNames:
    """The names of a stream-stream join's nodes and stores."""

    this_windowed: str
    other_windowed: str
    this_join: str
    other_join: str
    merge: str
    this_store: str
    other_store: str
    shared_store: str


def _names(stream: KStream[Any, Any], joined: StreamJoined[Any, Any, Any], kind: str) -> _JoinNames:
    names = stream._graph.names
    left_outer, right_outer = kind != "inner", kind == "outer"
    this_suffix = "-outer-this-join" if right_outer else "-this-join"
    other_suffix = "-outer-other-join" if left_outer else "-other-join"
    this_windowed = names.processor(WINDOWED, joined.name, "-this-windowed")
    other_windowed = names.processor(WINDOWED, joined.name, "-other-windowed")
    this_generated = names.processor(OUTER_THIS if right_outer else JOIN_THIS)
    other_generated = names.processor(OUTER_OTHER if left_outer else JOIN_OTHER)
    merge = names.processor(MERGE, joined.name, "-merge")
    base = joined.store_name
    supplier = joined.this_store_supplier
    shared_base = base if supplier is None else supplier.name
    shared_suffix = "-outer-shared-join" if right_outer else "-left-shared-join"
    return _JoinNames(
        this_windowed,
        other_windowed,
        this_generated if joined.name is None else joined.name + this_suffix,
        other_generated if joined.name is None else joined.name + other_suffix,
        merge,
        (this_generated if base is None else base + this_suffix) + "-store",
        (other_generated if base is None else base + other_suffix) + "-store",
        (OUTER_SHARED + this_generated[-_INDEX_LENGTH:] if shared_base is None else shared_base + shared_suffix)
        + "-store",
    )


def _with_stream(
    this: KStream[Any, Any],
    other: KStream[Any, Any],
    joiner: Joiner,
    windows: JoinWindows,
    joined: StreamJoined[Any, Any, Any],
    kind: str,
) -> KStream[Any, Any]:
    require_same_builder(this, other)
    given = joined.name
    if this._repartition_required:
        name = this._name if given is None else f"{given}-left"
        this = this._repartitioned_for_join(name, joined.key_serde, joined.value_serde)
    if other._repartition_required:
        name = other._name if given is None else f"{given}-right"
        other = other._repartitioned_for_join(name, joined.key_serde, joined.other_value_serde)
    sources = this._copartition_with(other)
    graph = this._graph
    names = _names(this, joined, kind)
    this_store = _window_store(names.this_store, joined.value_serde, joined.this_store_supplier, windows, joined)
    other_store = _window_store(
        names.other_store, joined.other_value_serde, joined.other_store_supplier, windows, joined
    )
    if this_store.name == other_store.name:
        raise TopologyError(
            f"Both sides of join {names.merge} have a store named {this_store.name}; give them two names"
        )
    shared_store = None if kind == "inner" else _shared_store(names.shared_store, joined)
    factories = stream_join(
        windows=windows,
        joiner=joiner,
        left_store_name=this_store.name,
        right_store_name=other_store.name,
        outer_store_name=None if shared_store is None else shared_store.name,
        left_outer=kind != "inner",
        right_outer=kind == "outer",
    )
    graph.add(this._node, WindowedStore(names.this_windowed, factories.left_window))
    graph.add(other._node, WindowedStore(names.other_windowed, factories.right_window))
    node = StreamStreamJoin(
        names.merge,
        this_windowed_name=names.this_windowed,
        other_windowed_name=names.other_windowed,
        this_name=names.this_join,
        other_name=names.other_join,
        this_factory=factories.left,
        other_factory=factories.right,
        merge_factory=pass_through(),
        self_join_factory=factories.self_join,
        this_store=this_store,
        other_store=other_store,
        outer_store=shared_store,
        takes_null_keys=kind != "inner",
    )
    graph.add((this._node, other._node), node)
    return KStream(graph, names.merge, node, sources=sources, key_serde=joined.key_serde)


def _window_store(
    name: str,
    value_serde: Serde[Any] | None,
    supplier: Any,
    windows: JoinWindows,
    joined: StreamJoined[Any, Any, Any],
) -> TableStoreSpec:
    """Return the store of one side. As in Java, what `joined` says about logging does not reach stores of the user's."""
    retention = windows.size_ms + windows.grace_ms
    if supplier is not None:
        _check_supplier(supplier, windows, retention)
        name = supplier.name
    return TableStoreSpec(
        name,
        joined.key_serde,
        value_serde,
        supplier,
        suppliers=joined.dsl_store_suppliers,
        windows=WindowSpec(retention, windows.size_ms, retain_duplicates=True),
        logging_enabled=joined.logging_enabled or supplier is not None,
        caching_enabled=False,
        log_config={**joined.log_config, "cleanup.policy": "delete"} if supplier is None else {},
        generated_name=supplier is None and joined.store_name is None,
    )


def _check_supplier(supplier: Any, windows: JoinWindows, retention: int) -> None:
    """Check that a user's store can serve the join.

    Raises:
        TopologyError: it forgets duplicates, or its windows are not those of the join.
    """
    if not supplier.retain_duplicates:
        raise TopologyError(f"Store {supplier.name} of a stream-stream join must be made with retain_duplicates=True")
    if supplier.window_size_ms != windows.size_ms or supplier.retention_ms != retention:
        raise TopologyError(
            f"Store {supplier.name} has windows of {supplier.window_size_ms} ms kept for {supplier.retention_ms} ms; the join "
            f"needs its size, {windows.size_ms} ms, kept for size and grace, {retention} ms"
        )


def _shared_store(name: str, joined: StreamJoined[Any, Any, Any]) -> SharedStoreSpec:
    suppliers = joined.dsl_store_suppliers
    if suppliers is None and joined.this_store_supplier is not None and not joined.this_store_supplier.persistent:
        suppliers = InMemoryDslStoreSuppliers()
    return SharedStoreSpec(
        name,
        joined.key_serde,
        joined.value_serde,
        joined.other_value_serde,
        suppliers,
        joined.logging_enabled,
        joined.log_config,
        generated_name=joined.store_name is None and joined.this_store_supplier is None,
    )


@dataclass(slots=True, eq=False)
class SharedStoreSpec:
    """The store in which records of both sides wait for a match: a `DeferredStore`."""

    name: str
    key_serde: Serde[Any] | None
    left_serde: Serde[Any] | None
    right_serde: Serde[Any] | None
    suppliers: Any
    logging_enabled: bool
    log_config: Mapping[str, str] = field(default_factory=dict)
    generated_name: bool = False

    def for_config(self, config: StreamsConfig) -> StoreBuilder:
        """Return the builder of the real store."""
        supplier = dsl_suppliers(self.suppliers, None, config).key_value_store(DslKeyValueParams(self.name, "plain"))
        builder = OuterJoinStoreBuilder(supplier, self.key_serde, self.left_serde, self.right_serde)
        return (
            builder.with_logging_enabled(self.log_config) if self.logging_enabled else builder.with_logging_disabled()
        )
