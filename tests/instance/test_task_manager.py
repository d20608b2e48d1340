"""Assignments when something fails half-way: each task ends up where the group wants it."""

from __future__ import annotations

import itertools
import re
import secrets
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest
from kafka.protocol.consumer import JoinGroupRequest
from tests.instance.support import (
    GUARANTEES,
    NUMBER,
    TEXT,
    CountWords,
    Feeder,
    HeldAtStart,
    Replica,
    counts_builder,
    last_counts,
    produce,
    read_all,
    running,
    settings,
    word_count,
)
from tests.waiting import PATIENCE_S, wait_until

from millrace import StreamsBuilder
from millrace.assignment import LATEST_OFFSET, AssignedTasks
from millrace.assignment.protocol import Assigned, Revoked
from millrace.engine.task import StreamTask
from millrace.errors import (
    StreamsError,
    StreamsTimeoutError,
    TaskCorruptedError,
    TaskMigratedError,
    TransactionAbortedError,
)
from millrace.instance import KafkaStreams, State, changelog_reader
from millrace.instance.state_updater import StateUpdater
from millrace.instance.task_stage import Stage
from millrace.processor.api import Processor
from millrace.records import TaskId, TopicPartition
from millrace.topology import Topology

pytestmark = pytest.mark.broker


def running_tasks(streams):
    """Return the ids of the running tasks."""
    return {str(task.id) for task in streams.status().tasks if task.state == "RUNNING"}


def abort_commit_after(thread, is_meant):
    """Make the first commit after a group event fail, as it does if a record was not delivered in time.

    Returns:
        An Event that is set once it has failed.
    """
    member, committer = thread.resources.member, thread.tasks._committer
    poll, commit = member.poll, committer.commit
    aborted = threading.Event()

    def fail(_tasks):
        committer.commit = commit
        aborted.set()
        raise TransactionAbortedError("a record was not delivered in time")

    def polled():
        events = poll()
        if any(is_meant(event) for event in events):
            member.poll, committer.commit = poll, fail
        return events

    member.poll = polled
    return aborted


class CopyValue(Processor):
    """Forwards each record unchanged."""

    def process(self, record):
        """Forward a record."""
        self.context.forward(record)


