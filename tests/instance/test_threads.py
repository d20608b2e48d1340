"""Adding and removing stream threads while the client runs (KIP-663), and pausing a client (KIP-834)."""

from __future__ import annotations

import threading

import pytest
from tests.instance.support import (
    NUMBER,
    TEXT,
    CountWords,
    counts_builder,
    expected_counts,
    last_counts,
    produce,
    running,
    settings,
    word_count,
)
from tests.waiting import PATIENCE_S, wait_until

from millrace.errors import StreamsError, StreamsTimeoutError
from millrace.instance import KafkaStreams, State
from millrace.processor.api import PunctuationType
from millrace.topology import Topology

pytestmark = pytest.mark.broker
BOTH = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
PARTITIONS = 4
LINES = [f"p{number % PARTITIONS}-{number % 20}" for number in range(400)]


def tasks_per_thread(streams):
    """Return the number of running tasks in each thread."""
    return sorted(len(thread.active_tasks) for thread in streams.metadata_for_local_threads())


def settled(streams, *tasks):
    """Return whether the client runs with this many tasks in its threads."""
    return streams.state is State.RUNNING and tasks_per_thread(streams) == sorted(tasks)


@BOTH
def test_threads_come_and_go(kafka, topic_factory, app, tmp_path, guarantee):
    """A new thread gets tasks and a share of the cache, a removed one returns both; nothing is lost or repeated."""
    source, sink = topic_factory("in", partitions=PARTITIONS), topic_factory("out")
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee, statestore_cache_max_bytes=1000)
    with running(word_count(source, sink), config | {"group.instance.id": "one"}) as streams:
        [first] = streams.threads
        wait_until(lambda: settled(streams, 4), "one thread with all tasks")
        produce(kafka, source, LINES, partitions=PARTITIONS)
        assert streams.add_stream_thread().endswith("-StreamThread-2")
        wait_until(lambda: settled(streams, 2, 2), lambda: f"two tasks each, not {tasks_per_thread(streams)}")
        assert [thread.resources.cache.max_bytes for thread in streams.threads] == [500, 500]
        produce(kafka, source, LINES, partitions=PARTITIONS)
        assert streams.remove_stream_thread(60).endswith("-StreamThread-2")
        assert streams.threads == (first,)
        wait_until(lambda: settled(streams, 4), "one thread with all tasks again")
        assert first.resources.cache.max_bytes == 1000
        produce(kafka, source, LINES, partitions=PARTITIONS)
        expected = expected_counts(LINES * 3)
        wait_until(lambda: last_counts(kafka, sink) == expected, lambda: f"exact: {last_counts(kafka, sink)}")
        assert streams.add_stream_thread().endswith("-StreamThread-2")
    assert streams.add_stream_thread() is None
    assert streams.remove_stream_thread() is None


def test_local_state_is_deleted_only_while_nothing_runs(kafka, topic_factory, app, tmp_path):
    """`clean_up` deletes what tasks have on disk before the start and after the end, and refuses while the client runs."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, app, tmp_path)
    with running(word_count(source, sink), config) as streams:
        produce(kafka, source, ["a b"])
        wait_until(lambda: last_counts(kafka, sink) == {"a": 1, "b": 1}, "counted")
        with pytest.raises(StreamsError, match="Cannot clean up while the application is RUNNING: close it first"):
            streams.clean_up()
    tasks = tmp_path / app / "0_0"
    assert tasks.exists()
    KafkaStreams(word_count(source, sink), config).clean_up()
    assert not tasks.exists()
    with running(word_count(source, sink), config):
        produce(kafka, source, ["a"])
        wait_until(lambda: last_counts(kafka, sink) == {"a": 2, "b": 1}, "counted on, from the changelog")


def test_a_client_may_lose_its_last_thread(kafka, topic_factory, app, tmp_path):
    """Without threads a client does nothing, and continues when a thread is added."""
    source, sink = topic_factory("in"), topic_factory("out")
    with running(word_count(source, sink), settings(kafka, app, tmp_path)) as streams:
        assert streams.remove_stream_thread().endswith("-StreamThread-1")
        assert streams.remove_stream_thread() is None
        assert streams.threads == ()
        produce(kafka, source, ["word"] * 10)
        streams.add_stream_thread()
        wait_until(lambda: last_counts(kafka, sink) == {"word": 10}, "counted")


class Waiting(CountWords):
    """Waits until it is allowed to count."""

    gate = threading.Event()

    def process(self, record):
        """Wait, then count."""
        assert Waiting.gate.wait(PATIENCE_S)
        super().process(record)


def waiting(source, sink):
    """Return a word count that waits for a closed gate."""
    Waiting.gate.clear()
    return (
        Topology()
        .add_source("lines", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("count", Waiting, "lines")
        .add_state_store(counts_builder(), "count")
        .add_sink("out", sink, "count", key_serde=TEXT, value_serde=NUMBER)
    )


def test_removing_a_thread_does_not_wait_for_ever(kafka, topic_factory, app, tmp_path):
    """A busy thread ends later, which is reported; then it is removed."""
    source, sink = topic_factory("in"), topic_factory("out")
    with running(waiting(source, sink), settings(kafka, app, tmp_path)) as streams:
        produce(kafka, source, ["word"])
        wait_until(lambda: 1 in streams.threads[0].resources.consumer.positions.values(), "in work")
        with pytest.raises(StreamsTimeoutError, match="has not ended within"):
            streams.remove_stream_thread(0.1)
        Waiting.gate.set()
        wait_until(lambda: streams.threads == (), "ended")
        assert last_counts(kafka, sink) == {"word": 1}


def test_a_removed_thread_leaves_though_the_client_closes_meanwhile(kafka, topic_factory, app, tmp_path):
    """Static members stay in the group when their client closes, but not when their thread is removed for good."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, app, tmp_path, group_instance_id="one", session_timeout_ms=120_000)
    with running(waiting(source, sink), config) as streams:
        produce(kafka, source, ["word"])
        wait_until(lambda: 1 in streams.threads[0].resources.consumer.positions.values(), "in work")
        with pytest.raises(StreamsTimeoutError, match="has not ended within"):
            streams.remove_stream_thread(0.1)
        streams.close(0)
        Waiting.gate.set()
    admin = kafka.admin()
    assert admin.describe_consumer_groups([app])[app].result(PATIENCE_S).members == []


