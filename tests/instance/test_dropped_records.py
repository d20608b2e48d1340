"""What an instance says of the records that it drops."""

from __future__ import annotations

import logging
import re
import time

import pytest
from confluent_kafka import Producer
from tests.instance.support import running, settings
from tests.waiting import PATIENCE_S, wait_until

from millrace.dsl import Grouped, Materialized, StreamsBuilder, TimeWindows

pytestmark = pytest.mark.broker
MINUTE_MS = 60_000


def test_records_that_are_late_behind_a_repartition_are_reported(kafka, topic_factory, app, tmp_path, caplog):
    """The status names node, line, reason and number; the log has the first one at once, and all by the end."""
    caplog.set_level(logging.WARNING, "millrace.dropped_records")
    source = topic_factory("in", partitions=2)
    builder = StreamsBuilder()
    words = builder.stream(source).group_by(lambda _, word: word, Grouped.as_("by-word"))
    windows = TimeWindows.of_size_and_grace(MINUTE_MS, MINUTE_MS)
    words.windowed_by(windows).count(Materialized.as_("counts"))
    config = settings(kafka, app, tmp_path) | {"default.key.serde": "string", "default.value.serde": "string"}
    start_ms = int(time.time() * 1000) - 10 * MINUTE_MS
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def send(partition: int, *minutes: int) -> None:
        for minute in minutes:
            producer.produce(source, "word", None, partition, timestamp=start_ms + minute * MINUTE_MS)
        assert producer.flush(PATIENCE_S) == 0

    with running(builder.build(), config) as streams:
        send(1, 0, 10)
        wait_until(lambda: streams.status().processing.records >= 4, "one partition is processed, twice")
        assert streams.status().dropped == ()
        send(0, 1, 2, 3)  # the backlog of the other partition
        wait_until(lambda: [drops.records for drops in streams.status().dropped] == [3], "three are dropped")
        (dropped,) = streams.status().dropped
    assert re.fullmatch(r"KSTREAM-AGGREGATE-\d{10}", dropped.node)
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+", dropped.place)
    assert (dropped.reason, dropped.harmless) == ("late", False)
    assert re.fullmatch(r"too late for a window, by up to \S+ \(grace is 1m\)", dropped.problem)
    assert dropped.last_ms > start_ms
    messages = [
        re.match(r"Dropped (\d+) records? at (\S+) \(test_dropped_records\.py:\d+\): ", m) for m in caplog.messages
    ]
    logged = [(int(match[1]), match[2]) for match in messages if match]
    assert logged[0] == (1, dropped.node)
    assert sum(records for records, node in logged if node == dropped.node) == 3
