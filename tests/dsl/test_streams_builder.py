"""Sources of the DSL: every option of `Consumed`, global tables and stores, and which records tables drop."""

from __future__ import annotations

import pytest

from millrace import (
    AutoOffsetReset,
    Consumed,
    Materialized,
    Processor,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    TopologyTestDriver,
)
from millrace.errors import TopologyError
from millrace.topology import SourceNode

TEXT, LONG = Serdes.string(), Serdes.long()
SETTINGS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}


def first_source(builder):
    """Return the first source of a builder's topology."""
    (subtopology,) = builder.build().build(StreamsConfig.of(SETTINGS)).subtopologies
    return next(node for node in subtopology.nodes if isinstance(node, SourceNode))


def test_every_option_of_consumed_reaches_the_source():
    """Serdes, extractor, reset policy and name, one by one."""

    def extract(record, partition_time):
        return 7

    consumed = (
        Consumed.as_("source")
        .with_key_serde(LONG)
        .with_value_serde(TEXT)
        .with_timestamp_extractor(extract)
        .with_offset_reset_policy(AutoOffsetReset.by_duration(60_000))
    )
    builder = StreamsBuilder()
    builder.stream("in", consumed).to("out")
    node = first_source(builder)
    assert (node.name, node.key_serde, node.value_serde) == ("source", LONG, TEXT)
    assert node.timestamp_extractor is extract
    assert node.offset_reset == "by_duration:60000"


@pytest.mark.parametrize("reset", [AutoOffsetReset.EARLIEST, AutoOffsetReset.LATEST, AutoOffsetReset.NONE, "latest"])
def test_reset_policies_have_kafkas_names(reset):
    """As objects or as text (KIP-1106)."""
    builder = StreamsBuilder()
    builder.stream("in", Consumed(offset_reset=reset)).to("out")
    assert first_source(builder).offset_reset == (reset if isinstance(reset, str) else reset.policy)


def test_a_table_drops_records_without_a_key():
    """They cannot be an entry's value, and are counted."""
    builder = StreamsBuilder()
    builder.table("in", "tab").to_stream().to("out")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.create_input_topic("in").pipe_input(None, "lost")
        assert driver.create_output_topic("out").is_empty()
        assert driver.dropped_records == 1


def test_a_table_sends_every_update_on():
    """Even with the same value or out of order, as in Kafka Streams 4.3.1 (where KIP-557 is turned off)."""
    builder = StreamsBuilder()
    builder.table("in", "tab").to_stream().to("out")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        topic = driver.create_input_topic("in")
        for value, timestamp in (("a", 5), ("a", 9), ("a", 2), ("b", 3)):
            topic.pipe_input("k", value, timestamp)
        sent = driver.create_output_topic("out").read_records_to_list()
    assert [(record.value, record.timestamp) for record in sent] == [("a", 5), ("a", 9), ("a", 2), ("b", 3)]


def test_a_table_is_only_kept_where_something_needs_it():
    """Without a name and without an operator that looks up values there is no store."""
    config = StreamsConfig.of(SETTINGS)
    plain, named = StreamsBuilder(), StreamsBuilder()
    plain.table("in").to_stream().to("out")
    named.table("in", "tab").to_stream().to("out")
    assert not plain.build().build(config).subtopologies[0].store_builders
    assert [store.name for store in named.build().build(config).subtopologies[0].store_builders] == ["tab"]


def test_a_global_table_is_looked_up_without_a_repartition():
    """It is filled from its topic, has no changelog, and its store has the given name."""
    builder = StreamsBuilder()
    names = builder.global_table("names", "names-by-id")
    joined = builder.stream("in").join(
        names, lambda value, name: f"{value} {name}", key_selector=lambda key, value: value
    )
    joined.to("out")
    assert names.queryable_store_name == "names-by-id"
    assert "repartition" not in builder.build().describe()
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.create_input_topic("names").pipe_input("1", "ann")
        driver.create_input_topic("in").pipe_input("k", "1")
        assert driver.create_output_topic("out").read_value() == "1 ann"
        assert driver.get_key_value_store("names-by-id").get("1").value == "ann"
        assert driver.produced_topic_names() == {"out"}


def test_a_global_table_cannot_be_versioned():
    """It has no value as of a time, because every instance is at a different point of the topic."""
    builder = StreamsBuilder()
    versioned = Materialized.as_(Stores.persistent_versioned_key_value_store("g", 1000))
    with pytest.raises(TopologyError, match="cannot be versioned"):
        builder.global_table("names", versioned)


class Upper(Processor):
    """Fills the global store `upper`."""

    def process(self, record):
        self.context.get_state_store("upper").put(record.key, record.value.upper())


class LookUp(Processor):
    """Appends what the global store has."""

    def process(self, record):
        found = self.context.get_state_store("upper").get(record.key)
        self.context.forward(record.with_value(f"{record.value}/{found}"))


def test_a_global_store_is_filled_by_a_processor_and_read_by_all():
    """Processors reach it without being connected to it."""
    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("upper"), TEXT, TEXT)
    builder = StreamsBuilder()
    builder.add_global_store(store.with_logging_disabled(), "names", Upper)
    builder.stream("in").process(LookUp).to("out")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.create_input_topic("names").pipe_input("k", "ann")
        driver.create_input_topic("in").pipe_input("k", "v")
        assert driver.create_output_topic("out").read_value() == "v/ANN"


def test_a_state_store_of_the_builder_is_connected_by_name():
    """Two processors that use its name share it."""
    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("last"), TEXT, TEXT)

    class Remember(Processor):
        def process(self, record):
            last = self.context.get_state_store("last")
            self.context.forward(record.with_value(f"{last.get('v')}→{record.value}"))
            last.put("v", record.value)

    builder = StreamsBuilder().add_state_store(store)
    builder.stream("one").process(Remember, "last").to("out")
    builder.stream("two").process(Remember, "last").to("out")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.create_input_topic("one").pipe_input("k", "a")
        driver.create_input_topic("two").pipe_input("k", "b")
        assert driver.create_output_topic("out").read_values_to_list() == ["None→a", "a→b"]
