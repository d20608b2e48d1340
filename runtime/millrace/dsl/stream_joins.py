"""The joins of a stream: with a stream, a table or a global table."""

# ruff: noqa: SLF001 (streams, tables and their joins are one facade)
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from millrace.checks import callback, mistake, option, shown
from millrace.dsl.abstract_stream import AbstractKStream, AbstractKTable
from millrace.dsl.global_table import GlobalKTable
from millrace.dsl.graph.joins import StreamStreamJoin, WindowedStore
from millrace.dsl.graph.nodes import ProcessorStep
from millrace.dsl.ktable import KTable
from millrace.dsl.names import Names
from millrace.dsl.options.joined import AnyJoiner, AnyStreamJoined, Joined, StreamJoined, ValueJoinerWithKey, with_key
from millrace.dsl.options.named import Named, name_of
from millrace.dsl.processors.stateless import KeyValueMapper, pass_through
from millrace.dsl.processors.stream_join import stream_join
from millrace.dsl.processors.stream_table_join import StreamGlobalTableJoin, StreamTableJoin
from millrace.dsl.processors.tables import Joiner
from millrace.dsl.stores import JoinSharedStoreSpec, join_window_store
from millrace.dsl.windows import JoinWindows
from millrace.state.grace_buffer import GraceBufferBuilder
from millrace.topology.physical_topology import DeclaredStore

if TYPE_CHECKING:
    from millrace.dsl.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")
VO = TypeVar("VO")
GK = TypeVar("GK")
GV = TypeVar("GV")
R = TypeVar("R")
S = TypeVar("S", bound=AbstractKStream[Any, Any])


