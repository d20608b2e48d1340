"""Observing and changing real brokers with an application's own credentials."""

import dataclasses
import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from tests.brokers import PASSWORDS, new_topic
from tests.kafka.support import Group, create_acl
from tests.operator.kafka.support import count_plan, patient_clusters, streams_app
from tests.waiting import PATIENCE_S, wait_until

from millrace.backfill.kafka_history import backfill_clients
from millrace.backfill.writer import Writer
from millrace.config_providers import resolve
from millrace.errors import (
    ActiveGroupError,
    AuthorizationError,
    ConfigError,
    MissingSourceTopicError,
    StreamsError,
    StreamsTimeoutError,
)
from millrace.kafka.admin import delete_topics, topic_configs
from millrace.kafka.admin_requests import give_up_when
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin
from millrace.plan.backfill_marks import attempts_group, mark_of, outputs_group
from millrace.records import OffsetAndMetadata, TopicPartition
from millrace_operator.children import naming
from millrace_operator.kafka.client_config import Credentials, client_config
from millrace_operator.kafka.cluster_observation import observe_cluster
from millrace_operator.kafka.clusters import LOOK_TIMEOUT_S, KafkaClusters
from millrace_operator.kafka.connections import CONNECT_TIMEOUT_S
from millrace_operator.model import (
    ConfigureGroup,
    DeleteGroup,
    DeleteTopics,
    ProvisionTopics,
    RemoveMembers,
    SetOffsets,
)
from millrace_operator.reconcile import consumer_group

pytestmark = pytest.mark.broker

PLAIN = {"auth": {"type": "plain", "secretRef": {"name": "kafka-user"}}}


@pytest.fixture
def clusters(monkeypatch):
    """Give the object under test."""
    clusters = patient_clusters(monkeypatch)
    yield clusters
    clusters.close()


@pytest.fixture
def hurried(monkeypatch):
    """Give the object under test, with the operator's own timeouts; the client libraries' are longer than a test may take."""
    monkeypatch.setattr("millrace.kafka.admin_requests.REQUEST_TIMEOUT_S", 600.0)
    monkeypatch.setattr("millrace_operator.kafka.client_config.REQUEST_TIMEOUT_MS", 300_000)
    clusters = KafkaClusters()
    yield clusters
    clusters.close()


@pytest.fixture
def plan(topic_factory):
    """Give the plan of a count of a topic with three partitions."""
    return count_plan(topic_factory("in", partitions=3))


@pytest.fixture
def app(kafka, plan):
    """Give the application of the plan."""
    return streams_app(kafka.bootstrap_servers, plan.application_id)


def credentials_of(app, user, password=None):
    """Return the credentials of an application whose Secret has this user's password, or another one."""
    secret = {"username": user.encode(), "password": (password or PASSWORDS[user]).encode()}
    return Credentials.of(app.spec, {"kafka-user": secret})


def source_of(plan):
    """Return the input topic of a count."""
    return plan.subtopologies[0].source_topics[0]


def provision(clusters, app, plan, replication_factor=-1):
    """Create the internal topics of a plan."""
    names = (f"{plan.application_id}-c-repartition", f"{plan.application_id}-c-changelog")
    clusters.act(app, Credentials(), ProvisionTopics(plan.to_json(), names, replication_factor))
    return names


def test_a_new_application_has_only_its_input(clusters, app, plan):
    """Missing topics are left out; there is no group; all of the input is still to be read."""
    state = clusters.observe(app, Credentials(), plan)
    assert (state.error, state.brokers, state.group, state.lag) == (None, 1, None, 0)
    assert state.cluster_id
    assert state.topics.keys() == {source_of(plan)}
    assert state.topics[source_of(plan)].partitions == 3


