"""Applications whose brokers assign the tasks: the group's settings, changes of the protocol, members that have died."""

import pytest
from tests.operator.reconcile.test_scaling import end_process
from tests.operator.reconcile.world import APP, SMALL, Program, World

from millrace_operator import model
from millrace_operator.model import ConsumerGroupMember

STREAMS = {**SMALL["kafka"], "groupProtocol": "streams"}
STANDBYS, SESSION = "streams.num.standby.replicas", "streams.session.timeout.ms"


@pytest.fixture
def world():
    """A healthy application with two pods and the streams protocol."""
    world = World()
    world.change(replicas=2, kafka=STREAMS)
    world.run(60)
    world.log.clear()
    return world


@pytest.fixture
def classic():
    """A healthy application with two pods and the classic protocol."""
    world = World()
    world.change(replicas=2)
    world.run(60)
    world.log.clear()
    return world


def test_group_gets_the_manifests_settings(world):
    """They are set without replacing a pod, corrected if somebody else changes them, and removed with the manifest's fields."""
    pods = world.pods()
    world.change(standby={"replicas": 1}, membership={"sessionTimeout": "60s"})
    world.run(10)
    assert world.group_settings == {STANDBYS: "1", SESSION: "60000"}
    world.group_settings = {STANDBYS: "2", "streams.heartbeat.interval.ms": "9000"}
    world.run(10)
    assert world.group_settings == {STANDBYS: "1", SESSION: "60000"}
    world.change(standby={"replicas": 0}, membership={})
    world.run(10)
    assert world.group_settings == {STANDBYS: "0"}
    assert [pod["metadata"]["uid"] for pod in world.pods()] == [pod["metadata"]["uid"] for pod in pods]
    assert world.pass_over().actions == ()


def test_settings_that_cannot_be_seen_are_reported(world):
    """The application runs, and Stalled says what to allow."""
    world.hides_group_settings = True
    world.change(standby={"replicas": 1})
    world.run(30)
    assert world.condition("Stalled") == ("True", "GroupSettingsUnknown")
    assert world.condition("Ready")[0] == "True"
    world.hides_group_settings = False
    world.run(10)
    assert world.condition("Stalled")[0] == "False"
    assert world.group_settings == {STANDBYS: "1"}


def test_nothing_starts_where_the_protocol_is_not_served():
    """The pods could only fail: the condition says what the brokers need."""
    world = World(serves_streams=False)
    world.change(kafka=STREAMS)
    world.run(60)
    assert (world.condition("Stalled"), world.pods()) == (("True", "GroupProtocolNotServed"), [])
    world.serves_streams = True
    world.run(60)
    assert world.condition("Ready")[0] == "True"


def test_running_pods_stay_where_the_protocol_is_not_served(classic):
    """A change to a protocol that the brokers do not serve stops nothing."""
    before = classic.revisions()
    classic.serves_streams = False
    classic.change(kafka=STREAMS)
    classic.run(120)
    assert classic.condition("Stalled") == ("True", "GroupProtocolNotServed")
    assert (classic.revisions(), classic.condition("Ready")[0]) == (before, "True")


def test_protocol_changes_with_all_pods_stopped(classic):
    """All pods end, their static members are removed, and only then pods with the other protocol start; and back again."""
    volumes = classic.names("PersistentVolumeClaim")
    for kafka, protocol in ((STREAMS, "streams"), (SMALL["kafka"], "classic")):
        classic.change(kafka=kafka)
        classic.run(120)
        assert [classic.protocol_of(pod) for pod in classic.pods()] == [protocol] * 2
        assert set(classic.joined_with.values()) == {protocol}
        assert classic.condition("Ready")[0] == "True"
    assert classic.refused_members == []
    assert classic.names("PersistentVolumeClaim") == volumes
    assert sorted(classic.done(model.RemoveMembers)[0].names) == [f"{APP}-0", f"{APP}-1"]
    assert classic.pass_over().actions == ()


def test_change_waits_for_members_of_others(classic):
    """A stranger in the group keeps its protocol: no pod starts until it has left, and the message names it."""
    stranger = ConsumerGroupMember("m", None, "10.0.0.9", "java-StreamThread-1-consumer")
    classic.change(handover={"from": {"name": "java"}, "allowForeignMembers": True})
    classic.run(120)
    classic.strangers = [stranger]
    classic.change(kafka=STREAMS)
    classic.run(60)
    assert classic.pods() == []
    assert classic.condition("Reconciling") == ("True", "SwitchingGroupProtocol")
    assert str(stranger) in classic.message("Reconciling")
    classic.strangers = []
    classic.run(60)
    assert classic.condition("Ready")[0] == "True"
    assert classic.refused_members == []


def test_failed_change_is_rolled_back(classic):
    """If the pods with the new protocol fail, all stop once more, and the old revision runs on."""
    before = set(classic.revisions())
    classic.programs["registry.example/words:2"] = Program(crashes=True)
    classic.change(kafka=STREAMS, image="registry.example/words:2")
    classic.run(300)
    assert (set(classic.revisions()), classic.condition("RolledBack")[0]) == (before, "True")
    assert classic.condition("Ready")[0] == "True"
    assert classic.refused_members == []


def test_change_survives_a_crash_after_any_action(classic):
    """Whatever was done last before the operator died, the change is completed."""
    classic.change(kafka=STREAMS)
    for _ in range(40):
        classic.pass_over(crash_after=1)
        classic.settle()
        classic.tick(5)
    classic.run(60)
    assert set(classic.joined_with.values()) == {"streams"}
    assert classic.refused_members == []


def test_dead_dynamic_members_are_removed_without_standbys(world):
    """A process that returns is a new member, so the brokers would wait for the old one until its session times out."""
    end_process(world, f"{APP}-1")
    world.pass_over()
    (removal,) = world.done(model.RemoveMembers)
    assert removal.member_ids == (f"m-{APP}-1-1",)


def test_members_of_pods_that_are_gone_are_removed(world):
    """A pod that was killed while it was scaled in has not left the group."""
    world.change(replicas=1)
    world.run(60)
    world.members.add(f"{APP}-1")
    world.log.clear()
    world.pass_over()
    (removal,) = world.done(model.RemoveMembers)
    assert removal.member_ids == (f"m-{APP}-1-1",)


def test_purging_removes_the_groups_settings(world):
    """They would outlive the group, and another application with this id would find them."""
    world.change(standby={"replicas": 1}, deletionPolicy="Purge")
    world.run(30)
    assert world.group_settings
    world.delete()
    world.run(120)
    assert (world.exists, world.group_exists, world.group_settings) == (False, False, {})


def test_lifecycle_while_tasks_move(world):
    """The states of a group whose brokers assign the tasks have other names."""
    world.rebalancing = True
    for pod in world.pods():
        world.set_ready(pod["metadata"]["name"], ready=False)
    world.pass_over()
    assert world.status.lifecycle_state == "Rebalancing"
