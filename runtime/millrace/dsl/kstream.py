"""`KStream`: an unbounded sequence of records, and the operators on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, overload

from millrace.dsl.graph.builder import GraphBuilder
from millrace.dsl.graph.nodes import GraphNode, ProcessorStep, SinkStep
from millrace.dsl.graph.repartition import Repartition
from millrace.dsl.graph.sources import TableStep
from millrace.dsl.options.grouped import Grouped, Repartitioned
from millrace.dsl.options.joined import Joined, StreamJoined, ValueJoinerWithKey
from millrace.dsl.options.materialized import Materialized
from millrace.dsl.options.named import Named, name_of
from millrace.dsl.options.produced import Printed, Produced
from millrace.dsl.processors import stateless
from millrace.dsl.processors.table_operators import TableSourceProcessor
from millrace.dsl.table_stores import table_options
from millrace.dsl.windows import JoinWindows
from millrace.errors import TopologyError
from millrace.processor.adapter import fixed_key_processor_node, processor_node, stores_of
from millrace.processor.api import FixedKeyProcessorSupplier, ProcessorSupplier, TopicNameExtractor
from millrace.processor.node import NodeFactory
from millrace.serdes.base import Serde

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
VO = TypeVar("VO")
GK = TypeVar("GK")
GV = TypeVar("GV")
R = TypeVar("R")

FILTER = "KSTREAM-FILTER-"
FLAT_MAP = "KSTREAM-FLATMAP-"
FLAT_MAP_VALUES = "KSTREAM-FLATMAPVALUES-"
FOREACH = "KSTREAM-FOREACH-"
KEY_SELECT = "KSTREAM-KEY-SELECT-"
MAP = "KSTREAM-MAP-"
MAP_VALUES = "KSTREAM-MAPVALUES-"
MERGE = "KSTREAM-MERGE-"
PEEK = "KSTREAM-PEEK-"
PRINTER = "KSTREAM-PRINTER-"
PROCESSOR = "KSTREAM-PROCESSOR-"
PROCESS_VALUES = "KSTREAM-PROCESSVALUES-"
REPARTITION = "KSTREAM-REPARTITION-"
SINK = "KSTREAM-SINK-"
TO_TABLE = "KSTREAM-TOTABLE-"


class KStream(Generic[K, V]):
    """Records with keys of type K and values of type V. Made by `StreamsBuilder.stream` and by operators."""

    def __init__(
        self,
        graph: GraphBuilder,
        name: str,
        node: GraphNode,
        *,
        sources: Iterable[str],
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
        repartition_required: bool = False,
    ) -> None:
        self._graph = graph
        self._name = name
        self._node = node
        self._sources = frozenset(sources)
        self._key_serde = key_serde
        self._value_serde = value_serde
        self._repartition_required = repartition_required
        self._repartition_node: Repartition | None = None

    # Stateless operators.

    def filter(self, predicate: Callable[[K, V], Any], named: Named | str | None = None) -> KStream[K, V]:
        """Keep the records for which the predicate is true.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.filter(lambda key, value: len(value) > 3), "to", "stream")
            [(None, 'stream')]
        """
        return self._filtered(stateless.filtering(predicate), named)

    def filter_not(self, predicate: Callable[[K, V], Any], named: Named | str | None = None) -> KStream[K, V]:
        """Drop the records for which the predicate is true.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.filter_not(lambda key, value: len(value) > 3), "to", "stream")
            [(None, 'to')]
        """
        return self._filtered(stateless.filtering(predicate, negate=True), named)

    def _filtered(self, factory: NodeFactory, named: Named | str | None) -> KStream[K, V]:
        return self._same_types(self._processor(FILTER, factory, named))

    def map(self, mapper: Callable[[K, V], tuple[K2, V2]], named: Named | str | None = None) -> KStream[K2, V2]:
        """Replace key and value; grouping or joining the result goes through a repartition topic.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.map(lambda key, value: (value[0], value.upper())), "stream")
            [('s', 'STREAM')]
        """
        node = self._processor(MAP, stateless.mapping(mapper), named, key_changing=True)
        return KStream(self._graph, node.name, node, sources=self._sources, repartition_required=True)

    def map_values(
        self,
        mapper: Callable[[V], V2],
        named: Named | str | None = None,
        *,
        value_serde: Serde[V2] | None = None,
    ) -> KStream[K, V2]:
        """Replace the value; the key stays, so nothing has to be repartitioned.

        Args:
            mapper: gets the value, returns the new one.
            named: the node's name.
            value_serde: of the new values, for the operators that follow; None takes the default.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.map_values(str.upper), "stream")
            [(None, 'STREAM')]
        """
        node = self._processor(MAP_VALUES, stateless.mapping_values(mapper), named, value_changing=True)
        return self._with_values(node, value_serde)

    def map_values_with_key(self, mapper: Callable[[K, V], V2], named: Named | str | None = None) -> KStream[K, V2]:
        """Replace the value, knowing the key (which must not be changed).

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.map_values_with_key(lambda key, value: f"{key}={value}"), ("k", "v"))
            [('k', 'k=v')]
        """
        node = self._processor(MAP_VALUES, stateless.mapping_values_with_key(mapper), named, value_changing=True)
        return self._with_values(node)

    def flat_map(
        self, mapper: Callable[[K, V], Iterable[tuple[K2, V2]]], named: Named | str | None = None
    ) -> KStream[K2, V2]:
        """Replace a record by any number of others.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.flat_map(lambda key, value: [(letter, value) for letter in value]), "ab")
            [('a', 'ab'), ('b', 'ab')]
        """
        node = self._processor(FLAT_MAP, stateless.flat_mapping(mapper), named, key_changing=True)
        return KStream(self._graph, node.name, node, sources=self._sources, repartition_required=True)

    def flat_map_values(self, mapper: Callable[[V], Iterable[V2]], named: Named | str | None = None) -> KStream[K, V2]:
        """Replace a value by any number of others.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda lines: lines.flat_map_values(str.split), "all streams flow")
            [(None, 'all'), (None, 'streams'), (None, 'flow')]
        """
        node = self._processor(FLAT_MAP_VALUES, stateless.flat_mapping_values(mapper), named, value_changing=True)
        return self._with_values(node)

    def flat_map_values_with_key(
        self, mapper: Callable[[K, V], Iterable[V2]], named: Named | str | None = None
    ) -> KStream[K, V2]:
        """Replace a value by any number of others, knowing the key.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.flat_map_values_with_key(lambda key, value: [key, value]), ("k", "v"))
            [('k', 'k'), ('k', 'v')]
        """
        factory = stateless.flat_mapping_values_with_key(mapper)
        return self._with_values(self._processor(FLAT_MAP_VALUES, factory, named, value_changing=True))

    def select_key(self, selector: Callable[[K, V], K2], named: Named | str | None = None) -> KStream[K2, V]:
        """Give every record a new key; grouping or joining the result goes through a repartition topic.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.select_key(lambda key, value: value[0]), "stream")
            [('s', 'stream')]
        """
        return self._selected(selector, name_of(named))

    def _selected(self, selector: Callable[[K, V], K2], name: str | None) -> KStream[K2, V]:
        node = self._processor(KEY_SELECT, stateless.selecting_key(selector), name, key_changing=True)
        return KStream(
            self._graph,
            node.name,
            node,
            sources=self._sources,
            value_serde=self._value_serde,
            repartition_required=True,
        )

    def peek(self, action: Callable[[K, V], Any], named: Named | str | None = None) -> KStream[K, V]:
        """Call a function for every record, and send it on unchanged.

        Example:
            >>> from millrace.testing.examples import run
            >>> seen = []
            >>> run(lambda words: words.peek(lambda key, value: seen.append(value)), "stream"), seen
            ([(None, 'stream')], ['stream'])
        """
        return self._same_types(self._processor(PEEK, stateless.peeking(action), named))

    def foreach(self, action: Callable[[K, V], Any], named: Named | str | None = None) -> None:
        """Call a function for every record; the end of this stream.

        Example:
            >>> from millrace.testing.examples import run
            >>> seen = []
            >>> def build(words):
            ...     words.foreach(lambda key, value: seen.append(value))
            ...     return words
            >>> run(build, "stream"), seen
            ([(None, 'stream')], ['stream'])
        """
        self._processor(FOREACH, stateless.peeking(action), named)

    def print(self, printed: Printed[K, V] | None = None) -> None:
        """Print every record, to standard output unless told otherwise; the end of this stream.

        Example:
            >>> from millrace.dsl import Printed
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     words.print(Printed.to_sys_out().with_label("words"))
            ...     return words.filter(lambda key, value: False)
            >>> run(build, ("k", "stream"))
            [words]: k, stream
            []
        """
        printed = printed if printed is not None else Printed()
        factory = stateless.printing(
            printed.label if printed.label is not None else self._name, printed.mapper, printed.path
        )
        self._processor(PRINTER, factory, printed.name)

    def merge(self, other: KStream[K, V], named: Named | str | None = None) -> KStream[K, V]:
        """Take the records of both streams, in no particular order.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.merge(words.map_values(str.upper)), "a")
            [(None, 'A'), (None, 'a')]
        """
        name = self._graph.names.processor(MERGE, name_of(named))
        node = ProcessorStep(name, stateless.pass_through(), is_merge=True)
        self._graph.add((self._node, other._node), node)
        return KStream(
            self._graph,
            name,
            node,
            sources=self._sources | other._sources,
            repartition_required=self._repartition_required or other._repartition_required,
        )

    def split(self, named: Named | str | None = None) -> BranchedKStream[K, V]:
        """Begin to split the stream: every record goes to the first branch whose predicate is true.

        Example:
            >>> from millrace.dsl import Branched
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     branches = words.split(named="len-").branch(lambda key, value: len(value) < 3, Branched.as_("short"))
            ...     return branches.no_default_branch()["len-short"]
            >>> run(build, "to", "stream")
            [(None, 'to')]
        """
        return BranchedKStream(self, name_of(named))

    # Topics.

    def to(self, topic: str | TopicNameExtractor, produced: Produced[K, V] | None = None) -> None:
        """Write the stream to a topic, or to the one a function of key, value and context chooses for each record.

        Args:
            topic: its name, which must exist, or the function.
            produced: serdes, partitioner and name of the sink; serdes default to the stream's own.

        Example:
            >>> from millrace.dsl import StreamsBuilder
            >>> builder = StreamsBuilder()
            >>> builder.stream("in").to("out")
            >>> print(builder.build().describe().splitlines()[4].strip())
            Sink: KSTREAM-SINK-0000000001 (topic: out)
        """
        options = produced if produced is not None else Produced()
        node = SinkStep(
            self._graph.names.processor(SINK, options.name),
            topic,
            options.key_serde if options.key_serde is not None else self._key_serde,
            options.value_serde if options.value_serde is not None else self._value_serde,
            options.partitioner,
        )
        self._graph.add(self._node, node)

    def repartition(self, repartitioned: Repartitioned[K, V] | None = None) -> KStream[K, V]:
        """Send the stream through an internal topic, so that records are partitioned by their current key.

        Example:
            >>> from millrace.dsl import Repartitioned
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.repartition(Repartitioned.as_("by-key")), ("k", "v"))
            [('k', 'v')]
        """
        options = repartitioned if repartitioned is not None else Repartitioned()
        names = self._graph.names
        key_serde = options.key_serde if options.key_serde is not None else self._key_serde
        value_serde = options.value_serde if options.value_serde is not None else self._value_serde
        node = Repartition(
            names,
            options.name if options.name is not None else names.processor(REPARTITION),
            key_serde=key_serde,
            value_serde=value_serde,
            partitioner=options.partitioner,
            partitions=options.number_of_partitions,
            name_is_generated=options.name is None,
            mergeable=False,
        )
        self._graph.add(self._node, node)
        return KStream(self._graph, node.name, node, sources=(node.name,), key_serde=key_serde, value_serde=value_serde)

    def to_table(
        self, materialized: Materialized[K, V] | str | None = None, *, named: Named | str | None = None
    ) -> KTable[K, V]:
        """Read the stream as a table: each record is the new value of its key, None deletes it.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.to_table().to_stream(), ("k", "a"), ("k", "b"), (None, "dropped"))
            [('k', 'a'), ('k', 'b')]
        """
        graph = self._graph
        name = graph.names.processor(TO_TABLE, name_of(named))
        options = table_options(materialized, graph.names, TO_TABLE)
        options = options.with_defaults(self._key_serde, self._value_serde)
        parent, sources = self._node, self._sources
        if self._repartition_required:
            parent = Repartition(
                graph.names,
                name,
                key_serde=options.option.key_serde,
                value_serde=options.option.value_serde,
                name_is_generated=named is None,
            )
            graph.add(self._node, parent)
            sources = frozenset((parent.name,))
        store = options.store()
        node = TableStep(name, store, versioned=store.versioned)
        node.factory = processor = TableSourceProcessor(
            options.store_name, materialized=options.queryable, on_materialize=node.materialize
        )
        if options.queryable:
            node.materialize()
        graph.add(parent, node)
        return KTable(
            graph,
            name,
            node,
            processor,
            sources=sources,
            key_serde=options.option.key_serde,
            value_serde=options.option.value_serde,
            queryable_store_name=options.queryable_name,
        )

    # Grouping.

    def group_by_key(self, grouped: Grouped[K, V] | None = None) -> KGroupedStream[K, V]:
        """Group the records by the key they have.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.group_by_key().count().to_stream().map_values(str), ("a", "x"), ("a", "y"))
            [('a', '1'), ('a', '2')]
        """
        options = grouped if grouped is not None else Grouped()
        return KGroupedStream(
            self._graph,
            self._name,
            self._node,
            sources=self._sources,
            key_serde=options.key_serde if options.key_serde is not None else self._key_serde,
            value_serde=options.value_serde if options.value_serde is not None else self._value_serde,
            repartition_required=self._repartition_required,
            repartition_name=options.name,
        )

    def group_by(self, selector: Callable[[K, V], K2], grouped: Grouped[K2, V] | None = None) -> KGroupedStream[K2, V]:
        """Group the records by a new key, through a repartition topic.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.group_by(lambda key, value: value).count().to_stream().map_values(str), "a", "a")
            [('a', '1'), ('a', '2')]
        """
        name = None if grouped is None else grouped.name
        return self._selected(selector, name).group_by_key(grouped)

    # User code.

    def process(
        self,
        supplier: ProcessorSupplier[K, V, K2, V2],
        *store_names: str,
        named: Named | str | None = None,
    ) -> KStream[K2, V2]:
        """Run a processor on the stream; it may change keys, so grouping the result goes through a repartition topic.

        Args:
            supplier: makes a processor per task; its `stores()`, if it has that, are added too.
            store_names: of the stores it uses that were added to the builder.
            named: the node's name.

        Example:
            >>> from millrace.processor import Processor
            >>> from millrace.testing.examples import run
            >>> class Swap(Processor):
            ...     def process(self, record):
            ...         self.context.forward(record.with_key(record.value).with_value(record.key))
            >>> run(lambda words: words.process(Swap), ("k", "v"))
            [('v', 'k')]
        """
        node = self._user_code(PROCESSOR, processor_node(supplier), supplier, store_names, named, key_changing=True)
        return KStream(self._graph, node.name, node, sources=self._sources, repartition_required=True)

    def process_values(
        self,
        supplier: FixedKeyProcessorSupplier[K, V, V2],
        *store_names: str,
        named: Named | str | None = None,
    ) -> KStream[K, V2]:
        """Run a processor on the stream that keeps every record's key.

        Args:
            supplier: makes a processor per task; its `stores()`, if it has that, are added too.
            store_names: of the stores it uses that were added to the builder.
            named: the node's name.

        Example:
            >>> from millrace.processor import FixedKeyProcessor
            >>> from millrace.testing.examples import run
            >>> class Twice(FixedKeyProcessor):
            ...     def process(self, record):
            ...         self.context.forward(record)
            ...         self.context.forward(record.with_value(record.value.upper()))
            >>> run(lambda words: words.process_values(Twice), ("k", "v"))
            [('k', 'v'), ('k', 'V')]
        """
        factory = fixed_key_processor_node(supplier)
        node = self._user_code(PROCESS_VALUES, factory, supplier, store_names, named, key_changing=False)
        return self._with_values(node)

    def _user_code(
        self,
        prefix: str,
        factory: NodeFactory,
        supplier: object,
        store_names: Iterable[str],
        named: Named | str | None,
        *,
        key_changing: bool,
    ) -> ProcessorStep:
        node = ProcessorStep(
            name_of(named) or self._graph.names.processor(prefix),  # a name given takes no number, other than elsewhere
            factory,
            stores=stores_of(supplier),
            store_names=tuple(store_names),
            key_changing=key_changing,
            value_changing=not key_changing,
        )
        self._graph.add(self._node, node)
        return node

    # Joins.

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
        other: GlobalKTable[GK, GV],
        joiner: Callable[[V, GV], R] | ValueJoinerWithKey[K, V, GV, R],
        *,
        key_selector: Callable[[K, V], GK | None],
        named: Named | str | None = None,
    ) -> KStream[K, R]: ...
    def join(
        self,
        other: Any,
        joiner: Any,
        windows: Any = None,
        joined: Any = None,
        *,
        key_selector: Any = None,
        named: Any = None,
    ) -> KStream[K, Any]:
        """Join with a stream (within windows), a table (its current value), or a global table (of any key).

        Records without a match give no result. The joiner gets both values; wrap it in `ValueJoinerWithKey` to get the key
        first.

        Args:
            other: what to join with. Streams and tables must be partitioned alike; a stream whose key has changed is
                repartitioned first.
            joiner: returns the value of the result.
            windows: with a stream: how far apart in time records may be.
            joined: names, serdes and stores.
            key_selector: with a global table: the key to look up, None for no match.
            named: with a global table: the node's name.

        Example:
            >>> from millrace.dsl import JoinWindows
            >>> from millrace.testing.examples import run
            >>> windows = JoinWindows.of_time_difference_with_no_grace(5)
            >>> run(lambda words: words.join(words, lambda left, right: left + right, windows), ("k", "a"))
            [('k', 'aa')]
        """
        return stream_joining.join(self, other, joiner, windows, joined, key_selector, named, kind="inner")

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
        other: GlobalKTable[GK, GV],
        joiner: Callable[[V, GV | None], R] | ValueJoinerWithKey[K, V, GV | None, R],
        *,
        key_selector: Callable[[K, V], GK | None],
        named: Named | str | None = None,
    ) -> KStream[K, R]: ...
    def left_join(
        self,
        other: Any,
        joiner: Any,
        windows: Any = None,
        joined: Any = None,
        *,
        key_selector: Any = None,
        named: Any = None,
    ) -> KStream[K, Any]:
        """Join as `join` does; records of this stream without a match are joined with None.

        With a stream that happens when the window (and its grace) has passed; records whose key is None are joined with None
        at once (KIP-962).

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     known = words.filter(lambda key, value: key == "k").to_table()
            ...     return words.left_join(known, lambda word, found: f"{word}, {found}")
            >>> run(build, ("k", "a"), ("x", "b"))
            [('k', 'a, a'), ('x', 'b, None')]
        """
        return stream_joining.join(self, other, joiner, windows, joined, key_selector, named, kind="left")

    def outer_join(
        self,
        other: KStream[K, VO],
        joiner: Callable[[V | None, VO | None], R] | ValueJoinerWithKey[K, V | None, VO | None, R],
        windows: JoinWindows,
        joined: StreamJoined[K, V, VO] | None = None,
    ) -> KStream[K, R]:
        """Join two streams; records of either one without a match are joined with None when their window has passed.

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
        return stream_joining.join(self, other, joiner, windows, joined, None, None, kind="outer")

    # Building blocks.

    def _processor(
        self,
        prefix: str,
        factory: NodeFactory,
        named: Named | str | None,
        *,
        key_changing: bool = False,
        value_changing: bool = False,
    ) -> ProcessorStep:
        name = self._graph.names.processor(prefix, name_of(named))
        node = ProcessorStep(name, factory, key_changing=key_changing, value_changing=value_changing)
        self._graph.add(self._node, node)
        return node

    def _same_types(self, node: GraphNode) -> KStream[K, V]:
        return KStream(
            self._graph,
            node.name,
            node,
            sources=self._sources,
            key_serde=self._key_serde,
            value_serde=self._value_serde,
            repartition_required=self._repartition_required,
        )

    def _with_values(self, node: GraphNode, value_serde: Serde[V2] | None = None) -> KStream[K, V2]:
        return KStream(
            self._graph,
            node.name,
            node,
            sources=self._sources,
            key_serde=self._key_serde,
            value_serde=value_serde,
            repartition_required=self._repartition_required,
        )

    def _repartitioned_for_join(
        self, name: str, key_serde: Serde[K] | None, value_serde: Serde[V] | None
    ) -> KStream[K, V]:
        """Return this stream behind a repartition topic, one and the same for all joins that do not name theirs."""
        keys = key_serde if key_serde is not None else self._key_serde
        values = value_serde if value_serde is not None else self._value_serde
        generated = name == self._name
        node = Repartition(self._graph.names, name, key_serde=keys, value_serde=values, name_is_generated=generated)
        new_name = node.name
        if self._repartition_node is None or not generated:
            self._repartition_node = node
            self._graph.add(self._node, node)
        return KStream(
            self._graph,
            new_name,
            self._repartition_node,
            sources=(new_name,),
            key_serde=keys,
            value_serde=values,
        )

    def _copartition_with(self, *others: Any) -> frozenset[str]:
        """Demand equal partition counts, and return the sources of all."""
        sources = self._sources.union(*(other._sources for other in others))  # noqa: SLF001 (streams and tables alike)
        self._graph.topology.copartition_sources(sorted(sources))
        return sources

    def __repr__(self) -> str:
        return f"KStream({self._name})"


def require_same_builder(one: Any, other: Any) -> None:
    """Check that two streams or tables come from the same builder.

    Raises:
        TopologyError: they do not.
    """
    if one._graph is not other._graph:  # noqa: SLF001
        raise TopologyError(f"{one!r} and {other!r} belong to different StreamsBuilders; build both with the same one")


from millrace.dsl import stream_joining  # noqa: E402 (streams and tables make each other)
from millrace.dsl.branched_stream import BranchedKStream  # noqa: E402
from millrace.dsl.global_table import GlobalKTable  # noqa: E402
from millrace.dsl.grouped_stream import KGroupedStream  # noqa: E402
from millrace.dsl.ktable import KTable  # noqa: E402
