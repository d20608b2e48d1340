"""Members, administration and offsets when one of three brokers stops, hangs or restarts: leaders and coordinators move."""

import secrets
import threading
import time

import pytest
from confluent_kafka import Producer
from tests.brokers import STREAMS_GROUPS, heal, new_topic
from tests.committed_offsets import group_admin
from tests.kafka.support import Group, StreamsGroup, Watched
from tests.waiting import PATIENCE_S, wait_until

from millrace.assignment.protocol import Lost
from millrace.dev.kafka import EmbeddedKafka
from millrace.errors import StreamsTimeoutError
from millrace.kafka.offsets import delete_records, earliest_offsets, latest_offsets
from millrace.records import OffsetAndMetadata, TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.slow]

COORDINATOR_NOT_AVAILABLE = 15


@pytest.fixture(scope="module")
def cluster():
    """Yield three brokers, which are quick to answer that a group's change has not been replicated."""
    with EmbeddedKafka(3, config={**STREAMS_GROUPS, "offsets.commit.timeout.ms": "1000"}) as kafka:
        yield kafka


@pytest.fixture
def three(cluster):
    """Return the brokers; all of them are running."""
    heal(cluster)
    return cluster


@pytest.mark.parametrize("change", ["revoked", pytest.param("added", marks=pytest.mark.thorough)])
def test_a_change_that_the_coordinator_stores_late_is_followed(three, change):
    """A coordinator whose replicas are slow answers with an error, but the change takes effect; no answer ever tells of it."""
    group = StreamsGroup(three.bootstrap_servers, new_topic(three, partitions=4), 4, **{"request.timeout.ms": 5000})
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
    follower = next(broker for broker in three.broker_ids if broker != first._coordinator._node)
    three.pause(follower)
    watched.held = False
    group.until(lambda: COORDINATOR_NOT_AVAILABLE in watched.codes)
    three.resume(follower)
    group.settle()
    assert not group.of("a", Lost)
    assert not group.of("b", Lost)
    group.close()


@pytest.mark.thorough
def test_nothing_is_sent_once_nobody_waits_for_it(three):
    """A commit that could not be sent in time is not sent later, when the coordinator answers again."""
    partition = TopicPartition(new_topic(three), 0)
    with group_admin(three, "app") as asking, group_admin(three, "app") as admin:

        def coordinator(group_id):
            return asking._manager.run(asking._client._find_coordinator_id, group_id)

        def unconnected(group_id):
            return coordinator(group_id) not in admin._manager._conns

        asking.describe()
        group_id = wait_until(lambda: next(filter(unconnected, map("g{}".format, range(20))), None), "a group")
        three.pause(coordinator(group_id))
        with pytest.raises(StreamsTimeoutError):
            admin.of_group(group_id, 2.0).commit({partition: 5})
        three.resume(coordinator(group_id))
        assert asking.of_group(group_id, PATIENCE_S).stable_offsets() == {}
        admin.of_group(
            group_id, PATIENCE_S
        ).describe()  # over the connection on which the commit would have been sent before
        assert asking.of_group(group_id, PATIENCE_S).stable_offsets() == {}


@pytest.mark.thorough
def test_leaders_are_found_again(three):
    """A client keeps working when leaders move because brokers restart one after another."""
    topic = new_topic(three, partitions=3)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    producer = Producer({"bootstrap.servers": three.bootstrap_servers})
    for partition in partitions:
        for _ in range(10):
            producer.produce(topic, b"x", partition=partition.partition)
    assert producer.flush(PATIENCE_S) == 0
    admin = three.admin()
    assert latest_offsets(admin, partitions) == dict.fromkeys(partitions, 10)
    delete_records(admin, dict.fromkeys(partitions, 1))
    for round_, broker in enumerate((1, 2, 3), start=2):
        three.restart_broker(broker)
        delete_records(admin, dict.fromkeys(partitions, round_), PATIENCE_S)
        assert earliest_offsets(admin, partitions, PATIENCE_S) == dict.fromkeys(partitions, round_)


def test_a_coordinator_that_moves(three):
    """It is looked for again whenever another broker answers, or none: by whoever asks meanwhile, and later."""
    partition = TopicPartition(new_topic(three), 0)
    app = f"app-{secrets.token_hex(4)}"
    with group_admin(three, app, PATIENCE_S) as group, group_admin(three, app, PATIENCE_S) as later:
        group.commit({partition: 5})
        assert later.describe().state == "Empty"
        answers, problems, done = [], [], threading.Event()

        def read():
            while not done.is_set():
                try:
                    answers.append(group.stable_offsets([partition]))
                    time.sleep(0.01)
                except Exception as error:
                    problems.append(error)
                    return

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        for broker in three.broker_ids:
            three.restart_broker(broker)
            before = len(answers)
            wait_until(lambda before=before: problems or len(answers) > before + 20, "answers")
            assert problems == []
            assert later.describe().state == "Empty"
            assert later.positions().keys() == {partition}
            later.of_group("nobody", PATIENCE_S).delete()
        done.set()
        for reader in readers:
            reader.join()
    assert problems == []
    assert all(answer == {partition: 5} for answer in answers)


def test_the_coordinator_moves_to_another_broker(three):
    """When the coordinating broker is killed, another one takes over, and no partition is lost."""
    limits = {"session.timeout.ms": 30_000, "request.timeout.ms": 5000}
    group = Group(three.bootstrap_servers, new_topic(three, partitions=4), 4, **limits)
    group.join("a")
    group.join("b")
    group.settle()
    owned = {name: member.assignment for name, member in group.members.items()}
    group.until(lambda: group.members["a"]._coordinator._node is not None)
    three.kill(group.members["a"]._coordinator._node)
    for member in group.members.values():
        member.commit_offsets({tp: OffsetAndMetadata(9) for tp in member.assignment}, PATIENCE_S)
    group.settle()
    assert {name: member.assignment for name, member in group.members.items()} == owned
    group.close()


def test_the_coordinator_of_a_streams_group_moves_to_another_broker(three):
    """When the coordinating broker is killed, another one takes over, and the members keep their tasks."""
    limits = {"request.timeout.ms": 5000}
    group = StreamsGroup(three.bootstrap_servers, new_topic(three, partitions=4), 4, **limits)
    member = group.join("a")
    group.join("b")
    group.settle()
    owned = {name: each.assignment for name, each in group.members.items()}
    former = member._coordinator._node
    three.kill(former)
    for each in group.members.values():
        each.commit_offsets({tp: OffsetAndMetadata(9) for tp in each.assignment}, PATIENCE_S)
    group.until(lambda: member._coordinator._node not in (None, former))
    group.settle()
    assert {name: each.assignment for name, each in group.members.items()} == owned
    assert not [event for name in "ab" for event in group.of(name, Lost)]
    group.close()
