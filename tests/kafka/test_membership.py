"""Members of a real group: joining, rebalancing, leaving, static membership, offsets and fencing."""

import asyncio
import logging
import threading
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from kafka.errors import KafkaConnectionError
from tests.kafka.support import Group, committed
from tests.waiting import PATIENCE_S, wait_until

from millrace.assignment.protocol import Assigned, Lost, Revoked
from millrace.config import StreamsConfig
from millrace.errors import (
    ConfigError,
    FencedInstanceIdError,
    InconsistentGroupError,
    StreamsError,
    TaskMigratedError,
)
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_metadata import encode_group_metadata
from millrace.kafka.membership.classic.heartbeat import Heartbeats
from millrace.kafka.membership.state import MemberState, SharedState
from millrace.kafka.membership.wire import decode_subscription, encode_subscription
from millrace.records import OffsetAndMetadata

pytestmark = pytest.mark.broker


@pytest.fixture
def group(kafka, topic_factory):
    """Yield a group for a topic with four partitions."""
    group = Group(kafka.bootstrap_servers, topic_factory("in", partitions=4), 4)
    yield group
    group.close()


def test_a_single_member_gets_everything_and_the_leader_s_data(group):
    """In the first generation the member gets all partitions, sorted, with the assignor's user data."""
    member = group.join("a")
    group.settle()
    assert group.events["a"] == [
        Assigned(tuple(group.tp(n) for n in range(4)), frozenset(group.tp(n) for n in range(4)), b"data of a", 1)
    ]
    assert member.is_leader
    assert member.generation == 1
    assert member.member_id.startswith(f"{group.application_id}-a-StreamThread-1-consumer-")
    assert member.group_metadata() == encode_group_metadata(group.application_id, 1, member.member_id)


def test_hand_over_is_cooperative(group):
    """When a second member joins, the first keeps its partitions except those that move."""
    group.join("a")
    group.settle()
    group.join("b")
    group.settle()
    assert group.revoked("a") == {group.tp(1), group.tp(3)}
    assert set(group.members["a"].assignment) == {group.tp(0), group.tp(2)}
    assert set(group.members["b"].assignment) == {group.tp(1), group.tp(3)}
    assert not group.of("a", Lost)
    revocation = group.events["a"].index(group.of("a", Revoked)[0])
    assert isinstance(group.events["a"][revocation + 1], Assigned)
    assert group.revoked("b") == set()


def test_partitions_return_when_a_dynamic_member_closes(group):
    """A dynamic member leaves when it closes, and the other one gets its partitions at the next heartbeat."""
    group.join("a")
    group.join("b")
    group.settle()
    group.members.pop("b").close()
    group.settle()
    assert len(group.members["a"].assignment) == 4


def test_a_static_member_bounces_without_a_rebalance(group):
    """A static member that returns within its session timeout gets its partitions back without a rebalance."""
    group.join("a", **{"group.instance.id": "pod-a"})
    group.join("b", **{"group.instance.id": "pod-b"})
    group.settle()
    rebalances, generation = group.rebalances, group.members["b"].generation
    owned = group.members["b"].assignment
    group.members.pop("b").close()
    group.join("b", **{"group.instance.id": "pod-b"})
    group.settle()
    assert group.members["b"].assignment == owned
    assert group.members["b"].instance_id == "pod-b-1"
    assert (group.rebalances, group.members["a"].generation) == (rebalances, generation)


def test_a_static_leader_bounces_without_a_rebalance(group):
    """A returning leader has to skip the assignment (KIP-814), and the group stays as it was."""
    group.join("a", **{"group.instance.id": "pod-a"})
    group.settle()
    group.join("b", **{"group.instance.id": "pod-b"})
    group.settle()
    leader = next(name for name, member in group.members.items() if member.is_leader)
    rebalances, owned = group.rebalances, group.members[leader].assignment
    group.members.pop(leader).close()
    group.join(leader, **{"group.instance.id": f"pod-{leader}"})
    group.settle()
    assert group.rebalances == rebalances
    assert group.members[leader].assignment == owned
    assert group.members[leader].is_leader


def test_a_static_member_leaves_when_asked_to(group):
    """On scale-in a static member gives up its partitions at once."""
    group.join("a", **{"group.instance.id": "pod-a"})
    group.join("b", **{"group.instance.id": "pod-b"})
    group.settle()
    group.members.pop("b").close(leave_group=True)
    group.settle()
    assert len(group.members["a"].assignment) == 4


