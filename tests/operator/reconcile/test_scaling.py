"""More pods, fewer pods, none."""

import itertools

import pytest
from tests.operator.reconcile.world import APP, World, is_ready

from millrace_operator import model


@pytest.fixture
def world():
    """A healthy application with three pods."""
    world = World()
    world.change(replicas=3)
    world.run()
    world.log.clear()
    return world


def test_pods_are_added_at_once(world):
    """Scaling out is a matter of a number."""
    world.change(replicas=5)
    world.run(30)
    assert len(world.pods()) == 5
    assert world.condition("Ready")[0] == "True"


def test_a_pod_is_drained_before_it_goes(world):
    """The highest ordinal is told to leave, and only then the StatefulSet shrinks by one; then the next one's turn comes."""
    world.change(replicas=1)
    world.run()
    steps = [
        action.pod if isinstance(action, model.DrainPod) else action.object["spec"]["replicas"]
        for action in world.log
        if isinstance(action, model.DrainPod)
        or (isinstance(action, model.Apply) and action.object["kind"] == "StatefulSet")
    ]
    assert [step for step, _ in itertools.groupby(steps)] == [3, f"{APP}-2", 2, f"{APP}-1", 1]
    assert [pod["metadata"]["name"] for pod in world.pods()] == [f"{APP}-0"]
    assert world.members == {f"{APP}-0"}
    assert world.turn().actions == ()


def test_a_pod_that_does_not_drain_holds_nothing_up_for_long(world):
    """After its grace period the pod goes all the same, and its membership with it."""
    world.change(replicas=2, drain={"terminationGracePeriodSeconds": 30})
    world.run(300)
    world.log.clear()
    world.deaf = True
    world.change(replicas=1)
    world.run(20)
    assert len(world.pods()) == 2
    world.run(60)
    assert len(world.pods()) == 1
    assert world.done(model.RemoveMembers) == [model.RemoveMembers((f"{APP}-1",))]
    assert world.members == {f"{APP}-0"}


def test_a_drained_pod_that_is_wanted_after_all_starts_anew(world):
    """Scaling back out while a pod drains replaces the drained pod."""
    world.change(replicas=2)
    world.turn()
    assert world.drained
    world.change(replicas=3)
    world.run()
    assert len(world.pods()) == 3
    assert all(map(is_ready, world.pods()))
    assert len(world.members) == 3


def test_claims_of_removed_pods_are_kept(world):
    """By default a volume outlives its pod, and is used again."""
    world.change(replicas=1)
    world.run()
    assert len(world.names("PersistentVolumeClaim")) == 3
    assert not [action for action in world.done(model.Delete) if action.key.kind == "PersistentVolumeClaim"]


def test_claims_of_removed_pods_are_deleted_if_so_wanted(world):
    """With storage.retention.whenScaled Delete they go once their pods are gone."""
    world.change(replicas=1, storage={"retention": {"whenScaled": "Delete"}})
    world.run()
    assert world.names("PersistentVolumeClaim") == [f"state-{APP}-0"]


def test_suspending_keeps_claims_even_if_scaling_does_not(world):
    """Suspending is no scaling: every volume is kept for the resumption."""
    world.change(state="suspended", storage={"retention": {"whenScaled": "Delete"}})
    world.run()
    assert world.pods() == []
    assert len(world.names("PersistentVolumeClaim")) == 3


def test_suspend_and_resume(world):
    """All pods stop, the members leave, and the same revision comes back."""
    revision = world.status.stable_revision
    world.change(state="suspended")
    world.run()
    assert world.pods() == []
    assert world.members == set()
    assert world.status.lifecycle_state == "Suspended"
    assert world.condition("Ready") == ("False", "Suspended")
    assert world.turn().actions == ()
    world.change(state="running")
    world.run()
    assert world.revisions() == [revision] * 3
    assert world.condition("Ready")[0] == "True"
    assert world.status.lifecycle_state == "Running"


def test_a_paused_application_is_not_touched(world):
    """With the annotation only the status is written; without it the work goes on."""
    world.annotations["streams.millrace.dev/pause"] = "true"
    world.change(replicas=1, image="registry.example/words:2")
    world.run()
    assert world.log == []
    assert world.condition("ReconciliationPaused") == ("True", "PausedByAnnotation")
    assert len(world.pods()) == 3
    del world.annotations["streams.millrace.dev/pause"]
    world.run()
    assert len(world.pods()) == 1
    assert world.condition("ReconciliationPaused")[0] == "False"


def test_nothing_is_added_while_brokers_are_away(world):
    """Pods that run are left alone; new ones wait for the brokers."""
    world.brokers_up = False
    world.change(replicas=5)
    world.run(30)
    assert len(world.pods()) == 3
    assert world.condition("BrokersReachable") == ("False", "Unreachable")
    world.brokers_up = True
    world.run()
    assert len(world.pods()) == 5
