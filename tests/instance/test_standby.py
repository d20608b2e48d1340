"""Standby tasks on a real broker: what they hold, how they take over, and what they never do."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from tests.instance.support import (
    GUARANTEES,
    CountWords,
    HeldAtStart,
    Instance,
    Replica,
    Restored,
    Updated,
    expected_counts,
    last_counts,
    own_settings,
    produce,
    replicated,
    same_counts,
    settings,
    word_count,
    words,
)
from tests.waiting import PATIENCE_S, wait_until

from millrace import StreamsBuilder
from millrace.config import StreamsConfig
from millrace.dsl import Consumed
from millrace.engine.task import StreamTask
from millrace.errors import TaskMigratedError
from millrace.instance import SuspendReason
from millrace.instance.changelog_reader import AddedTask, ChangelogReader
from millrace.instance.offset_sums import stored_offset_sum
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import open_admin, open_consumer
from millrace.records import TaskId, TopicPartition
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.testing.output_collector import CapturingCollector
from millrace.topology import Topology

pytestmark = pytest.mark.broker


def committed_at_ms(replica):
    """Return when everything that a replica had processed was last committed."""
    status = replica.status()
    return status["time_ms"] - status["threads"][0]["commit_age_ms"]


def told_of(instance, records, partition=None):
    """Return whether a standby's listener was told of so many records, which it is once they are in the store."""
    return sum(each[4] for each in instance.updated.batches if partition in (None, each[0])) == records


def no_lag(instance, store):
    """Return whether both partitions of a store have reached the ends of their changelogs."""
    lags = instance.streams.all_local_store_partition_lags()[store]
    return [lags[number].offset_lag for number in (0, 1)] == [0, 0]


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
            wait_until(partial(told_of, other, 100, partition), "the listener is told of all")
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
        seen = wait_until(lambda: killed.records() == len(lines) and killed.status()["time_ms"], "processed")
        wait_until(lambda: committed_at_ms(killed) > seen, "committed")
        killed.kill()
        wait_until(lambda: other.tasks("active"), "taken over")
        assert other.manager.running[TaskId(0, 0)].stores["counts"] is store
        assert other.restored.records.total() == 0
        assert other.updated.suspended[-1][3] is SuspendReason.PROMOTED
        produce(kafka, source, lines)
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines + lines), "counted")


@pytest.mark.parametrize(("guarantee", "persistent"), [("at_least_once", True), ("exactly_once_v2", False)])
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


def test_a_standby_of_a_source_topic_stops_at_the_committed_offset(kafka, topic_factory, tmp_path, app):
    """What the active task has not committed is not in the standby, as it would be applied twice after a take-over."""
    source = topic_factory("in")
    topology = table_topology(source)

    def config(name, **others):
        return replicated(kafka, app, tmp_path / name, topology_optimization="all", **others)

    with ExitStack() as stack:
        active = Instance(stack, topology, config("a", commit_interval_ms=600_000)).running()
        standby = Instance(stack, topology, config("b"))
        wait_until(lambda: standby.tasks("standby"), "a standby")
        position = partial(standby.position, TopicPartition(source, 0))

        def commit():
            active.streams.threads[0]._loop._last_commit -= 3600

        produce_pairs(kafka, source, [("a", "1")] * 10)
        wait_until(lambda: active.streams.status().processing.records == 10, "processed")
        commit()
        wait_until(lambda: position() == 10, "followed to the commit")
        produce_pairs(kafka, source, [("b", "1")] * 5)
        wait_until(lambda: active.streams.status().processing.records == 15, "processed")
        asked = []
        ask = standby.manager._limits._member.ask_committed
        standby.manager._limits._member.ask_committed = lambda partitions: asked.append(partitions) or ask(partitions)
        wait_until(lambda: len(asked) > 1, "a request for committed offsets was answered")
        assert position() == 10
        assert standby.streams.all_local_store_partition_lags()["table"][0].offset_lag == 5
        commit()
        wait_until(lambda: position() == 15, "followed to the next commit")


