"""Exception handlers decide what happens to records that cannot be read or processed (KIP-1033, KIP-1034)."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from tests.engine.support import Echo, Failing, Harness, pipe

from millrace.config import StreamsConfig
from millrace.engine.error_handling import resolve_handler
from millrace.errors import (
    ConfigError,
    FailedProcessingError,
    SerializationError,
    TaskCorruptedError,
    UnavailableSerdeError,
)
from millrace.processor.api import Processor, PunctuationType
from millrace.processor.handlers import (
    DeadLetterRecord,
    HandlerResponse,
    LogAndContinueExceptionHandler,
    LogAndFailExceptionHandler,
)
from millrace.records import Headers, TaskId, TopicPartition
from millrace.serdes import Serde, Serdes
from millrace.topology import Topology

IN = TopicPartition("in", 0)
CONFIG = StreamsConfig.of({"application.id": "app", "errors.dead.letter.queue.topic.name": "dlq"})


def longs():
    """Return a topology that copies records with long values."""
    return (
        Topology()
        .add_source("src", "in", value_serde=Serdes.long())
        .add_processor("p", Echo, "src")
        .add_sink("snk", "out", "p", value_serde=Serdes.long())
    )


def test_unreadable_record_fails_the_task_by_default(tmp_path):
    """By default a malformed value fails the task; the error names the source, the offset, the serde and how to skip it."""
    harness = Harness(longs(), tmp_path)
    task = harness.run()
    harness.add("in", ("k", "8 bytes!", 1), ("k", "not so", 2))
    with pytest.raises(SerializationError) as caught:
        task.process(0, 10)
    for part in ("source src", "value at offset 1 of in-0", "LongSerde", "LogAndContinueExceptionHandler"):
        assert part in str(caught.value)
    assert not isinstance(caught.value, UnavailableSerdeError)
    assert task.position(IN) == 1


class Remote(Serde):
    """Asks a server that is down."""

    def deserialize(self, topic, data, headers=None):
        """Fail, and hide why."""
        try:
            raise ConnectionRefusedError("nobody is there")
        except OSError as error:
            raise ValueError("no answer") from error


def test_record_is_not_to_blame_for_a_server_that_is_down(tmp_path):
    """The error is of a kind of its own, because the same record may be readable later."""
    harness = Harness(
        Topology().add_source("src", "in", value_serde=Remote()).add_processor("p", Echo, "src"), tmp_path
    )
    task = harness.run()
    harness.add("in", ("k", "v", 1))
    with pytest.raises(UnavailableSerdeError, match=r"value at offset 0 of in-0 .* no answer"):
        task.process(0, 10)


def test_unreadable_record_is_skipped_counted_and_committed(tmp_path):
    """LogAndContinue drops malformed records; their offsets count as processed."""
    harness = Harness(longs(), tmp_path, **{"deserialization.exception.handler": "LogAndContinueExceptionHandler"})
    task = harness.run()
    harness.add("in", ("k", "bad", 1), ("k", "8 bytes!", 2), ("k", "worse", 3))
    assert task.process(0, 10) == 3
    assert harness.values() == ["8 bytes!"]
    assert task.counters.dropped_records == 2
    assert task.prepare_commit()[IN].offset == 3


def test_dead_letter_of_an_unreadable_record(tmp_path):
    """The dead letter has the original bytes, timestamp and headers, followed by six headers about the error."""
    harness = Harness(
        longs(),
        tmp_path,
        **{
            "deserialization.exception.handler": "org.apache.kafka.streams.errors.LogAndContinueExceptionHandler",
            "errors.dead.letter.queue.topic.name": "dlq",
        },
    )
    task = harness.run()
    harness.add("in", ("k", "bad", 7), headers=Headers([("h", b"1")]))
    task.process(0, 10)
    (letter,) = harness.collector.take()
    assert (letter.topic, letter.key, letter.value, letter.timestamp) == ("dlq", b"k", b"bad", 7)
    assert [name for name, _ in letter.headers] == [
        "h",
        *(
            f"__streams.errors.{part}"
            for part in ("exception", "message", "stacktrace", "topic", "partition", "offset")
        ),
    ]
    assert letter.headers[-3:] == (
        ("__streams.errors.topic", b"in"),
        ("__streams.errors.partition", b"0"),
        ("__streams.errors.offset", b"0"),
    )


def test_processing_failure_can_be_skipped(tmp_path, caplog):
    """With LogAndContinueProcessingExceptionHandler a failing record is logged and dropped, and the others are processed."""
    harness = Harness(
        pipe(processor=Failing),
        tmp_path,
        **{
            "processing.exception.handler": "LogAndContinueProcessingExceptionHandler",
            "errors.dead.letter.queue.topic.name": "dlq",
        },
    )
    task = harness.run()
    harness.add("in", ("k", "a", 1), ("k", "bad", 2), ("k", "c", 3))
    task.process(0, 10)
    sent = harness.collector.take()
    assert [(record.topic, record.value) for record in sent] == [("out", b"a"), ("dlq", b"bad"), ("out", b"c")]
    assert task.counters.dropped_records == 1
    assert "Node p failed on the record at offset 1 of in-0, which is skipped (task 0_0)" in caplog.text
    assert 'support.py", line' in caplog.text
    assert 'raise ValueError("no good")' in caplog.text


def test_dead_letter_shows_a_lone_surrogate_of_the_error_escaped(tmp_path, caplog):
    """An error may quote what has no bytes; its dead letter is written all the same."""
    caplog.set_level(logging.CRITICAL, "millrace")  # xdist could not pass on what is logged

    class Quoting(Processor):
        def process(self, record):
            raise ValueError("no place for caf\udce9")

    skipping = {
        "processing.exception.handler": "LogAndContinueProcessingExceptionHandler",
        "errors.dead.letter.queue.topic.name": "dlq",
    }
    harness = Harness(pipe(processor=Quoting), tmp_path, **skipping)
    task = harness.run()
    harness.add("in", ("k", "a", 1))
    task.process(0, 10)
    (letter,) = harness.collector.take()
    assert letter.headers.last("__streams.errors.message") == rb"no place for caf\udce9"
    assert rb"ValueError: no place for caf\udce9" in letter.headers.last("__streams.errors.stacktrace")


def test_dead_letter_of_a_handler_may_have_plain_pairs_as_headers(tmp_path):
    """They are sent as headers; a name that cannot be sent is a failure of the handler."""

    class Handler:
        def handle_error(self, context, record, exception):
            name = "caf\udce9" if context.raw_key == b"surrogate" else "why"
            return HandlerResponse.resume([DeadLetterRecord("dlq", b"k", b"v", 1, [(name, b"1")])])

    harness = Harness(pipe(processor=Failing), tmp_path, **{"processing.exception.handler": Handler()})
    task = harness.run()
    harness.add("in", ("k", "bad", 1), ("surrogate", "bad", 2))
    task.process(0, 1)
    (letter,) = harness.collector.take()
    assert letter.headers == Headers([("why", b"1")])
    assert type(letter.headers) is Headers
    with pytest.raises(
        FailedProcessingError, match=r"handler itself failed on the record at offset 1.*name of a header"
    ):
        task.process(0, 1)


class FailsToStart(Processor):
    """Raises in `init`."""

    def init(self, context):
        """Fail."""
        raise ValueError("no good")


def test_processor_that_cannot_be_initialised_is_named(tmp_path):
    """An exception of `init` fails the task with an error that names both; the exception is its cause."""
    harness = Harness(pipe(processor=FailsToStart), tmp_path)
    with pytest.raises(
        FailedProcessingError, match="Task 0_0: node p failed when it was initialised: ValueError: no good"
    ) as raised:
        harness.run()
    assert isinstance(raised.value.__cause__, ValueError)


def test_failure_further_down_is_not_asked_about_twice(tmp_path):
    """A child's failure, once handled there, passes through its parents without asking the handler again."""
    asked = []

    class Handler:
        def handle_error(self, context, record, exception):
            asked.append((context.node, record.value))
            return HandlerResponse.fail()

    topology = Topology().add_source("src", "in").add_processor("top", Echo, "src").add_processor("low", Failing, "top")
    harness = Harness(topology, tmp_path, **{"processing.exception.handler": Handler()})
    task = harness.run()
    harness.add("in", ("k", "bad", 1))
    with pytest.raises(FailedProcessingError, match="node low failed"):
        task.process(0, 1)
    assert asked == [("low", "bad")]


