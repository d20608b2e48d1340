"""From the members' subscriptions to their assignments: threads, hosts, cooperative rebalancing, versions and errors."""

from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.assignment import (
    LATEST_OFFSET,
    UNKNOWN_OFFSET_SUM,
    AssignmentConfig,
    ClientAssignment,
    GroupLeader,
    HostInfo,
    MemberProtocol,
    TaskAssignment,
    select_assignor,
)
from millrace.assignment.group import kept_assignments, read_group
from millrace.assignment.high_availability import high_availability_assignor
from millrace.assignment.payloads import (
    NO_REBALANCE,
    AssignorError,
    SubscriptionInfo,
    decode_assignment_info,
    decode_subscription_info,
    encode_subscription_info,
)
from millrace.assignment.protocol import Assigned, MemberSubscription
from millrace.assignment.sticky import sticky_assignor
from millrace.errors import (
    AuthorizationError,
    ConfigError,
    MissingSourceTopicError,
    StreamsTimeoutError,
    TaskAssignmentError,
)
from millrace.kafka.membership.wire import decode_subscription, encode_subscription
from millrace.plan.partition_counts import resolve_partition_counts
from millrace.plan.topology_plan import PlannedChangelogTopic, PlannedStore, PlannedSubtopology, TopologyPlan
from millrace.records import TaskId, TopicPartition

PARTITIONS = 6
PLAN = TopologyPlan(
    application_id="app",
    hash="",
    subtopologies=(
        PlannedSubtopology(
            id=0,
            source_topics=("in",),
            stores=(
                PlannedStore(
                    name="s", kind="keyvalue", value_format="plain", persistent=True, changelog_topic="app-s-changelog"
                ),
            ),
            changelog_topics=(PlannedChangelogTopic(name="app-s-changelog"),),
        ),
        PlannedSubtopology(id=1, source_topics=("other",)),
    ),
)


class FakeCluster:
    """Topics with partitions, and changelogs with end offsets."""

    def __init__(self, ends=0, error=None, rack_of=None, silence=None):
        self.ends, self.error, self.rack_of, self.silence = ends, error, rack_of, silence

    def provision(self):
        """Return the plan's partition counts, or fail."""
        if isinstance(self.error, MissingSourceTopicError | ConfigError):
            raise self.error
        if self.silence:
            raise self.silence
        return resolve_partition_counts(PLAN, {"in": PARTITIONS, "other": PARTITIONS})

    def end_offsets(self, partitions):
        """Return the same end offset for all, or fail."""
        if self.error:
            raise self.error
        return dict.fromkeys(partitions, self.ends)

    def committed_offsets(self, partitions):
        """Return nothing: no source topic is a changelog."""
        raise AssertionError

    def racks(self, partitions):
        """Return in which racks partitions are; nobody asks unless assignment is rack-aware."""
        assert self.rack_of, "racks are only asked for if assignment is rack-aware"
        return {partition: frozenset({self.rack_of(partition)}) for partition in partitions}


class FakeMember:
    """A member that follows the protocol: it keeps what it has until it is told to give it up."""

    def __init__(self, number, process, end_point="", rack=None):
        self.rack = rack
        self.name, self.process = f"member-{number}", UUID(int=process)
        self.protocol = MemberProtocol(self.process, end_point=end_point)
        self.owned, self.tasks, self.generation = frozenset(), {}, -1
        self.copies = {}

    def subscription(self):
        """Return the member's subscription when it joins."""
        sums = self.copies | dict.fromkeys(self.tasks, LATEST_OFFSET)
        return MemberSubscription(
            ("in", "other"), self.protocol.user_data(sums), self.owned, self.generation, None, self.rack
        )

    def accept(self, assignment, generation):
        """Take an assignment; return whether the member rejoins at once."""
        added = frozenset(assignment.partitions) - self.owned
        result = self.protocol.accept(Assigned(assignment.partitions, added, assignment.user_data, generation))
        revoked = bool(self.owned - frozenset(assignment.partitions))
        self.owned, self.tasks, self.generation = frozenset(assignment.partitions), result.active, generation
        return revoked or result.next_rebalance_ms == 0