def test_a_transaction_aborted_during_a_revocation_commits_nothing_of_the_revoked_task(
    kafka, topic_factory, tmp_path, app
):
    """The new owner starts at the old offset, so what the old owner processed must never be committed."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)
    topology = (
        Topology()
        .add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("pass", CopyValue, "in")
        .add_sink("out", sink, "pass", key_serde=TEXT, value_serde=TEXT)
    )

    def config(name):
        return settings(
            kafka, app, tmp_path / name, client_id=name, processing_guarantee="exactly_once_v2", commit_interval_ms=2000
        )

    with ExitStack() as stack:
        first = stack.enter_context(running(topology, config("a")))
        wait_until(lambda: running_tasks(first) == {"0_0", "0_1"}, "both tasks")
        feeder = Feeder(kafka, source, ((n % 2, f"{n % 2}:{n}") for n in itertools.count()), rate=100)
        stack.callback(feeder.stop)
        wait_until(lambda: first.status().processing.records > 20, "records are processed")
        aborted = abort_commit_after(first.threads[0], lambda event: isinstance(event, Revoked))
        second = stack.enter_context(running(topology, config("b")))
        assert aborted.wait(PATIENCE_S), "the commit of the revocation failed"
        wait_until(lambda: len(running_tasks(first)) == len(running_tasks(second)) == 1, "a task each")
        written = feeder.stop()

        def outputs():
            return Counter(value.decode() for _, value, _ in read_all(kafka, sink, partitions=2))

        wait_until(lambda: outputs().keys() >= set(written), "everything is processed")
        assert {value: count for value, count in outputs().items() if count > 1} == {}


def test_a_transaction_aborted_during_an_assignment_does_not_lose_the_assignment(kafka, topic_factory, tmp_path, app):
    """A topic that newly matches a pattern is read even if the preceding commit failed."""
    prefix = f"pattern-{secrets.token_hex(4)}"
    kafka.create_topics(f"{prefix}-1")
    sink = topic_factory("out")
    builder = StreamsBuilder()
    builder.stream(re.compile(f"{prefix}-.*")).to(sink)
    config = settings(
        kafka, app, tmp_path, processing_guarantee="exactly_once_v2", metadata_max_age_ms=1000, commit_interval_ms=1000
    ) | {"default.key.serde": "string", "default.value.serde": "string"}
    with running(builder.build(), config) as streams:
        wait_until(lambda: running_tasks(streams) == {"0_0"}, "the task of the first topic")
        aborted = abort_commit_after(
            streams.threads[0], lambda event: isinstance(event, Assigned) and len(event.partitions) > 1
        )
        kafka.create_topics(f"{prefix}-2")
        produce(kafka, f"{prefix}-1", ["a"])
        produce(kafka, f"{prefix}-2", ["b"])
        wait_until(
            lambda: {value for _, value, _ in read_all(kafka, sink)} >= {b"a", b"b"},
            lambda: f"both topics are read: {streams.metadata_for_local_threads()}",
        )
        assert aborted.is_set()
        assert sorted(value for _, value, _ in read_all(kafka, sink)) == [b"a", b"b"]


class CountFromStart(CountWords):
    """Writes to its store in `init`."""

    def init(self, context):
        """Write."""
        super().init(context)
        self.store.put("started", 1)


def test_a_transaction_aborted_while_a_task_starts_leaves_no_task_behind(
    kafka, topic_factory, tmp_path, app, monkeypatch
):
    """The task that failed starts again, and so do those restored at the same moment."""
    source, sink = topic_factory("in", partitions=3), topic_factory("out", partitions=3)
    topology = (
        Topology()
        .add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("count", CountFromStart, "in")
        .add_state_store(counts_builder(), "count")
        .add_sink("out", sink, "count", key_serde=TEXT, value_serde=NUMBER)
    )
    initialize, failed = StreamTask.initialize, []

    def fail_once(task, *args):
        initialize(task, *args)
        if not failed:
            failed.append(task)
            raise TransactionAbortedError("the transaction has failed")

    monkeypatch.setattr(StreamTask, "initialize", fail_once)
    produce(kafka, source, ["a", "b", "c"], partitions=3)
    with running(topology, settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2")) as streams:
        assert failed
        assert running_tasks(streams) == {"0_0", "0_1", "0_2"}
        wait_until(lambda: last_counts(kafka, sink, partitions=3) == {"a": 1, "b": 1, "c": 1}, "counted")


def test_a_group_that_waits_for_a_dead_member_keeps_committing(kafka, topic_factory, tmp_path, app):
    """Results become visible while the group is between generations; otherwise a transaction would time out first."""
    source, sink = topic_factory("in", partitions=4), topic_factory("out", partitions=4)

    def config(name):
        return settings(
            kafka,
            app,
            tmp_path / name,
            client_id=name,
            processing_guarantee="exactly_once_v2",
            session_timeout_ms=240_000,
            producer_transaction_timeout_ms=8000,
        )

    with ExitStack() as stack:
        first = stack.enter_context(running(word_count(source, sink), config("a")))
        dead = Replica(config("b"), source, sink, tmp_path, "b").start()
        stack.callback(dead.kill)
        wait_until(lambda: len(running_tasks(first)) == len(dead.status().get("tasks", ())) == 2, "two tasks each")
        dead.signal(signal.SIGSTOP)
        generation = first.threads[0].resources.member.generation
        joining = KafkaStreams(word_count(source, sink), config("c"))
        joining.start()
        stack.callback(joining.close, 120)
        wait_until(lambda: first.threads[0].resources.member.rebalancing, "the group waits for the frozen member")
        for number in range(3):
            produce(kafka, source, [f"word{number}"] * 4, partitions=4)
            mine = {f"word{number}"}
            wait_until(lambda mine=mine: last_counts(kafka, sink, partitions=4).keys() >= mine, "a result is committed")
        assert first.threads[0].resources.member.generation == generation
        assert first.error is None


@pytest.fixture
def unreachable(monkeypatch):
    """Make the leaders of some changelog partitions silent: `unreachable(number)`, until the returned Event is set."""
    latest_offsets, silent, back = changelog_reader.latest_offsets, set(), threading.Event()

    def ask(admin, partitions, timeout_s=30.0):
        stuck = [str(partition) for partition in partitions if partition.partition in silent]
        if stuck and not back.is_set() and not back.wait(timeout_s):
            raise StreamsTimeoutError(f"Cannot list offsets of {stuck}: no answer")
        return latest_offsets(admin, partitions, timeout_s)

    def begin(number):
        silent.add(number)
        return back

    monkeypatch.setattr(changelog_reader, "latest_offsets", ask)
    yield begin
    back.set()


def test_a_changelog_that_cannot_be_reached_holds_up_its_own_task_only(
    kafka, topic_factory, tmp_path, app, unreachable
):
    """Other tasks run; the blocked one can be taken away at once, and runs when its changelog is reachable again."""
    source, sink = topic_factory("in", partitions=3), topic_factory("out", partitions=3)
    back = unreachable(1)
    streams = KafkaStreams(word_count(source, sink), settings(kafka, app, tmp_path / "a"))
    streams.start()
    try:
        wait_until(lambda: running_tasks(streams) == {"0_0", "0_2"}, "those that can be reached")
        streams.add_stream_thread()
        wait_until(
            lambda: [len(thread.tasks.task_ids) for thread in streams.threads if thread.tasks] in ([1, 2], [2, 1]),
            "tasks move",
        )
        back.set()
        wait_until(lambda: running_tasks(streams) == {"0_0", "0_1", "0_2"}, "all of them")
    finally:
        back.set()
        assert streams.close(60)


def test_a_changelog_that_stays_unreachable_ends_the_instance_after_the_task_timeout(
    kafka, topic_factory, tmp_path, app, unreachable
):
    """Beyond task.timeout.ms it is not retried: the instance fails, and the error names the changelog."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)
    unreachable(1)
    streams = KafkaStreams(word_count(source, sink), settings(kafka, app, tmp_path, task_timeout_ms=5000))
    streams.start()
    try:
        with pytest.raises(StreamsTimeoutError, match="counts-changelog-1"):
            streams.wait(PATIENCE_S)
        assert streams.state is State.ERROR
    finally:
        streams.close(60)


