"""Mistakes in topologies, stores, settings, tests and names are reported where they are made, with what to write instead."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.dsl.mistakes import (
    SETTINGS,
    STORE,
    TEXT,
    TUMBLING,
    Greeting,
    Upper,
    check,
    identity,
    join,
    store_of_texts,
)

from millrace import (
    AutoOffsetReset,
    Consumed,
    JoinWindows,
    KafkaStreams,
    Materialized,
    Produced,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TimeWindows,
    Topology,
    TopologyTestDriver,
)
from millrace.errors import ConfigError, InvalidStateStoreError, TopologyError


def _closed(parts):
    driver = parts.driver()
    driver.close()
    return driver


def _copying():
    builder = StreamsBuilder()
    builder.stream("in", Consumed.with_(TEXT, TEXT)).to("out")
    return builder.build()


TOPICS_AND_STORES = [
    ("'clicks-\\.\\*' is not the name of a topic.*re\\.compile", lambda p: p.builder.stream("clicks-.*")),
    ("'' is not the name of a topic", lambda p: p.builder.stream("")),
    ("StreamsBuilder.stream: topics must be at least one topic", lambda p: p.builder.stream([])),
    ("StreamsBuilder.stream: topics must be a text, several, or a pattern, not 5", lambda p: p.builder.stream(5)),
    ("StreamsBuilder.stream: the topic must be a text, not 5", lambda p: p.builder.stream(["a", 5])),
    ("StreamsBuilder.table: the topic must be a text", lambda p: p.builder.table(["a", "b"])),
    ("StreamsBuilder.table: consumed must be a Consumed", lambda p: p.builder.table("x", "store", TEXT)),
    ("StreamsBuilder.table: materialized must be .*Materialized.with_", lambda p: p.builder.table("x", TEXT)),
    ("StreamsBuilder.global_table: materialized must be", lambda p: p.builder.global_table("x", Produced.as_("n"))),
    (
        "cannot be versioned",
        lambda p: p.builder.global_table("x", Materialized.as_(Stores.persistent_versioned_key_value_store("v", "1d"))),
    ),
    ("'out topic' is not the name of a topic", lambda p: p.stream.to("out topic")),
    ("add_state_store: store must be a store builder.*wrap the supplier", lambda p: p.builder.add_state_store(STORE)),
    ("add_state_store: store must be a store builder", lambda p: p.builder.add_state_store("store")),
    ("add_global_store: store must be a store builder", lambda p: p.builder.add_global_store(STORE, "t", Upper)),
    (
        "key_value_store_builder: supplier|LayeredStoreBuilder: supplier|supplier must be a supplier of a key-value store",
        lambda p: Stores.key_value_store_builder("store", TEXT, TEXT),
    ),
    (
        "supplier must be a supplier of a key-value store",
        lambda p: Stores.key_value_store_builder(Stores.in_memory_window_store("w", 5, 5), TEXT, TEXT),
    ),
    ("supplier must be a supplier of a window store", lambda p: Stores.window_store_builder(STORE, TEXT, TEXT)),
    (
        "supplier must be a supplier of a session store",
        lambda p: Stores.session_store_builder(Stores.in_memory_window_store("w", 5, 5), TEXT, TEXT),
    ),
    (
        "supplier must be a supplier of a versioned store",
        lambda p: Stores.versioned_key_value_store_builder(STORE, TEXT, TEXT),
    ),
    ("key_serde must be a serde", lambda p: Stores.key_value_store_builder(STORE, str, TEXT)),
    ("Stores.lru_map: name must be a text", lambda p: Stores.lru_map(5, 10)),
    (
        "versioned stores cannot be cached",
        lambda p: Stores.versioned_key_value_store_builder(
            Stores.persistent_versioned_key_value_store("v", 1), TEXT, TEXT
        ).with_caching_enabled(),
    ),
]

TOPOLOGIES = [
    ("The topology is empty", lambda p: TopologyTestDriver(StreamsBuilder().build())),
    (
        "The topology is empty",
        lambda p: TopologyTestDriver(StreamsBuilder().add_state_store(store_of_texts()).build()),
    ),
    ("The topology is empty", lambda p: TopologyTestDriver(Topology())),
    (
        "KStream.filter is called after build\\(\\) \\(at .*mistakes.py",
        lambda p: (p.builder.build(), p.stream.filter(lambda key, value: True)),
    ),
    ("KStream.to is called after build", lambda p: (p.builder.build(), p.stream.to("out"))),
    ("StreamsBuilder.stream is called after build", lambda p: (p.builder.build(), p.builder.stream("late"))),
    ("KGroupedStream.count is called after build", lambda p: (p.builder.build(), p.grouped.count())),
    (
        "A node named same has already been added",
        lambda p: (
            p.stream.filter(lambda k, v: True, "same"),
            p.stream.filter(lambda k, v: True, "same"),
            p.builder.build(),
        ),
    ),
    ("State store unknown is not added yet", lambda p: (p.stream.process(Upper, "unknown"), p.builder.build())),
    (
        "must not log its changes",
        lambda p: (p.builder.add_global_store(store_of_texts(), "t", Upper), p.builder.build()),
    ),
    ("Topology.add_source: topics must be names of topics", lambda p: Topology().add_source("s", ["a", "b"])),
    ("reads nothing", lambda p: Topology().add_source("s")),
    ("both topics and a pattern", lambda p: Topology().add_source("s", "a", pattern="b.*")),
    ("Topology.add_source: key_serde", lambda p: Topology().add_source("s", "a", key_serde=str)),
    (
        "Topology.add_source: timestamp_extractor",
        lambda p: Topology().add_source("s", "a", timestamp_extractor=identity),
    ),
    ("A node named s has already been added", lambda p: Topology().add_source("s", "a").add_source("s", "b")),
    ("already read by source s", lambda p: Topology().add_source("s", "a").add_source("t", "a")),
    (
        "Topology.add_processor: supplier .*every task",
        lambda p: Topology().add_source("s", "a").add_processor("p", Upper(), "s"),
    ),
    (
        "Topology.add_processor: supplier .*needs arguments",
        lambda p: Topology().add_source("s", "a").add_processor("p", Greeting, "s"),
    ),
    ("Parent nobody of node p is not added yet", lambda p: Topology().add_processor("p", Upper, "nobody")),
    ("has no parents", lambda p: Topology().add_sink("k", "out")),
    (
        "Topology.add_sink: topic must be a function",
        lambda p: Topology().add_source("s", "a").add_sink("k", lambda key: "out", "s"),
    ),
    (
        "Topology.add_sink: value_serde",
        lambda p: Topology().add_source("s", "a").add_sink("k", "out", "s", value_serde=int),
    ),
    ("Topology.add_state_store: store must be", lambda p: Topology().add_state_store(STORE)),
    ("No stores are given", lambda p: Topology().connect_processor_and_state_stores("p")),
    ("processor nobody is not added yet", lambda p: Topology().connect_processor_and_state_stores("nobody", "store")),
]

DRIVER = [
    ("TopologyTestDriver: topology must be a Topology.*call build", lambda p: TopologyTestDriver(p.builder)),
    ("TopologyTestDriver: config must be a mapping", lambda p: TopologyTestDriver(p.builder.build(), "app")),
    ("does not read topic 'inn'.*did you mean in", lambda p: p.driver().create_input_topic("inn", TEXT, TEXT)),
    ("does not read topic 'out'", lambda p: p.driver().pipe_raw("out", b"k", b"v", 0)),
    ("create_input_topic: key_serde must be a serde", lambda p: p.driver().create_input_topic("in", str, str)),
    (
        "create_output_topic: value_serde must be a serde",
        lambda p: p.driver().create_output_topic("out", TEXT, "string"),
    ),
    ("auto_advance_ms must be", lambda p: p.driver().create_input_topic("in", auto_advance_ms=1.5)),
    ("What the wall clock is advanced by", lambda p: p.driver().advance_wall_clock_time(0.5)),
    ("What the topic's time is advanced by", lambda p: p.driver().create_input_topic("in").advance_time(-1)),
    ("is closed", lambda p: _closed(p).commit()),
    ("KafkaStreams: topology must be a Topology.*call build", lambda p: KafkaStreams(p.builder, SETTINGS)),
    ("KafkaStreams: topology must be a Topology", lambda p: KafkaStreams(SETTINGS, p.builder.build())),
]


CONFIG = [
    ("has no key serde.*default.key.serde", lambda p: p.driver({})),
    ("Give the topic a key serde", lambda p: TopologyTestDriver(_copying(), {}).create_input_topic("in")),
    (
        "topology.optimisation is not a setting; did you mean topology.optimization\\?",
        lambda p: p.builder.build({**SETTINGS, "topology.optimisation": "all"}),
    ),
    (
        "topology.optimization: .*must be none, all, or a list of .*everything",
        lambda p: p.builder.build({**SETTINGS, "topology.optimization": "everything"}),
    ),
    ("did you mean statestore.cache.max.bytes", lambda p: p.driver({"statestore.cache.max.byte": 0})),
    ("did you mean default.key.serde", lambda p: p.driver({"default.key.serdes": "string"})),
    (
        "did you mean processing.guarantee",
        lambda p: KafkaStreams(p.builder.build(), {**SETTINGS, "procesing.guarantee": "exactly_once_v2"}),
    ),
    ("did you mean num.stream.threads", lambda p: StreamsConfig.of({"application.id": "a", "num_stream_thread": 2})),
    (
        "processing.guarantee: .*'exactly_once_v2'",
        lambda p: StreamsConfig.of({"application.id": "a", "processing.guarantee": "exactly_once"}),
    ),
    ("application.id: Field required", lambda p: StreamsConfig.of({})),
    ("num.stream.threads: .*got 0", lambda p: StreamsConfig.of({"application.id": "a", "num.stream.threads": 0})),
    (
        "commit.interval.ms: .*timedelta, or a text such as",
        lambda p: StreamsConfig.of({"application.id": "a", "commit.interval.ms": "often"}),
    ),
    (
        "commit.interval.ms",
        lambda p: StreamsConfig.of({"application.id": "a", "commit.interval.ms": timedelta(microseconds=1)}),
    ),
    ("must be a mapping of settings, not 'app'", lambda p: StreamsConfig.of("app")),
    ("must be a mapping of settings", lambda p: KafkaStreams(p.builder.build(), None)),
]

STORES = [
    ("There is no store 'counts'", lambda p: p.driver().get_key_value_store("counts")),
]

NAMES = [
    # Java's names, and misspelt ones.
    ("KStream has no attribute 'mapValues'; did you mean map_values\\?", lambda p: p.stream.mapValues(identity)),
    ("did you mean group_by_key", lambda p: p.stream.groupByKey()),
    ("did you mean flat_map_values", lambda p: p.stream.flatMapValues(identity)),
    ("did you mean map_values", lambda p: p.stream.map_value(identity)),
    ("did you mean process", lambda p: p.stream.transform(Upper)),
    ("did you mean repartition", lambda p: p.stream.through("topic")),
    ("did you mean left_join", lambda p: p.table.leftJoin(p.right, join)),
    ("did you mean to_stream", lambda p: p.table.toStream()),
    ("did you mean windowed_by", lambda p: p.grouped.windowedBy(TUMBLING)),
    ("did you mean emit_strategy", lambda p: p.windowed.emitStrategy(None)),
    ("did you mean cogroup", lambda p: p.cogrouped.coGroup(p.grouped)),
    ("did you mean default_branch", lambda p: p.stream.split().defaultBranch()),
    ("did you mean global_table", lambda p: p.builder.globalTable("x")),
    ("did you mean add_state_store", lambda p: p.builder.addStateStore(store_of_texts())),
    ("did you mean with_key_serde", lambda p: Consumed.as_("n").withKeySerde(TEXT)),
    ("did you mean with_caching_disabled", lambda p: Materialized.as_("n").withCachingDisabled()),
    (
        "TimeWindows has no attribute 'ofSizeWithNoGrace'; did you mean of_size_with_no_grace",
        lambda p: TimeWindows.ofSizeWithNoGrace(5),
    ),
    ("did you mean of_time_difference_with_no_grace", lambda p: JoinWindows.ofTimeDifferenceWithNoGrace(5)),
    ("did you mean advance_by", lambda p: TUMBLING.advanceBy(5)),
    ("did you mean until_window_closes", lambda p: Suppressed.untilWindowCloses(None)),
    ("Serdes has no attribute 'String'; did you mean string", lambda p: Serdes.String()),
    ("did you mean byte_array", lambda p: Serdes.ByteArray()),
    ("did you mean in_memory_key_value_store", lambda p: Stores.inMemoryKeyValueStore("s")),
    ("did you mean EARLIEST", lambda p: AutoOffsetReset.earliest()),
    ("did you mean add_source", lambda p: Topology().addSource("s", "t")),
    ("did you mean create_input_topic", lambda p: p.driver().createInputTopic("in")),
    ("did you mean pipe_input", lambda p: p.driver().create_input_topic("in").pipeInput("k", "v")),
    ("KStream has no attribute 'nothing_like_it'", lambda p: p.stream.nothing_like_it()),
]

CASES = [
    *((TopologyError, *case) for case in (*TOPICS_AND_STORES, *TOPOLOGIES, *DRIVER)),
    *((ConfigError, *case) for case in CONFIG),
    *((InvalidStateStoreError, *case) for case in STORES),
    *((AttributeError, *case) for case in NAMES),
]


@pytest.mark.parametrize(("error", "message", "mistake"), CASES, ids=[message[:60] for _, message, _ in CASES])
def test_a_mistake_is_reported_where_it_is_made(error, message, mistake):
    """The error says what is wrong and what to write, and ends with file and line of the user's call."""
    check(error, message, mistake)
