"""Static members whose program reads different topics than before, while brokers return their old assignment."""

from __future__ import annotations

import secrets
from contextlib import ExitStack

import pytest
from tests.instance.support import (
    TEXT,
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

from millrace.config import StreamsConfig
from millrace.instance.health import health_warnings
from millrace.instance.membership import INPUT_TOPICS_FILE, InputTopics
from millrace.records import TaskId, TopicPartition
from millrace.topology import Topology


def tasks_of(members):
    """Return the running tasks of all members."""
    return sorted(str(task.id) for member in members for task in member.status().tasks if task.state == "RUNNING")


def settled(members, count):
    """Return whether this many tasks run, with some in each member."""
    return len(tasks_of(members)) == count and all(tasks_of([member]) for member in members)


@pytest.fixture
def run(kafka, tmp_path):
    """Return a function that starts two static members with a topology; the given stack closes them."""
    app = f"app-{secrets.token_hex(4)}"

    def start(stack, topology):
        names = ("pod-0", "pod-1")
        configs = [
            settings(kafka, app, tmp_path / name, group_instance_id=name, session_timeout_ms=45_000) for name in names
        ]
        return [stack.enter_context(running(topology(), config)) for config in configs]

    return start


@pytest.mark.broker
def test_a_topology_that_grows_gets_its_new_tasks(run, topic_factory):
    """Returning members request one rebalance, so that the new sub-topology is assigned."""
    source, other, sink = topic_factory("in", partitions=2), topic_factory("more", partitions=2), topic_factory("out")

    def grown():
        topology = word_count(source, sink).add_source("others", other, key_serde=TEXT, value_serde=TEXT)
        return topology.add_sink("copy", sink, "others", key_serde=TEXT, value_serde=TEXT)

    with ExitStack() as stack:
        members = run(stack, lambda: word_count(source, sink))
        wait_until(lambda: settled(members, 2), "a task each")
    with ExitStack() as stack:
        members = run(stack, grown)
        wait_until(lambda: tasks_of(members) == ["0_0", "0_1", "1_0", "1_1"], "the tasks of the new sub-topology")


@pytest.mark.broker
def test_a_topology_that_reads_another_topic_is_not_given_the_old_one(kafka, run, topic_factory):
    """Leftovers of the old program's assignment are ignored: no member fails, and the new program's tasks run."""
    source, sink, new_sink = topic_factory("in", partitions=2), topic_factory("out"), topic_factory("new")
    with ExitStack() as stack:
        members = run(stack, lambda: two_step_word_count(source, sink, name="words"))
        wait_until(lambda: settled(members, 4), "all tasks, some each")
    with ExitStack() as stack:
        members = run(stack, lambda: two_step_word_count(source, new_sink, name="terms"))
        lines = ["a b", "b c"] * 20
        wait_until(lambda: len(tasks_of(members)) == 4, "all tasks")
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, new_sink) == expected_counts(lines), "counted")


def two_inputs(first, second, sink, *, both):
    """Copy one topic, or two in separate sub-topologies."""
    topology = Topology()
    for number, source in enumerate([first, second] if both else [first]):
        topology.add_source(f"in-{number}", source, key_serde=TEXT, value_serde=TEXT)
        topology.add_sink(f"out-{number}", sink, f"in-{number}", key_serde=TEXT, value_serde=TEXT)
    return topology


