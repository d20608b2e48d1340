"""Crashes, zombies and damaged state on a real broker: exactly-once counts stay exact, at-least-once loses nothing."""

from __future__ import annotations

import logging
import os
import random
import secrets
import signal
import threading
from collections import defaultdict
from contextlib import contextmanager

import pytest
from confluent_kafka import TopicPartition
from tests.brokers import new_topic
from tests.instance.support import (
    Feeder,
    Replica,
    expected_counts,
    last_counts,
    produce,
    read_all,
    running,
    settings,
    word_count,
)
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.broker
GUARANTEES = ["exactly_once_v2", pytest.param("at_least_once", marks=pytest.mark.thorough)]
PARTITIONS = 4
WORDS = 40


def random_lines():
    """Yield partitions and lines of words that belong to them."""
    random_words = random.Random(7)
    while True:
        partition = random_words.randrange(PARTITIONS)
        yield partition, f"p{partition}-{random_words.randrange(WORDS)} p{partition}-all"


class Words:
    """A broker with an input and an output topic, and the name of the application between them."""

    def __init__(self, kafka):
        self.kafka, self.app = kafka, f"crash-{secrets.token_hex(4)}"
        self.source, self.sink = (new_topic(kafka, name, partitions=PARTITIONS) for name in ("in", "out"))

    def replica(self, tmp_path, name, guarantee, **others):
        """Return a replica with its own state directory; further arguments are settings."""
        config = settings(self.kafka, self.app, tmp_path / name, processing_guarantee=guarantee, **others)
        return Replica(config, self.source, self.sink, tmp_path, name)

    @contextmanager
    def fed(self, replicas):
        """Yield a feeder; finally stop it and kill the replicas that still run."""
        feeder = Feeder(self.kafka, self.source, random_lines())
        try:
            yield feeder
        finally:
            feeder._stop.set()
            for replica in replicas:
                if replica.process is not None and replica.process.poll() is None:
                    replica.kill()

    def counts_by_word(self):
        """Return all counts written for each word, in order."""
        found = defaultdict(list)
        for key, value, _ in read_all(self.kafka, self.sink, partitions=PARTITIONS):
            found[key.decode()].append(int.from_bytes(value, "big", signed=True))
        return found

    def wait_for_counts(self, lines, replicas):
        """Wait until the last count of every word is at least the expected one."""
        expected = expected_counts(lines)

        def complete():
            for replica in replicas:
                assert replica.process is None or replica.process.poll() in (None, -signal.SIGKILL), replica.log()[
                    -4000:
                ]
            last = last_counts(self.kafka, self.sink, partitions=PARTITIONS)
            return all(last.get(word, 0) >= count for word, count in expected.items())

        try:
            wait_until(complete, "all words counted")
        except AssertionError as error:
            logs = "\n".join(f"--- {replica.name}\n{replica.log()[-6000:]}" for replica in replicas)
            last = last_counts(self.kafka, self.sink, partitions=PARTITIONS)
            missing = {word: (count, last.get(word)) for word, count in expected.items() if last.get(word, 0) < count}
            raise AssertionError(f"{error}; missing {dict(list(missing.items())[:5])}\n{logs}") from None

    def assert_exact(self, lines):
        """Check that every word was counted 1, 2, 3 … without gaps or repetitions."""
        found = self.counts_by_word()
        expected = expected_counts(lines)
        wrong = {
            word: (count, found[word][-3:])
            for word, count in expected.items()
            if found[word] != list(range(1, count + 1))
        }
        assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_kills_and_a_broker_restart(own_kafka, tmp_path, guarantee):
    """Replicas are killed repeatedly, and once all of them and the broker: exactly-once is exact, at-least-once loses nothing.

    The broker dies a moment after the replicas, when no transaction is being committed, and is back before one times out: the
    coordinator skips the markers of partitions without a leader (seen with 4.3.1), and a partition with one replica has none
    while its broker stops, nor at first when it starts.
    """
    words = Words(own_kafka())
    timeouts = {"producer_transaction_timeout_ms": 120_000}
    replicas = [words.replica(tmp_path, name, guarantee, group_instance_id=name, **timeouts) for name in ("one", "two")]
    for replica in replicas:
        replica.start()
    chance = random.Random(guarantee)
    with words.fed(replicas) as feeder:
        for strike in range(6):
            victim = replicas[strike % 2]
            wait_until(
                lambda: victim.status().get("state") == "RUNNING",  # noqa: B023
                lambda: f"{victim.name} runs: {victim.log()[-3000:]}",  # noqa: B023
            )
            threading.Event().wait(chance.uniform(0.2, 1.0))
            victims = replicas if strike == 3 else [victim]
            for replica in victims:
                replica.kill()
            if strike == 3:
                threading.Event().wait(2)
                words.kafka.kill()
                words.kafka.restart_broker()
            for replica in victims:
                replica.start()
        lines = feeder.stop()
        words.wait_for_counts(lines, replicas)
        if guarantee == "exactly_once_v2":
            words.assert_exact(lines)
        assert [replica.stop() for replica in replicas] == [0, 0]
    changelog = last_counts(words.kafka, f"{words.app}-counts-changelog", partitions=PARTITIONS)
    expected = expected_counts(lines)
    if guarantee == "exactly_once_v2":
        assert changelog == expected
    else:
        assert {word for word in expected if changelog[word] < expected[word]} == set()


