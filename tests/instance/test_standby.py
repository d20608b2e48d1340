"""Standby tasks on a real broker: what they hold, how they take over, and what they never do."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import partial

import pytest
from tests.instance.support import (
    Replica,
    expected_counts,
    last_counts,
    produce,
    settings,
    word_count,
)
from tests.waiting import wait_until

from millrace.instance import KafkaStreams, State, SuspendReason
from millrace.records import TaskId, TopicPartition

pytestmark = pytest.mark.broker

GUARANTEES = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])


class Restored:
    """Counts restored records, by store."""

    def __init__(self):
        self.records = Counter()
        self.ended = []

    def on_restore_start(self, partition, store, start_offset, end_offset):
        """Ignore it."""

    def on_batch_restored(self, partition, store, batch_end_offset, restored):
        """Count."""
        self.records[partition] += restored

    def on_restore_end(self, partition, store, total_restored):
        """Note the partition."""
        self.ended.append(partition)

    def on_restore_suspended(self, partition, store, total_restored):
        """Ignore it."""


class Updated:
    """Notes what a standby listener is told."""

    def __init__(self):
        self.starts = []
        self.batches = []
        self.suspended = []

    def on_update_start(self, partition, store, starting_offset):
        """Note it."""
        self.starts.append((partition, store, starting_offset))

    def on_batch_loaded(self, partition, store, task_id, batch_end_offset, batch_size, current_end_offset):
        """Note it."""
        self.batches.append((partition, store, task_id, batch_end_offset, batch_size, current_end_offset))

    def on_update_suspended(self, partition, store, store_offset, current_end_offset, reason):
        """Note it."""
        self.suspended.append((partition, store_offset, current_end_offset, reason))


class Instance:
    """An instance with both listeners, and its client id as its name."""

    def __init__(self, stack, topology, config):
        self.restored, self.updated = Restored(), Updated()
        self.streams = KafkaStreams(topology, config)
        self.streams.set_restore_listener(self.restored)
        self.streams.set_standby_update_listener(self.updated)
        self.streams.start()
        stack.callback(self.streams.close, 60)

    def running(self):
        """Return the instance once it is RUNNING."""
        wait_until(lambda: self.streams.state is State.RUNNING or self.streams.error, "RUNNING")
        assert self.streams.error is None
        return self

    @property
    def manager(self):
        """The tasks of its first thread."""
        return self.streams.threads[0].tasks

    def tasks(self, role):
        """Return the ids of the open tasks with a role."""
        return {
            str(TaskId.parse(each.id))
            for each in self.streams.status().tasks
            if each.role == role and each.state == "RUNNING"
        }

    def counts(self, task):
        """Return the counts in the store of a standby, or of a task that does not process anything now."""
        held = {**self.manager.running, **self.manager.standby}[TaskId.parse(task)]
        return {pair.key: pair.value for pair in held.stores["counts"].all()}


def same_counts(one, other, task):
    """Return whether two instances have the same counts in a task's store, if any."""
    return one.counts(task) == other.counts(task) != {}


def no_lag(instance, store):
    """Return whether both partitions of a store have reached the ends of their changelogs."""
    lags = instance.streams.all_local_store_partition_lags()[store]
    return [lags[number].offset_lag for number in (0, 1)] == [0, 0]


def words(count, *, of=10):
    """Return lines of one word."""
    return [f"w{number % of}" for number in range(count)]


def replicated(kafka, app, directory, **others):
    """Return settings with one standby."""
    return settings(kafka, app, directory, num_standby_replicas=1, **others)


