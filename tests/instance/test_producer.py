"""A stream thread's producer on a real broker: what happens to a transaction with an undelivered record."""

from __future__ import annotations

import contextlib
import secrets
import threading

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.brokers import new_topic
from tests.instance.support import TEXT, Changed, has_failed, read_all, settings
from tests.waiting import PATIENCE_S, wait_until

from millrace.config import StreamsConfig
from millrace.engine.error_handling import PASS_THROUGH
from millrace.errors import ConfigError, ProductionError, TaskMigratedError, TransactionAbortedError
from millrace.instance.producer import StreamsProducer
from millrace.instance.record_collector import KafkaRecordCollector
from millrace.kafka.admin import topic_configs
from millrace.kafka.client_settings import ClientSettings
from millrace.processor.handlers import HandlerResponse
from millrace.records import NO_HEADERS, OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.broker


@pytest.mark.slow
def test_sending_in_a_failed_transaction_asks_to_begin_again(breakable_kafka, app, tmp_path):
    """A record that was not delivered in time fails the transaction, and all further sends until another client takes over."""
    kafka, out = breakable_kafka, new_topic(breakable_kafka)
    config = StreamsConfig.of(
        settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2")
        | {"producer.transaction.timeout.ms": 60_000, "producer.delivery.timeout.ms": 8000}
    )
    producer = StreamsProducer(lambda: ClientSettings(config, "p").producer(1), config.task_timeout_ms)
    producer.start()
    collector, client = KafkaRecordCollector(producer, kafka.admin(), config), producer.client

    def send(value):
        collector.send(out, None, TEXT.serialize(out, value, NO_HEADERS), 1, NO_HEADERS, 0)

    def refused():
        try:
            send("after")
        except TransactionAbortedError as error:
            return error
        return None

    try:
        send("before")
        collector.flush()
        kafka.pause()
        send("lost")
        with pytest.raises(TransactionAbortedError, match=r"within delivery\.timeout\.ms"):
            collector.flush()
        error = wait_until(refused, "refused, once the client has made up its mind")
        assert "within delivery.timeout.ms" in str(error), "the cause is named until it is dealt with"
        kafka.resume()
        producer.abort()
        collector.discard()
        assert producer.client is not client
        send("again")
        collector.flush()
        producer.client.commit_transaction(PATIENCE_S)
    finally:
        kafka.resume()
        producer.close()
    assert [value for _, value, _ in read_all(kafka, out)] == [b"again"]


@pytest.mark.slow
def test_a_client_whose_failure_is_reported_during_the_abort_is_replaced(breakable_kafka, app, tmp_path, monkeypatch):
    """A record may fail the transaction long before its report comes; the client is not trusted again even if it can abort."""
    kafka, out = breakable_kafka, new_topic(breakable_kafka)
    config = StreamsConfig.of(
        settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2")
        | {"producer.transaction.timeout.ms": 60_000, "producer.delivery.timeout.ms": 4000}
    )
    producer = StreamsProducer(lambda: ClientSettings(config, "p").producer(1), config.task_timeout_ms)
    producer.start()
    collector, client = KafkaRecordCollector(producer, kafka.admin(), config), producer.client
    collector.send(out, None, b"before", 1, NO_HEADERS, 0)
    collector.flush()

    def refused():
        try:
            collector.send(out, None, b"lost", 1, NO_HEADERS, 0)
        except TransactionAbortedError:
            return True
        return False

    kafka.pause()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(producer, "flush", lambda *_: 0)  # which would take the report
            wait_until(refused, "refused, although no report was taken", poll_s=0.5)
        kafka.resume()
        producer.abort()
        collector.discard()
        assert producer.client is not client
        collector.send(out, None, b"again", 1, NO_HEADERS, 0)
        collector.flush()
        producer.client.commit_transaction(PATIENCE_S)
    finally:
        kafka.resume()
        producer.close()
    assert [value for _, value, _ in read_all(kafka, out)] == [b"again"]


