"""Every place in which the engine drops records counts them: once for Java's total, and with its node and reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.topologies.support import pair

from millrace.dropped_records import SUMMARY_INTERVAL_MS
from millrace.dsl import (
    Consumed,
    EmitStrategy,
    JoinWindows,
    Materialized,
    Named,
    Produced,
    SessionWindows,
    SlidingWindows,
    StreamJoined,
    StreamsBuilder,
    TableJoined,
    TimeWindows,
)
from millrace.processor import Processor, PunctuationType
from millrace.processor.handlers import HandlerResponse
from millrace.processor.timestamp_extractors import log_and_skip_on_invalid_timestamp
from millrace.serdes import Serdes
from millrace.serdes.foreign_key import value_hash
from millrace.state.stores import Stores
from millrace.testing import TopologyTestDriver

SETTINGS = {
    "application.id": "app",
    "default.key.serde": "string",
    "default.value.serde": "string",
    "deserialization.exception.handler": "LogAndContinueExceptionHandler",
    "processing.exception.handler": "LogAndContinueProcessingExceptionHandler",
}
GRACE_MS = 5
Piped = tuple[str, bytes | None, bytes | None, int]
Define = Callable[[StreamsBuilder], Any]
AT = Named.as_("node")


def drops(driver: TopologyTestDriver) -> dict[tuple[str, str], int]:
    """Return how many records were dropped, by node and reason."""
    assert driver._task is not None
    return {(each.node, each.reason.value): each.records for each in driver._task.dropped.all()}


def windowed(windows: Any, strategy: Any = None) -> Define:
    """Count in windows."""

    def define(builder: StreamsBuilder) -> None:
        stream = builder.stream("in").group_by_key().windowed_by(windows)
        (stream if strategy is None else stream.emit_strategy(strategy)).count(Materialized.as_("s"), named=AT)

    return define


def grouped(builder: StreamsBuilder) -> None:
    """Reduce without windows."""
    builder.stream("in").group_by_key().reduce(max, Materialized.as_("s"), named=AT)


def streams_joined(operator: str) -> Define:
    """Join two streams."""

    def define(builder: StreamsBuilder) -> None:
        windows = JoinWindows.of_time_difference_and_grace(10, GRACE_MS)
        getattr(builder.stream("in"), operator)(builder.stream("other"), pair, windows, StreamJoined.as_("node"))

    return define


def foreign_keys_joined(builder: StreamsBuilder) -> None:
    """Join tables by what is in front of the bar."""
    left, right = builder.table("in"), builder.table("right")
    left.join(right, pair, foreign_key=lambda value: value.split("|")[0] or None, joined=TableJoined.as_("fk"))


def versioned_tables_joined(builder: StreamsBuilder) -> None:
    """Join versioned tables."""
    left, right = (
        builder.table(topic, Materialized.as_(Stores.persistent_versioned_key_value_store(f"v-{topic}", 100)))
        for topic in ("in", "right")
    )
    left.join(right, pair, named=AT)


def late_row(builder: StreamsBuilder) -> None:
    """Keep a versioned table."""
    builder.table("in", Materialized.as_(Stores.persistent_versioned_key_value_store("s", 100)))


class IntoStore(Processor[Any, Any, Any, Any]):
    """Puts records into the window or session store `s` at their timestamps."""

    def init(self, context):
        super().init(context)
        self.store = context.get_state_store("s")

    def process(self, record):
        self.store.put(record.key, record.value, record.timestamp)


def stored(supplier: Any) -> Define:
    """Put records into a window store of a processor."""

    def define(builder: StreamsBuilder) -> None:
        builder.add_state_store(Stores.window_store_builder(supplier, Serdes.string(), Serdes.string()))
        builder.stream("in").process(IntoStore, "s", named=AT)

    return define


class Fails(Processor[Any, Any, Any, Any]):
    """Fails at records of the value `bad` and at each punctuation."""

    def init(self, context):
        super().init(context)
        context.schedule(1_000, PunctuationType.WALL_CLOCK_TIME, self.punctuate)

    def punctuate(self, now_ms):
        raise ValueError("no")

    def process(self, record):
        if record.value == "bad":
            raise ValueError("no")


def late(*times: int) -> tuple[Piped, ...]:
    """Return records with a key and these timestamps."""
    return tuple(("in", b"k", b"v", time) for time in times)


NO_KEY: Piped = ("in", None, b"v", 0)
NO_VALUE: Piped = ("in", b"k", None, 0)


@pytest.mark.parametrize(
    ("define", "piped", "expected"),
    [
        (windowed(TimeWindows.of_size_and_grace(10, GRACE_MS)), late(0, 15, 0, 5), {("node", "late"): 2}),
        (
            windowed(TimeWindows.of_size_and_grace(10, GRACE_MS).advance_by(5)),
            late(7, 25, 7, 14),
            {
                ("node", "late"): 4
            },  # once for each window, as in Java: 7 is in [0, 10) and [5, 15), 14 in [5, 15) and [10, 20)
        ),
        (
            windowed(TimeWindows.of_size_and_grace(10, GRACE_MS), EmitStrategy.on_window_close()),
            late(0, 15, 0),
            {("node", "late"): 1},
        ),
        (
            windowed(SessionWindows.of_inactivity_gap_and_grace(10, GRACE_MS)),
            late(0, 100, 50),
            {("node", "late"): 1},
        ),
        (
            windowed(SlidingWindows.of_time_difference_and_grace(10, GRACE_MS)),
            late(100, 200, 50, 186),
            {("node", "late"): 2},
        ),
        (windowed(TimeWindows.of_size_with_no_grace(10)), (NO_KEY,), {("node", "null-key"): 1}),
        (windowed(SessionWindows.of_inactivity_gap_with_no_grace(10)), (NO_KEY,), {("node", "null-key"): 1}),
        (
            windowed(SlidingWindows.of_time_difference_with_no_grace(10)),
            (NO_KEY, NO_VALUE),
            {("node", "null-key"): 1, ("node", "null-value"): 1},
        ),
        (grouped, (NO_KEY, NO_VALUE), {("node", "null-key"): 1, ("node", "null-value"): 1}),
        (
            streams_joined("join"),
            (NO_KEY, NO_VALUE),
            {("KSTREAM-JOINTHIS-0000000004", "null-key"): 1, ("KSTREAM-JOINTHIS-0000000004", "null-value"): 1},
        ),
        (streams_joined("left_join"), (NO_KEY, NO_VALUE), {("KSTREAM-JOINTHIS-0000000004", "null-value"): 1}),
        (
            lambda builder: builder.stream("in").join(builder.table("t"), pair),
            (NO_KEY, NO_VALUE, ("t", None, b"v", 0)),
            {
                ("KSTREAM-JOIN-0000000004", "null-key"): 1,
                ("KSTREAM-JOIN-0000000004", "null-value"): 1,
                ("KTABLE-SOURCE-0000000003", "null-key"): 1,
            },
        ),
        (late_row, late(200, 50), {("s", "expired"): 1}),
        (stored(Stores.in_memory_window_store("s", 100, 10)), late(200, 50), {("s", "expired"): 1}),
        (
            stored(Stores.persistent_window_store("s", 60_000, 10)),
            late(200_000, 0),
            {("s", "expired"): 1},
        ),
        (
            versioned_tables_joined,
            (("in", b"k", b"a", 50), ("right", b"k", b"x", 50), ("in", b"k", b"b", 40)),
            {("node-join-this", "out-of-order"): 1},
        ),
        (
            foreign_keys_joined,
            (("in", b"k", b"|1", 0),),
            {("fk-subscription-registration-processor", "null-foreign-key"): 1},
        ),
        (
            foreign_keys_joined,
            (
                ("in", b"k", b"a|1", 0),
                ("app-fk-subscription-response-topic", b"k", b"\x00" + value_hash(b"a|0") + b"old", 1),
            ),
            {("fk-subscription-response-resolver", "superseded"): 1},
        ),
        (
            lambda builder: builder.stream(
                "in", Consumed.as_("node").with_timestamp_extractor(log_and_skip_on_invalid_timestamp)
            ),
            (("in", b"k", b"v", -1),),
            {("node", "invalid-timestamp"): 1},
        ),
        (
            lambda builder: builder.stream("in", Consumed.with_(None, Serdes.long()).with_name("node")),
            (("in", b"k", b"not 8 bytes", 0),),
            {("node", "unreadable"): 1},
        ),
        (
            lambda builder: builder.stream("in").process(Fails, named=AT),
            (("in", b"k", b"bad", 0), ("in", b"k", b"good", 0)),
            {("node", "failed"): 1},
        ),
        (
            lambda builder: builder.stream("in").to(
                "out", Produced.with_(None, None).with_stream_partitioner(lambda *_: ()).with_name("node")
            ),
            (("in", b"k", b"v", 0),),
            {("node", "no-partition"): 1},
        ),
    ],
)
def test_drop_is_counted_with_its_node_and_reason(
    define: Define, piped: Iterable[Piped], expected: dict[tuple[str, str], int]
) -> None:
    """The sum of the reasons is Java's `dropped-records-total`."""
    builder = StreamsBuilder()
    define(builder)
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        for topic, key, value, timestamp in piped:
            driver.pipe_raw(topic, key, value, timestamp)
        assert drops(driver) == expected
        assert driver.dropped_records == sum(expected.values())