class StreamJoins(AbstractKStream[K, V]):
    """The joins of `KStream`."""

    @overload
    def join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[V, VO], R] | ValueJoinerWithKey[K, V, VO, R],
        windows: JoinWindows,
        joined: StreamJoined[K, V, VO] | None = None,
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO], R] | ValueJoinerWithKey[K, V, VO, R],
        *,
        joined: Joined[K, V, VO] | None = None,
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO], R] | ValueJoinerWithKey[K, V, VO, R],
        joined: Joined[K, V, VO],
        /,
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[GK, GV],
        joiner: Callable[[V, GV], R] | ValueJoinerWithKey[K, V, GV, R],
        *,
        key_selector: Callable[[K, V], GK | None],
        named: Named | str | None = None,
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[GK, GV],
        key_selector: Callable[[K, V], GK | None],
        joiner: Callable[[V, GV], R] | ValueJoinerWithKey[K, V, GV, R],
        named: Named | None = None,
        /,
    ) -> KStream[K, R]: ...
    def join(
        self,
        other: object,
        joiner: AnyJoiner,
        windows: object = None,
        joined: object = None,
        *,
        key_selector: KeyValueMapper | None = None,
        named: Named | str | None = None,
    ) -> KStream[K, Any]:
        """Join with a stream (within windows), a table (by key, with its current value) or a global table (by any key).

        Records without a match have no result. The joiner gets both values; wrap it in `ValueJoinerWithKey` to get the key
        first.

        Args:
            other: what to join with. Streams and tables must be partitioned in the same way; a stream whose key has changed is
                repartitioned first.
            joiner: returns the value of the result.
            windows: for a stream: how far apart in time records may be.
            joined: names, serdes and stores.
            key_selector: for a global table: returns the key to look up; None means no match. As in Java, it may also come before
                the joiner.
            named: for a global table: the node's name.

        Example:
            >>> from millrace.dsl import JoinWindows
            >>> from millrace.testing.examples import run
            >>> windows = JoinWindows.of_time_difference_with_no_grace(5)
            >>> run(lambda words: words.join(words, lambda left, right: left + right, windows), ("k", "a"))
            [('k', 'aa')]
        """
        return self._joined("inner", other, joiner, windows, joined, key_selector, named)

    @overload
    def left_join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[V, VO | None], R] | ValueJoinerWithKey[K, V, VO | None, R],
        windows: JoinWindows,
        joined: StreamJoined[K, V, VO] | None = None,
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO | None], R] | ValueJoinerWithKey[K, V, VO | None, R],
        *,
        joined: Joined[K, V, VO] | None = None,
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO | None], R] | ValueJoinerWithKey[K, V, VO | None, R],
        joined: Joined[K, V, VO],
        /,
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[GK, GV],
        joiner: Callable[[V, GV | None], R] | ValueJoinerWithKey[K, V, GV | None, R],
        *,
        key_selector: Callable[[K, V], GK | None],
        named: Named | str | None = None,
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[GK, GV],
        key_selector: Callable[[K, V], GK | None],
        joiner: Callable[[V, GV | None], R] | ValueJoinerWithKey[K, V, GV | None, R],
        named: Named | None = None,
        /,
    ) -> KStream[K, R]: ...
    def left_join(
        self,
        other: object,
        joiner: AnyJoiner,
        windows: object = None,
        joined: object = None,
        *,
        key_selector: KeyValueMapper | None = None,
        named: Named | str | None = None,
    ) -> KStream[K, Any]:
        """Join like `join`, but join records of this stream without a match with None.

        With a stream, that happens when the window and its grace period have passed; records whose key is None are joined with
        None at once (KIP-962).

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     known = words.filter(lambda key, value: key == "k").to_table()
            ...     return words.left_join(known, lambda word, found: f"{word}, {found}")
            >>> run(build, ("k", "a"), ("x", "b"))
            [('k', 'a, a'), ('x', 'b, None')]
        """
        return self._joined("left", other, joiner, windows, joined, key_selector, named)

    def outer_join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[V | None, VO | None], R] | ValueJoinerWithKey[K, V | None, VO | None, R],
        windows: JoinWindows,
        joined: StreamJoined[K, V, VO] | None = None,
    ) -> KStream[K, R]:
        """Join two streams; records of either stream without a match are joined with None once their window has passed.

        Example:
            >>> from millrace.dsl import JoinWindows
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     small, large = words.filter(lambda k, v: v.islower()), words.filter(lambda k, v: v.isupper())
            ...     windows = JoinWindows.of_time_difference_with_no_grace(1)
            ...     return small.outer_join(large, lambda one, other: f"{one} {other}", windows)
            >>> run(build, ("k", "a"), ("k", "A"), ("x", "b"), ("x", "c"), ("x", "C"))
            [('k', 'a A'), ('x', 'b None'), ('x', 'c C')]
        """
        return self._joined("outer", other, joiner, windows, joined)

    def _joined(
        self,
        kind: str,
        other: object,
        joiner: AnyJoiner,
        windows: object,
        joined: Any,
        key_selector: KeyValueMapper | None = None,
        named: Named | str | None = None,
    ) -> KStream[K, Any]:
        """Join with a stream, a table or a global table.

        Raises:
            TopologyError: the arguments do not fit what is joined.
        """
        stream: Any = self
        if isinstance(other, AbstractKStream):
            if not isinstance(windows, JoinWindows):
                raise mistake(
                    f"A join of two streams needs JoinWindows as its third argument, not {windows!r}: "
                    "records are joined within a time"
                )
            _refuse("a stream", key_selector=key_selector, named=named)
            return _with_stream(stream, other, with_key(joiner), windows, option(joined, "joined", StreamJoined), kind)
        if isinstance(windows, Joined):  # Java's order
            windows, joined = None, windows
        if isinstance(other, GlobalKTable):
            if callable(windows) or isinstance(windows, ValueJoinerWithKey):  # Java's order
                key_selector, joiner, windows = cast("KeyValueMapper", joiner), windows, None
                named, joined = (joined, None) if named is None else (named, joined)
            if key_selector is None:
                raise mistake(
                    "A join with a global table needs key_selector, which maps a record to a key of the table"
                )
            callback(key_selector, "key_selector", "key, value")
            _refuse("a global table", windows=windows, joined=joined)
            name = name_of(named)
            return _with_global_table(stream, other, with_key(joiner), key_selector, name, left=kind == "left")
        if not isinstance(other, AbstractKTable):
            raise mistake(f"A stream can be joined with a KStream, KTable or GlobalKTable, not with {other!r}")
        if windows is not None:
            raise mistake(f"A join with {other!r} takes no windows; the current value of the table is looked up")
        _refuse("a table", key_selector=key_selector, named=named)
        return _with_table(stream, other, with_key(joiner), option(joined, "joined", Joined), left=kind == "left")


def _refuse(other: str, **options: object) -> None:
    """Check that options which this kind of join does not have are not given.

    Raises:
        TopologyError: one is.
    """
    for parameter, value in options.items():
        if value is not None:
            hint = f"; name the join in joined=: {shown(value)}" if parameter == "named" else ""
            raise mistake(f"A join with {other} takes no {parameter}{hint}")


# With a table.


