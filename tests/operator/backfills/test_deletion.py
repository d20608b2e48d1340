"""What becomes of a backfill that is deleted while it is under way, or has ended."""

from dataclasses import replace

import pytest
from tests.operator.backfills.world import World, running, spec

from millrace_operator.backfills.reconciler import (
    DeleteBackfill,
    DeleteSparkApplication,
    reconcile_backfill,
)
from millrace_operator.children.naming import FINALIZER


def test_deleting_it_while_it_computes_cancels_it():
    """The SparkApplication goes first, and then the application continues; nothing was published."""
    world = running()
    world.deleted = True
    while not world.gone:
        world.app_pass()
        world.pass_over()
    world.app_pass()
    assert (world.applications, world.published, world.half, world.pods) == ({}, 0, False, 2)


def test_job_of_many_pods_can_be_cancelled():
    """A message has room for the names of a few hundred; without it nothing would be deleted."""
    world = running()
    world.spark_pods |= {f"-1-exec-{number}-{'x' * 40}": True for number in range(1000)}
    world.deleted = True
    world.pass_over()
    assert any(isinstance(action, DeleteSparkApplication) for action in world.pass_over().actions)
    stopped = next(item for item in world.status.conditions if item.type == "SparkPodsStopped")
    assert "Pods that have not ended yet: -1-driver, " in stopped.message
    assert " and 997 more. If a pod's node" in stopped.message


def test_application_of_many_pods_is_waited_for():
    """They are more than a message has room for."""
    world = World()
    world.pass_over()
    world.pods, world.app_sees = 4000, "history"
    world.pass_over()
    assert world.status.message.endswith(" and 3995 more.")


def test_deleting_it_while_it_publishes_finishes_it():
    """Changelogs and offsets belong together, so even a failed attempt is followed by another."""
    world = running()
    world.spark("publish")
    world.pass_over()
    world.deleted = True
    world.spark("die")
    world.settle()
    assert world.gone
    assert (world.published, world.half) == (1, False)
    assert world.status.attempt == 2


@pytest.mark.parametrize("in_one_transaction", [False, True])
@pytest.mark.parametrize("then", ["vanish", "fail"])
def test_deleting_it_in_the_foreground_while_it_publishes_finishes_what_is_published_in_parts(then, in_one_transaction):
    """The garbage collector deletes what it owns at once, and that ends the job: it is done again, whatever the limit.

    Of an only transaction there is nothing, so that one is cancelled.
    """
    world = running(spec=spec(attempts=1), in_one_transaction=in_one_transaction)
    world.spark("publish")
    world.pass_over()
    world.deleted = True
    world.config_maps.clear()
    world.applications["history-1"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.spark(then)
    world.settle()
    assert (world.gone, world.half) == (True, False)
    assert (world.published, world.status.attempt) == ((0, 1) if in_one_transaction else (1, 2))
    created = [event.message for event in world.events if event.reason == "SparkApplicationCreated"]
    assert created[0] == "Attempt 1 of 1: SparkApplication history-1."
    assert not any(" 2 of 1" in message for message in created)
    assert len(created) == 1 or created[1].startswith("Attempt 2, one more than the limit, because the deletion ended ")


def test_finalizer_that_was_dropped_is_put_back():
    """`kubectl replace` drops it, and without it a deletion would not wait for the job. It cannot be added after that."""
    world = running()
    world.finalizers = ()
    desired, observed = world.look()
    assert reconcile_backfill(replace(desired, deleting=True), observed).actions == ()
    world.pass_over()
    assert world.finalizers == (FINALIZER,)
    world.settle()
    assert (world.status.phase, world.finalizers) == ("Succeeded", ())


def test_finished_backfill_does_nothing_ever_again():
    """Another pass, or an operator that starts later, changes nothing."""
    world = World()
    world.settle()
    world.done.clear()
    world.now += 1_000_000
    assert world.pass_over().again_after is None
    assert world.done == []


def test_finished_backfill_is_deleted_when_its_time_to_live_is_over():
    """With it go the SparkApplications and their logs, which belong to it."""
    world = World(spec=spec(ttl_seconds_after_finished=100))
    while world.status is None or world.status.phase != "Succeeded" or world.finalizers:
        world.app_pass()
        for event in ("start", "compute", "succeed"):
            world.spark(event)
        world.executors_end()
        world.pass_over()
    assert world.pass_over().again_after == pytest.approx(100, abs=1)
    world.now += 101
    assert any(isinstance(action, DeleteBackfill) for action in world.pass_over().actions)
    assert world.gone
