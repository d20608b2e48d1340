"""The word count on a real broker, with both processing guarantees: running, restarting, restoring, moving tasks."""

from __future__ import annotations

import itertools
import shutil

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from tests.instance.support import (
    NUMBER,
    TEXT,
    CountWords,
    Replica,
    counts_builder,
    expected_counts,
    last_counts,
    produce,
    read_all,
    running,
    settings,
    two_step_word_count,
    word_count,
)
from tests.waiting import wait_until

from millrace.instance import KafkaStreams, State, ThreadState, stream_thread
from millrace.processor.api import PunctuationType
from millrace.records import Record, TaskId
from millrace.topology import Topology

pytestmark = pytest.mark.broker
BOTH = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])


def lines_for(count, partitions=2):
    """Return lines whose words belong to the partition they are produced to."""
    return [f"p{n % partitions} p{n % partitions}-{n % 13}" for n in range(count)]


@pytest.fixture
def topics(topic_factory):
    """Yield an input and an output topic with two partitions."""
    return topic_factory("in", partitions=2), topic_factory("out", partitions=2)


@BOTH
def test_counts_are_right_over_restarts_and_after_losing_the_disk(kafka, topics, app, tmp_path, guarantee):
    """A restart continues exactly where the last run ended, and wiped state is restored from the changelog."""
    source, sink = topics
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee)
    sent = []
    for run in range(3):
        batch = lines_for(700)
        sent += batch
        with running(word_count(source, sink), config) as streams:
            produce(kafka, source, batch, partitions=2)
            wait_until(lambda: streams.status().processing.records >= 700, "all lines counted")
        assert streams.state is State.NOT_RUNNING
        assert streams.status().processing.records == 700
        assert last_counts(kafka, sink, partitions=2) == expected_counts(sent)
        if run == 1:
            shutil.rmtree(tmp_path / app)
    assert len(read_all(kafka, sink, partitions=2)) == sum(len(line.split()) for line in sent)


@BOTH
def test_clean_restart_restores_nothing(kafka, topics, app, tmp_path, guarantee):
    """After a clean shutdown the store on disk is complete: at most the last transaction's marker is read, but no record."""
    source, sink = topics
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee)
    produce(kafka, source, lines_for(100), partitions=2)
    with running(word_count(source, sink), config) as streams:
        wait_until(lambda: streams.status().processing.records >= 100, "all lines counted")
    begun, restored = [], []

    class Listener:
        def on_restore_start(self, partition, store, start_offset, end_offset):
            begun.append((partition, start_offset, end_offset))

        def on_batch_restored(self, *batch):
            restored.append(batch)

        def on_restore_end(self, *_):
            pass

        on_restore_suspended = on_restore_end

    streams = KafkaStreams(word_count(source, sink), config)
    streams.set_restore_listener(Listener())
    with streams:
        wait_until(lambda: streams.state is State.RUNNING, "RUNNING")
    markers = 1 if guarantee == "exactly_once_v2" else 0
    assert len(begun) == 2
    assert all(end - start == markers for _, start, end in begun)
    assert restored == []


@BOTH
def test_record_cache_writes_back_before_commits(kafka, topics, app, tmp_path, guarantee):
    """With the record cache, each commit writes the last counts to the output and the changelog."""
    source, sink = topics
    lines = lines_for(2000)
    produce(kafka, source, lines, partitions=2)
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee)
    with running(word_count(source, sink, caching=True), config) as streams:
        wait_until(lambda: streams.status().processing.records >= 2000, "all lines counted")
    assert last_counts(kafka, f"{app}-counts-changelog", partitions=2) == expected_counts(lines)


@BOTH
def test_repartition_topic_is_created_used_and_purged(kafka, topics, app, tmp_path, guarantee):
    """A second sub-topology reads what the first one wrote, and committed records are deleted from the repartition topic."""
    source, sink = topics
    lines = [f"alpha beta w{n % 17}" for n in range(600)]
    produce(kafka, source, lines, partitions=2)
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee, repartition_purge_interval_ms=100)
    with running(two_step_word_count(source, sink), config) as streams:
        wait_until(lambda: streams.status().processing.records >= 600 + 1800, "all words counted")
        repartition = f"{app}-words"
        admin = kafka.admin()

        def all_purged():
            return all(
                next(iter(admin.list_offsets({TopicPartition(repartition, n): OffsetSpec.earliest()}).values()))
                .result()
                .offset
                > 0
                for n in range(2)
            )

        wait_until(all_purged, "purged")
    assert last_counts(kafka, sink, partitions=2) == expected_counts(lines)


def test_threads_share_the_tasks_and_state_follows_them(kafka, topics, app, tmp_path):
    """Two threads get one task each; the client is RUNNING when both run, and its metadata shows the tasks."""
    source, sink = topics
    states = []
    streams = KafkaStreams(word_count(source, sink), settings(kafka, app, tmp_path, num_stream_threads=2))
    streams.set_state_listener(lambda new, old: states.append((old, new)))
    with streams:

        def balanced():
            threads = streams.metadata_for_local_threads()
            return all(len(t.active_tasks) == 1 and t.thread_state is ThreadState.RUNNING for t in threads)

        wait_until(balanced, "a task for each thread")
        wait_until(lambda: streams.state is State.RUNNING, "RUNNING")
        tasks = {task.task_id for thread in streams.metadata_for_local_threads() for task in thread.active_tasks}
        assert tasks == {TaskId(0, 0), TaskId(0, 1)}
        assert {lag.offset_lag for lag in streams.all_local_store_partition_lags()["counts"].values()} == {0}
    assert states[0] == (State.CREATED, State.REBALANCING)
    assert states[-1] == (State.PENDING_SHUTDOWN, State.NOT_RUNNING)
    assert all(earlier[1] is later[0] for earlier, later in itertools.pairwise(states))