def test_topics_are_provisioned_and_seen(clusters, app, plan, kafka):
    """Topics are created as planned and observed with ids and relevant settings; repeating it changes nothing."""
    repartition, changelog = provision(clusters, app, plan)
    seen = clusters.observe(app, Credentials(), plan).topics
    provision(clusters, app, plan)
    assert clusters.observe(app, Credentials(), plan).topics == seen
    assert seen.keys() == {source_of(plan), repartition, changelog}
    topic = seen[changelog]
    assert (topic.partitions, topic.replication_factor, len(topic.id)) == (3, 1, 22)
    assert topic.config.keys() == {"cleanup.policy", "retention.ms", "min.insync.replicas", "segment.bytes"}
    assert (topic.config["cleanup.policy"], topic.config["min.insync.replicas"]) == ("compact", "1")
    assert topic_configs(kafka.admin(), [repartition])[repartition]["retention.ms"] == "-1"


def test_recreated_changelog_has_another_id(clusters, app, plan, kafka):
    """A deleted changelog is missing; one created later under its name has another id."""
    _, changelog = provision(clusters, app, plan)
    before = clusters.observe(app, Credentials(), plan).topics[changelog].id
    clusters.act(app, Credentials(), DeleteTopics((changelog,)))
    clusters.act(app, Credentials(), DeleteTopics((changelog,)))
    assert changelog not in clusters.observe(app, Credentials(), plan).topics
    kafka.create_topics(changelog, partitions=5)
    after = clusters.observe(app, Credentials(), plan).topics[changelog]
    assert after.id != before
    assert (after.partitions, after.config["cleanup.policy"]) == (5, "delete")


def test_the_dead_letter_topic_is_looked_at(clusters, app, plan, topic_factory):
    """It is observed with the inputs, but has no lag."""
    failed = topic_factory("failed")
    for letters, there in ((failed, True), ("no-such-letters", False)):
        state = clusters.observe(app, Credentials(), plan.model_copy(update={"dead_letter_topic": letters}))
        assert (letters in state.asked, letters in state.topics, state.lag) == (True, there, 0)


def test_both_plans_are_looked_at(clusters, app, plan):
    """Topics that only the stable revision has are observed as well."""
    provision(clusters, app, plan)
    wanted = count_plan(source_of(plan), plan.application_id)
    wanted = wanted.model_copy(update={"subtopologies": wanted.subtopologies[:1]})
    state = clusters.observe(app, Credentials(), wanted, plan)
    assert f"{plan.application_id}-c-changelog" in state.topics


def test_inputs_by_pattern_are_seen(clusters, kafka, topic_factory):
    """For a topology that subscribes by pattern, matching topics are reported, except its own internal ones."""
    prefix = f"orders-{secrets.token_hex(4)}"
    names = {topic_factory(f"{prefix}-{place}") for place in ("eu", "us")}
    plan = count_plan("unused")
    first = plan.subtopologies[0].model_copy(update={"source_topics": (), "source_patterns": (f"{prefix}-.*",)})
    plan = plan.model_copy(update={"subtopologies": (first, *plan.subtopologies[1:])})
    state = clusters.observe(streams_app(kafka.bootstrap_servers, plan.application_id), Credentials(), plan)
    assert state.topics.keys() == names


def test_refusal_by_the_brokers_is_reported(clusters, app, plan):
    """Too many replicas for the brokers, or missing inputs, are errors that name the topic; nothing is created."""
    with pytest.raises(StreamsError, match=f"{plan.application_id}-c-.*[Rr]eplication factor"):
        provision(clusters, app, plan, replication_factor=2)
    with pytest.raises(MissingSourceTopicError, match="no-such-topic"):
        provision(clusters, app, count_plan("no-such-topic", plan.application_id))
    assert clusters.observe(app, Credentials(), plan).topics.keys() == {source_of(plan)}


