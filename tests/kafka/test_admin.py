"""Describing topics and groups of a real cluster, and deleting groups."""

import threading

import pytest
from tests.brokers import new_topic
from tests.kafka.support import Group

from millrace.config import StreamsConfig
from millrace.dev._ports import free_ports
from millrace.errors import ActiveGroupError, BrokerUnreachableError, StreamsTimeoutError
from millrace.kafka.admin import delete_topics, describe_cluster, describe_topics, group_names
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.offsets import latest_offsets
from millrace.records import TopicPartition

pytestmark = pytest.mark.broker


@pytest.fixture
def unused_port():
    """Return a port that nothing listens on, and that no client's connection takes."""
    [port] = free_ports(1, "127.0.0.1")
    return port


def settings_for(bootstrap_servers, application_id, **others):
    """Return an application's client settings."""
    given = {"application.id": application_id, "bootstrap.servers": bootstrap_servers, **others}
    return ClientSettings(StreamsConfig.of(given), "test")


def test_a_topic_that_was_created_again_has_another_id(kafka, topic_factory):
    """The id distinguishes topics of the same name; partitions and replicas are described too."""
    admin, name = kafka.admin(), topic_factory("t", partitions=2)
    before = describe_topics(admin, [name, "no-such-topic"])
    assert before.keys() == {name}
    assert (before[name].partitions, before[name].replication_factor) == (2, 1)
    delete_topics(admin, [name])
    kafka.create_topics(name, partitions=2)
    after = describe_topics(admin, [name])
    assert after[name].id != before[name].id
    assert describe_cluster(admin)[1] == 1


def test_a_group_with_members_is_not_deleted(kafka, topic_factory):
    """A group with members is not deleted; once they have left it is, and deleting it again succeeds."""
    group = Group(kafka.bootstrap_servers, topic_factory("in", partitions=2), 2)
    admin = kafka.admin()
    with GroupAdmin(settings_for(kafka.bootstrap_servers, group.application_id)) as asked:
        assert asked.describe().state == "Dead"
        try:
            group.join("a")
            group.settle()
            assert (asked.describe().state, len(asked.describe().members)) == ("Stable", 1)
            with pytest.raises(ActiveGroupError, match=group.application_id):
                asked.delete()
        finally:
            group.close()
        assert asked.members() == ()
        asked.delete()
        asked.delete()
        assert group.application_id not in group_names(admin)
        assert asked.of_group("another", 5.0).describe().state == "Dead"


def test_a_failed_connection_leaves_nothing_behind(unused_port):
    """Repeated attempts to reach brokers that are down leak neither threads nor sockets."""
    before = set(threading.enumerate())
    with pytest.raises(BrokerUnreachableError, match=str(unused_port)):
        GroupAdmin(settings_for(f"127.0.0.1:{unused_port}", "app"), 0.3)
    assert set(threading.enumerate()) <= before


def test_requests_end_by_their_deadline(breakable_kafka, endless_requests):
    """With a broker that hangs, every request ends by its own timeout, and not by that of the client libraries."""
    kafka = breakable_kafka
    topic = new_topic(kafka)
    admin = kafka.admin()
    assert describe_topics(admin, [topic]).keys() == {topic}
    with GroupAdmin(settings_for(kafka.bootstrap_servers, "app", **{"request.timeout.ms": 600_000}), 600.0) as group:
        group.describe()  # which may have to wait for a coordinator
        kafka.pause()
        for ask in (
            group.of_group("app", 3.0).describe,
            group.of_group("app", 3.0).stable_offsets,
            lambda: describe_topics(admin, [topic], 1.0),
            lambda: describe_cluster(admin, 1.0),
            lambda: latest_offsets(admin, [TopicPartition(topic, 0)], 1.0),
            lambda: group_names(admin, 1.0),
        ):
            with pytest.raises(StreamsTimeoutError):
                ask()
