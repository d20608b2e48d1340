"""What to do with a record that cannot be read, processed or written (KIP-1033, KIP-1034).

A handler answers FAIL, RESUME (skip the record) or RETRY, and may add records for dead-letter topics. The handlers here add one
if `errors.dead.letter.queue.topic.name` is set: the original bytes and headers, plus headers that describe the error.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from millrace.config import StreamsConfig
from millrace.records import NO_HEADERS, ConsumedRecord, Headers, Record, TaskId

_log = logging.getLogger(__name__)

HEADER_EXCEPTION = "__streams.errors.exception"
HEADER_MESSAGE = "__streams.errors.message"
HEADER_STACKTRACE = "__streams.errors.stacktrace"
HEADER_TOPIC = "__streams.errors.topic"
HEADER_PARTITION = "__streams.errors.partition"
HEADER_OFFSET = "__streams.errors.offset"


class HandlerAction(Enum):
    """What to do with a record that failed."""

    FAIL = "fail"
    RESUME = "resume"
    RETRY = "retry"
    """Only for production: send the record again."""


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A record for a dead-letter topic, in bytes; partition None means that the key decides, headers None that it has none."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int | None
    headers: Headers = NO_HEADERS
    partition: int | None = None

    def __post_init__(self) -> None:
        """Make headers of what a handler gives as plain pairs.

        Raises:
            SerializationError: they cannot be sent.
        """
        if type(self.headers) is not Headers:
            object.__setattr__(self, "headers", Headers(self.headers))


@dataclass(frozen=True, slots=True)
class HandlerResponse:
    """A handler's answer."""

    action: HandlerAction
    dead_letters: tuple[DeadLetterRecord, ...] = ()

    @classmethod
    def fail(cls, dead_letters: Sequence[DeadLetterRecord] = ()) -> HandlerResponse:
        """Stop: the task fails with the error."""
        return cls(HandlerAction.FAIL, tuple(dead_letters))

    @classmethod
    def resume(cls, dead_letters: Sequence[DeadLetterRecord] = ()) -> HandlerResponse:
        """Skip the record and continue."""
        return cls(HandlerAction.RESUME, tuple(dead_letters))

    @classmethod
    def retry(cls) -> HandlerResponse:
        """Send the record again; only for production handlers, and errors that may be temporary."""
        return cls(HandlerAction.RETRY)


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """Where the failed record came from: the input record that led to it and the node it failed in."""

    topic: str | None
    partition: int
    offset: int
    timestamp: int
    headers: Headers
    node: str | None
    task_id: TaskId
    raw_key: bytes | None = None
    """Key bytes of the input record, if still known."""
    raw_value: bytes | None = None


class DeserializationExceptionHandler(Protocol):
    """Decides about input records that cannot be deserialised."""

    def handle_error(self, context: ErrorContext, record: ConsumedRecord, exception: Exception) -> HandlerResponse:
        """Decide about a record, given as consumed, in bytes."""


class ProcessingExceptionHandler(Protocol):
    """Decides about records for which a node raised an exception; `record` is None in a punctuator."""

    def handle_error(
        self, context: ErrorContext, record: Record[Any, Any] | None, exception: Exception
    ) -> HandlerResponse:
        """Decide about the record that the node received."""


class ProductionExceptionHandler(Protocol):
    """Decides about records that cannot be serialised or that the broker refused."""

    def handle_error(self, context: ErrorContext, record: DeadLetterRecord, exception: Exception) -> HandlerResponse:
        """Decide about a record the broker refused; `record` is the record that should have been sent."""

    def handle_serialization_error(
        self, context: ErrorContext, topic: str, record: Record[Any, Any], exception: Exception
    ) -> HandlerResponse:
        """Decide about a record whose key or value the sink's serde cannot write."""


