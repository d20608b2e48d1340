"""Rows of stores that cannot be read: the processing exception handler is asked, in whatever node that happens."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from millrace import (
    BufferConfig,
    Consumed,
    EmitStrategy,
    Grouped,
    Joined,
    JoinWindows,
    Materialized,
    Produced,
    Serdes,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyTestDriver,
)
from millrace.errors import FailedProcessingError, UnreadableRowError
from millrace.processor.handlers import HandlerResponse
from millrace.records import NO_HEADERS
from millrace.serdes.base import Serde

TEXT = Serdes.string()


class Fragile(Serde[str]):
    """Text; once it is broken, it cannot read what contains `bad`."""

    broken = False
    error = ValueError("no such schema")

    def serialize(self, topic, data, headers=NO_HEADERS):
        return TEXT.serialize(topic, data, headers)

    def deserialize(self, topic, data, headers=NO_HEADERS):
        if self.broken and b"bad" in data:
            raise self.error
        return TEXT.deserialize(topic, data, headers)


class Continues:
    """Remembers the node and the error of each failure, and goes on."""

    def __init__(self):
        self.failures = []
        self.offsets = []

    def handle_error(self, context, _record, error):
        self.failures.append((context.node, error))
        self.offsets.append(context.offset)
        return HandlerResponse.resume()


def last(_so_far, value):
    """Return the second argument."""
    return value


def kept(v, name="st"):
    """Return how a table is kept."""
    return Materialized.as_(name).with_key_serde(TEXT).with_value_serde(v)


def stream(b, v, topic="in"):
    """Read a topic as a stream."""
    return b.stream(topic, Consumed.with_(TEXT, v))


def table(b, v, topic="in", name="st"):
    """Read a topic as a table."""
    return b.table(topic, name, consumed=Consumed.with_(TEXT, v))


def grouped(b, v):
    """Read a topic, and group it by key."""
    return stream(b, v).group_by_key(Grouped.with_(TEXT, v))


def joined(left, right):
    """Join two values."""
    return f"{left}{right}"


def send(operator):
    """Write a stream or table, with windowed keys reduced to their inner keys."""
    found = operator.to_stream() if hasattr(operator, "to_stream") else operator
    found.map(lambda key, value: (getattr(key, "key", key), value)).to("out", Produced.with_(TEXT, TEXT))


def windowed(windows):
    """Return how to reduce by windows."""
    return lambda b, v: send(grouped(b, v).windowed_by(windows).reduce(last, kept(v)))


def on_close(windows):
    """Return how to reduce by windows, with results when they close."""
    return lambda b, v: send(
        grouped(b, v)
        .windowed_by(windows)
        .emit_strategy(EmitStrategy.ON_WINDOW_CLOSE)
        .reduce(last, kept(v).with_retention(60_000))
    )


def stream_join(how, name="j"):
    """Return how to join two streams."""

    def build(b, v):
        options = StreamJoined.with_(TEXT, v, v).with_store_name(name).with_name(name)
        windows = JoinWindows.of_time_difference_with_no_grace(10)
        send(getattr(stream(b, v, "q"), how)(stream(b, v), joined, windows, options))

    return build


def self_join(b, v):
    """Join a stream with itself."""
    records = stream(b, v)
    options = StreamJoined.with_(TEXT, v, v).with_store_name("j")
    send(records.join(records, joined, JoinWindows.of_time_difference_with_no_grace(10), options))


def versioned(name):
    """Return how a versioned table is kept."""
    return Materialized.as_(Stores.persistent_versioned_key_value_store(name, 60_000))


def grace(b, v):
    """Join a stream with a table after a grace period."""
    right = b.table("t", versioned("st"), consumed=Consumed.with_(TEXT, TEXT))
    options = Joined.with_(TEXT, v, TEXT).with_name("j").with_grace_period(10)
    send(stream(b, v).left_join(right, joined, options))


def foreign_key(b, v):
    """Join two tables by the last letter of the left value."""
    right = table(b, v, "right", "r")
    send(table(b, v, "in", "l").left_join(right, joined, foreign_key=lambda value: value[-1:]))


def global_table(b, v):
    """Join a stream with a global table."""
    names = b.global_table("in", "st", consumed=Consumed.with_(TEXT, v))
    send(stream(b, TEXT, "q").left_join(names, joined, key_selector=lambda key, _: key))


@dataclass(frozen=True)
class Case:
    """What is sent before and after the serde breaks, what comes out then, and the failures in between: store, key, topic."""

    build: Callable[[StreamsBuilder, Any], object]
    before: list[tuple[str, str, str, int]]
    after: list[tuple[str, str, str, int]]
    out: list[tuple[str, str]]
    failures: list[tuple[str, str, str]]
    settings: tuple[tuple[str, object], ...] = ()


BAD = [("in", "b", "bad", 0)]
UPDATES = [("in", "b", "9", 1), ("in", "a", "2", 1)]
OF_B = [("st", "'b'", "app-st-changelog")]
OF_WINDOW = [("st", "'b' in the window that starts at 0", "app-st-changelog")]
CASES = {
    "source_table": Case(lambda b, v: send(table(b, v)), BAD, UPDATES, [("a", "2")], OF_B),
    "restored_from_its_source": Case(
        lambda b, v: send(table(b, v)),
        BAD,
        UPDATES,
        [("a", "2")],
        [("st", "'b'", "in")],
        (("topology.optimization", "all"),),
    ),
    "versioned_table": Case(
        lambda b, v: send(b.table("in", versioned("st"), consumed=Consumed.with_(TEXT, v))),
        BAD,
        UPDATES,
        [("a", "2")],
        OF_B,
    ),
    "reduce": Case(lambda b, v: send(grouped(b, v).reduce(last, kept(v))), BAD, UPDATES, [("a", "2")], OF_B),
    "without_a_changelog": Case(
        lambda b, v: send(grouped(b, v).reduce(last, kept(v).with_logging_disabled())),
        BAD,
        UPDATES,
        [("a", "2")],
        [("st", "'b'", "")],
    ),
    "aggregate": Case(
        lambda b, v: send(grouped(b, v).aggregate(str, lambda _key, value, so_far: so_far + value, kept(v))),
        BAD,
        UPDATES,
        [("a", "2")],
        OF_B,
    ),
    "grouped_table": Case(
        lambda b, v: send(
            b.table("in", consumed=Consumed.with_(TEXT, TEXT))
            .group_by(lambda key, value: (key, value), Grouped.with_(TEXT, TEXT))
            .reduce(last, last, kept(v))
        ),
        BAD,
        UPDATES,
        [("a", "2")],
        OF_B,
    ),
    "computed_table": Case(
        lambda b, v: send(
            stream(b, TEXT)
            .to_table()
            .map_values(str.lower, kept(v))
            .group_by(lambda key, value: (key, value), Grouped.with_(TEXT, TEXT))
            .reduce(last, last, kept(TEXT, "sum"))
        ),
        BAD,
        UPDATES,
        [("a", "2")],
        OF_B,
    ),
    "tumbling": Case(windowed(TimeWindows.of_size_with_no_grace(10)), BAD, UPDATES, [("a", "2")], OF_WINDOW),
    "hopping": Case(
        windowed(TimeWindows.of_size_with_no_grace(10).advance_by(5)), BAD, UPDATES, [("a", "2")], OF_WINDOW
    ),
    "sliding": Case(
        windowed(SlidingWindows.of_time_difference_with_no_grace(10)), BAD, UPDATES, [("a", "2")], OF_WINDOW
    ),
    "session": Case(
        windowed(SessionWindows.of_inactivity_gap_with_no_grace(10)),
        BAD,
        UPDATES,
        [("a", "2")],
        [("st", "'b' in the session from 0 to 0", "app-st-changelog")],
    ),
    "stream_table": Case(
        lambda b, v: send(stream(b, TEXT, "q").left_join(table(b, v), joined)),
        BAD,
        [("q", "b", "?", 1), ("q", "a", "?", 1)],
        [("a", "?None")],
        OF_B,
    ),
    "stream_versioned_table": Case(
        lambda b, v: send(
            stream(b, TEXT, "q").left_join(b.table("in", versioned("st"), consumed=Consumed.with_(TEXT, v)), joined)
        ),
        BAD,
        [("q", "b", "?", 1), ("q", "a", "?", 1)],
        [("a", "?None")],
        OF_B,
    ),
    "global_table": Case(
        global_table, BAD, [("q", "b", "?", 1), ("q", "a", "?", 1)], [("a", "?None")], [("st", "'b'", "in")]
    ),
    "table_table": Case(
        lambda b, v: send(table(b, v).join(table(b, TEXT, "q", "other"), joined)),
        [*BAD, ("in", "a", "1", 0)],
        [("q", "b", "?", 1), ("q", "a", "?", 1)],
        [("a", "1?")],
        OF_B,
    ),
    "computed_view": Case(
        lambda b, v: send(stream(b, TEXT, "q").left_join(table(b, v).map_values(str.upper), joined)),
        BAD,
        [("q", "b", "?", 1), ("q", "a", "?", 1)],
        [("a", "?None")],
        OF_B,
    ),
    "inner_join": Case(
        stream_join("join"),
        [*BAD, ("in", "a", "1", 0)],
        [("q", "b", "?", 1), ("q", "a", "?", 1)],
        [("a", "?1")],
        [("j-other-join-store", "'b' in the window that starts at 0", "app-j-other-join-store-changelog")],
    ),
    "self_join": Case(
        self_join,
        [*BAD],
        [("in", "b", "9", 1), ("in", "a", "2", 1)],
        [("a", "22")],
        [("j-this-join-store", "'b' in the window that starts at 0", "app-j-this-join-store-changelog")],
        (("topology.optimization", "all"),),
    ),
    "waiting_for_a_match": Case(
        stream_join("left_join"),
        [("q", "b", "bad", 0), ("q", "a", "1", 1)],
        [("q", "c", "3", 100), ("q", "d", "4", 200)],
        [("a", "1None"), ("c", "3None")],
        [
            (
                "j-left-shared-join-store",
                "JoinSideKey(timestamp=0, is_left=True, key='b')",
                "app-j-left-shared-join-store-changelog",
            )
        ],
        (("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0),),
    ),
    "foreign_key_left": Case(
        foreign_key,
        [("in", "b", "bad", 0), ("in", "a", "1d", 0)],
        [("right", "d", "R", 1)],
        [("a", "1dR")],
        [("l", "'b'", "app-l-changelog")],
    ),
    "foreign_key_right": Case(
        foreign_key,
        [("right", "d", "bad", 0)],
        [("in", "b", "1d", 1), ("in", "a", "1e", 1)],
        [("a", "1eNone")],
        [("r", "'d'", "app-r-changelog")],
    ),
    "suppressed": Case(
        lambda b, v: send(
            stream(b, v)
            .to_table(kept(v))
            .suppress(Suppressed.until_time_limit(10, BufferConfig.unbounded()).with_name("sup"))
        ),
        [*BAD, ("in", "a", "1", 1)],
        [("in", "c", "3", 100), ("in", "d", "4", 200)],
        [("a", "1"), ("c", "3")],
        [("sup-store", "'b'", "app-sup-store-changelog")],
    ),
    "grace": Case(
        grace,
        [*BAD, ("in", "a", "1", 1)],
        [("in", "c", "3", 100), ("in", "d", "4", 200)],
        [("a", "1None"), ("c", "3None")],
        [("j-Buffer", "'b'", "app-j-Buffer-changelog")],
    ),
    "windows_on_close": Case(
        on_close(TimeWindows.of_size_with_no_grace(10)),
        [*BAD, ("in", "a", "1", 1)],
        [("in", "c", "3", 100), ("in", "d", "4", 200)],
        [("a", "1"), ("c", "3")],
        OF_WINDOW,
        (("__emit.interval.ms.kstreams.windowed.aggregation__", 0),),
    ),
    "sliding_windows_on_close": Case(
        on_close(SlidingWindows.of_time_difference_with_no_grace(10)),
        [*BAD, ("in", "a", "1", 1)],
        [("in", "c", "3", 100), ("in", "d", "4", 200)],
        [("a", "1"), ("c", "3")],
        OF_WINDOW,
        (("__emit.interval.ms.kstreams.windowed.aggregation__", 0),),
    ),
    "sessions_on_close": Case(
        on_close(SessionWindows.of_inactivity_gap_with_no_grace(10)),
        [*BAD, ("in", "a", "1", 1)],
        [("in", "c", "3", 100), ("in", "d", "4", 200)],
        [("a", "1"), ("c", "3")],
        [("st", "'b' in the session from 0 to 0", "app-st-changelog")],
        (("__emit.interval.ms.kstreams.windowed.aggregation__", 0),),
    ),
}


def text(store, key, topic):
    """Return how an error names a row."""
    origin = f"which comes from topic {topic}" if topic else "which is in no topic"
    return f"store '{store}' cannot read the row of key {key}, {origin}"


def run(case, cache, *, error=None, **settings):
    """Run a case, and return what comes out once the serde is broken."""
    serde = Fragile()
    serde.error = error or serde.error
    config = {"application.id": "app", "statestore.cache.max.bytes": cache, **dict(case.settings), **settings}
    config |= {"default.key.serde": "string", "default.value.serde": "string"}
    builder = StreamsBuilder()
    case.build(builder, serde)
    with TopologyTestDriver(builder.build(config), config) as driver:
        for topic, key, value, timestamp in case.before:
            driver.create_input_topic(topic, TEXT, TEXT).pipe_input(key, value, timestamp)
        out = driver.create_output_topic("out", TEXT, TEXT)
        out.read_key_values_to_list()
        serde.broken = True
        for topic, key, value, timestamp in case.after:
            driver.create_input_topic(topic, TEXT, TEXT).pipe_input(key, value, timestamp)
        return [tuple(pair) for pair in out.read_key_values_to_list()]


@pytest.mark.parametrize("cache", [0, 10_000_000])
@pytest.mark.parametrize("name", CASES)
def test_a_handler_that_continues_drops_only_what_needs_the_row(name, cache):
    """It is told store, key, and the topic that the row came from; all else goes on."""
    case, handler = CASES[name], Continues()
    assert run(case, cache, **{"processing.exception.handler": handler}) == case.out
    assert [str(error) for _, error in handler.failures] == [
        f"{text(*failure)}: ValueError: no such schema" for failure in case.failures
    ]
    assert all(isinstance(error, UnreadableRowError) for _, error in handler.failures)


@pytest.mark.parametrize("name", CASES)
def test_without_such_a_handler_the_error_names_node_record_and_row(name):
    """The application ends, as with any other failure in a node."""
    case = CASES[name]
    row = re.escape(text(*case.failures[0]))
    with pytest.raises(FailedProcessingError, match=rf"node \S+ failed on the record at offset \d+ of \S+: .*{row}"):
        run(case, 0)


@pytest.mark.parametrize("name", ["suppressed", "grace", "windows_on_close"])
def test_a_row_that_waits_is_not_dropped_because_a_registry_is_away(name):
    """Its bytes are not at fault: no handler is asked, and the row stays for the next attempt."""
    handler = Continues()
    with pytest.raises(FailedProcessingError, match="may be readable later"):
        run(
            CASES[name],
            0,
            error=ConnectionRefusedError("the registry is away"),
            **{"processing.exception.handler": handler},
        )
    assert handler.failures == []


OLD_VALUE_IN_A_FLUSH = Case(
    lambda b, v: send(
        table(b, TEXT, "in", "left")
        .join(table(b, TEXT, "q", "right"), joined, kept(v))
        .group_by(lambda key, value: (key, value), Grouped.with_(TEXT, TEXT))
        .reduce(last, last, kept(TEXT, "groups"))
    ),
    [("q", "b", "?", 0), ("q", "a", "?", 0), *BAD],
    UPDATES,
    [("a", "2?")],
    OF_B,
)


def test_an_old_value_that_only_the_flush_reads_is_asked_about():
    """The new value is kept, but its update is not forwarded; in Java the application ends."""
    handler = Continues()
    assert run(OLD_VALUE_IN_A_FLUSH, 10_000_000, **{"processing.exception.handler": handler}) == [("a", "2?")]
    ((node, error),) = handler.failures
    assert node == "KTABLE-MERGE-0000000004"
    assert "store 'st' cannot read the row of key 'b'" in str(error)


@pytest.mark.parametrize("name", ["reduce", "tumbling", "session"])
def test_a_new_value_that_the_flush_cannot_read_is_asked_about(name):
    """A serde may write what it cannot read; the handler is asked with the position of the record that the value came from."""
    serde, handler = Fragile(), Continues()
    config = {"application.id": "app", "processing.exception.handler": handler}
    builder = StreamsBuilder()
    CASES[name].build(builder, serde)
    with TopologyTestDriver(builder.build(), config, auto_commit=False) as driver:
        for key, value in (("a", "1"), ("b", "bad"), ("c", "3")):
            driver.create_input_topic("in", TEXT, TEXT).pipe_input(key, value, 0)
        serde.broken = True
        driver.commit()
        assert driver.create_output_topic("out", TEXT, TEXT).read_key_values_to_list() == [("a", "1"), ("c", "3")]
    assert ["'b'" in str(error) for _, error in handler.failures] == [True]
    assert handler.offsets == [1]


@pytest.mark.parametrize(
    "windows",
    [None, TimeWindows.of_size_with_no_grace(10), SessionWindows.of_inactivity_gap_with_no_grace(10)],
    ids=["no windows", "tumbling", "session"],
)
def test_a_value_that_cannot_be_written_back_is_not_blamed_on_the_record_that_evicts_it(windows):
    """The handler is not asked, as it would be about that record and all that follow; the error names the value's key."""
    handler, builder = Continues(), StreamsBuilder()
    values = stream(builder, TEXT).map_values_with_key(lambda key, value: "\ud800" if key == "b" else value)
    groups = values.group_by_key(Grouped.with_(TEXT, TEXT))
    (groups if windows is None else groups.windowed_by(windows)).reduce(last, kept(TEXT))
    config = {"statestore.cache.max.bytes": 600, "processing.exception.handler": handler}
    with (
        pytest.raises(FailedProcessingError, match=r"'st' cannot write .* key 'b'"),
        TopologyTestDriver(builder.build(), config, auto_commit=False) as driver,
    ):
        for key in "abcdefghijklmnop":
            driver.create_input_topic("in", TEXT, TEXT).pipe_input(key, key, 0)
    assert handler.failures == []