def rebalance(leader, members, generation):
    """Run one rebalance; return whether another is due."""
    given = leader({member.name: member.subscription() for member in members})
    before = {tp: member.name for member in members for tp in member.owned}
    for member in members:
        for tp in given[member.name].partitions:
            assert before.get(tp, member.name) == member.name, "given before it was revoked"
    due = [member.accept(given[member.name], generation) for member in members]
    return any(due)


def settle(leader, members, generation):
    """Rebalance until no member has a reason to; return the next generation."""
    for _ in range(6):
        generation += 1
        if not rebalance(leader, members, generation):
            return generation
    raise AssertionError("the group does not settle")


def leader_of(process=1, cluster=None, assignor=None, **config):
    """Return a leader with the fake cluster."""
    cluster, settings = cluster or FakeCluster(), AssignmentConfig(**config)
    return GroupLeader(PLAN, UUID(int=process), cluster, settings, assignor=assignor, clock_ms=lambda: 1_000)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=6), min_size=1, max_size=4)
)
def test_no_partition_is_given_before_its_owner_has_given_it_up(history):
    """Members come and go: each time the group settles, every partition has one owner, and none moves without being revoked."""
    members, generation = {}, 0
    for step in history:
        wanted = dict(step)
        members = {n: members[n] if n in members else FakeMember(n, p) for n, p in wanted.items()}
        generation = settle(leader_of(), list(members.values()), generation)
        owned = sorted(tp for member in members.values() for tp in member.owned)
        assert owned == sorted(TopicPartition(t, n) for t in ("in", "other") for n in range(PARTITIONS))


def test_threads_of_a_process_share_evenly_and_keep_their_tasks():
    """Two processes with two threads each get three tasks per thread, and keep them in the next rebalance."""
    members = [FakeMember(n, 1 + n % 2) for n in range(4)]
    generation = settle(leader_of(), members, 0)
    assert [len(member.owned) for member in members] == [3, 3, 3, 3]
    before = [member.owned for member in members]
    settle(leader_of(), members, generation)
    assert [member.owned for member in members] == before


def test_unaffected_tasks_stay_while_others_move():
    """When a member joins, the others keep their remaining tasks and never stop processing them."""
    first, second = FakeMember(1, 1), FakeMember(2, 2)
    generation = settle(leader_of(), [first], 0)
    everything = first.owned
    assert rebalance(leader_of(), [first, second], generation + 1)
    kept = first.owned
    assert kept < everything
    assert not second.owned
    settle(leader_of(), [first, second], generation + 1)
    assert first.owned == kept
    assert second.owned == everything - kept


def test_a_member_that_takes_over_has_to_rejoin_at_once():
    """The new owner of tasks that are not free yet has nextRebalanceMs=0; those whose state it has are standbys meanwhile."""
    first, second = FakeMember(1, 1), FakeMember(2, 2)
    leader = leader_of()
    settle(leader, [first], 0)
    second.copies = {TaskId(0, 3): 0}
    given = leader({m.name: m.subscription() for m in (first, second)})
    info = decode_assignment_info(given[second.name].user_data)
    assert info.next_rebalance_ms == 0
    assert given[second.name].partitions == ()
    assert info.standby == {TaskId(0, 3): frozenset({TopicPartition("in", 3)})}


def test_every_member_learns_the_hosts_of_all_partitions():
    """Each process's endpoint is listed with the partitions of its tasks."""
    members = [FakeMember(1, 1, "a:1"), FakeMember(2, 2, "b:2"), FakeMember(3, 3)]
    settle(leader_of(), members, 0)
    given = leader_of()({m.name: m.subscription() for m in members})
    for assignment in given.values():
        info = decode_assignment_info(assignment.user_data)
        assert info.partitions_by_host == {HostInfo("a", 1): members[0].owned, HostInfo("b", 2): members[1].owned}


def test_active_tasks_are_parallel_to_sorted_partitions():
    """Partitions are sorted by topic and number, and the n-th task belongs to the n-th partition."""
    member = FakeMember(1, 1)
    given = leader_of()({member.name: member.subscription()})[member.name]
    assert list(given.partitions) == sorted(given.partitions)
    tasks = decode_assignment_info(given.user_data).active
    assert tasks[0] == TaskId(0, 0)
    assert tasks[-1] == TaskId(1, PARTITIONS - 1)