def table_topology(source):
    """Return a table whose store is restored from its source topic if the topology is optimised."""
    builder = StreamsBuilder()
    builder.table(source, "table", consumed=Consumed.with_(Serdes.string(), Serdes.string()))
    return builder.build({"application.id": "app", "topology.optimization": "all"})


def produce_pairs(kafka, topic, pairs):
    """Write pairs of key and value to the first partition of a topic."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for key, value in pairs:
        producer.produce(topic, value, key, 0)
    assert producer.flush(PATIENCE_S) == 0


def test_a_restarted_instance_adopts_its_stores_from_disk(kafka, topic_factory, tmp_path, app):
    """Stores on disk count in full when a member joins, so that an instance that returns gets its tasks without a warm-up."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)
    topology, lines = word_count(source, sink), words(100)
    config = StreamsConfig.of(settings(kafka, app, tmp_path, acceptable_recovery_lag=0))
    with ExitStack() as stack:
        Instance(stack, topology, config).running()
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, sink, partitions=2) == expected_counts(lines), "counted")
    tasks = [TaskId(0, 0), TaskId(0, 1)]
    built = topology.build(config)
    assert [stored_offset_sum(built, each, tmp_path / app / str(each)) for each in tasks] == [50, 50]
    with ExitStack() as stack:
        again = Instance(stack, topology, config).running()
        assert again.restored.records.total() == 0
        assert again.tasks("active") == {"0_0", "0_1"}


