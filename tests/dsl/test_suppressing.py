"""Suppression in the graph: names, store, grace period, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.config import StreamsConfig
from millrace.dsl import (
    BufferConfig,
    Consumed,
    Grouped,
    Materialized,
    Produced,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from millrace.errors import ConfigError, StreamsError, TopologyError
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.testing import TopologyTestDriver

SETTINGS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}
UNBOUNDED = BufferConfig.unbounded()
TEXT = Serdes.string()


def changelogs(builder: StreamsBuilder) -> dict[str, dict[str, str]]:
    """Return the changelog topics and their settings."""
    plan = builder.build(SETTINGS).build(StreamsConfig.of(SETTINGS)).plan()
    return {topic.name: dict(topic.config) for part in plan.subtopologies for topic in part.changelog_topics}


def grouped(builder: StreamsBuilder) -> Any:
    """Return topic `in` grouped by key, with serdes from which windowed keys can be derived."""
    return builder.stream("in").group_by_key(Grouped.with_(Serdes.string(), Serdes.string()))


def test_the_buffer_has_the_given_name_and_settings() -> None:
    """So does its changelog; without logging there is none."""
    builder = StreamsBuilder()
    logged = BufferConfig.unbounded().with_logging_enabled({"retention.ms": "1"})
    builder.table("t").suppress(Suppressed.until_time_limit(5, logged).with_name("late")).to_stream().to("out")
    assert changelogs(builder)["app-late-store-changelog"]["retention.ms"] == "1"
    builder = StreamsBuilder()
    quiet = BufferConfig.unbounded().with_logging_disabled()
    builder.table("t").suppress(Suppressed.until_time_limit(5, quiet).with_name("late")).to_stream().to("out")
    assert "app-late-store-changelog" not in changelogs(builder)


@pytest.mark.parametrize(
    ("windows", "closes_at"),
    [
        (TimeWindows.of_size_and_grace(100, 20), 120),
        (SessionWindows.of_inactivity_gap_and_grace(50, 20), 10 + 50 + 20),
    ],
)
def test_final_results_wait_for_the_grace_period_of_the_windows_upstream(windows: Any, closes_at: int) -> None:
    """It is found through operators in between; a session can change until gap and grace have passed."""
    builder = StreamsBuilder()
    counts = grouped(builder).windowed_by(windows).count()
    kept = counts.filter(lambda _key, count: count > 0)
    final = kept.suppress(Suppressed.until_window_closes(UNBOUNDED))
    final.to_stream().map(lambda key, count: (key.key, str(count))).to("out")
    with TopologyTestDriver(builder.build(SETTINGS), {**SETTINGS, "statestore.cache.max.bytes": 0}) as driver:
        source, sink = driver.create_input_topic("in"), driver.create_output_topic("out")
        source.pipe_input("k", "x", 10)
        source.pipe_input("later", "x", closes_at - 1)
        assert sink.is_empty()
        source.pipe_input("later", "x", closes_at)
        assert sink.read_key_values_to_list()[0] == ("k", "1")


def test_a_table_without_windows_never_has_final_results() -> None:
    """The error says what to use instead."""
    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match=r"has no windows .*until_time_limit"):
        grouped(builder).count().suppress(Suppressed.until_window_closes(UNBOUNDED))


def test_a_versioned_table_cannot_be_suppressed() -> None:
    """Its out-of-order updates would lose their order."""
    builder = StreamsBuilder()
    versioned = Materialized.as_(Stores.persistent_versioned_key_value_store("v", 1_000))
    with pytest.raises(TopologyError, match="cannot be suppressed"):
        builder.table("t", versioned).suppress(Suppressed.until_time_limit(1, UNBOUNDED))


def test_a_suppressed_table_can_be_joined() -> None:
    """The other side sees what was emitted, not what is waiting."""
    builder = StreamsBuilder()
    held = builder.table("t").suppress(Suppressed.until_time_limit(100, UNBOUNDED))
    builder.stream("in").left_join(held, lambda left, right: f"{left}/{right}").to("out")
    with TopologyTestDriver(builder.build(SETTINGS), SETTINGS) as driver:
        table, records = driver.create_input_topic("t"), driver.create_input_topic("in")
        table.pipe_input("k", "a", 0)
        records.pipe_input("k", "1", 0)
        table.pipe_input("other", "x", 100)
        records.pipe_input("k", "2", 100)
        table.pipe_input("k", "b", 110)
        records.pipe_input("k", "3", 110)
        assert driver.create_output_topic("out").read_values_to_list() == ["1/None", "2/a", "3/a"]


def test_windows_of_one_moment_are_suppressed() -> None:
    """Sliding windows with a difference of 0 contain one timestamp; stream time closes one when it reaches its end, as always."""
    builder = StreamsBuilder()
    counts = (
        builder.stream("in", Consumed.with_(TEXT, TEXT))
        .group_by_key()
        .windowed_by(SlidingWindows.of_time_difference_with_no_grace(0))
        .count(Materialized.with_(TEXT, Serdes.long()))
        .suppress(Suppressed.until_window_closes(UNBOUNDED))
    )
    counts.to_stream().map(lambda key, count: (f"{key.key}@{key.window.start}-{key.window.end}", str(count))).to(
        "out", Produced.with_(TEXT, TEXT)
    )
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, TEXT)
        for timestamp in (1, 5, 9):
            topic.pipe_input("a", "v", timestamp)
        out = driver.create_output_topic("out", TEXT, TEXT)
        assert out.read_key_values_to_list() == [("a@1-1", "1"), ("a@5-5", "1"), ("a@9-9", "1")]


def test_serdes_that_suppress_lacks_are_those_of_its_table() -> None:
    """An error about the buffer's serdes says where to give them, since `suppress` takes none."""
    builder = StreamsBuilder()
    lengths = builder.table("in", Consumed.with_(TEXT, TEXT)).map_values(len)
    lengths.suppress(Suppressed.until_time_limit(10, UNBOUNDED)).to_stream().to("out")
    with pytest.raises(ConfigError, match=r"no value serde.*suppress\(\) takes no serdes.*operator before it"):
        TopologyTestDriver(builder.build(), {"default.key.serde": TEXT})
    builder = StreamsBuilder()
    windows = builder.stream("in").group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(10)).count()
    windows.suppress(Suppressed.until_window_closes(UNBOUNDED)).to_stream().foreach(print)
    with TopologyTestDriver(builder.build(), {"default.key.serde": TEXT, "default.value.serde": TEXT}) as driver:
        topic = driver.create_input_topic("in", TEXT, TEXT)
        with pytest.raises(StreamsError, match=r"given Windowed.*suppress\(\) takes no serdes.*Materialized\.with_"):
            topic.pipe_input("a", "v")
        driver.abandon()
