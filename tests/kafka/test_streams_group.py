"""Members of a real group with the streams protocol (KIP-1071): joining, rebalancing, fencing, offsets, refusals."""

import secrets
import threading

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import NewPartitions
from kafka.errors import KafkaTimeoutError
from tests.brokers import new_topic
from tests.kafka.support import Group, StreamsGroup, committed, set_group
from tests.waiting import PATIENCE_S, wait_until

from millrace.assignment.application_state import HostInfo
from millrace.assignment.protocol import Assigned, Lost, Revoked
from millrace.config import StreamsConfig
from millrace.errors import (
    InconsistentGroupError,
    MissingSourceTopicError,
    TaskMigratedError,
    TopologyError,
    UnsupportedFeatureError,
)
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.group_metadata import encode_group_metadata
from millrace.kafka.membership.state import MemberState
from millrace.kafka.membership.streams.topology import describe_topology
from millrace.kafka.streams_messages import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse
from millrace.plan.topology_plan import PlannedChangelogTopic, PlannedRepartitionTopic, PlannedSubtopology, TopologyPlan
from millrace.records import OffsetAndMetadata, TaskId, TopicPartition

pytestmark = pytest.mark.broker


@pytest.fixture
def group(kafka, topic_factory):
    """Yield a group for a topic with four partitions."""
    group = StreamsGroup(kafka.bootstrap_servers, topic_factory("in", partitions=4), 4)
    yield group
    group.close()


def test_a_single_member_gets_every_task(group, kafka):
    """The coordinator creates the changelog, then gives the member all tasks with their input partitions."""
    member = group.join("a")
    assert member.rebalancing
    group.settle()
    everything = frozenset(group.tp(n) for n in range(4))
    (assigned,) = group.of("a", Assigned)
    assert (assigned.partitions, assigned.added) == (tuple(sorted(everything)), everything)
    assert member.tasks.active == {TaskId(0, n): frozenset([group.tp(n)]) for n in range(4)}
    assert not member.rebalancing
    assert member.group_metadata() == encode_group_metadata(group.application_id, member.generation, member.member_id)
    changelog = f"{group.application_id}-counts-changelog"
    assert len(kafka.admin().list_topics(changelog).topics[changelog].partitions) == 4


def test_a_partition_moves_only_after_its_owner_has_closed_the_task(group):
    """The new member waits until the old one polls again, which it does after closing the tasks that were revoked."""
    first = group.join("a")
    group.settle()
    second = group.join("b")
    group.until(lambda: group.of("a", Revoked), "a", "b")
    revoked = group.of("a", Revoked)[0].partitions
    assert len(revoked) == 2
    assert isinstance(group.events["a"][group.events["a"].index(group.of("a", Revoked)[0]) + 1], Assigned)
    group.until(lambda: second.generation > 0, "b")
    for _ in range(30):
        group.poll("b")  # 0.6 s, or three heartbeats
    assert second.assignment == ()
    group.settle()
    assert set(second.assignment) == revoked
    assert set(first.assignment).isdisjoint(revoked)
    assert not group.of("a", Lost)


def test_tasks_return_when_a_member_closes(group):
    """A member leaves when it closes, and the other one gets its tasks."""
    group.join("a")
    group.join("b")
    group.settle()
    group.members.pop("b").close()
    group.settle()
    assert len(group.members["a"].assignment) == 4


def test_a_member_that_stays_keeps_its_tasks_until_its_session_ends(group):
    """With leave_group=False the coordinator notices only by the missing heartbeats."""
    set_group(group.settings, {"streams.session.timeout.ms": "6000"})
    group.join("a")
    group.join("b")
    group.settle()
    group.members.pop("b").close(leave_group=False)
    for _ in range(20):
        group.poll("a")
    assert len(group.members["a"].assignment) == 2
    group.settle()


