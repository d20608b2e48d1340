"""What is committed and when, on a real broker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from tests.committed_offsets import committed as offsets_of
from tests.committed_offsets import committed_offset
from tests.instance.support import (
    NUMBER,
    TEXT,
    CountWords,
    counting_with,
    produce,
    read_all,
    running,
    settings,
    two_step_word_count,
    word_count,
)
from tests.waiting import PATIENCE_S, wait_until

from millrace.engine.task import StreamTask
from millrace.errors import TaskCorruptedError
from millrace.instance.committer import RepartitionPurge
from millrace.instance.task_restoration import begin_changelog
from millrace.kafka.offsets import latest_offsets
from millrace.processor.api import PunctuationType
from millrace.records import OffsetAndMetadata, Record, TaskId, TopicPartition
from millrace.topology import Topology

pytestmark = pytest.mark.broker
BOTH = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])


def at_rest(streams):
    """Return whether no transaction is open and no task has anything to commit."""
    thread = streams.threads[0]
    return not thread.resources.producer.in_transaction and not any(
        task.commit_needed for task in list(thread.tasks.running.values())
    )


def rounds_without_commit(streams):
    """Return whether the thread has done some rounds, each longer than the commit interval, without a commit."""
    thread = streams.threads[0]
    begun = thread.rounds_total
    wait_until(
        lambda: thread.rounds_total > begun, "a commit that brokers have already, but that has not ended, is counted"
    )
    commits, rounds = thread.tasks.commits_total, thread.rounds_total
    wait_until(lambda: thread.rounds_total >= rounds + 30, "30 rounds")
    return thread.tasks.commits_total == commits


@BOTH
@pytest.mark.parametrize("inputs", [1, 2])
def test_record_that_is_dropped_is_committed(kafka, topic_factory, app, tmp_path, guarantee, inputs):
    """An unreadable record at the end of the input is committed with its dead letter; after that nothing is committed."""
    topics = [topic_factory(f"in-{number}") for number in range(inputs)]
    sink, dead = topic_factory("out"), topic_factory("dead")
    topology = (
        Topology()
        .add_source("in", *topics, key_serde=TEXT, value_serde=NUMBER)
        .add_sink("out", sink, "in", key_serde=TEXT, value_serde=NUMBER)
    )
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee) | {
        "deserialization.exception.handler": "LogAndContinueExceptionHandler",
        "errors.dead.letter.queue.topic.name": dead,
        "poll.ms": 5,
        "commit.interval.ms": 50,
    }
    with running(topology, config) as streams:
        produce(kafka, topics[0], ["unreadable"])
        wait_until(lambda: committed_offset(kafka, app, topics[0]) == 1, "its offset is committed")
        assert [value for _, value, _ in read_all(kafka, dead)] == [b"unreadable"]
        wait_until(lambda: at_rest(streams), "nothing is left to commit")
        assert rounds_without_commit(streams)


@BOTH
def test_transaction_markers_are_committed_as_consumed(kafka, topic_factory, app, tmp_path, guarantee):
    """When all is processed the group has no lag, although the input ends with a transaction that was aborted."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee) | {"poll.ms": 5}
    with running(two_step_word_count(source, sink), config) as streams:
        produce(kafka, source, ["a b", "a"])
        wait_until(lambda: committed_offset(kafka, app, source) == 2, "all lines are committed")
        upstream = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": source})
        upstream.init_transactions(PATIENCE_S)
        upstream.begin_transaction()
        upstream.produce(source, b"c")  # which at-least-once reads, as Java does
        upstream.flush(PATIENCE_S)
        upstream.abort_transaction(PATIENCE_S)
        read = [TopicPartition(source, 0), TopicPartition(f"{app}-words", 0)]
        wait_until(
            lambda: offsets_of(kafka, app, read) == latest_offsets(kafka.admin(), read),
            lambda: f"no lag: {offsets_of(kafka, app, read)} of {latest_offsets(kafka.admin(), read)}",
        )
        assert rounds_without_commit(streams)
        aborted = [b"c"] if guarantee == "at_least_once" else []
        assert [key for key, _, _ in read_all(kafka, sink)] == [b"a", b"b", b"a", *aborted]


