"""The simulated cluster answers as a real one: the same random histories, on the model and on an embedded Kafka."""

from __future__ import annotations

import random
import secrets
import time
import uuid

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import OffsetSpec
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tests.kafka.support import set_group
from tests.waiting import wait_until

from millrace.assignment.protocol import MemberAssignment, MemberSubscription
from millrace.config import StreamsConfig
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.connection import Connection
from millrace.kafka.group_metadata import encode_group_metadata
from millrace.kafka.membership.coordinator import Coordinator
from millrace.kafka.membership.streams.topology import describe_topology
from millrace.kafka.membership.wire import encode_assignment, encode_subscription
from millrace.kafka.streams_messages import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from millrace.plan.topology_plan import PlannedChangelogTopic, PlannedSubtopology, TopologyPlan
from millrace.records import TaskId
from millrace.testing.simulation.admin import SimulatedAdmin
from millrace.testing.simulation.broker import Broker
from millrace.testing.simulation.consumer import SimulatedConsumer
from millrace.testing.simulation.group import Group
from millrace.testing.simulation.host import Host
from millrace.testing.simulation.producer import SimulatedProducer
from millrace.testing.simulation.scheduler import Scheduler
from millrace.testing.simulation.streams_group import GroupSettings, MemberTasks, StreamsGroup

pytestmark = pytest.mark.broker
_PARTITIONS = 2
_PRODUCERS = 2


class ModelCluster:
    """As much of a simulation's world as its clients need; nothing is ever down, and markers are written at once."""

    is_coordinator_down = False

    def __init__(self, seed):
        self.scheduler = Scheduler(seed)
        self.group = Group(self.scheduler)
        self.broker = Broker(lambda: self.scheduler.now_s, lambda _group, transaction: self.group.end(transaction))

    def fault_at(self, _instance, _call):
        return None

    def is_down(self, _partition):
        return False

    def waits_s(self):
        return 0.0

    def written(self, _host, _partition, _sent_s):
        pass

    def end_transaction(self, _host, *args):
        self.broker.end_transaction(*args)
        self.write_markers()

    def write_markers(self):
        while transactions := self.broker.completing():
            for transaction in transactions:
                self.broker.write_marker(transaction)


class OnModel:
    """Clients of the model."""

    def __init__(self, seed, topic):
        self.cluster = ModelCluster(seed)
        self.cluster.broker.create_topic(topic, _PARTITIONS)
        self.host = Host(self.cluster, 0, lambda: None)

    def producer(self, transactional_id):
        return SimulatedProducer(self.host, {} if transactional_id is None else {"transactional.id": transactional_id})

    def consumer(self, *, committed_only):
        return SimulatedConsumer(self.host, committed_only=committed_only, name="poll")

    def admin(self):
        return SimulatedAdmin(self.host)


class OnKafka:
    """Clients of a real broker."""

    def __init__(self, kafka):
        self.servers = kafka.bootstrap_servers
        self._admin = kafka.admin()

    def admin(self):
        return self._admin

    def producer(self, transactional_id):
        settings = {"bootstrap.servers": self.servers, "log_level": 0, "linger.ms": 0}
        if transactional_id is not None:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": 60_000}
        return Producer(settings)

    def consumer(self, *, committed_only):
        return Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "reader",
                "isolation.level": "read_committed" if committed_only else "read_uncommitted",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )


def outcome(call):
    """Return what a call of a producer came to."""
    try:
        call()
    except KafkaException as error:
        cause = error.args[0]
        return "fatal" if cause.fatal() else "abortable" if cause.txn_requires_abort() else cause.name()
    return "ok"


def history(seed, names):
    """Return a random list of operations: (operation, producer, partition, number)."""
    rng = random.Random(seed)
    operations = ["send", "send", "send", "offsets", "commit", "abort", "replace", "plain", "look"]
    chosen = [
        (rng.choice(operations), rng.randrange(len(names)), rng.randrange(_PARTITIONS), number) for number in range(30)
    ]
    return [*chosen, ("look", 0, 0, 30)]