def test_a_probing_rebalance_is_asked_of_one_member_of_the_leader_s_process():
    """While tasks wait for warm-ups, one member rejoins after the probing interval."""
    old, new, third = FakeMember(1, 1), FakeMember(2, 2), FakeMember(3, 2)
    leader = leader_of(1, FakeCluster(ends=1_000_000))
    generation = settle(leader, [old], 0)
    settle(leader, [old, new, third], generation)
    assert {task.partition for task in old.tasks if task.subtopology == 0} == set(range(PARTITIONS))
    given = leader({m.name: m.subscription() for m in (old, new, third)})
    times = {name: decode_assignment_info(a.user_data).next_rebalance_ms for name, a in given.items()}
    assert times == {old.name: 601_000, new.name: NO_REBALANCE, third.name: NO_REBALANCE}


def test_the_group_speaks_the_oldest_version_of_its_members():
    """With a version 7 member all assignments are version 7, and newer members rejoin with that version."""
    member, old = FakeMember(1, 1), FakeMember(2, 2)
    info = decode_subscription_info(old.subscription().user_data)
    data = encode_subscription_info(replace(info, version=7, latest_supported_version=7))
    given = leader_of()({member.name: member.subscription(), old.name: replace(old.subscription(), user_data=data)})
    answer = decode_assignment_info(given[member.name].user_data)
    assert (answer.version, answer.commonly_supported_version) == (7, 7)
    assert member.accept(given[member.name], 1)
    assert decode_subscription_info(member.subscription().user_data).version == 7


def test_a_member_of_a_newer_version_keeps_its_tasks_and_learns_ours():
    """Version probing: a member with an unknown version keeps what it owns and learns which version to use."""
    member, newer = FakeMember(1, 1), FakeMember(2, 2)
    settle(leader_of(), [member, newer], 0)
    future = (12).to_bytes(4) + (12).to_bytes(4) + bytes(20)
    subscriptions = {member.name: member.subscription(), newer.name: replace(newer.subscription(), user_data=future)}
    given = leader_of()(subscriptions)
    answer = decode_assignment_info(given[newer.name].user_data)
    assert frozenset(given[newer.name].partitions) == newer.owned
    assert answer.error_code == AssignorError.NONE
    assert (answer.version, answer.commonly_supported_version) == (11, 11)


def test_missing_input_topics_end_every_member():
    """The leader sends all members an error code, and keeps the error that names the topics."""
    leader = leader_of(cluster=FakeCluster(error=MissingSourceTopicError("in is missing")))
    member = FakeMember(1, 1)
    given = leader({member.name: member.subscription()})
    with pytest.raises(MissingSourceTopicError):
        member.accept(given[member.name], 1)
    assert "in is missing" in str(leader.error)


def test_an_error_of_the_leader_ends_every_member():
    """Any other failure while assigning is reported as an assignment error."""
    leader = leader_of(cluster=FakeCluster(error=ConfigError("no")))
    member = FakeMember(1, 1)
    with pytest.raises(TaskAssignmentError):
        member.accept(leader({member.name: member.subscription()})[member.name], 1)


def test_one_member_can_stop_the_application():
    """A member that rejoins with SHUTDOWN_REQUESTED stops all members."""
    first, second = FakeMember(1, 1), FakeMember(2, 2)
    first.protocol.error_code = AssignorError.SHUTDOWN_REQUESTED
    given = leader_of()({m.name: m.subscription() for m in (first, second)})
    for member in (first, second):
        result = member.protocol.accept(Assigned((), frozenset(), given[member.name].user_data, 1))
        assert result.shutdown_requested


def test_without_end_offsets_tasks_stay_and_the_group_looks_again_soon():
    """If lags are unknown, every task stays with its owner, and a rebalance is due within a minute."""
    first, second = FakeMember(1, 1), FakeMember(2, 2)
    settle(leader_of(), [first], 0)
    before = first.owned
    leader = leader_of(cluster=FakeCluster(error=StreamsTimeoutError("slow")))
    given = leader({m.name: m.subscription() for m in (first, second)})
    assert frozenset(given[first.name].partitions) == before
    assert decode_assignment_info(given[first.name].user_data).next_rebalance_ms == 61_000


