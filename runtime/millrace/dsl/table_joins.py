"""Joins of two tables, by key or by a foreign key: what `KTable.join`, `left_join` and `outer_join` call.

With a foreign key (KIP-213), the left table's task sends subscriptions through the registration topic to the task that owns the
right entry, and gets responses through the response topic. So the two tables need not be partitioned alike, and any number of
left entries can refer to one right entry.
"""

# ruff: noqa: SLF001 (tables and their joins are one facade)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from millrace.checks import callback, instance, mistake, option, users_call
from millrace.config import StreamsConfig
from millrace.dsl.abstract_stream import AbstractKTable
from millrace.dsl.graph.builder import GraphBuilder
from millrace.dsl.graph.joins import TableTableJoin
from millrace.dsl.graph.nodes import ProcessorStep, SinkStep
from millrace.dsl.graph.sources import StreamSource, TableStep
from millrace.dsl.options.joined import (
    AnyForeignKey,
    AnyJoiner,
    AnyTableJoined,
    ForeignKeyWithKey,
    TableJoined,
    with_key,
)
from millrace.dsl.options.materialized import AnyMaterialized
from millrace.dsl.options.named import Named, name_of
from millrace.dsl.processors.foreign_key_join import (
    ForeignKeyExtractor,
    ForeignKeySerdes,
    ForeignTableJoin,
    ResponseJoin,
    SubscriptionJoin,
    SubscriptionReceive,
    SubscriptionSend,
)
from millrace.dsl.processors.table_join import JoinSide, TableJoinMerge, TableJoinSide
from millrace.dsl.store_suppliers import DslKeyValueParams, dsl_suppliers
from millrace.dsl.stores import table_options
from millrace.processor.api import StreamPartitioner
from millrace.serdes import Serdes
from millrace.state.api import StoreBuilder
from millrace.state.stores import Stores
from millrace.topology.physical_topology import DeferredSerde, RepartitionTopic

AnyTable: TypeAlias = AbstractKTable[Any, Any]
T = TypeVar("T", bound=AnyTable)

JoinKind = Literal["inner", "left", "outer"]


_SIDES: dict[JoinKind, tuple[JoinSide, JoinSide]] = {
    "inner": (JoinSide(needs_own=True, needs_other=True), JoinSide(needs_own=True, needs_other=True)),
    "left": (JoinSide(needs_own=True, needs_other=False), JoinSide(needs_own=False, needs_other=True)),
    "outer": (JoinSide(needs_own=False, needs_other=False), JoinSide(needs_own=False, needs_other=False)),
}
"""Which values a result needs: for updates of the left table, and for updates of the right one."""


def primary_key_join(
    left: T,
    right: AnyTable,
    joiner: AnyJoiner,
    materialized: AnyMaterialized | str | None,
    named: Named | str | None,
    kind: JoinKind,
) -> T:
    """Join two tables by their key."""
    _require_table(right)
    left._require_same_builder(right)
    join = with_key(joiner)
    graph, given = left._graph, name_of(named)
    options = table_options(materialized).with_defaults(left._key_serde)
    name = graph.names.processor("KTABLE-MERGE-", given)
    sources = left._copartition_with(right)
    if kind in ("left", "outer"):
        left._processor.send_old_values(force=True)
    if kind == "outer":
        right._processor.send_old_values(force=True)
    left_side, right_side = _SIDES[kind]
    this = TableJoinSide(this=left._processor, other=right._processor, joiner=join, side=left_side)
    other = TableJoinSide(
        this=right._processor,
        other=left._processor,
        joiner=lambda key, right_value, left_value: join(key, left_value, right_value),
        side=right_side,
    )
    merge = TableJoinMerge(this, other, options.queryable_name)
    store = options.store() if options.queryable else None
    node = TableTableJoin(
        name,
        this_parent=left._node.name,
        other_parent=right._node.name,
        this_name=graph.names.processor("KTABLE-JOINTHIS-", given, "-join-this"),
        other_name=graph.names.processor("KTABLE-JOINOTHER-", given, "-join-other"),
        this=this,
        other=other,
        merge=merge,
        store=store,
        versioned_output=None if store is None else store.versioned,
    )
    graph.add((left._node, right._node), node)
    return type(left)._from_node(graph, node, merge, options, sources=sources)