class Ticking(CountWords):
    """Counts records, and notes each punctuation."""

    ticks = 0

    def init(self, context):
        """Schedule the punctuation."""
        super().init(context)
        context.schedule(10, PunctuationType.WALL_CLOCK_TIME, self._tick)

    def _tick(self, _timestamp):
        Ticking.ticks += 1


@BOTH
def test_a_paused_client_keeps_its_tasks_and_does_nothing(kafka, topic_factory, app, tmp_path, guarantee):
    """Between pause and resume no records or punctuations are processed, and the member stays in its group."""
    source, sink = topic_factory("in"), topic_factory("out")
    topology = (
        Topology()
        .add_source("lines", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("count", Ticking, "lines")
        .add_state_store(counts_builder(), "count")
        .add_sink("out", sink, "count", key_serde=TEXT, value_serde=NUMBER)
    )
    with running(topology, settings(kafka, app, tmp_path, processing_guarantee=guarantee)) as streams:
        assert not streams.is_paused
        produce(kafka, source, ["word"] * 10)
        wait_until(lambda: last_counts(kafka, sink) == {"word": 10}, "counted")
        [thread] = streams.threads
        streams.pause()
        rounds = thread.rounds_total
        wait_until(lambda: thread.rounds_total >= rounds + 2, "paused")
        ticks = Ticking.ticks
        produce(kafka, source, ["word"] * 10)
        rounds, generation = thread.rounds_total, thread.resources.member.generation
        wait_until(lambda: thread.rounds_total >= rounds + 10, "some rounds")
        assert streams.is_paused
        assert Ticking.ticks == ticks
        assert last_counts(kafka, sink) == {"word": 10}
        assert (streams.state, thread.resources.member.generation) == (State.RUNNING, generation)
        streams.resume()
        wait_until(lambda: last_counts(kafka, sink) == {"word": 20}, "counted after resuming")
        wait_until(lambda: Ticking.ticks > ticks, "punctuated after resuming")


def test_tasks_that_moved_while_the_client_was_paused_go_on(kafka, topic_factory, app, tmp_path):
    """Partitions that a thread loses and gets back meanwhile are read as soon as the client resumes."""
    source, sink = topic_factory("in", partitions=PARTITIONS), topic_factory("out")
    with running(word_count(source, sink), settings(kafka, app, tmp_path)) as streams:
        [thread] = streams.threads
        wait_until(lambda: settled(streams, 4), "one thread with all tasks")
        produce(kafka, source, LINES, partitions=PARTITIONS)
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(LINES), "counted")
        streams.pause()
        rounds = thread.rounds_total
        wait_until(lambda: thread.rounds_total >= rounds + 2, "paused")
        streams.add_stream_thread()
        wait_until(lambda: len(thread.resources.consumer.partitions) == 2, "two tasks given up")
        streams.remove_stream_thread(60)
        wait_until(lambda: len(thread.tasks.task_ids) == 4, "and got back")
        produce(kafka, source, LINES, partitions=PARTITIONS)
        streams.resume()
        expected = expected_counts(LINES * 2)
        wait_until(lambda: last_counts(kafka, sink) == expected, lambda: f"all: {last_counts(kafka, sink)}")


def test_a_client_may_start_paused(kafka, topic_factory, app, tmp_path):
    """State is not restored before it resumes either."""
    source, sink = topic_factory("in"), topic_factory("out")
    produce(kafka, source, ["word"] * 10)
    with running(word_count(source, sink), settings(kafka, app, tmp_path / "first")):
        wait_until(lambda: last_counts(kafka, sink) == {"word": 10}, "counted")
    streams = KafkaStreams(word_count(source, sink), settings(kafka, app, tmp_path / "second"))
    streams.pause()
    with streams:
        wait_until(lambda: streams.status().restoration.remaining_records == 10, "something to restore")
        [thread] = streams.threads
        rounds = thread.rounds_total
        wait_until(lambda: thread.rounds_total >= rounds + 5, "some rounds")
        assert streams.status().restoration.remaining_records == 10
        assert streams.state is State.REBALANCING
        streams.resume()
        produce(kafka, source, ["word"])
        wait_until(lambda: last_counts(kafka, sink) == {"word": 11}, "restored and counted")
