"""Members when brokers stop, hang or move, when their own process is suspended, and with wrong listeners or credentials."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kafka.protocol.consumer import JoinGroupRequest, SyncGroupRequest
from tests import forked
from tests.kafka.support import Group, committed
from tests.waiting import wait_until

from millrace.assignment.protocol import Assigned, Lost
from millrace.config import StreamsConfig
from millrace.dev.kafka import SaslPlain
from millrace.errors import (
    AuthenticationError,
    BrokerUnreachableError,
    StreamsTimeoutError,
)
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.connection_check import check_connection, split_server
from millrace.kafka.membership.heartbeat import Heartbeats
from millrace.kafka.membership.state import MemberState
from millrace.records import OffsetAndMetadata

pytestmark = pytest.mark.broker

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{}";'


def sasl(servers, password="secret", **settings):
    """Return settings of an application that logs in as alice."""
    return {
        "application.id": "app",
        "bootstrap.servers": servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": JAAS.format(password),
        **settings,
    }


def clients(settings):
    """Return the settings of an application's clients."""
    return ClientSettings(StreamsConfig.of(settings), "test")


def test_a_member_outlives_a_restart_of_its_broker(own_kafka):
    """When the only broker restarts, the member finds its coordinator again, keeps its generation, and commits."""
    kafka = own_kafka()
    kafka.create_topics("in", partitions=4)
    group = Group(kafka.bootstrap_servers, "in", 4, **{"session.timeout.ms": 30_000})
    group.join("a")
    group.join("b")
    group.settle()
    owned = {name: member.assignment for name, member in group.members.items()}
    kafka.restart_broker()
    for member in group.members.values():
        member.commit_offsets({tp: OffsetAndMetadata(9) for tp in member.assignment}, timeout_s=60)
    group.until(lambda: all(not member.rebalancing for member in group.members.values()), timeout_s=60)
    group.settle(timeout_s=60)
    assert {name: member.assignment for name, member in group.members.items()} == owned
    assert not group.of("a", Lost)
    assert not group.of("b", Lost)
    group.close()


def test_a_member_that_joins_while_the_broker_is_away_joins_later(own_kafka):
    """A rebalance that is interrupted because a broker stops is repeated until it succeeds."""
    kafka = own_kafka()
    kafka.create_topics("in", partitions=4)
    group = Group(kafka.bootstrap_servers, "in", 4, **{"session.timeout.ms": 30_000})
    member = group.join("a")
    kafka.stop_broker()
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        assert member.poll(0.1) == []
    kafka.restart_broker()
    group.settle(timeout_s=60)
    group.close()


class Interrupted(Group):
    """A group whose broker restarts once while the leader, `a`, assigns a generation with a new id of the static member `b`."""

    restarts = False

    def __init__(self, kafka):
        super().__init__(kafka.bootstrap_servers, "in", 3, **{"session.timeout.ms": 15_000})
        self.kafka = kafka
        kafka.create_topics("in", partitions=3)

    def assign(self, members):
        if self.restarts and len(members) == 3:
            self.restarts = False
            b = self.members["b"]
            wait_until(lambda: b.state is MemberState.SYNCING or b._shared.step.is_done, "b has its id")
            self.kafka.restart_broker()
            self.restarted()
        return super().assign(members)

    def restarted(self):
        """Called in the leader's thread before it sends its assignment."""

    def begin(self):
        """Let the process of `b` end, `c` join and another process of `b` join, so that the generation begins that is lost."""
        self.join("a")
        self.settle()
        self.join("b", **{"group.instance.id": "pod-b"})
        self.settle()
        assert self.members["a"].is_leader
        self.members.pop("b").close()
        self.restarts = True
        self.join("c")
        self.until(lambda: self.members["a"]._shared.rejoin_reason is not None, "c")
        self.join("b", **{"group.instance.id": "pod-b"})


def test_a_static_member_whose_new_id_the_coordinator_lost_joins_again(own_kafka):
    """A coordinator that fails before a generation begins forgets the id of a process that came back: it gets another one."""
    group = Interrupted(own_kafka())
    group.begin()
    earlier = len(group.of("b", Assigned))
    group.until(lambda: not group.restarts and len(group.of("b", Assigned)) > earlier, timeout_s=120)
    group.close()


