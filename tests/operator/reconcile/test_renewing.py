"""Certificates that change while pods run with the old ones."""

from __future__ import annotations

import pytest
from tests.operator.reconcile.world import APP, World

from millrace_operator import model


@pytest.fixture
def world():
    """A healthy application with three pods, whose certificates have just changed."""
    world = World()
    world.change(replicas=3)
    world.run()
    assert world.condition("Ready")[0] == "True"
    world.most_pods_down = 0
    world.log.clear()
    world.renew_certificates()
    return world


def deleted_pods(world):
    """Return the names of the pods that were deleted, in their order."""
    return [action.key.name for action in world.done(model.Delete) if action.key.kind == "Pod"]


def test_pods_are_restarted_one_by_one_for_new_certificates(world):
    """Each once, the highest ordinal first; the revision stays, no member is removed, and then there is nothing to do."""
    revisions = world.revisions()
    world.turn()
    assert world.condition("Reconciling") == ("True", "RenewingCredentials")
    assert world.status.lifecycle_state == "RollingOut"
    world.run()
    assert deleted_pods(world) == [f"{APP}-2", f"{APP}-1", f"{APP}-0"]
    assert world.most_pods_down == 1
    assert world.revisions() == revisions
    assert world.done(model.RemoveMembers) == []
    assert world.condition("Reconciling")[0] == "False"
    assert world.turn().actions == ()


def test_the_gate_of_a_roll_holds(world):
    """While tasks restore, no pod is taken away."""
    world.restoring = {f"{APP}-0": 1}
    world.run(60)
    assert deleted_pods(world) == []
    assert world.condition("Reconciling") == ("True", "WaitingForGate")
    world.restoring = {}
    world.run()
    assert len(deleted_pods(world)) == 3


def test_certificates_that_do_not_do_cost_one_pod(world):
    """The first pod that does not come up with the new ones is waited for: the others keep the old ones."""
    world.taken = "old"
    world.run(1200)
    assert deleted_pods(world) == [f"{APP}-2"]
    assert world.condition("Ready")[0] == "False"
    world.taken = "both"
    world.run()
    assert world.condition("Ready")[0] == "True"
    assert sorted(set(deleted_pods(world))) == [f"{APP}-{index}" for index in range(3)]


def test_nothing_is_restarted_while_brokers_are_away(world):
    """A new pod could not come up."""
    world.brokers_up = False
    world.run(600)
    assert deleted_pods(world) == []
    world.brokers_up = True
    world.run()
    assert len(deleted_pods(world)) == 3


def test_pods_that_the_old_certificates_have_cut_off_do_not_wait(world):
    """When brokers take the old ones no longer, pods are not ready, and would never be: no gate is to be waited for."""
    world.taken = "new"
    world.run(30)
    assert len(deleted_pods(world)) == 3
    assert world.condition("Ready")[0] == "True"