def test_records_of_global_tables_are_counted() -> None:
    """One without a key is dropped, as from a table."""
    builder = StreamsBuilder()
    builder.global_table("g", Materialized.as_("s"))
    builder.stream("in")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.pipe_raw("g", None, b"v", 0)
        assert driver.dropped_records == sum(drops(driver).values()) == 1


def test_failed_punctuation_is_counted() -> None:
    """It counts as a dropped record of its node if the handler continues, as in Java."""
    builder = StreamsBuilder()
    builder.stream("in").process(Fails, named=AT)
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.advance_wall_clock_time(1_000)
        assert (drops(driver), driver.dropped_records) == ({("node", "failed"): 1}, 1)


def test_record_that_cannot_be_serialised_is_counted() -> None:
    """It is the sink's."""

    class Continue:
        def handle_error(self, context, record, exception):
            raise AssertionError

        def handle_serialization_error(self, context, topic, record, exception):
            return HandlerResponse.resume()

    builder = StreamsBuilder()
    builder.stream("in").to("out", Produced.with_(None, Serdes.long()).with_name("node"))
    with TopologyTestDriver(builder.build(), SETTINGS | {"production.exception.handler": Continue()}) as driver:
        driver.pipe_raw("in", b"k", b"text", 0)
        assert (drops(driver), driver.dropped_records) == ({("node", "unwritable"): 1}, 1)


def test_warning_names_the_line_of_the_program(caplog: pytest.LogCaptureFixture) -> None:
    """It says how late records were, where they were dropped, and what the grace is; what is left is logged at the end."""
    caplog.set_level(logging.WARNING, "millrace.dropped_records")
    builder = StreamsBuilder()
    windows = TimeWindows.of_size_and_grace(60_000, 60_000)
    builder.stream("in").group_by_key().windowed_by(windows).count(Materialized.as_("s"), named=AT)
    line = f"{Path(__file__).name}:{line_of('windowed_by(windows).count(')}"
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        for time in (0, 300_000, 1, 59_000, 2):
            driver.pipe_raw("in", b"k", b"v", time)
        reason = "too late for a window, by up to 4m (grace is 1m)"
        assert caplog.messages == [f"Dropped 1 record at node ({line}): {reason}"]
        driver.advance_wall_clock_time(SUMMARY_INTERVAL_MS)
        assert caplog.messages[1:] == [f"Dropped 2 records at node ({line}): {reason}"]
        driver.pipe_raw("in", b"k", b"v", 3)
    assert caplog.messages[2:] == [f"Dropped 1 record at node ({line}): {reason}"]


def line_of(text: str) -> int:
    """Return the number of this file's first line that has a text."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)