@pytest.mark.broker
def test_a_topology_that_reads_one_topic_less_outlives_the_old_leader(kafka, topic_factory, tmp_path):
    """A follower that was assigned unknown tasks continues when the next leader takes them away."""
    first, second, sink = topic_factory("a", partitions=2), topic_factory("b", partitions=2), topic_factory("out")
    app = f"app-{secrets.token_hex(4)}"

    def member(name, *, both):
        config = settings(kafka, app, tmp_path / name, group_instance_id=name, session_timeout_ms=60_000)
        return running(two_inputs(first, second, sink, both=both), config)

    with ExitStack() as stack:
        leader = stack.enter_context(member("pod-0", both=True))
        with member("pod-1", both=True) as follower:
            wait_until(lambda: tasks_of([leader, follower]) == ["0_0", "0_1", "1_0", "1_1"], "all tasks")
            wait_until(lambda: len(tasks_of([follower])) == 2, "two each")
        follower = stack.enter_context(member("pod-1", both=False))
        assert leader.close(60, leave_group=True)
        wait_until(lambda: tasks_of([follower]) == ["0_0", "0_1"] or follower.error, "the tasks that it knows")
        produce(kafka, first, ["x", "y"], partitions=2)
        wait_until(
            lambda: {value for _, value, _ in read_all(kafka, sink)} == {b"x", b"y"} or follower.error, "both records"
        )
        assert follower.error is None


@pytest.mark.broker
def test_all_members_may_come_back_with_one_topic_less(run, topic_factory):
    """Members may return in any order: none fails, and each remaining task runs."""
    first, second, sink = topic_factory("a", partitions=2), topic_factory("b", partitions=2), topic_factory("out")
    with ExitStack() as stack:
        members = run(stack, lambda: two_inputs(first, second, sink, both=True))
        wait_until(lambda: settled(members, 4) and all(len(tasks_of([each])) == 2 for each in members), "two each")
    with ExitStack() as stack:
        members = [
            stack.enter_context(running(two_inputs(first, second, sink, both=False), each.config))
            for each in reversed(members)
        ]
        wait_until(lambda: tasks_of(members) == ["0_0", "0_1"] or any(each.error for each in members), "the tasks left")
        assert [each.error for each in members] == [None, None]


@pytest.mark.broker
def test_tasks_that_are_not_taken_are_reported(kafka, topic_factory, tmp_path):
    """While instances run different topologies, status and probes of those that refuse tasks name them; then no more."""
    first, second, sink = topic_factory("a", partitions=2), topic_factory("b", partitions=2), topic_factory("out")
    app = f"app-{secrets.token_hex(4)}"

    def member(name, *sources):
        return running(two_inputs(*sources, sink, both=True), settings(kafka, app, tmp_path / name))

    with member("old", first, second) as old:
        assert old.status().refused_tasks == ()
        with member("new", second, first) as new:
            wait_until(lambda: old.status().refused_tasks or new.status().refused_tasks, "tasks that do not fit")
            status = max(old.status(), new.status(), key=lambda each: len(each.refused_tasks))
            (warning,) = health_warnings(status)
            assert status.refused_tasks[0] in warning
            assert "another topology" in warning
        wait_until(lambda: tasks_of([old]) == ["0_0", "0_1", "1_0", "1_1"], "all tasks")
        assert old.status().refused_tasks == ()


def test_what_is_read_is_remembered(tmp_path):
    """A changed topic counts as a change, a changed processor does not; a new instance has nothing to compare with."""

    def built(*sources):
        topology = Topology()
        for source in sources:
            topology.add_source(f"from-{source}", source, key_serde=TEXT, value_serde=TEXT)
            topology.add_sink(f"to-{source}", "out", f"from-{source}")
        return topology.build(StreamsConfig.of({"application.id": "app"}))

    first = InputTopics(built("a"), tmp_path)
    assert not first.changed
    first.keep()
    assert (tmp_path / INPUT_TOPICS_FILE).exists()
    assert not InputTopics(built("a"), tmp_path).changed
    grown = InputTopics(built("a", "b"), tmp_path)
    assert grown.changed
    grown.keep()
    assert not grown.changed
    assert InputTopics(built("a"), None).changed
    assert grown.fits(TaskId(1, 0), [TopicPartition("b", 0)])
    assert not grown.fits(TaskId(1, 0), [TopicPartition("a", 0)])
    assert not grown.fits(TaskId(2, 0), [TopicPartition("b", 0)])
