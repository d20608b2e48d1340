"""Resources that this version of the operator cannot read are left alone."""

from dataclasses import replace

import pytest
from tests.operator.backfills.world import (
    World,
    advance,
    app_unread,
    die_unheard,
    message_of,
    phases,
    running,
)

from millrace_operator.backfills.backfill_status import CREATED
from millrace_operator.backfills.context import ANSWERED, PUBLISHING
from millrace_operator.backfills.reconciler import (
    PATIENCE_S,
    reconcile_backfill,
)


def begun(phase):
    """Return a backfill in a phase between its beginning and its end; one that stops was deleted."""
    world = World()
    while world.status is None or world.status.phase != phase:
        world.pass_over()
        world.app_pass()
        for event in ("start", "compute", *(("publish",) if phase == "Publishing" else ())):
            world.spark(event)
        if phase == "Stopping" and world.status.phase == "Computing":
            world.deleted = True
    return world


def unread(world):
    """Return what a pass decides whose operator cannot read the spec."""
    desired, observed = world.look()
    return reconcile_backfill(replace(desired, spec=None, problems=("spec.new: unknown field",)), observed)


@pytest.mark.parametrize("phase", ["Suspending", "Submitted", "Computing", "Publishing", "Stopping"])
def test_backfill_whose_spec_cannot_be_read_is_left_alone(phase):
    """The operator was rolled back meanwhile to a version that does not know a field of it."""
    world = begun(phase)
    before = world.status
    decision = unread(world)
    assert (decision.actions, decision.again_after, decision.status.phase) == ((), 30, phase)
    problem = "This operator cannot read the spec (spec.new: unknown field): use the version of the operator that began"
    stopped = [item.message for item in decision.status.conditions if item.type == "SparkPodsStopped"]
    assert (stopped[0] if phase == "Stopping" else decision.status.message).startswith(problem)
    assert decision.status.model_copy(update={"message": None, "conditions": ()}) == before.model_copy(
        update={"message": None, "conditions": ()}
    )
    world.settle()
    assert world.status.phase == ("Failed" if phase == "Stopping" else "Succeeded")


@pytest.mark.parametrize("phase", ["Suspending", "Submitted", "Computing", "Publishing", "Stopping"])
def test_backfill_whose_phase_cannot_be_read_is_left_alone(phase):
    """The operator was rolled back to a version that does not know it: the application stays stopped, and the job goes on."""
    world = begun(phase)
    world.deleted, world.older = False, True
    for _ in range(3):
        decision = world.pass_over()
        assert (decision.actions, decision.again_after, phases(world)) == ((), 30, (phase, True))
    assert world.status.message == (
        "This operator cannot read the phase in the status: use the version of the operator that began this StreamsBackfill, or "
        "delete it, and it ends with its job."
    )
    world.older = False
    world.settle()
    assert world.status.phase == ("Failed" if phase == "Stopping" else "Succeeded")


@pytest.mark.parametrize("publishes", [False, True])
def test_deleted_backfill_whose_phase_cannot_be_read_ends_with_its_job(publishes):
    """Its finalizer stays as long as the job may publish. Then nobody knows what that has left."""
    world = running()
    world.older, world.deleted = True, True
    if publishes:
        world.spark("publish")
    for _ in range(3):
        assert world.pass_over().actions == ()
        assert world.held
    die_unheard(world)
    world.settle()
    assert (phases(world), world.gone) == (("Failed", True), False)
    assert "It is not known whether publishing had begun" in world.status.message


def test_backfill_that_has_taken_nothing_and_whose_phase_cannot_be_read_begins():
    """Only a lock or an attempt shows that it had begun."""
    world = World()
    world.pass_over()
    desired, observed = world.look()
    none = desired.status.model_copy(update={"phase": None, "holds_app": None})
    assert reconcile_backfill(replace(desired, status=none), observed).status.phase == "Suspending"


