"""Stateless operators on streams, run on the test driver."""

from __future__ import annotations

import pytest

from millrace.config import StreamsConfig
from millrace.dsl import Branched, Consumed, Printed, Produced, Repartitioned, StreamsBuilder
from millrace.errors import FailedProcessingError
from millrace.processor import FixedKeyProcessor, Processor
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.testing import TopologyTestDriver

SETTINGS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}
TEXT = Serdes.string()


def pipe(builder, *records, settings=(), sinks=("out",)):
    """Send text records to `in`, and return what came out of each sink."""
    with TopologyTestDriver(builder.build(), {**SETTINGS, **dict(settings)}) as driver:
        topic = driver.create_input_topic("in", TEXT, TEXT)
        for timestamp, (key, value) in enumerate(records):
            topic.pipe_input(key, value, timestamp=timestamp)
        results = [driver.create_output_topic(sink, TEXT, TEXT).read_key_values_to_list() for sink in sinks]
    return results[0] if len(sinks) == 1 else results


def test_null_keys_and_values_pass_stateless_operators():
    """Only stateful operators have to drop records without a key."""
    builder = StreamsBuilder()
    builder.stream("in").filter(lambda _key, _value: True).map_values(lambda value: value).to("out")
    assert pipe(builder, (None, "v"), ("k", None)) == [(None, "v"), ("k", None)]


def test_records_are_sent_on_only_after_the_whole_iterable_was_made():
    """If creating the third value fails, the first two are not forwarded either."""

    def broken(value):
        yield value
        raise ValueError(value)

    builder = StreamsBuilder()
    builder.stream("in").flat_map_values(broken).to("out")
    handler = "org.apache.kafka.streams.errors.LogAndContinueProcessingExceptionHandler"
    settings = {"processing.exception.handler": handler}
    assert pipe(builder, ("k", "v"), settings=settings) == []


def test_errors_in_user_functions_name_the_node():
    """The default handler fails the task, and the error says where."""
    builder = StreamsBuilder()
    builder.stream("in").map_values(int, "to-number").to("out")
    with pytest.raises(FailedProcessingError, match="to-number"):
        pipe(builder, ("k", "not a number"))


@pytest.mark.parametrize(
    "operator", ["filter", "filter_not", "map", "select_key", "peek", "flat_map", "map_values_with_key"]
)
def test_a_failing_record_can_be_skipped(operator):
    """If the handler says so, the record is skipped and the next one is processed."""

    def function(_key, value):
        if value == "bad":
            raise ValueError(value)
        return {"map": ("k", "v"), "flat_map": [("k", "v")], "filter_not": False}.get(operator, "v")

    builder = StreamsBuilder()
    getattr(builder.stream("in"), operator)(function).to("out")
    handler = "org.apache.kafka.streams.errors.LogAndContinueProcessingExceptionHandler"
    got = pipe(builder, ("k", "bad"), ("k", "good"), settings={"processing.exception.handler": handler})
    assert len(got) == 1


def test_first_matching_branch_takes_the_record():
    """Later branches and the default branch get the rest."""
    builder = StreamsBuilder()
    branches = (
        builder.stream("in")
        .split("b-")
        .branch(lambda _key, value: value.startswith("a"), "first")
        .branch(lambda _key, value: len(value) > 1, Branched.with_consumer(lambda rest: rest.to("long")))
        .branch(lambda _key, _value: False, Branched.with_function(lambda _rest: None, "none"))
        .default_branch()
    )
    assert sorted(branches) == ["b-0", "b-first"]
    branches["b-first"].to("a")
    branches["b-0"].to("rest")
    got = pipe(builder, ("1", "aa"), ("2", "bb"), ("3", "c"), sinks=("a", "long", "rest"))
    assert got == [[("1", "aa")], [("2", "bb")], [("3", "c")]]


def test_without_default_branch_the_rest_is_dropped():
    """Records that match no branch are not forwarded."""
    builder = StreamsBuilder()
    split = builder.stream("in").split().branch(lambda _key, value: value == "a")
    (branch,) = split.no_default_branch().values()
    branch.to("out")
    assert pipe(builder, ("1", "a"), ("2", "b")) == [("1", "a")]


