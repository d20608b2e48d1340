"""The one producer of a stream thread: plain under at-least-once, transactional under EOS-v2 (KIP-447).

Under EOS-v2 a transaction begins with the first record after a commit and covers every task of the thread. The brokers' answers
are mapped to the four things that a thread can do:

| answer | raised | what the thread does |
|---|---|---|
| the group moved on (22, 25, 82), or a newer producer has our id (fenced) | TaskMigratedError | abort, drop its tasks, rejoin |
| the transaction must be aborted; a record was not delivered in time | TransactionAbortedError | abort, revive tasks |
| a record was refused, and the handler says FAIL | ProductionError | abort, end |
| the user may not write to a topic, or not commit offsets | ProductionError, AuthorizationError | abort, end |
| a batch was refused: its records are sent again, one by one | TransactionAbortedError | abort, revive tasks |
| a record was refused, and the handler says RESUME (EOS) | TransactionAbortedError | abort, revive tasks; it is left out |
| no answer in time | StreamsTimeoutError, after retrying for `task.timeout.ms` | end |

A record that was not delivered in time is not simply sent again: its report has no headers, and others have overtaken it.

A refused record fails the transaction before it is reported, so calls in between only say that the transaction has failed.
So delivery reports are taken before offsets are added, and before `send_error` says why a record could not be sent.

Nothing is on disk before its commit (see `millrace.state.api`), so an aborted transaction costs no state, only work.

**Repeated requests.** When the connection breaks before a request is answered, librdkafka sends the request again and
reports success. The first one may reach its broker long afterwards. If that is during the next transaction with the same
epoch, it ends that one half-way, or resets the group's offsets to older ones. (The brokers' transaction protocol 2 raises
the epoch with each transaction, but librdkafka does not support it.) So when a request may have been sent twice, a new
producer takes over before the next transaction begins: its start raises the epoch, and the brokers refuse late requests.
librdkafka waits before it repeats a request, so a quick call was sent once. After the first slow call the producer is
replaced by one that is *watched*: from then on a slow call only counts as repeated if the log does not show that it was sent
once. AddPartitionsToTxn and AddOffsetsToTxn may come late: the end of the transaction settles all that they add.

**Failed deliveries.** librdkafka reports the delivery of every record; a Python call for each would double the cost of sending.
`delivery.report.only.error` keeps the calls for failures: 0.67 µs per record against 0.65 µs without any reports, 0.92 µs
with a default `on_delivery`, and 0.80-1.2 µs with one per call (main thread CPU, 50-byte values, best of three runs).
Passing arguments by position saves another 0.3 µs: `produce(topic, value, key, partition, None, None, timestamp, headers)`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import wait
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition

from millrace.deadline import Deadline
from millrace.errors import (
    AuthorizationError,
    ProductionError,
    StreamsError,
    StreamsTimeoutError,
    TaskMigratedError,
    TransactionAbortedError,
)
from millrace.instance.activity import LoopProgress
from millrace.instance.background import in_background
from millrace.kafka.clients import librdkafka_log, open_producer
from millrace.kafka.security import ClientProperties
from millrace.records import OffsetAndMetadata, TopicPartition

__all__ = [
    "MIGRATED",
    "PURGED",
    "StaleGenerationError",
    "StreamsProducer",
    "delivery_error",
    "translate_error",
]

_log = logging.getLogger(__name__)

MIGRATED: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.PRODUCER_FENCED,
        KafkaError._FENCED,  # noqa: SLF001 (librdkafka's local codes have no other name)
    }
)
"""Codes that mean: another member now does this thread's work, or the coordinator gave up its transaction."""

