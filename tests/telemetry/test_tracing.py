"""Spans of stream threads, seen with the SDK's in-memory exporter."""

import contextlib

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_OFF
from opentelemetry.semconv._incubating.attributes import messaging_attributes as conventions
from opentelemetry.trace import SpanKind, StatusCode

from millrace.instance.instrumentation import Instrumentation
from millrace.records import NO_HEADERS, Headers, TaskId
from millrace.telemetry import Tracing, tracing

THREAD = "app-StreamThread-1"
TASK = TaskId(0, 3)
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PRODUCED = Headers([("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01".encode()), ("lang", b"en")])


class Spans:
    """A tracer whose spans are kept in memory."""

    def __init__(self, **options):
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(**options)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing: Instrumentation = Tracing(provider.get_tracer("test"), "app")

    def finished(self):
        """Return the spans that have ended, by name."""
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def spans():
    """Give a tracer that samples everything."""
    return Spans()


def _process_one(tracing, headers=NO_HEADERS):
    with tracing.process_batch(THREAD, TASK, 10), tracing.record(TASK, "in", 3, 42, headers):
        return tracing.inject("out", headers)


def test_attribute_names_are_the_conventions():
    """Every messaging attribute has the name that the installed semantic conventions give it."""
    known = {value for name, value in vars(conventions).items() if name.isupper() and isinstance(value, str)}
    ours = {value for name, value in vars(tracing).items() if name.isupper() and value.startswith("messaging.")}
    assert ours <= known


def test_a_record_continues_its_producers_trace_and_is_linked_to_it(spans):
    """A record's span belongs to the trace in its headers, is a child of the producer's span, and links to it."""
    _process_one(spans.tracing, PRODUCED)
    span = spans.finished()["process in"]
    assert span.kind is SpanKind.CONSUMER
    assert f"{span.context.trace_id:032x}" == TRACE_ID
    assert f"{span.parent.span_id:016x}" == SPAN_ID
    assert next(f"{link.context.span_id:016x}" for link in span.links) == SPAN_ID
    assert span.links[1].context == spans.finished()["process 0_3"].context


def test_span_of_a_record_says_where_it_came_from(spans):
    """System, operation, topic, partition, offset, group and task use the conventions' names."""
    _process_one(spans.tracing)
    assert dict(spans.finished()["process in"].attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "in",
        "messaging.destination.partition.id": "3",
        "messaging.kafka.offset": 42,
        "messaging.consumer.group.name": "app",
        "kafka.streams.task.id": "0_3",
    }


def test_a_record_without_context_belongs_to_its_round(spans):
    """Without a producer's context, the task's round is the parent."""
    _process_one(spans.tracing)
    finished = spans.finished()
    assert finished["process in"].parent.span_id == finished["process 0_3"].context.span_id
    assert finished["process 0_3"].attributes["messaging.batch.message_count"] == 1


def test_malformed_context_is_ignored(spans):
    """Headers that only look like a trace context neither raise nor link."""
    _process_one(spans.tracing, Headers([("traceparent", b"\xff\x00nonsense"), ("tracestate", None)]))
    assert spans.finished()["process in"].links == ()


def test_what_is_sent_carries_the_context_of_its_sending(spans):
    """The outgoing traceparent names the send span, replaces the incoming one, and leaves other headers alone."""
    headers = _process_one(spans.tracing, PRODUCED)
    send = spans.finished()["send out"]
    assert send.kind is SpanKind.PRODUCER
    assert send.parent.span_id == spans.finished()["process in"].context.span_id
    assert list(headers.all("traceparent")) == [f"00-{TRACE_ID}-{send.context.span_id:016x}-01".encode()]
    assert headers.last("lang") == b"en"


