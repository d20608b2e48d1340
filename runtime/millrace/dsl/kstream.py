"""`KStream`: an unbounded sequence of records, and the operators on it."""

# ruff: noqa: SLF001 (streams and tables are one facade)

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, TypeVar

from millrace.checks import callback, instance, new_processors, option, processor_supplier
from millrace.dsl.branched_stream import BranchedKStream
from millrace.dsl.graph.nodes import GraphNode, ProcessorStep, SinkStep
from millrace.dsl.graph.repartition import Repartition
from millrace.dsl.graph.sources import TableStep
from millrace.dsl.grouped_stream import KGroupedStream
from millrace.dsl.ktable import KTable
from millrace.dsl.names import topic_name
from millrace.dsl.options.grouped import Grouped, Repartitioned
from millrace.dsl.options.materialized import Materialized
from millrace.dsl.options.named import Named, name_of
from millrace.dsl.options.produced import Printed, Produced
from millrace.dsl.processors import stateless
from millrace.dsl.stores import names_of_stores, table_options
from millrace.dsl.stream_joins import StreamJoins
from millrace.processor.adapter import NodeFixedKeyProcessorContext, ProcessorFactory, stores_of
from millrace.processor.api import FixedKeyProcessorSupplier, ProcessorSupplier, TopicNameExtractor
from millrace.processor.node import NodeFactory
from millrace.serdes.base import Serde

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


