"""Members of groups with the streams protocol when brokers stop or move, permissions lack, and groups or topics disappear."""

import time

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from kafka.errors import KafkaTimeoutError
from tests.brokers import STREAMS_GROUPS, login, new_topic
from tests.committed_offsets import group_admin
from tests.kafka.support import StreamsGroup, Watched, committed, create_acl, set_group
from tests.operator.kafka.certificates import Authority
from tests.waiting import PATIENCE_S

from millrace.assignment.protocol import Assigned, Lost
from millrace.dev._ports import free_ports
from millrace.errors import AuthorizationError, TaskMigratedError
from millrace.kafka.admin import delete_topics
from millrace.kafka.membership.state import MemberState
from millrace.kafka.membership.streams.state import MISSING_INTERNAL_TOPICS, MISSING_SOURCE_TOPICS
from millrace.kafka.streams_messages import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from millrace.records import OffsetAndMetadata

pytestmark = pytest.mark.broker

HOST = "127.0.0.1"


class Secured:
    """A group of members that log in as alice, who may do everything that is not denied."""

    def __init__(self, kafka):
        self._admin = kafka.admin()
        self.group = StreamsGroup(kafka.sasl_bootstrap_servers, new_topic(kafka, partitions=4), 4, **login("alice"))

    def deny(self, resource, name, operation):
        """Forbid alice an operation; where there is a rule, everything else has to be allowed."""
        for who, what, permission in (
            ("User:*", AclOperation.ALL, AclPermissionType.ALLOW),
            ("User:alice", operation, AclPermissionType.DENY),
        ):
            create_acl(self._admin, AclBinding(resource, name, ResourcePatternType.LITERAL, who, "*", what, permission))

    def allow_again(self, resource, name, operation):
        """Undo `deny`."""
        denied = AclBindingFilter(
            resource, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.DENY
        )
        for future in self._admin.delete_acls([denied]).values():
            future.result(PATIENCE_S)


@pytest.fixture
def secured(kafka):
    """Yield a group of members that log in."""
    secured = Secured(kafka)
    yield secured
    secured.group.close()


@pytest.fixture
def group(kafka, topic_factory):
    """Yield a group for a topic with four partitions."""
    group = StreamsGroup(kafka.bootstrap_servers, topic_factory("in", partitions=4), 4)
    yield group
    group.close()


def test_members_log_in(secured):
    """Members join and commit through a SASL listener."""
    group = secured.group
    member = group.join("a")
    group.join("b")
    group.settle()
    offsets = {tp: OffsetAndMetadata(3) for tp in member.assignment}
    member.commit_offsets(offsets)
    assert committed(member, list(offsets)) == offsets


def test_members_use_mutual_tls(own_kafka):
    """Members join and commit through a TLS listener that asks for their certificate."""
    authority = Authority()
    plain, controller, tls = free_ports(3, HOST)
    kafka = own_kafka(ports=[plain], config=STREAMS_GROUPS | authority.broker_settings(plain, controller, tls))
    kafka.create_topics("in", partitions=4)
    certificate, key = authority.issue("client")
    group = StreamsGroup(
        f"{HOST}:{tls}",
        "in",
        4,
        **{
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": authority.pem,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": certificate,
            "ssl.keystore.key": key,
        },
    )
    member = group.join("a")
    group.settle()
    offsets = {group.tp(0): OffsetAndMetadata(3)}
    member.commit_offsets(offsets)
    assert committed(member, list(offsets)) == offsets
    group.close()


@pytest.mark.parametrize(
    ("resource", "operation", "says"),
    [
        (ResourceType.GROUP, AclOperation.DESCRIBE, "READ and DESCRIBE on that group"),
        (ResourceType.GROUP, AclOperation.READ, "READ on that group"),
        (ResourceType.TOPIC, AclOperation.DESCRIBE, "DESCRIBE on all topics"),
    ],
)
def test_a_missing_permission_to_join_is_named(secured, resource, operation, says):
    """Nobody would solve this by waiting, so the member fails and says what to allow."""
    group = secured.group
    secured.deny(resource, group.application_id if resource is ResourceType.GROUP else group.topic, operation)
    group.join("a")
    with pytest.raises(AuthorizationError, match=says):
        group.until(lambda: False)