class Player:
    """Plays a history on one kind of clients; `answers` has what they said."""

    def __init__(self, clients, topic, group, names):
        self.clients, self.topic, self.group, self.names = clients, topic, group, names
        self.answers = []
        self.producers = {}
        self.retired = []
        self.in_transaction = set()
        self.plain = clients.producer(None)
        for number in range(len(names)):
            self._open(number)

    def _open(self, number):
        self.producers[number] = self.clients.producer(self.names[number])
        self.producers[number].init_transactions(30)
        self.in_transaction.discard(number)

    def play(self, operation, number, partition, value):
        producer = self.producers[number]
        if operation == "plain":
            self.plain.produce(self.topic, str(value).encode(), None, partition)
            self.plain.flush(30)
        elif operation == "look":
            self.look()
        elif operation == "replace":
            self.retired.append((producer, number in self.in_transaction))
            self._open(number)
        elif operation == "send":
            self._begin(number)
            producer.produce(self.topic, str(value).encode(), b"key", partition)
            self.answers.append((operation, value, outcome(lambda: producer.flush(30))))
        elif operation == "offsets":
            self._begin(number)
            positions = [ClientTopicPartition(self.topic, partition, value)]
            metadata = encode_group_metadata(self.group, -1, "")
            self.answers.append(
                (operation, value, outcome(lambda: producer.send_offsets_to_transaction(positions, metadata, 30)))
            )
        elif number in self.in_transaction:
            call = producer.commit_transaction if operation == "commit" else producer.abort_transaction
            self.answers.append((operation, value, outcome(lambda: call(30))))
            self.in_transaction.discard(number)

    def _begin(self, number):
        if number not in self.in_transaction:
            self.producers[number].begin_transaction()
            self.in_transaction.add(number)

    def look(self):
        """Note first and last offsets, what readers of both kinds see, and the group's offsets."""
        self.answers.append(self.seen())

    def ends(self):
        specs = {ClientTopicPartition(self.topic, number): OffsetSpec.latest() for number in range(_PARTITIONS)}
        found = {}
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            futures = self.clients.admin().list_offsets(specs, isolation_level=level, request_timeout=120)
            found[level.name] = [
                future.result().offset for _, future in sorted(futures.items(), key=lambda item: item[0].partition)
            ]
        return found

    def seen(self):
        ends = self.ends()
        return {
            **ends,
            "committed": self.read(committed_only=True, ends=ends["READ_COMMITTED"]),
            "all": self.read(committed_only=False, ends=ends["READ_UNCOMMITTED"]),
        }

    def read(self, *, committed_only, ends):
        consumer = self.clients.consumer(committed_only=committed_only)
        try:
            consumer.incremental_assign([ClientTopicPartition(self.topic, number, 0) for number in range(_PARTITIONS)])
            records, reached = [], {}
            deadline = time.monotonic() + 120
            while any(reached.get(number, 0) < end for number, end in enumerate(ends)):
                assert time.monotonic() < deadline, f"{reached} of {ends}"
                message = consumer.poll(1.0)
                if message is None:
                    continue
                if message.error() is None:
                    records.append((message.partition(), message.offset(), message.value()))
                reached[message.partition()] = message.offset() + (message.error() is None)
            return sorted(records)
        finally:
            consumer.close()

    def zombies(self):
        """Let fenced producers commit what they had open."""
        for number, (producer, was_open) in enumerate(self.retired):
            if was_open:
                self.answers.append(("zombie", number, outcome(lambda p=producer: p.commit_transaction(30)) == "ok"))


@pytest.mark.parametrize("seed", range(4))
def test_transactions_and_logs_are_the_same_on_the_model(seed, kafka, topic_factory):
    """Offsets, what each isolation level reads, and the answers to producers are equal after any history of transactions."""
    topic = topic_factory("model", partitions=_PARTITIONS)
    group = f"group-{secrets.token_hex(4)}"
    names = [f"{topic}-{number}" for number in range(_PRODUCERS)]
    real, model = Player(OnKafka(kafka), topic, group, names), Player(OnModel(seed, topic), topic, group, names)
    for operation in history(seed, names):
        for player in (model, real):
            player.play(*operation)
        # Markers are in the real logs a moment after a commit has been answered.
        wait_until(lambda: real.ends() == model.ends(), lambda: f"{real.ends()}, not {model.ends()}")
        assert real.answers == model.answers, operation
    for player in (model, real):
        player.zombies()
    assert real.answers == model.answers
    assert any("committed" in answer for answer in real.answers if isinstance(answer, dict))


