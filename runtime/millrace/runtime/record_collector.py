"""Sends what tasks produce through their thread's producer, and knows up to where the changelogs are written.

`send` waits for nothing. A failed delivery is reported by librdkafka while the thread polls the producer, and raised by the
next `poll` or `flush`; offsets are committed only after `flush`, so a record that the broker refused keeps its input
offset from being committed. Under EOS the transaction could not commit either.

**Changelog offsets** come from one ListOffsets request for the changelog partitions written since the last commit, sent
after `flush` and *before* the offsets are committed (0.8 ms for eight partitions). That end offset minus one is at least the
offset of our last record, since acks=all acknowledges nothing above the high watermark; and it covers nobody else's
records, since the commit that follows succeeds only while we own the task (its generation is checked) and others write
only once they own it. After the commit it would not be safe: a new owner may have written by then. A delivery report for the
last record of each partition would say the same, but nothing tells which record is the last while it is sent, and
reports of successes cannot be had beside `delivery.report.only.error`.

Under EOS the commit then writes one marker behind our records of each of these partitions. It is counted in, so that a restart
finds nothing to restore.

Timestamp 0 cannot be sent: librdkafka takes it for "now". It is sent as 1.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.errors import StreamsError, StreamsTimeoutError, TaskMigratedError, TransactionAbortedError
from millrace.kafka.offsets import latest_offsets
from millrace.processor.handlers import (
    DeadLetterRecord,
    ErrorContext,
    HandlerAction,
    HandlerResponse,
    ProductionExceptionHandler,
)
from millrace.records import Headers, TaskId, TopicPartition
from millrace.runtime.instrumentation import RecordTracer
from millrace.runtime.producer import StreamsProducer, delivery_error, send_error
from millrace.state.api import LogChange

__all__ = ["KafkaRecordCollector"]

_log = logging.getLogger(__name__)
_BLOCK_S: Final = 60.0
"""How long `send` may wait for room in the producer's buffer (Java: max.block.ms)."""
_REFUSED_AT_ONCE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._UNKNOWN_PARTITION})  # noqa: SLF001
_NO_PARTITION: Final = -1
"""librdkafka then partitions with murmur2_random: murmur2 of the key, sticky for null keys."""


