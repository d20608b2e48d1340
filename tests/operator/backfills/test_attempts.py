"""Attempts: how they are started, fail, and are followed by others."""

import pytest
from tests.operator.backfills.world import World, advance, app_unread, condition, message_of, phases, running, spec

from millrace_operator.backfills.backfill_status import CREATED
from millrace_operator.backfills.context import PUBLISHING
from millrace_operator.backfills.reconciler import (
    PATIENCE_S,
    CreateObject,
    DeleteSparkApplication,
    reconcile_backfill,
)


def test_failed_attempt_is_followed_by_another():
    """Under another name: a name that was used once is never used again."""
    world = running()
    world.spark("fail")
    world.settle()
    assert (world.status.phase, world.status.attempt, world.published) == ("Succeeded", 2, 1)
    assert list(world.applications) == ["history-1", "history-2"]
    assert "AttemptFailed" in [event.reason for event in world.events]


def test_last_attempt_fails_with_the_jobs_own_words():
    """The application continues as it was."""
    world = running(spec=spec(attempts=1))
    world.spark("fail")
    world.settle()
    assert phases(world) == ("Failed", False)
    assert "it is full" in world.status.message
    assert (world.published, world.pods) == (0, 2)


def test_refusal_by_the_job_is_final():
    """Trying a wrong column again does not help."""
    world = running()
    world.spark("refuse")
    world.settle()
    assert (world.status.phase, world.status.attempt) == ("Refused", 1)


def test_application_stays_stopped_while_an_executor_may_still_write():
    """A driver that was killed leaves executors behind for a while; those that do not end are deleted."""
    world = running(spec=spec(attempts=1))
    world.spark("die")
    for _ in range(3):
        world.pass_over()
    assert phases(world) == ("Stopping", True)
    assert "exec-1" in next(item for item in world.status.conditions if item.type == "SparkPodsStopped").message
    world.now += 120
    assert any(isinstance(action, DeleteSparkApplication) for action in world.pass_over().actions)
    world.pass_over()
    assert phases(world) == ("Failed", False)


@pytest.mark.parametrize("change", [{"image": "registry.example/words:2"}, None])
def test_changed_or_deleted_application_ends_it(change):
    """The result would not fit: the job is stopped before it publishes."""
    world = running()
    if change is None:
        world.exists = False
    else:
        world.app_changes = change
    world.pass_over()
    assert world.status.phase == "Stopping"
    while world.status.phase == "Stopping":
        world.executors_end()
        world.pass_over()
    assert phases(world) == ("Failed", False)
    assert world.applications == {}


def test_changed_application_does_not_end_a_job_that_publishes():
    """It is too late for that; the application's own rules decide what becomes of the new revision."""
    world = running()
    world.spark("publish")
    world.pass_over()
    world.app_changes = {"image": "registry.example/words:2"}
    world.settle()
    assert (world.status.phase, world.published) == ("Succeeded", 1)


def test_attempt_after_a_change_of_the_application_runs_the_program_of_the_first():
    """What was published in part is finished by the same program; a new topology would be refused, or not fit."""
    world = running()
    world.spark("publish")
    world.pass_over()
    world.app_changes = {"image": "registry.example/words:2", "serviceAccountName": "other"}
    world.spark("fail")
    advance(world, "Submitted")
    first, second = world.applications.values()
    assert second["spec"]["image"] == first["spec"]["image"] != world.app().spec.image
    assert second["spec"]["executor"]["template"]["spec"] == first["spec"]["executor"]["template"]["spec"]


def test_attempt_that_can_only_run_a_changed_spec_says_so():
    """The ConfigMap with the first one is gone. Everything is published once more, and the job checks the topology."""
    world = running()
    world.spark("publish")
    world.pass_over()
    world.app_changes = {"image": "registry.example/words:2"}
    world.config_maps.clear()
    world.spark("fail")
    advance(world, "Submitted")
    said = next(event for event in world.events if event.reason == "FirstSpecLost")
    assert (said.type, "ConfigMap history.backfill" in said.message) == ("Warning", True)
    assert world.applications["history-2"]["spec"]["image"] == "registry.example/words:2"
    world.settle()
    assert (world.status.phase, world.half) == ("Succeeded", False)


def test_vanished_spark_application_is_not_created_again():
    """Somebody has deleted it, who may do the same again."""
    world = World()
    advance(world, "Submitted")
    world.spark_pods.clear()
    world.applications.clear()
    world.settle()
    assert phases(world) == ("Failed", False)
    assert "deleted by somebody" in world.status.message
    assert len([action for action in world.done if isinstance(action, CreateObject)]) == 2