@BOTH
def test_tasks_move_to_a_new_instance_and_back(kafka, topics, app, tmp_path, guarantee):
    """A second instance takes over half of the tasks with their state; when it leaves, the first takes them back."""
    source, sink = topics
    one, two = (settings(kafka, app, tmp_path / name, processing_guarantee=guarantee) for name in ("one", "two"))
    sent = lines_for(400)
    produce(kafka, source, sent, partitions=2)
    with running(word_count(source, sink), one) as first:
        wait_until(lambda: first.status().processing.records >= 400, "first counts")
        with running(word_count(source, sink), two) as second:
            wait_until(lambda: len(first.status().tasks) == len(second.status().tasks) == 1, "one task each")
            produce(kafka, source, lines_for(400), partitions=2)
            sent += lines_for(400)
            wait_until(
                lambda: first.status().processing.records + second.status().processing.records >= 800, "both count"
            )
        wait_until(lambda: len(first.status().tasks) == 2, "tasks are back")
        produce(kafka, source, lines_for(400), partitions=2)
        sent += lines_for(400)
        wait_until(
            lambda: first.status().processing.records + second.status().processing.records >= 1200, "first counts again"
        )
    assert last_counts(kafka, sink, partitions=2) == expected_counts(sent)


def test_small_buffers_pause_partitions_and_lose_nothing(kafka, topic_factory, app, tmp_path, monkeypatch):
    """A task that waits for its other input pauses the full one, and every record is processed once."""
    monkeypatch.setattr(stream_thread, "_AHEAD_BYTES", 0)
    left, right, sink = topic_factory("left"), topic_factory("right"), topic_factory("out")
    topology = (
        Topology()
        .add_source("lines", left, right, key_serde=TEXT, value_serde=TEXT)
        .add_processor("count", CountWords, "lines")
        .add_state_store(counts_builder(), "count")
        .add_sink("out", sink, "count", key_serde=TEXT, value_serde=NUMBER)
    )
    config = settings(kafka, app, tmp_path, buffered_records_per_partition=10, max_poll_records=7, max_task_idle_ms=300)
    lefts = [f"left l{n % 5}" for n in range(800)]
    rights = [f"right r{n % 5}" for n in range(800)]
    produce(kafka, left, lefts)
    with running(topology, config) as streams:
        produce(kafka, right, rights)
        wait_until(lambda: streams.status().processing.records >= 1600, "both inputs counted")
        assert streams.status().processing.records == 1600
    assert last_counts(kafka, sink) == expected_counts(lefts + rights)
    assert len(read_all(kafka, sink)) == 3200


class CountTicks(CountWords):
    """Counts wall-clock ticks in its store; needs no input."""

    def init(self, context):
        """Schedule the ticks."""
        super().init(context)
        context.schedule(50, PunctuationType.WALL_CLOCK_TIME, self.tick)

    def tick(self, now):
        """Count one tick."""
        count = (self.store.get("ticks") or 0) + 1
        self.store.put("ticks", count)
        self.context.forward(Record("ticks", count, now))


@BOTH
def test_punctuation_alone_is_committed(kafka, topic_factory, app, tmp_path, guarantee):
    """Output from wall-clock punctuation, without any input, becomes visible to read_committed consumers."""
    source, sink = topic_factory("in"), topic_factory("out")
    topology = (
        Topology()
        .add_source("lines", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("count", CountTicks, "lines")
        .add_state_store(counts_builder(), "count")
        .add_sink("out", sink, "count", key_serde=TEXT, value_serde=NUMBER)
    )
    with running(topology, settings(kafka, app, tmp_path, processing_guarantee=guarantee)):
        wait_until(lambda: last_counts(kafka, sink).get("ticks", 0) >= 3, "three ticks")


@pytest.mark.parametrize(("reset", "seen"), [("latest", 0), ("earliest", 50), ("by_duration:PT1H", 20)])
def test_reset_policy_decides_where_a_new_group_begins(kafka, topic_factory, app, tmp_path, reset, seen):
    """Without committed offsets a source starts at the end, the beginning, or a time."""
    import time

    source, sink = topic_factory("in"), topic_factory("out")
    now = int(time.time() * 1000)
    produce(kafka, source, ["old"] * 30, start_ms=now - 7_200_000)
    produce(kafka, source, ["new"] * 20, start_ms=now - 60_000)
    config = settings(kafka, app, tmp_path) | {"auto.offset.reset": reset}
    with running(word_count(source, sink), config) as streams:
        produce(kafka, source, ["last"])
        wait_until(lambda: last_counts(kafka, sink).get("last"), "the last line")
        assert streams.status().processing.records == seen + 1


def test_sigterm_commits_and_ends_with_zero(kafka, topics, app, tmp_path):
    """SIGTERM in the middle of a long commit interval commits what was processed; a restart repeats nothing."""
    source, sink = topics
    config = settings(kafka, app, tmp_path / "state", commit_interval_ms=60_000)
    replica = Replica(config, source, sink, tmp_path, "one").start()
    produce(kafka, source, lines_for(500), partitions=2)
    wait_until(lambda: replica.records() >= 500, "all lines counted")
    assert replica.stop() == 0
    assert replica.status()["state"] == "NOT_RUNNING"
    with running(word_count(source, sink), config) as streams:
        produce(kafka, source, ["p0 end"])
        wait_until(lambda: last_counts(kafka, sink, partitions=2).get("end"), "the last line")
        assert streams.status().processing.records == 1
    assert last_counts(kafka, sink, partitions=2) == expected_counts([*lines_for(500), "p0 end"])
