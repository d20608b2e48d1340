"""How a task handles failures of user code and data: it asks the exception handlers, sends dead letters, counts skipped records.

Everything here runs only after a failure, so it may be slow; the closures of the hot path bind these methods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from millrace.config import StreamsConfig
from millrace.dropped_records import DropAt, DropReason
from millrace.engine.record_collector_protocol import RecordCollector
from millrace.errors import (
    ConfigError,
    FailedProcessingError,
    ProcessorStateError,
    ProductionError,
    SerializationError,
    StreamsTimeoutError,
    TaskCorruptedError,
    TaskMigratedError,
    TransactionAbortedError,
    UnavailableSerdeError,
    is_unavailable,
)
from millrace.loading import implements, load_instance, loadable
from millrace.processor import handlers
from millrace.processor.handlers import (
    DeserializationExceptionHandler,
    ErrorContext,
    HandlerAction,
    HandlerResponse,
    ProcessingExceptionHandler,
    ProductionExceptionHandler,
)
from millrace.records import ConsumedRecord, Headers, Record, RecordContext, TaskId
from millrace.serdes.base import Serde

_log = logging.getLogger(__name__)

HANDLERS_BY_NAME: Final[Mapping[str, type[object]]] = {
    cls.__name__: cls
    for cls in (
        handlers.LogAndFailExceptionHandler,
        handlers.LogAndContinueExceptionHandler,
        handlers.LogAndFailProcessingExceptionHandler,
        handlers.LogAndContinueProcessingExceptionHandler,
        handlers.DefaultProductionExceptionHandler,
    )
}
PASS_THROUGH: Final = (
    FailedProcessingError,
    ProcessorStateError,
    ProductionError,
    StreamsTimeoutError,
    TaskCorruptedError,
    TaskMigratedError,
    TransactionAbortedError,
)
"""Errors already handled further down, and errors of the task itself: they are not passed to the processing handler."""
_MAX_SHOWN: Final = 120


class _ErrorHandler(Protocol):
    def handle_error(self, context: Any, record: Any, error: Exception) -> object: ...


def resolve_handler(value: object, default: type[object], key: str, config: StreamsConfig) -> Any:
    """Return the handler that a setting's value stands for, configured; see `millrace.loading` for what the value may be.

    Raises:
        ConfigError: the value names no handler.
    """
    handler = load_instance(default if value is None else value, key, HANDLERS_BY_NAME, config=config)
    _require_handler(handler, value, key)
    return handler


def check_handler(value: object, key: str) -> None:
    """Check the value of a setting without making a handler.

    Raises:
        ConfigError: the value names no handler.
    """
    if value is not None:
        _require_handler(loadable(value, key, HANDLERS_BY_NAME), value, key)


def _require_handler(handler: object, value: object, key: str) -> None:
    if not implements(handler, _ErrorHandler):
        raise ConfigError(f"{key}: {value!r} is not an exception handler: it has no method handle_error")


class ErrorHandling:
    """How one task handles records that cannot be read, processed or serialised."""

    def __init__(
        self,
        task_id: TaskId,
        config: StreamsConfig,
        record: RecordContext,
        collector: RecordCollector | None,
        drop_record: DropAt,
        *,
        of_global_stores: bool = False,
    ) -> None:
        """Resolve the handlers.

        Args:
            task_id: the task.
            config: names the handlers.
            record: the record being processed.
            collector: sends dead letters; None drops them with a warning.
            drop_record: counts a skipped record.
            of_global_stores: whether `processing.exception.handler.global.enabled` decides if the processing handler is
                asked at all (KIP-1270).

        Raises:
            ConfigError: a handler cannot be found.
        """
        self._asks_processing_handler = not of_global_stores or config.processing_exception_handler_global_enabled
        self._task_id = task_id
        self._record = record
        self._collector = collector
        self._drop = drop_record
        self._deserialization: DeserializationExceptionHandler = resolve_handler(
            config.deserialization_exception_handler or config.default_deserialization_exception_handler,
            handlers.LogAndFailExceptionHandler,
            "deserialization.exception.handler",
            config,
        )
        self._processing: ProcessingExceptionHandler = resolve_handler(
            config.processing_exception_handler,
            handlers.LogAndFailProcessingExceptionHandler,
            "processing.exception.handler",
            config,
        )
        self._production: ProductionExceptionHandler = resolve_handler(
            config.production_exception_handler or config.default_production_exception_handler,
            handlers.DefaultProductionExceptionHandler,
            "production.exception.handler",
            config,
        )

    def deserialization_failed(
        self, node: str, raw: ConsumedRecord, key_serde: Serde[object], value_serde: Serde[object], error: Exception
    ) -> None:
        """Ask the handler about an input record that cannot be read; return to skip it.

        Raises:
            SerializationError: the handler said FAIL; an UnavailableSerdeError if it is not the record's fault.
        """
        which, serde = ("value", value_serde)
        if raw.key is not None:
            try:
                key_serde.deserialize(raw.topic, raw.key, raw.headers)  # type: ignore[arg-type]
            except Exception:
                which, serde = ("key", key_serde)
        context = ErrorContext(
            raw.topic,
            raw.partition,
            raw.offset,
            raw.timestamp,
            raw.headers,
            node,
            self._task_id,
            raw.key,  # type: ignore[arg-type]
            raw.value,  # type: ignore[arg-type]
        )
        response = self._ask(
            lambda: self._deserialization.handle_error(context, raw, error), "deserialization", context
        )
        self._send_dead_letters(response)
        if response.action is HandlerAction.FAIL:
            kind = UnavailableSerdeError if is_unavailable(error) else SerializationError
            raise kind(
                f"Task {self._task_id}: source {node} cannot read the {which} at offset {raw.offset} of "
                f"{raw.topic}-{raw.partition} with {serde!r}: {error}. Give the source the serde the records were written "
                "with, or set deserialization.exception.handler to LogAndContinueExceptionHandler to skip such records."
            ) from error
        self._drop(node, DropReason.UNREADABLE)

    def processing_failed(
        self, node: str, error: Exception, key: object, value: object, timestamp: int, headers: Headers
    ) -> None:
        """Ask the handler about a record that made a node raise; return to skip it.

        Raises:
            FailedProcessingError: the handler said FAIL.
        """
        self._processing_failed(node, error, Record(key, value, timestamp, headers), timestamp, headers)

    def punctuation_failed(self, node: str, error: Exception, timestamp: int) -> None:
        """Ask the handler about a punctuator that raised; return to continue.

        Raises:
            FailedProcessingError: the handler said FAIL.
        """
        self._processing_failed(node, error, None, timestamp, self._record.headers)

    def _processing_failed(
        self, node: str, error: Exception, record: Record[object, object] | None, timestamp: int, headers: Headers
    ) -> None:
        if isinstance(error, PASS_THROUGH):
            raise error
        context = self._context(node, timestamp, headers)
        response, remedy = HandlerResponse.fail(), "processing.exception.handler.global.enabled=true and "
        if self._asks_processing_handler:
            response = self._ask(lambda: self._processing.handle_error(context, record, error), "processing", context)
            remedy = ""
        self._send_dead_letters(response)
        if response.action is HandlerAction.FAIL:
            raise FailedProcessingError(
                f"Task {self._task_id}: node {node} failed {self._where()}: {type(error).__name__}: {error}. "
                f"Set {remedy}processing.exception.handler to skip such records."
            ) from error
        self._drop(node, DropReason.FAILED)

    def serialization_failed(
        self,
        node: str,
        topic: str,
        key_serde: Serde[object],
        value_serde: Serde[object],
        error: Exception,
        record: Record[object, object],
    ) -> None:
        """Ask the handler about a record that a sink cannot serialise; return to skip it.

        Raises:
            FailedProcessingError: the handler said FAIL; its cause is a SerializationError.
        """
        which, serde, datum = ("value", value_serde, record.value)
        if record.key is not None:
            try:
                key_serde.serialize(topic, record.key, record.headers)
            except Exception:
                which, serde, datum = ("key", key_serde, record.key)
        shown = repr(datum)
        shown = shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + "…"
        problem = SerializationError(
            f"Task {self._task_id}: sink {node} cannot write the {which} {shown} of type {type(datum).__name__} to topic "
            f"{topic} with {serde!r} {self._where()}: {error}. Give the sink a serde for {type(datum).__name__} "
            f"(Produced.with_ in the DSL), or set default.{which}.serde."
        )
        context = self._context(node, record.timestamp, record.headers)
        response = self._ask(
            lambda: self._production.handle_serialization_error(context, topic, record, error), "production", context
        )
        self._send_dead_letters(response)
        if response.action is HandlerAction.RESUME:
            self._drop(node, DropReason.UNWRITABLE)
            return
        raise FailedProcessingError(str(problem)) from error

    def _context(self, node: str, timestamp: int, headers: Headers) -> ErrorContext:
        record = self._record
        return ErrorContext(
            record.topic,
            record.partition,
            record.offset,
            timestamp,
            headers,
            node,
            self._task_id,
            record.raw_key,
            record.raw_value,
        )

    def _where(self) -> str:
        record = self._record
        if record.topic is None:
            return "in a punctuation"
        return f"on the record at offset {record.offset} of {record.topic}-{record.partition}"

    def _ask(self, question: Callable[[], HandlerResponse], kind: str, context: ErrorContext) -> HandlerResponse:
        try:
            response = question()
        except Exception as error:
            raise FailedProcessingError(
                f"Task {self._task_id}: the {kind} exception handler itself failed {self._where()} "
                f"(node {context.node}): {error!r}"
            ) from error
        if not isinstance(response, HandlerResponse):
            raise FailedProcessingError(
                f"Task {self._task_id}: the {kind} exception handler returned {response!r}; "
                "return HandlerResponse.fail(), .resume() or .retry()"
            )
        return response

    def _send_dead_letters(self, response: HandlerResponse) -> None:
        for letter in response.dead_letters:
            if self._collector is None:
                _log.warning("Dead-letter record for %s is not sent: this task has no producer", letter.topic)
                continue
            self._collector.send(
                letter.topic, letter.key, letter.value, letter.timestamp, letter.headers, letter.partition
            )