def instances(group, kafka):
    """Return the instance ids of a group's members from the broker."""
    admin, app = kafka.admin(), group.application_id
    return {
        member.group_instance_id for member in admin.describe_consumer_groups([app])[app].result(PATIENCE_S).members
    }


def test_a_static_member_leaves_before_it_has_an_id(group, kafka):
    """The broker has added it by its instance id before answering its JoinGroup; it does not stay in the group."""
    group.join("a", **{"group.instance.id": "pod-a"})
    group.settle()
    late = group.join("b", **{"group.instance.id": "pod-b"})
    group.until(lambda: "pod-b-1" in instances(group, kafka), "b")
    assert late.member_id == ""
    group.members.pop("b").close(leave_group=True)
    assert instances(group, kafka) == {"pod-a-1"}


def test_a_static_member_leaves_with_an_id_that_it_has_not_looked_at(group, kafka):
    """It leaves even if the stream thread does not poll again after the answer to JoinGroup."""
    member = group.join("a", **{"group.instance.id": "pod-a"})
    while member.state is not MemberState.JOINING:
        member.poll()
    wait_until(lambda: member._shared.step.is_done, "answered")
    group.members.pop("a").close(leave_group=True)
    assert instances(group, kafka) == set()


def test_a_second_process_with_the_same_instance_id_fences_the_first(group):
    """Every poll of the replaced member raises, and its commits are refused."""
    first = group.join("a", **{"group.instance.id": "pod"})
    group.settle()
    group.join("twin", **{"group.instance.id": "pod"})
    group.until(lambda: group.members["twin"].assignment, "twin")
    with pytest.raises(TaskMigratedError):
        first.commit_offsets({group.tp(0): OffsetAndMetadata(1)})
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError, match="pod-1"):
            first.poll(1)
    group.members.pop("a").close()


def test_heartbeats_alone_find_out_that_an_instance_was_fenced(group):
    """A member that only polls notices its replacement too."""
    first = group.join("a", **{"group.instance.id": "pod"})
    group.settle()
    group.join("twin", **{"group.instance.id": "pod"})
    group.until(lambda: group.members["twin"].assignment, "twin")
    with pytest.raises(FencedInstanceIdError):
        group.until(lambda: False, "a")
    assert first.state is MemberState.UNJOINED
    group.members.pop("a").close()


def test_an_instance_that_is_fenced_before_it_knows_its_tasks_stays_fenced(group):
    """Its generation has begun although its thread was too busy to look: it does not take the place of its replacement."""
    group.join("a")
    group.settle()
    generation = group.members["a"].generation
    first = group.join("b", **{"group.instance.id": "pod"})
    first.poll()  # begins to join
    group.until(lambda: group.members["a"].generation > generation and first.state is MemberState.SYNCING, "a")
    group.until(lambda: group.members["a"].state is MemberState.STABLE, "a")
    group.join("twin", **{"group.instance.id": "pod"})
    group.until(lambda: group.members["twin"].assignment, "a", "twin")
    with pytest.raises(FencedInstanceIdError, match="pod-1"):
        group.until(lambda: False, "b")
    group.members.pop("b").close()


def test_offsets_come_back_with_their_metadata(group):
    """Any member reads what was committed, including metadata; partitions without a commit are left out."""
    group.join("a")
    group.settle()
    offsets = {group.tp(0): OffsetAndMetadata(17, "AgAAAAAAAAXc"), group.tp(3): OffsetAndMetadata(0)}
    group.members["a"].commit_offsets(offsets)
    group.members["a"].commit_offsets({})
    assert committed(group.join("b"), [group.tp(n) for n in range(4)]) == offsets


def test_a_commit_of_a_departed_generation_is_migration(group):
    """A member that the broker has removed notices at its commit; it loses its partitions and rejoins."""
    member = group.join("a")
    group.settle()
    member.reset("test: as if the group had moved on", keep_member_id=False)
    with pytest.raises(TaskMigratedError):
        member.commit_offsets({group.tp(0): OffsetAndMetadata(1)})
    with pytest.raises(TaskMigratedError):
        member.group_metadata()
    group.until(lambda: group.of("a", Lost))
    assert group.of("a", Lost) == [Lost(frozenset(group.tp(n) for n in range(4)))]


