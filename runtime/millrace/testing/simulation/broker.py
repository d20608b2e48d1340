"""A model of Kafka's brokers: logs, idempotent and transactional producers, and fetches.

It knows the rules of the protocol, not of clients: each method is one request, refused with Kafka's error code. Every
produce is acknowledged by all replicas at once, so the high watermark is the end of the log. What a broker itself does later
(writing the markers of a transaction, timing one out) is done when the owner of the model calls for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from millrace.records import TopicPartition

__all__ = ["Broker", "Entry", "Log", "Outcome", "RefusedError", "Transaction"]

OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC: Final = 3
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
CONCURRENT_TRANSACTIONS: Final = 51
PRODUCER_FENCED: Final = 90


class RefusedError(Exception):
    """A request was refused; has Kafka's error code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


class Outcome(Enum):
    """The outcome of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction of a producer."""

    producer_id: int
    began_s: float
    outcome: Outcome = Outcome.OPEN
    first_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """Its first offset in each partition that it has written to, until the partition has its marker."""
    groups: set[str] = field(default_factory=set)
    """Groups whose offsets it commits, until they have its marker."""

    @property
    def completing(self) -> bool:
        """Whether it has ended, and markers are still to be written."""
        return self.outcome is not Outcome.OPEN and bool(self.first_offsets or self.groups)


@dataclass(slots=True, frozen=True)
class Entry:
    """One record or transaction marker in a log."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    transaction: Transaction | None = None
    is_marker: bool = False


@dataclass(slots=True)
class Log:
    """The log of one partition."""

    start: int = 0
    entries: list[Entry] = field(default_factory=list)
    """All entries ever written, also before `start`; an entry's index is its offset."""
    open: dict[Transaction, int] = field(default_factory=dict)
    """Transactions without a marker here, with the offset where they begin."""

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return len(self.entries)

    @property
    def stable_end(self) -> int:
        """The last stable offset: where the first transaction begins that is still open."""
        return min(self.open.values(), default=self.end)

    def committed(self) -> list[Entry]:
        """Return every record that a reader of committed records may ever see, in order."""
        return [
            entry
            for entry in self.entries[: self.stable_end]
            if not entry.is_marker and (entry.transaction is None or entry.transaction.outcome is Outcome.COMMITTED)
        ]


@dataclass(slots=True)
class _Producer:
    producer_id: int
    epoch: int = -1
    timeout_s: float = 60.0
    transaction: Transaction | None = None
    expired: bool = False
    """Whether the epoch was raised because a transaction took too long."""