def test_no_action_starts_after_the_lease_is_lost(clusters, app, plan):
    """Connecting takes time: an operator whose permission to act has expired meanwhile does nothing."""
    partition = TopicPartition(source_of(plan), 0)
    clusters.act(app, Credentials(), SetOffsets((), {partition: 0}))
    give_up_when(lambda: True)
    try:
        with pytest.raises(StreamsTimeoutError, match="may no longer change anything"):
            clusters.act(app, Credentials(), SetOffsets((), {partition: 5}))
    finally:
        give_up_when(lambda: False)
    with GroupAdmin(ClientSettings(client_config(app, Credentials()), "test")) as group:
        assert group.committed() == {partition: 0}


def test_fewer_replicas_than_must_be_in_sync_are_seen(clusters, kafka, topic_factory):
    """A topic's `min.insync.replicas` is reported with its replication factor, so that they can be compared."""
    plan = count_plan(topic_factory("in"), config={"min.insync.replicas": "2"})
    app = streams_app(kafka.bootstrap_servers, plan.application_id)
    _, changelog = provision(clusters, app, plan)
    topic = clusters.observe(app, Credentials(), plan).topics[changelog]
    assert (topic.replication_factor, topic.config["min.insync.replicas"]) == (1, "2")


def test_lag_counts_what_is_not_committed(clusters, kafka, plan, app):
    """Partitions without a committed offset count from the beginning, others from that offset."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(30):
        producer.produce(source_of(plan), str(number), partition=number % 3)
    assert producer.flush(PATIENCE_S) == 0
    assert clusters.observe(app, Credentials(), plan).lag == 30
    settings = ClientSettings(client_config(app, Credentials()), "test")
    with GroupAdmin(settings) as group:
        group.commit({TopicPartition(source_of(plan), 0): 10, TopicPartition(source_of(plan), 1): 4})
    assert clusters.observe(app, Credentials(), plan).lag == 16


def test_lag_counts_repartition_topics(clusters, kafka, topic_factory):
    """Records waiting between two sub-topologies are part of the backlog, too."""
    plan = count_plan(topic_factory("in", partitions=2))
    app = streams_app(kafka.bootstrap_servers, plan.application_id)
    repartition, changelog = provision(clusters, app, plan)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(20):
        producer.produce(repartition, str(number), partition=number % 2)
        producer.produce(changelog, str(number), partition=number % 2)
    assert producer.flush(PATIENCE_S) == 0
    assert clusters.observe(app, Credentials(), plan).lag == 20
    settings = ClientSettings(client_config(app, Credentials()), "test")
    with GroupAdmin(settings) as group:
        group.commit({TopicPartition(repartition, 0): 7})
    assert clusters.observe(app, Credentials(), plan).lag == 13


def test_static_members_are_matched_to_pods_and_removed(clusters, kafka, plan, app):
    """Each stream thread is a member named after its pod; removing a pod removes its threads and nothing else."""
    group = Group(
        kafka.bootstrap_servers,
        source_of(plan),
        3,
        **{"application.id": plan.application_id, "session.timeout.ms": 120_000},
    )
    try:
        for pod in ("app-0", "app-1", "app-11"):
            group.join(pod, **{"group.instance.id": pod})
        group.settle()
        seen = clusters.observe(app, Credentials(), plan).group
        assert (seen.state, seen.protocol) == ("Stable", "classic")
        assert {member.instance_id for member in seen.members} == {"app-0", "app-1", "app-11"}
        with pytest.raises(ActiveGroupError):
            clusters.act(app, Credentials(), DeleteGroup())
    finally:
        for member in group.members.values():
            member.close(leave_group=False)
    ids = {member.instance_id: member.member_id for member in seen.members}
    for _ in range(2):
        clusters.act(app, Credentials(), RemoveMembers(("app-1", "gone-0"), (ids["app-1"], "gone")))
        seen = clusters.observe(app, Credentials(), plan).group
        assert {member.instance_id for member in seen.members} == {"app-0", "app-11"}
    clusters.act(app, Credentials(), RemoveMembers(("app-0", "app-11"), (ids["app-0"], ids["app-11"])))
    for _ in range(2):
        clusters.act(app, Credentials(), DeleteGroup())
    assert clusters.observe(app, Credentials(), plan).group is None


def test_the_groups_of_a_backfills_attempts_are_deleted(clusters, app, plan):
    """The application's own group, and those of other backfills, keep their offsets."""
    given = ClientSettings(client_config(app, Credentials()), "test")
    of = plan.application_id
    names = [of, *(group(of, uid) for uid in ("b-1", "b-2") for group in (attempts_group, outputs_group))]
    with GroupAdmin(given) as admin:
        groups = [admin.of_group(name, admin.timeout_s) for name in names]
        for group in groups:
            group.commit({TopicPartition(source_of(plan), 0): 7})
        for _ in range(2):
            clusters.act(app, Credentials(), DeleteGroup("b-1"))
        assert [len(group.committed()) for group in groups] == [1, 0, 0, 1, 1]