def test_a_stale_generation_is_refused_by_the_broker(group):
    """A commit with the generation before a rebalance raises TaskMigratedError, and the member rejoins."""
    member = group.join("a")
    group.settle()
    group.join("b")
    group.settle()
    member._shared.generation -= 1
    with pytest.raises(TaskMigratedError, match="ILLEGAL_GENERATION"):
        member.commit_offsets({group.tp(0): OffsetAndMetadata(1)})
    group.until(lambda: group.of("a", Lost))
    group.settle()


def test_a_member_that_drops_its_tasks_while_joining_joins_once(group):
    """Dropping everything with a JoinGroup in flight yields Lost, then all partitions again, and leaves no second member."""
    member = group.join("a")
    group.settle()
    member.request_rejoin("test")
    while member.state is not MemberState.JOINING:
        member.poll()
    member.reset("the tasks were dropped", keep_member_id=True)
    group.until(lambda: group.of("a", Lost) and not member.rebalancing and member.assignment)
    assert group.last("a").added == frozenset(group.tp(n) for n in range(4))
    group.join("b")
    group.settle()


@pytest.mark.parametrize("stale", ["generation", "member"])
def test_a_stale_member_cannot_commit_in_a_transaction(group, kafka, stale):
    """send_offsets_to_transaction with an old identity fails with an abortable error; with the current one it commits."""
    member = group.join("a")
    group.settle()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": group.application_id})
    producer.init_transactions(PATIENCE_S)
    current = member.group_metadata()
    identity = (0, member.member_id) if stale == "generation" else (member.generation, "ghost")
    producer.begin_transaction()
    offsets = [ClientTopicPartition(group.topic, 0, 5)]
    with pytest.raises(KafkaException) as caught:
        producer.send_offsets_to_transaction(
            offsets, encode_group_metadata(group.application_id, *identity), PATIENCE_S
        )
    error = caught.value.args[0]
    assert error.name() == ("ILLEGAL_GENERATION" if stale == "generation" else "UNKNOWN_MEMBER_ID")
    assert error.txn_requires_abort()
    producer.abort_transaction(PATIENCE_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(offsets, current, PATIENCE_S)
    producer.commit_transaction(PATIENCE_S)
    assert committed(member, [group.tp(0)]) == {group.tp(0): OffsetAndMetadata(5)}


def test_committed_waits_for_an_open_transaction(group, kafka, caplog):
    """Reading offsets waits for a transaction that is still open, and says so without a warning."""
    from millrace.errors import StreamsTimeoutError

    caplog.set_level(logging.INFO, "millrace.kafka.membership")

    member = group.join("a")
    group.settle()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": group.application_id})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([ClientTopicPartition(group.topic, 0, 5)], member.group_metadata(), PATIENCE_S)
    with pytest.raises(StreamsTimeoutError, match="UNSTABLE_OFFSET_COMMIT"):
        committed(member, [group.tp(0)], timeout_s=0.5)
    assert [record.levelname for record in caplog.records if "UNSTABLE_OFFSET_COMMIT" in record.message] == ["INFO"]
    with pytest.raises(StreamsTimeoutError, match="UNSTABLE_OFFSET_COMMIT"):
        member.committed_offsets([group.tp(0), group.tp(1)], 0.5)
    producer.commit_transaction(PATIENCE_S)
    assert committed(member, [group.tp(0)]) == {group.tp(0): OffsetAndMetadata(5)}
    assert member.committed_offsets([group.tp(0), group.tp(1)]) == {group.tp(0): 5}


def test_a_member_that_does_not_poll_leaves_and_its_partitions_move(group):
    """After max.poll.interval.ms without a poll a member leaves; when it polls again it has lost its partitions and rejoins."""
    group.join("a")
    group.join("slow", **{"max.poll.interval.ms": 1000})
    group.settle()
    group.until(lambda: len(group.members["a"].assignment) == 4, "a")
    group.until(lambda: group.members["slow"].generation == -1, "a")
    group.until(lambda: group.of("slow", Lost))
    group.settle()


def test_heartbeats_go_on_while_the_thread_processes(group):
    """A member that is busy for longer than its session timeout stays in the group."""
    import time

    member = group.join("a", **{"session.timeout.ms": 3000})
    group.settle()
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        sum(range(10_000))  # the stream thread computes and never polls
    member.commit_offsets({group.tp(0): OffsetAndMetadata(3)})
    assert member.poll() == []
    assert member.generation == 1


def test_a_rejoin_can_be_requested(group):
    """Follow-up and probing rebalances start with request_rejoin, and do not affect partitions that stay."""
    member = group.join("a")
    group.settle()
    member.request_rejoin("probing rebalance")
    group.until(lambda: member.generation == 2 and not member.rebalancing)
    assert group.last("a").added == frozenset()
    assert group.revoked("a") == set()


def test_a_heartbeat_answer_during_a_rejoin_causes_no_second_one(group):
    """A heartbeat's answer that arrives while the member collects its join data does not make it rejoin twice."""
    member = group.join("a")
    group.settle()

    def told_meanwhile():
        member.request_rejoin("the group is rebalancing")
        return b"a"

    member._joining._user_data = told_meanwhile
    member.request_rejoin("test")
    group.until(lambda: member.generation == 2 and not member.rebalancing)
    assert member._shared.rejoin_reason is None


def test_what_a_member_asks_to_rejoin_for_is_told(group):
    """If the group has begun to rebalance, heartbeats do not rejoin with the user data from before the request."""
    told = []

    def assign(members):
        told.extend(subscription.user_data for subscription in members.values())
        return Group.assign(group, members)

    group.assign = assign
    member = group.join("a")
    group.settle()
    member.poll()
    member._joining.rebalance(busy=False)
    member._joining._user_data = lambda: b"stop everywhere"
    member.request_rejoin("the application is to stop everywhere")
    member._joining.rebalance(busy=True)
    group.until(lambda: member.generation == 2 and not member.rebalancing)
    assert told == [b"a", b"stop everywhere"]


def test_a_member_removed_while_rejoining_does_not_claim_its_former_partitions(group):
    """Partitions lost while the member collects its join data are reported first, as others may own them already."""
    claimed = []

    def assign(members):
        claimed.extend(subscription.owned for subscription in members.values())
        return Group.assign(group, members)

    group.assign = assign
    member = group.join("a")
    group.settle()

    def removed_meanwhile():
        if member.generation == 1:
            member.reset("test", keep_member_id=True)
        return b"a"

    member._joining._user_data = removed_meanwhile
    member.request_rejoin("test")
    group.until(lambda: member.generation == 2 and not member.rebalancing)
    assert group.of("a", Lost) == [Lost(frozenset(group.tp(n) for n in range(4)))]
    assert claimed == [frozenset(), frozenset()]


def test_a_member_rejoins_before_or_after_a_heartbeat_s_answer():
    """It does not rejoin between the check that the answer is about its generation and the action on it."""
    config = StreamsConfig.of({"application.id": "app", "bootstrap.servers": "127.0.0.1:9"})
    settings = ClientSettings(config, "p").membership(1)
    shared = SharedState(settings)
    shared.state, shared.generation, shared.member_id = MemberState.STABLE, 1, "me"

    def rejoin():
        with shared.lock:
            shared.state, shared.rejoin_reason = MemberState.JOINING, None

    rejoining = threading.Thread(target=rejoin)

    def found():
        identity = SharedState.heartbeat_identity(shared)
        rejoining.start()
        rejoining.join(0.5)
        return identity

    async def answer(*_):
        return SimpleNamespace(error_code=27)

    shared.rejoin_reason, shared.heartbeat_identity = None, found
    heartbeats = Heartbeats(
        None, SimpleNamespace(send=answer), settings, shared, lambda busy: shared.request_rejoin("test"), None
    )
    asyncio.run(heartbeats._beat(1, "me"))
    rejoining.join()
    assert shared.rejoin_reason is None


def test_new_partitions_of_an_input_topic_are_assigned(group, kafka):
    """The leader notices added partitions and rebalances."""
    from confluent_kafka.admin import NewPartitions

    group.join("a", **{"metadata.max.age.ms": 200})
    group.settle()
    admin = kafka.admin()
    [future] = admin.create_partitions([NewPartitions(group.topic, 6)]).values()
    future.result()
    group.partitions = 6
    group.settle()


def test_a_pattern_finds_new_topics(group, topic_factory):
    """A member that subscribes by pattern rejoins when a matching topic is created."""
    first = topic_factory("pattern", partitions=1)
    stem = first.replace("pattern", "pattern-.*").split("-.*")[0]
    member = group.join("a", patterns=(f"{stem}-.*",), **{"metadata.max.age.ms": 200})
    group.until(lambda: not member.rebalancing)
    assert first in member.subscribed_topics
    second = topic_factory("pattern", partitions=1)
    group.until(lambda: second in member.subscribed_topics and not member.rebalancing)


@pytest.mark.parametrize("error", [ConfigError, FileNotFoundError])
def test_the_assignor_s_error_reaches_the_leader_s_thread(group, error):
    """An exception of the leader's callback is raised by poll, even one that a broken connection might raise too."""

    def assign(_):
        group.rebalances += 1
        raise error("cannot assign")

    group.assign = assign
    group.join("a")
    with pytest.raises(StreamsError, match="cannot assign"):
        group.until(lambda: group.rebalances > 1)


def test_a_member_that_assigns_does_not_wait(group):
    """Its poll returns at once while the brokers take their time; what is late, because it has rejoined, is not sent."""
    original, answer, late = group.assign, threading.Event(), []

    def assign(members):
        if not late:
            late.append(members)
            assert answer.wait(PATIENCE_S)
            return {}
        return original(members)

    group.assign = assign
    member = group.join("a")
    group.until(lambda: late)
    assert member.state is MemberState.SYNCING
    assert member.poll() == []
    assert member.rebalancing
    member.reset("its thread dropped its tasks", keep_member_id=True)
    group.settle()
    answer.set()
    group.settle()


def test_a_leader_that_looks_up_its_topics_stays_a_member(group):
    """It sends heartbeats as soon as its generation has begun: a broker that is slow to answer does not cost its place."""
    member, beats = group.join("a"), []
    counts, beat = member._coordinator.partition_counts, member._heartbeats._beat

    async def late(topics):
        while not beats:
            await member._connection.sleep(0.01)
        return await counts(topics)

    async def noted(*identity):
        beats.append(identity)
        return await beat(*identity)

    member._coordinator.partition_counts, member._heartbeats._beat = late, noted
    group.settle()
    assert beats[0] == (1, member.member_id)


def test_one_assignment_does_not_end_another(group):
    """A leader that assigns again, as it was removed meanwhile, still assigns when the earlier assignment is ready."""
    original, answers = group.assign, []

    def assign(members):
        answers.append(threading.Event())
        assert answers[-1].wait(PATIENCE_S)
        return original(members)

    group.assign = assign
    member = group.join("a")
    group.until(lambda: answers)
    ended, sync = [], member._joining.requests.sync

    async def noted(*arguments):
        ended.append(arguments)
        return await sync(*arguments)

    member._joining.requests.sync = noted
    member.reset("its thread dropped its tasks", keep_member_id=True)
    group.until(lambda: len(answers) == 2)
    answers[0].set()
    group.until(lambda: ended)
    member._connection.run(member._connection.sleep, 0.01)
    assert member.state is MemberState.SYNCING
    answers[1].set()
    group.settle()
    assert member.state is MemberState.STABLE


def test_a_member_that_comes_back_while_it_leaves_keeps_its_new_place(group):
    """Its thread polls again before the answer to LeaveGroup: it rejoins once, and that is not undone by the answer."""
    member = group.join("a", **{"max.poll.interval.ms": 1_000})
    group.settle()
    leave, left, answered = member._joining.requests.leave, threading.Event(), threading.Event()

    async def late(*arguments):
        await leave(*arguments)
        left.set()
        while not answered.is_set():
            await member._connection.sleep(0.01)

    member._joining.requests.leave = late
    assert left.wait(PATIENCE_S)
    with pytest.raises(TaskMigratedError):
        member.commit_offsets({group.tp(0): OffsetAndMetadata(1)})
    group.until(lambda: group.of("a", Lost) and group.balanced())
    member._joining.requests.leave = leave
    identity, ended = (member.generation, member.member_id), []
    stuck = member._heartbeats._member.heartbeat_identity
    member._heartbeats._member.heartbeat_identity = lambda: (ended.append(1), stuck())[1]
    answered.set()
    group.until(lambda: len(ended) > 3)
    assert (member.generation, member.member_id) == identity


def test_a_plain_consumer_in_the_group_is_an_error(group, kafka):
    """A group whose consumers use another protocol cannot be joined; the error says what to do."""
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group.application_id})
    consumer.subscribe([group.topic])
    while not consumer.assignment():
        consumer.poll(0.05)
    group.join("a")
    with pytest.raises(InconsistentGroupError, match=r"application\.id"):
        group.until(lambda: False)
    consumer.close()