def test_a_task_moves_once_its_warm_up_has_caught_up(kafka, topic_factory, tmp_path, app):
    """A new instance gets a warm-up copy first; the task runs where its state is until a probing rebalance."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)
    topology, lines = word_count(source, sink), words(200)

    def config(name):
        given = own_settings(kafka, app, tmp_path / name, acceptable_recovery_lag=0)
        return StreamsConfig.of(given).model_copy(update={"probing_rebalance_interval_ms": 500})

    with ExitStack() as stack:
        old = Instance(stack, topology, config("a")).running()
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, sink, partitions=2) == expected_counts(lines), "counted")
        held = HeldAtStart()
        new = Instance(stack, topology, config("b"), held)
        stack.callback(held.go_on.set)
        wait_until(lambda: new.updated.starts, "a warm-up")
        assert old.tasks("active") == {"0_0", "0_1"}
        assert new.tasks("active") == set()
        held.go_on.set()
        wait_until(lambda: len(new.tasks("active")) == len(old.tasks("active")) == 1, "the task moves")
        assert new.restored.records.total() == 0
        assert sum(each[4] for each in new.updated.batches) == 100
        assert new.updated.suspended[-1][3] is SuspendReason.PROMOTED
        generation = new.streams.status().group.generation
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, sink, partitions=2) == expected_counts(lines * 2), "counted")
        wait_until(lambda: not old.tasks("standby"), "no copy is left behind")
        assert new.streams.status().group.generation - generation <= 2, "probing ends when the group is balanced"


def test_a_paused_instance_does_not_update_its_standbys(kafka, topic_factory, tmp_path, app):
    """KIP-834 stops standbys too; they continue where they were."""
    source, sink = topic_factory("in"), topic_factory("out")
    topology, lines = word_count(source, sink), words(50)
    with ExitStack() as stack:
        active = Instance(stack, topology, replicated(kafka, app, tmp_path / "a")).running()
        standby = Instance(stack, topology, replicated(kafka, app, tmp_path / "b"))
        wait_until(lambda: standby.tasks("standby") and standby.updated.starts, "a standby")
        standby.streams.pause()
        updater = standby.streams.threads[0].resources.updater
        none = SimpleNamespace(task_id=TaskId(9, 0))
        assert updater.remove(none).result(PATIENCE_S) is None, "answered once a read that had begun has ended"
        produce(kafka, source, lines)
        wait_until(lambda: active.counts("0_0") == expected_counts(lines), "counted")
        assert standby.updated.batches == []
        standby.streams.resume()
        wait_until(lambda: same_counts(active, standby, "0_0"), "caught up")
        wait_until(lambda: told_of(standby, 50), "the listener is told of all")


def test_hosts_are_known_with_their_active_and_standby_stores(kafka, topic_factory, tmp_path, app):
    """Every instance knows which instance has which stores and input partitions (`application.server`)."""
    source, sink = topic_factory("in"), topic_factory("out")
    topology = word_count(source, sink)
    with ExitStack() as stack:
        instances = [
            Instance(stack, topology, replicated(kafka, app, tmp_path / name, application_server=f"{name}:80"))
            for name in "ab"
        ]
        spread = [["active"], ["standby"]]

        def roles():
            return sorted([role for role in ("active", "standby") if each.tasks(role)] for each in instances)

        wait_until(lambda: roles() == spread, "an active task and a standby")
        partitions = frozenset({TopicPartition(source, 0)})
        for each in instances:
            known = wait_until(partial(every_host, each, 2), "both hosts")
            both = {
                (
                    one.state_store_names,
                    one.topic_partitions,
                    one.standby_state_store_names,
                    one.standby_topic_partitions,
                )
                for one in known
            }
            assert both == {
                (frozenset({"counts"}), partitions, frozenset(), frozenset()),
                (frozenset(), frozenset(), frozenset({"counts"}), partitions),
            }
            assert each.streams.streams_metadata_for_store("counts") == known
            assert each.streams.streams_metadata_for_store("other") == ()


def every_host(instance, count):
    """Return the hosts that an instance knows, once there are so many."""
    known = instance.streams.metadata_for_all_streams_clients()
    return known if len(known) == count else ()


def test_standbys_wait_for_active_tasks(kafka, topic_factory, tmp_path, app):
    """As long as a task is being restored nothing is read for standbys, and afterwards all that they missed."""
    changelog = f"{app}-counts-changelog"
    kafka.create_topics(changelog, partitions=2)
    for partition, count in ((0, 10), (1, 5_000)):
        write_counts(kafka, TopicPartition(changelog, partition), count)
    config = StreamsConfig.of(settings(kafka, app, tmp_path))
    clients = ClientSettings(config, "test")
    updated, restored = Updated(), Restored()
    reader = ChangelogReader(
        lambda: open_consumer(clients.restore_consumer(1)), open_admin(clients.admin()), config, restored, updated
    )
    [subtopology] = word_count("in", "out").build(config).subtopologies
    tasks = [
        StreamTask(
            TaskId(0, number),
            subtopology,
            config,
            CapturingCollector(),
            state_dir=tmp_path / f"0_{number}",
            cache=None,
            clock=lambda: 0,
            input_partitions=frozenset({TopicPartition("in", number)}),
        )
        for number in (0, 1)
    ]
    with ExitStack() as stack:
        stack.callback(reader.close)
        for task in tasks:
            task.open_stores()
            stack.callback(task.close_dirty)
        reader.begin([AddedTask(tasks[0], {}, standby=True), AddedTask(tasks[1], {}, standby=False)])
        wait_until(lambda: len(reader.changelogs) == 2, "the offsets are known", meanwhile=reader.take_offsets)
        wait_until(lambda: reader.restored, "restored", meanwhile=reader.read)
        assert restored.records.total() == 5_000
        assert updated.batches == []
        wait_until(lambda: sum(each[4] for each in updated.batches) == 10, "updated", meanwhile=reader.read)
        assert tasks[0].changelog_positions == {TopicPartition(changelog, 0): 10}
        assert reader.let_go(tasks[0], SuspendReason.PROMOTED)
        assert tasks[0].stores["counts"].committed_offset(TopicPartition(changelog, 0)) == 9
        assert updated.suspended == [(TopicPartition(changelog, 0), 9, 10, SuspendReason.PROMOTED)]


def write_counts(kafka, partition, count):
    """Write counts to a partition of a changelog."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for number in range(count):
        producer.produce(partition.topic, number.to_bytes(8, "big"), f"w{number}", partition.partition)
    assert producer.flush(PATIENCE_S) == 0


