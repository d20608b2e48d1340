"""What a user's processor can do in its node: forward, use its context, and (fixed-key processors) keep the key."""

from __future__ import annotations

import pytest

from millrace.errors import (
    ConfigError,
    FailedProcessingError,
    ProductionError,
    StreamsTimeoutError,
    TaskMigratedError,
    TopologyError,
    TransactionAbortedError,
)
from millrace.processor.adapter import NodeFixedKeyProcessorContext, ProcessorFactory
from millrace.processor.api import FixedKeyProcessor, Processor, PunctuationType
from millrace.records import NO_HEADERS, Headers, Record
from millrace.serdes import Serdes
from millrace.testing import TopologyTestDriver
from millrace.topology import Topology

CONFIG = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}


def run(topology, *records, config=CONFIG):
    """Pipe (key, value, timestamp) records and return what was sent to `out` as (key, value, timestamp, headers)."""
    with TopologyTestDriver(topology, config) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        for key, value, timestamp in records:
            topic.pipe_input(key, value, timestamp, Headers([("h", b"1")]))
        sent = driver.create_output_topic("out", Serdes.string(), Serdes.string()).read_records_to_list()
    return [(record.key, record.value, record.timestamp, record.headers) for record in sent]


def one(supplier):
    """Return in → processor → out."""
    return Topology().add_source("src", "in").add_processor("p", supplier, "src").add_sink("snk", "out", "p")


def fixed(supplier):
    """Return in → fixed-key processor → out."""
    topology = Topology().add_source("src", "in")
    topology._builder.add_processor("p", ProcessorFactory(supplier, NodeFixedKeyProcessorContext), ["src"])
    return topology.add_sink("snk", "out", "p")


class Forwarding(Processor):
    """Forwards whatever `make` returns for the record."""

    make = staticmethod(lambda record: record)

    def process(self, record):
        """Forward."""
        self.context.forward(self.make(record))


def test_headers_and_timestamp_travel_with_the_record():
    """Forwarded records keep the record's timestamp and headers unless the processor changes them."""
    assert run(one(Forwarding), ("k", "v", 5)) == [("k", "v", 5, (("h", b"1"),))]


def test_a_new_record_has_no_headers():
    """A record made from scratch has its own timestamp and no headers."""

    class New(Forwarding):
        make = staticmethod(lambda record: Record("n", "w", record.timestamp + 1))

    assert run(one(New), ("k", "v", 5)) == [("n", "w", 6, NO_HEADERS)]


def test_forward_of_something_else_is_explained():
    """Forwarding a tuple fails, with a message that says to forward a Record."""

    class Wrong(Forwarding):
        make = staticmethod(lambda record: (record.key, record.value))

    with pytest.raises(FailedProcessingError, match="Node p forwarded a tuple; forward a Record"):
        run(one(Wrong), ("k", "v", 5))


def test_headers_may_be_plain_pairs():
    """The nodes below get them as headers."""

    class Plain(Forwarding):
        make = staticmethod(lambda record: Record("k", "v", 5, [("a", b"1")]))

    [(*_, headers)] = run(one(Plain), ("k", "v", 5))
    assert headers == (("a", b"1"),)
    assert headers.last("a") == b"1"


def test_name_of_a_header_that_cannot_be_sent_is_refused_where_it_is_forwarded():
    """The record fails in the node that named it, and can be skipped like any other."""

    class Wrong(Forwarding):
        make = staticmethod(lambda record: Record("k", record.value, 5, [("\udce9" * (record.value == "bad"), b"1")]))

    with pytest.raises(FailedProcessingError, match=r"node p failed on the record at offset 0.*name of a header"):
        run(one(Wrong), ("k", "bad", 5))
    skipping = CONFIG | {"processing.exception.handler": "LogAndContinueProcessingExceptionHandler"}
    sent = run(one(Wrong), ("k", "bad", 5), ("k", "good", 5), config=skipping)
    assert sent == [("k", "good", 5, (("", b"1"),))]


def test_unknown_child_is_named_with_those_that_exist():
    """Forwarding to a child that does not exist lists the node's children."""

    class Lost(Processor):
        def process(self, record):
            self.context.forward(record, "nowhere")

    with pytest.raises(FailedProcessingError, match="no child 'nowhere'; its children are snk"):
        run(one(Lost), ("k", "v", 5))