# Groups


class RealGroup:
    """Sends requests to a real coordinator, each member over its own connection."""

    def __init__(self, kafka, group, members):
        config = StreamsConfig.of({"application.id": group, "bootstrap.servers": kafka.bootstrap_servers})
        self.settings = ClientSettings(config, "p")
        self.group, self.admin = group, kafka.admin()
        self.links = []
        for _ in range(members):
            connection = Connection(self.settings.kafka_python(1))
            connection.manager.bootstrap(30_000)
            self.links.append((connection, Coordinator(connection, self.settings.membership(1), lambda: False)))

    def await_coordinator(self):
        """Wait until the coordinator has loaded the group's partition; only then do answers say anything of the group."""
        answers = []
        request = HeartbeatRequest(group_id=self.group, generation_id=-1, member_id="nobody", group_instance_id=None)

        def is_ready():
            self.send(0, request, answers.append)
            wait_until(lambda: answers, "an answer", 30)
            answer = answers.pop()
            self.links[0][1].forget("it may have moved")
            return getattr(answer, "error_code", 16) not in {14, 15, 16}

        wait_until(is_ready, "the group's coordinator", 60)

    def send(self, member, request, answer):
        connection, coordinator = self.links[member]
        future = connection.start(coordinator.send, request, 60_000)
        future.add_callback(answer)
        future.add_errback(answer)

    def state(self):
        """Return the coordinator's state of the group, and the number of members."""
        described = self.admin.describe_consumer_groups([self.group])[self.group].result()
        return described.state.name, len(described.members)

    def close(self):
        for connection, _ in self.links:
            connection.close()


def state_of(group):
    """Return the model's state in the words of confluent-kafka, and the number of members."""
    names = {"preparing": "PREPARING_REBALANCING", "completing": "COMPLETING_REBALANCING"}
    return names.get(group.state, group.state.upper()), len(group.members)


class Side:
    """One of the two groups, with what its members know."""

    def __init__(self, members, send):
        self.send = send
        self.ids = [""] * members
        self.generations = [-1] * members
        self.waiting = [None] * members
        self.answers = [None] * members
        self.names = {}
        self.in_group = {}

    def name(self, member_id):
        """Return a name for a member id that is the same on both sides: they are given in the same order."""
        return "" if not member_id else self.names.setdefault(member_id, f"id-{len(self.names)}")

    def ask(self, member, kind, request):
        self.waiting[member] = kind
        self.answers[member] = None

        def answered(response):
            self.answers[member] = response

        self.send(member, request, answered)

    def take(self, member):
        """Return a finished request's answer in a form that both sides have in common."""
        kind, answer = self.waiting[member], self.answers[member]
        self.waiting[member] = None
        assert not isinstance(answer, Exception), answer
        if kind == "join":
            if answer.error_code in {0, 79}:
                self.ids[member] = answer.member_id
            name = self.name(answer.member_id) if answer.error_code in {0, 79} else ""
            if answer.error_code:
                return kind, answer.error_code, name
            self.generations[member] = answer.generation_id
            self.in_group[member] = [one.member_id for one in answer.members]
            members = sorted(self.name(one.member_id) for one in answer.members)
            return kind, 0, name, answer.generation_id, self.name(answer.leader), members, bool(answer.skip_assignment)
        if kind == "sync":
            return kind, answer.error_code, bytes(answer.assignment) if not answer.error_code else b""
        if kind == "commit":
            return kind, [part.error_code for topic in answer.topics for part in topic.partitions]
        if kind == "fetch":
            return kind, [
                (part.error_code, part.committed_offset, part.metadata or "")
                for topic in answer.groups[0].topics
                for part in topic.partitions
            ]
        return kind, answer.error_code