@GUARANTEES
def test_standbys_survive_the_loss_of_active_tasks(kafka, topic_factory, tmp_path, app, guarantee):
    """A member that was replaced drops its active tasks without a commit, but its standbys have nothing to lose."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)
    topology, lines = word_count(source, sink), words(100)
    with ExitStack() as stack:
        one, two = (
            Instance(stack, topology, replicated(kafka, app, tmp_path / name, processing_guarantee=guarantee))
            for name in "ab"
        )
        wait_until(lambda: len(one.tasks("standby")) == len(two.tasks("standby")) == 1, "spread")
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, sink, partitions=2) == expected_counts(lines), "counted")
        [copy] = (TaskId.parse(each) for each in one.tasks("standby"))
        store = one.manager.standby[copy].stores["counts"]
        committer, lost = one.manager._committer, []
        commit = committer.commit

        def migrated(_tasks):
            committer.commit = commit
            lost.append(one.streams.status().group.generation)
            raise TaskMigratedError("another member has this one's place")

        committer.commit = migrated
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: lost and one.streams.status().group.generation > lost[0], "rejoined")
        wait_until(lambda: last_counts(kafka, sink, partitions=2).keys() == expected_counts(lines).keys(), "counted")
        wait_until(lambda: len(one.tasks("active")) == len(two.tasks("active")) == 1, "spread again")
        held = {**one.manager.running, **one.manager.standby}
        assert held[copy].stores["counts"] is store
        if guarantee == "exactly_once_v2":
            wait_until(lambda: last_counts(kafka, sink, partitions=2) == expected_counts(lines * 2), "counted once")


@pytest.mark.parametrize("standby", [True, False])
@pytest.mark.parametrize("ends", ["its state is corrupted", "the reader fails"])
def test_listeners_are_told_of_the_end_of_what_they_were_told_the_beginning(
    kafka, topic_factory, tmp_path, app, standby, ends
):
    """If one of a task's stores cannot be restored or updated, the others, which have begun, are suspended."""
    source = topic_factory("in")
    builders = [
        Stores.key_value_store_builder(Stores.persistent_key_value_store(name), Serdes.string(), Serdes.long())
        for name in ("first", "second")
    ]
    topology = Topology().add_source("in", source).add_processor("count", CountWords, "in")
    for builder in builders:
        topology.add_state_store(builder, "count")
    changelogs = [TopicPartition(f"{app}-{builder.name}-changelog", 0) for builder in builders]
    for changelog in changelogs:
        kafka.create_topics(changelog.topic)
        write_counts(kafka, changelog, 10)
    config = StreamsConfig.of(settings(kafka, app, tmp_path))
    clients = ClientSettings(config, "test")
    updated, restored = Updated(), Restored()
    reader = ChangelogReader(
        lambda: open_consumer(clients.restore_consumer(1)), open_admin(clients.admin()), config, restored, updated
    )
    [subtopology] = topology.build(config).subtopologies
    task = StreamTask(
        TaskId(0, 0),
        subtopology,
        config,
        CapturingCollector(),
        state_dir=tmp_path / "0_0",
        cache=None,
        clock=lambda: 0,
        input_partitions=frozenset({TopicPartition(source, 0)}),
    )
    with ExitStack() as stack:
        stack.callback(reader.close)
        task.open_stores()
        stack.callback(task.close_dirty)
        if ends == "its state is corrupted":
            task.changelog_positions[list(task.changelogs)[1]] = 1_000
        reader.begin([AddedTask(task, {}, standby=standby)])
        wait_until(lambda: not reader.asks, "the offsets are known", meanwhile=reader.take_offsets)
        if ends == "the reader fails":
            reader.fail_all(RuntimeError("its consumer is closed"))
        [failed] = reader.failed
        assert failed.task is task
        begun = {each[0] for each in updated.starts} if standby else restored.started
        assert len(begun) == (1 if ends == "its state is corrupted" else 2)
        suspended = {each[0] for each in updated.suspended} if standby else restored.suspended
        assert suspended == begun
