"""A transactional producer of a backfill, under an id that every backfill of the application uses for the same purpose.

It is never started again, unlike that of a stream thread: who has fenced it is a later backfill, which a new start would fence.
So after a transaction that failed, or of which brokers may still get a request, it begins no other one.
`partition_write` writes a partition with it, `publish` a whole result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Self

from confluent_kafka import KafkaError, KafkaException

from millrace.deadline import Deadline
from millrace.errors import (
    ConfigError,
    ProductionError,
    StreamsError,
    StreamsTimeoutError,
    TaskMigratedError,
    TransactionAbortedError,
)
from millrace.instance.background import in_background
from millrace.instance.producer import StreamsProducer, delivery_error
from millrace.kafka.group_metadata import encode_group_metadata
from millrace.records import Headers, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Message

    from millrace.kafka.client_settings import ClientSettings

__all__ = ["Writer"]

_FENCED: Final = "Another backfill of this application was started, so this one has been fenced and writes nothing more"
_REPEATED: Final = (
    "A request of this backfill's last transaction may have been sent twice, because a connection to a broker broke, and might "
    "end the next one half-way: nothing of that one is written. Start the backfill again"
)
_POLL_EVERY: Final = 1_000
Sent = tuple["bytes | None", "bytes | None", int, Headers]
"""Key, value, timestamp and headers."""
_FULL_S: Final = 0.15
"""How long to wait for room in the queue; see `_FLUSH_STEP_S` of `millrace.instance.producer`."""
_ABORT_S: Final = 10.0


class Writer:
    """A producer that is started at once, and fences the one that had its id before.

    Args:
        clients: the backfill's.
        transactional_id: the id.

    Raises:
        ConfigError: brokers do not allow its transactions to take that long, or its user to have any.
        StreamsTimeoutError: no transaction coordinator answered.
    """

    def __init__(self, clients: ClientSettings, transactional_id: str) -> None:
        def settings() -> Any:
            found = clients.producer(0)
            found["transactional.id"] = transactional_id
            return found

        self._failure: StreamsError | None = None
        self.timeout_ms = int(settings()["transaction.timeout.ms"])
        """How long a transaction may take."""
        self._expiry: Deadline | None = None
        self._latest: dict[TopicPartition, int] = {}
        """The latest timestamp sent to each partition."""
        self._producer = StreamsProducer(settings, clients.config.task_timeout_ms, watched=True)
        self._producer.on_failure = self._on_failure
        try:
            self._producer.start()
        except StreamsError as error:
            cause = error.__cause__
            code = cause.args[0].code() if isinstance(cause, KafkaException) else None
            if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise ConfigError(
                    f"Publishing may take {self.timeout_ms:,} ms, which is more than the brokers allow a transaction: raise "
                    "their transaction.max.timeout.ms, or set producer.transaction.timeout.ms to what they allow"
                ) from error
            if code == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                raise ConfigError(
                    f"The application's user may not write under the transactional id {transactional_id}. Backfills write in "
                    "transactions under every guarantee: grant it DESCRIBE and WRITE on transactional ids with the prefix "
                    f"{clients.config.application_id}"
                ) from error
            raise

    def transaction(self) -> Writer:
        """Begin a transaction with what is sent first; leaving the block without a commit aborts it."""
        self._expiry = None
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._producer.in_transaction:
            self._producer.in_transaction = False
            # Fenced producers refuse even this; others are ended by their successors. For the thread see `_send`.
            in_background("abort", partial(self._producer.client.abort_transaction, _ABORT_S)).exception()
            self._producer.must_be_replaced = True

    def send(self, target: TopicPartition, records: Iterable[Sent]) -> None:
        """Send records; a timestamp of 0 would mean now, and becomes 1 as in the engine."""
        following = iter(records)
        while some := list(islice(following, _POLL_EVERY)):
            self._begin()
            self._latest[target] = max(self._latest.get(target, 0), max(some, key=itemgetter(2))[2])
            failure = self._send(target, some)
            self._check(self._producer.poll if failure is None else partial(self._fail, failure, target.topic))

    def _fail(self, error: KafkaException, topic: str) -> None:
        raise self._producer.send_error(error, topic, lambda: self._failure is not None) from error

    def _send(self, target: TopicPartition, records: Sequence[Sent]) -> KafkaException | None:
        """Send records, and return what ends it, so that nothing is done with the client while that is being handled.

        confluent-kafka (2.16) never frees what is being handled when it raises an exception, with the clients of its traceback.
        """
        produce = self._producer.client.produce
        topic, partition = target
        for key, value, timestamp, headers in records:
            while True:
                try:
                    produce(
                        topic,
                        value,
                        key,
                        partition,
                        None,
                        None,
                        timestamp or 1,
                        list(headers) if headers else None,
                    )
                    break
                except BufferError:
                    pass
                except KafkaException as error:
                    return error
                self._check(partial(self._producer.poll, _FULL_S))
        return None

    def flush(self) -> None:
        """Wait until every record has an offset."""
        self._check(self._producer.flush)

    def add_offsets(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit the offsets of one more group in this transaction, once every record has an offset."""
        self.flush()
        self._begin()
        group = encode_group_metadata(group_id, -1, "", None)
        self._check(lambda: self._producer.add_offsets(offsets, group))

    def commit(
        self,
        application_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        confirm: Callable[[], None] | None = None,
    ) -> None:
        """Commit the transaction.

        Args:
            application_id: the group's name.
            offsets: its offsets, if there are any.
            confirm: called once these are part of the transaction: from then on, who asks the group for them waits for its end.
                What it raises is raised, and nothing is committed. It may take as long as it likes within the transaction's
                timeout.

        Raises:
            StreamsTimeoutError: the brokers did not answer, so nobody knows whether it was committed.
        """
        self.add_offsets(application_id, offsets)
        if confirm is not None:
            confirm()
        group = encode_group_metadata(application_id, -1, "", None)
        self._check(lambda: self._producer.commit({}, group))

    def close(self) -> None:
        """Close the producer, maybe while an exception is being handled; see `_send`."""
        in_background("close", self._producer.close).result()

    def _begin(self) -> None:
        """Begin the transaction with its first record or offset: from then on, brokers count how long it takes."""
        if not self._producer.in_transaction:
            if self._producer.must_be_replaced:
                raise TransactionAbortedError(_REPEATED)
            self._check(self._producer.begin)
            self._expiry = Deadline(self.timeout_ms / 1000)

    def _check(self, call: Callable[[], object]) -> None:
        """Call the producer, and raise the failure of a record before any that comes of it: no second attempt mends that."""
        try:
            try:
                call()
            except (TaskMigratedError, TransactionAbortedError):
                if self._failure is None:
                    raise
            if self._failure is not None:
                raise self._failure
        except TaskMigratedError as error:
            if self._expiry is not None and self._expiry.passed:
                raise StreamsTimeoutError(
                    f"A transaction was not committed within producer.transaction.timeout.ms ({self.timeout_ms:,} ms), so the "
                    "brokers have aborted it. Set it higher, up to the brokers' transaction.max.timeout.ms. Or, if it was not "
                    "that of a single partition, have less written in one transaction (--transaction-records, or "
                    "transactionRecords of a StreamsBackfill)"
                ) from error
            raise TaskMigratedError(_FENCED) from error
        except TransactionAbortedError as error:
            raise _ended(error) from error

    def _on_failure(self, error: KafkaError, message: Message) -> None:
        # Only the latest of a partition's timestamps can be too late. Any other may be too early.
        latest = self._latest.get(TopicPartition(message.topic() or "", message.partition() or 0), 0)
        ahead = latest if latest > time.time() * 1000 else None
        failure = delivery_error(error, message.topic(), message.partition(), message.key(), ahead)
        known = isinstance(failure, TaskMigratedError)
        self._failure = self._failure or (failure if known else ProductionError(str(failure)))


def _ended(error: TransactionAbortedError) -> StreamsError:
    """Return what to tell the user of a backfill if a stream thread would begin its transaction again."""
    cause = error.__cause__
    if isinstance(cause, StreamsTimeoutError):  # of the commit itself
        return StreamsTimeoutError(
            f"It is not known whether a transaction of this backfill was committed, because the brokers did not answer: {cause}. "
            "It was wholly or not at all. Start the backfill again once they answer; a StreamsBackfill does so while it has "
            "attempts left. With the same --attempt-of, it does nothing if everything was committed. Otherwise it replaces the "
            "result, and outputs that were committed are written once more"
        )
    why = cause.args[0].str() if isinstance(cause, KafkaException) else "the brokers did not answer in time"
    return TransactionAbortedError(
        f"A transaction of this backfill has failed, so nothing of it was written: {why}. Start the backfill again"
    )