def test_standbys_are_the_group_s_setting(group):
    """With streams.num.standby.replicas=1 each member is given standbys of the other's tasks, with their input partitions."""
    set_group(group.settings, {"streams.num.standby.replicas": "1"})
    first, second = group.join("a"), group.join("b")
    group.until(lambda: group.balanced() and len(first.tasks.standby) == len(second.tasks.standby) == 2)
    assert first.tasks.standby == second.tasks.active
    assert second.tasks.standby == first.tasks.active


def test_a_standby_becomes_active_in_two_steps(group):
    """When the owner leaves, its standby is first taken away and then given again as active; nothing is lost."""
    set_group(group.settings, {"streams.num.standby.replicas": "1"})
    first, second = group.join("a"), group.join("b")
    group.until(lambda: group.balanced() and len(first.tasks.standby) == len(second.tasks.standby) == 2)
    group.members.pop("b").close()
    group.until(lambda: len(first.tasks.active) == 4)
    assert not first.tasks.standby
    assert not group.of("a", Lost)


def test_members_know_where_the_state_of_others_is(group):
    """Each process's endpoint comes with the input partitions of its active tasks and of its standbys."""
    set_group(group.settings, {"streams.num.standby.replicas": "1"})
    here, there = HostInfo("here", 1), HostInfo("there", 2)
    first, second = group.join("a", end_point=here), group.join("b", end_point=there)

    def known(member):
        tasks = member.tasks
        return {
            host: (tasks.partitions_by_host.get(host), tasks.standby_partitions_by_host.get(host))
            for host in (here, there)
        }

    def expected():
        return {
            host: (frozenset(member.assignment), frozenset().union(*member.tasks.standby.values()))
            for host, member in ((here, first), (there, second))
        }

    group.until(lambda: group.balanced() and known(first) == known(second) == expected())


def test_a_member_that_is_removed_loses_its_tasks_and_rejoins(group):
    """UNKNOWN_MEMBER_ID ends the membership; the member loses its tasks, and returns with the same id."""
    member = group.join("a")
    group.settle()
    member_id = member.member_id
    member._connection.run(member._heartbeats.leave, 10_000)
    group.until(lambda: group.of("a", Lost))
    assert group.of("a", Lost) == [Lost(frozenset(group.tp(n) for n in range(4)))]
    group.settle()
    assert member.member_id == member_id


def test_a_fenced_epoch_loses_the_tasks(group):
    """An epoch that the coordinator does not know ends the membership; the member rejoins with epoch 0."""
    member = group.join("a")
    group.settle()
    member._shared.generation += 5
    group.until(lambda: group.of("a", Lost))
    group.settle()


def test_a_member_that_drops_its_tasks_gets_them_again(group):
    """After the stream thread has dropped its tasks, they are Lost, and the member rejoins without any."""
    member = group.join("a")
    group.settle()
    member.reset("the tasks were dropped")
    with pytest.raises(TaskMigratedError):
        member.group_metadata()
    group.until(lambda: group.of("a", Lost))
    group.settle()
    assert group.of("a", Assigned)[-1].added == frozenset(group.tp(n) for n in range(4))


def test_a_thread_that_does_not_poll_gives_its_tasks_to_others(group):
    """After max.poll.interval.ms the member leaves, and at its next poll it learns that its tasks are lost."""
    group.join("a", **{"max.poll.interval.ms": 1000})
    group.join("b")
    group.settle()
    group.until(lambda: len(group.members["b"].assignment) == 4, "b")
    group.until(lambda: group.of("a", Lost))
    group.settle()


def test_an_assignment_whose_answer_was_lost_is_followed(group):
    """The coordinator sends a new assignment once. A member that has missed the answer reads it from the group's description."""
    member = group.join("a")
    group.join("b")
    group.settle()
    send, lost = member._coordinator.send, []

    async def lossy(request, *arguments, **named):
        answer = await send(request, *arguments, **named)
        if not lost and getattr(answer, "active_tasks", None) is not None:
            lost.append(answer)
            raise KafkaTimeoutError("the connection broke")
        return answer

    member._coordinator.send = lossy
    group.members.pop("b").close()
    group.settle()
    assert len(lost) == 1
    assert not group.of("a", Lost)


