"""Restoring from a source topic, of which only what the group has committed may be applied."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import Producer
from tests.instance.support import settings
from tests.waiting import PATIENCE_S, wait_until

from millrace import StreamsBuilder
from millrace.config import StreamsConfig
from millrace.dsl import Consumed
from millrace.engine.task import StreamTask
from millrace.instance import changelog_reader
from millrace.instance.changelog_reader import AddedTask, ChangelogReader
from millrace.instance.offset_sums import open_offset_sum
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import open_admin, open_consumer
from millrace.kafka.offsets import delete_records
from millrace.records import TaskId, TopicPartition
from millrace.serdes import Serdes
from millrace.testing.output_collector import CapturingCollector

pytestmark = pytest.mark.broker

TASK = TaskId(0, 0)


class AllAtOnce:
    """A consumer that returns messages only when it has read to the end of a partition, all of them together."""

    def __init__(self, consumer):
        self._consumer = consumer
        self._messages = []

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    def consume(self, count, timeout_s):
        """Return everything up to the end of the partition, if that has been read."""
        self._messages += self._consumer.consume(count, timeout_s)
        if not any(message.error() is not None for message in self._messages):
            return []
        messages, self._messages = self._messages, []
        return messages

    def poll(self, timeout_s):
        """Wait, and return nothing."""
        self._messages += self._consumer.consume(1, timeout_s)


@contextmanager
def table_reader(kafka, app, source, tmp_path, **options):
    """Yield a reader, and a task with a table whose store is restored from its source topic."""
    config = StreamsConfig.of(settings(kafka, app, tmp_path, topology_optimization="all", **options))
    builder = StreamsBuilder()
    builder.table(source, "table", consumed=Consumed.with_(Serdes.string(), Serdes.string()))
    topology = builder.build({"application.id": app, "topology.optimization": "all"})
    [subtopology] = topology.build(config).subtopologies
    clients = ClientSettings(config, "test")
    reader = ChangelogReader(
        lambda: AllAtOnce(open_consumer(clients.restore_consumer(1))), open_admin(clients.admin()), config
    )
    task = StreamTask(
        TASK,
        subtopology,
        config,
        CapturingCollector(),
        state_dir=tmp_path / str(TASK),
        cache=None,
        clock=lambda: 0,
        input_partitions=frozenset({TopicPartition(source, 0)}),
    )
    with ExitStack() as stack:
        stack.callback(reader.close)
        task.open_stores()
        stack.callback(task.close_dirty)
        yield reader, task


def write_numbers(kafka, topic, numbers):
    """Write one record per number to the topic's first partition."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for number in numbers:
        producer.produce(topic, "1", f"k{number:03}", 0)
    assert producer.flush(PATIENCE_S) == 0


def keys(task):
    """Return the keys in the task's store."""
    return [pair.key for pair in task.stores["table"].all()]


def test_a_restored_store_has_no_later_offset_than_its_records(kafka, topic_factory, tmp_path, app):
    """Reading beyond the committed offset, to the end of the topic, does not count as having applied what is there."""
    source = topic_factory("in")
    write_numbers(kafka, source, range(15))
    partition = TopicPartition(source, 0)
    with table_reader(kafka, app, source, tmp_path) as (reader, task):
        reader.begin([AddedTask(task, {partition: 10}, standby=False)])
        wait_until(lambda: reader.restored, "restored", meanwhile=lambda: reader.take_offsets() or reader.read())
        assert len(keys(task)) == 10
        assert task.stores["table"].committed_offset(partition) == 9