def _require_table(other: object) -> None:
    instance(
        other, "other", AbstractKTable, "a KTable", "a stream has to be the left side, or becomes a table by to_table()"
    )


@dataclass(slots=True, eq=False)
class SubscriptionStoreSpec:
    """The store of subscriptions before the configuration is known: a `DeferredStore`."""

    name: str
    serdes: ForeignKeySerdes
    generated_name: bool
    logging_enabled: bool = True

    def for_config(self, config: StreamsConfig) -> StoreBuilder:
        """Return the builder of the real store: its changelog records carry the subscriptions' headers."""
        supplier = dsl_suppliers(None, None, config).key_value_store(
            DslKeyValueParams(self.name, config.dsl_store_format)
        )
        return Stores.timestamped_key_value_store_with_headers_builder(
            supplier, Serdes.bytes(), self.serdes.subscriptions(config)
        )


@dataclass(frozen=True, slots=True)
class _JoinNames:
    """The names of a join, in the order in which they use up indexes."""

    registration_topic: str
    send: str
    registration_sink: str
    registration_source: str
    store: str
    receive: str
    join: str
    foreign_join: str
    response_topic: str
    response_sink: str
    response_source: str
    resolver: str
    result: str
    generated: bool

    @classmethod
    def take(cls, graph: GraphBuilder, given: str | None) -> _JoinNames:
        """Take the names from the builder's counter."""

        def name(prefix: str, suffix: str) -> str:
            return graph.names.processor(prefix, given, suffix)

        return cls(
            name("KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-", "-subscription-registration") + "-topic",
            name("KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-", "-subscription-registration-processor"),
            name("KTABLE-SINK-", "-subscription-registration-sink"),
            name("KTABLE-SOURCE-", "-subscription-registration-source"),
            name("KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-", "-subscription-store"),
            name("KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-", "-subscription-receive"),
            name("KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-", "-subscription-join-foreign"),
            name("KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR-", "-foreign-join-subscription"),
            name("KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-", "-subscription-response") + "-topic",
            name("KTABLE-SINK-", "-subscription-response-sink"),
            name("KTABLE-SOURCE-", "-subscription-response-source"),
            name("KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-", "-subscription-response-resolver"),
            name("KTABLE-FK-JOIN-OUTPUT-", "-result"),
            generated=given is None,
        )


def foreign_key_join(
    left: T,
    right: AnyTable,
    joiner: AnyJoiner,
    foreign_key: AnyForeignKey,
    *,
    left_join: bool,
    table_joined: AnyTableJoined | None,
    named: Named | str | None,
    materialized: AnyMaterialized | str | None,
) -> T:
    """Join each entry of the left table with the entry of the right table that its foreign key refers to.

    Raises:
        TopologyError: the tables come from different builders, or the join has been given two names.
    """
    _require_table(right)
    left._require_same_builder(right)
    if not isinstance(foreign_key, ForeignKeyWithKey):
        callback(foreign_key, "foreign_key", "value", {"key, value": "wrap it in ForeignKeyWithKey(…)"})
    join = with_key(joiner)
    graph: GraphBuilder = left._graph
    options: AnyTableJoined = option(table_joined, "joined", TableJoined)
    left._processor.send_old_values(force=True)
    right._processor.send_old_values(force=True)
    given = name_of(named)
    if given is not None and options.name is not None:
        raise mistake(
            f"A foreign-key join is named both {options.name} (TableJoined) and {given} (named); give it one name"
        )
    names = _JoinNames.take(graph, options.name if given is None else given)
    for topic in (names.registration_topic, names.response_topic) if names.generated else ():
        graph.topology.note_generated_topic(topic, users_call())
    serdes = ForeignKeySerdes(
        names.registration_topic, left._key_serde, left._value_serde, right._key_serde, right._value_serde
    )
    extractor: ForeignKeyExtractor = (
        foreign_key.extractor if isinstance(foreign_key, ForeignKeyWithKey) else lambda _key, value: foreign_key(value)
    )
    response_source = _add_exchange(graph, left, right, names, serdes, options, extractor, left_join)
    sources = left._sources | {names.response_source}
    graph.topology.copartition_sources(sorted(sources))
    left_view = left._processor.view()
    resolver = ProcessorStep(
        names.resolver,
        ResponseJoin(left_view, serdes, join, left_join=left_join),
        store_names=left_view.store_names,
    )
    graph.add(response_source, resolver)
    result = table_options(materialized, graph.names, "KTABLE-FK-JOIN-OUTPUT-").with_defaults(left._key_serde)
    node = TableStep(names.result, result.store())
    graph.add(resolver, node)
    return type(left)._from_node(graph, node, node.processor, result, sources=sources)