class KafkaRecordCollector:
    """The record collector of one stream thread, shared by its tasks.

    Args:
        producer: the thread's.
        admin: used for metadata and end offsets.
        config: the application's.
        handler: asked about each record that could not be delivered (at-least-once only: under EOS the transaction is
            lost with it); None fails.
        tracer: adds the trace context to headers; None costs nothing.
    """

    def __init__(
        self,
        producer: StreamsProducer,
        admin: AdminClient,
        config: StreamsConfig,
        handler: ProductionExceptionHandler | None = None,
        tracer: RecordTracer | None = None,
    ) -> None:
        self._producer = producer
        producer.on_failure = self.on_failure
        self._admin = admin
        self._handler = handler
        self._tracer = tracer
        self._metadata_max_age_s = config.metadata_max_age_ms / 1000
        self._request_timeout_s = config.task_timeout_ms / 1000
        self._partition_counts: dict[str, tuple[int, float]] = {}
        self._senders: dict[TopicPartition, tuple[LogChange, list[bool]]] = {}
        self._failure: StreamsError | None = None
        self.dropped_total = 0
        """Records that the production exception handler let go."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Send one record; see `millrace.engine.collector.RecordCollector`."""
        producer = self._producer
        if producer.transactional and not producer.in_transaction:
            producer.begin()
        if self._tracer is not None:
            headers = self._tracer.inject(topic, headers)
        where = _NO_PARTITION if partition is None else partition
        stamp = 0 if timestamp is None else timestamp or 1
        try:
            if headers:
                producer.client.produce(topic, value, key, where, None, None, stamp, list(headers))
            else:
                producer.client.produce(topic, value, key, where, None, None, stamp)
        except (BufferError, KafkaException) as error:
            self._send_again(error, topic, key, value, stamp, headers, where)

    def change_sender(self, partition: TopicPartition) -> LogChange:
        """Return the function that sends changes to one changelog partition."""
        known = self._senders.get(partition)
        if known is not None:
            return known[0]
        sender, written = self._make_sender(partition)
        self._senders[partition] = sender, written
        return sender

    def forget(self, partition: TopicPartition) -> None:
        """Drop a changelog partition whose task is closed."""
        self._senders.pop(partition, None)

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has, asked anew every `metadata.max.age.ms`."""
        known = self._partition_counts.get(topic)
        if known is not None and time.monotonic() < known[1]:
            return known[0]
        count = self._ask_partition_count(topic)
        self._partition_counts[topic] = count, time.monotonic() + self._metadata_max_age_s
        return count

    def poll(self) -> None:
        """Take delivery reports; call once per round of the thread.

        Raises:
            ProductionError: a record was refused for good.
            TaskMigratedError: the producer is fenced.
        """
        self._producer.poll()
        self._raise_failure()

    def flush(self) -> None:
        """Wait until every record sent so far is acknowledged; see `RecordCollector`."""
        self._producer.flush()
        self._raise_failure()

    def changelog_offsets(self) -> Mapping[TopicPartition, int]:
        """Return the offset of the last record of each changelog partition written since `committed`; call after `flush`."""
        written = [partition for partition, (_, flag) in self._senders.items() if flag[0]]
        if not written:
            return {}
        ends = latest_offsets(self._admin, written, self._request_timeout_s)
        marker = 1 if self._producer.transactional else 0
        return {partition: end - 1 + marker for partition, end in ends.items() if end > 0}

    def committed(self) -> None:
        """Note that what was written so far is committed and stored."""
        for _, flag in self._senders.values():
            flag[0] = False

    def discard(self) -> None:
        """Forget failures and what was written: the tasks that did it are closed dirty."""
        self._failure = None
        self.committed()

    def on_failure(self, error: KafkaError, message: Message) -> None:
        """Take the report of a record that was not delivered."""
        failure = delivery_error(error, message.topic(), message.partition(), message.key())
        if isinstance(failure, TaskMigratedError | TransactionAbortedError) or self._producer.transactional:
            self._failure = self._failure or failure
            return
        record = DeadLetterRecord(
            message.topic() or "", message.key(), message.value(), message.timestamp()[1], partition=message.partition()
        )
        self._ask_handler(error, record, failure)

    def _ask_handler(self, error: KafkaError, record: DeadLetterRecord, failure: StreamsError) -> None:
        response = HandlerResponse.fail()
        if self._handler is not None:
            context = ErrorContext(None, -1, -1, record.timestamp or -1, record.headers, None, TaskId(-1, -1))
            response = self._handler.handle_error(context, record, failure)
        for letter in response.dead_letters:
            self.send(letter.topic, letter.key, letter.value, letter.timestamp, letter.headers, letter.partition)
        if response.action is HandlerAction.RETRY and error.retriable():
            self.send(record.topic, record.key, record.value, record.timestamp, record.headers, record.partition)
        elif response.action is HandlerAction.RESUME:
            self.dropped_total += 1
            _log.warning("%s; the production exception handler lets it go", failure)
        else:
            self._failure = self._failure or failure

    def _make_sender(self, partition: TopicPartition) -> tuple[LogChange, list[bool]]:
        topic, number = partition
        producer = self._producer
        transactional = producer.transactional
        written = [False]
        send_again = self._send_again

        def send_change(key: bytes, value: bytes | None, timestamp: int | None, headers: Headers) -> None:
            if transactional and not producer.in_transaction:
                producer.begin()
            written[0] = True
            stamp = 0 if timestamp is None else timestamp or 1
            try:
                if headers:
                    producer.client.produce(topic, value, key, number, None, None, stamp, list(headers))
                else:
                    producer.client.produce(topic, value, key, number, None, None, stamp)
            except (BufferError, KafkaException) as error:
                send_again(error, topic, key, value, stamp, headers, number)

        return send_change, written

    def _send_again(
        self,
        error: BufferError | KafkaException,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int,
    ) -> None:
        if isinstance(error, KafkaException):
            cause: KafkaError = error.args[0]
            if cause.code() not in _REFUSED_AT_ONCE:
                raise send_error(error, topic, transactional=self._producer.transactional) from error
            record = DeadLetterRecord(topic, key, value, timestamp, headers, partition)
            self._ask_handler(cause, record, delivery_error(cause, topic, partition, key))
            self._raise_failure()
            return
        deadline = time.monotonic() + _BLOCK_S
        produce: Callable[..., None] = self._producer.client.produce
        while time.monotonic() < deadline:
            self._producer.poll(0.05)
            self._raise_failure()
            try:
                produce(topic, value, key, partition, None, None, timestamp, list(headers))
            except BufferError:
                continue
            return
        raise StreamsTimeoutError(
            f"No room in the producer's buffer for a record to {topic} in {_BLOCK_S:.0f} s: the brokers take records "
            "more slowly than they are made. Check the brokers, or raise producer.queue.buffering.max.kbytes"
        )

    def _ask_partition_count(self, topic: str) -> int:
        deadline = time.monotonic() + _BLOCK_S
        problem = "no answer"
        while time.monotonic() < deadline:
            try:
                metadata = self._admin.list_topics(topic, timeout=5.0).topics.get(topic)
            except KafkaException as error:
                problem = error.args[0].str()
                continue
            if metadata is not None and metadata.error is None and metadata.partitions:
                return len(metadata.partitions)
            problem = "it does not exist" if metadata is None or metadata.error is None else metadata.error.str()
            self._producer.poll(0.1)
        raise StreamsTimeoutError(
            f"Cannot learn how many partitions {topic} has: {problem}. Create it, or check its ACLs"
        )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