def test_two_members_claim_a_partition_and_the_later_generation_wins():
    """A member that was away claims partitions it owned in an older generation; the claim from the later generation wins."""
    away, now = FakeMember(1, 1), FakeMember(2, 2)
    generation = settle(leader_of(), [away], 0)
    settle(leader_of(), [now], generation + 5)
    given = leader_of()({m.name: m.subscription() for m in (away, now)})
    assert given[away.name].partitions == ()
    assert len(given[now.name].partitions) == PARTITIONS


def test_assignor_is_chosen_by_name_or_given():
    """An assignor can be Java's class name or a function; anything else is refused."""
    name = "org.apache.kafka.streams.processor.assignment.assignors.StickyTaskAssignor"
    assert select_assignor(name) is sticky_assignor
    assert select_assignor(sticky_assignor) is sticky_assignor
    assert select_assignor(None) is high_availability_assignor
    with pytest.raises(ConfigError, match="HighAvailabilityTaskAssignor"):
        select_assignor("com.example.Mine")


def test_member_without_user_data_gets_nothing_to_do():
    """An empty assignment, as for a member that the leader did not know, is not an error."""
    assert MemberProtocol(UUID(int=1)).accept(Assigned((), frozenset(), b"", 1)).active == {}


def test_subscription_info_differs_at_each_rejoin():
    """The unique field makes the broker see new metadata."""
    protocol = MemberProtocol(UUID(int=1), client_tags={"zone": "a"})
    first, second = (decode_subscription_info(protocol.user_data({})) for _ in range(2))
    assert first.unique_field != second.unique_field
    assert replace(first, unique_field=0) == SubscriptionInfo(UUID(int=1), client_tags={"zone": "a"})


