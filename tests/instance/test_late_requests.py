"""A request that the brokers get late: in the next transaction, after the client has sent it again and been answered."""

from __future__ import annotations

import random
import secrets

import pytest
from tests.brokers import new_topic
from tests.committed import committed_offset
from tests.instance.support import read_all, settings
from tests.proxy import LateRequests

from millrace.config import StreamsConfig
from millrace.instance.producer import StreamsProducer
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_metadata import encode_group_metadata
from millrace.records import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.broker
END_TRANSACTION = 26
ADD_OFFSETS = 25
COMMIT_OFFSETS = 28
"""API keys of requests."""


class Transactions:
    """A thread's producer behind a proxy, which copies one partition."""

    def __init__(self, kafka, state_dir, *, watched=False):
        self.kafka, self.topic, self.app = kafka, new_topic(kafka), f"app-{secrets.token_hex(4)}"
        self.proxy = LateRequests(int(kafka.bootstrap_servers.rpartition(":")[2]))
        given = settings(self.proxy.address, self.app, state_dir, processing_guarantee="exactly_once_v2")
        config = StreamsConfig.of(given)
        self.producer = StreamsProducer(
            lambda: ClientSettings(config, "p").producer(1), config.task_timeout_ms, watched=watched
        )
        self.producer.start()
        self.source = TopicPartition(self.topic, 0)

    def send(self, value):
        """Send a record, in a transaction, and wait until it is written."""
        if not self.producer.in_transaction:
            self.producer.begin()
        self.producer.client.produce(self.topic, value, None, 0)
        self.producer.flush()

    def add_offsets(self, offset):
        """Add an input's offset to the transaction."""
        self.producer.add_offsets(
            {self.source: OffsetAndMetadata(offset)}, encode_group_metadata(self.app, -1, "", None)
        )

    def commit(self, offset=None):
        """Commit the transaction, with an input's offset unless that was added before."""
        offsets = {} if offset is None else {self.source: OffsetAndMetadata(offset)}
        self.producer.commit(offsets, encode_group_metadata(self.app, -1, "", None))

    @property
    def written(self):
        """The committed records."""
        return [value.decode() for _, value, _ in read_all(self.kafka, self.topic)]

    @property
    def read_up_to(self):
        """The committed offset."""
        return committed_offset(self.kafka, self.app, self.topic)


@pytest.fixture
def begun(kafka, tmp_path):
    """Return what makes a producer that has committed a first record, so that everything it needs is there."""
    made = []

    def begin(**options):
        transactions = Transactions(kafka, tmp_path / "state", **options)
        made.append(transactions)
        transactions.send("first")
        transactions.commit(1)
        return transactions

    yield begin
    for transactions in made:
        transactions.producer.close()
        transactions.proxy.close()


@pytest.fixture
def transactions(begun):
    """A producer that has committed a first record."""
    return begun()


def test_late_commit_does_not_commit_half_a_transaction(transactions):
    """Records of a transaction that is open, and then aborted, are not read."""
    transactions.send("second")
    transactions.proxy.hold(END_TRANSACTION)
    transactions.commit(2)
    transactions.send("half")
    transactions.proxy.deliver()
    transactions.producer.abort()
    assert transactions.written == ["first", "second"]
    assert transactions.read_up_to == 2


def test_late_abort_does_not_take_records_away(transactions):
    """All records of a transaction that is committed are read."""
    transactions.send("second")
    transactions.proxy.hold(END_TRANSACTION)
    transactions.producer.abort()
    transactions.send("again")
    transactions.proxy.deliver()
    transactions.commit(2)
    assert transactions.written == ["first", "again"]
    assert transactions.read_up_to == 2


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_late_offsets_do_not_replace_later_ones(transactions, end):
    """The input is not read again from where an earlier transaction, committed or not, had got to."""
    transactions.send("second")
    transactions.proxy.hold(COMMIT_OFFSETS)
    transactions.add_offsets(2)
    if end == "commit":
        transactions.commit()
    else:
        transactions.producer.abort()
    transactions.send("third")
    transactions.add_offsets(3)
    transactions.proxy.deliver()
    transactions.commit()
    assert transactions.read_up_to == 3


@pytest.mark.parametrize("kind", [END_TRANSACTION, COMMIT_OFFSETS])
def test_watched_producer_is_replaced_only_if_a_request_was_repeated(begun, kind):
    """A slow answer is no reason; a request that was sent twice costs one more producer, when the next transaction begins."""
    transactions = begun(watched=True)
    client = transactions.producer.client
    transactions.proxy.slow_s = 0.3  # more than it takes to repeat a request
    transactions.send("second")
    transactions.commit(2)
    transactions.send("third")
    assert transactions.producer.client is client
    transactions.proxy.slow_s = 0
    transactions.proxy.hold(kind)
    transactions.commit(3)
    assert transactions.producer.client is client
    transactions.send("fourth")
    assert transactions.producer.client is not client


def test_producer_is_replaced_once_because_it_was_slow(transactions):
    """Whether a request was repeated is not known then; the next producer is watched, so that slow brokers cost no others."""
    transactions.proxy.slow_s = 0.3
    clients = []
    for number in range(2, 5):
        transactions.send("another")
        transactions.commit(number)
        clients.append(transactions.producer.client)
    assert clients[0] is not clients[1]
    assert clients[1] is clients[2]


@pytest.mark.slow
@pytest.mark.thorough
def test_schedules_of_late_requests(begun):
    """In two hundred transactions any request is late, at any moment of a later one: what is read is what was committed."""
    rng = random.Random(1)
    transactions = begun()
    proxy, producer = transactions.proxy, transactions.producer
    expected, read_up_to = ["first"], 1
    for number in range(2, 202):
        late = rng.choice([None, END_TRANSACTION, END_TRANSACTION, COMMIT_OFFSETS, ADD_OFFSETS])
        values = [f"{number}.{part}" for part in range(rng.randint(1, 3))]
        arrives = rng.randrange(len(values) + 1)
        for part, value in enumerate(values):
            transactions.send(value)
            if part == arrives and proxy.holds:
                proxy.deliver()
        transactions.add_offsets(number)
        if proxy.holds:
            proxy.deliver()
        if late in (COMMIT_OFFSETS, ADD_OFFSETS):
            proxy.hold(late)
            transactions.add_offsets(number)
        elif late is not None:
            proxy.hold(late)
        if rng.random() < 0.6:
            transactions.commit()
            expected, read_up_to = [*expected, *values], number
        else:
            producer.abort()
    assert transactions.written == expected
    assert transactions.read_up_to == read_up_to
