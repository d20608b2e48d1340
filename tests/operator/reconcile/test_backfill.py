"""An application that a backfill keeps stopped: its pods go, it says why, and afterwards it continues."""

import pytest
from tests.operator.reconcile.world import World

from millrace_operator.model import SetFinalizer


def running():
    """Return a world whose application runs."""
    world = World()
    world.change(replicas=2)
    world.run()
    assert len(world.pods()) == 2
    return world


def test_backfill_stops_the_application_and_lets_it_continue():
    """The spec stays as it is; the status says that a backfill runs and that the operator knows about it."""
    world = running()
    world.backfill = "history"
    world.run()
    assert world.pods() == []
    assert (world.status.lifecycle_state, world.status.backfill) == ("Backfilling", "history")
    assert (world.status.ready, world.status.replicas) == ("0/0", 0)
    assert world.condition("Ready") == ("False", "Backfilling")
    world.backfill = None
    world.run()
    assert len(world.pods()) == 2
    assert (world.status.lifecycle_state, world.status.backfill) == ("Running", None)


def test_backfill_that_has_left_half_a_state_is_named():
    """The application does not continue by itself: the backfill says what to do."""
    world = running()
    world.backfill = "history"
    world.run()
    ready = next(item for item in world.status.conditions if item.type == "Ready")
    assert ready.message == "The application is stopped for StreamsBackfill history, and continues afterwards."
    world.backfill_has_ended = True
    world.run()
    ready = next(item for item in world.status.conditions if item.type == "Ready")
    assert ready.message == (
        "The application is stopped because StreamsBackfill history has left half a state: see its message."
    )


def test_backfill_that_keeps_the_application_stopped_afterwards_is_named():
    """It has left half a state, and stays until its user deletes it, even if the one that runs succeeds."""
    world = running()
    world.backfill, world.backfill_then = "again", "history"
    world.run()
    ready = next(item for item in world.status.conditions if item.type == "Ready")
    assert ready.message == (
        "The application is stopped for StreamsBackfill again. Afterwards it stays stopped because StreamsBackfill history has "
        "left half a state: see its message."
    )


def test_changed_application_stays_stopped():
    """Neither more replicas nor another image starts a pod."""
    world = running()
    world.backfill = "history"
    world.run()
    world.change(replicas=3, image="registry.example/words:2")
    world.run()
    assert world.pods() == []
    world.backfill = None
    world.run()
    assert len(world.pods()) == 3


def test_paused_application_does_not_claim_to_be_stopped():
    """Its pods are left alone, so the backfill must not begin."""
    world = running()
    world.annotations["streams.millrace.dev/pause"] = "true"
    world.backfill = "history"
    world.run()
    assert len(world.pods()) == 2
    assert world.status.backfill is None


@pytest.mark.parametrize("policy", ["Retain", "Purge"])
def test_deletion_waits_for_the_backfill(policy):
    """Spark pods would write to topics that are being deleted; the backfill notices the deletion, and ends."""
    world = running()
    world.change(deletionPolicy=policy)
    world.backfill = "history"
    world.run()
    world.delete()
    decision = world.pass_over()
    assert SetFinalizer(present=False) not in decision.actions
    assert decision.again_after is not None
    assert world.topics
    world.backfill = None
    world.run()
    assert not world.exists
