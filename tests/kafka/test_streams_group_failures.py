"""Members of groups with the streams protocol when brokers stop or move, permissions lack, and groups or topics disappear."""

import secrets

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
from tests.committed import group_admin
from tests.kafka.support import StreamsGroup, committed, create_acl, set_group
from tests.operator.kafka.certificates import Authority

from millrace.assignment.protocol import Assigned, Lost
from millrace.dev._ports import free_ports
from millrace.dev.kafka import SaslPlain
from millrace.errors import AuthorizationError, TaskMigratedError
from millrace.kafka.admin import delete_topics
from millrace.kafka.membership.state import MemberState
from millrace.kafka.membership.streams_state import MISSING_INTERNAL_TOPICS, MISSING_SOURCE_TOPICS
from millrace.kafka.streams_messages import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from millrace.records import OffsetAndMetadata

pytestmark = pytest.mark.broker

HOST = "127.0.0.1"
COORDINATOR_NOT_AVAILABLE = 15


def sasl_settings():
    """Return settings of an application that logs in as alice."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{module} required username="alice" password="secret";',
    }


def rule(resource, name, operation, permission):
    """Return a rule about alice."""
    return AclBinding(resource, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, permission)


class Secured:
    """A group of members that log in as alice, who may do everything that is not denied."""

    def __init__(self, kafka):
        self._admin = kafka.admin()
        topic = f"in-{secrets.token_hex(4)}"
        kafka.create_topics(topic, partitions=4)
        self.group = StreamsGroup(kafka.sasl_bootstrap_servers, topic, 4, **sasl_settings())
        for resource in (ResourceType.TOPIC, ResourceType.GROUP):
            create_acl(self._admin, rule(resource, "*", AclOperation.ALL, AclPermissionType.ALLOW))

    def deny(self, resource, name, operation):
        """Forbid an operation."""
        create_acl(self._admin, rule(resource, name, operation, AclPermissionType.DENY))

    def allow_again(self, resource, name, operation):
        """Undo `deny`."""
        denied = AclBindingFilter(
            resource, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.DENY
        )
        for future in self._admin.delete_acls([denied]).values():
            future.result(30)


@pytest.fixture(scope="module")
def secured_kafka(kafka_options):
    """Yield a Kafka with rules about who may do what, and a SASL listener."""
    from millrace.dev.kafka import EmbeddedKafka

    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedKafka(security=SaslPlain({"alice": "secret"}), config=kafka_options["config"] | rules) as kafka:
        yield kafka


@pytest.fixture
def secured(secured_kafka):
    """Yield a group of members that log in."""
    secured = Secured(secured_kafka)
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


def test_members_use_mutual_tls(own_kafka, kafka_options):
    """Members join and commit through a TLS listener that asks for their certificate."""
    authority = Authority()
    plain, controller, tls = free_ports(3, HOST)
    kafka = own_kafka(ports=[plain], config=kafka_options["config"] | authority.broker_settings(plain, controller, tls))
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
    secured.deny(ResourceType.TOPIC, changelog, AclOperation.CREATE)
    member = group.join("a")
    group.until(lambda: MISSING_INTERNAL_TOPICS in member._state.statuses)
    group.until(lambda: any("CREATE" in record.message for record in caplog.records if record.levelname == "WARNING"))
    assert member.assignment == ()
    secured.allow_again(ResourceType.TOPIC, changelog, AclOperation.CREATE)
    group.settle()
    assert member._state.statuses == {}


def test_a_member_that_joins_while_the_broker_is_away_joins_later(own_kafka, kafka_options):
    """Heartbeats that nobody answers are repeated until the coordinator is back."""
    kafka = own_kafka(**kafka_options)
    kafka.create_topics("in", partitions=4)
    group = StreamsGroup(kafka.bootstrap_servers, "in", 4)
    member = group.join("a")
    kafka.stop_broker()
    group.until(lambda: member._heartbeats._backoff_ms > 4 * member._settings.retry_backoff_ms)
    assert member.assignment == ()
    assert member.state is MemberState.JOINING
    kafka.restart_broker()
    group.settle()
    assert not group.of("a", Lost)
    group.close()


@pytest.mark.slow
def test_the_coordinator_moves_to_another_broker(own_kafka, kafka_options):
    """When the coordinating broker is killed, another one takes over, and the members keep their tasks."""
    kafka = own_kafka(brokers=3, config=kafka_options["config"] | {"broker.session.timeout.ms": "6000"})
    kafka.create_topics("in", partitions=4)
    group = StreamsGroup(kafka.bootstrap_servers, "in", 4, **{"request.timeout.ms": 5000})
    member = group.join("a")
    group.join("b")
    group.settle()
    owned = {name: each.assignment for name, each in group.members.items()}
    former = member._coordinator._node
    kafka.kill(former)
    for each in group.members.values():
        each.commit_offsets({tp: OffsetAndMetadata(9) for tp in each.assignment})
    group.until(lambda: member._coordinator._node not in (None, former))
    group.settle()
    assert {name: each.assignment for name, each in group.members.items()} == owned
    assert not [event for name in "ab" for event in group.of(name, Lost)]
    group.close()


class Watched:
    """A member's requests to its coordinator, which can be held back, and the error codes of the answers."""

    def __init__(self, member):
        self.held = False
        self.waits = False
        """Whether a request is held back, so that none is under way: there is one at a time."""
        self.codes = []
        self._sleep, self._send = member._connection.sleep, member._coordinator.send
        member._coordinator.send = self._pass

    async def _pass(self, request, *arguments, **named):
        while self.held and getattr(request, "member_epoch", 0) >= 0:  # not when it leaves
            self.waits = True
            await self._sleep(0.02)
        self.waits = False
        answer = await self._send(request, *arguments, **named)
        self.codes.append(getattr(answer, "error_code", 0))
        return answer