class Driver:
    """What a backfill's driver does with the offsets of an application's group."""

    def __init__(self, app, plan):
        config = client_config(app, Credentials())
        self.id, self.partition = config.application_id, TopicPartition(source_of(plan), 0)
        self.writer = Writer(backfill_clients(config), f"{self.id}-backfill")

    def commit(self, metadata, hands_over=None):
        """Commit the offset with this metadata, and that of the attempts of a backfill, if one is named."""
        with self.writer.transaction():
            if hands_over is not None:
                self.writer.add_offsets(attempts_group(self.id, hands_over), {self.partition: OffsetAndMetadata(7)})
            self.writer.commit(self.id, {self.partition: OffsetAndMetadata(7, metadata)})


@pytest.fixture
def driver(app, plan):
    """Give the driver of a backfill of the application."""
    driver = Driver(app, plan)
    yield driver
    driver.writer.close()


def test_what_a_backfill_has_published(clusters, app, plan, driver):
    """The mark in the offsets says whose half result there is; the group of its attempts says who has handed over."""

    def published(*backfills):
        return [clusters.published(app, Credentials(), backfill, [plan]) for backfill in backfills]

    assert published("b-1") == ["Nothing"]
    driver.commit("")
    assert published("b-1") == ["Nothing"]
    driver.commit(f"{mark_of('b-1')}attempt")
    assert published("b-1", "b-2", "b") == ["Parts", "Nothing", "Nothing"]
    driver.commit(f"{mark_of(None)}attempt")
    assert published("b-1", "b-2") == ["Nothing", "Nothing"]
    driver.commit("", hands_over="b-2")
    assert published("b-1", "b-2") == ["Nothing", "Everything"]
    driver.commit(f"{mark_of('b-1')}again")
    assert published("b-1", "b-2") == ["Parts", "Everything"]


@pytest.mark.parametrize(("first", "left"), [(False, "Parts"), (True, "Nothing")])
def test_nobody_knows_what_a_pending_transaction_publishes(hurried, app, plan, driver, first, left):
    """It may have been committed although its offsets are not in the groups yet, which may have none at all."""

    def published():
        return hurried.published(app, Credentials(), "b-1", [plan])

    if not first:
        driver.commit(f"{mark_of('b-1')}attempt")
    with driver.writer.transaction():
        driver.writer.add_offsets(driver.id, {driver.partition: OffsetAndMetadata(9)})
        with pytest.raises(StreamsTimeoutError):
            published()
    wait_until(lambda: published() == left, "it was aborted")


def test_whose_members_are(clusters, kafka, plan, app):
    """Members of another application with the same name are not ours, even if they have the pods' names."""
    group = Group(kafka.bootstrap_servers, source_of(plan), 3, **{"application.id": plan.application_id})
    try:
        for name, uid in (("ours", "u-1"), ("theirs", "x-1")):
            ids = dict.fromkeys(("client.id", "group.instance.id"), naming.member("app-0", uid))
            group.join(name, **ids)
        group.join("dynamic", **{"client.id": naming.member("app-1", "u-1")})
        group.settle()
        seen = clusters.observe(app, Credentials(), plan).group.members
    finally:
        group.close()
    whose = {
        (item.instance_id, consumer_group.is_member_of("app", ["u-1"], item.client_id, item.static_id)) for item in seen
    }
    assert whose == {("app-0", True), ("app-0", False), (None, True)}


