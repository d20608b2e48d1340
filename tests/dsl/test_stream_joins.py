"""Joins of streams in the graph: names, stores, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.config import StreamsConfig
from millrace.dsl import (
    Joined,
    JoinWindows,
    KStream,
    Materialized,
    StreamJoined,
    StreamsBuilder,
    ValueJoinerWithKey,
)
from millrace.errors import TopologyError
from millrace.state import Stores
from millrace.testing import TopologyTestDriver

SETTINGS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}
WINDOWS = JoinWindows.of_time_difference_and_grace(10, 5)


def concatenated(left: Any, right: Any) -> str:
    """Join two values."""
    return f"{left}/{right}"


def streams() -> tuple[StreamsBuilder, KStream[str, str], KStream[str, str]]:
    """Return a builder with streams of topics `l` and `r`."""
    builder = StreamsBuilder()
    return builder, builder.stream("l"), builder.stream("r")


def plan(builder: StreamsBuilder) -> Any:
    """Return the topology's plan."""
    return builder.build(SETTINGS).build(StreamsConfig.of(SETTINGS)).plan()


def changelogs(builder: StreamsBuilder) -> set[str]:
    """Return the names of all changelog topics."""
    return {topic.name for part in plan(builder).subtopologies for topic in part.changelog_topics}


def test_given_names_reach_every_node_store_and_topic_of_a_join() -> None:
    """The description is what Kafka Streams prints for the same join (formats §11)."""
    builder = StreamsBuilder()
    left = builder.stream("l").select_key(lambda _key, value: value)
    options = StreamJoined(name="jn", store_name="jstore")
    left.left_join(builder.stream("r"), concatenated, WINDOWS, options).to("out")
    assert builder.build(SETTINGS).describe() == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: KSTREAM-SOURCE-0000000000 (topics: [l])\n"
        "      --> KSTREAM-KEY-SELECT-0000000001\n"
        "    Processor: KSTREAM-KEY-SELECT-0000000001 (stores: [])\n"
        "      --> jn-left-repartition-filter\n"
        "      <-- KSTREAM-SOURCE-0000000000\n"
        "    Processor: jn-left-repartition-filter (stores: [])\n"
        "      --> jn-left-repartition-sink\n"
        "      <-- KSTREAM-KEY-SELECT-0000000001\n"
        "    Sink: jn-left-repartition-sink (topic: jn-left-repartition)\n"
        "      <-- jn-left-repartition-filter\n"
        "\n"
        "  Sub-topology: 1\n"
        "    Source: KSTREAM-SOURCE-0000000002 (topics: [r])\n"
        "      --> jn-other-windowed\n"
        "    Source: jn-left-repartition-source (topics: [jn-left-repartition])\n"
        "      --> jn-this-windowed\n"
        "    Processor: jn-other-windowed (stores: [jstore-outer-other-join-store])\n"
        "      --> jn-outer-other-join\n"
        "      <-- KSTREAM-SOURCE-0000000002\n"
        "    Processor: jn-this-windowed (stores: [jstore-this-join-store])\n"
        "      --> jn-this-join\n"
        "      <-- jn-left-repartition-source\n"
        "    Processor: jn-outer-other-join (stores: [jstore-left-shared-join-store, jstore-this-join-store])\n"
        "      --> jn-merge\n"
        "      <-- jn-other-windowed\n"
        "    Processor: jn-this-join (stores: [jstore-left-shared-join-store, jstore-outer-other-join-store])\n"
        "      --> jn-merge\n"
        "      <-- jn-this-windowed\n"
        "    Processor: jn-merge (stores: [])\n"
        "      --> KSTREAM-SINK-0000000011\n"
        "      <-- jn-this-join, jn-outer-other-join\n"
        "    Sink: KSTREAM-SINK-0000000011 (topic: out)\n"
        "      <-- jn-merge\n"
        "\n"
    )


def test_an_outer_join_names_its_stores_so() -> None:
    """Both window stores of an outer join and its shared store have the base name, each with its own suffix."""
    builder, left, right = streams()
    left.outer_join(right, concatenated, WINDOWS, StreamJoined.as_("base")).to("out")
    assert changelogs(builder) == {
        "app-base-outer-this-join-store-changelog",
        "app-base-outer-other-join-store-changelog",
        "app-base-outer-shared-join-store-changelog",
    }


def test_stores_without_a_changelog_are_not_logged() -> None:
    """The option applies to all stores of the join, including the shared one."""
    builder, left, right = streams()
    left.outer_join(right, concatenated, WINDOWS, StreamJoined().with_logging_disabled()).to("out")
    assert changelogs(builder) == set()


