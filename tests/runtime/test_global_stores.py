"""Global stores on a real broker: full before the first record, kept up to date, and reopened from disk."""

from __future__ import annotations

import secrets

import pytest
from confluent_kafka import Producer
from tests.runtime.support import TEXT, produce, read_all, running, settings, wait_until

from millrace.errors import FailedProcessingError, MissingSourceTopicError
from millrace.processor.api import Processor
from millrace.records import Record
from millrace.runtime import KafkaStreams, State
from millrace.state import Stores
from millrace.topology import Topology

pytestmark = pytest.mark.broker
CONTINUE = {"processing.exception.handler": "LogAndContinueProcessingExceptionHandler"}


class Fill(Processor):
    """Puts each record into the global store."""

    def process(self, record):
        """Put the record."""
        if record.value == "bad":
            raise ValueError("no good name")
        self.context.get_state_store("names").put(record.key, record.value)


class Look(Processor):
    """Replaces each value by what the global store has for it."""

    def process(self, record):
        """Look the value up."""
        name = self.context.get_state_store("names").get(record.value)
        self.context.forward(Record(record.value, name or "unknown", record.timestamp))


def lookup(names, source, sink):
    """Return a topology that looks values up in a global store."""
    builder = Stores.key_value_store_builder(Stores.persistent_key_value_store("names"), TEXT, TEXT)
    return (
        Topology()
        .add_global_store(
            builder.with_logging_disabled(), "names-source", names, "fill", Fill, key_serde=TEXT, value_serde=TEXT
        )
        .add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("look", Look, "in")
        .add_sink("out", sink, "look", key_serde=TEXT, value_serde=TEXT)
    )


def put(kafka, topic, pairs, partitions=3):
    """Write pairs, spread over the partitions."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for number, (key, value) in enumerate(pairs.items()):
        producer.produce(topic, value.encode(), key.encode(), number % partitions)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_lookups_find_what_was_there_and_what_comes(kafka, topic_factory, tmp_path, guarantee):
    """The store is complete before input is read, follows its topic, and survives a restart."""
    names, source, sink = topic_factory("names", partitions=3), topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path, processing_guarantee=guarantee)
    put(kafka, names, {f"k{n}": f"v{n}" for n in range(300)})
    produce(kafka, source, [f"k{n}" for n in range(300)])

    def found():
        return {key.decode(): value.decode() for key, value, _ in read_all(kafka, sink)}

    with running(lookup(names, source, sink), config):
        wait_until(lambda: len(read_all(kafka, sink)) == 300, "all looked up")
        assert found() == {f"k{n}": f"v{n}" for n in range(300)}
        put(kafka, names, {"late": "here"})

        def late():
            produce(kafka, source, ["late"])
            return found().get("late") == "here"

        wait_until(late, "the late name")
    with running(lookup(names, source, sink), config):
        produce(kafka, source, ["k7", "missing"])
        wait_until(lambda: found().get("missing") == "unknown", "looked up after the restart")
        assert found()["k7"] == "v7"


def test_missing_topic_of_a_global_store_is_named(kafka, topic_factory, tmp_path):
    """Starting without the topic of a global store fails with its name."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path)
    with pytest.raises(MissingSourceTopicError, match="no-names"):
        KafkaStreams(lookup("no-names", source, sink), config).start()


@pytest.mark.parametrize("when", ["before the start", "while running"])
def test_failing_global_processor_ends_the_instance(kafka, topic_factory, tmp_path, when):
    """Without processing.exception.handler.global.enabled the processing handler is not asked: the client ends in ERROR."""
    names, source, sink = topic_factory("names"), topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path) | CONTINUE
    streams = KafkaStreams(lookup(names, source, sink), config)
    if when == "before the start":
        put(kafka, names, {"a": "bad"}, partitions=1)
        with pytest.raises(FailedProcessingError, match="no good name"):
            streams.start()
        return
    streams.start()
    wait_until(lambda: streams.state is State.RUNNING, "RUNNING")
    put(kafka, names, {"a": "bad"}, partitions=1)
    assert streams.wait(60)
    assert streams.state is State.ERROR
    assert isinstance(streams.error, FailedProcessingError)
    assert "fill failed on the record at offset 0" in str(streams.error)
    assert "processing.exception.handler.global.enabled=true" in str(streams.error)


def test_processing_handler_may_skip_records_of_global_stores(kafka, topic_factory, tmp_path):
    """With processing.exception.handler.global.enabled what the handler lets go is skipped, and the store goes on."""
    names, source, sink = topic_factory("names"), topic_factory("in"), topic_factory("out")
    config = settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path) | CONTINUE
    config |= {"processing.exception.handler.global.enabled": True}
    put(kafka, names, {"a": "bad", "b": "good"}, partitions=1)
    with running(lookup(names, source, sink), config):
        produce(kafka, source, ["a", "b"])
        wait_until(lambda: len(read_all(kafka, sink)) == 2, "both looked up")
    assert {key: value for key, value, _ in read_all(kafka, sink)} == {b"a": b"unknown", b"b": b"good"}
