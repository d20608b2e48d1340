"""Sends tasks' records through their thread's producer, and knows up to which offsets changelogs have been written.

`send` never waits. A failed delivery is reported by librdkafka while the thread polls the producer, and handled by the next
`poll` or `flush`; offsets are committed only after `flush`, so the input offset of a record that the broker refused is not
committed.

**Refused records.** A broker refuses whole batches, and librdkafka's report of a record in one lacks its headers and
timestamp. So everything since the last commit is processed again, *carefully*: each record gets its own batch and a callback
that knows the whole record and its source. The production exception handler is asked about each refused record. If it says
RESUME, the record is skipped; under EOS, where the transaction has failed, it is left out when it comes up again, with its
dead letters in its place. It is recognised by topic, partition, key, value and timestamp. Output that differs each time
cannot be recognised, so the thread ends after several aborts without a match. There may be commits before the record comes
up again, so careful sending ends with the commit after it was found, or after a while.

Batches larger than a topic allows would be refused again and again, so they are made smaller once this has happened. The
topic may allow more later, and many small batches take long, so its setting is read again when careful sending ends.

**Changelog offsets** come from one ListOffsets request for the changelog partitions written since the last commit, sent
after `flush` and *before* the offsets are committed (0.8 ms for eight partitions). That end offset minus one is at least the
offset of our last record, since acks=all acknowledges nothing above the high watermark; and it covers nobody else's records,
since the commit that follows succeeds only while we own the task (its generation is checked) and others write only once they
own it. After the commit it would not be safe, because a new owner may have written by then. A delivery report for the last
record of each partition would say the same, but when a record is sent nobody knows that it is the last, and
`delivery.report.only.error` suppresses reports of successes.

Under EOS the commit then writes one marker after our records in each of these partitions, which is not included: a commit is
complete before every marker is in its log, and a store must never claim an offset that its changelog does not have yet. So a
restart finds one offset to read and no record in it.

Timestamp 0 cannot be sent, as librdkafka takes it for "now". It is sent as 1.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.engine.task import StreamTask
from millrace.errors import (
    ProductionError,
    StreamsError,
    StreamsTimeoutError,
    TaskMigratedError,
    TransactionAbortedError,
)
from millrace.instance.instrumentation import RecordTracer
from millrace.instance.producer import PURGED, StreamsProducer, delivery_error
from millrace.kafka.admin import topic_configs
from millrace.kafka.admin_requests import given_up
from millrace.kafka.offsets import latest_offsets
from millrace.processor.handlers import (
    DeadLetterRecord,
    ErrorContext,
    HandlerAction,
    HandlerResponse,
    ProductionExceptionHandler,
)
from millrace.records import Headers, TaskId, TopicPartition
from millrace.state.api import LogChange

__all__ = ["KafkaRecordCollector"]

_Identity = tuple[str, bytes | None, bytes | None, int, int]
"""Topic, key, value, partition and timestamp of a record, as passed to the producer."""

_log = logging.getLogger(__name__)
_BLOCK_S: Final = 60.0
"""How long `send` may wait for room in the producer's buffer (Java: max.block.ms)."""
_SETTINGS_S: Final = 10.0
"""How long to wait for topics' settings, which are not essential."""
_REFUSED_AT_ONCE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._UNKNOWN_PARTITION})  # noqa: SLF001
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
"""Refusals that may be a whole batch's fault."""
_NOT_FOR_HANDLERS: Final = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION}
    | {KafkaError.UNKNOWN, KafkaError.SECURITY_DISABLED, KafkaError.SASL_AUTHENTICATION_FAILED}
)
"""Errors that concern all records alike, so the handler is not asked, as in Java."""
_CAREFUL_S: Final = 60.0
"""How long to send carefully after a refusal: longer than it takes to reach the record again."""
_MAX_IN_VAIN: Final = 10
"""How many aborts in a row, without recognising a refused record, end the thread."""
_NO_PARTITION: Final = -1
"""librdkafka then partitions with murmur2_random: murmur2 of the key, sticky for null keys."""


