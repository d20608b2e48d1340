"""Applications with `group.protocol=streams` (KIP-1071): brokers assign the tasks and create the internal topics."""

from __future__ import annotations

import re

import pytest
from tests.instance.support import (
    TEXT,
    Replica,
    expected_counts,
    last_counts,
    produce,
    read_all,
    running,
    settings,
    two_step_word_count,
    word_count,
)
from tests.kafka.support import set_group
from tests.waiting import PATIENCE_S, wait_until

from millrace.config import StreamsConfig
from millrace.errors import ConfigError, MissingSourceTopicError, TopologyError, UnsupportedFeatureError
from millrace.instance import KafkaStreams
from millrace.instance.states import State, UncaughtExceptionResponse
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin
from millrace.processor.api import Processor
from millrace.topology import Topology

pytestmark = pytest.mark.broker


def running_tasks(streams):
    """Return the ids of an instance's running tasks."""
    return sorted(str(task.id) for task in streams.status().tasks if task.state == "RUNNING")


def standbys(streams):
    """Return how many standbys an instance has."""
    return sum(len(thread.standby_tasks) for thread in streams.metadata_for_local_threads())


def hosts(streams):
    """Return how many active and standby partitions each instance has, as known to one of them."""
    return {
        str(one.host_info): (len(one.topic_partitions), len(one.standby_topic_partitions))
        for one in streams.metadata_for_all_streams_clients()
    }


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_tasks_move_with_nothing_lost_or_repeated(kafka, topic_factory, app, tmp_path, guarantee):
    """While a second instance joins and leaves again, every word is counted once."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=1)
    config = settings(kafka, app, tmp_path / "a", group_protocol="streams", processing_guarantee=guarantee)
    lines = ["a b", "b c d"] * 50
    with running(two_step_word_count(source, sink), config) as first:
        wait_until(lambda: len(running_tasks(first)) == 4, "all tasks")
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines), "counted")
        other = settings(kafka, app, tmp_path / "b", group_protocol="streams", processing_guarantee=guarantee)
        with running(two_step_word_count(source, sink), other) as second:
            produce(kafka, source, lines, partitions=2)
            wait_until(lambda: len(running_tasks(first)) == len(running_tasks(second)) == 2, "two tasks each")
            produce(kafka, source, lines, partitions=2)
            wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines * 3), "counted")
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines * 4), "counted")
        assert len(running_tasks(first)) == 4
        assert len(read_all(kafka, sink)) == 4 * 50 * 5


def test_a_killed_instance_is_replaced(kafka, topic_factory, app, tmp_path):
    """When the session of a killed process has ended, the other takes over; under exactly-once every word is counted once."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out")
    common = {
        "group_protocol": "streams",
        "processing_guarantee": "exactly_once_v2",
        "producer_transaction_timeout_ms": 3000,
    }
    set_group(settings(kafka, app, tmp_path), {"streams.session.timeout.ms": "3000"})
    lines = ["a b", "c d e"] * 50
    with running(word_count(source, sink), settings(kafka, app, tmp_path / "a", **common)) as streams:
        other = Replica(settings(kafka, app, tmp_path / "b", **common), source, sink, tmp_path, "b").start()
        try:
            wait_until(lambda: len(running_tasks(streams)) == 1 and other.status().get("state") == "RUNNING", other.log)
            produce(kafka, source, lines, partitions=2)
            wait_until(lambda: other.records() > 0, other.log)
        finally:
            other.kill()
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines * 2), "counted")
        assert running_tasks(streams) == ["0_0", "0_1"]


class FailOnBad(Processor):
    """Raises an error at the record "bad"."""

    def process(self, record):
        """Raise or forward."""
        if record.value == "bad":
            raise RuntimeError("broken")
        self.context.forward(record)


def test_a_request_to_stop_the_application_ends_every_instance(kafka, topic_factory, app, tmp_path):
    """SHUTDOWN_APPLICATION reaches the other instances through the group's coordinator."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out")

    def instance(name):
        topology = Topology().add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        topology.add_processor("check", FailOnBad, "in").add_sink(
            "out", sink, "check", key_serde=TEXT, value_serde=TEXT
        )
        streams = KafkaStreams(topology, settings(kafka, app, tmp_path / name, group_protocol="streams"))
        streams.set_uncaught_exception_handler(lambda _: UncaughtExceptionResponse.SHUTDOWN_APPLICATION)
        streams.start()
        return streams

    instances = [instance("a"), instance("b")]
    try:
        wait_until(lambda: all(len(running_tasks(streams)) == 1 for streams in instances), "a task each")
        produce(kafka, source, ["bad"], partitions=2)
        wait_until(lambda: all(streams.state is State.ERROR for streams in instances), lambda: str(instances))
    finally:
        for streams in instances:
            streams.close(30)
    assert sorted("whole application" in str(streams.error) for streams in instances) == [False, True]


def test_a_missing_input_topic_is_found_at_the_start(kafka, app, tmp_path):
    """As with the classic protocol, input topics are checked before anything starts."""
    streams = KafkaStreams(word_count("nowhere", "out"), settings(kafka, app, tmp_path, group_protocol="streams"))
    with pytest.raises(MissingSourceTopicError, match="nowhere"):
        streams.start()


def test_an_input_topic_that_disappears_ends_the_instance(kafka, topic_factory, app, tmp_path):
    """The coordinator reports the missing topic; after two heartbeat intervals the instance ends with its name."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = settings(kafka, app, tmp_path, group_protocol="streams", application_server="here:80")
    with running(word_count(source, sink), config) as streams:
        admin = kafka.admin()
        admin.delete_topics([source])[source].result(PATIENCE_S)
        wait_until(lambda: streams.error is not None, "an error")
        assert source in str(streams.error)


