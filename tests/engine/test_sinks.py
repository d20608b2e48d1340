"""Sinks choose the topic and partition, serialise, and say exactly what they cannot write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.engine.support import Echo, Harness

from millrace.errors import FailedProcessingError, InvalidTimestampError
from millrace.processor.api import Processor
from millrace.processor.handlers import DeadLetterRecord, HandlerResponse
from millrace.records import Headers, Record, Window, Windowed
from millrace.serdes import Serdes, TimeWindowedSerde
from millrace.topology import Topology

WINDOWED = [
    vector
    for line in (Path(__file__).parent / "data" / "partitioner.jsonl").read_text().splitlines()
    if (vector := json.loads(line))["kind"] == "windowed"
]


def send(tmp_path, record, *, partitions=1, **sink):
    """Forward a record to a sink and return what was sent."""
    settings = sink.pop("settings", {})

    class Emit(Processor):
        def process(self, _record):
            self.context.forward(record)

    topology = Topology().add_source("src", "in").add_processor("p", Emit, "src")
    topology.add_sink("snk", sink.pop("topic", "out"), "p", **sink)
    harness = Harness(topology, tmp_path, **settings)
    harness.collector.partition_count = lambda _topic: partitions
    task = harness.run()
    harness.add("in", ("k", "v", 1))
    try:
        task.process(0, 1)
    finally:
        sent = harness.collector.take()
        harness.dropped = task.counters.dropped_records
        task.close_dirty()
    return sent, harness


def test_default_partition_is_left_to_the_collector(tmp_path):
    """For a plain key the sink does not choose a partition: the collector applies Java's default."""
    ((topic, key, value, timestamp, headers, partition),), _ = send(
        tmp_path, Record("k", "v", 5, Headers([("h", b"1")])), partitions=9
    )
    assert (topic, key, value, timestamp, headers, partition) == ("out", b"k", b"v", 5, (("h", b"1"),), None)


@pytest.mark.parametrize("vector", WINDOWED[:60], ids=lambda vector: vector["key"])
def test_windowed_key_goes_by_its_inner_key(tmp_path, vector):
    """A windowed key goes to the partition that Java's windowed partitioner chooses."""
    serde = TimeWindowedSerde(Serdes.string(), vector["end"] - vector["start"])
    key = Windowed(vector["key"], Window(vector["start"], vector["end"]))
    sent, _ = send(tmp_path, Record(key, "v", 1), partitions=vector["numPartitions"], key_serde=serde)
    assert [sent[0].partition] == json.loads(vector["partitions"])


class Forwarding:
    """A serde around another one, whose methods and attributes it forwards."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.mark.parametrize("topic", ["out", lambda *_record: "out"], ids=["fixed topic", "topic by record"])
def test_windowed_key_behind_a_proxy_goes_by_its_inner_key(tmp_path, topic):
    """The windowed serde may be behind a proxy that forwards its methods; on no Python does the window affect the partition."""
    vector = WINDOWED[0]
    serde = Forwarding(TimeWindowedSerde(Serdes.string(), vector["end"] - vector["start"]))
    key = Windowed(vector["key"], Window(vector["start"], vector["end"]))
    sent, _ = send(tmp_path, Record(key, "v", 1), partitions=vector["numPartitions"], key_serde=serde, topic=topic)
    assert [sent[0].partition] == json.loads(vector["partitions"])


def test_null_windowed_key_has_no_partition(tmp_path):
    """For a null key the sink does not choose a partition."""
    sent, _ = send(tmp_path, Record(None, "v", 1), key_serde=TimeWindowedSerde(Serdes.string(), 10))
    assert sent[0].partition is None


@pytest.mark.parametrize(
    ("answer", "expected"), [(2, [2]), (None, [None]), ([3, 1, 1], [1, 3]), ((), []), ({0}, [0])], ids=repr
)
def test_partitioner_may_name_one_several_or_no_partition(tmp_path, answer, expected):
    """An int is one partition, a collection multicasts, an empty one drops the record, and None means the default."""
    sent, harness = send(tmp_path, Record("k", "v", 1), partitions=4, partitioner=lambda *_args: answer)
    assert [record.partition for record in sent] == expected
    assert harness.dropped == (0 if expected else 1)


def test_partitioner_is_given_topic_key_value_and_count(tmp_path):
    """The partitioner gets objects, not bytes, and the number of partitions."""
    seen = []
    send(tmp_path, Record("k", "v", 1), partitions=4, partitioner=lambda *args: seen.append(args))
    assert seen == [("out", "k", "v", 4)]


def test_partition_out_of_range_fails(tmp_path):
    """A partition that does not exist is an error that names the topic and the partition count."""
    with pytest.raises(FailedProcessingError, match="partition 4 of out, which has 4"):
        send(tmp_path, Record("k", "v", 1), partitions=4, partitioner=lambda *_args: 4)


def test_topic_extractor_sees_the_forwarded_record(tmp_path):
    """The extractor's context has the record's timestamp and headers, and the input's position."""
    seen = []

    def extract(key, value, context):
        seen.append((key, value, context.timestamp, context.headers, context.topic, context.offset))
        return f"out-{value}"

    sent, _ = send(tmp_path, Record("k", "v", 9, Headers([("h", None)])), topic=extract)
    assert sent[0].topic == "out-v"
    assert seen == [("k", "v", 9, (("h", None),), "in", 0)]


def test_unserialisable_value_names_everything(tmp_path):
    """The error names the sink, topic, serde, type and position, and says what to do."""
    with pytest.raises(FailedProcessingError) as caught:
        send(tmp_path, Record("k", 12, 1))
    message = str(caught.value)
    for part in (
        "sink snk",
        "value 12 of type int",
        "topic out",
        "StringSerde",
        "offset 0 of in-0",
        "default.value.serde",
    ):
        assert part in message


def test_unserialisable_key_is_distinguished_from_the_value(tmp_path):
    """If the key cannot be serialised, the error says so."""
    with pytest.raises(FailedProcessingError, match="the key 3 of type int"):
        send(tmp_path, Record(3, "v", 1))


def test_production_handler_may_skip_and_send_a_dead_letter(tmp_path):
    """RESUME drops the record and counts it, and its dead letter is sent."""

    class Handler:
        def handle_error(self, context, record, exception):
            raise AssertionError

        def handle_serialization_error(self, context, topic, record, exception):
            assert (topic, record.value, context.node) == ("out", 12, "snk")
            return HandlerResponse.resume([DeadLetterRecord("dlq", context.raw_key, context.raw_value, 1)])

    sent, harness = send(tmp_path, Record("k", 12, 1), settings={"production.exception.handler": Handler()})
    assert [(record.topic, record.key, record.value) for record in sent] == [("dlq", b"k", b"v")]
    assert harness.dropped == 1


def test_negative_timestamp_cannot_be_sent(tmp_path):
    """The error blames the processor that forwarded the record."""
    with pytest.raises(
        FailedProcessingError, match=r"node p failed.*node p forwards must be whole milliseconds, an int from 0"
    ) as caught:
        send(tmp_path, Record("k", "v", -1))
    assert isinstance(caught.value.__cause__, InvalidTimestampError)


def test_echo_of_null_key_and_tombstone(tmp_path):
    """Null keys and null values pass through sinks without calling their serdes."""
    topology = Topology().add_source("src", "in").add_processor("p", Echo, "src").add_sink("snk", "out", "p")
    harness = Harness(topology, tmp_path)
    task = harness.run()
    harness.add("in", (None, None, 0))
    task.process(0, 1)
    sent = harness.collector.take()
    assert (sent[0].key, sent[0].value) == (None, None)