@pytest.mark.parametrize(
    ("events", "phase", "held"),
    [
        (None, "Failed", None),
        (("publish", "fail"), "Failed", True),
        (("publish", "vanish"), "Failed", True),
        (("publish", "succeed"), "Succeeded", None),
        (("publish",), "Publishing", True),
    ],
)
def test_deleted_backfill_whose_spec_cannot_be_read_ends_with_its_job(events, phase, held):
    """Nobody knows what a job has published that has not succeeded, so the application stays stopped."""
    if events is None:
        world = World()
        world.pass_over()
        phase, world.deleted = "Failed", True
    else:
        world = running()
        world.spark("publish")
        world.pass_over()
        world.deleted = True
        for event in events:
            world.spark(event)
    status = unread(world).status
    assert (status.phase, status.holds_app) == (phase, held)
    assert "This operator cannot read the spec" in status.message
    assert [item.status for item in status.conditions if item.type == PUBLISHING] == ["True"] * (events is not None)


@pytest.mark.parametrize("runs", [True, False])
def test_deleted_backfill_whose_spec_cannot_be_read_names_the_job_that_it_waits_for(runs):
    """The job may never end by itself, and this operator does not stop it."""
    world = running()
    world.deleted = True
    if not runs:
        world.spark("die")
    message = unread(world).status.message
    assert ("Pods that have not ended yet: " in message, "-1-exec-1" in message, "-1-driver" in message) == (
        True,
        True,
        runs,
    )
    assert message.endswith(" To end the job, delete SparkApplication history-1.")
    assert "or delete it" not in message
    message = unread(running()).status.message
    assert message.endswith("that began this StreamsBackfill, or delete it, and it ends with its job.")


@pytest.mark.parametrize(("half", "answer"), [(False, True), (True, True), (True, False)])
def test_next_attempt_waits_for_an_application_whose_spec_cannot_be_read(half, answer):
    """The operator was rolled back meanwhile; its attempts are not over for that, and it does not know which brokers to ask."""
    world = running()
    if half:
        world.spark("publish")
        world.pass_over()
    world.spark("fail")
    advance(world, "Stopping")
    world.brokers_answer = answer
    for _ in range(3):
        decision = app_unread(world)
        world.now += PATIENCE_S
    assert (decision.actions, decision.again_after) == ((), 30)
    assert (phases(world), world.status.outcome) == (("Stopping", True), "Retry")
    assert world.status.message == "Attempt 1 failed: it is full"
    assert message_of(world, CREATED).startswith(
        "The spec of StreamsApp app cannot be read, so the next attempt waits: "
    )
    assert answer or ANSWERED not in {item.type for item in world.status.conditions}
    world.brokers_answer = True
    world.pass_over()
    assert (world.status.phase, world.status.attempt) == ("Submitted", 2)
    world.settle()
    assert (world.status.phase, world.half) == ("Succeeded", False)


@pytest.mark.parametrize("half", [False, True])
def test_deleted_backfill_does_not_wait_for_an_application_whose_spec_cannot_be_read(half):
    """If nothing is half published, nothing keeps the application stopped."""
    world = running()
    if half:
        world.spark("publish")
        world.pass_over()
    world.spark("fail")
    advance(world, "Stopping")
    app_unread(world)
    world.deleted = True
    while world.status.phase == "Stopping":
        app_unread(world)
    assert phases(world) == ("Failed", half)
    assert world.status.message.startswith("Attempt 1 failed: it is full" if half else "The backfill was deleted.")


@pytest.mark.parametrize("has_stopped", [False, True])
def test_first_attempt_waits_for_an_application_whose_spec_cannot_be_read(has_stopped):
    """Its own passes do nothing either, whether it has stopped for the backfill or not."""
    world = World()
    advance(world, "Suspending")
    if has_stopped:
        world.app_pass()
    world.app_unreadable = True
    for _ in range(4):
        world.app_pass()
        world.pass_over()
        assert phases(world) == ("Suspending", True)
        assert world.status.message.startswith("The spec of StreamsApp app cannot be read")
        world.now += PATIENCE_S / 2
    world.app_unreadable = False
    world.pass_over()
    assert world.status.message == "StreamsApp app is being stopped."
    world.settle()
    assert world.status.phase == "Succeeded"
