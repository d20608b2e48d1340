"""What a backfill's writer does when a transaction has failed, or may still be ended by a request that comes late.

After a refused record the user is told of that record, as no second attempt mends it. The client knows that the transaction has
failed before the record is reported, so these tests wait until it knows, and take no report.
"""

import secrets
import time

import pytest
from tests.instance.support import has_failed, read_all
from tests.proxy import LateRequests
from tests.waiting import wait_until

from millrace.backfill.kafka_history import backfill_clients
from millrace.backfill.writer import Writer
from millrace.config import StreamsConfig
from millrace.errors import ProductionError, TransactionAbortedError
from millrace.records import NO_HEADERS, OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.broker
END_TRANSACTION = 26
"""The API key of the request that commits a transaction."""


def open_writer(servers):
    """Return a writer of a new application."""
    app = f"app-{secrets.token_hex(4)}"
    config = StreamsConfig.of({"application.id": app, "bootstrap.servers": servers})
    return Writer(backfill_clients(config), f"{app}-backfill")


@pytest.fixture
def writer(kafka):
    """A writer on the shared broker."""
    writer = open_writer(kafka.bootstrap_servers)
    yield writer
    writer.close()


@pytest.fixture
def proxy(kafka):
    """A proxy of the shared broker."""
    proxy = LateRequests(int(kafka.bootstrap_servers.rpartition(":")[2]))
    yield proxy
    proxy.close()


@pytest.fixture
def proxied(proxy):
    """A writer that reaches the shared broker through the proxy."""
    writer = open_writer(proxy.address)
    yield writer
    writer.close()


def send(writer, target, value):
    """Send a record with a key."""
    writer.send(target, [(b"key", value, 1, NO_HEADERS)])


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(lambda writer, at: writer.add_offsets("group", {at: OffsetAndMetadata(1)}), id="offsets"),
        pytest.param(lambda writer, at: writer.commit("group", {at: OffsetAndMetadata(1)}), id="commit"),
        pytest.param(lambda writer, at: send(writer, at, b"small"), id="another record"),
        pytest.param(lambda writer, _: writer.flush(), id="flush"),
    ],
)
def test_a_refused_record_is_named_by_whatever_is_done_next(writer, topic_factory, then):
    """A transaction of a backfill fails because of the record, not of what could no longer be done."""
    target = TopicPartition(topic_factory("out", config={"max.message.bytes": "500"}), 0)
    with writer.transaction():
        send(writer, target, b"x" * 5_000)
        wait_until(lambda: has_failed(writer._producer.client), "the broker's refusal")
        with pytest.raises(ProductionError, match=rf"{target}.*max\.message\.bytes"):
            then(writer, target)


def test_a_timestamp_that_is_too_late_is_named(writer, topic_factory):
    """The error says which topic refuses which timestamp because of which setting. It is the latest one."""
    target, late = TopicPartition(topic_factory("out"), 0), int(time.time() * 1000) + 7_200_000
    with (
        pytest.raises(ProductionError, match=rf"{target}.*timestamp {late}.*message\.timestamp\.after\.max\.ms"),
        writer.transaction(),
    ):
        writer.send(target, [(b"key", b"value", stamp, NO_HEADERS) for stamp in (1, late, 1)])
        writer.flush()


def test_a_timestamp_that_is_too_early_is_not_mistaken_for_the_latest(writer, topic_factory):
    """History is written: which record is refused is not known then, only the settings that may refuse it."""
    target = TopicPartition(topic_factory("out", config={"message.timestamp.before.max.ms": "3600000"}), 0)
    latest = int(time.time() * 1000) - 60_000
    with pytest.raises(ProductionError, match=r"message\.timestamp\.before\.max\.ms") as refused, writer.transaction():
        writer.send(target, [(b"key", b"value", stamp, NO_HEADERS) for stamp in (latest - 7_200_000, latest)])
        writer.flush()
    assert str(latest) not in str(refused.value)


def publish(writer, target, value):
    """Write a record in a transaction of its own."""
    with writer.transaction():
        send(writer, target, value)
        writer.commit("group", {target: OffsetAndMetadata(1)})


def test_no_transaction_follows_one_whose_end_may_come_late(proxied, proxy, kafka, topic_factory):
    """The brokers may still get the first request to commit, which would commit half of what follows."""
    target = TopicPartition(topic_factory("out"), 0)
    proxy.hold(END_TRANSACTION)
    publish(proxied, target, b"first")
    with pytest.raises(TransactionAbortedError, match="sent twice"):
        publish(proxied, target, b"second")
    assert [value for _, value, _ in read_all(kafka, target.topic)] == [b"first"]


def test_slow_brokers_fail_no_backfill(proxied, proxy, kafka, topic_factory):
    """A request that is answered late was still sent once."""
    target = TopicPartition(topic_factory("out"), 0)
    proxy.slow_s = 0.3
    publish(proxied, target, b"first")
    publish(proxied, target, b"second")
    assert [value for _, value, _ in read_all(kafka, target.topic)] == [b"first", b"second"]