def test_an_assignment_that_was_revoked_before_the_thread_saw_it_is_acknowledged(group):
    """The coordinator waits until the member reports that it does not own those tasks, although it never did."""
    first = group.join("a")
    group.join("b")
    group.settle()
    group.until(lambda: first.state is MemberState.STABLE and first._heartbeats._reported == first._state.current)
    given = len(group.of("a", Assigned))
    set_group(group.settings, {"streams.num.standby.replicas": "1"})
    group.until(lambda: first._state.target is not None and first._state.target.standby, "b")
    set_group(group.settings, {"streams.num.standby.replicas": "0"})
    group.until(lambda: first._state.target is not None and not first._state.target.standby, "b")
    with GroupAdmin(ClientSettings(StreamsConfig.of(group.settings), "admin")) as admin:
        group.until(lambda: admin.describe().state == "Stable")
    assert len(group.of("a", Assigned)) == given


def test_offsets_come_back_with_their_metadata(group):
    """Offsets are committed with the member's epoch and read by another member."""
    member = group.join("a")
    group.settle()
    offsets = {group.tp(0): OffsetAndMetadata(17, "AgAAAAAAAAXc"), group.tp(3): OffsetAndMetadata(0)}
    member.commit_offsets(offsets)
    member.commit_offsets({})
    assert committed(group.join("b"), [group.tp(n) for n in range(4)]) == offsets


def test_a_commit_with_a_stale_epoch_is_tried_again_with_the_new_one(group):
    """STALE_MEMBER_EPOCH does not mean that the tasks have moved: the member learns its epoch and commits."""
    member = group.join("a")
    group.settle()
    group.join("b")
    group.settle()
    group.members.pop("b").close()
    group.settle()  # the partitions that came back are assigned in the latest epoch
    epoch = member.generation
    added = group.of("a", Assigned)[-1].added
    previous = threading.Timer(0.5, lambda: setattr(member._shared, "generation", epoch))
    member._shared.generation = epoch - 1
    previous.start()
    member.commit_offsets(dict.fromkeys(added, OffsetAndMetadata(9)))
    previous.join()
    assert member.generation == epoch
    assert committed(member, list(added)) == dict.fromkeys(added, OffsetAndMetadata(9))
    assert not group.of("a", Lost)


def test_a_removed_member_cannot_commit(group):
    """UNKNOWN_MEMBER_ID is migration: others may have the tasks."""
    member = group.join("a")
    group.settle()
    member._connection.run(member._heartbeats.leave, 10_000)
    with pytest.raises(TaskMigratedError):
        member.commit_offsets({group.tp(0): OffsetAndMetadata(1)})
    group.until(lambda: group.of("a", Lost))