_TIMEOUTS: Final = frozenset({KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT})  # noqa: SLF001
_NOT_DELIVERED_IN_TIME: Final = frozenset(
    {KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError.REQUEST_TIMED_OUT}  # noqa: SLF001
    | {KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)
_OUT_OF_STEP: Final = frozenset({KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.UNKNOWN_PRODUCER_ID})
"""Codes that mean: the broker lost count of the producer's batches, which is not the fault of any record."""
_TRANSACTION_FAILED: Final = frozenset({KafkaError._STATE, KafkaError._FATAL})  # noqa: SLF001
"""The errors of `produce` after an earlier record has failed the transaction, or the producer, which `abort` replaces."""
PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001
_REPORT_S: Final = 5.0
"""How long to wait for the report of the record that failed the transaction, once `produce` says that it has failed."""
_REQUEST_TIMEOUT_S: Final = 5.0
_PATIENCE_S: Final = 3 * _REQUEST_TIMEOUT_S
"""How long a commit may take."""
_COMMITTED_BY: Final = 0.8
"""The part of its timeout that a transaction may take: the coordinator fences a producer that takes longer, for a rebalance."""
_LAST_ATTEMPT_S: Final = 1.0
_FLUSH_STEP_S: Final = 0.15
"""How long one call may serve delivery reports. The client splits longer calls (from 0.2 s, to look for signals) and
continues with the next part after a fatal error. The error's exception is then pending while it calls our functions: Python
raises SystemErrors in them, and where these are caught, as in `logging`, the error is lost and the call returns nothing
("NULL without an exception")."""
_BATCH_BYTES: Final = 1_000_000
"""librdkafka's default of `batch.size`."""
_PAUSE_S: Final = 0.1
_LOOK_EVERY_S: Final = 0.5
"""How often a wait checks whether the thread should end."""
_RETRY_BACKOFF_MS: Final = 100
"""librdkafka's default of `retry.backoff.ms`: about how long it waits before it sends EndTxn again."""
_SHORTEST_BACKOFF: Final = 0.8
"""The part of a backoff that librdkafka waits at least."""
_OFFSETS_BACKOFF_S: Final = 0.5
"""How long librdkafka waits before it sends TxnOffsetCommit again."""


class StaleGenerationError(TaskMigratedError):
    """A transaction's generation, or epoch, differs from the member's in the group."""


def translate_error(error: KafkaException, doing: str, unsent: Collection[str] = ()) -> StreamsError:
    """Map a client's error to one that tells the thread what to do (see the module's table).

    Args:
        error: the client's.
        doing: the action that failed.
        unsent: topics of records that were discarded because the transaction has failed.
    """
    cause: KafkaError = error.args[0]
    text = f"Cannot {doing}: {cause.str() or cause.name()} ({cause.name()})"
    if cause.code() in MIGRATED:
        kind = StaleGenerationError if cause.code() == KafkaError.ILLEGAL_GENERATION else TaskMigratedError
        return kind(f"{text}. This thread's tasks now belong to another member; it drops them and rejoins")
    if cause.txn_requires_abort():
        if cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            lost = f" Records for {', '.join(sorted(unsent))} were not written." if unsent else ""
            return ProductionError(
                f"{text}.{lost} Grant this application's user WRITE on the topics that it writes, and READ on its inputs"
            )
        if cause.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return AuthorizationError(f"{text}. Grant this application's user READ on its group")
        return TransactionAbortedError(f"{text}. The transaction is aborted and its records are processed again")
    if cause.retriable() or cause.code() in _TIMEOUTS:
        return StreamsTimeoutError(f"{text}. Check that the brokers are reachable and have enough in-sync replicas")
    return StreamsError(text)


class RequestLog:
    """The log of a watched client, whose lines of `debug=protocol` show which requests it has sent.

    Args:
        with_debug: whether to pass debug lines on: the user has asked for some.
    """

    def __init__(self, *, with_debug: bool) -> None:
        self._lowest = logging.DEBUG if with_debug else logging.INFO
        self._sent: Counter[str] = Counter()
        self.is_used = False
        """Whether the client has logged any request to it."""

    def clear(self) -> None:
        """Forget the sent requests."""
        self._sent.clear()

    def times_sent(self, request: str) -> int:
        """Return how often a request was sent, by its name in the protocol."""
        return self._sent[request]

    def log(self, level: int, form: str, *values: str) -> None:
        """Take a line from the client, as `logging.Logger.log` does."""
        if values[0] == "SEND":
            self.is_used = True
            self._sent[values[-1].partition(": Sent ")[2].partition("Request ")[0]] += 1
        if level >= self._lowest:
            librdkafka_log.log(level, form, *values)


class StreamsProducer:
    """Sends the records of one thread's tasks.

    Args:
        settings: returns librdkafka's settings, as `ClientSettings.producer` does; called whenever a producer is opened.
        task_timeout_ms: how long to retry after temporary errors (`task.timeout.ms`).
        progress: the thread's; records waits for a broker.
        open_client: opens a producer with settings.
        watched: whether its requests are watched from the start, so that it is never replaced on suspicion.
    """

    def __init__(
        self,
        settings: Callable[[], ClientProperties],
        task_timeout_ms: int,
        progress: LoopProgress | None = None,
        open_client: Callable[[ClientProperties], Producer] = open_producer,
        *,
        watched: bool = False,
    ) -> None:
        self._settings = settings
        self._watched = watched
        self._warned = False
        self._open_client = open_client
        self.in_transaction = False
        self._stuck = False
        self._batch_limit: int | None = None
        self.must_be_replaced = False
        """Whether a new producer takes this one's place, at `abort` or else before the next transaction begins.

        After a refused record librdkafka has to renumber its batches, which may fail the next transaction. A client that could
        not deliver a record in time may never deliver any again, although the brokers are back and it can abort.
        """
        self._unsent: set[str] = set()
        """Topics of records that were discarded because the transaction has failed."""
        self.one_by_one = False
        """Whether each record is sent in its own batch; takes effect with the next producer."""
        self.on_failure: Callable[[KafkaError, Message], None] | None = None
        """Called, in `poll` or `flush`, for each record that could not be delivered."""
        self._task_timeout_s = task_timeout_ms / 1000
        self.progress = LoopProgress() if progress is None else progress
        """The thread's."""
        self.client: Producer = self._open()
        """The librdkafka producer, for the path of every record; another one after `replace`."""

    def start(self) -> None:
        """Under EOS, fence predecessors with the same transactional id and abort their open transaction.

        Raises:
            TaskMigratedError: a newer producer with this id exists.
            StreamsTimeoutError: no coordinator answered.
        """
        if self.transactional:
            self._retry("initialise transactions", lambda: self.client.init_transactions(_REQUEST_TIMEOUT_S))
            self._check_log()

    def _check_log(self) -> None:
        """Warn once if the first request of a watched client is not in its log."""
        self._take_log()
        if self._watched and not self._requests.is_used and not self._warned:
            self._warned = True
            _log.warning(
                "The producer does not log to the `logger` of its settings, with their `debug`, so after every slow commit a new "
                "one takes its place: have your default.client.supplier pass both on as they are"
            )

    def begin(self) -> None:
        """Begin a transaction.

        Raises:
            TaskMigratedError: the producer is fenced.
            TransactionAbortedError: the producer cannot begin one or be replaced, and `abort` will replace it.
            StreamsTimeoutError: a new producer was needed, and no coordinator answered it.
        """
        if self.must_be_replaced:
            try:
                self.replace()
            except (TaskMigratedError, StreamsTimeoutError):
                raise
            except StreamsError as error:
                # A plain one would count as a failure of user code, as a record is being processed.
                raise TransactionAbortedError(
                    f"{error} (the producer needs to be replaced, which is tried again)"
                ) from error
        try:
            self.client.begin_transaction()
        except KafkaException as error:
            raise self._unusable(translate_error(error, "begin a transaction")) from error
        self.in_transaction = True
        self._unsent.clear()
        self._expiry = Deadline(_COMMITTED_BY * self._transaction_timeout_s)

    def poll(self, timeout_s: float = 0.0) -> None:
        """Take delivery reports, waiting for the first one for `timeout_s`.

        Raises:
            TaskMigratedError: the producer is fenced.
            TransactionAbortedError: it has failed for good, and `abort` will replace it.
        """
        self._serve(lambda: self.client.poll(timeout_s))

    def flush(self, interrupted: Callable[[], bool] = lambda: False) -> int:
        """Wait until every record is delivered or has failed; return how many are left if the wait was interrupted.

        The wait is limited, as librdkafka fails a record after `delivery.timeout.ms`. It sends nothing more in a failed
        transaction, so waiting is useless then.

        Args:
            interrupted: returns whether to stop waiting; called whenever reports were taken.

        Raises:
            TaskMigratedError: the producer is fenced.
            TransactionAbortedError: it has failed for good, and `abort` will replace it.
            StreamsTimeoutError: the thread is closing, and has waited long enough.
        """
        with self.progress.waiting_for("records to be acknowledged"):
            while left := self._serve(lambda: self.client.flush(_FLUSH_STEP_S)):
                if self.progress.given_up:
                    raise StreamsTimeoutError(
                        f"The brokers have not acknowledged {left} records, and the thread no longer waits for them"
                    )
                if interrupted():
                    return left
        return 0

    def send_error(self, error: KafkaException, topic: str, reported: Callable[[], bool]) -> StreamsError:
        """Map an exception of `produce`; never to a plain `StreamsError`, which would count as a failure of user code.

        In a failed transaction the exception does not say why. The report of the refused record does, so it is awaited.
        There is none if a partition was refused, but then `begin_transaction` says so.

        Args:
            error: the exception.
            topic: the record's.
            reported: returns whether a failed delivery has been reported.

        Raises:
            TaskMigratedError: the producer is fenced.
            TransactionAbortedError: it has failed for good, and `abort` will replace it.
        """
        doing, code = f"send a record to {topic}", error.args[0].code()
        if not (self.transactional and code in _TRANSACTION_FAILED):
            failure = translate_error(error, doing)
            return ProductionError(str(failure)) if type(failure) is StreamsError else failure
        deadline = Deadline(_REPORT_S)
        self.flush(lambda: reported() or deadline.passed)
        if code == KafkaError._STATE:  # noqa: SLF001
            # In a separate thread, as the first error is still being handled in this one; see `abort`.
            reason = in_background(f"{threading.current_thread().name}-why", self.client.begin_transaction).exception()
            error = reason if isinstance(reason, KafkaException) else error
        failure = translate_error(error, doing, self._unsent)
        if type(failure) is not StreamsError:
            return failure
        return TransactionAbortedError(f"{failure}. The transaction has failed, and its records are processed again")

    def _serve(self, call: Callable[[], int]) -> int:
        try:
            return call()
        except KafkaException as error:
            failure = translate_error(error, "send records")
            raise (self._unusable(failure) if self.transactional else failure) from error

    def _unusable(self, failure: StreamsError) -> StreamsError:
        """Have `abort` replace the producer, even if no transaction is open, and return what to raise.

        A plain StreamsError would count as a failure of user code.
        """
        self.must_be_replaced = True
        if type(failure) is not StreamsError:
            return failure
        return TransactionAbortedError(f"{failure}. The records since the last commit are processed again")

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: bytes,
    ) -> None:
        """Commit the transaction together with input offsets.

        Args:
            offsets: of all tasks of the thread; must not be empty, because the generation check that comes with them keeps a
                zombie from committing.
            group_metadata: the member's, as librdkafka encodes it; never an anonymous one, which is not checked.

        Raises:
            TaskMigratedError: the generation is over, or the producer is fenced.
            TransactionAbortedError: call `abort`, then revive the tasks.
        """
        if not self.in_transaction:
            self.begin()
        deadline = self.deadline(_PATIENCE_S)
        client = self.client
        self.add_offsets(offsets, group_metadata, deadline)
        try:
            self._end(
                "commit the transaction",
                lambda: client.commit_transaction(min(_REQUEST_TIMEOUT_S, deadline.left_s(_LAST_ATTEMPT_S))),
                deadline.left_s(),
            )
        except StreamsTimeoutError as error:
            self._stuck = True
            raise TransactionAbortedError(
                f"{error} A new producer takes its place, and uncommitted records are processed again"
            ) from error
        self.in_transaction = False

    def add_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: bytes,
        deadline: Deadline | None = None,
    ) -> None:
        """Add a group's offsets to the transaction, as `commit` does, with the same arguments and errors."""
        deadline = deadline or self.deadline(_PATIENCE_S)
        positions = [
            ClientTopicPartition(tp.topic, tp.partition, position.offset, position.metadata)
            for tp, position in offsets.items()
        ]
        client = self.client
        with self._noticing_repeats("TxnOffsetCommit", _SHORTEST_BACKOFF * _OFFSETS_BACKOFF_S):
            self._retry(
                "add offsets to the transaction",
                lambda: self._in_time(
                    lambda: client.send_offsets_to_transaction(positions, group_metadata, _REQUEST_TIMEOUT_S), deadline
                ),
            )

    def deadline(self, timeout_s: float) -> Deadline:
        """Return until when the thread may wait for a broker, limited by an open transaction and by the end of the thread.

        Args:
            timeout_s: how long it may wait otherwise.
        """
        limits = [timeout_s, self.progress.left_s(at_least=_LAST_ATTEMPT_S)]
        if self.in_transaction:
            limits.append(self._expiry.left_s(at_least=_LAST_ATTEMPT_S))
        return Deadline(min(limits))

    def in_vain(self, text: str) -> StreamsError:
        """Return the error to raise after such a wait: an open transaction starts again; otherwise the thread ends."""
        if self.in_transaction and not self.progress.given_up:
            return TransactionAbortedError(f"{text}. The records since the last commit are processed again")
        return StreamsTimeoutError(text)

    def limit_batches(self, max_bytes: int) -> None:
        """Limit the size of batches; takes effect with the next producer."""
        if self._batch_bytes > max_bytes:
            _log.warning(
                "A topic takes batches of at most %d bytes (its max.message.bytes), but batch.size allows %d bytes: they are "
                "smaller from now on. Set producer.batch.size to avoid the abort that this costs",
                max_bytes,
                self._batch_bytes,
            )
        self._batch_limit = max_bytes

    def abort(self) -> None:
        """Abort the transaction if one is open; a producer that cannot do so is replaced by a new one with the same id.

        librdkafka may not reconnect to a coordinator that was unavailable for a moment, so there is no second attempt: the start
        of a new producer also ends the transaction.

        Call it when no exception is being handled: confluent-kafka (2.16) may raise one here, whose `KafkaError` then has
        the handled one as its context and is leaked, with the old client.

        Raises:
            TaskMigratedError: the new producer was fenced when it started.
            StreamsTimeoutError: no coordinator answered the new producer within `task.timeout.ms`.
        """
        if not (self.in_transaction or self.must_be_replaced):
            return
        self.in_transaction = False
        if self.progress.given_up:
            return  # the thread is closing: a successor ends the transaction, or the broker when it times out
        if self._stuck or self.must_be_replaced or not self._abort():
            self.replace()

    def _abort(self) -> bool:
        """Abort the transaction; return whether the client can be trusted afterwards."""
        try:
            self._end("abort the transaction", lambda: self.client.abort_transaction(_REQUEST_TIMEOUT_S), 0.0)
        except StreamsError as error:
            _log.info("%s; a new producer takes over", error)
            return False
        return not self.must_be_replaced  # a failed delivery may have been reported during the abort

    def _end(self, doing: str, call: Callable[[], object], within_s: float) -> None:
        with self._noticing_repeats("EndTxn", self._end_repeated_after_s):
            self._retry(doing, call, within_s)

    @contextlib.contextmanager
    def _noticing_repeats(self, request: str, after_s: float) -> Iterator[None]:
        """Have a new producer begin the next transaction if a request may have been sent twice.

        Args:
            request: its name in the protocol.
            after_s: how long sending it twice takes at least.
        """
        self._take_log()
        self._requests.clear()
        began_s = time.monotonic()
        try:
            yield
        except BaseException:
            # The log is not checked: the client must not be used while an exception is being handled.
            if time.monotonic() - began_s >= after_s:
                self._suspect(request)
            raise
        if time.monotonic() - began_s >= after_s:
            self._take_log()
            if self._requests.times_sent(request) != 1:
                self._suspect(request)

    def _suspect(self, request: str) -> None:
        _log.info("%s may have been sent twice: a new producer begins the next transaction", request)
        self.must_be_replaced = self._watched = True

    def _take_log(self) -> None:
        if self._watched:
            with contextlib.suppress(KafkaException):  # the next use of the client reports it
                self.client.poll(0)

    def replace(self) -> None:
        """Replace the client by a new one with the same settings, whose start fences the old one.

        Raises:
            TaskMigratedError: a newer producer with this id exists; `abort` replaces this one too.
            StreamsTimeoutError: no coordinator answered.
        """
        self._discard()
        self.client = self._open()
        self.in_transaction = self._stuck = False
        self.must_be_replaced = True
        self.start()
        self.must_be_replaced = False

    def close(self) -> None:
        """Discard unsent records and drop the client; flush or commit first to keep them. May be called again."""
        if hasattr(self, "client"):
            self._discard()
            del self.client  # a dead thread, with all its objects, may be collected much later

    def _discard(self) -> None:
        if self._stuck:
            return  # the client ends once the hanging call returns
        with contextlib.suppress(KafkaException):  # a fenced producer refuses even this
            self.client.purge()
            self.client.flush(_FLUSH_STEP_S)

    def _open(self) -> Producer:
        settings = self._settings()
        self.transactional = "transactional.id" in settings
        self._transaction_timeout_s = int(settings.get("transaction.timeout.ms", 0)) / 1000
        report = weakref.WeakMethod(self._on_delivery)  # the client must not keep its owner alive

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if (found := report()) is not None:
                found(error, message)

        settings.update({"on_delivery": on_delivery, "delivery.report.only.error": True})
        given = settings.get("debug")
        self._requests = RequestLog(with_debug=bool(given))
        if self._watched:
            settings.update({"logger": self._requests, "debug": f"{given},protocol" if given else "protocol"})
        backoffs_ms = settings.get("retry.backoff.ms"), settings.get("retry.backoff.max.ms")
        shortest_ms = min(_RETRY_BACKOFF_MS if each is None else int(each) for each in backoffs_ms)
        self._end_repeated_after_s = _SHORTEST_BACKOFF * shortest_ms / 1000
        largest = settings.get("batch.size", _BATCH_BYTES), settings.get("message.max.bytes", _BATCH_BYTES)
        self._batch_bytes = min(map(int, largest))
        if self._batch_limit is not None and self._batch_limit < self._batch_bytes:
            settings["batch.size"] = self._batch_bytes = self._batch_limit
        if self.one_by_one:
            settings["batch.num.messages"] = 1
        return self._open_client(settings)

    def _in_time(self, call: Callable[[], None], deadline: Deadline) -> None:
        """Call a function of librdkafka that may return late, in a thread that is abandoned in that case.

        librdkafka's cache of group coordinators may have a broker that was missing from the cluster's metadata for a moment, as
        when it restarts; `send_offsets_to_transaction` then waits, beyond its timeout, for a connection that is never made. It
        returns, and the client ends, once the client's connections have been idle for `connections.max.idle.ms`.
        """
        outcome = in_background(f"{threading.current_thread().name}-offsets", call)
        try:
            while not (outcome.done() or deadline.passed or self.progress.given_up):
                wait([outcome], min(_LOOK_EVERY_S, deadline.left_s()))
            self._stuck = not outcome.done()
            if self._stuck:
                raise TransactionAbortedError(
                    "The producer has not added offsets to the transaction in time: a new one takes its place, and the records "
                    "since the last commit are processed again"
                )
            outcome.result()
        finally:
            del outcome

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        # Records that an abort discards are reported as purged; the commit of such a transaction fails anyway.
        if error is not None and error.code() in PURGED:
            self._unsent.add(message.topic() or "")
        if error is not None and error.code() in _NOT_DELIVERED_IN_TIME:
            self.must_be_replaced = True
        if error is not None and error.code() not in PURGED and self.on_failure is not None:
            self.on_failure(error, message)

    def _retry(self, doing: str, call: Callable[[], object], within_s: float = math.inf) -> None:
        deadline = Deadline(min(self._task_timeout_s, within_s))
        while True:
            try:
                with self.progress.waiting_for(f"a broker to {doing}"):
                    call()
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                late = deadline.passed or self.progress.given_up
                if cause.retriable() and not cause.txn_requires_abort() and not late:
                    _log.info("Trying again to %s: %s", doing, cause.str())
                    time.sleep(_PAUSE_S)
                    continue
                if cause.code() == KafkaError._DESTROY_BROKER:  # noqa: SLF001
                    # The broker left the cluster before it answered. The abort that follows is a second request, so the first
                    # may be the late one, however quickly this was noticed.
                    self._suspect(f"The request to {doing}")
                raise translate_error(error, doing, self._unsent) from error
            return