def test_who_has_taken_a_members_place_stays(clusters, kafka, plan, app):
    """If another member has taken over an observed member's instance id, it is not removed."""
    settings = {"application.id": plan.application_id, "session.timeout.ms": 120_000, "group.instance.id": "app-0"}
    group = Group(kafka.bootstrap_servers, source_of(plan), 3, **settings)
    try:
        group.join("first")
        group.settle()
        (first,) = clusters.observe(app, Credentials(), plan).group.members
        group.members.pop("first").close(leave_group=False)
        group.join("second")
        group.settle()
        with GroupAdmin(ClientSettings(client_config(app, Credentials()), "test")) as admin:
            gone = dataclasses.replace(admin.members()[0], member_id=first.member_id)
            admin.remove([gone])
        clusters.act(app, Credentials(), RemoveMembers(("app-0",), (first.member_id,)))
        (second,) = clusters.observe(app, Credentials(), plan).group.members
        assert second.member_id != first.member_id
    finally:
        group.close()


def test_settings_of_the_group_are_seen_and_changed(clusters, kafka, plan):
    """An application whose brokers assign the tasks is told which settings of its group are not the manifest's."""
    streams = {"groupProtocol": "streams"}
    app = streams_app(kafka.bootstrap_servers, plan.application_id, kafka=streams, standby={"replicas": 1})
    state = clusters.observe(app, Credentials(), plan)
    assert (state.error, state.brokers_assign, state.group_settings_error) == (None, True, None)
    assert state.wrong_group_settings == {"streams.num.standby.replicas": "1"}
    clusters.act(app, Credentials(), ConfigureGroup(state.wrong_group_settings))
    wait_until(lambda: clusters.observe(app, Credentials(), plan).wrong_group_settings == {}, "the broker knows them")
    with pytest.raises(StreamsError, match=r"group\.streams\.max\.standby\.replicas"):
        clusters.act(app, Credentials(), ConfigureGroup({"streams.num.standby.replicas": "9"}))


def test_settings_that_may_not_be_seen_or_changed(clusters, kafka):
    """Without the permissions, an application that wants standbys is told what to allow; all else is seen."""
    name = f"app-{secrets.token_hex(4)}"
    rule = AclBinding(
        ResourceType.GROUP,
        name,
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )
    create_acl(kafka.admin(), rule)
    streams = {"groupProtocol": "streams", **PLAIN}
    wants = streams_app(kafka.sasl_bootstrap_servers, name, kafka=streams, standby={"replicas": 1})
    alice = credentials_of(wants, "alice")
    state = clusters.observe(wants, alice)
    assert (state.error, state.brokers_assign) == (None, True)
    assert "DESCRIBE_CONFIGS" in state.group_settings_error
    with pytest.raises(AuthorizationError, match="ALTER_CONFIGS"):
        clusters.act(wants, alice, ConfigureGroup({"streams.num.standby.replicas": "1"}))
    plain = streams_app(kafka.sasl_bootstrap_servers, name, kafka=streams)
    assert clusters.observe(plain, alice).group_settings_error is None


def test_workers_may_share_one_cluster(clusters, kafka, topic_factory):
    """Many threads observe applications at once over one connection, and each sees its own application."""
    plans = [count_plan(topic_factory("in", partitions=number + 1)) for number in range(6)]
    apps = [streams_app(kafka.bootstrap_servers, p.application_id, uid=p.application_id) for p in plans]
    with ThreadPoolExecutor(6) as workers:
        for _ in range(3):
            states = workers.map(lambda app, plan: clusters.observe(app, Credentials(), plan), apps, plans)
            partitions = [state.topics[source_of(plan)].partitions for plan, state in zip(plans, states, strict=True)]
            assert partitions == [1, 2, 3, 4, 5, 6]