class _Undelivered:
    """The report of a record that was not delivered.

    Args:
        error: why.
        record: the known parts of the record.
        identity: None unless it was sent carefully.
        source: the record it was made from, if known.
        task: the task that sent it, if known.
    """

    def __init__(
        self,
        error: KafkaError,
        record: DeadLetterRecord,
        identity: _Identity | None = None,
        source: ErrorContext | None = None,
        task: StreamTask | None = None,
    ) -> None:
        self.error = error
        self.code = error.code()
        self.record = record
        self.identity = identity
        self.source = source
        self.task = task
        made_from = ""
        if source is not None:
            where = f"offset {source.offset} of {source.topic}-{source.partition}"
            made_from = f", made from the record at {where} (task {source.task_id})"
        self.failure = delivery_error(error, record.topic, record.partition, record.key, record.timestamp, made_from)


class KafkaRecordCollector:
    """The record collector of one stream thread, shared by its tasks.

    Args:
        producer: the thread's.
        admin: used for metadata and end offsets.
        config: the application's.
        handler: asked about each record that the broker refused for good; None = fail.
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
        self._reports: list[_Undelivered] = []
        self._failure: StreamsError | None = None
        """The error to raise until `discard`."""
        self._careful = False
        """Whether each record is sent with its own callback, because one was refused recently."""
        self._careful_until = 0.0
        self._found = False
        """Whether a refused record has been found since careful sending began."""
        self._let_go: dict[_Identity, tuple[DeadLetterRecord, ...]] = {}
        """Records to leave out, and the dead letters to send in their place."""
        self._left_out: dict[_Identity, StreamTask | None] = {}
        """Records left out since the last commit, and the tasks that sent them."""
        self._in_vain = 0
        self._limited: set[str] = set()
        """Topics that have refused a batch because of its size."""
        self.at_work: StreamTask | None = None
        """The task whose records are sent."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers,
        partition: int | None,
    ) -> None:
        """Send one record; see `millrace.engine.record_collector_protocol.RecordCollector`."""
        producer = self._producer
        if producer.transactional and not producer.in_transaction:
            producer.begin()
        if self._tracer is not None:
            headers = self._tracer.inject(topic, headers)
        where = _NO_PARTITION if partition is None else partition
        stamp = 0 if timestamp is None else timestamp or 1
        if self._careful:
            self._send_carefully(topic, key, value, stamp, headers, where)
            return
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

    def has_written(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether anything was written to one of these changelog partitions since `committed` or `discard`."""
        return any(partition in self._senders and self._senders[partition][1][0] for partition in partitions)

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has, refreshed every `metadata.max.age.ms`."""
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
            TransactionAbortedError: the records since the last commit must be processed again.
            TaskMigratedError: the producer is fenced.
        """
        self._producer.poll()
        self._settle_reports()

    def flush(self) -> None:
        """Wait until every record sent so far is acknowledged; see `RecordCollector`."""
        while True:
            left = self._producer.flush(lambda: bool(self._reports))
            sent = self._settle_reports()
            if not (left or sent):
                return

    def changelog_offsets(self) -> Mapping[TopicPartition, int]:
        """Return the offset of the last record of each changelog partition written since `committed`; call after `flush`."""
        written = [partition for partition, (_, flag) in self._senders.items() if flag[0]]
        if not written:
            return {}
        deadline = self._producer.deadline(self._request_timeout_s)
        try:
            with self._producer.progress.waiting_for("the ends of changelogs"):
                ends = latest_offsets(self._admin, written, deadline.left_s())
        except StreamsTimeoutError as error:
            raise self._producer.in_vain(str(error)) from error
        return {partition: end - 1 for partition, end in ends.items() if end > 0}

    def committed(self) -> None:
        """Note that all records written so far are committed and stored."""
        self._forget_written()
        if self._careful:
            for identity, task in self._left_out.items():
                self._let_go.pop(identity, None)
                if task is not None:
                    task.refused(identity[0])
            self._left_out.clear()
            if (self._found and not self._let_go) or time.monotonic() >= self._careful_until:
                self._end_care()
                self._producer.replace()

    def discard(self) -> None:
        """Forget reports and written records, when tasks are closed dirty; records to be left out are remembered."""
        self._reports.clear()
        self._failure = None
        self._left_out.clear()
        self._forget_written()

    def _forget_written(self) -> None:
        for _, flag in self._senders.values():
            flag[0] = False

    # Records that were not delivered

    def on_failure(self, error: KafkaError, message: Message) -> None:
        """Take the report of a record that was not delivered, to be handled outside of librdkafka's call."""
        record = DeadLetterRecord(
            message.topic() or "", message.key(), message.value(), None, partition=message.partition()
        )
        self._reports.append(_Undelivered(error, record))

    def _send_carefully(
        self, topic: str, key: bytes | None, value: bytes | None, stamp: int, headers: Headers, partition: int
    ) -> None:
        """Send a record with a callback that knows the whole record, or leave it out if it was refused before and skipped."""
        identity = topic, key, value, partition, stamp
        letters = self._let_go.get(identity)
        if letters is not None:
            self._in_vain = 0
            self._found = True
            self._left_out[identity] = self.at_work
            self._send_all(letters)
            return

        source, task = self._source(), self.at_work

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None and error.code() not in PURGED:
                record = DeadLetterRecord(topic, key, value, stamp, headers, message.partition())
                self._reports.append(_Undelivered(error, record, identity, source, task))

        try:
            self._producer.client.produce(topic, value, key, partition, report, None, stamp, list(headers))
        except (BufferError, KafkaException) as error:
            self._send_again(error, topic, key, value, stamp, headers, partition, report)

    def _settle_reports(self) -> bool:
        """Handle the records that were not delivered; return whether anything was sent.

        An error is raised again on every call until `discard`, because user code may swallow exceptions from `forward`.

        Raises:
            ProductionError: a record was refused, and the handler said FAIL.
            TransactionAbortedError: uncommitted records must be processed again.
            TaskMigratedError: the producer is fenced.
        """
        if self._failure is not None:
            raise self._failure
        if not self._reports:
            return False
        reports, self._reports = self._reports, []
        try:
            return self._settle(reports)
        except StreamsError as error:
            self._failure = error
            raise

    def _settle(self, reports: list[_Undelivered]) -> bool:
        for report in reports:
            if isinstance(report.failure, TaskMigratedError) or report.code in _NOT_FOR_HANDLERS:
                raise report.failure
        refused = [report for report in reports if not isinstance(report.failure, TransactionAbortedError)]
        known = all(report.identity is not None for report in refused)
        if known and len(refused) == len(reports) and not self._producer.transactional:
            self._found = True
            answers = [self._drop(report) for report in refused]
            return self._send_all(letter for letters in answers for letter in letters)
        if refused:
            self._be_careful(refused)
        for report in refused:
            if report.identity is not None and (letters := self._ask_handler(report)) is not None:
                self._let_go[report.identity] = letters
        if any(report.identity in self._let_go for report in refused):
            self._check_progress()
        cause = (refused or reports)[0].failure
        if isinstance(cause, TransactionAbortedError):
            if self._careful and time.monotonic() >= self._careful_until:
                self._end_care()  # without a commit, as one by one the records may take too long
            self._producer.must_be_replaced = True
            raise cause
        raise TransactionAbortedError(f"{cause}. The records since the last commit are processed again")

    def _be_careful(self, refused: list[_Undelivered]) -> None:
        """Send each record in its own batch, starting after the next abort."""
        self._limited |= {each.record.topic for each in refused if each.code in _TOO_LARGE}
        self._limit_batches()
        self._careful = self._producer.one_by_one = True
        self._careful_until = time.monotonic() + _CAREFUL_S
        self._found = False
        self._producer.must_be_replaced = True

    def _end_care(self) -> None:
        self._careful = self._producer.one_by_one = False
        self._let_go.clear()
        self._in_vain = 0
        self._limit_batches()

    def _check_progress(self) -> None:
        self._in_vain += 1
        if self._in_vain > _MAX_IN_VAIN:
            topics = ", ".join(sorted({topic for topic, *_ in self._let_go}))
            raise ProductionError(
                f"Refused records for {topics} cannot be left out: whenever the records since the last commit are processed "
                "again, the output differs. Derive key, value and timestamp from the input alone, or send only records that the "
                "topic accepts"
            )

    def _limit_batches(self) -> None:
        """Make batches no larger than the topics that have refused some allow now."""
        if not self._limited:
            return
        try:
            deadline = self._producer.deadline(min(_SETTINGS_S, self._request_timeout_s))
            known = topic_configs(self._admin, sorted(self._limited), deadline.left_s())
            settings = ("max.message.bytes", "segment.bytes")
            limit = min(int(known[topic][key]) for topic in self._limited for key in settings)
        except (StreamsError, KeyError):  # a topic's settings cannot be read, so every such batch costs an abort
            return
        self._producer.limit_batches(limit)

    def _ask_handler(self, report: _Undelivered) -> tuple[DeadLetterRecord, ...] | None:
        """Ask the handler about a refused record; return its dead letters if it said RESUME, None to send it again."""
        record, failure = report.record, report.failure
        response = HandlerResponse.fail()
        if self._handler is not None:
            context = report.source or ErrorContext(
                *(None, -1, -1, record.timestamp or -1, record.headers, None, TaskId(-1, -1)), record.key, record.value
            )
            try:
                response = self._handler.handle_error(context, record, failure)
            except Exception as problem:
                raise ProductionError(
                    f"{failure}. The production exception handler itself failed: {problem!r}"
                ) from problem
        if response.action is HandlerAction.RETRY and report.error.retriable():
            return None
        if response.action is HandlerAction.RESUME:
            _log.warning("%s; the production exception handler drops it", failure)
            return response.dead_letters
        if not self._producer.transactional:  # an aborted transaction would discard the dead letters
            self._send_all(response.dead_letters)
        raise failure

    def _drop(self, report: _Undelivered) -> tuple[DeadLetterRecord, ...]:
        """Ask the handler about a refused record that is not sent again; count it, and return its dead letters."""
        letters = self._ask_handler(report)
        if letters is not None and report.task is not None:
            report.task.refused(report.record.topic)
        return letters or ()

    def _source(self) -> ErrorContext | None:
        """Return the record being processed, from which a dead letter is made."""
        task = self.at_work
        if task is None or task.record.topic is None:  # a punctuation
            return None
        of = task.record
        return ErrorContext(
            of.topic, of.partition, of.offset, of.timestamp, of.headers, None, task.task_id, of.raw_key, of.raw_value
        )

    def _send_all(self, letters: Iterable[DeadLetterRecord]) -> bool:
        sent = False
        for letter in letters:
            self.send(letter.topic, letter.key, letter.value, letter.timestamp, letter.headers, letter.partition)
            sent = True
        return sent

    # Inside

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
            if self._careful:
                self._send_carefully(topic, key, value, stamp, headers, number)
                return
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
        report: Callable[[KafkaError | None, Message], None] | None = None,
    ) -> None:
        if isinstance(error, KafkaException):
            cause: KafkaError = error.args[0]
            if cause.code() not in _REFUSED_AT_ONCE:
                failure = self._producer.send_error(error, topic, lambda: bool(self._reports))
                self._settle_reports()  # raises the error if a refused record has failed the transaction
                raise failure from error
            record = DeadLetterRecord(topic, key, value, timestamp, headers, partition)
            try:
                self._send_all(self._drop(_Undelivered(cause, record, None, self._source(), self.at_work)))
            except StreamsError as refusal:
                self._failure = refusal
                raise
            return
        deadline = self._producer.deadline(_BLOCK_S)
        produce: Callable[..., None] = self._producer.client.produce
        while not deadline.passed and not given_up():
            with self._producer.progress.waiting_for("room in the producer's buffer"):
                self._producer.poll(0.05)
            self._settle_reports()
            try:
                produce(topic, value, key, partition, report, None, timestamp, list(headers))
            except BufferError:
                continue
            except KafkaException as problem:
                self._send_again(problem, topic, key, value, timestamp, headers, partition, report)
            return
        raise self._producer.in_vain(
            f"No room in the producer's buffer for a record to {topic} in time: the brokers accept records more slowly than "
            "they are produced. Check the brokers, or raise producer.queue.buffering.max.kbytes"
        )

    def _ask_partition_count(self, topic: str) -> int:
        deadline = self._producer.deadline(_BLOCK_S)
        problem = "no answer"
        while not deadline.passed and not given_up():
            try:
                with self._producer.progress.waiting_for(f"the number of partitions of {topic}"):
                    known = self._admin.list_topics(topic, timeout=min(5.0, deadline.left_s(0.1))).topics
            except KafkaException as error:
                problem = error.args[0].str()
                continue
            metadata = known.get(topic)
            if metadata is not None and metadata.error is None and metadata.partitions:
                return len(metadata.partitions)
            problem = "it does not exist" if metadata is None or metadata.error is None else metadata.error.str()
            self._producer.poll(0.1)
        raise self._producer.in_vain(
            f"Cannot learn how many partitions {topic} has: {problem}. Create it, or check its ACLs"
        )
