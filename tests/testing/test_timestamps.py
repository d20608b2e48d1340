"""What production refuses as a timestamp is refused by the test driver too, with the place where it was made."""

from __future__ import annotations

import re

import pytest

from millrace import Consumed, StreamsBuilder
from millrace.errors import (
    FailedProcessingError,
    InvalidTimestampError,
    SerializationError,
    StreamsError,
    TopologyError,
)
from millrace.processor.api import Processor, PunctuationType
from millrace.records import Record, ValueAndTimestamp, Window, Windowed
from millrace.serdes import Serdes
from millrace.state import AggregationWithHeaders, Stores, ValueTimestampHeaders
from millrace.testing import MockProcessorContext, TopologyTestDriver
from millrace.topology import Topology

TEXT, NUMBER = Serdes.string(), Serdes.long()
CONFIG = {"application.id": "app", "default.key.serde": TEXT, "default.value.serde": TEXT}
DAY = 86_400_000
WRONG = [5.0, True, "5", None, -5, 2**63]


class Whole:
    """A whole number that is no int, as numpy has them."""

    def __index__(self):
        return 5


def run(do):
    """Process one record with the test's function, and return the output's timestamps."""

    class Do(Processor):
        def process(self, record):
            do(self.context, record)

    topology = Topology().add_source("in", "in").add_processor("do", Do, "in").add_sink("out", "out", "do")
    with TopologyTestDriver(topology, CONFIG) as driver:
        driver.create_input_topic("in").pipe_input("a", "b", 1)
        return [record.timestamp for record in driver.create_output_topic("out").read_records_to_list()]


@pytest.mark.parametrize("wrong", WRONG)
def test_forwarded_timestamp(wrong):
    """Forwarding a record with something else than whole milliseconds is an error that names the node and what was given."""
    with pytest.raises(FailedProcessingError, match=r"node do failed .* timestamp .* whole milliseconds") as failed:
        run(lambda context, record: context.forward(record.with_timestamp(wrong)))
    assert repr(wrong) in str(failed.value)
    with pytest.raises(InvalidTimestampError, match="whole milliseconds"):
        MockProcessorContext().forward(Record("a", "b", wrong))


def test_whole_numbers_of_other_types_are_timestamps():
    """What counts as an int is sent as one, also if an extractor or a caller of the test topic gives it."""
    assert run(lambda context, record: context.forward(record.with_timestamp(Whole()))) == [5]
    builder = StreamsBuilder()
    builder.stream("in", Consumed().with_timestamp_extractor(lambda *_: Whole())).to("out")
    with TopologyTestDriver(builder.build(), CONFIG) as driver:
        driver.create_input_topic("in").pipe_input("a", "b", Whole())
        assert type(driver.create_output_topic("out").read_record().timestamp) is int


@pytest.mark.parametrize("wrong", [5.0, True, "5", None, 2**63, float("nan")])
def test_extracted_timestamp(wrong):
    """An extractor that returns something else than a whole number is named, and the record it was asked about."""

    def extract(record, partition_time):
        return wrong

    builder = StreamsBuilder()
    builder.stream("in", Consumed().with_timestamp_extractor(extract)).to("out")
    with TopologyTestDriver(builder.build(), CONFIG) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(InvalidTimestampError, match=r"extract.* offset 0 of in-0 must be whole milliseconds"):
            topic.pipe_input("a", "b")
        driver.abandon()


@pytest.mark.parametrize("wrong", [5.0, True, "5", 2**63])
def test_piped_timestamp(wrong):
    """The driver takes no record with a timestamp that a topic cannot have, nor such times of its own."""
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with TopologyTestDriver(builder.build(), CONFIG) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(TopologyError, match="timestamp must be whole milliseconds"):
            topic.pipe_input("a", "b", wrong)
        with pytest.raises(TopologyError, match="timestamp must be whole milliseconds"):
            topic.pipe_record(Record("a", "b", wrong))
        with pytest.raises(InvalidTimestampError, match="topic in must be whole milliseconds"):
            driver.pipe_raw("in", b"a", b"b", wrong)
        with pytest.raises(InvalidTimestampError, match="must be whole milliseconds"):
            driver.create_input_topic("in", start_timestamp_ms=wrong)
    with pytest.raises(InvalidTimestampError, match="initial_wall_clock_ms must be whole milliseconds"):
        TopologyTestDriver(builder.build(), CONFIG, initial_wall_clock_ms=wrong)


def test_start_of_a_punctuator():
    """A punctuator starts at whole milliseconds."""

    def schedule(context, record):
        context.schedule(10, PunctuationType.STREAM_TIME, print, start_ms=5.0)

    with pytest.raises(FailedProcessingError, match=r"start of a punctuator of node do .* not 5\.0"):
        run(schedule)
    with pytest.raises(InvalidTimestampError, match=r"start of a punctuator .* not 5\.0"):
        MockProcessorContext().schedule(10, PunctuationType.STREAM_TIME, print, start_ms=5.0)


