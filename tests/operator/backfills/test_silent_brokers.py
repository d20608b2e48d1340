"""Brokers that do not answer are waited for while nobody else knows what was published."""

import pytest
from tests.operator.backfills.world import World, advance, condition, die_unheard, phases, run_minutes, running, spec

from millrace_operator.backfills.backfill_status import with_problem
from millrace_operator.backfills.context import ANSWERED, LOG_PATIENCE_S, PUBLISHING
from millrace_operator.backfills.reconciler import (
    DeleteSparkApplication,
    reconcile_backfill,
)


@pytest.mark.parametrize("answer", [True, False])
def test_brokers_that_do_not_answer_are_waited_for_a_moment(answer):
    """After that the backfill says why it does not end."""
    world = running(spec=spec(attempts=1))
    world.spark("vanish")
    world.brokers_answer = False
    for seconds in (0, 5, 59):
        world.now += seconds
        world.pass_over()
        assert (phases(world), condition(world, PUBLISHING)) == (("Stopping", True), "Unknown")
    world.now += 1
    check_end_of_patience(world, answer)


@pytest.mark.parametrize("answer", [True, False])
def test_job_that_nobody_has_seen_may_have_published_if_brokers_do_not_answer(answer):
    """It has come and gone while no operator ran, with its SparkApplication."""
    world = World(spec=spec(attempts=1))
    advance(world, "Submitted")
    for event in ("start", "compute", *(() if answer else ("publish",)), "vanish"):
        world.spark(event)
    world.brokers_answer = False
    world.pass_over()
    world.pass_over()
    assert (phases(world), condition(world, PUBLISHING)) == (("Stopping", True), "Unknown")
    world.now += 60
    check_end_of_patience(world, answer)


def check_end_of_patience(world, answer):
    """Check that the application stays stopped while brokers do not say what there is, and only as long."""
    world.brokers_answer = answer
    world.pass_over()
    assert phases(world) == ("Failed" if answer else "Stopping", not answer)
    assert condition(world, PUBLISHING) == ("False" if answer else "Unknown")
    assert condition(world, ANSWERED) == (None if answer else "False")


def unanswered(**fields):
    """Return a world whose only attempt has gone unheard, and whose brokers have not answered for longer than a minute."""
    world = running(spec=spec(attempts=1), **fields)
    world.spark("vanish")
    world.brokers_answer = False
    run_minutes(world, 3)
    assert (phases(world), condition(world, ANSWERED)) == (("Stopping", True), "False")
    world.app_pass()
    return world


def test_brokers_are_asked_until_they_answer_before_an_application_stays_stopped():
    """A missing right or Secret is repaired after a while: by then nobody would ask whether anything was published."""
    world = unanswered()
    what = next(item for item in world.status.conditions if item.type == ANSWERED).message
    assert what.startswith("It is not known what was published: The brokers do not answer. The operator keeps asking")
    assert world.status.message == "SparkApplication history-1 was deleted by somebody."
    world.now += 300
    world.brokers_answer = True
    world.settle()
    assert (phases(world), condition(world, ANSWERED), world.pods) == (("Failed", False), "True", 2)
    assert [event.reason for event in world.events].count("BrokersDoNotAnswer") == 1


def test_backfill_that_waits_for_an_answer_goes_when_its_user_deletes_it():
    """Who deletes it has read why it waits, as with one that has failed."""
    world = unanswered()
    world.deleted, world.deleted_at = True, world.now
    world.settle()
    assert (phases(world), world.gone, world.pods) == (("Failed", False), True, 2)


def test_backfill_that_is_deleted_after_its_application_was_suspended_does_not_say_that_it_continues():
    """As the message tells its user who has no brokers any more. A reset or another backfill comes next."""
    world = unanswered()
    world.state = "suspended"
    world.deleted, world.deleted_at = True, world.now
    for _ in range(2):
        world.pass_over()
    assert (world.status.phase, world.gone) == ("Failed", True)
    assert "the application continues" not in world.events[-1].message
    assert "It is not known whether publishing had begun" in world.events[-1].message


@pytest.mark.parametrize("change", [{"state": "suspended"}, {"app_deleting": True}, {"exists": False}])
def test_backfill_that_was_deleted_before_brokers_were_silent_waits_for_them(change):
    """Nobody has read why it waits. It goes when its application would not start on an inconsistent state any more."""
    world = unanswered()
    said = next(item for item in world.status.conditions if item.type == ANSWERED).message
    assert said.endswith("If you only delete it, the application continues, perhaps from an inconsistent state.")
    world.deleted = True
    world.pass_over()
    assert phases(world) == ("Stopping", True)
    said = next(item for item in world.status.conditions if item.type == ANSWERED).message
    assert said.endswith("was deleted already: it disappears once the brokers answer or the application is suspended.")
    for name, value in change.items():
        setattr(world, name, value)
    for _ in range(2):
        world.pass_over()
    assert (world.status.phase, world.gone) == ("Failed", True)
    assert "It is not known whether publishing had begun" in world.status.message


