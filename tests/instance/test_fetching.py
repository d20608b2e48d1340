"""How a stream thread fetches its input: what it pauses, what it leaves in the client's queue, and what it buffers."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field

import pytest
from tests.instance.support import produce, running, settings
from tests.waiting import wait_until

from millrace.dsl import StreamsBuilder
from millrace.instance import stream_thread
from millrace.instance.input_consumer import InputConsumer
from millrace.instance.membership import ClassicMembership
from millrace.instance.task_manager import TaskManager
from millrace.kafka import clients
from millrace.records import TopicPartition

pytestmark = pytest.mark.broker

STEADY = {"default_key_serde": "string", "default_value_serde": "string"}
START_MS = int(time.time() * 1000) - 60_000
LINE = "x" * 100


@dataclass
class Fetching:
    """The calls to the main consumer, and what it has fetched."""

    pauses: list[TopicPartition] = field(default_factory=list)
    fetched: dict[str, int] = field(default_factory=dict)
    """Messages received per topic, polled or not."""
    statistics: int = 0

    def wait_for_statistics(self):
        """Wait until the statistics include everything received until now."""
        known = self.statistics
        wait_until(lambda: self.statistics >= known + 2, "statistics of the consumer")


@pytest.fixture
def fetching(monkeypatch):
    """Watch every consumer that is created."""
    seen = Fetching()

    class Watched(clients._Consumer):
        def __init__(self, settings, **others):
            super().__init__({**settings, "statistics.interval.ms": 50, "stats_cb": self.on_statistics}, **others)

        def on_statistics(self, text):
            for name, topic in json.loads(text)["topics"].items():
                seen.fetched[name] = sum(partition["rxmsgs"] for partition in topic["partitions"].values())
            seen.statistics += 1

        def pause(self, partitions):
            seen.pauses += [TopicPartition(each.topic, each.partition) for each in partitions]
            super().pause(partitions)

    monkeypatch.setattr(clients, "_Consumer", Watched)
    return seen


def seen_by(*topics):
    """Return a topology that reads topics in one task per partition, and the list of records it has processed."""
    builder, seen = StreamsBuilder(), []
    first, *others = (builder.stream(topic) for topic in topics)
    for other in others:
        first = first.merge(other)
    first.foreach(lambda _key, value: seen.append(value))
    return builder.build(), seen


def processed(streams):
    """Return how many records have been processed."""
    return streams.status().processing.records


def test_a_backlog_is_not_paused_while_its_task_waits_for_nobody(kafka, topic_factory, app, tmp_path, fetching):
    """If more records are waiting than fit into the buffer, the thread polls less; nothing it fetched is discarded."""
    source = topic_factory("in", partitions=2)
    topology, seen = seen_by(source)
    config = settings(kafka, app, tmp_path, **STEADY, buffered_records_per_partition=10, max_poll_records=50)
    produce(kafka, source, [LINE] * 5_000)
    with running(topology, config):
        wait_until(lambda: len(seen) >= 5_000, lambda: f"the backlog is processed, not {len(seen)} records")
        fetching.wait_for_statistics()
    assert fetching.pauses == []
    assert fetching.fetched[source] == 5_000


def test_two_inputs_in_step_are_fetched_once(kafka, topic_factory, app, tmp_path, fetching):
    """The client returns a run of one input and then one of the other: the task buffers the first until the second arrives."""
    left, right = topic_factory("left"), topic_factory("right")
    topology, seen = seen_by(left, right)
    config = settings(kafka, app, tmp_path, **STEADY, buffered_records_per_partition=100, max_poll_records=50)
    for topic in (left, right):
        produce(kafka, topic, [LINE] * 20_000, start_ms=START_MS)
    with running(topology, config):
        wait_until(lambda: len(seen) >= 40_000, lambda: f"both inputs are processed, not {len(seen)} records")
        fetching.wait_for_statistics()
    assert fetching.pauses == []
    assert fetching.fetched[left] == fetching.fetched[right] == 20_000


def test_an_input_far_ahead_is_paused_when_full_and_resumed_at_half(
    kafka, topic_factory, app, tmp_path, fetching, monkeypatch
):
    """Its buffer never holds more than the limit and one poll, and records of the input that is waited for get through."""
    monkeypatch.setattr(stream_thread, "_AHEAD_BYTES", 0)
    paused_with, resumed_with, held = {}, [], []
    pause, resume, add_records = InputConsumer.pause, InputConsumer.resume, TaskManager.add_records

    def noting_add(self, batches):
        add_records(self, batches)
        held.extend(self.buffered(partition) for partition in batches)
        self._resources.consumer.tasks = self

    def noting_pause(self, partitions):
        paused_with.update({partition: self.tasks.buffered(partition) for partition in partitions})
        pause(self, partitions)

    def noting_resume(self, partitions):
        resumed_with.extend(
            (self.tasks.buffered(partition), paused_with[partition])
            for partition in partitions
            if partition in self.paused and partition in self.partitions
        )
        resume(self, partitions)

    monkeypatch.setattr(TaskManager, "add_records", noting_add)
    monkeypatch.setattr(InputConsumer, "pause", noting_pause)
    monkeypatch.setattr(InputConsumer, "resume", noting_resume)
    left, right = topic_factory("left"), topic_factory("right")
    topology, seen = seen_by(left, right)
    config = settings(kafka, app, tmp_path, **STEADY, buffered_records_per_partition=40, max_poll_records=30)
    for topic in (left, right):
        produce(kafka, topic, [str(number) for number in range(2_000)], start_ms=START_MS)
    with running(topology, config):
        wait_until(lambda: len(seen) >= 4_000, lambda: f"both inputs are processed, not {len(seen)} records")
    assert [int(value) for value in seen] == [number for number in range(2_000) for _ in range(2)]
    assert fetching.pauses
    assert max(held) <= 40 + 30
    assert any(now > 0 for now, _ in resumed_with)
    assert all(now <= then / 2 for now, then in resumed_with)


def test_a_task_that_waits_does_not_hold_up_the_others_of_its_thread(kafka, topic_factory, app, tmp_path, fetching):
    """A full buffer of a waiting task does not count as work, and is processed when the other input arrives."""
    alone, left, right = topic_factory("alone"), topic_factory("left"), topic_factory("right")
    builder, seen, merged = StreamsBuilder(), [], []
    builder.stream(alone).foreach(lambda _key, value: seen.append(value))
    builder.stream(left).merge(builder.stream(right)).foreach(lambda _key, value: merged.append(value))
    config = settings(
        kafka,
        app,
        tmp_path,
        **STEADY,
        buffered_records_per_partition=10,
        max_poll_records=50,
        max_task_idle_ms=3_600_000,
    )
    produce(kafka, left, [LINE] * 1_000, start_ms=START_MS)
    with running(builder.build(), config) as streams:
        for _ in range(3):
            done = len(seen)
            produce(kafka, alone, [LINE] * 1_000)
            wait_until(lambda done=done: len(seen) == done + 1_000, lambda: f"{len(seen)} records of the other task")
        assert merged == []
        produce(kafka, right, ["late"], start_ms=START_MS + 10_000)
        wait_until(lambda: len(merged) == 1_000, lambda: f"{len(merged)} records of the task that waited")
        assert processed(streams) == 4_000
    assert fetching.pauses == []


def test_pausing_the_instance_drops_nothing_that_was_fetched(kafka, topic_factory, app, tmp_path, fetching):
    """A paused instance does not poll: the consumer fetches no more than its queue holds, and nothing twice."""
    source = topic_factory("in", partitions=2)
    topology, seen = seen_by(source)
    produce(kafka, source, [LINE] * 10, partitions=2)
    with running(topology, settings(kafka, app, tmp_path, **STEADY)) as streams:
        wait_until(lambda: len(seen) == 10, "the first records are processed")
        streams.pause()
        rounds = [thread.rounds_total for thread in streams._pool.threads]
        wait_until(
            lambda: all(t.rounds_total > n + 1 for t, n in zip(streams._pool.threads, rounds, strict=True)), "paused"
        )
        produce(kafka, source, [LINE] * 2_000, partitions=2)
        assert len(seen) == 10
        streams.resume()
        wait_until(lambda: len(seen) >= 2_010, lambda: f"what came meanwhile is processed, not {len(seen)} records")
        fetching.wait_for_statistics()
    assert fetching.pauses == []
    assert fetching.fetched[source] == 2_010


def test_task_that_waits_for_a_partition_is_logged(kafka, topic_factory, app, tmp_path, caplog):
    """A task that has records and waits for those of another partition says so each `log.summary.interval.ms`."""
    full, empty = topic_factory("full"), topic_factory("empty")
    topology, _ = seen_by(full, empty)
    config = settings(kafka, app, tmp_path, **STEADY, max_task_idle_ms=600_000, log_summary_interval_ms=50)
    with caplog.at_level(logging.INFO, "millrace.instance"), running(topology, config):
        produce(kafka, full, ["a", "b"])
        says = f"task 0_0 has 2 records and has been waiting for 0 s for records of {empty}-0 (0 on the brokers)"
        wait_until(lambda: caplog.text.count(says) >= 1, "the log says what is waited for")


def test_nothing_is_fetched_while_a_commit_waits_for_the_group(
    kafka, topic_factory, app, tmp_path, fetching, monkeypatch
):
    """A thread that must commit before it goes on neither spins nor buffers its input while the group rebalances."""
    source = topic_factory("in")
    topology, seen = seen_by(source)
    config = settings(kafka, app, tmp_path, **STEADY, max_poll_records=50)
    with running(topology, config) as streams:
        [thread] = streams.threads
        rebalancing = True
        monkeypatch.setattr(ClassicMembership, "rebalancing", property(lambda _: rebalancing))
        pace = thread._loop._pace
        pace.processed(2)
        pace.aborted()
        produce(kafka, source, [LINE] * 5_000)
        wait_until(lambda: seen, "the one record that may be processed")
        rounds = thread.rounds_total
        wait_until(lambda: thread.rounds_total >= rounds + 50, "50 rounds more")
        assert len(seen) == 1
        assert sum(task.buffered() for task in thread.tasks.running.values()) <= 50
        rebalancing = False
        wait_until(lambda: len(seen) == 5_000, "the others")
