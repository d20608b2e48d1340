"""Provisioning internal topics on a real cluster: creation, checks, refusals."""

import secrets
import threading

import pytest
from confluent_kafka.admin import NewPartitions
from tests.waiting import wait_until

from millrace.config import StreamsConfig
from millrace.errors import (
    MisconfiguredInternalTopicError,
    MissingInternalTopicsError,
    MissingSourceTopicError,
    StreamsError,
)
from millrace.kafka.admin import (
    TopicToCreate,
    all_topic_partitions,
    create_topics,
    topic_configs,
    topic_partitions,
)
from millrace.kafka.internal_topics import LeaderCluster, committed_partitions, provision
from millrace.plan.topology_plan import PlannedChangelogTopic, PlannedRepartitionTopic, PlannedSubtopology, TopologyPlan
from millrace.records import TopicPartition

pytestmark = pytest.mark.broker


@pytest.fixture
def admin(kafka):
    """Return an admin client."""
    return kafka.admin()


@pytest.fixture
def plan(topic_factory):
    """Return the plan of a count: an input with three partitions, a repartition topic and a changelog."""
    app, source = f"app-{secrets.token_hex(4)}", topic_factory("in", partitions=3)
    return TopologyPlan(
        application_id=app,
        hash="",
        subtopologies=(
            PlannedSubtopology(id=0, source_topics=(source,), sink_topics=(f"{app}-c-repartition",)),
            PlannedSubtopology(
                id=1,
                source_topics=(f"{app}-c-repartition",),
                repartition_topics=(
                    PlannedRepartitionTopic(
                        name=f"{app}-c-repartition",
                        config={"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": "52428800"},
                    ),
                ),
                changelog_topics=(
                    PlannedChangelogTopic(name=f"{app}-c-changelog", config={"cleanup.policy": "compact"}),
                ),
            ),
        ),
    )


def test_missing_topics_are_created_with_their_configuration(plan, admin):
    """Partition counts follow from the input, configurations from the plan; a second run only verifies."""
    app = plan.application_id
    report = provision(plan, admin, StreamsConfig.of({"application.id": app, "replication.factor": 1}))
    assert report.created == {f"{app}-c-repartition": 3, f"{app}-c-changelog": 3}
    configs = topic_configs(admin, report.created)
    assert configs[f"{app}-c-changelog"]["cleanup.policy"] == "compact"
    assert configs[f"{app}-c-repartition"]["retention.ms"] == "-1"
    again = provision(plan, admin, create=False)
    assert (again.created, again.verified) == ({}, report.created)
    assert again.counts.tasks == {0: 3, 1: 3}


def test_all_missing_input_topics_are_named(plan, admin):
    """Input topics are never created; the error lists every missing one."""
    items = (PlannedSubtopology(id=0, source_topics=("gone-1", "gone-2")),)
    with pytest.raises(MissingSourceTopicError, match="gone-1, gone-2"):
        provision(plan.model_copy(update={"subtopologies": items}), admin)
    assert not {"gone-1", "gone-2"} & all_topic_partitions(admin).keys()


def test_creation_can_be_forbidden(plan, admin):
    """With create=False, missing internal topics raise an error with their names, and none is created."""
    with pytest.raises(MissingInternalTopicsError, match=r"c-changelog.*c-repartition"):
        provision(plan, admin, create=False)
    assert f"{plan.application_id}-c-changelog" not in all_topic_partitions(admin)


def test_only_the_named_topics_are_created(plan, admin):
    """Only the named topics are created; other topics, and names that are not in the plan, are ignored."""
    app = plan.application_id
    report = provision(plan, admin, only=[f"{app}-c-changelog", "of-another-app"])
    assert report.created == {f"{app}-c-changelog": 3}
    assert topic_partitions(admin, [f"{app}-c-repartition", f"{app}-c-changelog"]) == report.created


def test_an_input_with_added_partitions_is_refused(plan, admin):
    """If an input has more partitions than the internal topics, the error has both numbers and what to do."""
    provision(plan, admin)
    source = plan.subtopologies[0].source_topics[0]
    [future] = admin.create_partitions([NewPartitions(source, 5)]).values()
    future.result()
    wait_until(lambda: len(admin.list_topics(source, 10).topics[source].partitions) == 5, "five partitions")
    with pytest.raises(MisconfiguredInternalTopicError, match=r"has 3 partitions but needs 5.*reset"):
        provision(plan, admin)


