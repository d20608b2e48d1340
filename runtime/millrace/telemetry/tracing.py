"""Spans of what a stream thread does, under OpenTelemetry's conventions for messaging.

| span | kind | when |
|---|---|---|
| `poll <application>` | CLIENT | one fetch that returned records; an empty one leaves no span |
| `process <task>` | INTERNAL | one round of a task that processed records |
| `process <topic>` | CONSUMER | one record; child of its producer's span, and linked to it and to the round |
| `send <topic>` | PRODUCER | one record passed to the producer; its context goes into the record's headers |
| `flush <application>` | CLIENT | waiting until everything sent is acknowledged |
| `commit <application>` | CLIENT | one commit: caches, deliveries, offsets, stores |

A record's trace continues that of its producer, so that a sampler that follows its parent keeps or drops the whole path of a
record through several applications. A record without context belongs to the trace of its round. Trace context travels in record
headers, in the format of the propagators that `OTEL_PROPAGATORS` names (W3C trace context unless set).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Final, Self

from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from millrace.records import Headers, TaskId

__all__ = ["FetchSpan", "Tracing"]

# Attributes of spans. Those that begin with `messaging.` are OpenTelemetry's semantic conventions for messaging, whose own
# constants live in a private module; a test compares these with them.
SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION_NAME: Final = "messaging.destination.name"
DESTINATION_PARTITION_ID: Final = "messaging.destination.partition.id"
KAFKA_OFFSET: Final = "messaging.kafka.offset"
CONSUMER_GROUP_NAME: Final = "messaging.consumer.group.name"
BATCH_MESSAGE_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"

TASK_ID: Final = "kafka.streams.task.id"
TASK_IDS: Final = "kafka.streams.task.ids"
THREAD_ID: Final = "kafka.streams.thread.id"
EXACTLY_ONCE: Final = "kafka.streams.exactly_once"
"""Whether a commit was a transaction."""


class _HeadersGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        values = [value.decode("utf-8", "replace") for value in carrier.all(key) if value is not None]
        # A record that passed through several traced programs may have several; the last one is the newest.
        return values[-1:] or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


_getter = _HeadersGetter()


class FetchSpan:
    """Reports one poll; the span is created only if the poll returned records."""

    __slots__ = ("_attributes", "_name", "_start_ns", "_tracer", "records")

    def __init__(self, tracer: Tracer, name: str, attributes: dict[str, AttributeValue]) -> None:
        self._tracer = tracer
        self._name = name
        self._attributes = attributes
        self._start_ns = 0
        self.records = 0

    def received(self, records: int) -> None:
        """Report how many records the fetch returned."""
        self.records = records

    def __enter__(self) -> Self:
        self._start_ns = time.time_ns()
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if not self.records and error is None:
            return
        self._attributes[BATCH_MESSAGE_COUNT] = self.records
        span = self._tracer.start_span(
            self._name, Context(), SpanKind.CLIENT, self._attributes, start_time=self._start_ns
        )
        if error is not None:
            _record_failure(span, error)
        span.end()


class _Round:
    """One round of a task; its span starts with the first record."""

    __slots__ = ("_attributes", "_context", "_name", "_token", "_tracer", "records", "span")

    def __init__(self, tracer: Tracer, name: str, attributes: dict[str, AttributeValue]) -> None:
        self._tracer = tracer
        self._name = name
        self._attributes = attributes
        self.span: Span | None = None
        self.records = 0

    def started(self) -> Span:
        self.records += 1
        if self.span is None:
            self.span = self._tracer.start_span(self._name, Context(), SpanKind.INTERNAL, self._attributes)
        return self.span

    def __enter__(self) -> Self:
        self._token = _round.set(self)
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        _round.reset(self._token)
        if self.span is None:
            return
        self.span.set_attribute(BATCH_MESSAGE_COUNT, self.records)
        if error is not None:
            _record_failure(self.span, error)
        self.span.end()


_round: Final[ContextVar[_Round | None]] = ContextVar("millrace-round", default=None)


class Tracing:
    """Implements `millrace.instance.instrumentation.Instrumentation` with a tracer; one instance serves all threads.

    Args:
        tracer: creates the spans.
        application_id: the consumer group.
    """

    def __init__(self, tracer: Tracer, application_id: str) -> None:
        self._tracer = tracer
        self._application_id = application_id

    def poll(self, thread: str) -> FetchSpan:
        """Bracket one fetch of records; an empty one leaves no span."""
        attributes = self._attributes("poll", "receive", thread, "consumer")
        return FetchSpan(self._tracer, f"poll {self._application_id}", attributes)

    def process_batch(self, thread: str, task_id: TaskId, max_records: int) -> AbstractContextManager[object]:  # noqa: ARG002 (part of the protocol)
        """Bracket a round of one task; a round without records leaves no span."""
        attributes = self._attributes("process", "process", thread, "consumer")
        attributes[TASK_ID] = str(task_id)
        return _Round(self._tracer, f"process {task_id}", attributes)

    @contextmanager
    def record(self, task_id: TaskId, topic: str, partition: int, offset: int, headers: Headers) -> Iterator[Span]:
        """Bracket the processing of one record, in its producer's trace if the headers contain one."""
        current_round = _round.get()
        round_span = None if current_round is None else current_round.started()
        context = propagate.extract(headers, context=Context(), getter=_getter)
        producer = trace.get_current_span(context).get_span_context()
        links = []
        if producer.is_valid:
            links.append(Link(producer))
            if round_span is not None:
                links.append(Link(round_span.get_span_context()))
        elif round_span is not None:
            context = trace.set_span_in_context(round_span, context)
        attributes: dict[str, AttributeValue] = {
            SYSTEM: "kafka",
            OPERATION_NAME: "process",
            OPERATION_TYPE: "process",
            DESTINATION_NAME: topic,
            DESTINATION_PARTITION_ID: str(partition),
            KAFKA_OFFSET: offset,
            CONSUMER_GROUP_NAME: self._application_id,
            TASK_ID: str(task_id),
        }
        span = self._tracer.start_span(f"process {topic}", context, SpanKind.CONSUMER, attributes, links)
        token = attach(trace.set_span_in_context(span, context))
        try:
            yield span
        except BaseException as error:
            _record_failure(span, error)
            raise
        finally:
            detach(token)
            span.end()

    def inject(self, topic: str, headers: Headers) -> Headers:
        """Return the headers to send, with the context of a span for sending.

        It replaces a context that may come from the input record. The headers are unchanged if there is nothing to add.
        """
        context = get_current()
        attributes: dict[str, AttributeValue] = {
            SYSTEM: "kafka",
            OPERATION_NAME: "send",
            OPERATION_TYPE: "send",
            DESTINATION_NAME: topic,
        }
        span = self._tracer.start_span(f"send {topic}", context, SpanKind.PRODUCER, attributes)
        added: dict[str, str] = {}
        try:
            propagate.inject(added, context=trace.set_span_in_context(span, context))
        finally:
            span.end()
        if not added:
            return headers
        fields = propagate.get_global_textmap().fields
        kept = (pair for pair in headers if pair[0] not in fields)
        return Headers((*kept, *((name, value.encode()) for name, value in added.items())))

    def send(self, thread: str) -> AbstractContextManager[object]:
        """Bracket waiting until everything sent is acknowledged."""
        return self._tracer.start_as_current_span(
            f"flush {self._application_id}",
            kind=SpanKind.CLIENT,
            attributes=self._attributes("flush", "send", thread, "producer"),
        )

    def commit(
        self, thread: str, task_ids: Collection[TaskId], *, exactly_once: bool
    ) -> AbstractContextManager[object]:
        """Bracket one commit of these tasks."""
        attributes = self._attributes("commit", "settle", thread, "consumer")
        attributes[TASK_IDS] = [str(task_id) for task_id in sorted(task_ids)]
        attributes[EXACTLY_ONCE] = exactly_once
        return self._tracer.start_as_current_span(
            f"commit {self._application_id}", kind=SpanKind.CLIENT, attributes=attributes
        )

    def _attributes(self, operation: str, kind: str, thread: str, client: str) -> dict[str, AttributeValue]:
        return {
            SYSTEM: "kafka",
            OPERATION_NAME: operation,
            OPERATION_TYPE: kind,
            CONSUMER_GROUP_NAME: self._application_id,
            CLIENT_ID: f"{thread}-{client}",
            THREAD_ID: thread,
        }


def _record_failure(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