def test_a_permission_that_is_withdrawn_ends_the_membership(secured):
    """The next heartbeat is refused, and after that the member commits nothing."""
    group = secured.group
    member = group.join("a")
    group.settle()
    secured.deny(ResourceType.GROUP, group.application_id, AclOperation.READ)
    with pytest.raises(AuthorizationError, match="READ on that group"):
        group.until(lambda: False)
    with pytest.raises(TaskMigratedError):
        member.commit_offsets({group.tp(0): OffsetAndMetadata(1)})


@pytest.mark.parametrize(
    ("resource", "says"),
    [(ResourceType.GROUP, "DESCRIBE on that group"), (ResourceType.TOPIC, "DESCRIBE on all topics")],
)
def test_an_assignment_that_may_not_be_read_ends_the_membership(secured, resource, says):
    """After an answer was lost only the description of the group tells the assignment; who may not read it may miss a change."""
    group = secured.group
    member = group.join("a")
    group.settle()
    name = group.application_id if resource is ResourceType.GROUP else group.topic
    secured.deny(resource, name, AclOperation.DESCRIBE)
    Delayed(member)
    with pytest.raises(AuthorizationError, match=says):
        group.until(lambda: False)
    with pytest.raises(TaskMigratedError):
        member.commit_offsets({group.tp(0): OffsetAndMetadata(1)})


def test_internal_topics_that_may_not_be_created_are_waited_for(secured, caplog):
    """As in Java: the group has no tasks until somebody allows it, or creates the topics; the reason is a warning."""
    group = secured.group
    changelog = f"{group.application_id}-counts-changelog"
    secured.deny(ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE)  # whoever may create any topic
    secured.deny(ResourceType.TOPIC, changelog, AclOperation.CREATE)
    member = group.join("a")
    group.until(lambda: MISSING_INTERNAL_TOPICS in member._state.statuses)
    group.until(lambda: any("CREATE" in record.message for record in caplog.records if record.levelname == "WARNING"))
    assert member.assignment == ()
    secured.allow_again(ResourceType.TOPIC, changelog, AclOperation.CREATE)
    group.settle()
    assert member._state.statuses == {}


def test_a_member_that_joins_while_the_broker_is_away_joins_later(breakable_kafka):
    """Heartbeats that nobody answers are repeated until the coordinator is back."""
    kafka = breakable_kafka
    group = StreamsGroup(kafka.bootstrap_servers, new_topic(kafka, partitions=4), 4)
    member = group.join("a")
    kafka.stop_broker()
    group.until(lambda: member._heartbeats._backoff_ms > 4 * member._settings.retry_backoff_ms)
    assert member.assignment == ()
    assert member.state is MemberState.JOINING
    kafka.restart_broker()
    group.settle()
    assert not group.of("a", Lost)
    group.close()


class Delayed(Watched):
    """A member of which one heartbeat is not answered in time, because it takes so long to arrive."""

    def __init__(self, member):
        super().__init__(member)
        self.late = None
        self._run = member._connection.run

    async def _pass(self, request, *arguments, **named):
        if self.late is None and isinstance(request, StreamsGroupHeartbeatRequest):
            self.late = request
            raise KafkaTimeoutError("no answer in time")
        return await super()._pass(request, *arguments, **named)

    def arrive(self):
        """Let it arrive, and return the answer, which the member does not get."""
        return self._run(self._send, self.late)


@pytest.mark.parametrize("change", ["revoked", "added"])
def test_a_change_that_a_late_heartbeat_is_told_of_is_followed(group, change):
    """A heartbeat may arrive after those that took its place; if it is the first after a change, only its answer tells of it."""
    if change == "added":
        group.join("b")
    member = group.join("a")
    group.settle()
    group.until(lambda: member._heartbeats._reported == member._state.current)
    delayed = Delayed(member)
    group.until(lambda: len(delayed.codes) > 4)
    delayed.held = True
    group.until(lambda: delayed.waits)
    if change == "revoked":
        other = group.join("b")
        group.until(lambda: other.generation > 0)
    else:
        group.members.pop("b").close(leave_group=True)
    assert delayed.arrive().active_tasks is not None
    delayed.held = False
    group.settle()
    assert not group.of("a", Lost)