class Punctuated(Processor):
    """Has a punctuator that raises."""

    def init(self, context):
        """Schedule it."""
        context.schedule(1, PunctuationType.WALL_CLOCK_TIME, self.tick)

    def tick(self, ts):
        """Fail."""
        raise ValueError("tick")

    def process(self, record):
        """Ignore it."""


def test_failing_punctuator_is_judged_too(tmp_path):
    """A punctuator's exception goes to the processing handler, without a record."""
    asked = []

    class Handler:
        def handle_error(self, context, record, exception):
            asked.append((context.node, record, context.topic, str(exception)))
            return HandlerResponse.resume()

    harness = Harness(pipe(processor=Punctuated), tmp_path, **{"processing.exception.handler": Handler()})
    task = harness.run()
    task.punctuate_wall_clock(10)
    assert asked == [("p", None, None, "tick")]


def test_log_says_that_a_punctuator_failed(tmp_path, caplog):
    """It names the node and the task, and no record."""
    handler = {"processing.exception.handler": "LogAndContinueProcessingExceptionHandler"}
    Harness(pipe(processor=Punctuated), tmp_path, **handler).run().punctuate_wall_clock(10)
    assert "Node p failed in a punctuation, which is skipped (task 0_0): ValueError('tick')" in caplog.text


