"""What a reset does: worked out from what is observed, and done on a real broker."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from tests.kafka.support import Group
from tests.runtime.support import (
    expected_counts,
    last_counts,
    produce,
    running,
    settings,
    two_step_word_count,
    wait_until,
)

from millrace.config import StreamsConfig
from millrace.errors import ActiveGroupError, BrokerUnreachableError
from millrace.kafka.admin import all_topic_partitions
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.resetter import Resetter
from millrace.plan.model import PlannedChangelogTopic, PlannedRepartitionTopic, PlannedSubtopology, TopologyPlan
from millrace.plan.reset import (
    ActiveMember,
    ObservedApplication,
    OffsetTarget,
    Start,
    input_topics,
    internal_topics,
    looks_internal,
    plan_reset,
)
from millrace.records import TopicPartition

PLAN = TopologyPlan(
    application_id="app",
    hash="0",
    subtopologies=(
        PlannedSubtopology(
            id=0, source_topics=("in",), source_patterns=("logs-.*",), sink_topics=("app-w-repartition",)
        ),
        PlannedSubtopology(
            id=1,
            source_topics=("app-w-repartition",),
            repartition_topics=(PlannedRepartitionTopic(name="app-w-repartition"),),
            changelog_topics=(PlannedChangelogTopic(name="app-counts-changelog"),),
        ),
    ),
)
TOPICS = {
    "in": 2,
    "logs-a": 1,
    "out": 1,
    "app-w-repartition": 2,
    "app-counts-changelog": 2,
    "app-old-changelog": 2,
    "app-eu-x-changelog": 1,
}
IN = [TopicPartition("in", 0), TopicPartition("in", 1)]
SEEN = ObservedApplication(
    topics=TOPICS,
    groups=frozenset({"app", "app-eu", "other"}),
    committed={IN[0]: 50, TopicPartition("app-w-repartition", 0): 7},
    earliest={IN[0]: 10, IN[1]: 0},
    latest={IN[0]: 60, IN[1]: 5},
    at_time={IN[0]: 33, IN[1]: 5},
)


@pytest.mark.parametrize(
    ("name", "internal"),
    [
        ("app-KSTREAM-AGGREGATE-STATE-STORE-0000000003-changelog", True),
        ("app-words-repartition", True),
        ("app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic", True),
        ("app-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic", True),
        ("app-join-subscription-response-topic", True),
        ("application-words-repartition", False),
        ("app-orders", False),
        ("app-changelog-copy", False),
    ],
)
def test_internal_topics_are_known_by_name(name, internal):
    """Their names begin with the application's id and end as Kafka Streams ends them."""
    assert looks_internal(name, "app") is internal


def test_plan_decides_the_topics():
    """With a plan its internal topics go, its inputs (by name and pattern) are reset, and leftovers are only mentioned."""
    assert internal_topics("app", SEEN, PLAN) == ("app-counts-changelog", "app-w-repartition")
    assert input_topics("app", SEEN, PLAN) == ("in", "logs-a")
    with_logs = replace(
        SEEN,
        earliest={**SEEN.earliest, TopicPartition("logs-a", 0): 0},
        latest={**SEEN.latest, TopicPartition("logs-a", 0): 0},
    )
    actions = plan_reset("app", with_logs, PLAN)
    assert any("app-old-changelog, which this topology does not have" in note for note in actions.notes)


def test_dead_letters_stay():
    """The topic of dead letters is the user's, as outputs are: with a plan it stays, however it is named."""
    plan = PLAN.model_copy(update={"dead_letter_topic": "app-old-changelog"})
    assert internal_topics("app", SEEN, plan) == ("app-counts-changelog", "app-w-repartition")
    assert "app-old-changelog" not in input_topics("app", SEEN, plan)


def test_names_decide_without_a_plan():
    """Without one, topics named like the application's go, but none of an application whose name begins like its own."""
    assert internal_topics("app", SEEN, None) == ("app-counts-changelog", "app-old-changelog", "app-w-repartition")
    assert input_topics("app", SEEN, None) == ("in",)
    assert input_topics("app", SEEN, None, ["out", "missing"]) == ("in", "out")
    actions = plan_reset("app", SEEN)
    assert actions.notes == ("Not deleted: app-eu-x-changelog, as it is application app-eu's",)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (OffsetTarget(), [10, 0]),
        (OffsetTarget(Start.LATEST), [60, 5]),
        (OffsetTarget(Start.OFFSET, 20), [20, 5]),
        (OffsetTarget(Start.OFFSET, 3), [10, 3]),
        (OffsetTarget(Start.TIMESTAMP_MS, 1), [33, 5]),
        (OffsetTarget(Start.SHIFT, -5), [45, 0]),
        (OffsetTarget(Start.SHIFT, 100), [60, 5]),
    ],
)
def test_offsets_stay_within_the_partitions(target, expected):
    """Each target is kept between the first and the next offset; shifting begins at the first where none is committed."""
    actions = plan_reset("app", SEEN, target=target)
    assert actions.set_offsets == dict(zip(IN, expected, strict=True))


def test_active_group_is_refused():
    """Members are named, with what to do; force removes them."""
    seen = replace(SEEN, members=(ActiveMember("m", "pod-0-1", "app-pod-0", "/10.0.0.1"),))
    with pytest.raises(
        ActiveGroupError, match=r"1 active member, app-pod-0 \(10\.0\.0\.1, static pod-0-1\).*Stop it first"
    ):
        plan_reset("app", seen)
    assert plan_reset("app", seen, force=True).remove_members == seen.members


# On a real broker


def config_of(kafka, application_id):
    """Return an application's settings."""
    return StreamsConfig.of({"application.id": application_id, "bootstrap.servers": kafka.bootstrap_servers})


def write(kafka, topic, timestamps):
    """Write a record for each timestamp to the first partition."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for timestamp in timestamps:
        producer.produce(topic, b"x", partition=0, timestamp=timestamp)
    assert producer.flush(30) == 0


@pytest.mark.broker
def test_group_that_runs_is_refused(kafka, topic_factory):
    """While members are in the group nothing is planned; when they have left, it is."""
    group = Group(kafka.bootstrap_servers, topic_factory("in", partitions=2), 2)
    group.join("a")
    group.settle()
    with Resetter(config_of(kafka, group.application_id)) as resetter:
        with pytest.raises(ActiveGroupError, match=f"{group.application_id}-a-StreamThread-1-consumer"):
            resetter.plan()
        group.close()
        assert resetter.plan().remove_members == ()


@pytest.mark.broker
def test_start_between_look_and_deed_is_refused(kafka, topic_factory):
    """A member that joins after the look is seen before anything is done."""
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
    """A static member that ended without leaving holds the group until its session ends, unless it is removed."""
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
def test_offsets_on_a_broker(kafka, topic_factory):
    """Offsets are those of first, last and timed records, also for a group that never was; committed ones can be shifted."""
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
def test_unreachable_brokers():
    """Brokers that do not answer are named at once."""
    config = StreamsConfig.of({"application.id": "a", "bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(BrokerUnreachableError, match=r"127\.0\.0\.1:1"):
        Resetter(config)


@pytest.mark.broker
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_application_counts_from_scratch(kafka, topic_factory, tmp_path, guarantee):
    """After a reset the same input gives the same counts again, none of them twice; a plan alone changes nothing."""
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
