"""Cogroups in the graph, and their results by key, window and session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millrace.config import StreamsConfig
from millrace.dsl import (
    Grouped,
    KTable,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
)
from millrace.errors import TopologyError
from millrace.testing import TopologyTestDriver

SETTINGS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}


def appended(mark: str) -> Callable[[str, str, str], str]:
    """Return an aggregator that marks the values of one input."""
    return lambda _key, value, so_far: f"{so_far}{mark}{value}"


def cogrouped(builder: StreamsBuilder) -> Any:
    """Return topics `a` and `b`, cogrouped."""
    one, other = builder.stream("a").group_by_key(), builder.stream("b").group_by_key()
    return one.cogroup(appended("-")).cogroup(other, appended("+"))


def results(define: Callable[[Any], KTable[Any, str]], *records: tuple[str, str, int]) -> list[tuple[str, Any]]:
    """Pipe (topic, value, timestamp) records of one key; return the resulting windows (or None) and values."""
    builder = StreamsBuilder()
    table = define(cogrouped(builder))
    table.to_stream().map(lambda key, value: ("k", f"{getattr(key, 'window', None) and tuple(key.window)}={value}")).to(
        "out"
    )
    with TopologyTestDriver(builder.build(SETTINGS), {**SETTINGS, "statestore.cache.max.bytes": 0}) as driver:
        for topic, value, timestamp in records:
            driver.create_input_topic(topic).pipe_input("k", value, timestamp)
        return driver.create_output_topic("out").read_values_to_list()


def test_every_input_has_its_own_aggregator() -> None:
    """All of them change the same aggregate."""
    found = results(lambda both: both.aggregate(str), ("a", "1", 0), ("b", "2", 0), ("a", "3", 0))
    assert found == ["None=-1", "None=-1+2", "None=-1+2-3"]


def test_inputs_are_aggregated_by_common_windows() -> None:
    """With time windows, sliding windows and sessions."""
    tumbling = TimeWindows.of_size_with_no_grace(10)
    records = (("a", "1", 3), ("b", "2", 12))
    assert results(lambda both: both.windowed_by(tumbling).aggregate(str), *records) == ["(0, 10)=-1", "(10, 20)=+2"]
    sliding = SlidingWindows.of_time_difference_with_no_grace(10)
    assert results(lambda both: both.windowed_by(sliding).aggregate(str), *records) == [
        "(0, 10)=-1",
        "(4, 14)=+2",
        "(2, 12)=-1+2",
    ]
    sessions = SessionWindows.of_inactivity_gap_with_no_grace(10)
    found = results(lambda both: both.windowed_by(sessions).aggregate(str, lambda _key, one, two: one + two), *records)
    assert found == ["(3, 3)=-1", "(3, 3)=None", "(3, 12)=-1+2"]


def test_an_input_whose_key_has_changed_is_repartitioned() -> None:
    """The description is what Kafka Streams prints for the same cogroup."""
    builder = StreamsBuilder()
    one = builder.stream("a").group_by_key()
    other = builder.stream("b").group_by(lambda _key, value: value)
    one.cogroup(appended("-")).cogroup(other, appended("+")).aggregate(str).to_stream().to("out")
    base = "COGROUPKSTREAM-AGGREGATE-STATE-STORE-0000000003"
    assert builder.build(SETTINGS).describe() == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        f"    Source: {base}-repartition-source (topics: [{base}-repartition])\n"
        "      --> COGROUPKSTREAM-AGGREGATE-0000000008\n"
        "    Source: KSTREAM-SOURCE-0000000000 (topics: [a])\n"
        "      --> COGROUPKSTREAM-AGGREGATE-0000000007\n"
        f"    Processor: COGROUPKSTREAM-AGGREGATE-0000000007 (stores: [{base}])\n"
        "      --> COGROUPKSTREAM-MERGE-0000000009\n"
        "      <-- KSTREAM-SOURCE-0000000000\n"
        f"    Processor: COGROUPKSTREAM-AGGREGATE-0000000008 (stores: [{base}])\n"
        "      --> COGROUPKSTREAM-MERGE-0000000009\n"
        f"      <-- {base}-repartition-source\n"
        "    Processor: COGROUPKSTREAM-MERGE-0000000009 (stores: [])\n"
        "      --> KTABLE-TOSTREAM-0000000010\n"
        "      <-- COGROUPKSTREAM-AGGREGATE-0000000007, COGROUPKSTREAM-AGGREGATE-0000000008\n"
        "    Processor: KTABLE-TOSTREAM-0000000010 (stores: [])\n"
        "      --> KSTREAM-SINK-0000000011\n"
        "      <-- COGROUPKSTREAM-MERGE-0000000009\n"
        "    Sink: KSTREAM-SINK-0000000011 (topic: out)\n"
        "      <-- KTABLE-TOSTREAM-0000000010\n"
        "\n"
        "  Sub-topology: 1\n"
        "    Source: KSTREAM-SOURCE-0000000001 (topics: [b])\n"
        "      --> KSTREAM-KEY-SELECT-0000000002\n"
        "    Processor: KSTREAM-KEY-SELECT-0000000002 (stores: [])\n"
        f"      --> {base}-repartition-filter\n"
        "      <-- KSTREAM-SOURCE-0000000001\n"
        f"    Processor: {base}-repartition-filter (stores: [])\n"
        f"      --> {base}-repartition-sink\n"
        "      <-- KSTREAM-KEY-SELECT-0000000002\n"
        f"    Sink: {base}-repartition-sink (topic: {base}-repartition)\n"
        f"      <-- {base}-repartition-filter\n"
        "\n"
    )


def test_inputs_whose_keys_have_changed_need_names() -> None:
    """Their repartition topics would have the same name, the store's, so `build` fails, as Java's does; names help."""

    def build(*names: str | None, **settings: str) -> str:
        builder = StreamsBuilder()
        one, other = (
            builder.stream(topic).group_by(lambda _key, value: value, name if name is None else Grouped.as_(name))
            for topic, name in zip("ab", names, strict=True)
        )
        one.cogroup(appended("-")).cogroup(other, appended("+")).aggregate(str).to_stream().to("out")
        return str(builder.build({**SETTINGS, **settings}).describe())

    topic = "COGROUPKSTREAM-AGGREGATE-STATE-STORE-0000000004-repartition"
    for settings in ({}, {"topology.optimization": "all"}):
        with pytest.raises(TopologyError) as raised:
            build(None, None, **settings)
        assert str(raised.value).startswith(f"Two repartition topics would be named {topic}. Give each its own name")
        assert 'group_by_key(Grouped.as_("…"))' in str(raised.value)
        assert f"(at {__file__}:" in str(raised.value)
    assert f"(topics: [{topic}])" in build("one", None)
    assert "(topics: [two-repartition])" in build("one", "two")


def test_inputs_of_one_changed_stream_share_a_topic_when_optimised() -> None:
    """The optimiser makes one repartition topic of both, as Java's does, so they need no names."""
    builder = StreamsBuilder()
    changed = builder.stream("a").select_key(lambda _key, value: value)
    some = changed.filter(lambda _key, value: value)
    both = changed.group_by_key().cogroup(appended("-")).cogroup(some.group_by_key(), appended("+"))
    both.aggregate(str).to_stream().to("out")
    text = builder.build({**SETTINGS, "topology.optimization": "all"}).describe()
    assert text.count("(topic: COGROUPKSTREAM-AGGREGATE-STATE-STORE-0000000003-repartition)") == 1


def test_given_names_reach_nodes_store_and_repartition_topics() -> None:
    """A common prefix for the nodes, the name in `Materialized` for the store, the names in `Grouped` for the topics."""
    builder = StreamsBuilder()
    by_value = Grouped.as_("by-value")
    one = builder.stream("a").group_by(lambda _key, value: value, by_value)
    other = builder.stream("b").group_by_key()
    table = one.cogroup(appended("-")).cogroup(other, appended("+")).aggregate(str, Materialized.as_("both"), named="n")
    assert table.queryable_store_name == "both"
    built = builder.build(SETTINGS).build(StreamsConfig.of(SETTINGS))
    names = [node.name for part in built.subtopologies for node in part.nodes]
    assert {"n-cogroup-agg-0", "n-cogroup-agg-1", "n-cogroup-merge", "by-value-repartition-source"} <= set(names)
    assert [store.name for part in built.subtopologies for store in part.store_builders] == ["both"]


def test_streams_of_different_builders_cannot_be_cogrouped() -> None:
    """They would not be in one topology."""
    both = cogrouped(StreamsBuilder())
    with pytest.raises(TopologyError, match="different StreamsBuilders"):
        both.cogroup(StreamsBuilder().stream("c").group_by_key(), appended("?"))