class KStream(StreamJoins[K, V]):
    """Records with keys of type K and values of type V. Made by `StreamsBuilder.stream` and by operators."""

    _ELSEWHERE: ClassVar = {
        **{
            name: f"group the stream first: group_by_key().{name}(…)"
            for name in ("count", "reduce", "aggregate", "cogroup", "windowed_by")
        },
        "suppress": "only a table can be suppressed: aggregate the stream first",
        "to_stream": "it is a stream already",
    }

    # Stateless operators.

    def filter(self, predicate: Callable[[K, V], object], named: Named | str | None = None) -> KStream[K, V]:
        """Keep the records for which the predicate is true.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.filter(lambda key, value: len(value) > 3), "to", "stream")
            [(None, 'stream')]
        """
        callback(predicate, "predicate", "key, value")
        return self._filtered(stateless.filtering(predicate), named)

    def filter_not(self, predicate: Callable[[K, V], object], named: Named | str | None = None) -> KStream[K, V]:
        """Drop the records for which the predicate is true.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.filter_not(lambda key, value: len(value) > 3), "to", "stream")
            [(None, 'to')]
        """
        callback(predicate, "predicate", "key, value")
        return self._filtered(stateless.filtering(predicate, negate=True), named)

    def _filtered(self, factory: NodeFactory, named: Named | str | None) -> KStream[K, V]:
        return self._same_types(self._processor("KSTREAM-FILTER-", factory, named))

    def map(self, mapper: Callable[[K, V], tuple[K2, V2]], named: Named | str | None = None) -> KStream[K2, V2]:
        """Replace key and value; grouping or joining the result goes through a repartition topic.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.map(lambda key, value: (value[0], value.upper())), "stream")
            [('s', 'STREAM')]
        """
        callback(mapper, "mapper", "key, value")
        node = self._processor("KSTREAM-MAP-", stateless.mapping(mapper), named, key_changing=True)
        return KStream(self._graph, node.name, node, sources=self._sources, repartition_required=True)

    def map_values(
        self,
        mapper: Callable[[V], V2],
        named: Named | str | None = None,
        *,
        value_serde: Serde[V2] | None = None,
    ) -> KStream[K, V2]:
        """Replace the value; the key stays, so no repartitioning is needed.

        Args:
            mapper: gets the value and returns the new one.
            named: the node's name.
            value_serde: of the new values, for the operators downstream; None means the default.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.map_values(str.upper), "stream")
            [(None, 'STREAM')]
        """
        callback(mapper, "mapper", "value", {"key, value": "use map_values_with_key"})
        node = self._processor("KSTREAM-MAPVALUES-", stateless.mapping_values(mapper), named, value_changing=True)
        return self._with_values(node, value_serde)

    def map_values_with_key(self, mapper: Callable[[K, V], V2], named: Named | str | None = None) -> KStream[K, V2]:
        """Replace the value, given the key too (which must not be changed).

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.map_values_with_key(lambda key, value: f"{key}={value}"), ("k", "v"))
            [('k', 'k=v')]
        """
        callback(mapper, "mapper", "key, value", {"value": "use map_values"})
        node = self._processor(
            "KSTREAM-MAPVALUES-", stateless.mapping_values_with_key(mapper), named, value_changing=True
        )
        return self._with_values(node)

    def flat_map(
        self, mapper: Callable[[K, V], Iterable[tuple[K2, V2]]], named: Named | str | None = None
    ) -> KStream[K2, V2]:
        """Replace each record with any number of records.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.flat_map(lambda key, value: [(letter, value) for letter in value]), "ab")
            [('a', 'ab'), ('b', 'ab')]
        """
        callback(mapper, "mapper", "key, value")
        node = self._processor("KSTREAM-FLATMAP-", stateless.flat_mapping(mapper), named, key_changing=True)
        return KStream(self._graph, node.name, node, sources=self._sources, repartition_required=True)

    def flat_map_values(self, mapper: Callable[[V], Iterable[V2]], named: Named | str | None = None) -> KStream[K, V2]:
        """Replace each value with any number of values.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda lines: lines.flat_map_values(str.split), "all streams flow")
            [(None, 'all'), (None, 'streams'), (None, 'flow')]
        """
        callback(mapper, "mapper", "value", {"key, value": "use flat_map_values_with_key"})
        node = self._processor(
            "KSTREAM-FLATMAPVALUES-", stateless.flat_mapping_values(mapper), named, value_changing=True
        )
        return self._with_values(node)

    def flat_map_values_with_key(
        self, mapper: Callable[[K, V], Iterable[V2]], named: Named | str | None = None
    ) -> KStream[K, V2]:
        """Replace each value with any number of values, given the key too.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.flat_map_values_with_key(lambda key, value: [key, value]), ("k", "v"))
            [('k', 'k'), ('k', 'v')]
        """
        callback(mapper, "mapper", "key, value", {"value": "use flat_map_values"})
        factory = stateless.flat_mapping_values_with_key(mapper)
        return self._with_values(self._processor("KSTREAM-FLATMAPVALUES-", factory, named, value_changing=True))

    def select_key(self, selector: Callable[[K, V], K2], named: Named | str | None = None) -> KStream[K2, V]:
        """Give every record a new key; grouping or joining the result goes through a repartition topic.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.select_key(lambda key, value: value[0]), "stream")
            [('s', 'stream')]
        """
        callback(selector, "selector", "key, value")
        return self._selected(selector, name_of(named))

    def _selected(self, selector: Callable[[K, V], K2], name: str | None) -> KStream[K2, V]:
        node = self._processor("KSTREAM-KEY-SELECT-", stateless.selecting_key(selector), name, key_changing=True)
        return KStream(
            self._graph,
            node.name,
            node,
            sources=self._sources,
            value_serde=self._value_serde,
            repartition_required=True,
        )

    def peek(self, action: Callable[[K, V], object], named: Named | str | None = None) -> KStream[K, V]:
        """Call a function for every record, and forward the record unchanged.

        Example:
            >>> from millrace.testing.examples import run
            >>> seen = []
            >>> run(lambda words: words.peek(lambda key, value: seen.append(value)), "stream"), seen
            ([(None, 'stream')], ['stream'])
        """
        callback(action, "action", "key, value")
        return self._same_types(self._processor("KSTREAM-PEEK-", stateless.peeking(action), named))

    def foreach(self, action: Callable[[K, V], object], named: Named | str | None = None) -> None:
        """Call a function for every record; nothing is forwarded.

        Example:
            >>> from millrace.testing.examples import run
            >>> seen = []
            >>> def build(words):
            ...     words.foreach(lambda key, value: seen.append(value))
            ...     return words
            >>> run(build, "stream"), seen
            ([(None, 'stream')], ['stream'])
        """
        callback(action, "action", "key, value")
        self._processor("KSTREAM-FOREACH-", stateless.peeking(action), named)

    def print(self, printed: Printed[K, V] | None = None) -> None:
        """Print every record, by default to standard output; nothing is forwarded.

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
        printed = option(printed, "printed", Printed)
        factory = stateless.printing(
            printed.label if printed.label is not None else self._name, printed.mapper, printed.path
        )
        self._processor("KSTREAM-PRINTER-", factory, printed.name)

    def merge(self, other: KStream[K, V], named: Named | str | None = None) -> KStream[K, V]:
        """Merge two streams; there is no order between their records.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.merge(words.map_values(str.upper)), "a")
            [(None, 'A'), (None, 'a')]
        """
        instance(other, "other", KStream, "a KStream")
        self._require_same_builder(other)
        name = self._graph.names.processor("KSTREAM-MERGE-", name_of(named))
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
        """Split the stream into branches: every record goes to the first branch whose predicate is true.

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
        """Write the stream to a topic, or to topics that a function of key, value and context chooses per record.

        Args:
            topic: the name of an existing topic, or the function.
            produced: serdes, partitioner and name of the sink; serdes default to the stream's own.

        Example:
            >>> from millrace.dsl import StreamsBuilder
            >>> builder = StreamsBuilder()
            >>> builder.stream("in").to("out")
            >>> print(builder.build().describe().splitlines()[4].strip())
            Sink: KSTREAM-SINK-0000000001 (topic: out)
        """
        if not callable(topic):
            topic_name(topic)
        else:
            callback(topic, "topic", "key, value, context")
        options = option(produced, "produced", Produced)
        node = SinkStep(
            self._graph.names.processor("KSTREAM-SINK-", options.name),
            topic,
            options.key_serde if options.key_serde is not None else self._key_serde,
            options.value_serde if options.value_serde is not None else self._value_serde,
            options.partitioner,
        )
        self._graph.add(self._node, node)

    def repartition(self, repartitioned: Repartitioned[K, V] | None = None) -> KStream[K, V]:
        """Send the stream through an internal topic, which partitions records by their current key.

        Example:
            >>> from millrace.dsl import Repartitioned
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.repartition(Repartitioned.as_("by-key")), ("k", "v"))
            [('k', 'v')]
        """
        options = option(repartitioned, "repartitioned", Repartitioned)
        names = self._graph.names
        key_serde = options.key_serde if options.key_serde is not None else self._key_serde
        value_serde = options.value_serde if options.value_serde is not None else self._value_serde
        node = Repartition(
            names,
            options.name if options.name is not None else names.processor("KSTREAM-REPARTITION-"),
            key_serde=key_serde,
            value_serde=value_serde,
            partitioner=options.partitioner,
            partitions=options.partitions,
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
        name = graph.names.processor("KSTREAM-TOTABLE-", name_of(named))
        options = table_options(materialized, graph.names, "KSTREAM-TOTABLE-")
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
        node = TableStep(name, options.store())
        graph.add(parent, node)
        return KTable._from_node(graph, node, node.processor, options, sources=sources)

    # Grouping.

    def group_by_key(self, grouped: Grouped[K, V] | None = None) -> KGroupedStream[K, V]:
        """Group the records by their current key.

        Example:
            >>> from millrace.testing.examples import run
            >>> run(lambda words: words.group_by_key().count().to_stream().map_values(str), ("a", "x"), ("a", "y"))
            [('a', '1'), ('a', '2')]
        """
        options = option(grouped, "grouped", Grouped)
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
        callback(selector, "selector", "key, value")
        options = option(grouped, "grouped", Grouped)
        return self._selected(selector, options.name).group_by_key(options)

    # User code.

    def process(
        self,
        supplier: ProcessorSupplier[K, V, K2, V2],
        *store_names: Named | str,
        named: Named | str | None = None,
    ) -> KStream[K2, V2]:
        """Run a processor on the stream; it may change keys, so grouping the result goes through a repartition topic.

        Args:
            supplier: returns a new processor for each task; the stores of its `stores()` method, if any, are added too.
            store_names: stores of the builder that the processor uses. The first may be a `Named`, as in Java.
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
        processor_supplier(supplier, "process", instead={"FixedKeyProcessor": "use process_values"})
        node = self._user_code(
            "KSTREAM-PROCESSOR-", ProcessorFactory(supplier), supplier, store_names, named, key_changing=True
        )
        return KStream(self._graph, node.name, node, sources=self._sources, repartition_required=True)

    def process_values(
        self,
        supplier: FixedKeyProcessorSupplier[K, V, V2],
        *store_names: Named | str,
        named: Named | str | None = None,
    ) -> KStream[K, V2]:
        """Run a processor that cannot change the records' keys.

        Args:
            supplier: returns a new processor for each task; the stores of its `stores()` method, if any, are added too.
            store_names: stores of the builder that the processor uses. The first may be a `Named`, as in Java.
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
        processor_supplier(supplier, "process", instead={"Processor": "use process"})
        factory = ProcessorFactory(supplier, NodeFixedKeyProcessorContext)
        node = self._user_code("KSTREAM-PROCESSVALUES-", factory, supplier, store_names, named, key_changing=False)
        return self._with_values(node)

    def _user_code(
        self,
        prefix: str,
        factory: NodeFactory,
        supplier: Callable[[], object],
        store_names: Sequence[Named | str],
        named: Named | str | None,
        *,
        key_changing: bool,
    ) -> ProcessorStep:
        if named is None and store_names and isinstance(store_names[0], Named):  # Java's order
            named, *store_names = store_names
        name = name_of(named) or self._graph.names.processor(prefix)  # unlike elsewhere, a given name uses up no index
        new_processors(supplier, name)
        node = ProcessorStep(
            name,
            factory,
            stores=stores_of(supplier),
            store_names=names_of_stores(store_names),
            key_changing=key_changing,
            value_changing=not key_changing,
        )
        self._graph.add(self._node, node)
        return node

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
        return self._with_values(node, self._value_serde)

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
