"""How a node becomes code: a factory gets its `NodeContext` and returns one function.

A task compiles its graph once, children first. Each node is a closure `(key, value, timestamp, headers) -> None` that calls
its children's closures directly, so the path of a record has no look-ups, and only operators themselves allocate
anything. Rules for writing a factory:

* Bind everything in the factory (`forward = node.forward`), nothing per record.
* Wrap all your own work in `try`, the reading and writing of stores too:
  ``try: new = mapper(value)`` / ``except Exception as e: fail(e, key, value, timestamp, headers); return`` with
  ``fail = node.processing_failed``. It asks the processing exception handler, and returns if the record is to be skipped.
  Leave the call of a child outside, unless it is in the middle of the work: what a child has dealt with, `fail` raises again.
* A node that reads or writes a store sets `node.record.timestamp` and `.headers` to its record's on entry, because stores
  log changes with them.
* Register start-up work with `node.on_init` (runs in topological order, stores are open) and `node.on_close`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from millrace.config import StreamsConfig
from millrace.dropped_records import DropRecord
from millrace.errors import FailedProcessingError, is_unavailable
from millrace.processor.api import Cancellable, PunctuationType, Punctuator
from millrace.records import Headers, RecordContext, TaskId
from millrace.serdes.base import AnySerde

ProcessFn = Callable[[Any, Any, int, Headers], None]
"""key, value (a `Change` on the edges of tables), timestamp ms, headers."""


class NodeContext(Protocol):
    """What the engine gives a node when it compiles it for one task."""

    name: str
    task_id: TaskId
    config: StreamsConfig
    state_dir: Path
    """The task's own directory."""
    record: RecordContext
    forward: ProcessFn
    """Calls every child in order; does nothing for a node without children."""
    children: Mapping[str, ProcessFn]
    processing_failed: Callable[[Exception, Any, Any, int, Headers], None]
    """Passes a failed record to the processing exception handler: returns to skip it, or raises FailedProcessingError."""
    drop_record: DropRecord
    stream_time: Callable[[], int]
    system_time: Callable[[], int]
    request_commit: Callable[[], None]
    default_key_serde: AnySerde | None
    default_value_serde: AnySerde | None
    metadata: dict[str, int]
    """The task's processor metadata, committed with its offsets (formats §9); nodes read it in on_init and set it."""

    def state_store(self, name: str) -> Any:
        """Return a store; TopologyError if it is not connected to this node (global stores always are)."""

    def schedule(
        self, interval_ms: int, punctuation_type: PunctuationType, callback: Punctuator, *, start_ms: int | None = None
    ) -> Cancellable:
        """Register a punctuator; while it runs, `record` has no topic and the punctuation's timestamp."""

    def on_init(self, callback: Callable[[], None]) -> None:
        """Run `callback` when the task starts; stores are open, parents first."""

    def on_close(self, callback: Callable[[], None]) -> None:
        """Run `callback` when the task closes; stores are still open."""

    def sensor(self, name: str, amount: float = 1.0) -> None:
        """Record a value of one of the node's metrics: for events, never per record."""


NodeFactory = Callable[[NodeContext], ProcessFn]


def forward_as(current: RecordContext, original: RecordContext, forward: ProcessFn, key: object, value: object) -> None:
    """Forward a buffered record under the context it came with, not that of the record that released it.

    Args:
        current: the task's context, which is changed for the duration of the call.
        original: the context that was buffered with the record; its timestamp and headers are forwarded.
        forward: gets the record.
        key: of the record.
        value: of the record.
    """
    saved = current.topic, current.partition, current.offset, current.timestamp, current.headers
    saved_raw = current.raw_key, current.raw_value
    current.topic = original.topic
    current.partition = original.partition
    current.offset = original.offset
    current.timestamp = original.timestamp
    current.headers = original.headers
    current.raw_key = current.raw_value = None
    try:
        forward(key, value, original.timestamp, original.headers)
    finally:
        current.topic, current.partition, current.offset, current.timestamp, current.headers = saved
        current.raw_key, current.raw_value = saved_raw


def leave_out(node: NodeContext, error: Exception, original: RecordContext | None = None) -> None:
    """Ask the processing exception handler about a row that cannot be read, while another record is being processed.

    The handler gets no record and no bytes: the record being processed is not at fault. It is not asked if the row is not either:
    what waits in a store would be lost if a schema registry were away for a moment.

    Args:
        node: that reads the row.
        error: says why it cannot.
        original: the context that was buffered with the row; None: that of the record being processed.

    Raises:
        FailedProcessingError: the handler said FAIL, or the serde failed for another reason than the row.
    """
    if is_unavailable(error):
        raise FailedProcessingError(f"Node {node.name} stops at a row that may be readable later: {error}") from error
    forward_as(node.record, original or node.record, partial(node.processing_failed, error), None, None)