class Broker:
    """The brokers of one cluster, as one.

    Args:
        clock: returns monotonic seconds.
        end_group: told that a transaction with offsets of a group has ended: (group, transaction).
    """

    def __init__(self, clock: Callable[[], float], end_group: Callable[[str, Transaction], None]) -> None:
        self._clock = clock
        self._end_group = end_group
        self.logs: dict[TopicPartition, Log] = {}
        self.topics: dict[str, int] = {}
        self.topic_configs: dict[str, Mapping[str, str]] = {}
        self._producers: dict[str, _Producer] = {}
        self._next_producer_id = 0

    # Topics

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic.

        Raises:
            RefusedError: it exists.
        """
        if name in self.topics:
            raise RefusedError(TOPIC_ALREADY_EXISTS)
        self.topics[name] = partitions
        self.topic_configs[name] = dict(config or {})
        self.logs.update((TopicPartition(name, number), Log()) for number in range(partitions))

    def log(self, partition: TopicPartition) -> Log:
        """Return a partition's log.

        Raises:
            RefusedError: there is no such partition.
        """
        log = self.logs.get(partition)
        if log is None:
            raise RefusedError(UNKNOWN_TOPIC)
        return log

    # Producers

    def init_producer(self, transactional_id: str, timeout_s: float) -> tuple[int, int]:
        """Give a producer a new epoch, which fences its predecessors; return (producer id, epoch).

        Raises:
            RefusedError: CONCURRENT_TRANSACTIONS while the predecessor's transaction is being ended; try again.
        """
        producer = self._producers.get(transactional_id)
        if producer is None:
            producer = self._producers[transactional_id] = _Producer(self._next_producer_id)
            self._next_producer_id += 1
        transaction = producer.transaction
        if transaction is not None and transaction.outcome is Outcome.OPEN:
            producer.epoch += 1
            self._end(transaction, Outcome.ABORTED)
        if transaction is not None and transaction.completing:
            raise RefusedError(CONCURRENT_TRANSACTIONS)
        producer.transaction = None
        producer.epoch += 1
        producer.timeout_s = timeout_s
        producer.expired = False
        return producer.producer_id, producer.epoch

    def produce(
        self,
        partition: TopicPartition,
        records: Iterable[tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]],
        transactional_id: str | None = None,
        epoch: int = -1,
        *,
        added: bool = False,
    ) -> int:
        """Append records; return the first one's offset.

        Args:
            partition: where.
            records: key, value, timestamp in ms and headers of each.
            transactional_id: the producer's, if it has one.
            epoch: the producer's.
            added: whether the producer has added the partition to its transaction before, and does not do so now.

        Raises:
            RefusedError: the producer is fenced, its last transaction is still being ended, the partition is not in its
                transaction, or there is no such partition.
        """
        log = self.log(partition)
        transaction: Transaction | None = None
        if transactional_id is not None:
            transaction = self._open_transaction(transactional_id, epoch, added=partition if added else None)
            transaction.first_offsets.setdefault(partition, log.end)
            log.open.setdefault(transaction, log.end)
        first = log.end
        for key, value, timestamp, headers in records:
            log.entries.append(Entry(len(log.entries), key, value, timestamp, headers, transaction))
        return first

    def add_group(self, transactional_id: str, epoch: int, group: str) -> Transaction:
        """Add a group, whose offsets are to be committed, to the producer's transaction, and return that.

        Raises:
            RefusedError: as for `produce`.
        """
        transaction = self._open_transaction(transactional_id, epoch)
        transaction.groups.add(group)
        return transaction

    def transaction_with(self, transactional_id: str, epoch: int, group: str) -> Transaction:
        """Return the producer's open transaction, to which a group was added: offsets are refused otherwise.

        Raises:
            RefusedError: the producer is fenced, or there is no such transaction.
        """
        transaction = self._checked(transactional_id, epoch).transaction
        if transaction is None or transaction.outcome is not Outcome.OPEN or group not in transaction.groups:
            raise RefusedError(INVALID_TXN_STATE)
        return transaction

    def end_transaction(self, transactional_id: str, epoch: int, outcome: Outcome) -> Transaction:
        """Decide the producer's transaction and return it; `write_markers` then ends it in each partition.

        A repeated request succeeds if the outcome is the same.

        Raises:
            RefusedError: the producer is fenced, or the transaction has had another end.
        """
        producer = self._checked(transactional_id, epoch)
        transaction = producer.transaction
        if transaction is None:
            raise RefusedError(INVALID_TXN_STATE)
        if transaction.outcome is Outcome.OPEN:
            self._end(transaction, outcome)
        elif transaction.outcome is not outcome:
            raise RefusedError(INVALID_TXN_STATE)
        return transaction

    def write_marker(self, transaction: Transaction) -> bool:
        """Write one of the markers that a decided transaction still needs; return whether there are more to write."""
        if transaction.groups:
            group = min(transaction.groups)
            transaction.groups.discard(group)
            self._end_group(group, transaction)
        elif transaction.first_offsets:
            partition = min(transaction.first_offsets)
            del transaction.first_offsets[partition]
            log = self.logs[partition]
            log.open.pop(transaction, None)
            now_ms = int(self._clock() * 1000)
            log.entries.append(Entry(len(log.entries), None, None, now_ms, (), transaction, is_marker=True))
        return transaction.completing

    def completing(self) -> list[Transaction]:
        """Return the decided transactions that still need markers."""
        transactions = [producer.transaction for producer in self._producers.values()]
        return [transaction for transaction in transactions if transaction is not None and transaction.completing]

    def expire_transactions(self) -> list[Transaction]:
        """Abort transactions that have taken longer than their producers allow, fence those producers, and return them."""
        expired = []
        for producer in self._producers.values():
            transaction = producer.transaction
            if transaction is None or transaction.outcome is not Outcome.OPEN:
                continue
            if self._clock() - transaction.began_s > producer.timeout_s:
                producer.epoch += 1
                producer.expired = True
                self._end(transaction, Outcome.ABORTED)
                expired.append(transaction)
        return expired

    def transaction_of(self, transactional_id: str) -> Transaction | None:
        """Return a producer's last transaction."""
        return self._producers[transactional_id].transaction

    def _checked(self, transactional_id: str, epoch: int) -> _Producer:
        producer = self._producers[transactional_id]
        if epoch != producer.epoch:
            raise RefusedError(PRODUCER_FENCED)
        return producer

    def _open_transaction(
        self, transactional_id: str, epoch: int, *, added: TopicPartition | None = None
    ) -> Transaction:
        producer = self._checked(transactional_id, epoch)
        transaction = producer.transaction
        if transaction is not None and transaction.completing:
            raise RefusedError(CONCURRENT_TRANSACTIONS)
        is_open = transaction is not None and transaction.outcome is Outcome.OPEN
        if added is not None and not (is_open and transaction is not None and added in transaction.first_offsets):
            raise RefusedError(INVALID_TXN_STATE)
        if transaction is None or not is_open:
            transaction = producer.transaction = Transaction(producer.producer_id, self._clock())
        return transaction

    def _end(self, transaction: Transaction, outcome: Outcome) -> None:
        transaction.outcome = outcome

    # Consumers

    def fetch(
        self, partition: TopicPartition, offset: int, max_records: int, *, committed_only: bool
    ) -> tuple[list[Entry], int, int]:
        """Return records from an offset on, the offset to continue with, and the end for this reader.

        Raises:
            RefusedError: OFFSET_OUT_OF_RANGE, or there is no such partition.
        """
        log = self.log(partition)
        if not log.start <= offset <= log.end:
            raise RefusedError(OFFSET_OUT_OF_RANGE)
        end = log.stable_end if committed_only else log.end
        found: list[Entry] = []
        while offset < end and len(found) < max_records:
            entry = log.entries[offset]
            offset += 1
            aborted = entry.transaction is not None and entry.transaction.outcome is Outcome.ABORTED
            if not (entry.is_marker or (committed_only and aborted)):
                found.append(entry)
        return found, offset, end

    def offset_for_time(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """Return the first offset whose record is not older than a time, or -1."""
        log = self.log(partition)
        entries = log.entries[log.start :]
        return next((one.offset for one in entries if not one.is_marker and one.timestamp >= timestamp_ms), -1)

    def delete_records(self, partition: TopicPartition, offset: int) -> None:
        """Delete a partition's records up to an offset (exclusive).

        Raises:
            RefusedError: the offset is beyond the end.
        """
        log = self.log(partition)
        if offset > log.end:
            raise RefusedError(OFFSET_OUT_OF_RANGE)
        log.start = max(log.start, offset)