def _with_table(
    stream: S,
    table: AbstractKTable[Any, Any],
    joiner: Joiner,
    joined: Joined[Any, Any, Any],
    *,
    left: bool,
) -> S:
    stream._require_same_builder(table)
    if stream._repartition_required:
        name = joined.name if joined.name is not None else stream._name
        stream = stream._repartitioned_for_join(name, joined.key_serde, joined.value_serde)
    sources = stream._copartition_with(table)
    graph = stream._graph
    name = graph.names.processor("KSTREAM-LEFTJOIN-" if left else "KSTREAM-JOIN-", joined.name)
    view = table._processor.view()
    stores: tuple[DeclaredStore, ...] = ()
    buffer_name = None
    if joined.grace_period_ms is not None:
        if table._node.output_versioned is False:
            raise mistake(
                f"Join {name} has a grace period, for which the table must be kept in a versioned store: "
                "Materialized.as_(Stores.persistent_versioned_key_value_store(…))"
            )
        buffer_name = f"{name}-Buffer"
        buffer = GraceBufferBuilder(
            buffer_name,
            joined.key_serde if joined.key_serde is not None else stream._key_serde,
            joined.value_serde if joined.value_serde is not None else stream._value_serde,
            grace_ms=joined.grace_period_ms,
            serde_topic=name,
        )
        buffer.generated_name = joined.name is None
        stores = (buffer,)
    node = ProcessorStep(
        name,
        StreamTableJoin(view=view, joiner=joiner, left=left, buffer_name=buffer_name),
        stores=stores,
        store_names=view.store_names,
    )
    node.takes_null_keys = left
    graph.add(stream._node, node)
    key_serde = joined.key_serde if joined.key_serde is not None else stream._key_serde
    return type(stream)(graph, name, node, sources=sources, key_serde=key_serde)


# With a global table.


def _with_global_table(
    stream: S,
    table: GlobalKTable[Any, Any],
    joiner: Joiner,
    key_selector: KeyValueMapper,
    given_name: str | None,
    *,
    left: bool,
) -> S:
    graph = stream._graph
    name = graph.names.processor("KSTREAM-LEFTJOIN-", given_name)  # as in Kafka Streams, for inner joins too
    factory = StreamGlobalTableJoin(view=table._view, key_mapper=key_selector, joiner=joiner, left=left)
    node = ProcessorStep(name, factory)
    node.takes_null_keys = left
    graph.add(stream._node, node)
    return type(stream)(
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

    @classmethod
    def take(cls, names: Names, joined: AnyStreamJoined, kind: str) -> _JoinNames:
        """Take the names from the builder's counter."""
        left_outer, right_outer = kind != "inner", kind == "outer"
        this_suffix = "-outer-this-join" if right_outer else "-this-join"
        other_suffix = "-outer-other-join" if left_outer else "-other-join"
        this_windowed = names.processor("KSTREAM-WINDOWED-", joined.name, "-this-windowed")
        other_windowed = names.processor("KSTREAM-WINDOWED-", joined.name, "-other-windowed")
        this_generated = names.processor("KSTREAM-OUTERTHIS-" if right_outer else "KSTREAM-JOINTHIS-")
        other_generated = names.processor("KSTREAM-OUTEROTHER-" if left_outer else "KSTREAM-JOINOTHER-")
        merge = names.processor("KSTREAM-MERGE-", joined.name, "-merge")
        base = joined.store_name
        supplier = joined.this_store_supplier
        shared_base = base if supplier is None else supplier.name
        shared_suffix = "-outer-shared-join" if right_outer else "-left-shared-join"
        return cls(
            this_windowed,
            other_windowed,
            this_generated if joined.name is None else joined.name + this_suffix,
            other_generated if joined.name is None else joined.name + other_suffix,
            merge,
            (this_generated if base is None else base + this_suffix) + "-store",
            (other_generated if base is None else base + other_suffix) + "-store",
            ("KSTREAM-OUTERSHARED-" + this_generated[-10:] if shared_base is None else shared_base + shared_suffix)
            + "-store",
        )


def _with_stream(
    this: S,
    other: AbstractKStream[Any, Any],
    joiner: Joiner,
    windows: JoinWindows,
    joined: AnyStreamJoined,
    kind: str,
) -> S:
    this._require_same_builder(other)
    given = joined.name
    if this._repartition_required:
        name = this._name if given is None else f"{given}-left"
        this = this._repartitioned_for_join(name, joined.key_serde, joined.value_serde)
    if other._repartition_required:
        name = other._name if given is None else f"{given}-right"
        other = other._repartitioned_for_join(name, joined.key_serde, joined.other_value_serde)
    sources = this._copartition_with(other)
    graph = this._graph
    names = _JoinNames.take(graph.names, joined, kind)
    this_store = join_window_store(names.this_store, joined.value_serde, joined.this_store_supplier, windows, joined)
    other_store = join_window_store(
        names.other_store, joined.other_value_serde, joined.other_store_supplier, windows, joined
    )
    if this_store.name == other_store.name:
        raise mistake(f"Both sides of join {names.merge} have a store named {this_store.name}; give them two names")
    shared_store = None if kind == "inner" else JoinSharedStoreSpec.of(names.shared_store, joined)
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
    return type(this)(graph, names.merge, node, sources=sources, key_serde=joined.key_serde)