def test_two_hops_are_one_trace(spans):
    """What one application sends is continued by the next."""
    sent = _process_one(spans.tracing)
    next_hop = Spans()
    _process_one(next_hop.tracing, sent)
    first, second = spans.finished()["send out"], next_hop.finished()["process in"]
    assert second.context.trace_id == first.context.trace_id
    assert second.parent.span_id == first.context.span_id


def test_empty_fetch_leaves_no_span(spans):
    """An idle application does not fill the tracing back end with empty polls."""
    with spans.tracing.poll(THREAD) as fetch:
        fetch.received(0)
    with spans.tracing.process_batch(THREAD, TASK, 10):
        pass
    assert not spans.finished()


def test_span_of_a_fetch_has_the_number_of_records(spans):
    """A fetch with records is a span in a trace of its own, with the number of records and the client id."""
    with spans.tracing.poll(THREAD) as fetch:
        fetch.received(7)
    span = spans.finished()["poll app"]
    assert span.kind is SpanKind.CLIENT
    assert span.attributes["messaging.batch.message_count"] == 7
    assert span.attributes["messaging.operation.type"] == "receive"
    assert span.attributes["messaging.client.id"] == f"{THREAD}-consumer"
    assert span.end_time >= span.start_time


def test_span_of_a_commit_has_its_tasks_and_its_flush(spans):
    """The commit names its tasks in order, and waiting for deliveries is a child of it."""
    with (
        spans.tracing.commit(THREAD, [TaskId(1, 0), TaskId(0, 2)], exactly_once=True),
        spans.tracing.send(THREAD),
    ):
        pass
    commit, flush = spans.finished()["commit app"], spans.finished()["flush app"]
    assert commit.attributes["kafka.streams.task.ids"] == ("0_2", "1_0")
    assert commit.attributes["kafka.streams.exactly_once"] is True
    assert commit.attributes["messaging.operation.type"] == "settle"
    assert flush.parent.span_id == commit.context.span_id


@pytest.mark.parametrize("hook", ["record", "process_batch", "poll", "commit", "send"])
def test_a_failure_marks_the_span_and_goes_on(spans, hook):
    """An exception passes through every hook unchanged, and the span records it with status error."""
    tracing = spans.tracing
    brackets = {
        "record": lambda: tracing.record(TASK, "in", 0, 0, NO_HEADERS),
        "process_batch": lambda: tracing.process_batch(THREAD, TASK, 1),
        "poll": lambda: tracing.poll(THREAD),
        "commit": lambda: tracing.commit(THREAD, [TASK], exactly_once=False),
        "send": lambda: tracing.send(THREAD),
    }

    def fail():
        with brackets[hook](), contextlib.ExitStack() as inner:
            if hook == "process_batch":
                inner.enter_context(tracing.record(TASK, "in", 0, 0, NO_HEADERS))
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    failed = [span for span in spans.finished().values() if span.status.status_code is StatusCode.ERROR]
    assert [event.name for event in failed[0].events] == ["exception"]


def test_an_unsampled_producer_is_not_sampled_here():
    """A parent-based sampler keeps the producer's decision and passes it on."""
    spans = Spans(sampler=DEFAULT_OFF)
    kept = _process_one(spans.tracing, PRODUCED)
    assert set(spans.finished()) == {"process in", "send out"}
    dropped = _process_one(spans.tracing)
    assert [int(headers.last("traceparent")[-2:], 16) & 1 for headers in (kept, dropped)] == [1, 0]


def test_a_sampler_that_keeps_nothing_keeps_nothing():
    """With the sampler off there are no spans."""
    spans = Spans(sampler=ALWAYS_OFF)
    _process_one(spans.tracing, PRODUCED)
    assert not spans.finished()


def test_threads_do_not_see_each_others_rounds(spans):
    """A round ends with its own thread's context: a record outside of any round starts a new trace."""
    _process_one(spans.tracing)
    with spans.tracing.record(TASK, "alone", 0, 0, NO_HEADERS):
        pass
    assert spans.finished()["process alone"].parent is None