def test_errors_have_a_reason_by_kind(clusters, kafka):
    """A wrong password, a missing Secret and a wrong protocol are distinguished; no message shows the password."""
    app = streams_app(kafka.sasl_bootstrap_servers, f"app-{secrets.token_hex(4)}", kafka=PLAIN)
    right, password = credentials_of(app, "alice"), PASSWORDS["alice"]
    assert clusters.observe(app, right).error is None
    wrong = clusters.observe(app, credentials_of(app, "alice", f"{password}-wrong"))
    assert wrong.reason == "AuthenticationFailed"
    assert "kafka-user" in wrong.error
    assert password not in wrong.error
    assert clusters.observe(app, right).error is None
    missing = Credentials.of(app.spec, {})
    assert clusters.observe(app, missing).reason == "SecretMissing"
    with pytest.raises(ConfigError, match="kafka-user"):
        clusters.act(app, missing, DeleteGroup())
    plain = streams_app(kafka.sasl_bootstrap_servers)
    assert clusters.observe(plain, Credentials()).reason == "AuthenticationFailed"
    files = streams_app(kafka.bootstrap_servers, kafka={"config": {"ssl.ca.location": "/ca.pem"}})
    assert clusters.observe(files, Credentials()).reason == "BadConfiguration"


def test_a_password_written_like_a_reference_is_a_password(clusters, kafka):
    """The brokers get the text of the Secret, from the check to the last request, and never a file of the operator."""
    assert resolve("password", PASSWORDS["reference"]) != PASSWORDS["reference"], "there is such a file"
    app = streams_app(kafka.sasl_bootstrap_servers, f"app-{secrets.token_hex(4)}", kafka=PLAIN)
    state = clusters.observe(app, credentials_of(app, "reference"))
    assert (state.error, state.brokers) == (None, 1)


def test_stopped_brokers_are_noticed_in_time_and_found_again(hurried, breakable_kafka, monkeypatch):
    """Brokers that hang, disappear or return are observed as such, without restarting the operator.

    Connecting and asking have the operator's own timeouts, not the 30 and 60 s of the client libraries.
    """
    timeouts = []
    monkeypatch.setattr(
        "millrace_operator.kafka.clusters.observe_cluster",
        lambda *asked: timeouts.append(asked[3]) or observe_cluster(*asked),
    )
    kafka, topic = breakable_kafka, new_topic(breakable_kafka)
    plan = count_plan(topic, f"app-{secrets.token_hex(4)}")
    app = streams_app(kafka.bootstrap_servers, plan.application_id)
    seen_again(hurried, app, plan)
    kafka.pause()
    state = hurried.observe(app, Credentials(), plan)
    assert (state.reason, dict(state.topics), state.brokers) == ("Unreachable", {}, 0)
    assert f"answered within {CONNECT_TIMEOUT_S:g} s" in state.error
    kafka.resume()
    seen_again(hurried, app, plan)
    kafka.stop_broker()
    state = hurried.observe(app, Credentials(), plan)
    assert state.reason == "Unreachable"
    assert f"{kafka.bootstrap_servers} answered within {CONNECT_TIMEOUT_S:g} s" in state.error
    kafka.restart_broker()
    seen_again(hurried, app, plan)
    delete_topics(kafka.admin(), [topic])
    assert hurried.observe(app, Credentials(), plan).topics == {}
    assert max(timeouts) == LOOK_TIMEOUT_S


def seen_again(clusters, app, plan):
    """Observe until the brokers answer."""
    found = []

    def answered():
        found[:] = [clusters.observe(app, Credentials(), plan)]
        return found[0].error is None

    wait_until(answered, lambda: found[0].error, poll_s=0.1)
    assert found[0].topics.keys() == {source_of(plan)}
