"""The producer of the simulated cluster, with the part of confluent-kafka's interface that Millrace uses.

It buffers records, and sends partitions' records in pieces and in any order of partitions, at the latest in `flush`. It
fails with the errors that librdkafka would report.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from millrace.engine.partitioner import partition_for_key
from millrace.records import OffsetAndMetadata, TopicPartition
from millrace.testing.simulation.broker import (
    CONCURRENT_TRANSACTIONS,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    UNKNOWN_TOPIC,
    Entry,
    Outcome,
    RefusedError,
    Transaction,
)
from millrace.testing.simulation.consumer import SimulatedMessage
from millrace.testing.simulation.host import Host, lost

__all__ = ["SimulatedProducer"]

_RETRY_S: Final = 0.05
_REPEAT_END_S: Final = 0.1
"""How long it waits before it sends EndTxn again (`retry.backoff.ms`)."""
_REPEAT_OFFSETS_S: Final = 0.5
"""How long it waits before it sends TxnOffsetCommit again."""
_LINGER_S: Final = 0.5
"""How long a record may wait to be sent, unless it is flushed."""


class _Record:
    __slots__ = ("at_s", "partition", "report", "row")

    def __init__(self, partition: TopicPartition, row: Any, report: Any, at_s: float) -> None:
        self.partition = partition
        self.row = row
        self.report = report
        self.at_s = at_s


class SimulatedProducer:
    """An idempotent producer, transactional if its settings name a transactional id."""

    def __init__(self, host: Host, settings: Mapping[str, Any]) -> None:
        self._host = host
        self._world = host.world
        given = settings.get("transactional.id")
        self._id: str | None = None if given is None else str(given)
        self._timeout_s = float(settings.get("transaction.timeout.ms", 60_000)) / 1000
        self._delivery_s = float(settings.get("delivery.timeout.ms", 120_000)) / 1000
        self._on_delivery = settings.get("on_delivery")
        self._log = settings.get("logger") if "protocol" in str(settings.get("debug")) else None
        self._epoch = -1
        self._queue: list[_Record] = []
        self._in_transaction = False
        self._unacknowledged: Outcome | None = None
        """How the last transaction ended, if the answer was lost: the request is repeated then."""
        self._begun: Transaction | None = None
        """The broker's side of the current transaction, once something was sent in it."""
        self._added: set[TopicPartition] = set()
        """The partitions of the current transaction."""
        self._fatal: KafkaError | None = None
        self._abortable: KafkaError | None = None
        self._sends_later = False
        """Whether it will send without a flush."""

    # Transactions

    def init_transactions(self, timeout: float = -1) -> None:
        """Fence predecessors; the records of an uncommitted transaction are processed again."""
        self._require_usable()
        if not self._host.has_committed:
            self._host.processed.clear()
        self._host.call("init_transactions", lambda: self._init(timeout), lambda: lost("InitProducerId"))

    def _init(self, timeout_s: float) -> None:
        assert self._id is not None
        transactional_id = self._id

        def try_it() -> bool:
            if self._world.is_coordinator_down:
                return False
            self._note_sent("InitProducerId")
            try:
                _, self._epoch = self._world.broker.init_producer(transactional_id, self._timeout_s)
            except RefusedError as error:
                if error.code != CONCURRENT_TRANSACTIONS:
                    raise
                self._world.write_markers()
                return False
            return True

        self._keep_trying(try_it, timeout_s, "InitProducerId")

    def begin_transaction(self) -> None:
        """Begin a transaction, here only."""
        self._require_usable()
        if self._in_transaction:
            raise KafkaException(KafkaError(KafkaError._STATE, "in a transaction"))  # noqa: SLF001
        self._in_transaction = True
        self._host.has_committed = False
        self._begun = None
        self._added.clear()

    def send_offsets_to_transaction(
        self, positions: list[ClientTopicPartition], group_metadata: bytes, timeout: float = -1
    ) -> None:
        """Add offsets to the transaction."""
        self._require_usable()
        offsets = {
            TopicPartition(item.topic, item.partition): OffsetAndMetadata(item.offset, item.metadata or "")
            for item in positions
        }
        group, generation, member_id, instance = read_group_metadata(group_metadata)
        self._host.call(
            "send_offsets",
            lambda: self._send_offsets(offsets, group, generation, member_id, instance, timeout),
            lambda: lost("TxnOffsetCommit"),
            lambda late_s: self._send_offsets_late(late_s, offsets, group, generation, member_id, instance),
        )

    def _send_offsets_late(
        self,
        late_s: float,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: str,
        generation: int,
        member_id: str,
        instance: str | None,
    ) -> None:
        assert self._id is not None
        transactional_id, epoch = self._id, self._epoch

        def arrive() -> None:
            transaction = self._world.broker.transaction_with(transactional_id, epoch, group)
            self._world.group.commit_in_transaction(transaction, offsets, generation, member_id, instance)

        self._send_late("TxnOffsetCommit", late_s, arrive, _REPEAT_OFFSETS_S)

    def _send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: str,
        generation: int,
        member_id: str,
        instance: str | None,
        timeout_s: float,
    ) -> None:
        assert self._id is not None
        transactional_id = self._id

        def try_it() -> bool:
            if self._world.is_coordinator_down:
                return False
            try:
                self._begun = self._world.broker.add_group(transactional_id, self._epoch, group)
                self._note_sent("TxnOffsetCommit")
                self._world.group.commit_in_transaction(self._begun, offsets, generation, member_id, instance)
            except RefusedError as error:
                if error.code == CONCURRENT_TRANSACTIONS:
                    self._world.write_markers()
                    return False
                self._refused(error)
            return True

        self._keep_trying(try_it, timeout_s, "TxnOffsetCommit")

    def commit_transaction(self, timeout: float = -1) -> None:
        """Send the remaining records, then commit."""
        self._require_usable()
        if self._unacknowledged is not Outcome.COMMITTED:
            self._host.call(
                "commit_transaction",
                lambda: self._end(Outcome.COMMITTED, timeout),
                lambda: lost("EndTxn (commit)"),
                lambda late_s: self._end_late(Outcome.COMMITTED, late_s),
            )
        self._unacknowledged = None

    def abort_transaction(self, timeout: float = -1) -> None:
        """Discard unsent records, then abort."""
        if self._fatal is not None:
            raise KafkaException(self._fatal)
        self._abortable = None
        self._queue.clear()
        if self._unacknowledged is not Outcome.ABORTED:
            self._host.call(
                "abort_transaction",
                lambda: self._end(Outcome.ABORTED, timeout),
                lambda: lost("EndTxn (abort)"),
                lambda late_s: self._end_late(Outcome.ABORTED, late_s),
            )
        self._unacknowledged = None

    def _end(self, outcome: Outcome, timeout_s: float) -> None:
        if not self._in_transaction:
            raise KafkaException(KafkaError(KafkaError._STATE, "not in a transaction"))  # noqa: SLF001
        if outcome is Outcome.COMMITTED and self.flush(timeout_s):
            raise lost("EndTxn")
        self._require_usable()
        if self._begun is not None:
            self._keep_trying(lambda: self._ended(outcome), timeout_s, "EndTxn")
        self._in_transaction = False
        self._host.has_committed = outcome is Outcome.COMMITTED
        self._begun = None
        self._unacknowledged = outcome

    def _end_late(self, outcome: Outcome, late_s: float) -> None:
        assert self._id is not None
        transactional_id, epoch = self._id, self._epoch
        if self._begun is None:
            return

        def arrive() -> None:
            self._world.end_transaction(self._host, transactional_id, epoch, outcome, is_late=True)

        self._send_late("EndTxn", late_s, arrive, _REPEAT_END_S)

    def _send_late(self, request: str, late_s: float, arrive: Callable[[], None], repeat_s: float) -> None:
        """Send a request on a connection that breaks, and wait until it is time to send it again."""

        def try_it() -> None:
            with contextlib.suppress(RefusedError):
                arrive()

        self._note_sent(request)
        self._world.scheduler.later(late_s, try_it)
        self._world.scheduler.pass_time(repeat_s)
        self._host.require_alive()

    def _note_sent(self, request: str) -> None:
        if self._log is not None:
            self._log.log(logging.DEBUG, "%s [%s] %s", "SEND", "producer", f"broker: Sent {request}Request (simulated)")

    def _ended(self, outcome: Outcome) -> bool:
        assert self._id is not None
        if self._world.is_coordinator_down:
            return False
        self._note_sent("EndTxn")
        try:
            self._world.end_transaction(self._host, self._id, self._epoch, outcome)
        except RefusedError as error:
            self._refused(error)
        return True

    # Records

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        on_delivery: Callable[[KafkaError | None, SimulatedMessage], None] | None = None,
        _opaque: object = None,
        timestamp: int = 0,
        headers: Collection[tuple[str, bytes | None]] = (),
    ) -> None:
        """Keep a record to be sent."""
        self._host.require_alive()
        self._require_usable()
        if self._id is not None and not self._in_transaction:
            raise KafkaException(KafkaError(KafkaError._STATE, "not in a transaction"))  # noqa: SLF001
        world = self._world
        partitions = world.broker.topics.get(topic)
        if partitions is None:
            raise KafkaException(KafkaError(UNKNOWN_TOPIC, topic))
        if partition < 0:
            partition = world.scheduler.rng.randrange(partitions) if key is None else partition_for_key(key, partitions)
        where = TopicPartition(topic, partition)
        row = (key, value, timestamp or int(world.scheduler.now_s * 1000), tuple(headers))
        self._queue.append(_Record(where, row, on_delivery or self._on_delivery, world.scheduler.now_s))
        if not self._sends_later:
            self._sends_later = True
            world.scheduler.later(world.scheduler.rng.random() * _LINGER_S, self._send_later)

    def poll(self, timeout: float = -1) -> int:
        """Send some of the records, perhaps; wait only if there is nothing else to do."""
        self._host.require_alive()
        rng = self._world.scheduler.rng
        if self._queue and rng.random() < 0.5:
            partition = rng.choice(self._queue).partition
            count = rng.randint(1, len(self._queue))
            self._send(partition, count)
        elif timeout > 0:
            self._world.scheduler.pass_time(timeout)
        if self._fatal is not None:
            raise KafkaException(self._fatal)
        return 0

    def _send_later(self) -> None:
        """Send the remaining records, as its own thread would."""
        scheduler = self._world.scheduler
        self._sends_later = False
        if not self._host.alive or self._fatal is not None:
            return
        wait_s = self._host.frozen_until_s - scheduler.now_s
        if wait_s <= 0:
            for partition in dict.fromkeys(record.partition for record in self._queue):
                if not self._world.is_down(partition):  # only `poll` and `flush` report that a record is given up
                    self._send(partition, len(self._queue))
            wait_s = _RETRY_S
        if self._queue:
            self._sends_later = True
            scheduler.later(wait_s, self._send_later)

    def flush(self, timeout: float = -1) -> int:
        """Send all records; return how many are left."""
        return self._host.call("flush", lambda: self._flush(timeout))

    def _flush(self, timeout_s: float) -> int:
        def try_it() -> bool:
            for partition in dict.fromkeys(record.partition for record in self._queue):
                self._send(partition, len(self._queue))
            return not self._queue or self._fatal is not None or self._abortable is not None

        self._wait(try_it, timeout_s)
        if self._fatal is not None:
            raise KafkaException(self._fatal)
        if self._abortable is not None:
            self._queue.clear()
        return len(self._queue)

    def _send(self, partition: TopicPartition, count: int) -> None:
        """Send some records of a partition, unless its broker is away."""
        world = self._world
        records = [record for record in self._queue if record.partition == partition][:count]
        if not records:
            return
        if world.is_down(partition):
            if world.scheduler.now_s - records[0].at_s > self._delivery_s:
                self._give_up(
                    records,
                    KafkaError(KafkaError._MSG_TIMED_OUT, "delivery.timeout.ms", False, False, True),  # noqa: SLF001
                )
            return
        rows = [record.row for record in records]
        try:
            world.broker.produce(partition, rows, self._id, self._epoch, added=partition in self._added)
        except RefusedError as error:
            if error.code == CONCURRENT_TRANSACTIONS:
                world.write_markers()
                return
            if error.code == PRODUCER_FENCED:
                self._fence()
                return
            if error.code == INVALID_TXN_STATE:
                self._give_up(records, KafkaError(error.code, "not in this transaction", False, False, True))
                return
            raise
        self._added.add(partition)
        if self._id is not None:
            self._begun = world.broker.transaction_of(self._id)
        sent = set(map(id, records))
        self._queue = [record for record in self._queue if id(record) not in sent]
        first = world.broker.log(partition).end - len(records)
        world.written(self._host, partition, {first + number: record.at_s for number, record in enumerate(records)})

    def _give_up(self, records: list[_Record], error: KafkaError) -> None:
        gone = set(map(id, records))
        self._queue = [record for record in self._queue if id(record) not in gone]
        if self._id is not None:
            self._abortable = error
        for record in records:
            if record.report is not None:
                key, value, timestamp, headers = record.row
                entry = Entry(-1, key, value, timestamp, headers)
                record.report(error, SimulatedMessage(record.partition, -1, entry, error))

    def purge(self) -> None:
        """Discard unsent records."""
        self._queue.clear()

    def __len__(self) -> int:
        return len(self._queue)

    # Inside

    def _require_usable(self) -> None:
        error = self._fatal or self._abortable
        if error is not None:
            raise KafkaException(error)

    def _fence(self) -> None:
        self._fatal = KafkaError(KafkaError._FENCED, "the producer is fenced", True, False, False)  # noqa: SLF001

    def _refused(self, error: RefusedError) -> None:
        if error.code == PRODUCER_FENCED:
            self._fence()
            assert self._fatal is not None
            raise KafkaException(self._fatal)
        self._abortable = KafkaError(error.code, "refused", False, False, True)
        raise KafkaException(self._abortable)

    def _keep_trying(self, try_it: Callable[[], bool], timeout_s: float, doing: str) -> None:
        if not self._wait(try_it, timeout_s):
            raise lost(doing)

    def _wait(self, try_it: Callable[[], bool], timeout_s: float) -> bool:
        scheduler = self._world.scheduler
        until = scheduler.now_s + (math.inf if timeout_s < 0 else timeout_s)
        while not try_it():
            if scheduler.now_s >= until:
                return False
            scheduler.pass_time(min(_RETRY_S, until - scheduler.now_s))
            self._host.require_alive()
        return True


def read_group_metadata(data: bytes) -> tuple[str, int, str, str | None]:
    """Return (group, generation, member id, instance id) of the argument of `send_offsets_to_transaction`."""
    header, rest = data[:7], data[7:]
    assert header == b"CGMDv2:"
    generation = int.from_bytes(rest[:4], "little", signed=True)
    group, member_id, instance = rest[4:].split(b"\0", 2)
    return group.decode(), generation, member_id.decode(), instance[1:-1].decode() if instance[:1] == b"\0" else None
