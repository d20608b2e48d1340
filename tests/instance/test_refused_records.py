"""Records that the broker refuses, alone or with their batch."""

from __future__ import annotations

import contextlib
import itertools
import time

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from tests.committed_offsets import committed_offset
from tests.instance.support import TEXT, produce, read_all, running, settings
from tests.waiting import PATIENCE_S, wait_until

from millrace.errors import ProductionError
from millrace.instance import KafkaStreams, State
from millrace.processor.api import Processor
from millrace.processor.handlers import DeadLetterRecord, HandlerResponse
from millrace.topology import Topology

pytestmark = pytest.mark.broker
BOTH = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
"""A refused record costs an abort and a new producer, which a busy machine does not do quickly."""


class Handler:
    """Always gives the same response with a dead letter, and keeps the records it was asked about."""

    def __init__(self, answer, dead):
        self.answer = answer
        self.dead = dead
        self.seen = []
        self.contexts = []

    def handle_error(self, context, record, exception):
        """Return the response."""
        self.seen.append((record, exception))
        self.contexts.append(context)
        return self.answer([DeadLetterRecord(self.dead, record.key, b"dead", 1)])

    def handle_serialization_error(self, context, topic, record, exception):
        """Answer FAIL."""
        return HandlerResponse.fail()


class Copy(Processor):
    """Copies records."""

    def process(self, record):
        """Copy."""
        self.context.forward(record)


class Dawdle(Processor):
    """Copies records; after a large one it waits, so that the broker refuses it before the next."""

    def process(self, record):
        """Copy."""
        self.context.forward(record)
        if len(record.value) > 1000:
            time.sleep(0.5)
            self.context.forward(record.with_value("behind"))


def copying(source, sink, processor=Copy):
    """Return a topology that copies records."""
    return (
        Topology()
        .add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("copy", processor, "in")
        .add_sink("out", sink, "copy", key_serde=TEXT, value_serde=TEXT)
    )


def values(kafka, topic):
    """Return the committed values of a topic."""
    return [value.decode() for _, value, _ in read_all(kafka, topic)]


@BOTH
@pytest.mark.parametrize("processor", [Copy, Dawdle])
def test_handler_that_fails_ends_the_thread(kafka, topic_factory, app, tmp_path, caplog, guarantee, processor):
    """FAIL ends the instance with the broker's error after at most one abort, whenever the refusal becomes known."""
    source, sink, dead = (
        topic_factory("in"),
        topic_factory("out", config={"max.message.bytes": "500"}),
        topic_factory("d"),
    )
    handler = Handler(HandlerResponse.fail, dead)
    produce(kafka, source, ["small", "x" * 5000, "after"])
    streams = KafkaStreams(
        copying(source, sink, processor),
        settings(kafka, app, tmp_path, processing_guarantee=guarantee) | {"production.exception.handler": handler},
    )
    streams.start()
    with pytest.raises(ProductionError, match=r"max\.message\.bytes"):
        streams.wait(PATIENCE_S)
    assert [len(record.value) for record, _ in handler.seen] == [5000]
    assert isinstance(handler.seen[0][1], ProductionError)
    aborts = [item for item in caplog.records if item.getMessage().endswith("are processed again")]
    assert len(aborts) <= 1
    assert (committed_offset(kafka, app, source) or 0) < 2
    streams.close()