def test_the_assignment_of_a_lost_generation_does_not_reach_the_one_with_the_same_number(own_kafka):
    """A SyncGroup that waited for the coordinator is not sent after the JoinGroup that replaces it: its ids are obsolete."""

    class Overtaken(Interrupted):
        """A group whose leader finds the coordinator for its next JoinGroup first."""

        def restarted(self):
            leader, joins, held = self.members["a"], [], []
            send = leader._coordinator.send

            async def join_first(request, *arguments, **options):
                if isinstance(request, JoinGroupRequest):
                    joins.append(request)
                elif isinstance(request, SyncGroupRequest) and not held:
                    held.append(request)
                    while not joins:
                        await leader._connection.sleep(0.01)
                return await send(request, *arguments, **options)

            leader._coordinator.send = join_first

    group = Overtaken(own_kafka())
    group.begin()
    group.until(lambda: not group.restarts)
    group.settle(timeout_s=120)
    assert all(event.user_data for name in group.members for event in group.of(name, Assigned))
    group.close()


def test_a_member_that_its_leader_left_out_joins_again(kafka, topic_factory):
    """A member to which the leader assigned nothing at all, not even user data, does not rest in that generation."""

    class Forgetful(Group):
        """A group whose leader once forgets the other member."""

        forgets = True

        def assign(self, members):
            if self.forgets and len(members) == 2:
                self.forgets = False
                leader = self.members["a"].member_id
                return super().assign({leader: members[leader]})
            return super().assign(members)

    group = Forgetful(kafka.bootstrap_servers, topic_factory("in", partitions=4), 4)
    group.join("a")
    group.settle()
    group.join("b")
    group.until(lambda: not group.forgets)
    group.settle()
    assert [event.user_data for event in group.of("b", Assigned)][:2] == [b"", b"data of b"]
    group.close()


def test_commits_give_up_in_time_when_no_broker_answers(own_kafka):
    """A commit and a read raise StreamsTimeoutError after their timeouts; close does not hang."""
    kafka = own_kafka()
    kafka.create_topics("in", partitions=4)
    group = Group(kafka.bootstrap_servers, "in", 4)
    member = group.join("a")
    group.settle()
    kafka.pause()
    began = time.monotonic()
    with pytest.raises(StreamsTimeoutError):
        member.committed_offsets([group.tp(0)], 1.0)
    assert time.monotonic() - began < 15, "and not the 30 s of a request"
    kafka.resume()
    kafka.kill()
    began = time.monotonic()
    with pytest.raises(StreamsTimeoutError):
        member.commit_offsets({group.tp(0): OffsetAndMetadata(1)}, timeout_s=1)
    with pytest.raises(StreamsTimeoutError):
        committed(member, [group.tp(0)], timeout_s=1)
    member.close(timeout_s=1)
    assert time.monotonic() - began < 30, "and not the minutes of the defaults"


@pytest.mark.slow
def test_the_coordinator_moves_to_another_broker(own_kafka):
    """When the coordinating broker is killed, another one takes over, and no partition is lost."""
    kafka = own_kafka(brokers=3)
    kafka.create_topics("in", partitions=4)
    group = Group(kafka.bootstrap_servers, "in", 4, **{"session.timeout.ms": 30_000, "request.timeout.ms": 5000})
    group.join("a")
    group.join("b")
    group.settle()
    owned = {name: member.assignment for name, member in group.members.items()}
    group.until(lambda: group.members["a"]._coordinator._node is not None)
    kafka.kill(group.members["a"]._coordinator._node)
    for member in group.members.values():
        member.commit_offsets({tp: OffsetAndMetadata(9) for tp in member.assignment}, timeout_s=60)
    group.settle(timeout_s=60)
    assert {name: member.assignment for name, member in group.members.items()} == owned
    group.close()


def test_a_frozen_process_comes_back_as_a_migrated_member(kafka, topic_factory):
    """After a long SIGSTOP others take over, the commit after SIGCONT is refused, and the member rejoins."""
    group = Group(kafka.bootstrap_servers, topic_factory("in", partitions=4), 4)
    group.join("taker")  # which joins once it is polled
    root = Path(__file__).parents[2]
    child = forked.Popen(
        [
            sys.executable,
            "-m",
            "tests.kafka.stopped_member",
            kafka.bootstrap_servers,
            group.application_id,
            group.topic,
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root / 'runtime'}{os.pathsep}{root}"},
    )
    try:
        assert child.stdout.readline() == "owns\n"
        child.send_signal(signal.SIGSTOP)
        group.until(lambda: len(group.members["taker"].assignment) == 4)
        child.send_signal(signal.SIGCONT)
        assert child.stdout.readline().startswith("migrated")
        group.until(lambda: child.poll() is not None)
        assert child.stdout.read() == "rejoined 2\n"
        assert child.returncode == 0
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        group.close()