def test_store_logs_with_the_processors_own_record_after_a_forward():
    """A child that forwards with another timestamp does not change what its parent's store logs afterwards."""
    from millrace.state import Stores

    class Later(Forwarding):
        make = staticmethod(lambda record: record.with_timestamp(999))

    class Parent(Processor):
        def process(self, record):
            self.context.forward(record.with_timestamp(500))
            self.context.get_state_store("s").put(record.key, record.value)

    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("s"), Serdes.string(), Serdes.string())
    topology = Topology().add_source("src", "in").add_processor("parent", Parent, "src")
    topology.add_processor("later", Later, "parent").add_state_store(store, "parent")
    with TopologyTestDriver(topology, CONFIG) as driver:
        driver.create_input_topic("in").pipe_input("k", "v", 5)
        assert driver.create_output_topic("app-s-changelog").read_record().timestamp == 5


def test_context_answers_for_its_task():
    """The context knows application, task, directory, default serdes, times, and the record's origin."""
    seen = {}

    class Curious(Processor):
        def process(self, record):
            context = self.context
            seen.update(
                application=context.application_id,
                task=str(context.task_id),
                directory=context.state_dir.name,
                serdes=(repr(context.key_serde), repr(context.value_serde)),
                position=tuple(context.record_metadata),
                times=(context.current_system_time_ms(), context.current_stream_time_ms()),
                config=context.config.application_id,
            )

    run(one(Curious), ("k", "v", 5))
    assert seen == {
        "application": "app",
        "task": "0_0",
        "directory": "0_0",
        "serdes": ("StringSerde()", "StringSerde()"),
        "position": ("in", 0, 0),
        "times": (0, 5),
        "config": "app",
    }


def test_missing_default_serde_is_a_configuration_error():
    """Using a default serde that is not configured names the setting."""

    class Asking(Processor):
        def init(self, context):
            _ = context.value_serde

    topology = Topology().add_source("src", "in", key_serde=Serdes.string(), value_serde=Serdes.string())
    topology.add_processor("p", Asking, "src")
    with pytest.raises(ConfigError, match=r"default\.value\.serde"):
        TopologyTestDriver(topology, {"application.id": "app"})


def test_each_task_gets_a_new_processor_and_closes_it():
    """The supplier is called per task, and close is called when the task ends."""
    made, closed = [], []

    class Kept(Forwarding):
        def __init__(self):
            made.append(self)

        def close(self):
            closed.append(self)

    topology = one(Kept)
    run(topology)
    run(topology)
    assert len(set(map(id, made))) == 2
    assert closed == made


def test_supplier_of_something_else_is_refused():
    """A supplier that does not return a processor is reported at startup."""
    with pytest.raises(TopologyError, match="supplier of node p"):
        TopologyTestDriver(one(lambda: 7), CONFIG)


def test_fixed_key_processor_may_change_value_timestamp_and_headers():
    """A fixed-key processor can forward any number of records with the key it received."""

    class Twice(FixedKeyProcessor):
        def process(self, record):
            self.context.forward(record.with_value("a"))
            self.context.forward(record.with_value("b").with_timestamp(9).with_headers([]))

    assert run(fixed(Twice), ("k", "v", 5)) == [("k", "a", 5, (("h", b"1"),)), ("k", "b", 9, ())]


def test_fixed_key_processor_cannot_change_the_key():
    """Forwarding another key fails, because downstream relies on the partitioning."""

    class Cheating(FixedKeyProcessor):
        def process(self, record):
            self.context.forward(record.with_key("other"))

    with pytest.raises(FailedProcessingError, match="received key 'k', but forwards 'other'"):
        run(fixed(Cheating), ("k", "v", 5))


def test_fixed_key_processor_may_punctuate():
    """In a punctuation there is no key to keep."""

    class Ticking(FixedKeyProcessor):
        def init(self, context):
            super().init(context)
            context.schedule(1, PunctuationType.STREAM_TIME, lambda ts: context.forward(Record("t", str(ts), ts)))

        def process(self, record):
            self.context.forward(record)

    assert [row[:2] for row in run(fixed(Ticking), ("k", "v", 5))] == [("k", "v"), ("t", "5")]


@pytest.mark.parametrize(
    "error",
    [TaskMigratedError, TransactionAbortedError, ProductionError, StreamsTimeoutError],
    ids=lambda kind: kind.__name__,
)
def test_errors_of_sending_are_not_the_processors(error):
    """An exception from sending further down ends the batch unchanged; the processing handler is not asked to skip the record."""

    class Sending(Processor):
        def process(self, record):
            raise error("raised while a record was sent on")

    config = {**CONFIG, "processing.exception.handler": "LogAndContinueProcessingExceptionHandler"}
    with pytest.raises(error, match="sent on"):
        run(one(Sending), ("k", "v", 5), config=config)
