"""Members when brokers stop, hang or move, when their own process is suspended, and with wrong listeners or credentials."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kafka.protocol.consumer import JoinGroupRequest, SyncGroupRequest
from tests import forked
from tests.brokers import login, new_topic
from tests.kafka.support import Group, committed
from tests.waiting import PATIENCE_S, wait_until

from millrace.assignment.protocol import Assigned, Lost, MemberAssignment
from millrace.config import StreamsConfig
from millrace.errors import (
    AuthenticationError,
    BrokerUnreachableError,
    StreamsTimeoutError,
)
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.connection_check import check_connection, split_server
from millrace.kafka.membership.classic.heartbeat import Heartbeats
from millrace.kafka.membership.state import MemberState
from millrace.records import OffsetAndMetadata

pytestmark = pytest.mark.broker

NEVER_MS = 600_000
"""A limit of requests that no test waits for: who did would not end in time."""


def sasl(servers, password=None, **settings):
    """Return settings of an application that logs in as alice."""
    return {"application.id": "app", "bootstrap.servers": servers, **login("alice", password), **settings}


def clients(settings):
    """Return the settings of an application's clients."""
    return ClientSettings(StreamsConfig.of(settings), "test")


@pytest.fixture
def source(breakable_kafka):
    """Return a topic with four partitions of the broker that may be broken."""
    return new_topic(breakable_kafka, partitions=4)


def test_a_member_outlives_a_restart_of_its_broker(breakable_kafka, source):
    """When the only broker restarts, the member finds its coordinator again, keeps its generation, and commits."""
    kafka = breakable_kafka
    group = Group(kafka.bootstrap_servers, source, 4, **{"session.timeout.ms": 30_000})
    group.join("a")
    group.join("b")
    group.settle()
    owned = {name: member.assignment for name, member in group.members.items()}
    kafka.restart_broker()
    for member in group.members.values():
        member.commit_offsets({tp: OffsetAndMetadata(9) for tp in member.assignment})
    group.until(lambda: all(not member.rebalancing for member in group.members.values()))
    group.settle()
    assert {name: member.assignment for name, member in group.members.items()} == owned
    assert not group.of("a", Lost)
    assert not group.of("b", Lost)
    group.close()


def test_a_member_that_joins_while_the_broker_is_away_joins_later(breakable_kafka, source):
    """A rebalance that is interrupted because a broker stops is repeated until it succeeds."""
    kafka = breakable_kafka
    group = Group(kafka.bootstrap_servers, source, 4, **{"session.timeout.ms": 30_000})
    member = group.join("a")
    kafka.stop_broker()
    for _ in range(15):
        assert member.poll(0.1) == []
    kafka.restart_broker()
    group.settle()
    group.close()


class Interrupted(Group):
    """A group whose broker restarts once while the leader, `a`, assigns a generation with a new id of the static member `b`."""

    restarts = False

    def __init__(self, kafka):
        topic = new_topic(kafka, partitions=3)
        super().__init__(kafka.bootstrap_servers, topic, 3, **{"session.timeout.ms": 15_000})
        self.kafka = kafka

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


def test_a_static_member_whose_new_id_the_coordinator_lost_joins_again(breakable_kafka):
    """A coordinator that fails before a generation begins forgets the id of a process that came back: it gets another one."""
    group = Interrupted(breakable_kafka)
    group.begin()
    earlier = len(group.of("b", Assigned))
    group.until(lambda: not group.restarts and len(group.of("b", Assigned)) > earlier)
    group.close()


def test_the_assignment_of_a_lost_generation_does_not_reach_the_one_with_the_same_number(breakable_kafka):
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

    group = Overtaken(breakable_kafka)
    group.begin()
    group.until(lambda: not group.restarts)
    group.settle()
    assert all(event.user_data for name in group.members for event in group.of(name, Assigned))
    group.close()


def test_only_the_last_assignment_of_a_generation_that_begins_twice_is_sent(breakable_kafka, source):
    """A leader may lead the same generation again, with the same id, when its coordinator fails while it assigns."""
    kafka = breakable_kafka
    group = Group(kafka.bootstrap_servers, source, 4, **{"session.timeout.ms": 30_000})
    original, answers, ended = group.assign, [], []
    member = group.join("a")
    group.settle()

    def assign(members):
        answers.append(threading.Event())
        data = f"assignment {len(answers)}".encode()
        assert answers[-1].wait(PATIENCE_S)
        return {name: MemberAssignment(given.partitions, data) for name, given in original(members).items()}

    async def noted(*arguments):
        ended.append(arguments)
        return await sync(*arguments)

    group.assign = assign
    sync, member._joining.requests.sync = member._joining.requests.sync, noted
    member.request_rejoin("test")
    group.until(lambda: answers)
    identity = member.generation, member.member_id
    kafka.restart_broker()
    group.until(lambda: len(answers) == 2)
    assert (member.generation, member.member_id) == identity
    answers[0].set()
    group.until(lambda: ended)
    member._connection.run(member._connection.sleep, 0.5)  # a request would have been answered by then
    answers[1].set()
    group.settle()
    assert [event.user_data for event in group.of("a", Assigned)] == [b"data of a", b"assignment 2"]
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


