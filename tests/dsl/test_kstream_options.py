"""Operators on streams that the recorded cases do not cover: mappers with keys, partitioners, names, unlimited windows."""

from __future__ import annotations

import pytest

from millrace import (
    Materialized,
    Printed,
    Processor,
    Produced,
    Repartitioned,
    Serdes,
    SessionWindows,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    TopologyTestDriver,
    UnlimitedWindows,
)

TEXT, LONG = Serdes.string(), Serdes.long()
SETTINGS = {
    "application.id": "app",
    "default.key.serde": "string",
    "default.value.serde": "string",
    "statestore.cache.max.bytes": 0,
}


def pipe(builder, *records):
    """Send (key, value, timestamp) to `in` and return what went to `out`."""
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        topic = driver.create_input_topic("in")
        for key, value, timestamp in records:
            topic.pipe_input(key, value, timestamp)
        return driver.create_output_topic("out").read_key_values_to_list()


@pytest.mark.parametrize(
    ("operator", "function", "expected"),
    [
        ("map_values", lambda value: value + "!", [("k", "v!")]),
        ("map_values_with_key", lambda key, value: key + value, [("k", "kv")]),
        ("flat_map_values", lambda value: [value, value + "!"], [("k", "v"), ("k", "v!")]),
        ("flat_map_values_with_key", lambda key, value: [key, value], [("k", "k"), ("k", "v")]),
    ],
)
def test_operators_on_values_keep_the_key(operator, function, expected):
    """Variants with key also get the key, and no repartitioning is needed afterwards."""
    builder = StreamsBuilder()
    stream = getattr(builder.stream("in"), operator)(function)
    stream.group_by_key().count("c")
    stream.to("out")
    assert "repartition" not in builder.build().describe()
    assert pipe(builder, ("k", "v", 0)) == expected


@pytest.mark.parametrize("operator", ["map", "flat_map", "select_key", "process"])
def test_operators_that_may_change_the_key_are_followed_by_a_repartition(operator):
    """Whether they actually change it is not checked."""
    builder = StreamsBuilder()
    function = Processor if operator == "process" else lambda key, value: None
    getattr(builder.stream("in"), operator)(function).group_by_key().count("c")
    assert "(topic: c-repartition)" in builder.build().describe()


def test_a_sinks_partitioner_chooses_several_partitions_or_none():
    """It gets topic, key, value and number of partitions; an empty result drops the record, which is counted (KIP-837)."""
    seen = []

    def choose(topic, key, value, count):
        seen.append((topic, key, value, count))
        return () if value == "drop" else (0,)

    builder = StreamsBuilder()
    builder.stream("in").to("out", Produced.stream_partitioner(choose))
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        produced = driver.record_produced()
        driver.create_input_topic("in").pipe_list([("k", "keep"), ("k", "drop")])
        assert [(record.topic, record.partition) for record in produced] == [("out", 0)]
        assert driver.dropped_records == 1
    assert [call[:3] for call in seen] == [("out", "k", "keep"), ("out", "k", "drop")]


def test_a_repartition_topic_has_its_own_serdes_and_partitioner():
    """Records are written and read with its own options."""
    asked = []

    def choose(topic, key, value, count):
        asked.append(topic)
        return 0

    through = Repartitioned.as_("r").with_key_serde(TEXT).with_value_serde(LONG).with_stream_partitioner(choose)
    builder = StreamsBuilder()
    builder.stream("in").map_values(len).repartition(through).map_values(str).to("out")
    assert pipe(builder, ("k", "four", 0)) == [("k", "4")]
    assert asked == ["app-r-repartition"]


def test_sinks_printers_and_global_joins_can_be_named():
    """The names are those of the nodes."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.print(Printed.to_sys_out().with_name("shown"))
    table = builder.global_table("g")
    stream.join(table, lambda left, right: left, key_selector=lambda key, value: key, named="looked-up").to(
        "out", Produced.as_("sink").with_key_serde(TEXT).with_value_serde(TEXT)
    )
    description = builder.build().describe()
    assert all(f": {name} (" in description for name in ("shown", "looked-up", "sink"))


def test_unlimited_windows_have_one_aggregate_per_key():
    """They start at their start time; earlier records are in no window."""
    builder = StreamsBuilder()
    windowed = builder.stream("in").group_by_key().windowed_by(UnlimitedWindows.of().start_on(10))
    counts = windowed.count("c").to_stream()
    counts.map(lambda windowed, count: (f"{windowed.key}@{windowed.window.start}", str(count))).to("out")
    assert pipe(builder, ("k", "a", 5), ("k", "b", 10), ("k", "c", 10_000)) == [("k@10", "1"), ("k@10", "2")]


def test_sessions_are_reduced():
    """Two sessions that a record merges are reduced to one, and the two old ones are deleted."""
    builder = StreamsBuilder()
    sessions = builder.stream("in").group_by_key().windowed_by(SessionWindows.of_inactivity_gap_and_grace(10, 50))
    reduced = sessions.reduce(lambda one, other: one + other, Materialized.as_("s")).to_stream()
    reduced.map(lambda windowed, value: (f"{windowed.window.start}-{windowed.window.end}", value)).to("out")
    assert pipe(builder, ("k", "a", 0), ("k", "b", 20), ("k", "c", 10)) == [
        ("0-0", "a"),
        ("20-20", "b"),
        ("0-0", None),
        ("20-20", None),
        ("0-20", "abc"),
    ]


def test_records_without_key_or_value_are_not_aggregated():
    """They are counted as dropped: one for the missing key, one for the missing value."""
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().reduce(max, "r").to_stream().to("out")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.create_input_topic("in").pipe_list([(None, "v"), ("k", None), ("k", "v")])
        assert driver.create_output_topic("out").read_key_values_to_list() == [("k", "v")]
        assert driver.dropped_records == 2


def test_windowed_results_are_written_with_the_windowed_serde():
    """The windowed table gets one from the grouping's key serde; the window's start is appended to the key (formats §8)."""
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(100)).reduce(
        max, "w"
    ).to_stream().to("out", Produced.with_(Serdes.time_windowed(TEXT, 100), TEXT))
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        produced = driver.record_produced()
        driver.create_input_topic("in").pipe_input("k", "v", 250)
        assert next(r.key for r in produced if r.topic == "out") == b"k" + (200).to_bytes(8, "big")


def test_the_topology_is_built_for_a_configuration():
    """Optimiser rules apply only if the configuration is passed to build, as with Java's `build(Properties)`."""
    builder = StreamsBuilder()
    stream = builder.stream("in").select_key(lambda key, value: value)
    stream.group_by_key().count("a")
    stream.group_by_key().count("b")
    optimised = StreamsConfig.of({**SETTINGS, "topology.optimization": "all"})

    def repartitions(topology):
        return sum(len(part.repartition_topics) for part in topology.build(optimised).subtopologies)

    assert repartitions(builder.build(optimised)) == 1