@pytest.mark.parametrize("stale", ["epoch", "member"])
def test_a_stale_member_cannot_commit_in_a_transaction(group, kafka, stale):
    """send_offsets_to_transaction with a wrong identity fails with an abortable error; with the current one it commits."""
    member = group.join("a")
    group.settle()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": group.application_id})
    producer.init_transactions(PATIENCE_S)
    identity = (member.generation + 1, member.member_id) if stale == "epoch" else (member.generation, "ghost")
    producer.begin_transaction()
    offsets = [ClientTopicPartition(group.topic, 0, 5)]
    with pytest.raises(KafkaException) as caught:
        producer.send_offsets_to_transaction(
            offsets, encode_group_metadata(group.application_id, *identity), PATIENCE_S
        )
    error = caught.value.args[0]
    assert error.name() == ("ILLEGAL_GENERATION" if stale == "epoch" else "UNKNOWN_MEMBER_ID")
    assert error.txn_requires_abort()
    producer.abort_transaction(PATIENCE_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(offsets, member.group_metadata(), PATIENCE_S)
    producer.commit_transaction(PATIENCE_S)
    assert committed(member, [group.tp(0)])[group.tp(0)].offset == 5


def test_a_transaction_survives_a_new_epoch_that_the_member_does_not_know_yet(group, kafka):
    """Brokers accept the epoch in which a partition was assigned, and any later one; what came back since is refused."""
    member = group.join("a")
    group.settle()
    epoch = member.generation
    group.join("b")
    group.settle()
    kept = member.assignment
    group.members.pop("b").close()
    group.settle()
    (back, *_) = group.of("a", Assigned)[-1].added
    assert member.generation > epoch
    stale = encode_group_metadata(group.application_id, epoch, member.member_id)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": group.application_id})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([ClientTopicPartition(*kept[0], 5)], stale, PATIENCE_S)
    producer.commit_transaction(PATIENCE_S)
    assert committed(member, kept)[kept[0]].offset == 5
    producer.begin_transaction()
    with pytest.raises(KafkaException, match="ILLEGAL_GENERATION"):
        producer.send_offsets_to_transaction([ClientTopicPartition(*back, 5)], stale, PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)


def test_a_missing_source_topic_is_an_error_after_two_heartbeats(group):
    """As in Java: the group waits for two heartbeat intervals, then every member ends and names the topic."""
    group.join("a", group.plan(source_topics=(group.topic, "nowhere")), end_point=HostInfo("h", 1))
    with pytest.raises(MissingSourceTopicError, match="nowhere"):
        group.until(lambda: False)


def test_a_source_topic_that_appears_in_time_is_used(group, kafka):
    """A member that joined without its endpoint, because the topic was missing, sends it once the tasks are known."""
    late, host = f"late-{secrets.token_hex(4)}", HostInfo("h", 1)
    member = group.join("a", group.plan(source_topics=(late,)), end_point=host)
    group.until(lambda: member._state.topics_missing_since_s is not None)
    kafka.create_topics(late, partitions=4)
    group.topic = late
    group.settle()
    group.until(lambda: member.tasks.partitions_by_host.get(host) == frozenset(member.assignment))


def test_new_partitions_of_an_input_are_read_by_the_tasks_that_exist(group, kafka, topic_factory):
    """The other input has as many partitions as before, so the coordinator has no other tasks to assign."""
    other = topic_factory("other", partitions=2)
    member = group.join("a", group.plan(source_topics=(group.topic, other)))
    group.until(lambda: len(member.assignment) == 6)
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(other, 4)])[other].result()
    group.until(lambda: TopicPartition(other, 3) in member.assignment)
    assert group.of("a", Assigned)[-1].added == {TopicPartition(other, 2), TopicPartition(other, 3)}
    assert not group.of("a", Revoked)


def test_a_broker_that_knows_fewer_partitions_takes_none_away(group, kafka, topic_factory):
    """Any broker is asked about the inputs when an epoch begins; if its metadata is older, another look finds what it lacks."""
    other, asked = topic_factory("other", partitions=2), []
    plan = group.plan(source_topics=(group.topic, other))
    member = group.join("a", plan, **{"metadata.max.age.ms": 2000})
    group.until(lambda: len(member.assignment) == 6)
    counts = member._coordinator.partition_counts

    async def behind(topics):
        asked.append(topics)
        return {**await counts(topics), other: 1}

    member._coordinator.partition_counts = behind
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(other, 4)])[other].result()
    group.until(lambda: asked)
    group.poll()
    assert len(member.assignment) == 6
    member._coordinator.partition_counts = counts
    group.until(lambda: len(member.assignment) == 8)
    assert not group.of("a", Revoked)


def test_inputs_that_do_not_fit_together_are_an_error(group, topic_factory):
    """Topics of one co-partition group must have the same number of partitions; the coordinator names them."""
    other = topic_factory("other", partitions=3)
    topics = (group.topic, other)
    group.join("a", group.plan(source_topics=topics, copartition_groups=(topics,)))
    with pytest.raises(TopologyError, match=other):
        group.until(lambda: False)


def test_a_member_with_another_topology_is_refused(group):
    """A group keeps the topology it was created with; the error says what to do."""
    group.join("a")
    group.settle()
    group.join("b", group.plan(store="others"))
    with pytest.raises(TopologyError, match=r"application\.id"):
        group.until(lambda: False, "b")


