"""`KTable`: the latest value of each key, as it changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from millrace.checks import callback, instance, mistake, new_processors, option, processor_supplier, wrong
from millrace.dsl import table_joins
from millrace.dsl.abstract_stream import AbstractKTable
from millrace.dsl.graph.nodes import ProcessorStep
from millrace.dsl.grouped_table import KGroupedTable
from millrace.dsl.options.grouped import Grouped
from millrace.dsl.options.joined import (
    AnyForeignKey,
    AnyJoiner,
    AnyTableJoined,
    ForeignKeyWithKey,
    TableJoined,
    ValueJoinerWithKey,
)
from millrace.dsl.options.materialized import Materialized
from millrace.dsl.options.named import Named, name_of
from millrace.dsl.options.suppressed import Suppressed
from millrace.dsl.processors.suppress import TableSuppress
from millrace.dsl.processors.table_aggregate import TableGroupBy
from millrace.dsl.processors.table_operators import (
    TableFilter,
    TableMapValues,
    TableTransformValues,
    ValueTransformer,
    table_to_stream,
)
from millrace.dsl.processors.tables import TableProcessor
from millrace.dsl.stores import TableOptions, names_of_stores, table_options
from millrace.state.suppression_buffer import SuppressionBufferBuilder

if TYPE_CHECKING:
    from millrace.dsl.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
VO = TypeVar("VO")
R = TypeVar("R")
FK = TypeVar("FK")


class KTable(AbstractKTable[K, V]):
    """A table with keys of type K and values of type V. Made by `StreamsBuilder.table`, aggregations and operators."""

    _ELSEWHERE: ClassVar = {
        **{
            name: f"make a stream of its changes first: to_stream().{name}(…)"
            for name in (
                "to", "foreach", "peek", "print", "process", "process_values", "repartition", "merge", "select_key", "map",
                "flat_map", "flat_map_values", "split",
            )
        },
        **{name: f"group the table first: group_by(…).{name}(…)" for name in ("count", "reduce", "aggregate")},
        "group_by_key": "a table is grouped by what a function returns: group_by(lambda key, value: (key, value))",
        "windowed_by": "only streams have windows: to_stream().group_by_key().windowed_by(…)",
    }  # fmt: skip

    @property
    def queryable_store_name(self) -> str | None:
        """The name under which the store can be queried, or None."""
        return self._queryable_store_name

    def filter(
        self,
        predicate: Callable[[K, V], object],
        materialized: Materialized[K, V] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, V]:
        """Keep the entries for which the predicate is true; others are deleted downstream.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     return words.to_table().filter(lambda key, word: len(word) > 3).to_stream()
            >>> run(build, ("k", "stream"), ("k", "to"))
            [('k', 'stream'), ('k', None)]
        """
        callback(predicate, "predicate", "key, value")
        return self._filtered(predicate, materialized, named, negate=False)

    def filter_not(
        self,
        predicate: Callable[[K, V], object],
        materialized: Materialized[K, V] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, V]:
        """Drop the entries for which the predicate is true; they are deleted downstream.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     return words.to_table().filter_not(lambda key, word: len(word) > 3).to_stream()
            >>> run(build, ("k", "to"), ("k", "stream"))
            [('k', 'to'), ('k', None)]
        """
        callback(predicate, "predicate", "key, value")
        return self._filtered(predicate, materialized, named, negate=True)

    def _filtered(
        self,
        predicate: Callable[[K, V], object],
        materialized: Materialized[K, V] | str | None,
        named: Named | str | None,
        *,
        negate: bool,
    ) -> KTable[K, V]:
        options = table_options(materialized).with_defaults(self._key_serde, self._value_serde)
        name = self._graph.names.processor("KTABLE-FILTER-", name_of(named))
        processor = TableFilter(self._processor, predicate, negate=negate, queryable_name=options.queryable_name)
        return self._derived(name, options, processor)

    def map_values(
        self,
        mapper: Callable[[V], V2],
        materialized: Materialized[K, V2] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, V2]:
        """Replace the values; deletions stay deletions.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.to_table().map_values(str.upper).to_stream(), ("k", "a"), ("k", None))
            [('k', 'A'), ('k', None)]
        """
        callback(mapper, "mapper", "value", {"key, value": "use map_values_with_key"})
        return self.map_values_with_key(lambda _key, value: mapper(value), materialized, named=named)

    def map_values_with_key(
        self,
        mapper: Callable[[K, V], V2],
        materialized: Materialized[K, V2] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, V2]:
        """Replace the values, given the keys too.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.to_table().map_values_with_key(lambda key, word: key + word).to_stream(), ("k", "a"))
            [('k', 'ka')]
        """
        callback(mapper, "mapper", "key, value", {"value": "use map_values"})
        options = table_options(materialized).with_defaults(self._key_serde)
        name = self._graph.names.processor("KTABLE-MAPVALUES-", name_of(named))
        processor = TableMapValues(self._processor, mapper, queryable_name=options.queryable_name)
        return self._derived(name, options, processor)

    def transform_values(
        self,
        supplier: Callable[[], ValueTransformer[K, V, V2]],
        *store_names: str,
        materialized: Materialized[K, V2] | str | None = None,
        named: Named | str | None = None,
    ) -> KTable[K, V2]:
        """Replace the values with the results of a transformer, which can use stores.

        Args:
            supplier: returns a new transformer for each task, an object with `init(context)`, `transform(key, value)`, `close()`.
            store_names: stores of the builder that the transformer uses.
            materialized: how the table is kept; None means not at all.
            named: the node's name.

        Example:
            >>> from millrace.testing.examples import run
            >>> class Longest:
            ...     def init(self, context):
            ...         self.longest = ""
            ...     def transform(self, key, word):
            ...         self.longest = max(self.longest, word, key=len)
            ...         return self.longest
            ...     def close(self):
            ...         pass
            >>> def build(words):
            ...     return words.to_table().transform_values(Longest, materialized="longest").to_stream()
            >>> run(build, ("1", "ant"), ("2", "bee"), ("3", "hornet"))
            [('1', 'ant'), ('2', 'ant'), ('3', 'hornet')]
        """
        processor_supplier(supplier, "transform")
        options = table_options(materialized).with_defaults(self._key_serde)
        name = self._graph.names.processor("KTABLE-TRANSFORMVALUES-", name_of(named))
        new_processors(supplier, name)
        processor = TableTransformValues(self._processor, supplier, queryable_name=options.queryable_name)
        return self._derived(name, options, processor, names_of_stores(store_names))

    @overload
    def to_stream(self, *, named: Named | str | None = None) -> KStream[K, V]: ...
    @overload
    def to_stream(self, key_selector: Callable[[K, V], K2], *, named: Named | str | None = None) -> KStream[K2, V]: ...
    def to_stream(
        self, key_selector: Callable[[K, V], Any] | None = None, *, named: Named | str | None = None
    ) -> KStream[Any, V]:
        """Turn every update into a record; the value None is a deletion.

        Args:
            key_selector: returns a new key for the records.
            named: the node's name.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.to_table().to_stream(), ("k", "a"), ("k", "b"))
            [('k', 'a'), ('k', 'b')]
        """
        if key_selector is not None:
            callback(key_selector, "key_selector", "key, value")
        node = ProcessorStep(self._graph.names.processor("KTABLE-TOSTREAM-", name_of(named)), table_to_stream)
        self._graph.add(self._node, node)
        stream: KStream[K, V] = self._graph.new_stream(
            self._graph,
            node.name,
            node,
            sources=self._sources,
            key_serde=self._key_serde,
            value_serde=self._value_serde,
        )
        return stream if key_selector is None else stream.select_key(key_selector)

    # Grouping and joins.

    def suppress(self, suppressed: Suppressed) -> KTable[K, V]:
        """Hold updates back, so that fewer of them, or only final ones, are forwarded (KIP-328).

        Raises:
            TopologyError: the table is versioned, or is suppressed until its windows close but has no windows.

        Example:
            >>> from millrace.dsl import BufferConfig, Suppressed
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     return words.to_table().suppress(Suppressed.until_time_limit(1, BufferConfig.unbounded())).to_stream()
            >>> run(build, ("k", "first"), ("k", "last"))
            [('k', 'last')]
        """
        instance(suppressed, "suppressed", Suppressed, "a Suppressed")
        if self._node.output_versioned:
            raise mistake(
                f"Table {self._name} is kept in a versioned store, whose updates cannot be suppressed; keep it in another one"
            )
        names, wait_ms = self._graph.names, suppressed.wait_ms
        name = suppressed.name if suppressed.name is not None else names.processor("KTABLE-SUPPRESS-")
        store_name = names.store("KTABLE-SUPPRESS-") if suppressed.name is None else f"{suppressed.name}-store"
        if wait_ms is None:
            wait_ms = self._node.longest_grace_ms()
        if wait_ms is None:
            raise mistake(
                f"Table {self._name} has no windows that could close: suppress it with "
                "Suppressed.until_time_limit(…), or aggregate by windows first"
            )
        processor = TableSuppress(
            parent=self._processor,
            store_name=store_name,
            wait_ms=wait_ms,
            final_results=suppressed.wait_ms is None,
            buffer=suppressed.buffer,
        )
        buffer = SuppressionBufferBuilder(store_name, self._key_serde, self._value_serde)
        buffer.generated_name = suppressed.name is None
        if suppressed.buffer.logging_enabled:
            buffer.with_logging_enabled(suppressed.buffer.log_config)
        else:
            buffer.with_logging_disabled()
        node = ProcessorStep(name, processor, stores=(buffer,))
        node.versioned_output = False
        self._graph.add(self._node, node)
        return KTable(
            self._graph,
            name,
            node,
            processor,
            sources=self._sources,
            key_serde=self._key_serde,
            value_serde=self._value_serde,
        )

    def group_by(
        self, selector: Callable[[K, V], tuple[K2, V2] | None], grouped: Grouped[K2, V2] | None = None
    ) -> KGroupedTable[K2, V2]:
        """Group the entries by another key, through a repartition topic.

        Args:
            selector: gets key and value, returns the group's key and the value to aggregate; None leaves the entry out, and so
                does a pair with None in it. It is called for the old value of an entry too, to take that out of its group.
            grouped: name and serdes of the repartition topic.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     lengths = words.to_table().group_by(lambda key, word: (str(len(word)), word))
            ...     return lengths.count().to_stream().map_values(str)
            >>> run(build, ("1", "ant"), ("2", "asp"))
            [('3', '1'), ('3', '2')]
        """
        callback(selector, "selector", "key, value")
        options = option(grouped, "grouped", Grouped)
        name = self._graph.names.processor("KTABLE-SELECT-", options.name)
        node = ProcessorStep(name, TableGroupBy(selector))
        self._graph.add(self._node, node)
        self._processor.send_old_values(force=True)
        return KGroupedTable(self, node, options)

    @overload
    def join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO], R] | ValueJoinerWithKey[K, V, VO, R],
        materialized: Materialized[K, R] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, R]: ...
    @overload
    def join(
        self,
        other: KTable[FK, VO],
        joiner: Callable[[V, VO], R] | ValueJoinerWithKey[K, V, VO, R],
        materialized: Materialized[K, R] | str | None = None,
        *,
        foreign_key: Callable[[V], FK | None] | ForeignKeyWithKey[K, V, FK],
        joined: TableJoined[K, FK] | None = None,
        named: Named | str | None = None,
    ) -> KTable[K, R]: ...
    @overload
    def join(
        self,
        other: KTable[FK, VO],
        foreign_key: Callable[[V], FK | None] | ForeignKeyWithKey[K, V, FK],
        joiner: Callable[[V, VO], R] | ValueJoinerWithKey[K, V, VO, R],
        /,
        *options: TableJoined[K, FK] | Materialized[K, R] | str,
        named: Named | str | None = None,
    ) -> KTable[K, R]: ...
    def join(
        self,
        other: KTable[Any, Any],
        joiner: AnyJoiner | AnyForeignKey,
        materialized: Materialized[K, R] | AnyJoiner | str | None = None,
        *options: TableJoined[Any, Any] | Materialized[K, R] | str,
        foreign_key: AnyForeignKey | None = None,
        joined: AnyTableJoined | None = None,
        named: Named | str | None = None,
    ) -> KTable[K, R]:
        """Join with another table, by key or by a foreign key in this table's values; only entries with a match are kept.

        Args:
            other: the other table, partitioned like this one; with a foreign key, partitioned in any way.
            joiner: gets both values and returns the result's value; wrap it in `ValueJoinerWithKey` to get the key first.
            materialized: how the result is kept; None means not at all.
            options: only if the foreign key comes before the joiner, as in Java: `joined` and `materialized`.
            foreign_key: returns the other table's key for a value; None means no match. Wrap it in `ForeignKeyWithKey` to get
                the key first.
            joined: name and partitioners of a foreign-key join.
            named: the join's name.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     table = words.to_table()
            ...     return table.join(table.map_values(len), lambda word, length: f"{word} has {length}").to_stream()
            >>> run(build, ("k", "ant"))[-1]
            ('k', 'ant has 3')
        """
        return self._joined("inner", other, joiner, materialized, options, foreign_key, joined, named)

    @overload
    def left_join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO | None], R] | ValueJoinerWithKey[K, V, VO | None, R],
        materialized: Materialized[K, R] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, R]: ...
    @overload
    def left_join(
        self,
        other: KTable[FK, VO],
        joiner: Callable[[V, VO | None], R] | ValueJoinerWithKey[K, V, VO | None, R],
        materialized: Materialized[K, R] | str | None = None,
        *,
        foreign_key: Callable[[V], FK | None] | ForeignKeyWithKey[K, V, FK],
        joined: TableJoined[K, FK] | None = None,
        named: Named | str | None = None,
    ) -> KTable[K, R]: ...
    @overload
    def left_join(
        self,
        other: KTable[FK, VO],
        foreign_key: Callable[[V], FK | None] | ForeignKeyWithKey[K, V, FK],
        joiner: Callable[[V, VO | None], R] | ValueJoinerWithKey[K, V, VO | None, R],
        /,
        *options: TableJoined[K, FK] | Materialized[K, R] | str,
        named: Named | str | None = None,
    ) -> KTable[K, R]: ...
    def left_join(
        self,
        other: KTable[Any, Any],
        joiner: AnyJoiner | AnyForeignKey,
        materialized: Materialized[K, R] | AnyJoiner | str | None = None,
        *options: TableJoined[Any, Any] | Materialized[K, R] | str,
        foreign_key: AnyForeignKey | None = None,
        joined: AnyTableJoined | None = None,
        named: Named | str | None = None,
    ) -> KTable[K, R]:
        """Join like `join`, but keep every entry of this table: without a match it is joined with None.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     table = words.to_table()
            ...     long = table.filter(lambda key, word: len(word) > 3)
            ...     return table.left_join(long, lambda word, found: f"{word}, {found}").to_stream()
            >>> run(build, ("k", "ant"))[-1]
            ('k', 'ant, None')
        """
        return self._joined("left", other, joiner, materialized, options, foreign_key, joined, named)

    def outer_join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V | None, VO | None], R] | ValueJoinerWithKey[K, V | None, VO | None, R],
        materialized: Materialized[K, R] | str | None = None,
        *,
        named: Named | str | None = None,
    ) -> KTable[K, R]:
        """Join like `join`, but keep every entry of both tables: a missing value is None.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     table = words.to_table()
            ...     short, long = table.filter(lambda k, word: len(word) < 4), table.filter(lambda k, word: len(word) > 3)
            ...     return short.outer_join(long, lambda one, other: f"{one}, {other}").to_stream()
            >>> run(build, ("k", "ant"))[-1], run(build, ("k", "hornet"))[-1]
            (('k', 'ant, None'), ('k', 'None, hornet'))
        """
        return self._joined("outer", other, joiner, materialized, (), None, None, named)

    def _joined(
        self,
        kind: table_joins.JoinKind,
        other: KTable[Any, Any],
        joiner: Any,
        materialized: Any,
        options: Sequence[object],
        foreign_key: AnyForeignKey | None,
        joined: AnyTableJoined | None,
        named: Named | str | None,
    ) -> KTable[K, Any]:
        if foreign_key is None and (callable(materialized) or isinstance(materialized, ValueJoinerWithKey)):
            foreign_key, joiner, materialized = joiner, materialized, None  # Java's order
            for each in options:
                if isinstance(each, TableJoined) and joined is None:
                    joined = each
                elif isinstance(each, Materialized | str) and materialized is None:
                    materialized = each
                else:
                    raise wrong("options", "one TableJoined and one Materialized", each)
        elif options:
            raise wrong("materialized", "the last positional argument", options[0], "give all others by name")
        if foreign_key is None:
            if joined is not None:
                raise wrong("joined", "given with foreign_key only", joined, "name a join by key with named=")
            return table_joins.primary_key_join(self, other, joiner, materialized, named, kind)
        return table_joins.foreign_key_join(
            self,
            other,
            joiner,
            foreign_key,
            left_join=kind == "left",
            table_joined=joined,
            named=named,
            materialized=materialized,
        )

    # Building blocks.

    def _derived(
        self, name: str, options: TableOptions, processor: TableProcessor, store_names: Sequence[str] = ()
    ) -> KTable[K, Any]:
        """Add an operator below this table; its result is kept in a store if the user named one."""
        store = options.store() if options.queryable else None
        node = ProcessorStep(name, processor, stores=() if store is None else (store,), store_names=store_names)
        node.versioned_output = None if store is None else store.versioned
        self._graph.add(self._node, node)
        return KTable._from_node(self._graph, node, processor, options, sources=self._sources)