def test_a_changed_topology_needs_another_group(kafka, topic_factory, app, tmp_path):
    """A group keeps its topology, so a program with another one ends with advice, and does not disturb the others."""
    source, sink = topic_factory("in"), topic_factory("out")
    with running(word_count(source, sink), settings(kafka, app, tmp_path / "a", group_protocol="streams")) as streams:
        other = KafkaStreams(
            two_step_word_count(source, sink), settings(kafka, app, tmp_path / "b", group_protocol="streams")
        )
        other.start()
        wait_until(lambda: other.error is not None, "an error")
        other.close(30)
        assert isinstance(other.error, TopologyError)
        assert streams.state is State.RUNNING


def test_a_standby_takes_over(kafka, topic_factory, app, tmp_path):
    """With streams.num.standby.replicas=1 the state is on both instances, and all of them know where."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out")

    def config(name):
        return settings(kafka, app, tmp_path / name, group_protocol="streams", application_server=f"{name}:80")

    set_group(config("a"), {"streams.num.standby.replicas": "1"})
    lines = ["a b", "c d e"] * 50
    with running(word_count(source, sink), config("a")) as first:
        with running(word_count(source, sink), config("b")) as second:
            wait_until(lambda: standbys(first) == standbys(second) == 1, "a standby each")
            produce(kafka, source, lines, partitions=2)
            wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines), "counted")
            wait_until(
                lambda: hosts(first) == hosts(second) == {"a:80": (1, 1), "b:80": (1, 1)}, lambda: str(hosts(first))
            )
        wait_until(lambda: running_tasks(first) == ["0_0", "0_1"], "all tasks")
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines * 2), "counted")


@pytest.mark.parametrize("leave_group", [None, True, False])
def test_closing_leaves_the_group_unless_asked_not_to(kafka, topic_factory, app, tmp_path, leave_group):
    """A member that remains (KIP-1153) keeps its tasks until its session ends."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out")
    topology = word_count(source, sink)

    def config(name):
        return settings(kafka, app, tmp_path / name, group_protocol="streams")

    with running(topology, config("a")) as first, running(topology, config("b")) as second:
        wait_until(lambda: len(running_tasks(first)) == len(running_tasks(second)) == 1, "a task each")
        with GroupAdmin(ClientSettings(StreamsConfig.of(config("a")), "admin")) as admin:
            assert len(admin.members()) == 2
            assert second.close(60, leave_group=leave_group)
            assert len(admin.members()) == (2 if leave_group is False else 1)
        if leave_group is not False:
            wait_until(lambda: len(running_tasks(first)) == 2, "both tasks")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"group.instance.id": "pod-0"}, r"group\.instance\.id"),
        ({"consumer.group.instance.id": "pod-0"}, r"group\.instance\.id"),
        ({"num.standby.replicas": 2}, r"streams\.num\.standby\.replicas=2"),
        ({"task.assignor.class": "sticky"}, r"task\.assignor\.class"),
        ({"application.server": "here"}, r"application\.server"),
    ],
)
def test_what_brokers_do_not_serve_is_refused(app, tmp_path, setting, says):
    """Settings that only the classic protocol follows are refused by name before anything starts."""
    config = settings("127.0.0.1:9", app, tmp_path, group_protocol="streams")
    with pytest.raises(ConfigError, match=says):
        KafkaStreams(word_count("in", "out"), config | setting)


def test_input_topics_by_pattern_are_refused(kafka, app, tmp_path):
    """Brokers do not assign topics that are read by a pattern."""
    topology = Topology().add_source("in", pattern=re.compile("in-.*")).add_sink("out", "out", "in")
    streams = KafkaStreams(topology, settings(kafka, app, tmp_path, group_protocol="streams"))
    with pytest.raises(UnsupportedFeatureError, match="pattern"):
        streams.start()