def test_a_group_with_classic_members_is_refused(group):
    """While members of another protocol are in the group, it cannot be joined."""
    classic = Group(group.settings["bootstrap.servers"], group.topic, 4)
    classic.settings["application.id"] = group.application_id
    classic.join("a")
    classic.settle()
    group.join("b")
    with pytest.raises(InconsistentGroupError, match=r"group\.protocol"):
        group.until(lambda: False)
    classic.close()


def test_a_classic_member_is_refused_by_a_streams_group(group):
    """The other way round too."""
    group.join("a")
    group.settle()
    classic = Group(group.settings["bootstrap.servers"], group.topic, 4)
    classic.settings["application.id"] = group.application_id
    classic.join("b")
    with pytest.raises(InconsistentGroupError, match=r"group\.protocol"):
        classic.until(lambda: False)
    classic.close()


def test_patterns_are_refused(group):
    """Coordinators do not assign topics that are read by a pattern."""
    with pytest.raises(UnsupportedFeatureError, match="pattern"):
        group.join("a", group.plan(source_topics=(), source_patterns=("in-.*",)))
    group.members.clear()


def test_a_member_outlives_a_restart_of_its_broker(breakable_kafka):
    """While the broker is away nothing is lost; afterwards the member is the same, with the same tasks."""
    kafka = breakable_kafka
    # For as long as a session lasts, a heartbeat that was not answered may still arrive.
    group = StreamsGroup(kafka.bootstrap_servers, new_topic(kafka, partitions=4), 4, **{"session.timeout.ms": 3000})
    member = group.join("a")
    group.settle()
    member_id, epoch = member.member_id, member.generation
    kafka.restart_broker()
    offsets = {group.tp(0): OffsetAndMetadata(3)}
    member.commit_offsets(offsets)
    group.until(lambda: member._heartbeats._reported == member._state.current)
    assert (member.member_id, member.generation) == (member_id, epoch)
    assert committed(member, [group.tp(0)]) == offsets
    assert not group.of("a", Lost)
    group.close()


def test_brokers_without_the_protocol_are_an_error(own_kafka):
    """Where only the classic protocol is on, an operator can ask for it, and the error says what the brokers need."""
    kafka = own_kafka(config={"group.coordinator.rebalance.protocols": "classic"})
    kafka.create_topics("in", partitions=4)
    group = StreamsGroup(kafka.bootstrap_servers, "in", 4)
    with GroupAdmin(ClientSettings(StreamsConfig.of(group.settings), "admin")) as admin:
        assert not admin.brokers_assign()
    group.join("a")
    with pytest.raises(UnsupportedFeatureError, match=r"group\.protocol=streams"):
        group.until(lambda: False)
    group.close()


def test_one_member_stops_the_application(group):
    """Every member learns of the request, and the one that asked returns once the coordinator knows."""
    group.join("a")
    group.join("b")
    group.settle()
    group.members["a"].shut_down_application(30)
    group.until(lambda: all(member.tasks.shutdown_requested for member in group.members.values()))


def test_administration_sees_the_members(group):
    """Descriptions of a streams group have its state and members, so that a reset does not take it for stopped."""
    member = group.join("a")
    group.settle()
    with GroupAdmin(ClientSettings(StreamsConfig.of(group.settings), "admin")) as admin:
        described = admin.describe()
        assert described.state in {"Stable", "Reconciling"}
        (found,) = described.members
        assert (found.member_id, found.instance_id) == (member.member_id, None)
        assert found.client_id == f"{group.application_id}-a-StreamThread-1-consumer"
        group.members.pop("a").close()
        wait_until(lambda: admin.describe().state == "Empty", lambda: str(admin.describe()))
        assert admin.members() == ()
        assert admin.of_group("another", 10).describe().state == "Dead"