def request_for(kind, side, member, instance, value, group, topic):
    """Build a request with what the member knows on this side."""
    member_id, generation = side.ids[member], side.generations[member]
    if kind == "join":
        metadata = encode_subscription(MemberSubscription((topic,), str(value).encode(), frozenset(), -1, rack_id=None))
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="stream", metadata=metadata)
        return JoinGroupRequest(
            group_id=group,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=300_000,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[protocol],
            reason="",
            max_version=9,
        )
    common = {"group_id": group, "generation_id": generation, "member_id": member_id, "group_instance_id": instance}
    if kind == "sync":
        item = SyncGroupRequest.SyncGroupRequestAssignment
        given = sorted(side.in_group.get(member, []), key=side.name)
        assignments = [
            item(member_id=one, assignment=encode_assignment(MemberAssignment((), side.name(one).encode())))
            for one in given
        ]
        return SyncGroupRequest(
            **common, protocol_type="consumer", protocol_name="stream", assignments=assignments, max_version=5
        )
    if kind == "heartbeat":
        return HeartbeatRequest(**common)
    if kind == "leave":
        identity = LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance, reason="")
        return LeaveGroupRequest(group_id=group, member_id=member_id, members=[identity])
    if kind == "commit":
        part = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=value, committed_leader_epoch=-1, committed_metadata=f"m{value}"
        )
        topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])]
        return OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            topics=topics,
            max_version=9,
        )
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = [wanted.OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])]
    return OffsetFetchRequest(groups=[wanted(group_id=group, topics=topics)], require_stable=True, max_version=9)


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("seed", range(3))
def test_groups_are_the_same_on_the_model(seed, static, kafka, topic_factory):  # noqa: PLR0912 (one history)
    """Members get the same answers in the same generations, whoever joins, syncs, commits, leaves or starts again when."""
    rng = random.Random(seed)
    topic, group = topic_factory("model", partitions=2), f"group-{secrets.token_hex(4)}"
    members = 3
    scheduler = Scheduler(seed)
    model_group = Group(scheduler)
    real_group = RealGroup(kafka, group, members)
    model = Side(members, lambda _member, request, answer: model_group.handle(request, answer))
    real = Side(members, real_group.send)
    sides = (model, real)
    seen, due = set(), {}

    def catch_up(answered, kind, what):
        """Wait until the real coordinator has got as far as the model."""
        wait_until(lambda: all(real.answers[one] is not None for one in answered), f"{what}, answers to {answered}", 30)
        if kind == "join" and not answered:  # it must have arrived before others send something
            wait_until(lambda: real_group.state() == state_of(model_group), lambda: f"{what}: {real_group.state()}")

    try:
        real_group.await_coordinator()
        for step in range(120):
            member = rng.randrange(members)
            if model.waiting[member] is not None:
                continue  # it waits for the others
            kind = rng.choices(
                ["join", "sync", "heartbeat", "commit", "fetch", "leave", "restart"], [4, 4, 3, 3, 1, 1, 1]
            )[0]
            if rng.random() < 0.7:
                kind = due.pop(member, kind)
            instance = f"static-{member}" if static else None
            if kind in {"leave", "restart"} and model.ids[member] == model_group.leader:
                continue  # the real coordinator then takes any other member as the leader: the first in a hash map
            if kind == "restart" and not static:
                kind = "leave"  # what a dynamic member leaves behind would block the group until its session is over
            if kind == "restart":
                for side in sides:
                    side.ids[member], side.generations[member] = "", -1
                kind = "join"
            if kind in {"sync", "heartbeat", "leave"} and not model.ids[member]:
                continue
            for side in sides:
                side.ask(member, kind, request_for(kind, side, member, instance, step, group, topic))
            answered = [
                one for one in range(members) if model.answers[one] is not None and model.waiting[one] is not None
            ]
            catch_up(answered, kind, f"step {step}: {kind} of {member}")
            for side in sides:
                for one in answered:
                    side.name(getattr(side.answers[one], "member_id", ""))
            for one in answered:
                answers = [side.take(one) for side in sides]
                assert answers[0] == answers[1], f"step {step}: {kind} of {member}"
                if answers[0][:2] == ("join", 0):
                    due[one] = "sync"
                elif answers[0][:2] in (("join", 79), ("sync", 27), ("heartbeat", 27)):
                    due[one] = "join"
                seen.add(answers[0][:2] if isinstance(answers[0][1], int) else answers[0][0])
        assert [answer is None for answer in real.answers] == [answer is None for answer in model.answers]
        assert {("join", 0), ("sync", 0)} <= seen, seen
    finally:
        real_group.close()


