"""A task takes the record with the smallest timestamp among its partitions, and knows when to wait for one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.support import Harness, pipe

from millrace.records import TopicPartition
from millrace.serdes import Serdes
from millrace.topology import Topology

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


@pytest.fixture
def two(tmp_path):
    """Return a running task over topics a and b that only waits for lag."""
    harness = Harness(pipe("a", "b"), tmp_path)
    harness.run()
    return harness


def test_smallest_head_timestamp_goes_first(two):
    """Records of two partitions are merged by timestamp, and each partition keeps its order."""
    two.add("a", ("k", "a1", 1), ("k", "a5", 5), ("k", "a3", 3))
    two.add("b", ("k", "b2", 2), ("k", "b4", 4), ("k", "b9", 9))
    two.task.set_lag(A, 0)
    two.task.set_lag(B, 0)
    assert two.task.process(0, 100) == 6
    assert two.values() == ["a1", "b2", "b4", "a5", "a3", "b9"]


def test_partition_of_unknown_lag_is_waited_for(two):
    """With max.task.idle.ms=0 nothing is processed while an empty partition's lag is unknown."""
    two.add("a", ("k", "a1", 1))
    assert not two.task.ready(0)
    assert two.task.process(0, 10) == 0
    two.task.set_lag(B, 7)
    assert two.task.process(0, 10) == 0
    two.task.set_lag(B, 0)
    assert two.task.ready(0)
    assert two.task.process(0, 10) == 1
    assert two.task.counters.enforced_processing == 1


def test_the_next_timestamp_can_be_asked_for(two):
    """It is the smallest of the heads', and asking does not change the order; None if nothing is waiting."""
    assert two.task.next_timestamp() is None
    two.add("a", ("k", "a3", 3), ("k", "a1", 1))
    assert two.task.next_timestamp() == 3
    two.add("b", ("k", "b2", 2))
    assert two.task.next_timestamp() == 2
    two.task.set_lag(A, 0)
    two.task.set_lag(B, 0)
    assert two.task.process(0, 1) == 1
    assert two.task.next_timestamp() == 3
    assert two.task.process(0, 10) == 2
    assert two.values() == ["b2", "a3", "a1"]


def test_processing_stops_when_a_partition_runs_empty_with_lag(two):
    """A batch ends as soon as a partition runs empty, if its next records are known to be on the broker."""
    two.task.set_lag(A, 5)
    two.task.set_lag(B, 5)
    two.add("a", ("k", "a1", 1), ("k", "a4", 4))
    two.add("b", ("k", "b2", 2))
    assert two.task.process(0, 10) == 2
    assert two.values() == ["a1", "b2"]
    assert two.task.buffered(A) == 1


def test_idling_disabled_processes_what_is_there(tmp_path):
    """With max.task.idle.ms=-1 a task does not wait for an empty partition, whatever its lag."""
    harness = Harness(pipe("a", "b"), tmp_path, **{"max.task.idle.ms": -1})
    harness.run()
    harness.add("a", ("k", "a1", 1))
    assert harness.task.process(0, 10) == 1


def test_idle_time_runs_from_when_the_partition_was_found_empty(tmp_path):
    """With max.task.idle.ms=50 an empty partition without lag delays processing by 50 ms, once."""
    harness = Harness(pipe("a", "b"), tmp_path, **{"max.task.idle.ms": 50})
    task = harness.run()
    task.set_lag(A, 0)
    task.set_lag(B, 0)
    harness.add("a", ("k", "a1", 1), ("k", "a2", 2))
    assert task.process(1000, 10) == 0
    assert task.process(1049, 10) == 0
    assert task.process(1050, 10) == 2
    harness.add("b", ("k", "b1", 3))
    assert task.process(1051, 10) == 0, "now a is empty and its time starts"
    assert task.process(1101, 10) == 1


def skipping(tmp_path, **settings):
    """Return a task of two partitions that drops records without a valid timestamp."""
    settings = {"default.timestamp.extractor": "LogAndSkipOnInvalidTimestamp", **settings}
    return Harness(pipe("a", "b"), tmp_path, **settings)


def test_skipped_records_do_not_stop_the_merge(tmp_path):
    """A record without a valid timestamp is dropped and counts as consumed."""
    harness = skipping(tmp_path, **{"max.task.idle.ms": -1})
    task = harness.run()
    harness.add("a", ("k", "x", -1), ("k", "a2", 2))
    harness.add("b", ("k", "b1", 1), ("k", "y", -5))
    assert task.process(0, 10) == 2
    assert harness.values() == ["b1", "a2"]
    assert task.counters.dropped_records == 2
    assert task.position(B) == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=30), st.integers(1, 7))