@pytest.fixture(scope="module")
def secured():
    """Yield a Kafka with an open and a SASL listener."""
    from millrace.dev.kafka import EmbeddedKafka

    with EmbeddedKafka(security=SaslPlain({"alice": "secret"})) as kafka:
        kafka.create_topics("in", partitions=4)
        yield kafka


def test_members_log_in(secured):
    """A member joins through a SASL listener, and its clients share the credentials."""
    group = Group(secured.sasl_bootstrap_servers, "in", 4, **sasl(secured.sasl_bootstrap_servers))
    group.join("a")
    group.settle()
    group.close()


def test_a_wrong_password_is_an_authentication_error(secured):
    """The error is raised at once and says what was refused, without the password."""
    began = time.monotonic()
    with pytest.raises(AuthenticationError, match="password is wrong") as caught:
        check_connection(clients(sasl(secured.sasl_bootstrap_servers, "wrong-one")), timeout_s=60)
    assert "wrong-one" not in str(caught.value)
    assert time.monotonic() - began < 30


def test_an_offered_mechanism_is_suggested(secured):
    """The error for a mechanism that the listener does not offer names those that it does."""
    settings = sasl(secured.sasl_bootstrap_servers, **{"sasl.mechanism": "SCRAM-SHA-256"})
    settings["sasl.jaas.config"] = settings["sasl.jaas.config"].replace("plain.Plain", "scram.Scram")
    with pytest.raises(AuthenticationError, match=r"does not offer .*SCRAM-SHA-256, but PLAIN"):
        check_connection(clients(settings))


@pytest.mark.parametrize("direction", ["plain client", "sasl client", "tls client"])
def test_the_wrong_listener_is_told_from_an_absent_one(secured, direction, monkeypatch):
    """The error for another protocol than the listener's says that there is a listener, and what to set."""
    monkeypatch.setattr("millrace.kafka.connection_check._MISMATCH_PATIENCE_S", 1.0)
    settings = {
        "plain client": {"application.id": "app", "bootstrap.servers": secured.sasl_bootstrap_servers},
        "sasl client": sasl(secured.bootstrap_servers),
        "tls client": {
            "application.id": "app",
            "bootstrap.servers": secured.bootstrap_servers,
            "security.protocol": "SSL",
        },
    }[direction]
    with pytest.raises(AuthenticationError, match=r"security\.protocol"):
        check_connection(clients(settings), timeout_s=30)


def test_a_member_with_the_wrong_password_does_not_start(secured):
    """GroupMember.start raises the error of the connection check."""
    group = Group(secured.sasl_bootstrap_servers, "in", 4, **sasl(secured.sasl_bootstrap_servers, "nope"))
    with pytest.raises(AuthenticationError):
        group.join("a")


def test_a_member_whose_start_fails_unexpectedly_can_be_closed(secured, monkeypatch):
    """If a step fails in a way that nobody expects, close still ends the member's IO thread and its connections."""
    group = Group(secured.bootstrap_servers, "in", 4)
    before, started = set(threading.enumerate()), []

    class Broken(Heartbeats):
        def __init__(self, *_args):
            started.extend(thread for thread in threading.enumerate() if thread not in before)
            raise ZeroDivisionError

    monkeypatch.setattr("millrace.kafka.membership.member.Heartbeats", Broken)
    member = group.member("a")
    with pytest.raises(ZeroDivisionError):
        member.start()
    assert any(thread.is_alive() for thread in started)
    member.close()
    assert member.closed
    wait_until(lambda: not any(thread.is_alive() for thread in started), "its threads to end")


def test_unreachable_brokers_are_an_error():
    """After the timeout, the error names the servers and what to check."""
    settings = {"application.id": "app", "bootstrap.servers": "127.0.0.1:1,no.such.host.invalid:9092"}
    with pytest.raises(BrokerUnreachableError, match=r"127\.0\.0\.1:1.*[Cc]heck"):
        check_connection(clients(settings), timeout_s=0.5)


def test_one_of_several_servers_is_enough(secured):
    """The check succeeds as soon as one broker answers."""
    servers = f"127.0.0.1:1,{secured.bootstrap_servers}"
    check_connection(clients({"application.id": "app", "bootstrap.servers": servers}))


def test_a_server_without_a_port_is_an_error():
    """bootstrap.servers needs host and port."""
    with pytest.raises(BrokerUnreachableError, match="host:port"):
        split_server("kafka")