class _Configured:
    """Keeps the name of the dead-letter topic; the engine calls `configure` on every handler that has such a method."""

    dlq_topic: str | None = None

    def configure(self, config: StreamsConfig) -> None:
        """Get the dead-letter topic from the configuration."""
        self.dlq_topic = config.errors_dead_letter_queue_topic_name

    def _dead_letters(self, context: ErrorContext, exception: Exception) -> tuple[DeadLetterRecord, ...]:
        """Return the record of KIP-1034: the input's bytes, timestamp and headers, plus headers about the error."""
        if self.dlq_topic is None:
            return ()
        kind = type(exception)
        headers = (
            *context.headers,
            (HEADER_EXCEPTION, f"{kind.__module__}.{kind.__qualname__}".encode()),
            (HEADER_MESSAGE, str(exception).encode(errors="backslashreplace")),
            (HEADER_STACKTRACE, "".join(traceback.format_exception(exception)).encode(errors="backslashreplace")),
            (HEADER_TOPIC, None if context.topic is None else context.topic.encode()),
            (HEADER_PARTITION, str(context.partition).encode()),
            (HEADER_OFFSET, str(context.offset).encode()),
        )
        record = DeadLetterRecord(
            self.dlq_topic, context.raw_key, context.raw_value, context.timestamp, Headers(headers)
        )
        return (record,)


def _where(context: ErrorContext) -> str:
    if context.topic is None:
        return "in a punctuation"
    return f"on the record at offset {context.offset} of {context.topic}-{context.partition}"


class LogAndFailExceptionHandler(_Configured):
    """Log a record that cannot be read, and stop the task. The default."""

    def handle_error(self, context: ErrorContext, record: ConsumedRecord, exception: Exception) -> HandlerResponse:
        """Answer FAIL."""
        _log.error(
            "Cannot read the record at offset %d of %s-%d (task %s): %s",
            record.offset,
            record.topic,
            record.partition,
            context.task_id,
            exception,
        )
        return HandlerResponse.fail(self._dead_letters(context, exception))


class LogAndContinueExceptionHandler(_Configured):
    """Log a record that cannot be read, and skip it."""

    def handle_error(self, context: ErrorContext, record: ConsumedRecord, exception: Exception) -> HandlerResponse:
        """Answer RESUME."""
        _log.warning(
            "Skipping the record at offset %d of %s-%d, which cannot be read (task %s): %s",
            record.offset,
            record.topic,
            record.partition,
            context.task_id,
            exception,
        )
        return HandlerResponse.resume(self._dead_letters(context, exception))


class LogAndFailProcessingExceptionHandler(_Configured):
    """Log a record for which a node raised an exception, and stop the task. The default."""

    def handle_error(
        self,
        context: ErrorContext,
        record: Record[Any, Any] | None,  # noqa: ARG002
        exception: Exception,
    ) -> HandlerResponse:
        """Answer FAIL."""
        _log.error("Node %s failed %s (task %s): %r", context.node, _where(context), context.task_id, exception)
        return HandlerResponse.fail(self._dead_letters(context, exception))


class LogAndContinueProcessingExceptionHandler(_Configured):
    """Log a record for which a node raised an exception, and skip it. Changes already made to stores are kept."""

    def handle_error(
        self,
        context: ErrorContext,
        record: Record[Any, Any] | None,  # noqa: ARG002
        exception: Exception,
    ) -> HandlerResponse:
        """Answer RESUME."""
        _log.warning(
            "Node %s failed %s, which is skipped (task %s): %r",
            context.node,
            _where(context),
            context.task_id,
            exception,
            exc_info=exception,
        )
        return HandlerResponse.resume(self._dead_letters(context, exception))


class DefaultProductionExceptionHandler(_Configured):
    """Stop on every record that cannot be written, but retry temporary errors (KIP-1065)."""

    def handle_error(
        self,
        context: ErrorContext,
        record: DeadLetterRecord,  # noqa: ARG002
        exception: Exception,
    ) -> HandlerResponse:
        """Answer RETRY for a timeout, otherwise FAIL."""
        if isinstance(exception, TimeoutError):
            return HandlerResponse.retry()
        return HandlerResponse.fail(self._dead_letters(context, exception))

    def handle_serialization_error(
        self,
        context: ErrorContext,
        topic: str,  # noqa: ARG002
        record: Record[Any, Any],  # noqa: ARG002
        exception: Exception,
    ) -> HandlerResponse:
        """Answer FAIL."""
        return HandlerResponse.fail(self._dead_letters(context, exception))