def test_batches_of_any_size_give_the_same_order(tmp_path, arrivals, batch):
    """The number of records that a call of `process` may take does not affect their order."""
    orders = []
    for size in (1, batch, 1000):
        harness = Harness(pipe("a", "b", "c"), tmp_path, **{"max.task.idle.ms": -1})
        task = harness.run()
        for number, (topic, timestamp) in enumerate(arrivals):
            harness.add(topic, ("k", f"{number}", timestamp))
        while task.process(0, size):
            pass
        orders.append(harness.values())
        task.close_dirty()
    assert orders[0] == orders[1] == orders[2]
    assert len(orders[0]) == len(arrivals)


@pytest.mark.parametrize("size", [1, 50, 100_000])
def test_long_runs_of_one_partition_do_not_overtake_the_other(two, size):
    """If one partition is thousands of records behind, long runs of it are taken, each up to the other's next timestamp."""
    blocks = [("a", 3000), ("b", 1), ("a", 9), ("b", 2500), ("a", 1), ("b", 1), ("a", 700)]
    timestamp, expected = 0, []
    for topic, number in blocks:
        records = [("k", f"{topic}{timestamp + n}", timestamp + n) for n in range(number)]
        two.add(topic, *records)
        expected += [value for _, value, _ in records]
        timestamp += number
    two.task.set_lag(A, 0)
    two.task.set_lag(B, 0)
    while two.task.process(0, size):
        pass
    assert two.values() == expected


@pytest.mark.parametrize("fetched", [1, 2, 50])
def test_dropped_records_of_the_last_partition_do_not_count(tmp_path, fetched):
    """However the records of the only partition that still has some were fetched: a backfill divides them by their number."""
    harness = skipping(tmp_path, **{"max.task.idle.ms": -1})
    task = harness.run()
    records = [("k", f"{number}", -1 if number % 3 else number) for number in range(40)]
    taken = 0
    for start in range(0, len(records), fetched):
        harness.add("a", *records[start : start + fetched])
        taken += task.process(0, 100)
    assert task.buffered() == 0
    assert taken == task.counters.records_processed == len(harness.values()) == 14
    assert task.counters.dropped_records == 26


@pytest.mark.parametrize("size", [1, 5, 100])
def test_dropped_records_of_the_last_partition_however_many_are_processed_at_once(tmp_path, size):
    """Each call processes as many valid records as it may."""
    harness = skipping(tmp_path, **{"max.task.idle.ms": -1})
    task = harness.run()
    harness.add("a", *(("k", f"{number}", -1 if number % 3 else number) for number in range(40)))
    taken = []
    while done := task.process(0, size):
        taken.append(done)
    assert taken == [size] * (14 // size) + [14 % size] * (14 % size > 0)
    assert harness.values() == [f"{number}" for number in range(0, 40, 3)]
    assert task.position(A) == 40


def test_a_partition_of_which_only_dropped_records_arrived_waits_once(tmp_path):
    """The records that arrive next do not make up for another partition that is empty and waited for."""
    harness = skipping(tmp_path)
    task = harness.run()
    harness.add("a", ("k", "dropped", -1))
    assert task.next_timestamp() is None
    harness.add("a", ("k", "a5", 5), ("k", "a6", 6))
    assert task.process(0, 10) == 0, "b is waited for"
    harness.add("b", ("k", "b1", 1), ("k", "b7", 7))
    assert task.process(0, 10) == 3
    assert harness.values() == ["b1", "a5", "a6"]


@pytest.mark.parametrize("fetched", [1, 3])
def test_dropped_records_are_read_when_the_next_record_is_chosen(tmp_path, fetched):
    """So their dead letters come after what the host does between records, whether they were fetched by then or not."""
    settings = {
        "deserialization.exception.handler": "LogAndContinueExceptionHandler",
        "errors.dead.letter.queue.topic.name": "dead",
    }
    long = Serdes.long()
    topology = Topology().add_source("src", "a", "b", "c", value_serde=long)
    topology.add_sink("snk", "out", "src", value_serde=long)
    harness = Harness(topology, tmp_path, **settings)
    task = harness.run()
    records = [("k", "8 bytes!", 1), ("k", "bad", 2), ("k", "8 bytes!", 3)]
    harness.add("a", *records[:fetched])
    harness.add("b", ("k", "8 bytes!", 4))
    harness.add("c", ("k", "8 bytes!", 5))
    assert task.process(0, 1) == 1
    sent = [harness.collector.take()]
    harness.add("a", *records[fetched:])
    assert task.process(0, 1) == 1
    sent.append(harness.collector.take())
    assert [[(record.topic, record.timestamp) for record in taken] for taken in sent] == [
        [("out", 1)],
        [("dead", 2), ("out", 3)],
    ]