# Streams groups


class StreamsSide:
    """One of two streams groups, with what its members know."""

    def __init__(self, members, send):
        self.send = send
        self.ids = [str(uuid.uuid4()) for _ in range(members)]
        self.processes = [str(uuid.uuid4()) for _ in range(members)]
        self.epochs = [0] * members
        self.tasks = [frozenset()] * members
        """What each member was last told to own."""
        self.closes = [frozenset()] * members
        """What it has yet to report that it has closed."""
        self.given_in = [{} for _ in range(members)]
        """The epoch in which each task was given."""

    def heartbeat(self, member, group, topology, mode):
        """Send a heartbeat and return what came of it, in a form that both sides have in common."""
        epoch = {"join": 0, "leave": -1, "previous": self.epochs[member] - 1, "next": self.epochs[member] + 1}.get(
            mode, self.epochs[member]
        )
        joins = epoch == 0
        request = StreamsGroupHeartbeatRequest(
            group_id=group, member_id=self.ids[member], member_epoch=epoch, endpoint_information_epoch=-1
        )
        if joins:
            request.topology, request.rebalance_timeout_ms = topology, 300_000
            request.process_id, request.client_tags = self.processes[member], []
            self.tasks[member], self.closes[member], self.given_in[member] = frozenset(), frozenset(), {}
        if joins or mode in {"keep", "close", "previous"}:
            owned = self.tasks[member] | (frozenset() if mode == "close" else self.closes[member])
            request.active_tasks, request.standby_tasks = (self.of_role(owned, role) for role in ("active", "standby"))
            request.warmup_tasks = []
        answer = self.send(member, request)
        if mode == "close" and not answer.error_code:
            self.closes[member] = frozenset()
        if answer.error_code or mode == "leave":
            return mode, answer.error_code
        self.epochs[member] = answer.member_epoch
        if answer.active_tasks is not None:
            given = {"active": answer.active_tasks, "standby": answer.standby_tasks}
            tasks = frozenset(
                (role, number) for role, items in given.items() for item in items for number in item.partitions
            )
            self.closes[member] |= self.tasks[member] - tasks
            self.given_in[member] = {task: self.given_in[member].get(task, answer.member_epoch) for task in tasks}
            self.tasks[member] = tasks
        told = None if answer.active_tasks is None else self.tasks[member]
        return mode, 0, answer.member_epoch, told, [item.status_code for item in answer.status or ()]

    def of_role(self, tasks, role):
        """Return a request's description of the tasks that have a role."""
        numbers = sorted(number for one, number in tasks if one == role)
        return [StreamsGroupHeartbeatRequest.TaskIds(subtopology_id="0", partitions=numbers)] if numbers else []

    def partition(self, member, kind):
        """Return a partition that a member was given first or last, closes, or does not have; None if there is none."""
        since = {number: epoch for (role, number), epoch in self.given_in[member].items() if role == "active"}
        closing = {number for role, number in self.closes[member] if role == "active"}
        chosen = {
            "oldest": min(since, key=lambda number: (since[number], number), default=None),
            "latest": max(since, key=lambda number: (since[number], number), default=None),
            "closing": min(closing, default=None),
            "others": min(set(range(4)) - since.keys() - closing, default=None),
        }
        return chosen[kind]

    def commit(self, member, group, topic, number, behind):
        """Commit an offset with an epoch that is behind, and return the error code."""
        part = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
            partition_index=number, committed_offset=1, committed_leader_epoch=-1, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=self.epochs[member] - behind,
            member_id=self.ids[member],
            group_instance_id=None,
            topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])],
            max_version=9,
        )
        return self.send(member, request).topics[0].partitions[0].error_code


