"""The hooks through which tracing observes a stream thread; without a tracer they cost nothing.

The runtime calls these hooks once per batch or commit, never per record, except for `record`, which is called only while a tracer
is installed: a span per record can be linked to the producer's context in the record's headers (W3C `traceparent`). The runtime
imports no telemetry library: `millrace.telemetry` implements the protocol.

Invariant: a hook must not raise and must not touch the clients; it measures the body of the `with` statement.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Protocol

from millrace.records import Headers, TaskId

__all__ = ["FetchReport", "Instrumentation", "RecordTracer"]


class FetchReport(Protocol):
    """Returned by `poll` to report the result of the fetch."""

    def received(self, records: int) -> None:
        """Report the number of records; a fetch for which this is not called is not traced."""


class RecordTracer(Protocol):
    """The hooks that are called per record."""

    def record(
        self, task_id: TaskId, topic: str, partition: int, offset: int, headers: Headers
    ) -> AbstractContextManager[object]:
        """Trace the processing of one record; its span is linked to the context found in `headers`."""

    def inject(self, topic: str, headers: Headers) -> Headers:
        """Return the headers to send to `topic`, with the current context added; called in the body of `record`."""


class Instrumentation(RecordTracer, Protocol):
    """Hooks that a stream thread calls while it works; every method except `inject` is used in a `with` statement."""

    def poll(self, thread: str) -> AbstractContextManager[FetchReport]:
        """Trace one fetch of records (it may wait for `poll.ms`)."""

    def process_batch(self, thread: str, task_id: TaskId, max_records: int) -> AbstractContextManager[object]:
        """Trace the processing of up to `max_records` records of one task."""

    def send(self, thread: str) -> AbstractContextManager[object]:
        """Trace waiting for the acknowledgement of everything sent since the last commit."""

    def commit(
        self, thread: str, task_ids: Collection[TaskId], *, exactly_once: bool
    ) -> AbstractContextManager[object]:
        """Trace one commit of these tasks: caches, deliveries, offsets, stores."""