def test_an_open_transaction_that_holds_up_restoration_is_logged(
    kafka, topic_factory, tmp_path, app, monkeypatch, caplog
):
    """Whenever nothing has followed for a while; it goes on when the transaction ends."""
    source = topic_factory("in")
    write_numbers(kafka, source, range(5))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": app})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(source, "1", "open", 0)
    assert producer.flush(PATIENCE_S) == 0
    with table_reader(kafka, app, source, tmp_path) as (reader, task):
        reader.begin([AddedTask(task, {}, standby=False)])
        wait_until(lambda: reader.changelogs, "the offsets are known", meanwhile=reader.take_offsets)
        [changelog] = reader.changelogs
        wait_until(lambda: changelog.committed_end, "what is committed is read", meanwhile=reader.read)
        reader.commit_and_log_if_due()
        assert "transaction" not in caplog.text
        monkeypatch.setattr(changelog_reader, "_LOG_OPEN_TRANSACTION_EVERY_S", 0)
        reader.commit_and_log_if_due()
        [message] = [record.message for record in caplog.records if "transaction" in record.message]
        assert message.startswith(
            f"Restoring {source}-0 waits at offset 5, 1 before the end: a transaction that began there"
        )
        producer.commit_transaction(PATIENCE_S)
        wait_until(lambda: reader.restored, "restored", meanwhile=reader.read)
        assert "open" in keys(task)


def test_a_standby_applies_what_it_read_before_it_was_committed(kafka, topic_factory, tmp_path, app):
    """Records beyond the committed offset are read again once they are committed, even if that is at the next moment."""
    source = topic_factory("in")
    write_numbers(kafka, source, range(15))
    partition = TopicPartition(source, 0)
    with table_reader(kafka, app, source, tmp_path) as (reader, task):
        reader.begin([AddedTask(task, {partition: 10}, standby=True)])
        wait_until(lambda: reader.changelogs, "the offsets are known", meanwhile=reader.take_offsets)
        wait_until(lambda: len(keys(task)) == 10, "followed to the commit", meanwhile=reader.read)
        assert task.changelog_positions == {partition: 10}
        reader.limit({partition: 15})
        write_numbers(kafka, source, range(15, 20))
        reader.limit({partition: 20})
        wait_until(lambda: "k019" in keys(task), "followed to the next commit", meanwhile=reader.read)
        assert len(keys(task)) == 20


def test_a_standby_that_has_read_a_commit_marker_has_no_lag(kafka, topic_factory, tmp_path, app):
    """The end of a transaction takes an offset; a standby that reported less would never have caught up."""
    source = topic_factory("in")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": app})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(source, "1", "k", 0)
    producer.flush(PATIENCE_S)
    before_the_marker = {"restore_consumer_isolation_level": "read_uncommitted"}
    with table_reader(kafka, app, source, tmp_path, **before_the_marker) as (reader, task):
        reader.begin([AddedTask(task, {}, standby=True)])
        wait_until(lambda: reader.changelogs, "the offsets are known", meanwhile=reader.take_offsets)
        wait_until(lambda: keys(task) == ["k"], "the record is read", meanwhile=reader.read)
        reader._last_commit = 0
        reader.commit_and_log_if_due()
        producer.commit_transaction(PATIENCE_S)
        [changelog] = reader.changelogs
        wait_until(lambda: changelog.next_offset == 2, "the marker is read", meanwhile=reader.read)
        assert open_offset_sum(task) == 1
        reader._last_commit = 0
        reader.commit_and_log_if_due()
        assert open_offset_sum(task) == 2


def test_a_standby_of_a_changelog_that_has_expired_has_no_lag(kafka, topic_factory, tmp_path, app):
    """There is nothing to read below the first offset; a standby that reported none would never have caught up."""
    source = topic_factory("in")
    write_numbers(kafka, source, range(10))
    admin = open_admin(ClientSettings(StreamsConfig.of(settings(kafka, app, tmp_path)), "expiry").admin())
    delete_records(admin, {TopicPartition(source, 0): 10})
    with table_reader(kafka, app, source, tmp_path) as (reader, task):
        reader.begin([AddedTask(task, {}, standby=True)])
        wait_until(lambda: reader.changelogs, "the offsets are known", meanwhile=reader.take_offsets)
        reader._last_commit = 0
        reader.commit_and_log_if_due()
        assert open_offset_sum(task) == 10