@pytest.mark.slow
def test_zombie_is_fenced(kafka, tmp_path):
    """A replica frozen beyond its session timeout wakes up as a zombie: it commits nothing, drops its tasks and rejoins."""
    words = Words(kafka)
    replicas = [words.replica(tmp_path, name, "exactly_once_v2", session_timeout_ms=6000) for name in ("one", "two")]
    with words.fed(replicas) as feeder:
        frozen, other = replicas
        frozen.start()
        other.start(cold="its sets have another order")
        wait_until(lambda: all(len(replica.status().get("tasks", ())) == 2 for replica in replicas), "two tasks each")
        wait_until(lambda: all(replica.records() > 100 for replica in replicas), "both count")
        frozen.signal(signal.SIGSTOP)
        wait_until(
            lambda: len(other.status()["tasks"]) == 4 and other.status()["state"] == "RUNNING", "tasks taken over", 90
        )
        processed = other.records()
        wait_until(lambda: other.records() > processed + 200, "the other goes on")
        frozen.signal(signal.SIGCONT)
        wait_until(lambda: len(other.status()["tasks"]) == 2, lambda: f"the zombie back: {frozen.log()[-3000:]}")
        lines = feeder.stop()
        words.wait_for_counts(lines, replicas)
        words.assert_exact(lines)
        assert [replica.stop() for replica in replicas] == [0, 0]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_brokers_restarted_one_after_the_other(own_kafka, tmp_path, guarantee):
    """All brokers are restarted in turn under load, as in an upgrade: exactly-once stays exact, at-least-once loses nothing."""
    words = Words(own_kafka(3))
    replica = words.replica(tmp_path, "one", guarantee).start()
    with words.fed([replica]) as feeder:
        for broker in words.kafka.broker_ids:
            seen = replica.records()
            wait_until(lambda: replica.records() > seen + 100, lambda: f"counts: {replica.log()[-3000:]}")  # noqa: B023
            words.kafka.restart_broker(broker)
        lines = feeder.stop()
        words.wait_for_counts(lines, [replica])
        if guarantee == "exactly_once_v2":
            words.assert_exact(lines)
        assert replica.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_outage_longer_than_records_may_wait(breakable_kafka, tmp_path, guarantee):
    """Brokers are silent for longer than the transaction and delivery timeouts: instances wait, and then continue."""
    words = Words(breakable_kafka)
    timeouts = {"producer_transaction_timeout_ms": 3000, "producer_delivery_timeout_ms": 3000}
    replica = words.replica(tmp_path, "one", guarantee, **timeouts).start()
    with words.fed([replica]) as feeder:
        wait_until(lambda: replica.records() > 100, lambda: f"counts: {replica.log()[-3000:]}")
        breakable_kafka.pause()
        threading.Event().wait(5.0)
        breakable_kafka.resume()
        lines = feeder.stop()
        words.wait_for_counts(lines, [replica])
        if guarantee == "exactly_once_v2":
            words.assert_exact(lines)
        assert replica.stop() == 0


