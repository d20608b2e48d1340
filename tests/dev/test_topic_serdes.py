"""Keys and values as JSON, and which serdes a topology declares for a topic."""

from __future__ import annotations

import json
import uuid
from datetime import date

import pytest
from pydantic import BaseModel

from millrace import Consumed, Grouped, Materialized, Produced, Serdes, SessionWindows, StreamsBuilder, TimeWindows
from millrace.config import StreamsConfig
from millrace.dev.topic_records import parse
from millrace.dev.topic_serdes import TopicSerdes, declared_serdes, decode, encode
from millrace.errors import SerializationError
from millrace.records import NO_HEADERS
from millrace.serdes.base import Serde


class Order(BaseModel):
    """A model with a value that JSON does not have."""

    id: int
    due: date


@pytest.mark.parametrize(
    ("serde", "value", "data"),
    [
        (Serdes.string(), "tränen", "tränen".encode()),
        (Serdes.long(), 7, (7).to_bytes(8, "big")),
        (Serdes.integer(), -1, b"\xff" * 4),
        (Serdes.double(), 1.5, bytes.fromhex("3ff8000000000000")),
        (Serdes.double(), "NaN", bytes.fromhex("7ff8000000000000")),
        (Serdes.boolean(), True, b"\x01"),
        (Serdes.uuid(), str(uuid.UUID(int=1)), str(uuid.UUID(int=1)).encode()),
        (Serdes.bytes(), "text", b"text"),
        (Serdes.byte_array(), {"$bytes": "/w=="}, b"\xff"),
        (Serdes.byte_buffer(), "text", b"text"),
        (Serdes.json(), {"a": [1, None]}, b'{"a":[1,null]}'),
        (Serdes.pydantic(Order), {"id": 1, "due": "2026-01-31"}, b'{"id":1,"due":"2026-01-31"}'),
        (Serdes.list(Serdes.uuid()), [str(uuid.UUID(int=2))], None),
        (
            Serdes.time_windowed(Serdes.string(), 10),
            {"key": "a", "window": {"start": 20, "end": 30}},
            b"a" + (20).to_bytes(8, "big"),
        ),
        (Serdes.session_windowed(Serdes.long()), {"key": 1, "window": {"start": 2, "end": 3}}, None),
    ],
)  # fmt: skip
def test_values_have_a_json_form_that_can_be_written_again(serde, value, data):
    """What is shown of a value gives the same bytes when it is written; those are the bytes of the serde."""
    encoded = encode(serde, "t", value, NO_HEADERS)
    if data is not None:
        assert encoded == data
    shown, error = decode(serde, "t", encoded, NO_HEADERS)
    assert (shown, error) == (value, None)
    assert json.loads(json.dumps(shown, allow_nan=False)) == value


def test_bytes_that_do_not_fit_the_serde_are_shown_with_the_error():
    """Whoever looks for a bad record sees its bytes; even text that is not UTF-8 is not replaced silently."""
    shown, error = decode(Serdes.long(), "t", b"abc", NO_HEADERS)
    assert shown == "abc"
    assert error is not None
    assert "expects exactly 8 bytes, but got 3 bytes" in error
    assert decode(Serdes.string(), "t", b"\xff", NO_HEADERS) == (
        {"$bytes": "/w=="},
        "StringSerde() expects UTF-8 text, but got 1 other bytes",
    )
    shown, error = decode(Serdes.pydantic(Order), "t", b'{"id":"x"}', NO_HEADERS)
    assert shown == '{"id":"x"}'
    assert error is not None


def test_error_of_the_users_own_serde_is_shown():
    """A serde that fails in its own way does not end the command."""

    class Failing(Serde[object]):
        def deserialize(self, topic, data, headers=NO_HEADERS):
            raise KeyError("schema")

        def serialize(self, topic, data, headers=NO_HEADERS):
            raise KeyError("schema")

    assert decode(Failing(), "t", b"x", NO_HEADERS) == ("x", "'schema'")
    with pytest.raises(SerializationError, match=r"cannot write 'x': KeyError\('schema'\)"):
        encode(Failing(), "t", "x", NO_HEADERS)