class NoBytes(type(TEXT)):
    """A serde that does not do what it should."""

    def serialize(self, topic, data, headers=()):
        """Return no bytes."""
        return 7


def test_serde_that_returns_no_bytes():
    """A producer takes bytes only, and so does the driver."""
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with TopologyTestDriver(builder.build(), CONFIG | {"default.value.serde": NoBytes()}) as driver:
        with pytest.raises(StreamsError, match="value of a record for topic out must be bytes, not 7"):
            driver.pipe_raw("in", b"a", b"b", 0)
        driver.abandon()


PAIR, TRIPLE = ValueAndTimestamp, ValueTimestampHeaders
STORES = {
    "timestamped": Stores.timestamped_key_value_store_builder(
        Stores.persistent_timestamped_key_value_store("s"), NUMBER, NUMBER
    ),
    "headers": Stores.timestamped_key_value_store_with_headers_builder(
        Stores.persistent_timestamped_key_value_store_with_headers("s"), NUMBER, NUMBER
    ),
    "versioned": Stores.versioned_key_value_store_builder(
        Stores.persistent_versioned_key_value_store("s", DAY), NUMBER, NUMBER
    ),
    "window": Stores.window_store_builder(Stores.persistent_window_store("s", DAY, 10), NUMBER, NUMBER),
    "timestamped window": Stores.timestamped_window_store_builder(
        Stores.persistent_timestamped_window_store("s", DAY, 10), NUMBER, NUMBER
    ),
    "window headers": Stores.timestamped_window_store_with_headers_builder(
        Stores.persistent_timestamped_window_store_with_headers("s", DAY, 10), NUMBER, NUMBER
    ),
    "session": Stores.session_store_builder(Stores.persistent_session_store("s", DAY), NUMBER, NUMBER),
    "session headers": Stores.session_store_with_headers_builder(
        Stores.persistent_session_store_with_headers("s", DAY), NUMBER, NUMBER
    ),
}


def session(start, end):
    """Return a session of key 7."""
    return Windowed(7, Window(start, end))


TIMES = [
    *[("timestamped", (7, PAIR(1, wrong))) for wrong in WRONG],
    *[("headers", (7, TRIPLE(1, wrong))) for wrong in WRONG],
    *[("versioned", (7, 1, wrong)) for wrong in WRONG],
    *[("window", (7, 1, wrong)) for wrong in WRONG if wrong != -5],
    *[("timestamped window", (7, PAIR(1, 5), wrong)) for wrong in WRONG if wrong != -5],
    *[("timestamped window", (7, PAIR(1, wrong), 5)) for wrong in WRONG],
    *[("window headers", (7, TRIPLE(1, wrong), 5)) for wrong in WRONG],
    *[("session", (session(0, wrong), 1)) for wrong in WRONG],
    *[("session headers", (session(wrong, 9), AggregationWithHeaders(1))) for wrong in WRONG],
    ("session", (session(5, 4), 1)),
]
VALUES = [
    *[("timestamped", (7, wrong)) for wrong in (1, "zz", (1, 2, 3), TRIPLE(1, 5))],
    *[("headers", (7, wrong)) for wrong in (1, "zzz", PAIR(1, 5))],
    *[("timestamped window", (7, wrong, 5)) for wrong in (1, "zz")],
    *[("window headers", (7, wrong, 5)) for wrong in (1, PAIR(1, 5))],
    ("session headers", (session(0, 5), 1)),
]


def put(kind, entry, *, cached):
    """Put an entry into a store, in a processor that does it for one record, and return the error."""

    class Put(Processor):
        def process(self, record):
            self.context.get_state_store("s").put(*entry)

    builder = STORES[kind]
    if kind != "versioned":
        builder = builder.with_caching_enabled() if cached else builder.with_caching_disabled()
    topology = Topology().add_source("in", "in").add_processor("put", Put, "in").add_state_store(builder, "put")
    with TopologyTestDriver(topology, CONFIG) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(FailedProcessingError) as failed:
            topic.pipe_input("a", "b")
        driver.abandon()
    return failed.value.__cause__


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(("kind", "entry"), TIMES)
def test_timestamps_in_stores(kind, entry, cached):
    """A store says which of its times is wrong, for which key, at the put and not when the cache is written back."""
    error = put(kind, entry, cached=cached)
    assert isinstance(error, InvalidTimestampError)
    assert re.match(r"Store 's', key 7: the .* must be whole milliseconds, an int from", str(error))


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(("kind", "entry"), VALUES)
def test_values_of_other_kinds_in_stores(kind, entry, cached):
    """A store of timestamps or headers says what it takes, and for which key it got something else."""
    error = put(kind, entry, cached=cached)
    assert isinstance(error, SerializationError)
    assert re.match(r"Store 's', key 7: put takes an? \w+\(.*\), or None, not", str(error))


def test_session_must_be_one():
    """A session store takes no other keys."""
    error = put("session", (7, 1), cached=False)
    assert isinstance(error, SerializationError)
    assert str(error) == "Store 's': a session is a Windowed(key, Window(start, end)), not 7"