def test_a_changelog_with_policy_delete_is_refused(plan, admin):
    """A changelog whose policy was changed to delete is an error, as it would lose state."""
    name = f"{plan.application_id}-c-changelog"
    create_topics(admin, {name: TopicToCreate(3, {"cleanup.policy": "delete"})})
    with pytest.raises(MisconfiguredInternalTopicError, match=r"cleanup\.policy=delete but needs compact"):
        provision(plan, admin)


def test_members_may_provision_at_the_same_time(plan, kafka):
    """Several members that create the same topics at once all succeed."""
    problems = []

    def run():
        try:
            provision(plan, kafka.admin())
        except StreamsError as error:
            problems.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_the_error_for_a_refused_configuration_has_the_reason(admin):
    """The error has the topic and the broker's reason."""
    with pytest.raises(StreamsError, match="refused-topic"):
        create_topics(admin, {"refused-topic": TopicToCreate(1, {"cleanup.policy": "burn"})})


def test_describing_a_topic_does_not_create_it(admin):
    """Describing a topic that does not exist does not create it."""
    assert topic_partitions(admin, ["not-there"]) == {}
    assert topic_configs(admin, ["not-there"]) == {}
    assert "not-there" not in all_topic_partitions(admin)


def test_leader_cluster_provisions_and_reads_offsets(plan, admin):
    """The leader provisions topics and reads their end offsets through one object."""
    cluster = LeaderCluster(plan, admin, StreamsConfig.of({"application.id": plan.application_id}), lambda *_: {})
    counts = cluster.provision()
    changelog = TopicPartition(next(iter(counts.changelogs)), 0)
    assert cluster.end_offsets([changelog]) == {changelog: 0}


def test_leader_cluster_reads_the_racks_of_replicas(plan, admin):
    """For rack-aware assignment the leader learns in which racks a partition's replicas are; a missing topic has none."""
    cluster = LeaderCluster(plan, admin, StreamsConfig.of({"application.id": plan.application_id}), lambda *_: {})
    source = cluster.provision().sources[0][0]
    partitions = [TopicPartition(source, 0), TopicPartition(source, 2), TopicPartition("not-there", 0)]
    assert cluster.racks(partitions) == dict.fromkeys(partitions[:2], frozenset({"rack-1"}))


def test_policies_compare_as_sets(plan, admin):
    """compact,delete and delete,compact are the same policy."""
    name = f"{plan.application_id}-c-changelog"
    item = plan.subtopologies[1]
    windowed = item.model_copy(
        update={"changelog_topics": (PlannedChangelogTopic(name=name, config={"cleanup.policy": "compact,delete"}),)}
    )
    windowed_plan = plan.model_copy(update={"subtopologies": (plan.subtopologies[0], windowed)})
    create_topics(admin, {name: TopicToCreate(3, {"cleanup.policy": "delete,compact"})})
    provision(windowed_plan, admin)


def test_partitions_in_which_the_group_commits_offsets(admin, plan, topic_factory):
    """Those of inputs, of topics that match a pattern, and of repartition topics that exist; those of changelogs never."""
    [source] = plan.subtopologies[0].source_topics
    app, matched = plan.application_id, topic_factory("matched", partitions=2)
    expected = {TopicPartition(source, number) for number in range(3)}
    assert committed_partitions([plan], admin) == expected
    provision(plan, admin)
    expected |= {TopicPartition(f"{app}-c-repartition", number) for number in range(3)}
    assert committed_partitions([plan], admin) == expected
    pattern = PlannedSubtopology(id=0, source_patterns=(f"{matched}|{app}-c-changelog",))
    other = TopologyPlan(application_id=app, hash="", subtopologies=(pattern,))
    expected |= {TopicPartition(matched, number) for number in range(2)}
    assert committed_partitions([plan, other], admin) == expected
    assert committed_partitions([], admin) == set()
