"""The committed offsets of a group, as its administrator reads them."""

import itertools
import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from tests.committed_offsets import committed, group_admin
from tests.waiting import PATIENCE_S, wait_until

from millrace.errors import StreamsTimeoutError
from millrace.kafka.group_metadata import encode_group_metadata
from millrace.records import TopicPartition

pytestmark = pytest.mark.broker


def transactional(kafka, name):
    """Return a producer that may send transactions."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    return producer


def send_offsets(producer, group_id, offsets):
    """Make offsets of a group part of a producer's transaction."""
    positions = [ClientTopicPartition(*partition, offset) for partition, offset in offsets.items()]
    producer.send_offsets_to_transaction(positions, encode_group_metadata(group_id, -1, "", None), PATIENCE_S)


def test_an_unknown_group_has_no_offsets(kafka, topic_factory):
    """It is no error to ask for them, with or without partitions."""
    partition = TopicPartition(topic_factory("in"), 0)
    assert committed(kafka, "nobody") == committed(kafka, "nobody", [partition]) == committed(kafka, "nobody", []) == {}


def test_offsets_are_those_after_the_pending_transaction(kafka, topic_factory):
    """Otherwise a partition with a pending offset would look as if nothing had been committed."""
    topic = topic_factory("in", partitions=2)
    partitions, producer = [TopicPartition(topic, number) for number in range(2)], transactional(kafka, topic)
    producer.begin_transaction()
    send_offsets(producer, topic, dict.fromkeys(partitions, 5))
    producer.commit_transaction()
    wait_until(lambda: committed(kafka, topic) == dict.fromkeys(partitions, 5), "the offsets")
    producer.begin_transaction()
    send_offsets(producer, topic, {partitions[1]: 9})
    for asked in (None, partitions):
        with group_admin(kafka, topic) as group:
            assert group.describe().state == "Empty"
            with pytest.raises(StreamsTimeoutError, match="UnstableOffsetCommit"):
                group.of_group(topic, 2.0).stable_offsets(asked)
    producer.commit_transaction()
    assert committed(kafka, topic) == {partitions[0]: 5, partitions[1]: 9}


def test_a_pending_offset_where_a_group_has_none_is_waited_for_if_it_is_asked_for(kafka, topic_factory):
    """Brokers do not list it; a group without any offset would look as if it never had any."""
    partition = TopicPartition(topic_factory("in"), 0)
    group_id, producer = partition.topic, transactional(kafka, partition.topic)
    producer.begin_transaction()
    send_offsets(producer, group_id, {partition: 9})
    assert committed(kafka, group_id) == committed(kafka, group_id, []) == {}
    with group_admin(kafka, group_id) as group:
        group.describe()
        with pytest.raises(StreamsTimeoutError, match="UnstableOffsetCommit"):
            group.of_group(group_id, 2.0).stable_offsets([partition])
    producer.commit_transaction()
    assert committed(kafka, group_id, [partition]) == {partition: 9}


def test_partitions_that_are_pending_in_turn(kafka, topic_factory):
    """What is known of a partition is kept while another is pending: there may never be a moment when none is."""
    topic = topic_factory("in", partitions=2)
    partitions = [TopicPartition(topic, number) for number in range(2)]
    producers = [transactional(kafka, f"{topic}-{number}") for number in range(2)]
    ended, found = threading.Event(), []

    def read():
        found.append(committed(kafka, topic, partitions))
        ended.set()

    producers[0].begin_transaction()
    send_offsets(producers[0], topic, dict.fromkeys(partitions, 0))
    producers[0].commit_transaction()
    producers[0].begin_transaction()
    send_offsets(producers[0], topic, {partitions[0]: 1})
    thread = threading.Thread(target=read)
    thread.start()
    for round_ in itertools.count(1):
        ours, others = producers[round_ % 2], producers[1 - round_ % 2]
        ours.begin_transaction()
        send_offsets(ours, topic, {partitions[round_ % 2]: round_ + 1})
        others.commit_transaction()
        if ended.wait(0.3) or round_ == 60:
            ours.abort_transaction()
            break
    thread.join(PATIENCE_S)
    assert round_ < 60
    assert [answer.keys() for answer in found] == [set(partitions)]