def test_local_state_is_looked_for_only_when_it_may_have_changed(kafka, topic_factory, tmp_path, app):
    """A member makes its user data several times a second; it knows at once what another thread leaves, wipes or deletes."""
    source, sink = topic_factory("in"), topic_factory("out")
    with running(word_count(source, sink), settings(kafka, app, tmp_path)) as streams:
        [thread], directory, left = streams.threads, streams._directory, TaskId(0, 1)
        here, member, made, listed = TaskId(0, 0), thread.resources.member.client, [], []
        wait_until(lambda: running_tasks(streams) == {"0_0"}, "the task")
        user_data, tasks_on_disk = member._joining._user_data, directory.tasks_on_disk

        def noted():
            before = len(listed)
            data = user_data()
            made.append(len(listed) - before)
            return data

        directory.tasks_on_disk = lambda: (listed.append(1), tasks_on_disk())[1]
        member._joining._user_data = noted
        wait_until(lambda: len(made) == 4, "user data")
        assert made[1:] == [0, 0, 0]
        assert thread.tasks.offset_sums().keys() == {here}

        directory.own_task(left, "another thread")
        (directory.task_path(left) / "rocksdb").mkdir()
        assert thread.tasks.offset_sums().keys() == {here}
        directory.note_offset_sum(left, 7)
        directory.disown_task(left, "another thread")
        assert thread.tasks.offset_sums() == {here: LATEST_OFFSET, left: 7}
        directory.wipe_task(left)
        assert thread.tasks.offset_sums().keys() == {here}
        (directory.task_path(left) / "rocksdb").mkdir()
        directory.note_offset_sum(left, 8)
        assert thread.tasks.offset_sums()[left] == 8
        directory.clean_idle(time.time() + 1e6)
        assert thread.tasks.offset_sums().keys() == {here}


