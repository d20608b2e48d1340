"""The Processor API run on the test driver: every way to add a node, and stores that several nodes share."""

from __future__ import annotations

from millrace import Headers, Processor, Record, Serdes, Stores, StreamsBuilder, Topology, TopologyTestDriver
from millrace.processor import FixedKeyProcessor, PunctuationType

TEXT, LONG = Serdes.string(), Serdes.long()
SETTINGS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}


class Forwarding(Processor):
    """Forwards every record."""

    def process(self, record):
        self.context.forward(record)


def text_store(name, supplier=Stores.in_memory_key_value_store):
    """Return the builder of a store of texts."""
    return Stores.key_value_store_builder(supplier(name), TEXT, TEXT)


def test_sources_and_sinks_take_every_option():
    """Serdes, extractor and reset policy of a source; serdes, partitioner and topic extractor of a sink."""
    topology = (
        Topology()
        .add_source(
            "numbers",
            "in",
            key_serde=TEXT,
            value_serde=LONG,
            timestamp_extractor=lambda record, partition_time: record.value,
            offset_reset="latest",
        )
        .add_sink("fixed", "out", "numbers", key_serde=TEXT, value_serde=LONG, partitioner=lambda *_: 0)
        .add_sink("chosen", lambda key, value, context: f"out-{value}", "numbers", value_serde=LONG)
    )
    with TopologyTestDriver(topology, SETTINGS) as driver:
        driver.create_input_topic("in", TEXT, LONG).pipe_input("k", 7, timestamp=1)
        record = driver.create_output_topic("out", TEXT, LONG).read_record()
        assert (record.value, record.timestamp) == (7, 7)
        assert driver.create_output_topic("out-7", TEXT, LONG).read_value() == 7


def test_stores_are_connected_when_added_or_later():
    """Both processors see what either of them puts."""

    class Put(Processor):
        def process(self, record):
            self.context.get_state_store("s").put(record.key, record.value)

    class Get(Processor):
        def process(self, record):
            self.context.forward(record.with_value(self.context.get_state_store("s").get(record.key)))

    topology = (
        Topology()
        .add_source("one", "puts")
        .add_source("two", "gets")
        .add_processor("put", Put, "one")
        .add_processor("get", Get, "two")
        .add_state_store(text_store("s"), "put")
        .connect_processor_and_state_stores("get", "s")
        .add_sink("sink", "out", "get")
    )
    with TopologyTestDriver(topology, SETTINGS) as driver:
        driver.create_input_topic("puts").pipe_input("k", "v")
        driver.create_input_topic("gets").pipe_input("k", "?")
        assert driver.create_output_topic("out").read_value() == "v"


def test_a_read_only_store_is_filled_from_its_topic_and_logs_nothing():
    """Its topic is its changelog (KIP-813)."""

    class Fill(Processor):
        def process(self, record):
            self.context.get_state_store("ro").put(record.key, record.value)

    topology = Topology().add_read_only_state_store(text_store("ro"), "source", "reference", "fill", Fill)
    with TopologyTestDriver(topology, SETTINGS) as driver:
        driver.create_input_topic("reference").pipe_input("k", "v")
        assert driver.get_key_value_store("ro").get("k") == "v"
        assert driver.produced_topic_names() == set()


def test_processors_begin_with_init_and_end_with_close():
    """Once per task, before and after all records."""
    calls = []

    class Living(Processor):
        def init(self, context):
            super().init(context)
            calls.append("init")

        def process(self, record):
            calls.append(record.value)

        def close(self):
            calls.append("close")

    with TopologyTestDriver(Topology().add_source("s", "in").add_processor("p", Living, "s"), SETTINGS) as driver:
        driver.create_input_topic("in").pipe_values(["a", "b"])
    assert calls == ["init", "a", "b", "close"]


def test_fixed_key_processors_may_set_time_and_headers_and_schedule():
    """They can do everything except change the key."""
    punctuated = []

    class Stamping(FixedKeyProcessor):
        def init(self, context):
            super().init(context)
            context.schedule(10, PunctuationType.STREAM_TIME, punctuated.append)

        def process(self, record):
            self.context.forward(record.with_timestamp(99).with_headers(Headers([("seen", b"1")])).with_value("new"))

    builder = StreamsBuilder()
    builder.stream("in").process_values(Stamping, named="stamp").to("out")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.create_input_topic("in").pipe_input("k", "v", 5)
        record = driver.create_output_topic("out").read_record()
    assert record == Record("k", "new", 99, Headers([("seen", b"1")]))
    assert punctuated == [5]


def test_a_processor_forwards_to_all_children_or_one():
    """To the named child, or else to all children in the order in which they were added."""

    class Routing(Processor):
        def process(self, record):
            self.context.forward(record.with_value("all"))
            self.context.forward(record.with_value("one"), "b")

    topology = Topology().add_source("s", "in").add_processor("route", Routing, "s")
    topology.add_sink("a", "out-a", "route").add_sink("b", "out-b", "route")
    with TopologyTestDriver(topology, SETTINGS) as driver:
        driver.create_input_topic("in").pipe_input("k", "v")
        assert driver.create_output_topic("out-a").read_values_to_list() == ["all"]
        assert driver.create_output_topic("out-b").read_values_to_list() == ["all", "one"]


def test_headers_travel_to_the_sink():
    """Through operators of the DSL as well as processors."""
    builder = StreamsBuilder()
    builder.stream("in").filter(lambda key, value: True).map_values(str.upper).process(Forwarding).to("out")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.create_input_topic("in").pipe_input("k", "v", 5, [("trace", b"1"), ("trace", None)])
        assert driver.create_output_topic("out").read_record().headers == (("trace", b"1"), ("trace", None))