@pytest.mark.slow
@pytest.mark.parametrize("change", ["revoked", pytest.param("added", marks=pytest.mark.thorough)])
def test_a_change_that_the_coordinator_stores_late_is_followed(own_kafka, kafka_options, change):
    """A coordinator whose replicas are slow answers with an error, but the change takes effect; no answer ever tells of it."""
    kafka = own_kafka(brokers=3, config=kafka_options["config"] | {"offsets.commit.timeout.ms": "500"})
    kafka.create_topics("in", partitions=4)
    group = StreamsGroup(kafka.bootstrap_servers, "in", 4, **{"request.timeout.ms": 5000})
    first = group.join("a")
    group.settle()
    watched = Watched(first)
    watched.held = True
    second = group.join("b")
    group.until(lambda: second.generation > 0)
    if change == "added":
        other, watched = watched, Watched(second)
        watched.held, other.held = True, False
        group.until(lambda: len(first.assignment) == 2 and len(first._state.current.active) == 2)
        group.until(lambda: first._heartbeats._reported == first._state.current)
    follower = next(broker for broker in kafka.broker_ids if broker != first._coordinator._node)
    kafka.pause(follower)
    watched.held = False
    group.until(lambda: COORDINATOR_NOT_AVAILABLE in watched.codes)
    kafka.resume(follower)
    group.settle()
    assert not group.of("a", Lost)
    assert not group.of("b", Lost)
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
    producer.init_transactions(60)
    producer.begin_transaction()
    with pytest.raises(KafkaException, match="ILLEGAL_GENERATION"):
        producer.send_offsets_to_transaction([ClientTopicPartition(*given_away[0], 5)], identity, 60)
    producer.abort_transaction(60)
    delayed.held = False
    group.until(lambda: group.of("a", Lost))
    group.settle()


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
    group.until(lambda: changelog in admin.list_topics(timeout=10).topics)
    group.until(lambda: not member._state.statuses)
    group.settle()
    assert not group.of("a", Lost)
