"""Global stores on a real broker: full before the first record, kept up to date, and reopened from disk."""

from __future__ import annotations

import secrets

import pytest
from confluent_kafka import Producer
from tests.runtime.support import TEXT, produce, read_all, running, settings, wait_until

from millrace.errors import MissingSourceTopicError
from millrace.processor.api import Processor
from millrace.records import Record
from millrace.runtime import KafkaStreams
from millrace.state import Stores
from millrace.topology import Topology

pytestmark = pytest.mark.broker


class Fill(Processor):
    """Puts each record into the global store."""

    def process(self, record):
        """Put the record."""
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
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
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