def _add_exchange(
    graph: GraphBuilder,
    left: T,
    right: AnyTable,
    names: _JoinNames,
    serdes: ForeignKeySerdes,
    options: AnyTableJoined,
    extractor: ForeignKeyExtractor,
    left_join: bool,  # noqa: FBT001
) -> StreamSource:
    """Add everything between the left table and the responses to it; return the source of the responses."""
    subscriptions, responses = DeferredSerde(serdes.subscriptions), DeferredSerde(serdes.responses)
    send = ProcessorStep(names.send, SubscriptionSend(extractor, serdes, left_join=left_join))
    graph.add(left._node, send)
    registration_source = _through_topic(
        graph,
        (send,),
        names.registration_topic,
        SinkStep(
            names.registration_sink,
            names.registration_topic,
            serdes.foreign_key,
            subscriptions,
            _partitioner_by_key(options.other_partitioner),
        ),
        names.registration_source,
    )
    graph.topology.copartition_sources(sorted(right._sources | {names.registration_source}))
    store = SubscriptionStoreSpec(names.store, serdes, names.generated)
    receive = ProcessorStep(names.receive, SubscriptionReceive(names.store, serdes), stores=(store,))
    graph.add(registration_source, receive)
    right_view = right._processor.view()
    join = ProcessorStep(names.join, SubscriptionJoin(right_view), store_names=right_view.store_names)
    graph.add(receive, join)
    foreign_join = ProcessorStep(names.foreign_join, ForeignTableJoin(names.store, serdes), store_names=(names.store,))
    graph.add(right._node, foreign_join)
    return _through_topic(
        graph,
        (join, foreign_join),
        names.response_topic,
        SinkStep(
            names.response_sink,
            names.response_topic,
            serdes.primary_key,
            responses,
            # Not the default partitioner's choice: the subscription may have come from elsewhere.
            _partitioner_by_key(options.partitioner) or (lambda _topic, _key, sent, _count: sent.primary_partition),
        ),
        names.response_source,
    )


def _through_topic(
    graph: GraphBuilder, parents: tuple[ProcessorStep, ...], topic: str, sink: SinkStep, source_name: str
) -> StreamSource:
    """Send records through an internal topic; return the source that reads them."""
    graph.topology.add_internal_topic(RepartitionTopic(topic))
    graph.add(parents, sink)
    source = StreamSource(source_name, (topic,), key_serde=sink.key_serde, value_serde=sink.value_serde)
    graph.add(sink, source)
    return source


def _partitioner_by_key(partitioner: StreamPartitioner | None) -> StreamPartitioner | None:
    """Have a table's partitioner decide by the key alone, since subscriptions and responses are not the table's values."""
    if partitioner is None:
        return None

    def one_partition(topic: str, key: object, _value: object, count: int) -> int | None:
        chosen = partitioner(topic, key, None, count)
        if chosen is None or isinstance(chosen, int):
            return chosen
        partitions = set(chosen)
        if len(partitions) != 1:
            raise ValueError(
                f"the partitioner of a foreign-key join has to choose one partition of {topic}, not {len(partitions)}"
            )
        return partitions.pop()

    return one_partition
