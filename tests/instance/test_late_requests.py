"""A request that the brokers get late: in the next transaction, after the client has sent it again and been answered."""

from __future__ import annotations

import logging
import random
import re
import secrets

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from tests.brokers import new_topic
from tests.committed_offsets import committed, committed_offset
from tests.instance.support import produce, read_all, running, settings
from tests.proxy import LateRequests
from tests.waiting import wait_until

from millrace import StreamsBuilder
from millrace.config import StreamsConfig
from millrace.errors import TransactionAbortedError
from millrace.instance.producer import StreamsProducer
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import open_producer
from millrace.kafka.group_metadata import encode_group_metadata
from millrace.records import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.broker
END_TRANSACTION = 26
ADD_OFFSETS = 25
COMMIT_OFFSETS = 28
COMMIT_OUTSIDE = 8
"""API keys of requests."""


def proxy_of(kafka):
    """Return a proxy of the only broker."""
    return LateRequests(int(kafka.bootstrap_servers.rpartition(":")[2]))


class Transactions:
    """A thread's producer behind a proxy, which copies one partition."""

    def __init__(self, kafka, state_dir, **options):
        self.kafka, self.topic, self.app = kafka, new_topic(kafka), f"app-{secrets.token_hex(4)}"
        self.proxy = proxy_of(kafka)
        given = settings(self.proxy.address, self.app, state_dir, processing_guarantee="exactly_once_v2")
        config = StreamsConfig.of(given)
        self.producer = StreamsProducer(
            lambda: ClientSettings(config, "p").producer(1), config.task_timeout_ms, **options
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


def commit_slowly(transactions):
    """Commit three transactions; return the producer's client for each."""
    transactions.proxy.slow_s = 0.3
    clients = []
    for number in range(2, 5):
        transactions.send("another")
        transactions.commit(number)
        clients.append(transactions.producer.client)
    return clients


def test_producer_is_replaced_once_because_it_was_slow(transactions, caplog):
    """Whether a request was repeated is not known then; the next producer is watched, so that slow brokers cost no others."""
    clients = commit_slowly(transactions)
    assert clients[0] is not clients[1]
    assert clients[1] is clients[2]
    assert "default.client.supplier" not in caplog.text


def test_producer_with_another_log_is_replaced_each_time_which_is_said_once(begun, caplog):
    """A client supplier that passes a `logger` of its own hides which requests were sent, so the worst is assumed."""

    def with_own_log(settings):
        return open_producer({**settings, "logger": logging.getLogger("test.own")})

    clients = commit_slowly(begun(open_client=with_own_log))
    assert len(set(clients)) == 3
    assert caplog.text.count("default.client.supplier") == 1


def test_producer_is_replaced_if_a_coordinator_left_the_cluster_before_it_answered(begun):
    """The abort that follows is a second request, so the commit may be the late one, although it failed at once."""

    class Leaving(Producer):
        leaving = False

        def commit_transaction(self, *args):
            if self.leaving:
                raise KafkaException(KafkaError(KafkaError._DESTROY_BROKER, "it has left", False, False, True))
            super().commit_transaction(*args)

    transactions = begun(open_client=Leaving)
    client = transactions.producer.client
    client.leaving = True
    transactions.send("second")
    with pytest.raises(TransactionAbortedError):
        transactions.commit(2)
    transactions.producer.abort()
    assert transactions.producer.client is not client
    transactions.send("again")
    transactions.commit(2)
    assert transactions.written == ["first", "again"]


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


@pytest.fixture
def proxy(kafka):
    """Return a proxy of the broker."""
    made = proxy_of(kafka)
    yield made
    made.close()


def exactly_once(servers, app, state_dir, **others):
    """Return settings of an instance that copies texts."""
    given = settings(servers, app, state_dir, processing_guarantee="exactly_once_v2", metadata_max_age_ms=500, **others)
    return given | {"default.key.serde": "string", "default.value.serde": "string"}


def copying(source, sink):
    """Return a topology that copies texts."""
    builder = StreamsBuilder()
    builder.stream(source).to(sink)
    return builder.build()


def test_task_that_goes_on_with_other_inputs_commits_in_transactions_only(kafka, topic_factory, proxy, tmp_path, app):
    """An OffsetCommit of the same member and generation would not be refused, however late it is."""
    prefix, sink = f"pattern-{secrets.token_hex(4)}", topic_factory("out")
    kafka.create_topics(f"{prefix}-1")
    with running(copying(re.compile(f"{prefix}-.*"), sink), exactly_once(proxy.address, app, tmp_path)) as streams:
        tasks = streams.threads[0].tasks.running
        produce(kafka, f"{prefix}-1", ["a"])
        wait_until(lambda: committed_offset(kafka, app, f"{prefix}-1") == 1, "committed")
        proxy.hold(COMMIT_OUTSIDE)
        kafka.create_topics(f"{prefix}-2")
        wait_until(lambda: [len(task.input_partitions) for task in list(tasks.values())] == [2], "both topics")
        produce(kafka, f"{prefix}-1", ["b"])
        wait_until(lambda: committed_offset(kafka, app, f"{prefix}-1") == 2, "committed again")
        if proxy.holds:
            proxy.deliver()
        assert committed_offset(kafka, app, f"{prefix}-1") == 2
        proxy.hold(None)


@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_late_offsets_of_a_task_that_has_moved_are_refused(kafka, topic_factory, proxy, tmp_path, app, protocol):
    """A hand-over commits offsets outside of a transaction, too: they name a generation that is over for the next owner."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out")
    topology, both = copying(source, sink), {TopicPartition(source, 0), TopicPartition(source, 1)}
    old = exactly_once(proxy.address, app, tmp_path / "old", group_protocol=protocol)
    new = exactly_once(kafka, app, tmp_path / "new", group_protocol=protocol)
    with running(topology, old) as first:
        wait_until(lambda: len(first.threads[0].tasks.running) == 2, "both tasks")
        produce(kafka, source, ["a", "b"], partitions=2)
        wait_until(lambda: committed(kafka, app) == dict.fromkeys(both, 1), "committed")
        proxy.hold(COMMIT_OUTSIDE)
        with running(topology, new) as second:
            wait_until(lambda: len(second.threads[0].tasks.running) == 1, "a task moves")
            assert proxy.holds
            produce(kafka, source, ["c", "d"], partitions=2)
            wait_until(lambda: committed(kafka, app) == dict.fromkeys(both, 2), "committed by both")
            proxy.deliver()
            assert committed(kafka, app) == dict.fromkeys(both, 2)
