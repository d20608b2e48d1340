"""The very moment at which a backfill commits: brokers go away, so that it gets no answer, or somebody still writes."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
from tests.backfill.broker_app import App
from tests.backfill.programs import CountPerKey
from tests.backfill.test_ends import KEYS
from tests.backfill.test_stale_tasks import VALUE
from tests.proxy import HOST, BrokerProxy, api_key, read_request

from millrace.backfill.collector import Outputs
from millrace.backfill.kafka_history import backfill_clients
from millrace.backfill.partition_write import transactional_id
from millrace.backfill.run import BackfillSpec, run_backfill
from millrace.backfill.writer import Writer
from millrace.config import StreamsConfig
from millrace.dev._ports import free_ports
from millrace.dev.kafka import EmbeddedKafka
from millrace.errors import StreamsTimeoutError
from millrace.kafka.clients import open_admin
from millrace.kafka.offsets import latest_offsets
from millrace.records import NO_HEADERS, OffsetAndMetadata, TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.slow]

END_TRANSACTION = 26
"""The API key of the request that commits a transaction."""
UNKNOWN = "It is not known whether a transaction of this backfill was committed"


class Network(BrokerProxy):
    """What is between clients and a broker: after `fail` it fails at the next commit, and stays so until it is restored.

    After `expect` it has something done before it passes on a commit.

    Args:
        port: where clients connect to.
    """

    def __init__(self, port):
        self._application_id = b""
        self._left, self._action = 0, None
        self._lost_before = None
        self._failed = False
        super().__init__(port)

    def fail(self, application_id, *, before_the_broker):
        """Fail at the application's next commit, either before or after the broker gets it."""
        self._application_id = application_id.encode()
        self._lost_before = before_the_broker

    def expect(self, application_id, commits, action):
        """Have something done before the last one of so many commits of an application."""
        self._application_id = application_id.encode()
        self._left, self._action = commits, action

    def restore(self):
        """End all connections, and pass everything on from now on."""
        self._lost_before, self._failed = None, False
        self.end_connections()

    def pass_requests(self, client, server):
        """Pass requests on until it fails."""
        while True:
            request = read_request(client)
            commits = api_key(request) == END_TRANSACTION and self._application_id in request
            fails = self._lost_before is not None and commits
            lost = self._failed or (fails and self._lost_before)
            self._failed = self._failed or fails
            self._left -= commits
            if commits and self._left == 0:
                self._action()
            if not lost:
                server.sendall(request)

    def pass_answers(self, client, server):
        """Pass answers on until it fails."""
        while data := server.recv(65_536):
            if not self._failed:
                client.sendall(data)


@pytest.fixture(scope="module")
def proxied():
    """Give a broker behind a network, and the latter."""
    [port] = free_ports(1, HOST)
    network = Network(port)
    with EmbeddedKafka(advertised_ports=[port], config={"broker.session.timeout.ms": "60000"}) as kafka:  # it is paused
        [network.broker] = kafka.proxied_ports
        yield kafka, network
    network.close()


@pytest.fixture
def app(proxied):
    """An application with some records."""
    app = App(proxied[0])
    app.produce(KEYS)
    return app


def settings(app, network):
    """Return the settings of an application that reaches its broker through the network."""
    return {**app.settings, "bootstrap.servers": f"{HOST}:{network.broker}"}


def test_a_commit_without_an_answer(proxied, app):
    """The error says that nobody knows whether it was committed, and what to do; it says nothing of threads and tasks."""
    network = proxied[1]
    writer = Writer(backfill_clients(StreamsConfig.of(settings(app, network))), f"{app.id}-backfill")
    network.fail(app.id, before_the_broker=False)
    try:
        with pytest.raises(StreamsTimeoutError, match=UNKNOWN) as failure, writer.transaction():
            writer.send(TopicPartition(app.sink, 0), [(b"k", b"v", 1, NO_HEADERS)])
            writer.commit(app.id, {TopicPartition(app.source, 0): OffsetAndMetadata(1)})
        assert "Start the backfill again" in str(failure.value)
        assert "producer takes" not in str(failure.value)
    finally:
        network.restore()
        writer.close()


def test_a_commit_has_all_of_its_time_after_what_confirms_it(proxied, monkeypatch):
    """However long that took, within the transaction's timeout: brokers that then pause for a moment do not fail the commit."""
    kafka = proxied[0]
    app = App(kafka)
    config = StreamsConfig.of(app.settings | {"producer.transaction.timeout.ms": 60_000})
    writer = Writer(backfill_clients(config), f"{app.id}-backfill")
    answer_again = threading.Timer(2.0, kafka.resume)
    took_s = 0.0
    monkeypatch.setattr("millrace.deadline.time", SimpleNamespace(monotonic=lambda: time.monotonic() + took_s))

    def confirm():
        nonlocal took_s
        took_s = 20.0
        kafka.pause()
        answer_again.start()

    try:
        with writer.transaction():
            writer.send(TopicPartition(app.sink, 0), [(b"k", b"kept", 1, NO_HEADERS)])
            writer.commit(app.id, {TopicPartition(app.source, 0): OffsetAndMetadata(1)}, confirm)
    finally:
        answer_again.cancel()
        kafka.resume()
        writer.close()
    assert [record.value() for record in app.read(app.sink)] == [b"kept"]


@pytest.mark.parametrize("before_the_broker", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_the_next_attempt_finds_out(spark, proxied, app, before_the_broker):
    """Whether the last commit was lost or only its answer: once there is another attempt, there is exactly one result."""
    network = proxied[1]
    attempt = BackfillSpec(
        CountPerKey(app.source, app.sink), settings(app, network), outputs=Outputs.ALL, attempt_of="history"
    )
    network.fail(app.id, before_the_broker=before_the_broker)
    try:
        with pytest.raises(StreamsTimeoutError, match=UNKNOWN):
            run_backfill(spark, attempt)
    finally:
        network.restore()
    result = run_backfill(spark, attempt)
    assert bool(result.transactions) is before_the_broker
    assert app.table(app.changelog) == dict(app.counts)
    assert len(app.read(app.sink)) == len(KEYS)
    assert sum(app.committed().values()) == len(KEYS)


def test_a_task_that_is_killed_with_an_open_transaction(spark, proxied):
    """The driver ends the transaction, so that the application need not wait until it times out to restore what is behind it."""
    kafka, network = proxied
    app = App(kafka, partitions=1)
    app.produce(KEYS)
    target = TopicPartition(app.changelog, 0)
    stale = []

    def write_and_stop():
        writer = Writer(backfill_clients(app.clients.config), transactional_id(app.id, target))
        stale.append(writer.transaction())
        writer.send(target, [(b"k1", VALUE, 1, NO_HEADERS)])
        writer.flush()

    network.expect(app.id, 3, write_and_stop)  # the mark, the only changelog partition, the offsets
    what = BackfillSpec(CountPerKey(app.source, app.sink), settings(app, network), transaction_records=1)
    assert run_backfill(spark, what).transactions == 3
    admin = open_admin(app.clients.admin())
    assert latest_offsets(admin, [target], committed_only=True) == latest_offsets(admin, [target])
    stale[0].close()
    assert app.table(app.changelog) == dict(app.counts)
