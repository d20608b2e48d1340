"""Input topics give records their timestamps; output topics return what was sent."""

from __future__ import annotations

from collections import deque

import pytest

from millrace.errors import TopologyError
from millrace.records import NO_HEADERS, Headers, Record
from millrace.serdes import Serdes
from millrace.testing import ProducedRecord, TestInputTopic, TestOutputTopic

S = Serdes.string()


@pytest.fixture
def piped():
    """Return what an input topic has piped."""
    return []


def topic(piped, **times):
    """Return an input topic that starts at time 100."""
    return TestInputTopic("in", S, S, lambda *record: piped.append(record), start_ms=100, **times)


def test_timestamps_advance_by_themselves_or_not(piped):
    """Records without a timestamp get the topic's time, which auto_advance_ms moves."""
    topic(piped, auto_advance_ms=10).pipe_values(["a", "b", None])
    topic(piped).pipe_values(["c", "d"])
    assert [record[3] for record in piped] == [100, 110, 120, 100, 100]


def test_given_timestamp_leaves_the_topics_time(piped):
    """A record with its own timestamp does not move the topic's time."""
    source = topic(piped, auto_advance_ms=10)
    source.pipe_input("k", "v", 5)
    source.pipe_input("k", "v")
    source.advance_time(1000)
    source.pipe_input("k", "v")
    assert [record[3] for record in piped] == [5, 100, 1110]


def test_pairs_and_records(piped):
    """A list of pairs may have its own time; records have their own, and headers."""
    source = topic(piped)
    source.pipe_list([("a", "1"), (None, None)], start_ms=7, advance_ms=3)
    source.pipe_records([Record("r", "v", 1, Headers([("h", b"x")]))])
    assert piped == [
        ("in", b"a", b"1", 7, NO_HEADERS),
        ("in", None, None, 10, NO_HEADERS),
        ("in", b"r", b"v", 1, (("h", b"x"),)),
    ]


def test_time_cannot_go_back(piped):
    """Negative steps are refused."""
    with pytest.raises(TopologyError, match="at least 0 ms"):
        topic(piped).advance_time(-1)
    with pytest.raises(TopologyError, match="auto_advance_ms must be at least 0 ms"):
        topic(piped, auto_advance_ms=-1)


def output(*values):
    """Return an output topic with (key, value) records at time 1, 2, …."""
    queue = deque(ProducedRecord("out", k, v, at, NO_HEADERS, None) for at, (k, v) in enumerate(values, 1))
    return TestOutputTopic("out", S, S, queue, lambda: 42)


def test_reading_takes_records_in_order():
    """Each read takes the next record, and the size goes down by one."""
    out = output((b"a", b"1"), (b"b", None), (None, b"3"))
    assert out.queue_size() == 3
    assert out.read_value() == "1"
    assert out.read_key_value() == ("b", None)
    assert out.read_record() == Record(None, "3", 3)
    assert out.is_empty()


def test_reading_nothing_is_an_error():
    """The error for reading an empty topic names the topic."""
    with pytest.raises(LookupError, match="topic out"):
        output().read_value()


def test_everything_at_once():
    """Lists keep order and duplicates; a map keeps the last value of each key."""
    rows = ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    assert output(*rows).read_values_to_list() == ["1", "2", "3"]
    assert output(*rows).read_key_values_to_map() == {"a": "3", "b": "2"}
    assert [record.timestamp for record in output(*rows).read_records_to_list()] == [1, 2, 3]


def test_record_without_timestamp_is_stamped_with_the_wall_clock():
    """Where the producer would use its own time, the driver's clock is used."""
    queue = deque([ProducedRecord("out", None, b"v", None, NO_HEADERS, None)])
    assert TestOutputTopic("out", S, S, queue, lambda: 42).read_record().timestamp == 42


def test_repr_shows_records_and_survives_unreadable_ones():
    """The first records are shown, as bytes if the serde cannot read them."""
    queue = deque([ProducedRecord("out", b"k", b"\xff", 1, NO_HEADERS, None)] * 7)
    text = repr(TestOutputTopic("out", S, Serdes.long(), queue, lambda: 0))
    assert "7 records" in text
    assert "not readable" in text
    assert text.endswith("…")