def test_truncated_changelog_is_restored_from_its_beginning(kafka, topic_factory, app, tmp_path, caplog):
    """A store whose offset is no longer in its changelog is wiped and restored from what the changelog still has."""
    source, sink = topic_factory("in"), topic_factory("out")
    topology = word_count(source, sink, log_config={"cleanup.policy": "compact,delete"})
    here, elsewhere = (settings(kafka, app, tmp_path / name) for name in ("here", "elsewhere"))
    for config, expected in ((here, 10), (elsewhere, 20)):
        produce(kafka, source, ["word"] * 10)
        with running(topology, config):
            wait_until(lambda: last_counts(kafka, sink).get("word") == expected, "counted")  # noqa: B023
    changelog = f"{app}-counts-changelog"
    admin = kafka.admin()
    for future in admin.delete_records([TopicPartition(changelog, 0, 15)]).values():
        future.result(PATIENCE_S)
    with caplog.at_level(logging.WARNING), running(topology, here):
        produce(kafka, source, ["word"])
        wait_until(lambda: last_counts(kafka, sink).get("word") == 21, "counted from the restored state")
    assert "wiped and restored from the beginning" in caplog.text


def test_recreated_changelog_is_noticed(kafka, topic_factory, app, tmp_path, caplog):
    """If the changelog ends before the store's offset (it was deleted and recreated), the store is wiped."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, app, tmp_path)
    produce(kafka, source, ["word"] * 10)
    with running(word_count(source, sink), config):
        wait_until(lambda: last_counts(kafka, sink).get("word") == 10, "counted")
    admin, changelog = kafka.admin(), f"{app}-counts-changelog"
    admin.delete_topics([changelog])[changelog].result(PATIENCE_S)
    wait_until(lambda: changelog not in admin.list_topics(timeout=PATIENCE_S).topics, "deleted")
    with caplog.at_level(logging.WARNING), running(word_count(source, sink), config):
        produce(kafka, source, ["word"])
        wait_until(lambda: last_counts(kafka, sink).get("word") == 1, "counted from nothing")
    assert "wiped and restored from the beginning" in caplog.text


def test_restoration_resumes_after_a_crash(kafka, topic_factory, app, tmp_path):
    """What an interrupted restoration wrote is on disk, and the next run restores only the rest."""
    from millrace.instance import KafkaStreams, State

    source, sink = topic_factory("in"), topic_factory("out")
    lines = [f"w{number}" for number in range(5000)]
    produce(kafka, source, lines)
    with running(word_count(source, sink), settings(kafka, app, tmp_path / "first")) as streams:
        wait_until(lambda: streams.status().processing.records >= 5000, "counted")
    config = settings(kafka, app, tmp_path / "second", uncommitted_max_bytes=1)
    starts = []

    class Listener:
        def __init__(self, block):
            self.block = block
            self.batches = threading.Semaphore(0)

        def on_restore_start(self, partition, store, start_offset, end_offset):
            starts.append((start_offset, end_offset))

        def on_batch_restored(self, *_):
            self.batches.release()
            if self.block is not None:
                self.block.wait(PATIENCE_S)

        def on_restore_end(self, *_):
            pass

        on_restore_suspended = on_restore_end

    gate = threading.Event()
    listener = Listener(gate)
    streams = KafkaStreams(word_count(source, sink), config)
    streams.set_restore_listener(listener)
    streams.start()
    assert listener.batches.acquire(timeout=PATIENCE_S)
    streams.close(0)
    gate.set()
    assert streams.wait(PATIENCE_S)
    again = KafkaStreams(word_count(source, sink), config)
    again.set_restore_listener(Listener(None))
    with again:
        wait_until(lambda: again.state is State.RUNNING, "RUNNING")
    assert starts[0] == (0, 5000)
    assert len(starts) == 1 or 0 < starts[1][0] <= 5000


def test_state_is_marked_as_used_while_its_task_runs(kafka, topic_factory, tmp_path):
    """After a crash, directories have the time of their last use, although stores only write below them."""
    source, sink, application = topic_factory("in"), topic_factory("out"), f"app-{secrets.token_hex(4)}"
    config = settings(kafka, application, tmp_path) | {"state.cleanup.dir.max.age.ms": 4_000}
    with running(word_count(source, sink), config):
        path = tmp_path / application / "0_0"
        long_ago = path.stat().st_mtime - 1_000
        os.utime(path, (long_ago, long_ago))
        wait_until(lambda: path.stat().st_mtime > long_ago + 900, "marked as used")
