"""Small groups for membership tests, one per protocol: members that are polled in turn by the test's own thread."""

import secrets
import uuid

from confluent_kafka.admin import AclBindingFilter, AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from tests.waiting import PATIENCE_S, wait_until

from millrace.assignment.protocol import Assigned, Lost, MemberAssignment, Revoked, TopicSubscription
from millrace.config import StreamsConfig
from millrace.instance.background import in_background
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_settings import group_settings as known_settings
from millrace.kafka.group_settings import wrong_group_settings
from millrace.kafka.membership.classic.member import GroupMember
from millrace.kafka.membership.streams.heartbeat import StreamsMemberInfo
from millrace.kafka.membership.streams.member import StreamsGroupMember
from millrace.plan.topology_plan import PlannedChangelogTopic, PlannedSubtopology, TopologyPlan
from millrace.records import TopicPartition


class PolledGroup:
    """Members of one application that reads one topic; subclasses create them."""

    def __init__(self, bootstrap_servers, topic, partitions, **settings):
        self.topic, self.partitions = topic, partitions
        self.settings = {
            "application.id": f"app-{secrets.token_hex(4)}",
            "bootstrap.servers": bootstrap_servers,
            "reconnect.backoff.max.ms": 500,
            **settings,
        }
        self.application_id = self.settings["application.id"]
        self.members = {}
        self.events = {}

    def tp(self, number):
        """Return a partition of the topic."""
        return TopicPartition(self.topic, number)

    def join(self, name, *arguments, **settings):
        """Add a member, which joins while the group is polled."""
        member = self.member(name, *arguments, **settings)
        member.start()
        self.members[name] = member
        self.events.setdefault(name, [])
        return member

    def poll(self, *names):
        """Poll the named members, or all, once and keep their events."""
        for name in names or list(self.members):
            self.events[name] += self.members[name].poll(0.02)

    def until(self, condition, *names):
        """Poll until a condition holds."""
        wait_until(condition, lambda: f"events: {self.events}", meanwhile=lambda: self.poll(*names), poll_s=0)

    def balanced(self):
        """Return whether all members are in the same generation, or epoch, and share all partitions evenly."""
        counts = [len(member.assignment) for member in self.members.values()]
        generations = {member.generation for member in self.members.values()}
        return len(generations) == 1 and sum(counts) == self.partitions and max(counts) - min(counts) <= 1

    def settle(self):
        """Poll until the group is balanced."""
        self.until(self.balanced)

    def of(self, name, kind):
        """Return a member's events of one kind."""
        return [event for event in self.events[name] if isinstance(event, kind)]

    def close(self):
        """Close every member."""
        for member in self.members.values():
            member.close(leave_group=True, timeout_s=30)


class Group(PolledGroup):
    """A group with the classic protocol, whose leader assigns partitions by the members' names."""

    def __init__(self, bootstrap_servers, topic, partitions, **settings):
        own = {"heartbeat.interval.ms": 100, "session.timeout.ms": 45_000, **settings}
        super().__init__(bootstrap_servers, topic, partitions, **own)
        self.rebalances = 0

    def assign(self, members):
        """Assign partitions round-robin in order of user data; those that another member owns have to wait (KIP-429)."""
        self.rebalances += 1
        order = sorted(members, key=lambda member: members[member].user_data)
        owners = {tp: member for member, subscription in members.items() for tp in subscription.owned}
        given = {member: [] for member in order}
        for number in range(self.partitions):
            wanted = order[number % len(order)]
            if owners.get(self.tp(number), wanted) == wanted:
                given[wanted].append(self.tp(number))
        return {
            member: MemberAssignment(tuple(tps), b"data of " + members[member].user_data)
            for member, tps in given.items()
        }

    def member(self, name, *, patterns=(), **settings):
        """Return a new member, not yet started."""
        config = StreamsConfig.of({**self.settings, **settings})
        topics = () if patterns else (self.topic,)
        return GroupMember(
            ClientSettings(config, name),
            1,
            TopicSubscription.of(topics, patterns),
            user_data=name.encode,
            assign=lambda members: in_background("assignment", lambda: self.assign(members)),
        )

    def balanced(self):
        """Return whether all members are stable and share all partitions evenly."""
        return super().balanced() and not any(member.rebalancing for member in self.members.values())

    def revoked(self, name):
        """Return all partitions ever revoked from or lost by a member."""
        return {tp for kind in (Revoked, Lost) for event in self.of(name, kind) for tp in event.partitions}

    def last(self, name):
        """Return a member's last assignment."""
        return self.of(name, Assigned)[-1]


class StreamsGroup(PolledGroup):
    """A group with the streams protocol, of an application with one store."""

    def plan(self, store="counts", **subtopology):
        """Return the application's plan."""
        changelog = PlannedChangelogTopic(
            name=f"{self.application_id}-{store}-changelog", config={"cleanup.policy": "compact"}
        )
        given = {"source_topics": (self.topic,), "changelog_topics": (changelog,), **subtopology}
        return TopologyPlan(
            application_id=self.application_id, hash="", subtopologies=(PlannedSubtopology(id=0, **given),)
        )

    def member(self, name, plan=None, end_point=None, **settings):
        """Return a new member, not yet started."""
        config = StreamsConfig.of({**self.settings, **settings})
        info = StreamsMemberInfo(plan or self.plan(), uuid.uuid4(), end_point, {"zone": "a"})
        return StreamsGroupMember(ClientSettings(config, name), 1, info)


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


def committed(member, partitions, timeout_s=PATIENCE_S):
    """Ask for committed offsets and wait for them."""
    answer = member.ask_committed(partitions, timeout_s)
    wait_until(lambda: answer.of(partitions) is not None, "an answer", timeout_s + PATIENCE_S)
    return answer.of(partitions)


def set_group(settings, group_settings):
    """Change settings of an application's group, and wait until the broker knows them.

    It learns them a moment after the controller has accepted them.
    """
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in group_settings.items()
    ]
    group_id = settings["application.id"]
    group = ConfigResource(ConfigResource.Type.GROUP, group_id, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": settings["bootstrap.servers"]})
    for future in admin.incremental_alter_configs([group]).values():
        future.result(PATIENCE_S)
    wait_until(
        lambda: not wrong_group_settings(group_settings, known_settings(admin, group_id)), "the group's settings"
    )


def create_acl(admin, binding):
    """Create a rule about who may do what, and wait until the broker knows it, a moment after the controller has accepted it."""
    for future in admin.create_acls([binding]).values():
        future.result(PATIENCE_S)
    same = AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )
    wait_until(lambda: admin.describe_acls(same).result(PATIENCE_S), "the rule")
