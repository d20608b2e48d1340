"""A stream thread's consumer on a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition as ClientTopicPartition
from tests.instance.support import produce, settings
from tests.waiting import wait_until

from millrace.config import StreamsConfig
from millrace.instance.input_consumer import InputConsumer
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import open_consumer
from millrace.records import TopicPartition

pytestmark = pytest.mark.broker


@pytest.fixture
def consumer(kafka, tmp_path):
    """Yield a consumer."""
    config = StreamsConfig.of(settings(kafka, "app", tmp_path))
    consumer = InputConsumer(open_consumer(ClientSettings(config, "p").main_consumer(1)), lambda _: 0)
    yield consumer
    consumer.close()


def read(consumer, count):
    """Return the offsets read per partition, once there are this many."""
    offsets = {}

    def enough():
        for partition, records in consumer.poll(100, 0.1).items():
            offsets.setdefault(partition, []).extend(offset for _, _, offset, *_ in records)
        return sum(map(len, offsets.values())) >= count

    wait_until(enough, lambda: f"{count} records, not {offsets}")
    return offsets


def test_a_partition_given_up_while_paused_is_read_when_it_comes_back(kafka, topic_factory, consumer):
    """This happens when a task with a full buffer is closed and reopened; the other partitions continue where they were."""
    topic = topic_factory("in", partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    produce(kafka, topic, ["x"] * 20, partitions=2)
    consumer.assign({first: 0, second: 0})
    assert read(consumer, 20) == {first: list(range(10)), second: list(range(10))}
    consumer.pause([first, second])
    assert consumer.paused == {first, second}
    consumer.unassign([second])
    consumer.assign({second: 4})
    assert consumer.paused == {first}
    assert read(consumer, 6) == {second: list(range(4, 10))}
    consumer.resume([first])
    produce(kafka, topic, ["x"] * 2, partitions=2)
    assert read(consumer, 2) == {first: [10], second: [10]}


def test_a_poll_returns_no_more_than_it_is_asked_for(kafka, topic_factory, consumer):
    """A poll that had to wait for its first record takes further available records too, up to the limit."""
    topic = topic_factory("in")
    produce(kafka, topic, ["x"] * 50)
    consumer.assign({TopicPartition(topic, 0): 0})
    sizes = []

    def all_read():
        sizes.append(sum(map(len, consumer.poll(7, 0.5).values())))
        return sum(sizes) == 50

    wait_until(all_read, lambda: f"50 records, not {sizes}")
    assert max(sizes) <= 7


def test_a_reset_forgets_the_end_of_the_log_that_is_gone(kafka, topic_factory, consumer):
    """Otherwise a commit would claim that end as processed, and `max.task.idle.ms` would find nothing to wait for."""
    topic = topic_factory("in")
    partition = TopicPartition(topic, 0)
    produce(kafka, topic, ["x"] * 10)
    consumer.assign({partition: 0})
    assert read(consumer, 10) == {partition: list(range(10))}
    wait_until(lambda: consumer.poll(100, 0.1) or consumer.at_end, "the end is known")
    consumer.refresh_ends([partition])
    assert consumer.at_end == {partition: 10}
    # As if the log had been truncated or the topic recreated: the broker does not have that offset.
    consumer._client.seek(ClientTopicPartition(*partition, 500))
    offsets = []

    def begun_again():
        offsets.extend(offset for records in consumer.poll(3, 0.1).values() for _, _, offset, *_ in records)
        return offsets

    wait_until(begun_again, "records from the beginning")
    assert offsets[0] == 0
    assert consumer.at_end == {}
    assert consumer.positions == {partition: offsets[-1] + 1}
    assert consumer.lag(partition) != 0