def test_a_session_timeout_the_broker_does_not_allow_is_an_error(group):
    """The error names the setting and the broker's limits."""
    group.join("a", **{"session.timeout.ms": 200, "heartbeat.interval.ms": 50})
    with pytest.raises(ConfigError, match=r"session\.timeout\.ms=200"):
        group.until(lambda: False)


def test_many_members_settle(group):
    """Four members that start together share the partitions."""
    for name in "abcd":
        group.join(name)
    group.settle()


def test_subscriptions_survive_their_encoding():
    """A subscription with owned partitions survives its encoding, with topics sorted as Java sorts them."""
    from millrace.assignment.protocol import MemberSubscription
    from millrace.records import TopicPartition

    subscription = MemberSubscription(
        ("a", "b"), b"\x00\x01", frozenset({TopicPartition("a", 1), TopicPartition("b", 0)}), 7, None, "rack"
    )
    assert decode_subscription(encode_subscription(subscription)) == subscription


def test_nobody_waits_for_a_busy_member(group):
    """The leader and an owner that are busy with a record join, assign and sync; the next poll says what is to be given up."""
    for name in "ab":
        group.join(name)
        group.settle()  # so that the first one leads
    for name in "ab":
        group.members[name].poll()
    rebalances = group.rebalances
    group.join("c")
    group.until(lambda: group.of("c", Assigned), "c")
    assert group.rebalances == rebalances + 1
    group.until(lambda: group.of("b", Revoked), "b")
    group.settle()
    assert group.rebalances == rebalances + 2


