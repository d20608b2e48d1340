"""The seam through which tracing looks into a stream thread; `None` in its place costs nothing.

The runtime calls these hooks once per batch or commit, never per record, with one exception: `record`, which is asked only
while a tracer is installed, because a span per record can be linked to the producer's context in the record's headers
(W3C `traceparent`). The runtime imports no telemetry library: `millrace.telemetry` implements the protocol.

Invariant: a hook must not raise and must not touch the clients; what it measures is the body of the `with` statement.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Protocol

from millrace.records import Headers, TaskId

__all__ = ["FetchReport", "Instrumentation", "RecordTracer"]


class FetchReport(Protocol):
    """Given in the body of `poll`, so that a fetch can tell what it brought."""

    def received(self, records: int) -> None:
        """Tell the number of records; a fetch that tells none is not reported."""


class RecordTracer(Protocol):
    """The part of the hooks that is called per record."""

    def record(
        self, task_id: TaskId, topic: str, partition: int, offset: int, headers: Headers
    ) -> AbstractContextManager[object]:
        """Bracket the processing of one record; its span links to the context found in `headers`."""

    def inject(self, topic: str, headers: Headers) -> Headers:
        """Return the headers to send to `topic`, with the current context added; called in the body of `record`."""


class Instrumentation(RecordTracer, Protocol):
    """What a stream thread reports while it works; every method but `inject` is used in a `with` statement."""

    def poll(self, thread: str) -> AbstractContextManager[FetchReport]:
        """Bracket one fetch of records (it may wait for `poll.ms`)."""

    def process_batch(self, thread: str, task_id: TaskId, max_records: int) -> AbstractContextManager[object]:
        """Bracket the processing of up to `max_records` records of one task."""

    def send(self, thread: str) -> AbstractContextManager[object]:
        """Bracket waiting for the acknowledgement of everything sent since the last commit."""

    def commit(
        self, thread: str, task_ids: Collection[TaskId], *, exactly_once: bool
    ) -> AbstractContextManager[object]:
        """Bracket one commit of these tasks: caches, deliveries, offsets, stores."""