def test_what_a_late_join_gives_away_cannot_be_committed(group, kafka):
    """A request to join that arrives late says that the member owns nothing: what it is to give up goes to others at once."""
    member = group.join("a")
    delayed = Delayed(member)
    group.settle()
    assert delayed.late.member_epoch == 0
    delayed.held = True
    group.until(lambda: delayed.waits)
    other = group.join("b")
    group.until(lambda: other.generation > 0)
    delayed.arrive()
    group.until(lambda: len(other.assignment) == 2, "b")
    identity, given_away = member.group_metadata(), other.assignment
    assert set(given_away) < set(member.assignment), "it does not know it yet"
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": group.application_id})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    with pytest.raises(KafkaException, match="ILLEGAL_GENERATION"):
        producer.send_offsets_to_transaction([ClientTopicPartition(*given_away[0], 5)], identity, PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)
    delayed.held = False
    group.until(lambda: group.of("a", Lost))
    group.settle()


def test_no_heartbeat_is_queued_behind_one_that_is_not_answered(group):
    """Nor does the IO thread look for its answer all the time."""
    member = group.join("a")
    group.settle()
    group.until(lambda: member._heartbeats._reported == member._state.current)
    watched, slept = Watched(member), []
    sleep = member._connection.sleep

    def recorded(seconds):
        slept.append(seconds)
        return sleep(seconds)

    heartbeats = member._heartbeats

    async def beat_first():
        while heartbeats._beating:
            await sleep(0.01)
        watched.held = True
        await heartbeats.beat()

    member._in_background(beat_first)  # as the stream thread does when it has closed what was revoked
    group.until(lambda: watched.waits and time.monotonic() > heartbeats._next_s)  # it is time for the next one
    member._connection.sleep = recorded
    group.until(lambda: len(slept) > 2)
    queued = heartbeats._again
    watched.held = False
    assert not queued
    assert min(slept[1:]) == max(slept)


class Undescribed(Delayed):
    """A member whose heartbeat is late, and which gets no answer when it first asks for its group's description."""

    def __init__(self, member):
        super().__init__(member)
        self.asked = 0

    async def _pass(self, request, timeout_ms=None, *arguments):
        if isinstance(request, StreamsGroupDescribeRequest):
            self.asked += 1
            if self.asked == 1:
                await self._sleep(timeout_ms / 1000)
                raise KafkaTimeoutError("no answer in time")
        return await super()._pass(request, timeout_ms, *arguments)


def test_a_description_that_is_not_answered_does_not_end_the_membership(group):
    """Heartbeats wait for it, but not for as long as a session lasts."""
    set_group(group.settings, {"streams.session.timeout.ms": "6000"})
    member = group.join("a")
    group.settle()
    undescribed = Undescribed(member)
    group.until(lambda: undescribed.asked > 1)
    assert not group.of("a", Lost)


def test_a_group_that_is_deleted_beneath_its_member_starts_again(group, kafka):
    """The member loses its tasks, and joins the new group, which has no committed offsets."""
    set_group(group.settings, {"streams.heartbeat.interval.ms": "3000"})
    member = group.join("a")
    group.settle()
    member.commit_offsets({group.tp(0): OffsetAndMetadata(3)})
    epoch = member.generation
    with group_admin(kafka, group.application_id) as admin:
        admin.describe()
        member._connection.run(member._heartbeats.leave, 10_000)  # without the member's knowledge
        admin.delete()
    group.until(lambda: group.of("a", Lost))
    group.settle()
    assert len(group.of("a", Assigned)) == 2
    assert member.generation <= epoch
    assert committed(member, [group.tp(0)]) == {}


def test_an_input_topic_that_is_created_again_in_time_is_read_again(group, kafka):
    """While it is missing the coordinator says so; the member keeps its tasks if the topic returns within two heartbeats."""
    set_group(group.settings, {"streams.heartbeat.interval.ms": "5000"})
    member = group.join("a")
    group.settle()
    delete_topics(kafka.admin(), [group.topic])
    group.until(lambda: MISSING_SOURCE_TOPICS in member._state.statuses)
    kafka.create_topics(group.topic, partitions=4)
    group.until(lambda: not member._state.statuses)
    group.settle()
    assert member._state.topics_missing_since_s is None
    assert len(member.tasks.active) == 4


def test_an_internal_topic_that_is_deleted_is_created_again(group, kafka):
    """The coordinator reports and creates it; the member keeps its tasks."""
    member = group.join("a")
    group.settle()
    changelog = f"{group.application_id}-counts-changelog"
    admin = kafka.admin()
    delete_topics(admin, [changelog])
    group.until(lambda: changelog in admin.list_topics(timeout=PATIENCE_S).topics)
    group.until(lambda: not member._state.statuses)
    group.settle()
    assert not group.of("a", Lost)