def test_commits_give_up_in_time_when_no_broker_answers(breakable_kafka, source):
    """A commit and a read raise StreamsTimeoutError after their timeouts, however long a request may take; close ends, too."""
    kafka = breakable_kafka
    group = Group(kafka.bootstrap_servers, source, 4, **{"request.timeout.ms": NEVER_MS})
    member = group.join("a")
    group.settle()
    kafka.pause()
    with pytest.raises(StreamsTimeoutError):
        member.committed_offsets([group.tp(0)], 1.0)
    kafka.resume()
    kafka.kill()
    with pytest.raises(StreamsTimeoutError):
        member.commit_offsets({group.tp(0): OffsetAndMetadata(1)}, timeout_s=1)
    with pytest.raises(StreamsTimeoutError):
        committed(member, [group.tp(0)], timeout_s=1)
    member.close(timeout_s=1)


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


def test_members_log_in(kafka, topic_factory):
    """A member joins through a SASL listener, and its clients share the credentials."""
    topic = topic_factory("in", partitions=4)
    group = Group(kafka.sasl_bootstrap_servers, topic, 4, **login("alice"))
    group.join("a")
    group.settle()
    group.close()


def test_a_wrong_password_is_an_authentication_error(kafka):
    """The error is raised at once and says what was refused, without the password."""
    with pytest.raises(AuthenticationError, match="password is wrong") as caught:
        check_connection(clients(sasl(kafka.sasl_bootstrap_servers, "wrong-one")), timeout_s=NEVER_MS / 1000)
    assert "wrong-one" not in str(caught.value)


def test_an_offered_mechanism_is_suggested(kafka):
    """The error for a mechanism that the listener does not offer names those that it does."""
    settings = sasl(kafka.sasl_bootstrap_servers, **{"sasl.mechanism": "SCRAM-SHA-256"})
    settings["sasl.jaas.config"] = settings["sasl.jaas.config"].replace("plain.Plain", "scram.Scram")
    with pytest.raises(AuthenticationError, match=r"does not offer .*SCRAM-SHA-256, but PLAIN"):
        check_connection(clients(settings))


@pytest.mark.parametrize("direction", ["plain client", "sasl client", "tls client"])
def test_the_wrong_listener_is_told_from_an_absent_one(kafka, direction, monkeypatch):
    """The error for another protocol than the listener's says that there is a listener, and what to set."""
    monkeypatch.setattr("millrace.kafka.connection_check._MISMATCH_PATIENCE_S", 1.0)
    settings = {
        "plain client": {"application.id": "app", "bootstrap.servers": kafka.sasl_bootstrap_servers},
        "sasl client": sasl(kafka.bootstrap_servers),
        "tls client": {
            "application.id": "app",
            "bootstrap.servers": kafka.bootstrap_servers,
            "security.protocol": "SSL",
        },
    }[direction]
    with pytest.raises(AuthenticationError, match=r"security\.protocol"):
        check_connection(clients(settings), timeout_s=30)


def test_a_member_with_the_wrong_password_does_not_start(kafka):
    """GroupMember.start raises the error of the connection check."""
    group = Group(kafka.sasl_bootstrap_servers, "in", 4, **login("alice", "nope"))
    with pytest.raises(AuthenticationError):
        group.join("a")


def test_a_member_whose_start_fails_unexpectedly_can_be_closed(kafka, monkeypatch):
    """If a step fails in a way that nobody expects, close still ends the member's IO thread and its connections."""
    group = Group(kafka.bootstrap_servers, "in", 4)
    before, started = set(threading.enumerate()), []

    class Broken(Heartbeats):
        def __init__(self, *_args):
            started.extend(thread for thread in threading.enumerate() if thread not in before)
            raise ZeroDivisionError

    monkeypatch.setattr("millrace.kafka.membership.classic.member.Heartbeats", Broken)
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


def test_one_of_several_servers_is_enough(kafka):
    """The check succeeds as soon as one broker answers."""
    servers = f"127.0.0.1:1,{kafka.bootstrap_servers}"
    check_connection(clients({"application.id": "app", "bootstrap.servers": servers}))


def test_a_server_without_a_port_is_an_error():
    """bootstrap.servers needs host and port."""
    with pytest.raises(BrokerUnreachableError, match="host:port"):
        split_server("kafka")
