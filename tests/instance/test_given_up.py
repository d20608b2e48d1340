"""What becomes of the clients of a stream thread's producer that are given up, or closed."""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import secrets
import threading
import weakref
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka.admin import KafkaAdminClient
from tests.instance.support import Changed, last_counts, produce, read_all, running, settings, word_count
from tests.waiting import PATIENCE_S, wait_until

from millrace.config import StreamsConfig
from millrace.dev.kafka import EmbeddedKafka
from millrace.errors import MissingSourceTopicError, StreamsTimeoutError, TaskMigratedError, TransactionAbortedError
from millrace.instance.kafka_streams import KafkaStreams
from millrace.instance.producer import StreamsProducer
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.client_supplier import KafkaClientSupplier
from millrace.kafka.clients import open_producer
from millrace.kafka.group_metadata import encode_group_metadata
from millrace.records import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.broker


class Stuck(Changed):
    """Never answers once it is asked to add offsets; when it is released, it raises what a fenced producer does."""

    def __init__(self, client):
        super().__init__(client)
        self.release = threading.Event()

    def send_offsets_to_transaction(self, *_):
        self.release.wait(PATIENCE_S)
        raise KafkaException(KafkaError(KafkaError._FENCED, "a newer producer has this id", True))


def observed_producer(config):
    """Return a producer, and a list that gets a weak reference to each client that it opens."""
    opened = []

    def open_client(given):
        client = open_producer(given)
        opened.append(weakref.ref(client))
        return client

    def client_settings():
        return ClientSettings(config, "p").producer(1)

    return StreamsProducer(client_settings, config.task_timeout_ms, open_client=open_client), opened


def short_transactions(kafka, folder):
    """Return the settings of an application whose transactions may take two seconds."""
    given = settings(kafka, f"app-{secrets.token_hex(4)}", folder, processing_guarantee="exactly_once_v2")
    return StreamsConfig.of(given | {"producer.transaction.timeout.ms": 2000})


def test_a_producer_that_does_not_return_is_replaced(kafka, topic_factory, tmp_path):
    """What it sent is processed again by a new producer with the same id, which fences it."""
    topic = topic_factory("out")
    producer, _ = observed_producer(short_transactions(kafka, tmp_path))
    producer.start()
    producer.client = stuck = Stuck(producer.client)
    producer.begin()
    producer.client.produce(topic, b"lost")
    with pytest.raises(TransactionAbortedError, match="a new one takes its place"):
        producer.commit({TopicPartition(topic, 0): OffsetAndMetadata(1)}, b"")
    producer.abort()
    assert producer.client is not stuck
    producer.begin()
    producer.client.produce(topic, b"kept")
    producer.client.commit_transaction(PATIENCE_S)
    producer.close()
    stuck.release.set()
    assert [value for _, value, _ in read_all(kafka, topic)] == [b"kept"]