@GUARANTEES
def test_a_standby_has_what_the_active_task_has_committed(kafka, topic_factory, tmp_path, app, guarantee):
    """Each of two instances has the other's task as a standby with equal content, and status and metadata name it."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)
    topology = word_count(source, sink)
    with ExitStack() as stack:
        one, two = (
            Instance(stack, topology, replicated(kafka, app, tmp_path / name, processing_guarantee=guarantee))
            for name in "ab"
        )
        wait_until(
            lambda: [len(each.tasks(role)) for each in (one, two) for role in ("active", "standby")] == [1] * 4,
            "spread",
        )
        assert one.tasks("active") == two.tasks("standby")
        assert two.tasks("active") == one.tasks("standby")
        lines = words(200)
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, sink, partitions=2) == expected_counts(lines), "counted")
        for active, other in ((one, two), (two, one)):
            [task] = active.tasks("active")
            wait_until(partial(same_counts, active, other, task), "the standby has caught up")
            partition = TopicPartition(f"{app}-counts-changelog", TaskId.parse(task).partition)
            assert sum(each[4] for each in other.updated.batches if each[0] == partition) == 100
            assert other.updated.batches[-1][:3] == (partition, "counts", TaskId.parse(task))
            wait_until(partial(no_lag, other, "counts"), "no lag")
            [metadata] = other.streams.metadata_for_local_threads()
            assert [str(each.task_id) for each in metadata.standby_tasks] == [task]
            counts = other.streams.status().task_counts
            assert (counts.active, counts.standby, counts.warmup, counts.restoring) == (1, 1, 0, 0)


@GUARANTEES
def test_a_standby_takes_over_from_a_killed_instance(kafka, topic_factory, tmp_path, app, guarantee):
    """After SIGKILL next to nothing is restored, and nothing is counted twice under exactly-once."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = {"session_timeout_ms": 6_000, "processing_guarantee": guarantee, "producer_transaction_timeout_ms": 2_000}
    killed = Replica(replicated(kafka, app, tmp_path / "a", **config), source, sink, tmp_path, "a").start()
    with ExitStack() as stack:
        stack.callback(killed.kill)
        wait_until(lambda: killed.status().get("state") == "RUNNING", lambda: killed.log()[-2000:])
        other = Instance(stack, word_count(source, sink), replicated(kafka, app, tmp_path / "b", **config))
        wait_until(lambda: other.tasks("standby"), "a standby")
        lines = words(1_000)
        produce(kafka, source, lines)
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines), "counted")
        wait_until(lambda: other.counts("0_0") == expected_counts(lines), "the standby has caught up")
        store = other.manager.standby[TaskId(0, 0)].stores["counts"]
        killed.kill()
        wait_until(lambda: other.tasks("active"), "taken over")
        assert other.manager.running[TaskId(0, 0)].stores["counts"] is store
        assert other.restored.records.total() == 0
        assert other.updated.suspended[-1][3] is SuspendReason.PROMOTED
        produce(kafka, source, lines)
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines + lines), "counted")


@pytest.mark.parametrize("persistent", [True, False])
@GUARANTEES
def test_tasks_are_recycled_both_ways_with_their_stores_open(
    kafka, topic_factory, tmp_path, app, guarantee, persistent
):
    """The active task becomes a standby when another instance takes it, and active again when that leaves."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)
    topology = word_count(source, sink, persistent=persistent, caching=True)
    lines = words(100)
    with ExitStack() as stack:
        first = Instance(
            stack, topology, replicated(kafka, app, tmp_path / "a", processing_guarantee=guarantee)
        ).running()
        wait_until(lambda: first.tasks("active") == {"0_0", "0_1"}, "both tasks")
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, sink, partitions=2) == expected_counts(lines), "counted")
        stores = {task_id: task.stores["counts"] for task_id, task in first.manager.running.items()}
        with ExitStack() as inner:
            second = Instance(inner, topology, replicated(kafka, app, tmp_path / "b", processing_guarantee=guarantee))
            wait_until(lambda: len(first.tasks("standby")) == len(second.tasks("active")) == 1, "one task moves")
            [moved] = first.tasks("standby")
            assert first.manager.standby[TaskId.parse(moved)].stores["counts"] is stores[TaskId.parse(moved)]
            produce(kafka, source, lines, partitions=2)
            wait_until(lambda: last_counts(kafka, sink, partitions=2) == expected_counts(lines * 2), "counted")
            wait_until(lambda: first.counts(moved) == second.counts(moved), "the standby follows")
        wait_until(lambda: first.tasks("active") == {"0_0", "0_1"}, "both tasks again")
        assert {task_id: task.stores["counts"] for task_id, task in first.manager.running.items()} == stores
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, sink, partitions=2) == expected_counts(lines * 3), "counted")
        assert first.restored.records.total() == 0
        changelog = TopicPartition(f"{app}-counts-changelog", TaskId.parse(moved).partition)
        [(_, store, start)] = [each for each in first.updated.starts if each[0] == changelog]
        assert store == "counts"
        assert start >= 50 / 10  # the cache logs fewer records than there are words, but each of them at least once
        assert first.updated.suspended[-1][3] is SuspendReason.PROMOTED