def test_vanished_spark_application_that_has_published_nothing_is_not_created_again():
    """Though it did run, and another attempt is left: somebody has deleted it, who may do the same again."""
    world = running()
    world.spark("vanish")
    world.settle()
    assert (phases(world), world.status.attempt) == (("Failed", False), 1)
    assert world.status.message == "SparkApplication history-1 was deleted by somebody. Nothing was published."


def crash_while_submitting(number):
    """Return a world in which the operator died after it had created an attempt, and before it could write that down."""
    if number == 1:
        world = World()
        world.pass_over()
        world.app_pass()
    else:
        world = running()
        world.spark("publish")
        world.spark("fail")
        advance(world, "Stopping")
    world.pass_over(crash_after=2)
    assert list(world.applications) == ["history-1", "history-2"][:number]
    world.spark("start")
    world.spark("compute")
    world.spark("publish")
    return world


@pytest.mark.parametrize("number", [1, 2])
def test_operator_that_died_while_it_submitted_finds_its_attempt(number):
    """A job that has begun to publish meanwhile is neither deleted nor cancelled."""
    world = crash_while_submitting(number)
    world.deleted = True
    world.pass_over()
    assert (world.status.phase, world.status.attempt) == ("Submitted", number)
    world.settle()
    assert world.gone
    assert (world.published, world.half, world.status.phase) == (1, False, "Succeeded")
    assert not any(isinstance(action, DeleteSparkApplication) for action in world.done)


@pytest.mark.parametrize("deleted", [False, True])
def test_answer_of_the_brokers_outlives_an_operator_that_dies_while_it_submits(deleted):
    """The next attempt's log does not say what earlier ones have published, and it could still be cancelled for that."""
    world = World()
    advance(world, "Submitted")
    for event in ("start", "compute", "publish", "die"):
        world.spark(event)
    world.executors_end()
    world.progress = None  # its log is empty, as that of a pod that was evicted
    world.pass_over()
    assert (world.status.outcome, condition(world, PUBLISHING)) == ("Retry", None)
    while "history-2" not in world.applications:
        desired, observed = world.look()
        creates = any(isinstance(item, CreateObject) for item in reconcile_backfill(desired, observed).actions)
        world.pass_over(crash_after=2 if creates else None)
    world.deleted = deleted
    for event in ("start", "compute"):
        world.spark(event)
    world.pass_over()
    assert condition(world, PUBLISHING) == "True"
    world.settle()
    assert (world.status.phase, world.status.attempt, world.half) == ("Succeeded", 2, False)


def test_spark_application_that_nobody_starts_is_given_up():
    """The application does not stay stopped for a Spark operator that watches other namespaces."""
    world = World()
    advance(world, "Submitted")
    world.now += PATIENCE_S
    world.pass_over()
    world.pass_over()
    assert "No Spark operator has started" in world.status.message
    for _ in range(2):
        world.pass_over()
    assert phases(world) == ("Failed", False)
    assert world.applications == {}


def test_driver_that_does_not_start_is_named_and_given_up():
    """The Spark operator leaves the state at SUBMITTED for as long as the driver's pod is pending."""
    world = World()
    advance(world, "Submitted")
    world.applications["history-1"]["status"] = {"applicationState": {"state": "SUBMITTED"}}
    world.spark_pods["-1-driver"], world.troubles["-1-driver"] = True, "Unschedulable: Insufficient cpu"
    world.pass_over()
    assert world.status.message == "Pod -1-driver does not start: Unschedulable: Insufficient cpu"
    world.now += PATIENCE_S
    world.pass_over()
    world.pass_over()
    assert "Pod -1-driver of SparkApplication history-1 did not start within 10 minutes: Uns" in world.status.message
    for _ in range(2):
        world.pass_over()
    assert phases(world) == ("Failed", False)
    assert world.applications == {}


@pytest.mark.parametrize(
    ("events", "phase"), [((), "Submitted"), (("compute",), "Computing"), (("compute", "publish"), "Publishing")]
)
def test_job_that_runs_is_not_given_up_while_the_spark_operator_is_away(events, phase):
    """It was away since `spark-submit`, so it still says that the job has not started."""
    world = World()
    advance(world, "Submitted")
    for event in ("start", *events):
        world.spark(event)
    world.applications["history-1"]["status"] = {"applicationState": {"state": "SUBMITTED"}}
    for _ in range(2):
        world.pass_over()
        assert phases(world) == (phase, True)
        world.now += PATIENCE_S
    assert list(world.applications) == ["history-1"]