def test_a_refusal_that_is_known_but_not_reported_is_what_fails_the_transaction(kafka, topic_factory, tmp_path):
    """The next record cannot be sent: it is said why, and the second time the handler gets the record that was refused."""
    topic, app = topic_factory("out", config={"max.message.bytes": "500"}), f"app-{secrets.token_hex(4)}"
    config = StreamsConfig.of(settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2"))
    producer = StreamsProducer(lambda: ClientSettings(config, "p").producer(1), config.task_timeout_ms)
    handler = Asked()
    collector = KafkaRecordCollector(producer, kafka.admin(), config, handler)
    producer.start()
    for kind, seen in ((TransactionAbortedError, []), (ProductionError, [5000])):
        collector.send(topic, None, b"x" * 5000, 1, NO_HEADERS, 0)
        wait_until(lambda: has_failed(producer.client), "the broker's refusal")
        with pytest.raises(kind, match=rf"{topic}-0.*max\.message\.bytes"):
            collector.send(topic, None, b"next", 1, NO_HEADERS, 0)
        assert handler.seen == seen
        producer.abort()
        collector.discard()
    producer.close()


class Asked:
    """Lets no record go, and keeps how large those are that it was asked about."""

    def __init__(self):
        self.seen = []

    def handle_error(self, context, record, exception):
        """Answer FAIL."""
        self.seen.append(len(record.value))
        return HandlerResponse.fail()


def set_largest_batch(kafka, topic, max_bytes):
    """Change a topic's `max.message.bytes`, and wait until the broker knows it, a moment after the controller has accepted it."""
    entry = ConfigEntry("max.message.bytes", str(max_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = kafka.admin()
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(PATIENCE_S)
    wait_until(
        lambda: topic_configs(admin, [topic])[topic]["max.message.bytes"] == str(max_bytes), "the broker knows it"
    )


@pytest.mark.parametrize("ends", ["with a commit", "without a commit"])
def test_batches_are_small_only_as_long_as_the_topic_demands_it(kafka, topic_factory, tmp_path, monkeypatch, ends):
    """After a while the topic's limit is read again, even if records in many small batches are never delivered in time."""
    topic, app = topic_factory("out"), f"app-{secrets.token_hex(4)}"
    config = StreamsConfig.of(settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2"))
    producer = StreamsProducer(lambda: ClientSettings(config, "p").producer(1), config.task_timeout_ms)
    producer.start()
    collector = KafkaRecordCollector(producer, kafka.admin(), config)
    normal = producer._batch_bytes

    def send():
        for number in range(20):
            value = TEXT.serialize(topic, f"{number:0100d}", NO_HEADERS)
            collector.send(topic, None, value, 1, NO_HEADERS, 0)

    def abort():
        with pytest.raises(TransactionAbortedError):
            collector.flush()
        producer.abort()
        collector.discard()

    set_largest_batch(kafka, topic, 500)
    send()
    abort()
    assert (producer._batch_bytes, producer.one_by_one) == (500, True)
    set_largest_batch(kafka, topic, 1_000_000)
    monkeypatch.setattr(collector, "_careful_until", 0.0)
    send()
    if ends == "with a commit":
        collector.flush()
        producer.client.commit_transaction(PATIENCE_S)
        producer.in_transaction = False
        collector.committed()
    else:
        collector.on_failure(KafkaError(KafkaError._MSG_TIMED_OUT), Reported(topic))
        abort()
    assert (producer._batch_bytes, producer.one_by_one) == (normal, False)
    send()
    collector.flush()
    producer.client.commit_transaction(PATIENCE_S)
    producer.close()
    assert len(read_all(kafka, topic)) == (40 if ends == "with a commit" else 20)


class Reported:
    """A record in a delivery report."""

    def __init__(self, topic):
        self._topic = topic

    def topic(self):
        return self._topic

    def key(self):
        return None

    def value(self):
        return b"late"

    def partition(self):
        return 0


TRANSACTION_TIMEOUT_MS = 6000


class AwayAfterOffsets(Changed):
    """Its brokers stop answering between the two requests of a commit."""

    def __init__(self, client, kafka):
        super().__init__(client)
        self._kafka = kafka
        self.limits_s = []
        """How long each attempt to commit may take."""

    def send_offsets_to_transaction(self, *_):
        self._kafka.pause()

    def commit_transaction(self, limit_s):
        self.limits_s.append(limit_s)
        self._client.commit_transaction(limit_s)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_a_transaction_that_cannot_be_ended_is_ended_by_a_new_producer(breakable_kafka, app, tmp_path, ending):
    """If brokers do not answer before the transaction times out, a new producer with the same id continues when they do."""
    kafka, out = breakable_kafka, new_topic(breakable_kafka)
    config = StreamsConfig.of(
        settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2")
        | {"producer.transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
    )
    answer_again = threading.Timer(1.0, kafka.resume)
    opened = []

    def client_settings():
        opened.append(ClientSettings(config, "p").producer(1))
        if len(opened) == 2:
            answer_again.start()
        return opened[-1]

    producer = StreamsProducer(client_settings, config.task_timeout_ms)
    producer.start()
    first = producer.client = AwayAfterOffsets(producer.client, kafka)
    try:
        producer.begin()
        producer.client.produce(out, b"unsure")
        producer.flush()
        if ending == "commit":
            with pytest.raises(TransactionAbortedError, match="A new producer takes its place"):
                producer.commit({TopicPartition(out, 0): OffsetAndMetadata(1)}, b"")
            # Later the coordinator would fence it, and the thread would lose its tasks.
            assert 0 < sum(first.limits_s) < TRANSACTION_TIMEOUT_MS / 1000
        else:
            kafka.pause()
        producer.abort()
        assert producer.client is not first
        producer.begin()
        producer.client.produce(out, b"kept")
        producer.client.commit_transaction(PATIENCE_S)
    finally:
        answer_again.cancel()
        kafka.resume()
        producer.close()
    written = [value for _, value, _ in read_all(kafka, out)]
    possible = [[b"kept"], [b"unsure", b"kept"]] if ending == "commit" else [[b"kept"]]
    assert written in possible


def test_fenced_producer_says_so_whatever_it_is_doing(kafka, topic_factory, tmp_path):
    """Fencing is noticed even while delivery reports are served; after aborting, the producer works again."""
    topic, app = topic_factory("out", partitions=4), f"app-{secrets.token_hex(4)}"
    config = StreamsConfig.of(settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2"))
    fenced, newer = (
        StreamsProducer(lambda: ClientSettings(config, "p").producer(1), config.task_timeout_ms) for _ in range(2)
    )
    fenced.start()
    fenced.begin()
    newer.start()
    with contextlib.suppress(KafkaException):  # it may have noticed already
        for number in range(2_000):
            fenced.client.produce(topic, b"lost", None, number % 4)
    with pytest.raises(TaskMigratedError, match="fenced"):
        wait_until(fenced.flush, "never: flush raises")
    fenced.abort()
    fenced.begin()
    fenced.client.produce(topic, b"kept")
    fenced.flush()
    fenced.client.commit_transaction(PATIENCE_S)
    for producer in (fenced, newer):
        producer.close()
    wait_until(
        lambda: [item[1] for item in read_all(kafka, topic, partitions=4)] == [b"kept"], "only what was committed"
    )


def test_a_fatal_error_is_raised_before_anything_else_is_reported(kafka, topic_factory, tmp_path):
    """The error that ends a producer reaches the thread, although reports follow it and their receiver swallows exceptions."""
    topic, app = topic_factory("out"), f"app-{secrets.token_hex(4)}"
    given = settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2") | {"producer.linger.ms": 0}
    config = StreamsConfig.of(given)

    def new_producer():
        return StreamsProducer(lambda: ClientSettings(config, "p").producer(1), config.task_timeout_ms)

    def swallow(error, _):
        try:  # noqa: SIM105 (`suppress` would itself be called with the exception set)
            error.code()
        except BaseException:
            pass

    for _ in range(8):
        fenced, newer = new_producer(), new_producer()
        fenced.on_failure = swallow
        fenced.start()
        fenced.begin()
        fenced.client.produce(topic, b"in time")
        fenced.flush()
        newer.start()
        with contextlib.suppress(KafkaException):  # it may have noticed already
            for _ in range(50):
                fenced.client.produce(topic, b"late")
        with pytest.raises(TaskMigratedError, match="fenced"):
            wait_until(fenced.flush, "never: flush raises")
        for producer in (fenced, newer):
            producer.close()


def test_a_new_producer_that_cannot_be_opened_is_not_the_records_fault(kafka, app, tmp_path):
    """The next transaction needs one: what is raised while a record is sent passes the handler, and `abort` says why."""
    config = StreamsConfig.of(settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2"))
    opened = []

    def producer_settings():
        if opened:
            raise ConfigError("the file with the password is gone")
        opened.append(True)
        return ClientSettings(config, "p").producer(1)

    producer = StreamsProducer(producer_settings, config.task_timeout_ms)
    try:
        producer.start()
        producer.must_be_replaced = True
        with pytest.raises(PASS_THROUGH, match="the password is gone"):
            producer.begin()
        with pytest.raises(ConfigError, match="the password is gone"):
            producer.abort()
    finally:
        producer.close()