@contextlib.contextmanager
def no_collector():
    """Collect what is garbage, and then nothing more: what is freed in the block is freed by reference counts alone."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("answer", ["late", "in time"])
def test_a_client_that_was_given_up_is_freed_when_its_call_fails(kafka, topic_factory, tmp_path, answer):
    """The exception of the call that had been abandoned, or that of the commit, does not keep it until garbage is collected."""
    topic = topic_factory("out")
    producer, (given_up, *_) = observed_producer(short_transactions(kafka, tmp_path))
    producer.start()
    producer.client = Stuck(producer.client)
    release = producer.client.release
    if answer == "in time":
        release.set()
    with no_collector():
        producer.begin()
        producer.client.produce(topic, b"lost")
        with pytest.raises(TransactionAbortedError if answer == "late" else TaskMigratedError):
            producer.commit({TopicPartition(topic, 0): OffsetAndMetadata(1)}, b"")
        producer.must_be_replaced = True
        producer.abort()
        assert answer == "in time" or given_up() is not None, "it is still in its call"
        release.set()
        wait_until(lambda: given_up() is None, "it is freed")
    producer.close()


class FirstIsStuck(KafkaClientSupplier):
    """Opens producers of which the first one gets stuck."""

    def __init__(self):
        self.first, self.known = None, lambda: None

    def producer(self, settings):
        """Open one."""
        client = super().producer(settings)
        if self.first is not None:
            return client
        self.known = weakref.ref(client)
        stuck = Stuck(client)
        self.first = stuck.release
        return stuck


def test_a_client_that_a_thread_has_given_up_is_freed(kafka, topic_factory, app, tmp_path):
    """What failed is not kept by the exceptions that confluent-kafka raises while the thread starts another producer."""
    source, sink, supplier = topic_factory("in"), topic_factory("out"), FirstIsStuck()
    given = settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2")
    given |= {"producer.transaction.timeout.ms": 2000, "default.client.supplier": supplier}
    with running(word_count(source, sink), given) as streams, no_collector():
        produce(kafka, source, ["a", "b"])
        wait_until(lambda: streams.error or last_counts(kafka, sink) == {"a": 1, "b": 1}, "all counted")
        assert supplier.known() is not None, "it is still in its call"
        supplier.first.set()
        wait_until(lambda: supplier.known() is None, "it is freed")


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_clients_of_a_closed_producer_are_freed(kafka, tmp_path, guarantee):
    """Each has some threads, and a thread that has died, with all that it had, may be collected much later."""
    config = StreamsConfig.of(settings(kafka, f"app-{secrets.token_hex(4)}", tmp_path, processing_guarantee=guarantee))
    with no_collector():
        producer, opened = observed_producer(config)
        producer.start()
        producer.replace()
        for _ in range(2):  # it may be called again
            producer.close()
        wait_until(lambda: [client() for client in opened] == [None, None], "both are freed")


def native_clients():
    """Return how many clients of librdkafka this process has; each has one main thread, which ends last."""
    names = (path / "comm" for path in Path("/proc/self/task").iterdir())
    found = 0
    for name in names:
        with contextlib.suppress(OSError):  # the thread has ended
            found += name.read_text().strip() == "rdk:main"
    return found


class Observed(KafkaClientSupplier):
    """Remembers the admin clients that it opens, without keeping them."""

    def __init__(self):
        self.admins = []

    def admin(self, settings):
        """Open one."""
        client = super().admin(settings)
        self.admins.append(weakref.ref(client))
        return client


def test_a_closed_instance_has_no_clients(kafka, topic_factory, app, tmp_path):
    """Its native threads have ended when `close` returns, though the instance itself is kept; it can still be asked."""
    source, sink, supplier = topic_factory("in"), topic_factory("out"), Observed()
    given = settings(kafka, app, tmp_path) | {"default.client.supplier": supplier}
    with no_collector():
        before = native_clients()
        with running(word_count(source, sink), given) as streams:
            produce(kafka, source, ["a"])
            wait_until(lambda: streams.error or last_counts(kafka, sink) == {"a": 1}, "all counted")
            assert native_clients() > before
            assert supplier.admins[0]() is not None
        wait_until(lambda: [admin() for admin in supplier.admins] == [None], "it is freed")
        wait_until(lambda: native_clients() <= before, lambda: f"{native_clients()} clients, {before} before")
        assert streams.all_local_store_partition_lags() == {}
        assert streams.close()


def test_an_instance_that_cannot_start_has_no_clients(kafka, topic_factory, app, tmp_path):
    """The error that says why does not keep them."""
    supplier = Observed()
    given = settings(kafka, app, tmp_path) | {"default.client.supplier": supplier}
    with no_collector():
        streams = KafkaStreams(word_count("missing", topic_factory("out")), given)
        with pytest.raises(MissingSourceTopicError) as raised:
            streams.start()
        wait_until(lambda: [admin() for admin in supplier.admins] == [None], "it is freed")
        assert "missing" in str(raised.value)
        assert streams.close()


@pytest.mark.slow
@pytest.mark.thorough
def test_producers_that_were_given_up_end(tmp_path):
    """If the group's coordinator leaves the cluster, a commit hangs and a new producer continues; the old one ends later."""
    process = multiprocessing.get_context("spawn").Process(target=give_producers_up, args=(tmp_path,))
    process.start()
    try:
        process.join(2 * PATIENCE_S)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


def give_producers_up(folder):
    """Do so in a process of its own, in which other tests have no clients."""
    with EmbeddedKafka(brokers=3) as kafka:
        kafka.create_topics("in", "out", partitions=3)
        with no_collector():
            stop_coordinators_during_commits(kafka, folder)


def stop_coordinators_during_commits(kafka, folder):
    """Do so twice, and check that no client but the last one is left."""
    config = StreamsConfig.of(settings(kafka, "app", folder, processing_guarantee="exactly_once_v2"))
    producer, opened = observed_producer(config)
    producer.start()
    metadata = encode_group_metadata("app", -1, "")
    offset = itertools.count(1)
    given_up = 0

    def succeeds():
        nonlocal given_up
        try:
            producer.begin()
            for number in range(3):
                producer.client.produce("out", b"x", None, number)
            producer.flush()
            producer.commit({TopicPartition("in", 0): OffsetAndMetadata(next(offset))}, metadata)
        except (TransactionAbortedError, StreamsTimeoutError) as error:
            given_up += "a new one takes its place" in str(error)
            return False
        return True

    def commit():
        if not (done := succeeds()):
            producer.abort()
        return done

    wait_until(commit, "a commit")
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers.split(","))
    for _ in range(2):
        admin._manager.cluster._coordinators.clear()  # else it answers where the coordinator was
        (coordinator,) = admin._manager.run(admin._find_coordinator_ids, ["app"]).values()
        kafka.stop_broker(coordinator)
        wait_until(
            lambda gone=coordinator: gone not in producer.client.list_topics(timeout=PATIENCE_S).brokers, "it is gone"
        )
        wait_until(commit, "a commit by this producer or its successor")
        kafka.restart_broker(coordinator)
        wait_until(commit, "a commit")
    admin.close()
    assert given_up
    wait_until(
        lambda: [client() for client in opened] == [None] * (len(opened) - 1) + [producer.client], "they are freed"
    )
    gc.collect()  # the admin clients of the cluster
    wait_until(lambda: native_clients() == 1, lambda: f"{native_clients()} clients")
    producer.close()