def delivery_error(
    error: KafkaError,
    topic: str | None,
    partition: int | None,
    key: bytes | None,
    timestamp: int | None = None,
    source: str = "",
) -> StreamsError:
    """Return an error that says which record was not written, and why.

    Args:
        error: why.
        topic: the record's.
        partition: None or negative if it has none yet.
        key: the record's.
        timestamp: None if it is not known.
        source: the record it was made from, as part of a sentence.
    """
    where = topic if partition is None or partition < 0 else f"{topic}-{partition}"
    text = f"A record for {where} (key {key!r:.80}{source}) was not written: {error.str()} ({error.name()})"
    if error.code() in MIGRATED:
        return TaskMigratedError(text)
    if error.code() in _NOT_DELIVERED_IN_TIME:
        return TransactionAbortedError(
            f"{text} within delivery.timeout.ms. Records since the last commit are processed again"
        )
    if error.code() in _OUT_OF_STEP:
        return TransactionAbortedError(f"{text}. Records since the last commit are processed again")
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        text += ". Raise the topic's max.message.bytes or send smaller records"
    elif error.code() == KafkaError.INVALID_TIMESTAMP:
        text += _timestamp_advice(timestamp)
    elif error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
        text += ". Grant this application's user WRITE on the topic"
    elif error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):  # noqa: SLF001
        text += ". Create the topic, or correct the partition"
    return ProductionError(text)


def _timestamp_advice(timestamp: int | None) -> str:
    if timestamp is None:
        return (
            ". Raise the topic's message.timestamp.after.max.ms or message.timestamp.before.max.ms, or correct the time"
        )
    ahead_ms = timestamp - int(time.time() * 1000)
    setting, how = ("after", "ahead") if ahead_ms > 0 else ("before", "behind")
    return (
        f". Its timestamp {timestamp} is {abs(ahead_ms) / 60_000:,.1f} minutes {how}: raise the topic's "
        f"message.timestamp.{setting}.max.ms, or correct the time"
    )
