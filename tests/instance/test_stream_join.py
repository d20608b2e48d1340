"""Joins of two streams on a real broker, before and after their instance ends."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from confluent_kafka import Producer
from tests.committed_offsets import committed as offsets_of
from tests.instance.support import TEXT, read_all, running, settings
from tests.waiting import PATIENCE_S, wait_until

from millrace import Consumed, JoinWindows, Produced, StreamJoined, StreamsBuilder
from millrace.records import TopicPartition

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_records_of_one_key_and_time_are_all_joined_after_a_restart(kafka, topic_factory, app, tmp_path, guarantee):
    """The first record that an instance keeps takes no place of the first one of its predecessor, with the same key and time."""
    left, right, sink = (topic_factory(name) for name in ("left", "right", "out"))
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee)
    producer, now_ms = Producer({"bootstrap.servers": kafka.bootstrap_servers}), int(time.time() * 1000)

    def build():
        builder, read = StreamsBuilder(), Consumed.with_(TEXT, TEXT)
        windows = JoinWindows.of_time_difference_with_no_grace(timedelta(hours=1))
        joined = StreamJoined.with_(TEXT, TEXT, TEXT)
        pairs = builder.stream(left, read).join(
            builder.stream(right, read), lambda one, other: one + other, windows, joined
        )
        pairs.to(sink, Produced.with_(TEXT, TEXT))
        return builder.build()

    def send(topic, value):
        producer.produce(topic, value.encode(), b"key", timestamp=now_ms)
        assert producer.flush(PATIENCE_S) == 0

    def committed(topic, offset):
        where = TopicPartition(topic, 0)
        return offsets_of(kafka, app, [where]).get(where, 0) >= offset

    for number in (1, 2):
        with running(build(), config):
            send(right, str(number))
            wait_until(lambda: committed(right, number), "it is committed")  # noqa: B023
    with running(build(), config):
        send(left, "l")
        wait_until(lambda: committed(left, 1), "it is joined")
    assert sorted(value for _, value, _ in read_all(kafka, sink)) == [b"l1", b"l2"]