def test_any_bytes_can_be_written():
    """`$bytes` is not encoded by the serde, so that a record which the topology cannot read can be tried out."""
    assert encode(Serdes.long(), "t", {"$bytes": "YWJj"}, NO_HEADERS) == b"abc"
    with pytest.raises(SerializationError, match="is not base64"):
        encode(Serdes.long(), "t", {"$bytes": "?"}, NO_HEADERS)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hello", "not JSON"),
        ('"hello"', "not a JSON object"),
        ('{"vlaue": 1}', "there is no field 'vlaue': use key, value, headers, timestamp, partition"),
        ('{"value": "x"}', "value: LongSerde"),
        ('{"key": 5}', r"key: StringSerde\(\) writes str, but was given int"),
        ('{"timestamp": "now"}', "timestamp: 'now' is not a whole number from 0"),
        ('{"partition": true}', "partition: True is not"),
        ('{"headers": [1]}', "headers: write"),
        ('{"headers": {"a": 1}}', "headers: names and values are text"),
    ],
)
def test_wrong_line_is_refused(line, expected):
    """The error names the field and what it needs."""
    with pytest.raises(SerializationError, match=expected):
        parse(line, "t", TopicSerdes(Serdes.string(), Serdes.long()), 1)


def test_line_without_a_serde_needs_one_only_for_what_it_has():
    """Nulls need no serde; a value does, and the error says how to give one."""
    record = parse('{"headers": {"a": "b", "c": null}, "timestamp": 5}', "t", TopicSerdes(), 1)
    assert (record.key, record.value, record.timestamp, record.partition) == (None, None, 5, None)
    assert record.headers == (("a", b"b"), ("c", None))
    with pytest.raises(SerializationError, match="value: nothing declares the serde of topic t: give --key-serde"):
        parse('{"value": 1}', "t", TopicSerdes(), 1)


def serdes_of(topic, topology, **settings):
    """Return the descriptions of a topic's serdes in an application."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    config = StreamsConfig.of({"application.id": "app", **given})
    found = declared_serdes(topology.build(config), config, topic)
    return repr(found.key), repr(found.value)


def test_serdes_are_those_of_sources_sinks_and_stores():
    """Those of inputs and outputs are declared; the changelog of a store has the store's, and of windows their keys."""
    text, number = Serdes.string(), Serdes.long()
    builder = StreamsBuilder()
    orders = builder.stream("orders", Consumed.with_(text, Serdes.json()))
    groups = orders.group_by(lambda _, order: order["by"], Grouped.with_(text, Serdes.json()).with_name("by"))
    groups.count(Materialized.as_("counts")).to_stream().to("totals", Produced.with_(text, number))
    groups.windowed_by(TimeWindows.of_size_with_no_grace(60_000)).count(Materialized.as_("minutes"))
    groups.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(60_000)).count(Materialized.as_("visits"))
    topology = builder.build()
    assert serdes_of("orders", topology) == ("StringSerde()", "JsonSerde()")
    assert serdes_of("totals", topology) == ("StringSerde()", "LongSerde()")
    assert serdes_of("app-by-repartition", topology) == ("StringSerde()", "JsonSerde()")
    assert serdes_of("app-counts-changelog", topology) == ("StringSerde()", "LongSerde()")
    assert serdes_of("app-minutes-changelog", topology) == ("TimeWindowedSerde(StringSerde(), 60000)", "LongSerde()")
    assert serdes_of("app-visits-changelog", topology) == ("SessionWindowedSerde(StringSerde())", "LongSerde()")
    assert serdes_of("elsewhere", topology) == ("None", "None")


def test_default_serdes_stand_in():
    """What a source does not declare is read with the defaults of the settings."""
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    settings = {"default_key_serde": "string", "default_value_serde": "long"}
    assert serdes_of("in", builder.build(), **settings) == ("StringSerde()", "LongSerde()")
    assert serdes_of("out", builder.build(), **settings) == ("StringSerde()", "LongSerde()")
