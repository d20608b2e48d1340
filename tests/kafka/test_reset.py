"""Resetting an application on a real broker."""

from __future__ import annotations

import secrets

import pytest
from confluent_kafka import Producer
from tests.instance.support import expected_counts, last_counts, produce, running, settings, two_step_word_count
from tests.kafka.support import Group
from tests.waiting import PATIENCE_S, wait_until

from millrace.config import StreamsConfig
from millrace.errors import ActiveGroupError, BrokerUnreachableError
from millrace.kafka.admin import all_topic_partitions
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.connection_check import check_connection
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.resetter import Resetter
from millrace.plan.reset import (
    OffsetTarget,
    Start,
)
from millrace.records import TopicPartition


def config_of(kafka, application_id):
    """Return an application's settings."""
    return StreamsConfig.of({"application.id": application_id, "bootstrap.servers": kafka.bootstrap_servers})


def write(kafka, topic, timestamps):
    """Produce a record for each timestamp to the first partition."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for timestamp in timestamps:
        producer.produce(topic, b"x", partition=0, timestamp=timestamp)
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.broker
def test_a_group_with_members_is_not_reset(kafka, topic_factory):
    """A reset is planned only after all members have left the group."""
    group = Group(kafka.bootstrap_servers, topic_factory("in", partitions=2), 2)
    group.join("a")
    group.settle()
    with Resetter(config_of(kafka, group.application_id)) as resetter:
        with pytest.raises(ActiveGroupError, match=f"{group.application_id}-a-StreamThread-1-consumer"):
            resetter.plan()
        group.close()
        assert resetter.plan().remove_members == ()


@pytest.mark.broker
def test_a_member_that_joins_after_planning_stops_the_reset(kafka, topic_factory):
    """A member that joins after the observation is noticed before anything is changed."""
    topic = topic_factory("in", partitions=2)
    group = Group(kafka.bootstrap_servers, topic, 2)
    with Resetter(config_of(kafka, group.application_id)) as resetter:
        actions = resetter.plan(inputs=[topic])
        group.join("a")
        group.settle()
        with pytest.raises(ActiveGroupError, match="nothing has been deleted"):
            resetter.execute(actions)
        group.close()


@pytest.mark.broker
def test_force_removes_members_that_were_killed(kafka, topic_factory):
    """A static member that ended without leaving stays in the group until its session times out, unless it is removed."""
    topic = topic_factory("in", partitions=2)
    group = Group(kafka.bootstrap_servers, topic, 2, **{"session.timeout.ms": 45000})
    member = group.join("a", **{"group.instance.id": "pod-0"})
    group.settle()
    member.close(leave_group=False)
    with Resetter(config_of(kafka, group.application_id)) as resetter:
        with pytest.raises(ActiveGroupError, match="static pod-0-1"):
            resetter.plan()
        actions = resetter.plan(force=True, inputs=[topic])
        resetter.execute(actions)
        assert resetter.plan().remove_members == ()


@pytest.mark.broker
def test_offsets_are_set(kafka, topic_factory):
    """Offsets can be set to first, last or timed records, also of a group that never existed; committed ones can be shifted."""
    topic = topic_factory("in", config={"retention.ms": "-1"})  # the records are old enough to be deleted
    write(kafka, topic, [1000, 2000, 3000, 4000])
    config = config_of(kafka, f"app-{secrets.token_hex(4)}")
    partition = TopicPartition(topic, 0)
    with Resetter(config) as resetter, GroupAdmin(ClientSettings(config, "test")) as group:
        for target, expected in (
            (OffsetTarget(Start.LATEST), 4),
            (OffsetTarget(Start.SHIFT, -1), 3),
            (OffsetTarget(Start.TIMESTAMP_MS, 1500), 1),
            (OffsetTarget(Start.TIMESTAMP_MS, 9000), 4),
            (OffsetTarget(Start.OFFSET, 2), 2),
            (OffsetTarget(), 0),
        ):
            resetter.execute(resetter.plan(target=target, inputs=[topic]))
            assert group.committed() == {partition: expected}


@pytest.mark.broker
def test_unreachable_brokers(monkeypatch):
    """The error for brokers that do not answer names them at once."""
    monkeypatch.setattr(check_connection, "__defaults__", (1.0,))
    config = StreamsConfig.of({"application.id": "a", "bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(BrokerUnreachableError, match=r"127\.0\.0\.1:1"):
        Resetter(config)


@pytest.mark.broker
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_application_counts_from_scratch_after_a_reset(kafka, topic_factory, tmp_path, guarantee):
    """After a reset the same input gives the same counts, none of them doubled; planning alone changes nothing."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=2)
    again = topic_factory("again", partitions=2)
    app = f"app-{secrets.token_hex(4)}"
    lines = [f"alpha beta w{n % 17}" for n in range(120)]
    produce(kafka, source, lines, partitions=2)
    config = settings(kafka, app, tmp_path / "1", processing_guarantee=guarantee)
    with running(two_step_word_count(source, sink), config) as streams:
        wait_until(lambda: streams.status().processing.records >= 120 + 360, "all words counted")
    plan = two_step_word_count(source, again).build(StreamsConfig.of(config)).plan()
    admin = kafka.admin()
    internal = {topic for topic in all_topic_partitions(admin) if topic.startswith(app)}
    assert len(internal) == 2
    with (
        Resetter(StreamsConfig.of(config)) as resetter,
        GroupAdmin(ClientSettings(StreamsConfig.of(config), "test")) as group,
    ):
        before = group.committed()
        actions = resetter.plan(plan)
        assert set(actions.delete_topics) == internal
        assert group.committed() == before
        assert internal <= all_topic_partitions(admin).keys()
        resetter.execute(actions)
        wait_until(lambda: set(group.committed()) == set(actions.set_offsets), "only input offsets are left")
        assert set(group.committed().values()) == {0}
        assert not internal & all_topic_partitions(admin).keys()
    config = settings(kafka, app, tmp_path / "2", processing_guarantee=guarantee)
    with running(two_step_word_count(source, again), config) as streams:
        wait_until(lambda: streams.status().processing.records >= 120 + 360, "all words counted again")
    assert last_counts(kafka, again, partitions=2) == expected_counts(lines)