def test_every_task_that_fails_in_a_round_is_dealt_with(kafka, topic_factory, tmp_path, app, monkeypatch):
    """The error of one that ends the instance does not keep another's corrupt state from being deleted."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)
    config = settings(kafka, app, tmp_path)
    with running(word_count(source, sink), config) as streams:
        produce(kafka, source, ["a", "b"], partitions=2)
        wait_until(lambda: last_counts(kafka, sink, partitions=2) == {"a": 1, "b": 1}, "counted")
    errors, corrupt = [StreamsError("this ends it")], []
    drain_failed = StateUpdater.drain_failed

    def fail(task, *_):
        if errors:
            raise errors.pop()
        corrupt.append(task.task_id)
        raise TaskCorruptedError(frozenset(corrupt), "this is corrupt")

    monkeypatch.setattr(changelog_reader, "begin_changelog", fail)
    monkeypatch.setattr(StateUpdater, "drain_failed", lambda self: drain_failed(self) if corrupt else [])
    streams = KafkaStreams(word_count(source, sink), config)
    streams.start()
    try:
        with pytest.raises(StreamsError, match="this ends it"):
            streams.wait(PATIENCE_S)
    finally:
        assert streams.close(60)
    emptied = [task for task in (TaskId(0, 0), TaskId(0, 1)) if not any((tmp_path / app / str(task)).iterdir())]
    assert emptied == corrupt


def uncommitted_settings(kafka, app, directory, **others):
    """Return settings under which, during a test, commits only happen when tasks leave."""
    return settings(
        kafka,
        app,
        directory,
        processing_guarantee="exactly_once_v2",
        commit_interval_ms=300_000,
        producer_transaction_timeout_ms=600_000,
        metadata_max_age_ms=1000,
        **others,
    )


def by_pattern(prefix, sink, processor=CopyValue):
    """Return a topology with one task that reads all topics with a prefix."""
    return (
        Topology()
        .add_source("in", pattern=f"{prefix}-.*", key_serde=TEXT, value_serde=TEXT)
        .add_processor("pass", processor, "in")
        .add_sink("out", sink, "pass", key_serde=TEXT, value_serde=TEXT)
    )


def test_a_member_that_has_lost_its_generation_commits_nothing_of_tasks_that_left(kafka, topic_factory, tmp_path, app):
    """A thread's last task leaves even if its commit fails: what it sent is aborted, not committed later."""
    prefix = f"pattern-{secrets.token_hex(4)}"
    kafka.create_topics(f"{prefix}-1")
    sink = topic_factory("out")
    with running(by_pattern(prefix, sink), uncommitted_settings(kafka, app, tmp_path)) as streams:
        wait_until(lambda: running_tasks(streams) == {"0_0"}, "the task of the first topic")
        member = streams.threads[0].resources.member
        identity, refused = member.group_metadata, threading.Event()

        def removed():
            member.group_metadata = identity
            refused.set()
            raise TaskMigratedError("the group has removed this member")

        produce(kafka, f"{prefix}-1", ["a", "b"])
        wait_until(lambda: streams.status().processing.records == 2, "both records are processed")
        member.group_metadata = removed
        kafka.create_topics(f"{prefix}-2")
        assert refused.wait(PATIENCE_S), "the task is to be closed, because its input is another"
        wait_until(lambda: streams.status().processing.records == 4, "both records are processed again")
    assert sorted(value for _, value, _ in read_all(kafka, sink)) == [b"a", b"b"]


class ForwardAtClose(CopyValue):
    """Forwards each record unchanged, and all of them again when it is closed."""

    def init(self, context):
        """Start without records."""
        super().init(context)
        self.held = []

    def process(self, record):
        """Forward a record and keep it."""
        super().process(record)
        self.held.append(record.with_value(f"held {record.value}"))

    def close(self):
        """Forward the records that were kept."""
        for record in self.held:
            self.context.forward(record)