def test_print_writes_one_line_per_record(capsys, tmp_path):
    """Lines start with the label, by default the name of the parent node."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.print()
    stream.print(
        Printed.to_file(tmp_path / "log").with_label("L").with_key_value_mapper(lambda key, value: key + value)
    )
    pipe(builder, ("k", "v"))
    assert capsys.readouterr().out == "[KSTREAM-SOURCE-0000000000]: k, v\n"
    assert (tmp_path / "log").read_text() == "[L]: kv\n"


def test_foreach_ends_a_stream():
    """It sees every record once."""
    seen = []
    builder = StreamsBuilder()
    builder.stream("in").foreach(lambda key, value: seen.append((key, value)))
    pipe(builder, ("k", "v"))
    assert seen == [("k", "v")]


def test_sink_topic_may_depend_on_the_record():
    """The extractor gets key, value and the record's origin."""
    builder = StreamsBuilder()
    builder.stream("in").to(lambda key, _value, context: f"{context.topic}-{key}")
    assert pipe(builder, ("a", "1"), ("b", "2"), sinks=("in-a", "in-b")) == [[("a", "1")], [("b", "2")]]


def test_serdes_of_the_input_are_the_outputs():
    """Operators that keep the types keep the serdes; a serde given to the sink takes precedence."""
    builder = StreamsBuilder()
    builder.stream("in", Consumed.with_(TEXT, Serdes.long())).filter(lambda _key, value: value > 0).to("longs")
    with TopologyTestDriver(builder.build(), {"application.id": "app"}) as driver:
        driver.create_input_topic("in", TEXT, Serdes.long()).pipe_input("k", 7)
        assert driver.create_output_topic("longs", TEXT, Serdes.long()).read_value() == 7


def test_values_can_be_given_a_serde():
    """Operators after map_values use it to write the new type."""
    builder = StreamsBuilder()
    lengths = builder.stream("in").map_values(len, value_serde=Serdes.long())
    lengths.group_by_key().reduce(lambda one, other: one + other).to_stream().map_values(str).to("out")
    assert pipe(builder, ("k", "ab"), ("k", "c")) == [("k", "2"), ("k", "3")]


def test_repartitioning_keeps_a_fixed_number_of_partitions():
    """The number is part of the plan, and enforced."""
    builder = StreamsBuilder()
    repartitioned = Repartitioned.as_("r").with_number_of_partitions(3)
    builder.stream("in").repartition(repartitioned).to("out", Produced.as_("sink"))
    topology = builder.build()
    (topic,) = topology.build(StreamsConfig.of(SETTINGS)).subtopologies[1].repartition_topics.values()
    assert (topic.partitions, topic.enforced) == (3, True)


class Numbering(Processor):
    """Counts records in a store it brings."""

    def process(self, record):
        """Count one."""
        store = self.context.get_state_store("n")
        number = (store.get("all") or 0) + 1
        store.put("all", number)
        self.context.forward(record.with_value(f"{record.value}{number}"))


class NumberingSupplier:
    """Makes processors and their store."""

    def __call__(self):
        """Make one."""
        return Numbering()

    def stores(self):
        """Bring the store."""
        return [Stores.key_value_store_builder(Stores.in_memory_key_value_store("n"), TEXT, Serdes.long())]


def test_processors_bring_their_stores():
    """A processor in the DSL uses the stores of its supplier."""
    builder = StreamsBuilder()
    builder.stream("in").process(NumberingSupplier()).to("out")
    assert pipe(builder, ("k", "a"), ("k", "b")) == [("k", "a1"), ("k", "b2")]


class Doubling(FixedKeyProcessor):
    """Forwards every value twice."""

    def process(self, record):
        """Forward twice."""
        self.context.forward(record)
        self.context.forward(record)


def test_process_values_needs_no_repartitioning():
    """The key cannot change, so a grouping reads the same topic."""
    builder = StreamsBuilder()
    builder.stream("in").process_values(Doubling).group_by_key().count().to_stream().map_values(str).to("out")
    assert "repartition" not in builder.build().describe()
    settings = {"statestore.cache.max.bytes": 0}
    assert pipe(builder, ("k", "a"), settings=settings) == [("k", "1"), ("k", "2")]


def test_merged_streams_are_repartitioned_if_one_was_rekeyed():
    """Records with changed keys must not be counted in the partition they were read from."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.merge(stream.select_key(lambda _key, value: value)).group_by_key().count("c")
    assert "(topic: c-repartition)" in builder.build().describe()