def test_administration_removes_a_member(group):
    """A member is removed on its behalf, so that others get its tasks at once; again, and for nobody, nothing happens."""
    group.join("a")
    group.join("b")
    group.settle()
    removed = group.members.pop("b")
    try:
        with GroupAdmin(ClientSettings(StreamsConfig.of(group.settings), "admin")) as admin:
            (found,) = (item for item in admin.members() if item.member_id == removed.member_id)
            admin.remove([found])
            group.settle()
            admin.remove([found])
            assert [item.member_id for item in admin.members()] == [group.members["a"].member_id]
    finally:
        removed.close()


JAVA_REQUEST = (
    "04617070046d2d3100000000ffffffff000272000493e001000000000302300303696e066f74686572010102126170702d782d726570617274697469"
    "6f6e01020300000001010100000231010102106170702d732d6368616e67656c6f6700000000ffff020f636c65616e75702e706f6c69637908636f6d"
    "7061637400000102126170702d782d7265706172746974696f6e00000003ffff020f636c65616e75702e706f6c6963790764656c6574650000010000"
    "01020231030000000000000002000104702d31010268c3500002057a6f6e6502610000000000"
)
JAVA_RESPONSE = (
    "00000000006e0265046d2d310000000700001388000027100000ea6002050864656c617965640002023103000000000000000200000000000003020268"
    "c350000203696e020000000400010000"
)


def test_requests_are_encoded_as_java_encodes_them():
    """The bytes of a joining heartbeat with every field that coordinators accept, as kafka-clients 4.3.1 wrote them."""
    message = StreamsGroupHeartbeatRequest
    plan = TopologyPlan(
        application_id="app",
        hash="",
        subtopologies=(
            PlannedSubtopology(
                id=1,
                source_topics=("app-x-repartition",),
                repartition_topics=(
                    PlannedRepartitionTopic(
                        name="app-x-repartition", partitions=3, config={"cleanup.policy": "delete"}
                    ),
                ),
                changelog_topics=(PlannedChangelogTopic(name="app-s-changelog", config={"cleanup.policy": "compact"}),),
            ),
            PlannedSubtopology(
                id=0,
                source_topics=("other", "in"),
                sink_topics=("out", "app-x-repartition"),
                copartition_groups=(("other", "in"),),
            ),
        ),
    )
    request = message(
        version=0,
        group_id="app",
        member_id="m-1",
        member_epoch=0,
        endpoint_information_epoch=-1,
        rack_id="r",
        rebalance_timeout_ms=300_000,
        topology=describe_topology(plan, -1),
        active_tasks=[],
        standby_tasks=[message.TaskIds(subtopology_id="1", partitions=[0, 2])],
        warmup_tasks=[],
        process_id="p-1",
        user_endpoint=message.Endpoint(host="h", port=50_000),
        client_tags=[message.KeyValue(key="zone", value="a")],
    )
    assert request.encode(version=0).hex() == JAVA_REQUEST


def test_answers_are_decoded_as_java_encodes_them():
    """An answer with status, tasks and endpoints, as kafka-clients 4.3.1 wrote it."""
    answer = StreamsGroupHeartbeatResponse.decode(bytes.fromhex(JAVA_RESPONSE), version=0)
    assert (answer.error_code, answer.error_message, answer.member_id, answer.member_epoch) == (110, "e", "m-1", 7)
    assert (answer.heartbeat_interval_ms, answer.acceptable_recovery_lag) == (5000, 10_000)
    assert (answer.task_offset_interval_ms, answer.endpoint_information_epoch) == (60_000, 3)
    assert [(status.status_code, status.status_detail) for status in answer.status] == [(5, "delayed")]
    assert [(task.subtopology_id, list(task.partitions)) for task in answer.active_tasks] == [("1", [0, 2])]
    assert answer.standby_tasks is None
    (host,) = answer.partitions_by_user_endpoint
    assert (host.user_endpoint.host, host.user_endpoint.port) == ("h", 50_000)
    assert [(item.topic, list(item.partitions)) for item in host.active_partitions] == [("in", [4])]
    assert list(host.standby_partitions) == []