def test_tasks_go_to_the_rack_of_their_input():
    """Racks come with the subscriptions' bytes and from the cluster: each member reads what is in its own rack."""
    cluster = FakeCluster(rack_of=lambda partition: "a" if partition.partition < PARTITIONS // 2 else "b")
    members = [FakeMember(1, 1, rack="a"), FakeMember(2, 2, rack="b")]
    sent = {m.name: decode_subscription(encode_subscription(m.subscription())) for m in members}
    given = leader_of(cluster=cluster, rack_aware_strategy="min_traffic")(sent)
    read = [{partition.partition for partition in given[m.name].partitions} for m in members]
    assert read == [set(range(PARTITIONS // 2)), set(range(PARTITIONS // 2, PARTITIONS))]


def test_threads_in_different_racks_have_none():
    """If the threads of a process contradict each other about the rack, or one has none, rack awareness is off."""
    cluster = FakeCluster(rack_of=lambda partition: "a" if partition.partition < PARTITIONS // 2 else "b")
    aware = leader_of(cluster=cluster, rack_aware_strategy="min_traffic")
    for rack in ("b", None):
        members = [FakeMember(1, 1, rack="a"), FakeMember(2, 2, rack="b"), FakeMember(3, 1, rack=rack)]
        subscriptions = {m.name: m.subscription() for m in members}
        assert aware(subscriptions) == leader_of()(subscriptions)


def test_a_custom_assignor_asks_for_its_own_rebalances():
    """A follow-up deadline is sent to one thread of the client that it is for."""
    members = [FakeMember(1, 1), FakeMember(2, 1), FakeMember(3, 2)]

    def assignor(state):
        second, first = sorted(state.clients, reverse=True)
        later = ClientAssignment(frozenset(state.tasks), followup_rebalance_ms=5_000)
        return TaskAssignment({first: later, second: ClientAssignment()})

    given = leader_of(2, assignor=assignor)({m.name: m.subscription() for m in members})
    times = {name: decode_assignment_info(a.user_data).next_rebalance_ms for name, a in given.items()}
    assert times == {"member-1": 5_000, "member-2": NO_REBALANCE, "member-3": NO_REBALANCE}


def test_an_invalid_decision_of_a_custom_assignor_ends_every_member():
    """The leader checks what a custom assignor returns, and says what is wrong."""
    member = FakeMember(1, 1)
    leader = leader_of(assignor=lambda state: TaskAssignment({}))
    with pytest.raises(TaskAssignmentError):
        member.accept(leader({member.name: member.subscription()})[member.name], 1)
    assert "a client has no assignment" in str(leader.error)


def test_a_custom_assignor_decides_without_lags_too():
    """Only the default assignor is replaced while offsets cannot be read; a custom one sees that the lags are unknown."""
    seen = []

    def assignor(state):
        seen.extend(lag for client in state.clients.values() for lag in client.lags.values())
        return TaskAssignment({client: ClientAssignment() for client in state.clients})

    member = FakeMember(1, 1)
    leader = leader_of(cluster=FakeCluster(error=StreamsTimeoutError("slow")), assignor=assignor)
    leader({member.name: member.subscription()})
    assert seen == [UNKNOWN_OFFSET_SUM] * PARTITIONS


@pytest.fixture
def now(monkeypatch):
    """Set the clock by which deadlines are measured: a list with the milliseconds that it shows."""
    now = [0]
    monkeypatch.setattr("millrace.deadline.time", SimpleNamespace(monotonic=lambda: now[0] / 1000))
    return now


def working_group(cluster, clock_ms=lambda: 0):
    """Return a leader and two members, with standbys, that have settled."""
    leader = GroupLeader(
        PLAN, UUID(int=1), cluster, AssignmentConfig(num_standby_replicas=1), patience_ms=20_000, clock_ms=clock_ms
    )
    members = [FakeMember(1, 1), FakeMember(2, 2)]
    settle(leader, members, 0)
    return leader, members


@pytest.mark.parametrize("error", [StreamsTimeoutError("no answer"), AuthorizationError("may not describe topics")])
def test_members_keep_what_they_have_while_the_brokers_do_not_answer(error):
    """Nobody ends or loses a task, the leader's process rejoins after a while, and then all tasks are assigned."""
    cluster, now = FakeCluster(), [1_000]
    leader, members = working_group(cluster, lambda: now[0])
    owned, third = [member.owned for member in members], FakeMember(3, 3)
    members.append(third)
    cluster.silence = error

    given = leader({member.name: member.subscription() for member in members})

    assert leader.error is None
    assert [frozenset(given[member.name].partitions) for member in members] == [*owned, frozenset()]
    infos = {name: decode_assignment_info(each.user_data) for name, each in given.items()}
    assert {name: info.next_rebalance_ms for name, info in infos.items()} == {
        "member-1": 6_000,
        "member-2": NO_REBALANCE,
        "member-3": NO_REBALANCE,
    }
    assert {info.error_code for info in infos.values()} == {AssignorError.NONE}
    cluster.silence = None
    settle(leader, members, 10)
    assert third.owned


def test_standbys_stay_while_the_brokers_do_not_answer():
    """Each member keeps the standbys that it has reported, with the input partitions of their owner."""
    cluster = FakeCluster()
    leader, members = working_group(cluster, lambda: 1_000)
    one, other = members
    one.copies = dict.fromkeys((task for task in other.tasks if task.subtopology == 0), 5)
    cluster.silence = StreamsTimeoutError("no answer")

    given = leader({member.name: member.subscription() for member in members})

    standby = decode_assignment_info(given[one.name].user_data).standby
    assert standby == {task: frozenset({TopicPartition("in", task.partition)}) for task in one.copies}


def test_queries_find_what_members_have_while_the_brokers_do_not_answer():
    """Everybody learns which process has which partitions, active and as a standby."""
    members = [FakeMember(1, 1, "one:80"), FakeMember(2, 2, "two:80")]
    copied, other = TaskId(0, 0), TaskId(0, 1)
    members[0].owned, members[0].tasks = frozenset({TopicPartition("in", 0)}), {copied: ()}
    members[1].owned, members[1].tasks = frozenset({TopicPartition("in", 1)}), {other: ()}
    members[1].copies = {copied: 5}
    group = read_group({member.name: member.subscription() for member in members})

    given = kept_assignments(group, PLAN, leader=UUID(int=1), retry_at_ms=6_000)

    one, two = HostInfo("one", 80), HostInfo("two", 80)
    for info in (decode_assignment_info(each.user_data) for each in given.values()):
        assert info.partitions_by_host == {one: members[0].owned, two: members[1].owned}
        assert info.standby_partitions_by_host == {one: frozenset(), two: members[0].owned}


def test_state_that_nobody_uses_stays_so_while_the_brokers_do_not_answer():
    """All members of a process report what lies in its directory: it must not become a standby of each of them."""
    members = [FakeMember(1, 1), FakeMember(2, 1), FakeMember(3, 2)]
    unused, used = TaskId(0, 0), TaskId(0, 1)
    members[0].copies, members[1].copies = {unused: 5, used: 5}, {unused: 5}
    members[2].owned = frozenset({TopicPartition("in", 0), TopicPartition("in", 1)})
    members[2].tasks = {unused: (), used: ()}
    group = read_group({member.name: member.subscription() for member in members})

    given = kept_assignments(group, PLAN, leader=UUID(int=1), retry_at_ms=6_000)

    standbys = {name: set(decode_assignment_info(each.user_data).standby) for name, each in given.items()}
    assert standbys == {"member-1": {used}, "member-2": set(), "member-3": set()}


def test_brokers_that_never_answer_end_the_group_after_a_while(now):
    """The time runs from the first failure, and starts again once tasks could be assigned."""
    cluster = FakeCluster()
    leader, members = working_group(cluster)
    subscriptions = {member.name: member.subscription() for member in members}
    for start in (0, 100_000):
        cluster.silence = StreamsTimeoutError("no answer")
        for passed in (0, 10_000, 19_999):
            now[0] = start + passed
            leader(subscriptions)
            assert leader.error is None
        if start == 0:
            cluster.silence = None
            leader(subscriptions)
    now[0] += 1
    given = leader(subscriptions)
    assert "no answer" in str(leader.error)
    codes = {decode_assignment_info(each.user_data).error_code for each in given.values()}
    assert codes == {AssignorError.ASSIGNMENT_ERROR}


def test_a_group_that_starts_without_rights_is_told_at_once():
    """What is refused to members that have nothing yet is an error, not something to wait for."""
    leader = leader_of(cluster=FakeCluster(silence=AuthorizationError("may not describe topics")))
    leader({"member-1": FakeMember(1, 1).subscription()})
    assert "may not describe topics" in str(leader.error)


def test_kept_tasks_are_those_of_the_topics_whatever_patterns_match():
    """A repartition topic, and a topic that is read by its name, belong to their readers; a pattern only to what is left."""
    plan = TopologyPlan(
        application_id="app",
        hash="",
        subtopologies=(
            PlannedSubtopology(id=0, source_patterns=(".*",)),
            PlannedSubtopology(
                id=1, source_topics=("app-x-repartition", "in"), repartition_topics=({"name": "app-x-repartition"},)
            ),
        ),
    )
    owned = [TopicPartition(topic, 0) for topic in ("app-x-repartition", "in", "shop")]
    member = FakeMember(1, 1)
    member.owned = frozenset(owned)
    group = read_group({member.name: member.subscription()})

    given = kept_assignments(group, plan, leader=UUID(int=1), retry_at_ms=6_000)[member.name]

    assert given.partitions == tuple(owned)
    active = decode_assignment_info(given.user_data).active
    assert active == (TaskId(1, 0), TaskId(1, 0), TaskId(0, 0))


@pytest.mark.parametrize("set_by_ms", [-3_600_000, 100_000])
def test_a_clock_that_is_set_changes_nothing_about_how_long_brokers_may_be_silent(now, set_by_ms):
    """The time is measured by a clock that nobody sets, ahead or back."""
    cluster, wall_ms = FakeCluster(), [1_000_000_000]
    leader, members = working_group(cluster, lambda: wall_ms[0])
    subscriptions = {member.name: member.subscription() for member in members}
    cluster.silence = StreamsTimeoutError("no answer")
    leader(subscriptions)
    wall_ms[0] += set_by_ms
    now[0] = 19_999
    leader(subscriptions)
    assert leader.error is None
    now[0] = 20_000
    leader(subscriptions)
    assert "no answer" in str(leader.error)


def test_a_time_without_answers_is_not_counted_from_an_earlier_one(now):
    """Another member may have led meanwhile, so a leader does not know that the earlier trouble is over."""
    cluster = FakeCluster()
    leader, members = working_group(cluster)
    subscriptions = {member.name: member.subscription() for member in members}
    cluster.silence = StreamsTimeoutError("no answer")
    leader(subscriptions)
    now[0] = 3_600_000
    leader(subscriptions)
    assert leader.error is None
