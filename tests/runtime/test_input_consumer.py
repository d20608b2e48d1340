"""The consumer of a stream thread on a real broker."""

from __future__ import annotations

import pytest
from tests.runtime.support import produce, settings, wait_until

from millrace.config import StreamsConfig
from millrace.kafka.clients import ClientSettings, open_consumer
from millrace.records import TopicPartition
from millrace.runtime.input_consumer import InputConsumer

pytestmark = pytest.mark.broker


@pytest.fixture
def consumer(kafka, tmp_path):
    """Give a consumer."""
    config = StreamsConfig.of(settings(kafka, "app", tmp_path))
    consumer = InputConsumer(open_consumer(ClientSettings(config, "p").main_consumer(1)), lambda _: 0)
    yield consumer
    consumer.close()


def read(consumer, count):
    """Return the offsets that are read, per partition, once there are so many."""
    offsets = {}

    def enough():
        for partition, records in consumer.poll(100, 0.1).items():
            offsets.setdefault(partition, []).extend(record.offset for record in records)
        return sum(map(len, offsets.values())) >= count

    wait_until(enough, lambda: f"{count} records, not {offsets}")
    return offsets


def test_a_partition_given_up_while_paused_is_read_when_it_comes_back(kafka, topic_factory, consumer):
    """As when a task whose buffer is full is closed and opened again; those that stayed go on where they were."""
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