@BOTH
@pytest.mark.parametrize("processor", [Copy, Dawdle])
def test_record_that_is_let_go_is_left_out(kafka, topic_factory, app, tmp_path, guarantee, processor):
    """RESUME skips only the refused record, counts it, and writes its dead letter instead, in a transaction that commits."""
    kept = {"retention.ms": "-1"}  # the records are old enough to be deleted
    source, sink, dead = (
        topic_factory("in", config=kept),
        topic_factory("out", config={"max.message.bytes": "500", **kept}),
        topic_factory("d", config=kept),
    )
    handler = Handler(HandlerResponse.resume, dead)
    lines = ["before", "x" * 5000, *map(str, range(50)), "y" * 5000, "after"]
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number, line in enumerate(lines):
        producer.produce(source, line, None, 0, timestamp=1000 + number, headers=[("n", b"%d" % number)])
    assert producer.flush(PATIENCE_S) == 0
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee) | {"production.exception.handler": handler}
    with running(copying(source, sink, processor), config) as streams:
        wait_until(lambda: committed_offset(kafka, app, source) == len(lines), "everything is committed")
        assert streams.state is State.RUNNING
        (dropped,) = streams.status().dropped
    assert (dropped.node, dropped.reason) == ("out", "refused")
    assert dropped.records == 2 or guarantee == "at_least_once"  # may be sent, and refused, again
    good = [line for line in lines if len(line) < 100] + ["behind"] * (2 if processor is Dawdle else 0)
    if guarantee == "exactly_once_v2":
        assert sorted(values(kafka, sink)) == sorted(good)
        assert values(kafka, dead) == ["dead", "dead"]
        assert [(record.value[:1], record.timestamp, record.headers) for record, _ in handler.seen] == [
            (b"x", 1001, (("n", b"1"),)),
            (b"y", 1052, (("n", b"52"),)),
        ]
    assert set(values(kafka, sink)) == set(good)
    assert set(values(kafka, dead)) == {"dead"}


@BOTH
def test_batch_that_is_too_large_is_not_a_refused_record(kafka, topic_factory, app, tmp_path, guarantee):
    """If a topic only accepts smaller batches than the producer's, batches are made smaller, and no record is refused."""
    source, sink, dead = (
        topic_factory("in"),
        topic_factory("out", config={"max.message.bytes": "500"}),
        topic_factory("d"),
    )
    handler = Handler(HandlerResponse.fail, dead)
    lines = [f"{number} {'x' * 50}" for number in range(200)]
    produce(kafka, source, lines)
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee) | {"production.exception.handler": handler}
    with running(copying(source, sink), config):
        wait_until(lambda: committed_offset(kafka, app, source) == len(lines), "everything is committed")
    assert handler.seen == []
    written = values(kafka, sink)
    assert (written if guarantee == "exactly_once_v2" else sorted(set(written), key=lines.index)) == lines


@BOTH
def test_others_in_a_refused_batch_are_written(kafka, topic_factory, app, tmp_path, guarantee):
    """The handler is asked about the record that the broker refuses (here for its missing key), not about its neighbours."""
    source, dead = topic_factory("in"), topic_factory("d")
    sink = topic_factory("out", config={"cleanup.policy": "compact"})
    handler = Handler(HandlerResponse.resume, dead)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(20):
        producer.produce(source, str(number), None if number == 7 else f"k{number}", 0)
    assert producer.flush(PATIENCE_S) == 0
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee) | {"production.exception.handler": handler}
    with running(copying(source, sink), config):
        wait_until(lambda: committed_offset(kafka, app, source) == 20, "everything is committed")
    assert [(record.key, record.value) for record, _ in handler.seen] == [(None, b"7")]
    assert set(values(kafka, sink)) == {str(number) for number in range(20) if number != 7}
    assert values(kafka, dead) == ["dead"]


class Different(Processor):
    """Returns a different result each time."""

    times = itertools.count()

    def process(self, record):
        """Forward."""
        self.context.forward(record.with_value(f"{next(self.times)}{record.value}"))


def test_refused_output_that_is_never_the_same_ends_the_thread(kafka, topic_factory, app, tmp_path):
    """Under exactly-once, a refused record that cannot be recognised ends the instance instead of being retried forever."""
    source, sink, dead = (
        topic_factory("in"),
        topic_factory("out", config={"max.message.bytes": "500"}),
        topic_factory("d"),
    )
    handler = Handler(HandlerResponse.resume, dead)
    produce(kafka, source, ["x" * 5000])
    config = settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2")
    streams = KafkaStreams(copying(source, sink, Different), config | {"production.exception.handler": handler})
    streams.start()
    with pytest.raises(ProductionError, match="cannot be left out"):
        streams.wait(PATIENCE_S)
    assert not committed_offset(kafka, app, source)
    streams.close()