class WritesAtStart(CountWords):
    """Writes to its store, forwards, and requests a commit before there is any record."""

    def init(self, context):
        """Write, forward and request the commit."""
        super().init(context)
        self.store.put("started", 1)
        context.forward(Record("started", 1, 1))
        context.commit()


@BOTH
def test_what_init_does_is_committed_once(kafka, topic_factory, app, tmp_path, guarantee):
    """What processors write in `init` is committed without any input, and the commit they request is made once."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee) | {"poll.ms": 5}
    with running(counting_with(WritesAtStart, source, sink), config) as streams:
        wait_until(lambda: read_all(kafka, sink), "what it forwarded")
        wait_until(lambda: at_rest(streams), "nothing is left to commit")
        assert [key for key, _, _ in read_all(kafka, f"{app}-counts-changelog")] == [b"started"]
        assert rounds_without_commit(streams)


class Ticks(CountWords):
    """Forwards a few times, by wall-clock time."""

    def init(self, context):
        """Schedule the punctuation."""
        super().init(context)
        self.ticks = 0
        self.schedule = context.schedule(10, PunctuationType.WALL_CLOCK_TIME, self.tick)

    def tick(self, timestamp):
        """Forward a record."""
        self.ticks += 1
        self.store.put("tick", self.ticks)
        self.context.forward(Record("tick", self.ticks, timestamp))
        if self.ticks == 5:
            self.schedule.cancel()


@BOTH
def test_what_punctuators_do_is_committed(kafka, topic_factory, app, tmp_path, guarantee):
    """Punctuation without any input is committed, and nothing is left to commit afterwards."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, app, tmp_path, processing_guarantee=guarantee) | {"poll.ms": 5}
    with running(counting_with(Ticks, source, sink), config) as streams:
        wait_until(lambda: len(read_all(kafka, sink)) == 5, "five ticks")
        wait_until(lambda: at_rest(streams), "nothing is left to commit")
        assert rounds_without_commit(streams)


def test_store_never_claims_an_offset_that_is_not_in_its_changelog(kafka, topic_factory, app, tmp_path, monkeypatch):
    """A commit may complete before its markers are in the changelog, so a store's offset is that of its last record."""
    source, sink = topic_factory("in"), topic_factory("out")
    claimed = []
    post_commit = StreamTask.post_commit

    def noting(task, changelog_offsets):
        claimed.append(dict(changelog_offsets))
        post_commit(task, changelog_offsets)

    monkeypatch.setattr(StreamTask, "post_commit", noting)
    config = settings(kafka, app, tmp_path, processing_guarantee="exactly_once_v2")
    with running(word_count(source, sink), config):
        produce(kafka, source, ["a b c"])
        wait_until(lambda: len(read_all(kafka, sink)) == 3, "three words")
    changelog = TopicPartition(f"{app}-counts-changelog", 0)
    assert {offsets[changelog] for offsets in claimed if changelog in offsets} == {2}


class At:
    """A task with one store at a given offset."""

    task_id = TaskId(0, 0)

    def __init__(self, partition, offset):
        self.changelogs = {partition: self}
        self.changelog_positions = {partition: offset + 1}
        self.name = "counts"


def test_store_beyond_the_end_of_its_changelog_is_corrupt():
    """A store at the changelog's last record is complete; one further ahead belongs to another changelog."""
    changelog = TopicPartition("counts-changelog", 0)
    assert begin_changelog(At(changelog, 2), changelog, range(3), 3, None) is None
    with pytest.raises(TaskCorruptedError, match="is at offset 4"):
        begin_changelog(At(changelog, 3), changelog, range(3), 3, None)


def test_repartition_topic_that_was_recreated_is_purged():
    """What was purged of the old one says nothing about the new one, whose offsets begin at 0 again."""
    partition, asked = TopicPartition("words", 0), []

    def delete_records(request):
        [limit] = request
        asked.append(limit.offset)
        return {}

    subtopology = SimpleNamespace(repartition_topics=["words"])
    purge = RepartitionPurge(
        SimpleNamespace(subtopologies=[subtopology]),
        SimpleNamespace(repartition_purge_interval_ms=0),
        SimpleNamespace(delete_records=delete_records),
    )
    for now, offset in enumerate([0, 500, 500, 3], 1_000_000):
        purge.run_if_due(now, lambda at=offset: {partition: OffsetAndMetadata(at)})
    assert asked == [500, 3]
