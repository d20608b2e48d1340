"""More mistakes of a newcomer, at the DSL and in tests: the error is that of the call, and says what to do."""

from __future__ import annotations

import re

import pytest
from tests.dsl.mistakes import SETTINGS, TUMBLING, Parts, check, join

from millrace import Repartitioned, StreamsBuilder, TimeWindows, Topology, TopologyTestDriver
from millrace.errors import FailedProcessingError, TopologyError

MISTAKES = [
    (AttributeError, r"no attribute 'count'; group the stream first: group_by_key\(\)\.count\(…\)", lambda p: p.stream.count()),
    (AttributeError, r"'reduce'; group the stream first: group_by_key\(\)\.reduce\(…\)", lambda p: p.stream.reduce(join)),
    (AttributeError, r"group_by_key\(\)\.windowed_by\(…\)", lambda p: p.stream.windowed_by(TUMBLING)),
    (AttributeError, "only a table can be suppressed: aggregate the stream first", lambda p: p.stream.suppress(None)),
    (AttributeError, "'to_stream'; it is a stream already", lambda p: p.stream.to_stream()),
    (AttributeError, r"'to'; make a stream of its changes first: to_stream\(\)\.to\(…\)", lambda p: p.table.to("out")),
    (AttributeError, r"to_stream\(\)\.foreach\(…\)", lambda p: p.table.foreach(print)),
    (AttributeError, r"to_stream\(\)\.process\(…\)", lambda p: p.table.process(object)),
    (AttributeError, r"to_stream\(\)\.repartition\(…\)", lambda p: p.table.repartition()),
    (AttributeError, r"group the table first: group_by\(…\)\.count\(…\)", lambda p: p.table.count()),
    (AttributeError, r"group_by\(lambda key, value: \(key, value\)\)", lambda p: p.table.group_by_key()),
    (AttributeError, r"only streams have windows: to_stream\(\)", lambda p: p.table.windowed_by(TUMBLING)),
    (AttributeError, r"only streams have windows: to_stream\(\)", lambda p: p.by_letter.windowed_by(TUMBLING)),
    (AttributeError, r"aggregate it first: count\(\), reduce\(…\) or aggregate\(…\)", lambda p: p.grouped.to("out")),
    (AttributeError, "streams can look it up, and nothing else: stream.join", lambda p: p.everywhere.to_stream()),
    (TopologyError, "the pattern must be one of text", lambda p: p.builder.stream(re.compile(b"a.*"))),
    (TopologyError, "size of a window must be less than 2⁶³ ms", lambda p: TimeWindows.of_size_with_no_grace(10**30)),
    (TopologyError, "number_of_partitions must be an int of at least 1", lambda p: Repartitioned.number_of_partitions(-1)),
    (TopologyError, "the timestamp must be whole milliseconds since the epoch, not 'now'",
     lambda p: p.driver().create_input_topic("in").pipe_input("k", "v", "now")),
    (TopologyError, "config must be a StreamsConfig, not None; make one with StreamsConfig.of", lambda p: Topology().build(None)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "mistake"), MISTAKES, ids=[message for _, message, _ in MISTAKES])
def test_a_mistake_is_reported_where_it_is_made(error, message, mistake):
    """With the file and line of the call."""
    check(error, message, mistake)


def test_number_of_partitions_is_an_option_by_itself():
    """As in Java: `Repartitioned.number_of_partitions(3)`."""
    topology = StreamsBuilder()
    topology.stream("in").repartition(Repartitioned.number_of_partitions(3)).to("out")
    assert Repartitioned.number_of_partitions(3) == Repartitioned().with_number_of_partitions(3)
    assert Repartitioned.number_of_partitions(3).partitions == 3


RESULTS = [
    ("a pair of key and value", lambda stream: stream.map(lambda key, value: value)),
    ("a pair of key and value", lambda stream: stream.map(lambda key, value: (key, value, value))),
    ("a pair of key and value", lambda stream: stream.map(lambda key, value: None)),
    ("pairs of key and value, such as a list of them", lambda stream: stream.flat_map(lambda key, value: (key, value))),
    ("pairs of key and value, such as a list of them", lambda stream: stream.flat_map(lambda key, value: None)),
    ("several values, such as a list; [] for none", lambda stream: stream.flat_map_values(lambda value: None)),
    (
        "several values, such as a list; [] for none",
        lambda stream: stream.flat_map_values_with_key(lambda key, value: 5),
    ),
]


@pytest.mark.parametrize(("wanted", "add"), RESULTS)
def test_results_of_the_wrong_kind(wanted, add):
    """The error says what the function must return, not only how Python failed to unpack it."""
    parts = Parts()
    add(parts.stream).to("out")
    with TopologyTestDriver(parts.builder.build(SETTINGS), SETTINGS) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(FailedProcessingError, match=re.escape(f"TypeError: the function must return {wanted} (")):
            topic.pipe_input("k", "words")


def test_errors_of_the_function_itself_stay():
    """An error that the user's function raises is reported as it is, even if it is of the same kind."""

    def mapper(key, _value):
        first, second = key
        return first, second

    parts = Parts()
    parts.stream.map(mapper).to("out")
    with TopologyTestDriver(parts.builder.build(SETTINGS), SETTINGS) as driver:
        topic = driver.create_input_topic("in")
        with pytest.raises(FailedProcessingError, match="ValueError: not enough values to unpack"):
            topic.pipe_input("k", "words")