@pytest.mark.parametrize(("seed", "delay_ms"), [(0, 0), (1, 0), (2, 0), (3, 300_000)])
def test_streams_groups_are_the_same_on_the_model(seed, delay_ms, kafka, topic_factory):
    """Members get the same answers in the same epochs, whoever joins, reports tasks, leaves or commits what and when.

    Only who is to have which task is the real coordinator's choice on both sides.
    """
    rng, members = random.Random(seed), 3
    topic, changelog = (topic_factory("model", partitions=4) for _ in range(2))
    group = f"group-{secrets.token_hex(4)}"
    settings = {
        "streams.assignment.interval.ms": "0",
        "streams.initial.rebalance.delay.ms": str(delay_ms),
        "streams.num.standby.replicas": "1",
    }
    set_group({"application.id": group, "bootstrap.servers": kafka.bootstrap_servers}, settings)
    changelogs = (PlannedChangelogTopic(name=changelog, config={}),)
    subtopology = PlannedSubtopology(id=0, source_topics=(topic,), changelog_topics=changelogs)
    topology = describe_topology(TopologyPlan(application_id=group, hash="", subtopologies=(subtopology,)), -1)
    real_group = RealGroup(kafka, group, members)

    def ask_real(member, request):
        connection, coordinator = real_group.links[member]
        return connection.run(coordinator.send, request, 60_000)

    def target():
        """Return the real group's target."""
        request = StreamsGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
        found = {one.member_id: one.target_assignment for one in ask_real(0, request).groups[0].members}
        return {
            name: MemberTasks(
                *(
                    kind(TaskId(0, number) for item in items for number in item.partitions)
                    for kind, items in ((dict.fromkeys, found[theirs].active_tasks), (set, found[theirs].standby_tasks))
                )
            )
            for theirs, name in zip(real.ids, model.ids, strict=True)
            if theirs in found
        }

    def ask_model(_member, request):
        answers = []
        model_group.handle(request, answers.append)
        return answers.pop()

    topics = {topic: 4, changelog: 4}
    model_group = StreamsGroup(Scheduler(seed), topics, lambda *_: None, GroupSettings.of(settings), target)
    real, model = StreamsSide(members, ask_real), StreamsSide(members, ask_model)
    joined, seen = set(), set()
    modes = ["join", "none", "keep", "close", "previous", "next", "leave", "commit"]
    try:
        real_group.await_coordinator()
        for step in range(150):
            member = rng.randrange(members)
            mode = rng.choices(modes, [1, 6, 3, 5, 1, 0.5, 0.7, 6])[0] if member in joined else "join"
            what = f"step {step}: {mode} of {member}"
            if mode == "commit":
                kind, behind = rng.choice(["oldest", "latest", "closing", "others"]), rng.choice([0, 0, 1, 2, -1])
                numbers = [side.partition(member, kind) for side in (real, model)]
                assert (numbers[0] is None) == (numbers[1] is None), f"{what} of {kind}"
                if numbers[0] is None or model.epochs[member] - behind < 0:
                    continue
                codes = [
                    side.commit(member, group, topic, number, behind)
                    for side, number in zip((real, model), numbers, strict=True)
                ]
                assert codes[0] == codes[1], f"{what} of {kind}, {behind} behind"
                seen.add(("commit", codes[0]))
                continue
            answers = [side.heartbeat(member, group, topology, mode) for side in (real, model)]
            assert answers[0] == answers[1], what
            seen.add(answers[0][:2])
            if mode == "join":
                joined.add(member)
            elif mode == "leave":
                joined.discard(member)
        assert {("commit", 0), ("commit", 113), ("next", 110), ("close", 0)} <= seen, seen
    finally:
        real_group.close()