def test_a_users_window_store_must_fit_the_join() -> None:
    """It must retain duplicates, for as long as the join looks back."""
    builder, left, right = streams()
    fitting = Stores.in_memory_window_store("mine", 25, 20, True)
    left.join(right, concatenated, WINDOWS, StreamJoined(this_store_supplier=fitting)).to("out")
    assert "app-mine-changelog" in changelogs(builder)
    for supplier, problem in (
        (Stores.in_memory_window_store("bad", 25, 20, False), "must be made with retain_duplicates=True"),
        (Stores.in_memory_window_store("bad", 25, 10, True), "needs its size, 20 ms"),
        (Stores.in_memory_window_store("bad", 30, 20, True), "kept for size and grace, 25 ms"),
    ):
        _, left, right = streams()
        with pytest.raises(TopologyError, match=problem):
            left.join(right, concatenated, WINDOWS, StreamJoined(this_store_supplier=supplier))


def test_both_sides_cannot_share_a_users_store() -> None:
    """Two stores with the same name would be one store."""
    _, left, right = streams()
    supplier = Stores.in_memory_window_store("mine", 25, 20, True)
    with pytest.raises(TopologyError, match="store named mine"):
        left.join(
            right, concatenated, WINDOWS, StreamJoined(this_store_supplier=supplier, other_store_supplier=supplier)
        )


def test_with_a_window_store_in_memory_the_shared_store_is_there_too() -> None:
    """Kafka Streams derives type and name of the shared store from the left side's supplier."""
    builder, left, right = streams()
    options = StreamJoined(this_store_supplier=Stores.in_memory_window_store("mine", 25, 20, True))
    left.left_join(right, concatenated, WINDOWS, options).to("out")
    with TopologyTestDriver(builder.build(SETTINGS), SETTINGS) as driver:
        assert driver.get_state_store("mine-left-shared-join-store").persistent is False
        assert driver.get_state_store("KSTREAM-OUTEROTHER-0000000005-store").persistent is True


def test_a_joiner_may_ask_for_the_key() -> None:
    """`ValueJoinerWithKey` marks it; the key must not be changed."""
    builder, left, right = streams()
    left.join(right, ValueJoinerWithKey(lambda key, one, other: f"{key}:{one}{other}"), WINDOWS).to("out")
    with TopologyTestDriver(builder.build(SETTINGS), SETTINGS) as driver:
        driver.create_input_topic("l").pipe_input("k", "a", 1)
        driver.create_input_topic("r").pipe_input("k", "b", 1)
        assert driver.create_output_topic("out").read_value() == "k:ab"


def test_what_cannot_be_joined_is_refused_with_a_reason() -> None:
    """Windows belong to joins with streams, key selectors to joins with global tables."""
    builder, left, right = streams()
    table, everywhere = builder.table("t"), builder.global_table("g")
    with pytest.raises(TopologyError, match="needs JoinWindows"):
        left.join(right, concatenated)
    with pytest.raises(TopologyError, match="takes no windows"):
        left.join(table, concatenated, WINDOWS)
    with pytest.raises(TopologyError, match="needs key_selector"):
        left.join(everywhere, concatenated)
    with pytest.raises(TopologyError, match="not with 'r'"):
        left.join("r", concatenated)
    with pytest.raises(TopologyError, match="different StreamsBuilders"):
        left.join(StreamsBuilder().stream("x"), concatenated, WINDOWS)


def test_streams_that_are_joined_must_have_equal_partition_counts() -> None:
    """Their topics are in one co-partitioned group."""
    builder, left, right = streams()
    left.join(right, concatenated, WINDOWS).to("out")
    (part,) = plan(builder).subtopologies
    assert [set(group) for group in part.copartition_groups] == [{"l", "r"}]


def test_a_join_with_a_table_may_wait_for_it() -> None:
    """A grace period (KIP-923) needs a versioned table; the buffer and its changelog have the join's name."""
    builder, stream, _ = streams()
    versioned = Materialized.as_(Stores.persistent_versioned_key_value_store("vs", 300_000))
    table = builder.table("t", versioned)
    stream.join(table, concatenated, joined=Joined.with_(name="j", grace_period=2_000)).to("out")
    assert {"app-j-Buffer-changelog", "app-vs-changelog"} == changelogs(builder)
    with TopologyTestDriver(builder.build(SETTINGS), SETTINGS) as driver:
        updates, records = driver.create_input_topic("t"), driver.create_input_topic("l")
        updates.pipe_input("a", "old", 1_000)
        records.pipe_input("a", "x", 1_500)
        updates.pipe_input("a", "late", 1_400)
        updates.pipe_input("a", "new", 1_600)
        assert driver.create_output_topic("out").is_empty()
        records.pipe_input("a", "y", 9_000)
        record = driver.create_output_topic("out").read_record()
    assert (record.value, record.timestamp) == ("x/late", 1_500)


def test_a_grace_period_is_refused_for_a_table_without_history() -> None:
    """Its value as of a time cannot be looked up."""
    builder, stream, _ = streams()
    with pytest.raises(TopologyError, match="must be kept in a versioned store"):
        stream.join(builder.table("t", "plain"), concatenated, joined=Joined.with_(grace_period=1))