def test_brokers_are_waited_for_from_when_they_can_be_asked():
    """Not from when the job has failed: its executors may live on for longer than that."""
    world = running(spec=spec(attempts=1))
    world.unreadable = True
    world.spark("die")
    for _ in range(4):
        world.pass_over()
        world.now += LOG_PATIENCE_S / 2
    assert world.status.phase == "Stopping"
    world.executors_end()
    world.brokers_answer = False
    world.pass_over()
    assert phases(world) == ("Stopping", True)
    world.brokers_answer = True
    world.pass_over()
    assert phases(world) == ("Failed", False)


@pytest.mark.parametrize(("attempts", "has_begun"), [(1, False), (1, True), (2, True)])
def test_cancelled_job_that_is_gone_may_have_published_if_brokers_do_not_answer(attempts, has_begun):
    """It ran when it was last heard of: only when the brokers answer, it is done again, or ends if there is nothing of it."""
    world = running(spec=spec(attempts=attempts))
    world.deleted = True
    world.pass_over()
    if has_begun:
        world.spark("publish")
    world.spark("vanish")
    world.brokers_answer = False
    run_minutes(world, 5)
    assert (phases(world), world.status.attempt) == (("Stopping", True), 1)
    assert (condition(world, PUBLISHING), condition(world, ANSWERED)) == ("Unknown", "False")
    world.brokers_answer = True
    world.settle()
    assert (world.gone, world.half, world.published, world.status.attempt) == (True, False, has_begun, 1 + has_begun)


@pytest.mark.parametrize("change", [{"deleted": True}, {"app_changes": {"image": "registry.example/words:2"}}])
def test_cancelled_job_is_not_done_again_while_brokers_are_silent(change):
    """Every attempt would be cancelled in the same way, one a minute, and nothing could be deleted."""
    world = World()
    advance(world, "Submitted")
    world.brokers_answer = False
    for name, value in change.items():
        setattr(world, name, value)
    for _ in range(20):
        world.fail_submission()
        world.pass_over()
        world.now += 60
    assert (phases(world), list(world.applications)) == (("Stopping", True), ["history-1"])
    world.app_deleting = True
    world.pass_over()
    assert world.status.phase == "Failed"


def test_retry_that_waits_for_silent_brokers_is_cancelled_with_its_application():
    """It has failed before that was deleted, and would be done again."""
    world = World()
    advance(world, "Submitted")
    world.brokers_answer = False
    world.fail_submission()
    world.pass_over()
    assert world.status.outcome == "Retry"
    world.app_deleting = True
    run_minutes(world, 4)
    assert (world.status.phase, list(world.applications)) == ("Failed", ["history-1"])


def test_job_that_was_cancelled_before_it_ran_has_published_nothing():
    """The backfill has deleted its SparkApplication itself, so silent brokers are waited for only a moment."""
    world = World()
    advance(world, "Submitted")
    world.deleted, world.brokers_answer = True, False
    run_minutes(world, 6)
    assert (world.gone, world.status.attempt, world.applications) == (True, 1, {})
    assert world.status.message == "The backfill was deleted. Nothing was published."


@pytest.mark.parametrize("what", ["killed", "failed"])
def test_job_that_never_ran_is_known_not_to_have_whatever_becomes_of_a_pass(what):
    """The operator is killed, or a request fails, after it has deleted the SparkApplication."""
    world = World()
    advance(world, "Submitted")
    world.deleted, world.brokers_answer = True, False
    while world.applications:
        desired, observed = world.look()
        deletes = any(
            isinstance(item, DeleteSparkApplication) for item in reconcile_backfill(desired, observed).actions
        )
        world.pass_over(crash_after=1 if deletes and what == "killed" else None)
    if what == "failed":
        world.status = with_problem(world.look()[0], world.now, "the API server does not answer")
    run_minutes(world, 5)
    assert (world.gone, world.status.message) == (True, "The backfill was deleted. Nothing was published.")


def start_unseen(world, executor):
    """Let a driver begin to publish on a node that is lost before it says that it has started the driver."""
    world.spark_pods["-1-driver"], world.troubles["-1-driver"] = True, "ContainerCreating"
    if executor:
        world.spark_pods["-1-exec-1"] = True
    world.half = True


def test_driver_whose_start_was_not_seen_may_have_published():
    """Its node was lost before it could say that the container runs; the brokers know what the driver has published."""
    world = World()
    advance(world, "Submitted")
    start_unseen(world, executor=False)
    world.deleted = True
    while world.applications:
        world.pass_over()
    world.settle()
    assert "Nothing was published" not in world.status.message
    assert (world.gone, world.half, world.published, world.status.attempt) == (True, False, 1, 2)


