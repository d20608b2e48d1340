"""Pods learn on what kind of node they run, and the members of pods that are lost with their nodes are removed."""

import pytest
from tests.operator.reconcile.world import APP, World

from millrace_operator import model
from millrace_operator.model import Key, SeenNode, TellNodeLabels

ZONE, HALL = "topology.kubernetes.io/zone", "example.com/hall"


@pytest.fixture
def world():
    """A healthy application with two pods and a standby of each task."""
    world = World()
    world.change(replicas=2, standby={"replicas": 1})
    world.run(600)
    world.log.clear()
    return world


def give_node(world, pod, node):
    """Let a pod be on a node."""
    world.objects[Key("Pod", pod)]["spec"]["nodeName"] = node


def test_a_pod_is_told_the_labels_that_the_manifest_names_once():
    """As soon as it has a node; others of the node's labels are none of its business, and missing ones are left out."""
    world = World()
    world.change(racks={"tags": {"hall": HALL, "floor": "example.com/floor"}})
    world.run(60)
    assert world.done(TellNodeLabels) == []
    world.nodes["n1"] = SeenNode({ZONE: "a", HALL: "7", "secret": "1"})
    give_node(world, f"{APP}-0", "n1")
    world.run(60)
    (told,) = world.done(TellNodeLabels)
    assert (told.pod, told.uid) == (f"{APP}-0", world.pods()[0]["metadata"]["uid"])
    assert told.labels == {ZONE: "a", HALL: "7"}


def test_pods_without_racks_are_told_nothing(world):
    """Without spec.racks nobody asks for labels."""
    world.nodes["n1"] = SeenNode({ZONE: "a"})
    give_node(world, f"{APP}-0", "n1")
    world.run(60)
    assert world.log == []


def test_members_of_a_lost_pod_are_removed_where_standbys_can_take_over(world):
    """The node is gone or out of service, so nothing of it can be alive; everybody else's members stay."""
    world.lost_pods.add(world.pods()[1]["metadata"]["uid"])
    world.pass_over()
    assert world.done(model.RemoveMembers) == [model.RemoveMembers((f"{APP}-1",), (f"m-{APP}-1-1",))]


def test_members_on_a_node_that_does_not_answer_stay(world):
    """Its pods may still be running; the operator looks again soon."""
    give_node(world, f"{APP}-1", "n1")
    world.nodes["n1"] = SeenNode({}, ready=False)
    world.set_ready(f"{APP}-1", ready=False)
    decision = world.pass_over()
    assert world.done(model.RemoveMembers) == []
    assert decision.again_after <= 2


def test_a_node_that_does_not_answer_is_not_looked_at_for_ever(world):
    """Once the session of its members is over, nothing is to be gained by looking every two seconds."""
    give_node(world, f"{APP}-1", "n1")
    world.nodes["n1"] = SeenNode({}, ready=False)
    world.set_ready(f"{APP}-1", ready=False)
    world.members.remove(f"{APP}-1")
    again = world.pass_over().again_after
    assert again is None or again > 2


def test_lost_pod_keeps_its_place_without_standbys():
    """Nobody else has its state: its successor may come back with the volume."""
    world = World()
    world.change(replicas=2)
    world.run(600)
    world.lost_pods.add(world.pods()[1]["metadata"]["uid"])
    world.pass_over()
    assert world.done(model.RemoveMembers) == []