def test_handler_that_fails_or_answers_nonsense_fails_the_task(tmp_path):
    """A handler that raises, or returns an invalid response, fails the task, and the error says so."""

    class Broken:
        def handle_error(self, context, record, exception):
            raise RuntimeError("me too")

    class Vague:
        def handle_error(self, context, record, exception):
            return None

    for handler, message in ((Broken(), "handler itself failed"), (Vague(), "returned None")):
        harness = Harness(pipe(processor=Failing), tmp_path, **{"processing.exception.handler": handler})
        task = harness.run()
        harness.add("in", ("k", "bad", 1))
        with pytest.raises(FailedProcessingError, match=message):
            task.process(0, 1)


def test_handlers_are_found_by_object_class_name_and_path():
    """A handler can be given as an object, a class, Kafka's name, Java's class name, or module:attribute."""
    default = LogAndFailExceptionHandler
    wanted = LogAndContinueExceptionHandler
    for value in (
        wanted(),
        wanted,
        "LogAndContinueExceptionHandler",
        "org.apache.kafka.streams.errors.LogAndContinueExceptionHandler",
        "millrace.processor.handlers:LogAndContinueExceptionHandler",
    ):
        handler = resolve_handler(value, default, "key", CONFIG)
        assert isinstance(handler, wanted)
        assert handler.dlq_topic == "dlq"
    assert isinstance(resolve_handler(None, default, "key", CONFIG), default)


@pytest.mark.parametrize("value", ["Nonsense", "no.such.module:X", "millrace.processor.handlers:Nope", 7])
def test_unknown_handler_is_a_configuration_error(value):
    """A value that does not name a handler is refused, and the error names the key."""
    with pytest.raises(ConfigError, match=r"some\.key"):
        resolve_handler(value, LogAndFailExceptionHandler, "some.key", CONFIG)


def test_a_handler_has_a_method_handle_error():
    """An object whose attribute `handle_error` is not a method is not a handler."""
    with pytest.raises(ConfigError, match="it has no method handle_error"):
        resolve_handler(SimpleNamespace(handle_error=None), LogAndFailExceptionHandler, "some.key", CONFIG)


class ReadsDamagedState(Processor):
    """Fails as a store does whose files are damaged."""

    def process(self, record):
        """Fail."""
        raise TaskCorruptedError(frozenset({TaskId(0, 0)}), "damaged")


def test_damaged_state_is_not_a_fault_of_the_record(tmp_path):
    """No handler is asked: the record is not skipped, but processed again once the state is restored."""
    topology = Topology().add_source("src", "in").add_processor("p", ReadsDamagedState, "src")
    harness = Harness(
        topology, tmp_path, **{"processing.exception.handler": "LogAndContinueProcessingExceptionHandler"}
    )
    task = harness.run()
    harness.add("in", ("k", "v", 1))
    with pytest.raises(TaskCorruptedError):
        task.process(0, 10)