@BOTH
@pytest.mark.parametrize("code", [KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.UNKNOWN_PRODUCER_ID])
def test_record_left_behind_by_a_failed_producer_is_not_a_refused_record(
    kafka, topic_factory, app, tmp_path, guarantee, code
):
    """The broker no longer knows the producer: its records are processed again, and no handler may skip them."""
    source, sink, dead = topic_factory("in"), topic_factory("out"), topic_factory("d")
    handler = Handler(HandlerResponse.resume, dead)
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee) | {"production.exception.handler": handler}
    with running(copying(source, sink), config) as streams:
        producer = streams.threads[0].resources.producer
        poll, on_failure, reported = producer.poll, producer.on_failure, []
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"})
        try:
            consumer.assign([ClientTopicPartition(source, 0, 0)])
            produce(kafka, source, ["a"])
            message = wait_until(lambda: consumer.poll(0.1), "a record to report")
        finally:
            consumer.close()

        def report(*args):
            producer.poll = poll
            reported.append(code)
            on_failure(KafkaError(code), message)
            return poll(*args)

        producer.poll = report
        wait_until(lambda: reported, "the report")
        produce(kafka, source, ["b"])
        wait_until(lambda: committed_offset(kafka, app, source) == 2, "both are committed")
        assert streams.state is State.RUNNING
    assert handler.seen == []
    assert set(values(kafka, sink)) == {"a", "b"}


class Swallow(Processor):
    """Copies records and ignores exceptions; after a large record the producer's buffer is full for a moment."""

    def __init__(self, resources):
        self.resources = resources

    def process(self, record):
        """Copy."""
        self.context.forward(record)
        if len(record.value) > 1000:
            collector = self.resources().collector
            while not collector._reports:
                collector._producer.poll(0.05)
            client = collector._producer.client
            produce = client.produce

            def full(*_args):
                client.produce = produce
                raise BufferError

            client.produce = full
            with contextlib.suppress(Exception):
                self.context.forward(record.with_value("behind"))


@BOTH
def test_failure_that_user_code_swallows_is_raised_again(kafka, topic_factory, tmp_path, app, guarantee):
    """The report arrives while the processor forwards another record; the input is still not committed."""
    source, sink = topic_factory("in"), topic_factory("out", config={"max.message.bytes": "30000"})
    topology = copying(source, sink, lambda: Swallow(lambda: streams.threads[0].resources))
    streams = KafkaStreams(topology, settings(kafka, app, tmp_path, processing_guarantee=guarantee))
    streams.start()
    try:
        produce(kafka, source, ["x" * 60_000])
        with pytest.raises(ProductionError):
            streams.wait(PATIENCE_S)
        assert committed_offset(kafka, app, source) is None
    finally:
        streams.close(60)


@BOTH
@pytest.mark.parametrize("answer", ["fail", "resume"])
def test_timestamp_in_the_future_is_a_refused_record(kafka, topic_factory, app, tmp_path, guarantee, answer):
    """A record with a later timestamp than its topic takes is refused alone; FAIL names the record, its input and the setting."""
    source = topic_factory("in", config={"message.timestamp.after.max.ms": str(2**62)})
    sink, dead = topic_factory("out"), topic_factory("d")
    handler = Handler(getattr(HandlerResponse, answer), dead)
    late = int(time.time() * 1000) + 7_200_000
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(20):
        producer.produce(source, str(number), b"k", 0, timestamp=late if number == 7 else late - 7_200_000)
    assert producer.flush(PATIENCE_S) == 0
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee) | {"production.exception.handler": handler}
    streams = KafkaStreams(copying(source, sink), config)
    streams.start()
    try:
        if answer == "fail":
            with pytest.raises(ProductionError) as failure:
                streams.wait(PATIENCE_S)
            assert str(late) in str(failure.value)
            assert "message.timestamp.after.max.ms" in str(failure.value)
            assert f"made from the record at offset 7 of {source}-0" in str(failure.value)
        else:
            wait_until(lambda: committed_offset(kafka, app, source) == 20 or streams.error, "everything is committed")
            assert set(values(kafka, sink)) == {str(number) for number in range(20) if number != 7}
            assert set(values(kafka, dead)) == {"dead"}
        assert [(record.timestamp, record.value) for record, _ in handler.seen] == [(late, b"7")]
        [context] = handler.contexts
        assert (context.topic, context.partition, context.offset, context.timestamp) == (source, 0, 7, late)
        assert (context.raw_key, context.raw_value) == (b"k", b"7"), "what a dead letter is made of"
    finally:
        streams.close(60)