def test_what_a_processor_sends_while_it_closes_after_an_abort_is_not_committed(kafka, topic_factory, tmp_path, app):
    """It derives from records that were rolled back, and would be committed along with the results of processing them again."""
    source, sink = topic_factory("in"), topic_factory("out")
    topology = (
        Topology()
        .add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("pass", ForwardAtClose, "in")
        .add_sink("out", sink, "pass", key_serde=TEXT, value_serde=TEXT)
    )
    with running(topology, settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2")) as streams:
        aborted = threading.Event()
        committer = streams.threads[0].tasks._committer
        commit = committer.commit

        def fail(tasks):
            if not any(task.counters.records_processed for task in tasks):
                return commit(tasks)
            committer.commit = commit
            aborted.set()
            raise TransactionAbortedError("a record was not delivered in time")

        committer.commit = fail
        produce(kafka, source, ["a"])
        assert aborted.wait(PATIENCE_S)
        wait_until(lambda: b"a" in {value for _, value, _ in read_all(kafka, sink)}, "the record is processed again")
    assert [value for _, value, _ in read_all(kafka, sink)] == [b"a"]


def test_what_a_processor_sends_while_it_closes_leaves_no_transaction_open(kafka, topic_factory, tmp_path, app):
    """Its task is already committed, so nothing would end a new transaction while the thread is idle."""
    prefix = f"pattern-{secrets.token_hex(4)}"
    kafka.create_topics(f"{prefix}-1")
    sink = topic_factory("out")
    config = uncommitted_settings(kafka, app, tmp_path)
    with running(by_pattern(prefix, sink, ForwardAtClose), config) as streams:
        thread = streams.threads[0]
        produce(kafka, f"{prefix}-1", ["a"])
        wait_until(lambda: streams.status().processing.records == 1, "the record is processed")
        kafka.create_topics(f"{prefix}-2")
        wait_until(
            lambda: [len(task.input_partitions) for task in list(thread.tasks.running.values())] == [2], "both topics"
        )
        assert not thread.resources.producer.in_transaction
        produce(kafka, f"{prefix}-2", ["b"])
        wait_until(lambda: streams.status().processing.records == 2, "the record is processed")
    assert sorted(value for _, value, _ in read_all(kafka, sink)) == [b"a", b"b"]


class WriteAtClose(CountWords):
    """Counts words, and writes to the store when it is closed."""

    def close(self):
        """Note in the store that the processor was closed."""
        self.store.put("closed", 1)


@pytest.mark.parametrize("persistent", [True, False])
def test_what_a_processor_stores_while_it_closes_is_not_in_a_recycled_store(kafka, tmp_path, app, persistent):
    """Its changelog record is rolled back, and a store that had it would differ from every copy restored later."""
    prefix = f"pattern-{secrets.token_hex(4)}"
    kafka.create_topics(f"{prefix}-1")
    topology = (
        Topology()
        .add_source("in", pattern=f"{prefix}-.*", key_serde=TEXT, value_serde=TEXT)
        .add_processor("count", WriteAtClose, "in")
        .add_state_store(counts_builder(persistent=persistent), "count")
    )
    with running(topology, uncommitted_settings(kafka, app, tmp_path)) as streams:
        tasks = streams.threads[0].tasks.running
        produce(kafka, f"{prefix}-1", ["a"])
        wait_until(lambda: streams.status().processing.records == 1, "the record is processed")
        kafka.create_topics(f"{prefix}-2")
        wait_until(lambda: [len(task.input_partitions) for task in list(tasks.values())] == [2], "both topics")
        [task] = tasks.values()
        assert [(pair.key, pair.value) for pair in task.stores["counts"].all()] == [("a", 1)]


def test_a_task_whose_state_was_wiped_can_go_to_another_thread_at_once(kafka, topic_factory, tmp_path, app):
    """Its directory is free even if the thread that wiped it never reopens it."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)
    with running(word_count(source, sink), settings(kafka, app, tmp_path)) as streams:
        wait_until(lambda: running_tasks(streams) == {"0_0", "0_1"}, "both tasks")
        member = streams.threads[0].resources.member
        poll, later = member.poll, []

        def polled():
            if later:
                member.poll = poll
                return later
            events = poll()
            for event in events:
                if isinstance(event, Revoked):
                    later.extend(events)
                    gone = frozenset(TaskId(0, partition.partition) for partition in event.partitions)
                    raise TaskCorruptedError(gone, "its changelog was truncated")
            return events

        member.poll = polled
        streams.add_stream_thread()
        wait_until(
            lambda: [len(thread.tasks.running) for thread in streams.threads if thread.tasks] == [1, 1],
            lambda: f"a task each: {[thread.tasks.task_ids for thread in streams.threads]}",
        )
        assert later


@GUARANTEES
def test_state_is_deleted_before_another_thread_can_have_it(
    kafka, topic_factory, tmp_path, app, monkeypatch, guarantee
):
    """A thread that waits for the directory of a task whose state is wiped finds it empty, whenever it gets it."""
    source, sink = topic_factory("in"), topic_factory("out")
    with running(word_count(source, sink), settings(kafka, app, tmp_path, processing_guarantee=guarantee)) as streams:
        produce(kafka, source, ["a", "b"])
        wait_until(lambda: last_counts(kafka, sink) == {"a": 1, "b": 1}, "counted")
        directory, task_id = streams._directory, TaskId(0, 0)
        member = streams.threads[0].resources.member
        poll, found = member.poll, []

        def polled():
            member.poll = poll
            raise TaskCorruptedError(frozenset({task_id}), "its changelog was truncated")

        def released(released_id, owner):
            release(released_id, owner)
            if not found:
                found.append(sorted(directory.own_task(task_id, "another").iterdir()))
                release(task_id, "another")

        release = directory.disown_task
        monkeypatch.setattr(directory, "disown_task", released)
        member.poll = polled
        wait_until(lambda: found, "the directory is free")
        assert found == [[]]
        wait_until(lambda: running_tasks(streams) == {"0_0"}, "the task again")
        produce(kafka, source, ["a"])
        wait_until(lambda: last_counts(kafka, sink) == {"a": 2, "b": 1}, "counted on")


def test_a_transaction_refused_between_generations_does_not_cost_the_tasks(kafka, topic_factory, tmp_path, app, caplog):
    """If the member has yet to read that the group has a new generation, its transaction is aborted, and it stays a member."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)

    def config(name):
        return settings(
            kafka,
            app,
            tmp_path / name,
            processing_guarantee="exactly_once_v2",
            producer_transaction_timeout_ms=4000,  # so that a rebalancing member commits every second
        )

    with ExitStack() as stack:
        first = stack.enter_context(running(word_count(source, sink), config("a")))
        wait_until(lambda: running_tasks(first) == {"0_0", "0_1"}, "both tasks")
        client = first.threads[0].resources.member.client
        send, joined, go_on = client._coordinator.send, threading.Event(), threading.Event()
        stack.callback(go_on.set)

        async def late(request, *arguments, **named):
            answer = await send(request, *arguments, **named)
            if isinstance(request, JoinGroupRequest) and not answer.error_code:
                joined.set()
                while not go_on.is_set():
                    await client._connection.sleep(0.02)
            return answer

        client._coordinator.send = late
        second = KafkaStreams(word_count(source, sink), config("b"))
        second.start()
        stack.callback(second.close, 60)
        assert joined.wait(PATIENCE_S)
        produce(kafka, source, ["a b", "c"] * 10, partitions=2)
        wait_until(lambda: "has begun its next generation" in caplog.text, lambda: caplog.text)
        go_on.set()
        wait_until(lambda: len(running_tasks(first)) == len(running_tasks(second)) == 1, "a task each")
        wait_until(lambda: last_counts(kafka, sink, partitions=2) == {"a": 10, "b": 10, "c": 10}, "counted")
        assert "is no longer in generation" not in caplog.text


class FailAtClose(CountWords):
    """Counts words, and fails the first time it is closed, as if the transaction of its last output had been aborted."""

    failed = threading.Event()

    def close(self):
        """Fail once."""
        if not self.failed.is_set():
            self.failed.set()
            raise TransactionAbortedError("a record was not delivered in time")


def test_a_processor_that_fails_to_close_leaves_no_task_behind(kafka, topic_factory, tmp_path, app):
    """Of two tasks that change their roles at once, the standby is taken over by the thread before the other one is closed."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)
    FailAtClose.failed.clear()
    topology = (
        Topology()
        .add_source("lines", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("count", FailAtClose, "lines")
        .add_state_store(counts_builder(), "count")
        .add_sink("out", sink, "count", key_serde=TEXT, value_serde=NUMBER)
    )
    one, two = ({TaskId(0, number): frozenset([TopicPartition(source, number)])} for number in (0, 1))
    with running(topology, settings(kafka, app, tmp_path)) as streams:
        wait_until(lambda: running_tasks(streams) == {"0_0", "0_1"}, "both tasks")
        tasks = streams.threads[0].tasks
        FailAtClose.failed.set()
        tasks.assign(AssignedTasks(active=one, standby=two))
        wait_until(lambda: tasks.running.keys() == one.keys() and tasks.standby.keys() == two.keys(), "a standby")
        reconcile, after = tasks.reconcile, []

        def reconciled():
            tasks.reconcile = reconcile
            tasks.assign(AssignedTasks(active=two, standby=one))
            FailAtClose.failed.clear()
            try:
                reconcile()
            finally:
                after.append((tasks.task_ids, set(tasks.running)))

        tasks.reconcile = reconciled
        wait_until(
            lambda: tasks.running.keys() == two.keys() and tasks.standby.keys() == one.keys(), "the roles change"
        )
        assert FailAtClose.failed.is_set()
        assert after == [({*one, *two}, set())]
        produce(kafka, source, ["x", "a b"], partitions=2)
        wait_until(lambda: last_counts(kafka, sink, partitions=2) == {"a": 1, "b": 1}, "counted")


def test_a_producer_that_cannot_begin_a_transaction_is_replaced(kafka, topic_factory, tmp_path, app):
    """The record being sent is not to blame, so the processing exception handler is not asked to drop it."""
    source, sink = topic_factory("in"), topic_factory("out")
    topology = (
        Topology()
        .add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("pass", CopyValue, "in")
        .add_sink("out", sink, "pass", key_serde=TEXT, value_serde=TEXT)
    )
    config = settings(
        kafka,
        app,
        tmp_path,
        processing_guarantee="exactly_once_v2",
        processing_exception_handler="LogAndContinueProcessingExceptionHandler",
    )
    with running(topology, config) as streams:
        produce(kafka, source, ["a"])
        wait_until(lambda: [value for _, value, _ in read_all(kafka, sink)] == [b"a"], "the first record")
        producer = streams.threads[0].resources.producer
        wait_until(lambda: not producer.in_transaction, "it is committed")
        producer.client.begin_transaction()  # so beginning a transaction fails
        produce(kafka, source, ["b"])
        wait_until(lambda: streams.status().processing.records >= 2, "the second record")
    assert [value for _, value, _ in read_all(kafka, sink)] == [b"a", b"b"]


@pytest.fixture
def blocked_standby(kafka, topic_factory, tmp_path, app):
    """Yield an instance that runs task 0_0 and whose state updater is held up by a listener, its listener and its topics."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)
    listener = HeldAtStart()
    streams = KafkaStreams(word_count(source, sink), settings(kafka, app, tmp_path))
    streams.set_standby_update_listener(listener)
    streams.start()
    try:
        wait_until(lambda: running_tasks(streams) == {"0_0", "0_1"}, "both tasks")
        one, two = ({TaskId(0, number): frozenset([TopicPartition(source, number)])} for number in (0, 1))
        streams.threads[0].tasks.assign(AssignedTasks(active=one, standby=two))
        wait_until(lambda: listener.starts, "the standby is with the state updater")
        yield streams, listener, one, (source, sink)
    finally:
        listener.go_on.set()
        assert streams.close(60)


def test_a_listener_that_blocks_the_state_updater_does_not_hold_up_the_thread(blocked_standby, kafka):
    """A standby that leaves is closed when its listener has returned; meanwhile the thread's other task goes on."""
    streams, listener, one, (source, sink) = blocked_standby
    tasks = streams.threads[0].tasks
    tasks.assign(AssignedTasks(active=one, standby={}))
    produce(kafka, source, ["a", "b"], partitions=2)
    wait_until(lambda: last_counts(kafka, sink, partitions=2) == {"a": 1}, "the other task goes on")
    assert tasks.task_ids == {TaskId(0, 0), TaskId(0, 1)}
    assert not tasks.all_running
    listener.go_on.set()
    wait_until(lambda: tasks.all_running and tasks.task_ids == {TaskId(0, 0)}, "the standby is closed")


def test_a_standby_that_is_wanted_again_while_it_is_given_back_is_kept(blocked_standby):
    """It is with the state updater again, with the same stores."""
    streams, listener, one, (source, _) = blocked_standby
    tasks, task_id = streams.threads[0].tasks, TaskId(0, 1)
    task = tasks.standby[task_id]
    tasks.assign(AssignedTasks(active=one, standby={}))
    [held] = [each for each in tasks._held.values() if each.task is task]
    wait_until(lambda: held.stage is Stage.RECALLED, "it is asked for")
    tasks.assign(AssignedTasks(active=one, standby={task_id: frozenset([TopicPartition(source, 1)])}))
    assert not tasks.all_running
    listener.go_on.set()
    wait_until(lambda: tasks.all_running and len(listener.starts) == 2, "a standby again")
    assert tasks.standby == {task_id: task}


def test_closing_names_the_listener_that_blocks_the_state_updater(blocked_standby, caplog):
    """It waits for it no longer than for brokers, and the log says which task is not closed, and where its updater is."""
    streams, listener, *_ = blocked_standby
    streams.close(2)  # of which half is for brokers
    assert streams.wait(PATIENCE_S)
    assert not listener.go_on.is_set()
    assert re.search(
        r"not given back task 0_1 yet, it is in HeldAtStart.on_update_start \(support.py:\d+\)", caplog.text
    )