def test_executor_proves_that_its_driver_was_started():
    """So silent brokers are asked until they answer, although nobody has seen the driver start."""
    world = World()
    advance(world, "Submitted")
    start_unseen(world, executor=True)
    world.deleted, world.brokers_answer = True, False
    run_minutes(world, 6)
    assert (phases(world), condition(world, ANSWERED)) == (("Stopping", True), "False")


def test_job_that_started_while_it_was_cancelled_may_have_published():
    """Its driver was first seen after its SparkApplication was deleted."""
    world = World()
    advance(world, "Submitted")
    world.deleted, world.brokers_answer = True, False
    for _ in range(3):
        world.pass_over()
    assert world.applications == {}
    world.spark_pods["-1-driver"] = True
    world.pass_over()
    assert world.status.spark.driver_pod == "-1-driver"
    world.spark_pods.clear()
    run_minutes(world, 3)
    assert (phases(world), condition(world, ANSWERED)) == (("Stopping", True), "False")


def test_next_attempt_begins_when_the_brokers_answer():
    """It begins without anything left of the first."""
    world = running()
    die_unheard(world)
    world.brokers_answer = False
    run_minutes(world, 5)
    assert (phases(world), world.status.outcome) == (("Stopping", True), "Retry")
    assert (condition(world, PUBLISHING), condition(world, ANSWERED)) == ("Unknown", "False")
    world.brokers_answer = True
    world.pass_over()
    assert (world.status.phase, world.status.attempt, condition(world, PUBLISHING)) == ("Submitted", 2, None)


def fail_in_parts(event, **fields):
    """Return a world whose job was heard to publish in parts, and whose brokers have been silent since another event."""
    world = running(**fields)
    world.spark("publish")
    world.pass_over()
    world.spark(event)
    if event == "report":
        die_unheard(world)
    world.brokers_answer = False
    run_minutes(world, 5)
    assert (phases(world), condition(world, ANSWERED)) == (("Stopping", True), "False")
    world.app_pass()
    return world


def test_last_commit_that_nobody_heard_of_counts_when_the_brokers_answer():
    """The job had said that it publishes in parts, and its driver died before it could say that it had finished."""
    world = fail_in_parts("report", spec=spec(attempts=1))
    world.brokers_answer = True
    world.settle()
    assert (phases(world), world.published, world.pods) == (("Succeeded", False), 1, 2)


def test_outage_of_the_brokers_does_not_use_up_the_attempts():
    """Each would fail at once, and an inconsistent state would be left for good."""
    world = fail_in_parts("fail")
    run_minutes(world, 60)
    assert (world.status.attempt, world.status.outcome, list(world.applications)) == (1, "Retry", ["history-1"])
    assert [event.reason for event in world.events].count("BrokersDoNotAnswer") == 1
    world.brokers_answer = True
    world.settle()
    assert (phases(world), world.status.attempt, world.half) == (("Succeeded", False), 2, False)


@pytest.mark.parametrize("event", ["report", "fail"])
def test_backfill_known_to_publish_in_parts_is_let_go_and_keeps_the_application_stopped(event):
    """Brokers that never answer do not keep its user from deleting it. What it leaves may be an inconsistent state."""
    world = fail_in_parts(event)
    said = next(item for item in world.status.conditions if item.type == ANSWERED).message
    assert said.endswith("the application stays stopped until another one has succeeded.")
    world.deleted, world.deleted_at = True, world.now
    world.settle()
    assert (phases(world), world.gone, world.pods) == (("Failed", True), False, 0)
    world.state = "suspended"
    world.settle()
    assert world.gone


@pytest.mark.parametrize("change", [{"state": "suspended"}, {"app_deleting": True}])
def test_deletion_of_a_backfill_known_to_publish_in_parts_ends_without_the_brokers(change):
    """It was deleted before they were silent. It goes when its application would not start on an inconsistent state any more."""
    world = running()
    world.deleted = True
    world.spark("publish")
    world.pass_over()
    world.spark("fail")
    world.brokers_answer = False
    run_minutes(world, 5)
    said = next(item for item in world.status.conditions if item.type == ANSWERED).message
    assert said.endswith("is completed once the brokers answer, and disappears once the application is suspended.")
    for name, value in change.items():
        setattr(world, name, value)
    for _ in range(2):
        world.pass_over()
    assert (world.gone, world.status.attempt, world.status.phase) == (True, 1, "Failed")
    assert "Publishing was interrupted" in world.status.message


def test_answer_of_the_brokers_about_one_attempt_says_nothing_of_the_next():
    """That may publish while it is cancelled."""
    world = running()
    die_unheard(world)
    advance(world, "Submitted")
    for event in ("start", "compute"):
        world.spark(event)
    world.pass_over()
    world.deleted = True
    world.pass_over()
    world.spark("publish")
    world.spark("vanish")
    world.brokers_answer = False
    run_minutes(world, 4)
    assert (phases(world), condition(world, PUBLISHING)) == (("Stopping", True), "Unknown")
