"""Reading offsets and deleting records: answers, refusals, and broker restarts."""

import socket

import pytest
from confluent_kafka import Producer
from tests.brokers import new_topic
from tests.waiting import PATIENCE_S

from millrace.dev._readiness import quiet_admin
from millrace.errors import StreamsError, StreamsTimeoutError
from millrace.kafka.offsets import delete_records, earliest_offsets, latest_offsets, offsets_for_time
from millrace.records import TopicPartition

pytestmark = pytest.mark.broker


@pytest.fixture
def admin(kafka):
    """Return an admin client."""
    return kafka.admin()


def write(kafka, topic, timestamps, partition=0):
    """Produce a record for each timestamp."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for timestamp in timestamps:
        producer.produce(topic, b"x", partition=partition, timestamp=timestamp)
    assert producer.flush(PATIENCE_S) == 0


def test_earliest_and_latest_offsets(admin, kafka, topic_factory):
    """Latest offsets follow the last record, and earliest ones move when records are deleted."""
    partition = TopicPartition(topic_factory("purge"), 0)
    write(kafka, partition.topic, range(1, 6))
    delete_records(admin, {partition: 3})
    assert earliest_offsets(admin, [partition]) == {partition: 3}
    assert latest_offsets(admin, [partition]) == {partition: 5}
    assert latest_offsets(admin, [partition], committed_only=True) == {partition: 5}


def test_no_partitions_need_no_request(admin):
    """Without partitions no request is sent, and the result is empty."""
    assert earliest_offsets(admin, []) == {}
    assert offsets_for_time(admin, [], 0) == {}


def test_offsets_for_time(admin, kafka, topic_factory):
    """The first record that is not older than the time is found, or the end if all are older."""
    topic = topic_factory("times", partitions=2)
    early, late = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(kafka, topic, [100, 200, 300], early.partition)
    write(kafka, topic, [100, 900], late.partition)
    assert offsets_for_time(admin, [early, late], 150) == {early: 1, late: 1}
    assert offsets_for_time(admin, [early, late], 500) == {early: 3, late: 1}


def test_deleting_beyond_the_end_is_refused(admin, topic_factory):
    """An offset beyond the end of the partition is an error with its name, raised without waiting for the timeout."""
    partition = TopicPartition(topic_factory("purge"), 0)
    with pytest.raises(StreamsError, match=str(partition)) as caught:
        delete_records(admin, {partition: 3})
    assert not isinstance(caught.value, StreamsTimeoutError)


def test_requests_for_a_missing_topic_time_out(admin):
    """Requests for a partition without a leader are retried until the timeout; the error names it."""
    partition = TopicPartition("no-such-topic", 0)
    with pytest.raises(StreamsTimeoutError, match="no-such-topic-0"):
        latest_offsets(admin, [partition], 0.5)
    with pytest.raises(StreamsTimeoutError, match="no-such-topic-0"):
        delete_records(admin, {partition: 1}, 0.5)


def test_the_client_keeps_working_after_a_broker_restart(breakable_kafka):
    """The same clients keep working when the only broker is back, with a new leader epoch."""
    kafka = breakable_kafka
    partition = TopicPartition(new_topic(kafka), 0)
    write(kafka, partition.topic, range(1, 11))
    admin, other = kafka.admin(), kafka.admin()
    delete_records(admin, {partition: 2})
    assert latest_offsets(other, [partition]) == {partition: 10}
    kafka.restart_broker()
    delete_records(admin, {partition: 5}, PATIENCE_S)
    assert earliest_offsets(admin, [partition], PATIENCE_S) == {partition: 5}
    assert latest_offsets(other, [partition], PATIENCE_S) == {partition: 10}


@pytest.mark.parametrize(
    "ask", [latest_offsets, lambda admin, at, timeout_s: delete_records(admin, {at[0]: 1}, timeout_s)]
)
def test_requests_to_brokers_that_never_answered_time_out(endless_requests, ask):
    """If the client never learns anything about the cluster, looking for leaders keeps to the timeout too."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        admin = quiet_admin(f"127.0.0.1:{silent.getsockname()[1]}")
        for _ in range(3):
            with pytest.raises(StreamsTimeoutError):
                ask(admin, [TopicPartition("t", 0)], 1.0)