def test_a_member_rejoins_only_when_its_thread_has_given_up_what_it_must(group):
    """The heartbeats of a thread that is about to give partitions up find out that others wait, and leave rejoining to it."""
    member = group.join("a")
    group.settle()
    group.join("b")
    group.until(lambda: group.of("a", Revoked), "a", "b")
    rebalance, told = member._heartbeats._rebalance, []
    member._heartbeats._rebalance = lambda busy: (told.append(member.state), rebalance(busy=busy))
    group.members["b"].request_rejoin("it waits for partitions")
    group.until(lambda: len(told) > 1, "b")
    assert set(told) == {MemberState.STABLE}
    group.settle()


@pytest.mark.parametrize("code", [None, 16])
def test_a_busy_member_that_cannot_rejoin_stays_a_member(group, code):
    """Its heartbeats go on if the coordinator fails or moves while it rejoins, and its thread tries again when it polls."""
    member = group.join("a")
    group.settle()
    member.poll()
    failed, beats = threading.Event(), []
    join, beat = member._joining.requests.join, member._heartbeats._beat

    async def fail(*_):
        failed.set()
        if code is None:
            raise KafkaConnectionError("test")
        return SimpleNamespace(error_code=code, member_id="")

    async def noted(*identity):
        answered = await beat(*identity)
        beats.append(failed.is_set() and answered)
        return answered

    member._joining.requests.join, member._heartbeats._beat = fail, noted
    group.join("b")
    wait_until(lambda: True in beats, "a heartbeat afterwards", timeout_s=20, meanwhile=lambda: group.poll("b"))
    member._joining.requests.join = join
    group.settle()
    assert group.of("a", Lost) == []


@pytest.mark.parametrize("dies", ["_heartbeats", "_watch"])
def test_a_membership_whose_background_work_fails_ends(group, dies):
    """An unexpected failure on the I/O thread is raised by the next poll; the member does not live on without heartbeats."""
    member = group.join("a")
    group.settle()
    part = getattr(member, dies)

    async def fail(*_):
        raise ValueError("this cannot be read")

    part._beat = part.refresh = fail
    if dies == "_watch":
        member._in_background(part.run, 10)
    with pytest.raises(StreamsError, match="this cannot be read"):
        group.until(lambda: False)