def test_driver_that_is_gone_while_the_spark_operator_is_away_has_failed():
    """The SparkApplication says for ever that it runs; the Spark operator has ten minutes to notice."""
    world = running()
    world.spark_pods.clear()
    world.progress = None
    for seconds, phase in ((0, "Submitted"), (PATIENCE_S - 1, "Submitted"), (1, "Stopping")):
        world.now += seconds
        world.pass_over()
        assert phases(world) == (phase, True)
        if phase == "Submitted":
            assert world.status.message == "The driver of SparkApplication history-1 has ended or is gone."
    world.settle()
    assert (world.status.phase, world.status.attempt, world.half) == ("Succeeded", 2, False)


def test_driver_of_which_nobody_knows_when_it_ended_has_failed():
    """The Spark operator has ten minutes to notice, at least since the phase has changed."""
    world = running()
    world.spark_pods = dict.fromkeys(world.spark_pods, False)
    for seconds, phase in ((0, "Computing"), (PATIENCE_S - 1, "Computing"), (1, "Stopping")):
        world.now += seconds
        world.pass_over()
        assert phases(world) == (phase, True)
    world.settle()
    assert (world.status.phase, world.status.attempt) == ("Succeeded", 2)


def test_executors_that_do_not_start_are_named():
    """The driver waits for them without an end, and says nothing in its reports."""
    world = running()
    world.spark_pods["-1-exec-1"], world.troubles["-1-exec-1"] = True, "Unschedulable: Insufficient memory"
    world.pass_over()
    assert (world.status.phase, world.status.message) == (
        "Computing",
        "Pod -1-exec-1 does not start: Unschedulable: Insufficient memory",
    )


def test_patience_with_a_creation_begins_when_it_is_refused():
    """The attempt before may have taken longer than that to stop, as with a node that is lost."""
    world = running()
    world.spark("fail")
    advance(world, "Stopping")
    world.now += 2 * PATIENCE_S
    world.refusal = "failed calling webhook."
    for seconds in (0, PATIENCE_S - 1):
        world.now += seconds
        world.pass_over()
        assert (world.status.phase, world.status.outcome) == ("Stopping", "Retry")
        assert world.status.message == "Attempt 1 failed: it is full"
        assert message_of(world, CREATED) == "failed calling webhook."
    world.now += 1
    world.pass_over()
    assert (world.status.phase, world.status.outcome) == ("Stopping", "Refused")
    assert world.status.message.startswith("failed calling webhook.")


def test_patience_with_a_creation_begins_when_the_spec_of_the_application_can_be_read():
    """Until then nobody has tried to create it."""
    world = running()
    world.spark("fail")
    advance(world, "Stopping")
    app_unread(world)
    world.now += 2 * PATIENCE_S
    world.refusal = "failed calling webhook."
    for seconds, outcome in ((0, "Retry"), (PATIENCE_S - 1, "Retry"), (1, "Refused")):
        world.now += seconds
        world.pass_over()
        assert (world.status.phase, world.status.outcome) == ("Stopping", outcome)


def test_refused_creation_is_forgotten_when_another_one_succeeds():
    """Patience with the next attempt's begins with itself."""
    world = running()
    world.spark("fail")
    advance(world, "Stopping")
    world.refusal = "failed calling webhook."
    world.pass_over()
    assert condition(world, CREATED) == "False"
    world.now += PATIENCE_S
    world.refusal = None
    world.pass_over()
    assert (world.status.phase, condition(world, CREATED)) == ("Submitted", "True")


@pytest.mark.parametrize("phase", ["Waiting", "Suspending", "Submitted"])
def test_time_without_an_operator_is_not_waited(phase):
    """Nobody could stop the application meanwhile, or see that it had stopped; perhaps the whole cluster was away."""
    world = World(brokers_answer=phase != "Waiting")
    advance(world, phase)
    world.now += 2 * PATIENCE_S
    world.working_since = world.now
    for seconds, expected in (
        (0, phase),
        (PATIENCE_S - 1, phase),
        (1, "Refused" if phase == "Waiting" else "Stopping"),
    ):
        world.now += seconds
        world.pass_over()
        assert world.status.phase == expected
