"""Decisions about a backfill: when it begins, what it waits for, and that it leaves no half state whatever fails."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.operator.backfills.world import APACHE, FOREIGN, World, spec

from millrace.manifest.streamsbackfill import StoreResult
from millrace.plan.reset import ActiveMember
from millrace_operator.backfills.backfill_status import CREATED, with_problem
from millrace_operator.backfills.context import ANSWERED, LOG_PATIENCE_S, PUBLISHING, UNREADABLE, BackfillContext
from millrace_operator.backfills.reconciler import (
    PATIENCE_S,
    CreateObject,
    DeleteBackfill,
    DeleteSparkApplication,
    reconcile_backfill,
)
from millrace_operator.children.naming import FINALIZER
from millrace_operator.model import SetFinalizer


def running(**fields):
    """Return a world in which the first attempt is computing."""
    world = World(**fields)
    advance(world, "Submitted")
    world.spark("start")
    world.spark("compute")
    world.pass_over()
    return world


def advance(world, phase, passes=20):
    """Run passes of both controllers until a phase is reached."""
    for _ in range(passes):
        if world.status is not None and world.status.phase == phase:
            return
        world.app_pass()
        world.executors_end()
        world.pass_over()
    raise AssertionError(f"{world.status.phase}: {world.status.message}")


def condition(world, kind):
    """Return the value of a condition; None if the status does not have it."""
    return next((item.status for item in world.status.conditions if item.type == kind), None)


def situation(world):
    """Return what the next pass knows."""
    return BackfillContext(*world.look())


def run_minutes(world, number):
    """Run passes a minute apart, as long as there is a backfill."""
    for _ in range(number):
        if not world.gone:
            world.pass_over()
        world.now += 60


def die_unheard(world):
    """Let the driver die, and its log go with its pod."""
    world.spark("die")
    world.spark_pods.clear()
    world.progress = None


def check_finished_by_the_first_attempt(world):
    """Check that the job is left alone and publishes everything, once its backfill has noticed that it publishes."""
    world.settle()
    assert (world.status.phase, world.status.attempt, world.published) == ("Succeeded", 1, 1)
    assert not any(isinstance(action, DeleteSparkApplication) for action in world.done)


def message_of(world, kind):
    """Return the message of a condition."""
    return next(item.message for item in world.status.conditions if item.type == kind)


def phases(world):
    """Return the phase and whether the application is kept stopped."""
    return world.status.phase, world.held


def test_backfill_stops_the_application_computes_and_lets_it_continue():
    """The pods go first; then one SparkApplication is created; when it has succeeded the application runs again."""
    world = World()
    world.settle()
    assert phases(world) == ("Succeeded", False)
    assert list(world.applications) == ["history-1"]
    assert (world.published, world.pods, world.finalizers, world.attempts_group) == (1, 2, (), False)
    assert [event.reason for event in world.events] == [
        "BackfillBegun",
        "SparkApplicationCreated",
        "BackfillSucceeded",
    ]
    assert {item.type for item in world.status.conditions} >= {"AppStopped", "SparkOperatorAvailable", "Complete"}


def test_first_pass_only_takes_the_lock():
    """Nothing is created before the status says that the application is kept stopped."""
    world = World()
    decision = world.pass_over()
    assert decision.actions == (SetFinalizer(present=True),)
    assert phases(world) == ("Suspending", True)


@pytest.mark.parametrize("seen", [None, "another"])
def test_nothing_is_computed_until_the_application_knows(seen):
    """No pods are not enough: a pass over the application that began earlier could still start some."""
    world = World(pods=0)
    world.pass_over()
    world.app_sees = seen
    assert not any(isinstance(action, CreateObject) for action in world.pass_over().actions)
    assert "is being stopped" in world.status.message


def test_application_that_knows_an_earlier_backfill_of_the_name_has_not_stopped_for_this_one():
    """The earlier one has left half a state and was replaced: a pass that began after that may be starting pods."""
    world = World(pods=0, app_sees="history")
    world.pass_over()
    assert phases(world) == ("Waiting", False)
    assert world.status.message.endswith("history is gone. Its conditions say what keeps it from that: remove it.")
    world.app_pass()
    world.pass_over()
    assert phases(world) == ("Suspending", True)
    world.settle()
    assert world.status.phase == "Succeeded"


def test_backfill_waits_for_members_of_pods_that_have_stopped():
    """A static member stays in the group for a while after its pod."""
    left = ActiveMember("m-1", "app-0.u-1", "app-0.u-StreamThread-1-consumer", "/10.0.0.1")
    world = World(pods=0, members=(left,))
    world.pass_over()
    world.app_pass()
    world.pass_over()
    assert "leaving the group: app-0.u" in world.status.message
    world.members = ()
    world.settle()
    assert world.status.phase == "Succeeded"


def test_strangers_in_the_group_refuse_it_before_the_application_is_stopped():
    """They would go on committing offsets of their own."""
    world = World(members=(FOREIGN,))
    world.settle()
    assert phases(world) == ("Refused", False)
    assert "java-1" in world.status.message
    assert (world.pods, world.done) == (2, [])


def test_strangers_that_join_later_end_it_without_a_result():
    """The application continues when that has lasted too long."""
    world = World()
    world.pass_over()
    world.members = (FOREIGN,)
    world.app_pass()
    world.pass_over()
    assert "java-1" in world.status.message
    world.now += PATIENCE_S
    world.settle()
    assert phases(world) == ("Failed", False)
    assert world.applications == {}


def test_backfill_of_an_application_that_is_being_deleted_is_refused():
    """There is nothing to wait for."""
    world = World(app_deleting=True)
    world.settle()
    assert phases(world) == ("Refused", False)
    assert "is being deleted" in world.status.message


def test_backfill_waits_for_an_application_that_is_created_a_little_later():
    """Both may be in the same folder, or come from different pipelines."""
    world = World(exists=False)
    world.pass_over()
    assert phases(world) == ("Waiting", False)
    world.exists = True
    world.settle()
    assert world.status.phase == "Succeeded"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"served": None}, "helm install spark-operator"),
        ({"planned": False}, "is not known yet"),
        ({"paused": True}, "remove it"),
        ({"claimants": ("shop/other",)}, "same applicationId"),
        ({"brokers_answer": False}, "do not answer"),
        ({"exists": False}, "There is no StreamsApp app in namespace default: create it."),
    ],
)
def test_what_is_in_the_way_is_waited_for_a_while_and_then_refused(fields, says):
    """Nothing starts weeks later because somebody has removed an obstacle; the application is left alone."""
    world = World(**fields)
    world.pass_over()
    assert world.status.phase == "Waiting"
    assert says in world.status.message
    world.now += PATIENCE_S
    world.settle()
    assert phases(world) == ("Refused", False)
    assert world.status.message.endswith(". Once this is solved, create another StreamsBackfill.")
    assert (world.pods, world.done) == (2, [])


def test_missing_spark_operator_is_a_condition_that_says_how_to_install_one():
    """Once it is installed, the backfill begins."""
    world = World(served=None)
    world.pass_over()
    condition = next(item for item in world.status.conditions if item.type == "SparkOperatorAvailable")
    assert (condition.status, condition.reason) == ("False", "NotInstalled")
    assert "sparkoperator.k8s.io" in condition.message
    assert "--set 'spark.jobNamespaces={default}'" in condition.message
    world.served = APACHE
    world.settle()
    assert next(iter(world.applications.values()))["apiVersion"] == APACHE


def test_one_operation_at_a_time():
    """However long the one before takes."""
    world = World(before=("StreamsReset again",))
    world.pass_over()
    world.now += 10 * PATIENCE_S
    world.pass_over()
    assert phases(world) == ("Waiting", False)
    assert "StreamsReset again" in world.status.message
    world.before = ()
    world.settle()
    assert world.status.phase == "Succeeded"


def test_patience_with_an_obstacle_begins_after_the_others():
    """However long they took, what is in the way then has its ten minutes to go."""
    world = World(before=("StreamsReset again",))
    world.pass_over()
    world.now += 10 * PATIENCE_S
    world.pass_over()
    world.before, world.brokers_answer = (), False
    for seconds, phase in ((0, "Waiting"), (PATIENCE_S - 1, "Waiting"), (1, "Refused")):
        world.now += seconds
        world.pass_over()
        assert world.status.phase == phase


@pytest.mark.parametrize("fields", [{"dry_run": True}, {"sink": "parquet:///tables"}])
def test_what_writes_nothing_to_kafka_leaves_the_application_running(fields):
    """Not even strangers in the group matter."""
    world = World(spec=spec(**fields), members=(FOREIGN,))
    advance(world, "Submitted")
    assert (world.held, world.pods) == (False, 2)
    world.settle()
    assert (world.status.phase, world.published) == ("Succeeded", 0)


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


@pytest.mark.parametrize("in_one_transaction", [True, False])
def test_refusal_while_publishing_is_final_too(in_one_transaction):
    """A record is too large for its topic in every attempt; only if there are parts, the application stays stopped."""
    world = running(in_one_transaction=in_one_transaction)
    world.spark("publish")
    world.pass_over()
    world.spark("refuse")
    advance(world, "Failed")
    assert (world.held, world.status.attempt) == (not in_one_transaction, 1)


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
    assert "Still there: -1-driver, " in stopped.message
    assert " and 997 more. If the node" in stopped.message


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
    assert len(created) == 1 or created[1].startswith("Attempt 2, one more than the limit, because the job before was ")


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


def test_half_published_state_keeps_the_application_stopped():
    """Otherwise it would restore it. Deleting the backfill lets it run: by then its user has read why."""
    world = running(spec=spec(attempts=1))
    world.spark("publish")
    world.pass_over()
    world.spark("fail")
    advance(world, "Failed")
    world.pass_over()
    world.app_pass()
    assert (world.held, world.pods, world.finalizers) == (True, 0, ())
    assert "create another one that succeeds" in world.status.message
    world.gone = True
    world.app_pass()
    assert world.pods == 2


@pytest.mark.parametrize(
    "change", [{"repaired": True}, {"state": "suspended"}, {"app_deleting": True}, {"exists": False}]
)
def test_half_published_state_keeps_a_backfill_that_was_deleted_before_it_ended(change):
    """Nobody has read why it failed. It goes when its application would not start on half a state any more."""
    world = running(spec=spec(attempts=1))
    world.spark("publish")
    world.pass_over()
    world.deleted = True
    world.spark("fail")
    world.settle()
    world.pass_over()
    assert (phases(world), world.gone, world.pods) == (("Failed", True), False, 0)
    assert "If it was deleted before it ended, it goes by itself" in world.status.message
    for name, value in change.items():
        setattr(world, name, value)
    world.pass_over()
    assert world.gone


@pytest.mark.parametrize("then", ["fail", "die"])
def test_failure_in_the_only_transaction_lets_the_application_continue(then):
    """There is all or nothing of it, so changelogs and offsets belong together whatever became of it."""
    world = running(spec=spec(attempts=2), in_one_transaction=True)
    for event in (then, "fail"):
        world.spark("publish")
        world.pass_over()
        world.spark(event)
        advance(world, "Submitted" if event == then and world.status.attempt == 1 else "Failed")
        world.spark("start")
        world.spark("compute")
    world.pass_over()
    world.app_pass()
    assert (world.held, world.pods, world.finalizers) == (False, 2, ())
    assert "in one transaction, so changelogs and offsets still belong together" in world.status.message


def test_vanished_job_with_an_only_transaction_is_not_done_again():
    """Somebody has deleted it, who may do the same again, and there is all or nothing."""
    world = running(in_one_transaction=True)
    world.spark("publish")
    world.pass_over()
    world.spark("vanish")
    world.settle()
    assert (phases(world), world.status.attempt) == (("Failed", False), 1)
    assert world.status.message.startswith(
        "SparkApplication history-1 was deleted by somebody.\nAll results were to be"
    )


OVERTAKEN = [{"deleted": True}, {"app_changes": {"image": "registry.example/words:2"}}]


@pytest.mark.parametrize("change", OVERTAKEN)
@pytest.mark.parametrize("computes", [False, True])
def test_attempt_after_a_failed_only_transaction_is_cancelled(computes, change):
    """There is nothing of the first attempt, and the others may compute for hours for nobody."""
    world = running(in_one_transaction=True)
    world.spark("publish")
    world.pass_over()
    world.spark("fail")
    if computes:
        advance(world, "Submitted")
        world.spark("start")
        world.spark("compute")
        world.pass_over()
        assert phases(world) == ("Computing", True)
    for name, value in change.items():
        setattr(world, name, value)
    advance(world, "Failed")
    world.pass_over()
    assert (phases(world), world.status.attempt) == (("Failed", False), 1 + computes)
    assert "in one transaction, so changelogs and offsets still belong together" in world.status.message
    assert world.gone == world.deleted


@pytest.mark.parametrize("change", OVERTAKEN)
def test_second_attempt_is_finished_once_it_publishes_in_one_transaction(change):
    """That the first one's has failed does not matter."""
    world = running(in_one_transaction=True)
    world.spark("publish")
    world.pass_over()
    world.spark("fail")
    advance(world, "Submitted")
    for event in ("start", "compute", "publish"):
        world.spark(event)
    world.pass_over()
    for name, value in change.items():
        setattr(world, name, value)
    world.settle()
    assert (world.status.phase, world.published, world.status.attempt) == ("Succeeded", 1, 2)


def test_parts_of_an_earlier_attempt_are_not_forgotten():
    """What one attempt has published in several transactions is half a result, even if the next one says otherwise."""
    world = running(spec=spec(attempts=2))
    world.spark("publish")
    world.pass_over()
    world.spark("fail")
    advance(world, "Submitted")
    world.in_one_transaction = True
    for event in ("start", "compute", "publish", "fail"):
        world.spark(event)
    advance(world, "Failed")
    assert (world.held, world.pods) == (True, 0)


def test_attempt_that_nobody_heard_may_have_published_in_parts():
    """That the one before it published in one transaction says nothing about it: by now there may be more to publish."""
    world = running(spec=spec(attempts=2), in_one_transaction=True)
    world.spark("publish")
    world.pass_over()
    world.spark("fail")
    advance(world, "Submitted")
    world.spark("start")
    world.spark("compute")
    world.pass_over()
    assert phases(world) == ("Computing", True)
    world.in_one_transaction = False
    world.spark("publish")
    world.spark("vanish")
    advance(world, "Failed")
    assert (world.half, world.held, world.pods) == (True, True, 0)


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


def test_vanished_driver_may_have_published():
    """Nobody can tell without its log, so another attempt makes the result whole."""
    world = running()
    world.spark("publish")
    world.spark("vanish")
    world.settle()
    assert (world.status.phase, world.status.attempt, world.half) == ("Succeeded", 2, False)


def test_job_that_has_gone_with_its_backfill_is_not_done_again():
    """Everything was deleted in the foreground while no operator ran. The brokers know that nothing was published."""
    world = running()
    world.deleted = True
    world.config_maps.clear()
    world.spark("vanish")
    world.settle()
    assert world.gone
    assert (world.published, world.status.attempt) == (0, 1)
    assert world.status.message == "The backfill was deleted. Nothing was published."
    assert condition(world, PUBLISHING) == "False"


@pytest.mark.parametrize("then", ["vanish", "die"])
def test_job_that_has_handed_over_unheard_has_succeeded(then):
    """Its application continues with everything, and nothing is done again. Nobody is asked while an executor lives."""
    world = running(spec=spec(attempts=1))
    world.spark("publish")
    world.spark("report")
    world.unreadable = True
    world.spark(then)
    for _ in range(4):
        world.pass_over()
        world.now += LOG_PATIENCE_S / 2
    world.executors_end()
    for _ in range(3):
        world.pass_over()
    assert phases(world) == ("Succeeded", False)
    assert (world.published, world.status.attempt) == (1, 1)
    published = next(item for item in world.status.conditions if item.type == PUBLISHING)
    assert (published.status, published.message) == ("True", "The brokers have all results of this backfill.")


def test_vanished_spark_application_that_has_published_nothing_is_not_created_again():
    """Though it did run, and another attempt is left: somebody has deleted it, who may do the same again."""
    world = running()
    world.spark("vanish")
    world.settle()
    assert (phases(world), world.status.attempt) == (("Failed", False), 1)
    assert world.status.message == "SparkApplication history-1 was deleted by somebody. Nothing was published."


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
    assert what.startswith("The brokers do not say what was published: The brokers do not answer. They are asked")
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
    assert "Nobody knows whether results were being published" in world.events[-1].message


@pytest.mark.parametrize("change", [{"state": "suspended"}, {"app_deleting": True}, {"exists": False}])
def test_backfill_that_was_deleted_before_brokers_were_silent_waits_for_them(change):
    """Nobody has read why it waits. It goes when its application would not start on half a state any more."""
    world = unanswered()
    said = next(item for item in world.status.conditions if item.type == ANSWERED).message
    assert said.endswith("If it is only deleted, the application continues, perhaps from half a state.")
    world.deleted = True
    world.pass_over()
    assert phases(world) == ("Stopping", True)
    said = next(item for item in world.status.conditions if item.type == ANSWERED).message
    assert said.endswith("was deleted before, goes when the brokers answer or the application is suspended.")
    for name, value in change.items():
        setattr(world, name, value)
    for _ in range(2):
        world.pass_over()
    assert (world.status.phase, world.gone) == ("Failed", True)
    assert "Nobody knows whether results were being published" in world.status.message


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


def test_attempt_that_publishes_in_one_transaction_after_one_that_went_unheard_is_finished():
    """There was no half state when it began, and its result comes as a whole."""
    world = running(in_one_transaction=True)
    world.brokers_answer = False
    die_unheard(world)
    run_minutes(world, 4)
    assert phases(world) == ("Stopping", True)
    world.brokers_answer = True
    advance(world, "Submitted")
    world.spark("start")
    world.spark("compute")
    world.spark("publish")
    world.pass_over()
    world.deleted = True
    world.pass_over()
    assert phases(world) == ("Publishing", True)


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
    """Each would fail at once, and half a state would be left for good."""
    world = fail_in_parts("fail")
    run_minutes(world, 60)
    assert (world.status.attempt, world.status.outcome, list(world.applications)) == (1, "Retry", ["history-1"])
    assert [event.reason for event in world.events].count("BrokersDoNotAnswer") == 1
    world.brokers_answer = True
    world.settle()
    assert (phases(world), world.status.attempt, world.half) == (("Succeeded", False), 2, False)


@pytest.mark.parametrize("event", ["report", "fail"])
def test_backfill_known_to_publish_in_parts_is_let_go_and_keeps_the_application_stopped(event):
    """Brokers that never answer do not keep its user from deleting it. What it leaves may be half a state."""
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
    """It was deleted before they were silent. It goes when its application would not start on half a state any more."""
    world = running()
    world.deleted = True
    world.spark("publish")
    world.pass_over()
    world.spark("fail")
    world.brokers_answer = False
    run_minutes(world, 5)
    said = next(item for item in world.status.conditions if item.type == ANSWERED).message
    assert said.endswith("is finished when the brokers answer, and goes when the application is suspended.")
    for name, value in change.items():
        setattr(world, name, value)
    for _ in range(2):
        world.pass_over()
    assert (world.gone, world.status.attempt, world.status.phase) == (True, 1, "Failed")
    assert "Results were being published" in world.status.message


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


def test_publication_that_only_a_later_operator_can_name_counts_as_one_in_parts():
    """The operator was rolled back; the only attempt fails before it publishes anything that this one has heard of."""
    world = running(spec=spec(attempts=1))
    known = situation(world).condition(PUBLISHING, "True", "InAnotherWay", "Results are published in another way.")
    world.status = world.status.model_copy(update={"conditions": (*world.status.conditions, known)})
    world.pass_over()
    assert message_of(world, PUBLISHING) == "Results may be published in part, so it is finished now."
    world.spark("fail")
    advance(world, "Failed")
    assert world.held


def test_log_that_cannot_be_read_for_a_while_changes_nothing():
    """A job that only computes is still cancelled when its log can be read again."""
    world = running()
    world.unreadable = True
    world.deleted = True
    for _ in range(3):
        world.now += LOG_PATIENCE_S
        world.pass_over()
        assert (phases(world), condition(world, UNREADABLE)) == (("Computing", True), "True")
    world.unreadable = False
    world.pass_over()
    assert (world.status.phase, world.status.outcome) == ("Stopping", "Cancelled")
    assert (condition(world, UNREADABLE), condition(world, PUBLISHING)) == ("False", None)


def test_failure_is_judged_when_the_log_can_be_read():
    """Whether the job had published is in there, and why it failed."""
    world = running(spec=spec(attempts=1))
    world.unreadable = True
    world.spark("fail")
    world.pass_over()
    assert phases(world) == ("Computing", True)
    world.now += LOG_PATIENCE_S / 2
    world.unreadable = False
    advance(world, "Failed")
    assert not world.held
    assert "it is full" in world.status.message


def test_log_that_stays_unreadable_after_the_driver_has_ended_counts_as_gone():
    """Then nobody can tell any more whether the job has published."""
    world = running(spec=spec(attempts=1))
    world.unreadable = True
    world.spark("publish")
    world.spark("fail")
    world.pass_over()
    world.now += LOG_PATIENCE_S
    advance(world, "Failed")
    assert phases(world) == ("Failed", True)


def test_patience_with_a_log_begins_when_the_driver_ends():
    """Its node may have been away before that, while the job still ran: the log has its five minutes to come back."""
    world = running(spec=spec(attempts=1))
    world.unreadable = True
    world.pass_over()
    world.now += 2 * LOG_PATIENCE_S
    world.spark("fail")
    for seconds, phase in ((0, "Computing"), (LOG_PATIENCE_S - 1, "Computing"), (1, "Stopping")):
        world.now += seconds
        world.pass_over()
        assert phases(world) == (phase, True)


def test_job_is_not_cancelled_while_nobody_can_tell_whether_it_publishes():
    """It may have begun since its log was last read: that it is cancelled is taken back."""
    world = running()
    world.deleted = True
    world.pass_over()
    world.unreadable = True
    world.spark("publish")
    assert world.pass_over().actions == ()
    assert world.status.phase == "Computing"
    world.unreadable = False
    world.settle()
    assert (world.published, world.half, world.status.attempt) == (1, False, 1)


def test_dry_run_is_cancelled_without_its_log():
    """It publishes nothing."""
    world = running(spec=spec(dry_run=True))
    world.unreadable = True
    world.deleted = True
    for _ in range(5):
        world.pass_over()
        if world.gone:
            break
    assert (world.gone, world.status.attempt, world.applications) == (True, 1, {})


@pytest.mark.parametrize("change", [{"deleted": True}, {"app_changes": {"image": "registry.example/words:2"}}])
@pytest.mark.parametrize("in_one_transaction", [True, False])
def test_job_that_publishes_before_it_is_stopped_is_not_stopped(change, in_one_transaction):
    """It was computing when it was decided to cancel it."""
    world = running(spec=spec(attempts=1), in_one_transaction=in_one_transaction)
    for name, value in change.items():
        setattr(world, name, value)
    world.pass_over()
    assert (world.status.phase, world.status.outcome) == ("Stopping", "Cancelled")
    world.spark("publish")
    world.pass_over()
    assert (phases(world), world.status.outcome) == (("Publishing", True), None)
    check_finished_by_the_first_attempt(world)


@pytest.mark.parametrize("unreadable", [False, True])
def test_job_that_publishes_after_it_was_given_up_is_not_stopped(unreadable):
    """It was not started for ten minutes, and then it was, while the operator was away."""
    world = World(spec=spec(attempts=1))
    advance(world, "Submitted")
    world.now += PATIENCE_S
    world.pass_over()
    assert (world.status.phase, world.status.outcome) == ("Stopping", "Failed")
    for event in ("start", "compute", "publish"):
        world.spark(event)
    world.unreadable = unreadable
    world.pass_over()
    assert (phases(world), world.status.outcome) == (("Computing" if unreadable else "Publishing", True), None)
    world.unreadable = False
    check_finished_by_the_first_attempt(world)


@pytest.mark.parametrize("lives", [False, True])
def test_last_attempt_that_has_failed_while_it_published_stays_failed(lives):
    """Even if its driver lives on for a while."""
    world = running(spec=spec(attempts=1))
    world.spark("publish")
    world.pass_over()
    world.spark("die")
    world.spark_pods["-1-driver"] = lives
    for _ in range(3):
        world.pass_over()
        assert (phases(world), world.status.outcome) == (("Stopping", True), "Failed")
    world.executors_end()
    world.pass_over()
    assert phases(world) == ("Failed", True)


@pytest.mark.parametrize("then", ["fail", "vanish"])
def test_job_that_publishes_while_it_is_cancelled_is_finished(then):
    """Its last report shows that it was faster than its deletion; if its log is gone with its pod, the brokers know."""
    world = running()
    world.deleted = True
    world.pass_over()
    world.spark("publish")
    world.spark(then)
    world.settle()
    assert world.gone
    assert (world.published, world.half, world.status.attempt) == (1, False, 2)


def test_job_whose_driver_dies_after_its_last_report_has_succeeded():
    """Another attempt would write the outputs once more."""
    world = running()
    world.spark("publish")
    world.spark("report")
    world.spark("die")
    world.settle()
    assert (world.status.phase, world.status.attempt, world.published) == ("Succeeded", 1, 1)
    assert list(world.applications) == ["history-1"]


def test_success_tells_what_was_computed_once_the_log_can_be_read():
    """The node was away when the SparkApplication was seen to have succeeded."""
    world = running()
    world.spark("publish")
    world.spark("succeed")
    world.unreadable = True
    world.pass_over()
    assert (world.status.phase, world.status.outcome) == ("Stopping", "Succeeded")
    assert "the counts are not known" in world.status.message
    world.unreadable = False
    world.progress = world.progress.model_copy(update={"stores": (StoreResult(name="counts", records=7),)})
    world.pass_over()
    assert world.status.phase == "Succeeded"
    assert world.status.message.startswith("The state is computed and published: 7 records in 1 store.")


@pytest.mark.parametrize("in_one_transaction", [False, True])
@pytest.mark.parametrize("log", ["read", "unread", "gone"])
def test_condition_of_publication_says_that_everything_is_published_after_success(log, in_one_transaction):
    """Whatever it said while the job published, or when nobody could read what the job said."""
    world = running(in_one_transaction=in_one_transaction)
    world.spark("publish")
    if log == "read":
        world.pass_over()
    world.spark("succeed")
    world.unreadable = log == "unread"
    if log == "gone":
        world.spark_pods.clear()
        world.progress = None
    for _ in range(2):
        world.pass_over()
    assert phases(world) == ("Succeeded", False)
    published = next(item for item in world.status.conditions if item.type == PUBLISHING)
    assert (published.status, published.message) == ("True", "The brokers have all results of this backfill.")


@pytest.mark.parametrize("deleted", [False, True])
def test_driver_that_has_succeeded_and_does_not_end_is_deleted_after_a_while(deleted):
    """A thread of the program's may keep it from ending; what it has handed over is there, so the application continues."""
    world = running()
    world.spark("publish")
    world.spark("report")
    world.deleted = deleted
    for _ in range(3):
        world.app_pass()
        world.pass_over()
    assert phases(world) == ("Stopping", True)
    assert list(world.applications) == ["history-1"]
    world.now += 60
    world.settle()
    assert phases(world) == ("Succeeded", False)
    assert (world.published, world.status.attempt, world.applications, world.pods) == (1, 1, {}, 2)


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


@pytest.mark.parametrize("has_published", [True, False])
def test_driver_that_nobody_has_seen_and_that_is_gone_has_failed(has_published):
    """It came and went with its node while both operators were away, and the SparkApplication says for ever that it runs."""
    world = World()
    advance(world, "Submitted")
    for event in ("start", "compute", *(("publish",) if has_published else ())):
        world.spark(event)
    world.spark_pods.clear()
    world.progress = None
    for seconds, phase in ((0, "Submitted"), (PATIENCE_S - 1, "Submitted"), (1, "Stopping")):
        world.now += seconds
        world.pass_over()
        assert phases(world) == (phase, True)
    assert (world.status.outcome, condition(world, PUBLISHING)) == ("Retry", "Unknown")
    world.pass_over()
    world.pass_over()
    assert condition(world, PUBLISHING) == ("True" if has_published else None)
    world.settle()
    assert (world.status.phase, world.status.attempt, world.half) == ("Succeeded", 2, False)


@pytest.mark.parametrize("answer", [True, False])
def test_only_transaction_is_not_forgotten_when_the_driver_is_gone_before_its_spark_operator_knows(answer):
    """It was reported, so there is all or nothing, whatever the brokers say."""
    world = running(spec=spec(attempts=1), in_one_transaction=True)
    world.spark("publish")
    world.pass_over()
    world.spark_pods.clear()
    world.progress, world.brokers_answer = None, answer
    world.pass_over()
    assert phases(world) == ("Publishing", True)
    for _ in range(4):
        world.now += PATIENCE_S
        world.pass_over()
    assert phases(world) == ("Failed", False)
    assert "in one transaction, so changelogs and offsets still belong together" in world.status.message


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


def test_attempt_that_is_refused_after_publication_began_keeps_the_application_stopped():
    """What the earlier attempt has published is half a state."""
    world = running()
    world.spark("publish")
    world.pass_over()
    world.spark("die")
    advance(world, "Stopping")
    world.executors_end()
    desired, observed = world.look()
    world.status = reconcile_backfill(
        desired, replace(observed, refusal="exceeded quota", refusal_is_final=True)
    ).status
    world.pass_over()
    assert phases(world) == ("Failed", True)
    assert "exceeded quota" in world.status.message


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
        "delete it: then it ends with its job."
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
    assert "Nobody knows whether results were being published" in world.status.message


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
    assert ("Still there: " in message, "-1-exec-1" in message, "-1-driver" in message) == (True, True, runs)
    assert message.endswith(" To end the job, delete SparkApplication history-1.")
    assert "or delete it" not in message
    message = unread(running()).status.message
    assert message.endswith("that began this StreamsBackfill, or delete it: then it ends with its job.")


def app_unread(world):
    """Run a pass whose operator cannot read the spec of the application."""
    world.app_unreadable = True
    decision = world.pass_over()
    world.app_unreadable = False
    return decision


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


EVENTS = st.one_of(
    st.sampled_from(
        [
            "start",
            "compute",
            "publish",
            "succeed",
            "fail",
            "die",
            "vanish",
            "refuse",
            "report",
            "delete",
            "change",
            "ends",
            "app",
            "unreadable",
            "readable",
            "silent",
            "heard",
            "unsubmitted",
            "rollback",
            "upgrade",
            "app unreadable",
            "app readable",
        ]
    ),
    st.tuples(st.just("pass"), st.one_of(st.none(), st.integers(0, 2))),
    st.tuples(st.just("wait"), st.sampled_from([5, 70, 700])),
)


def happen(world, event):
    """Let one thing happen."""
    match event:
        case ("pass", crash):
            world.pass_over(crash)
        case ("wait", seconds):
            world.now += seconds
        case "delete":
            world.deleted = True
        case "change":
            world.app_changes = {"image": "registry.example/words:2"}
        case "ends":
            world.executors_end()
        case "app":
            world.app_pass()
        case "unreadable" | "readable":
            world.unreadable = event == "unreadable"
        case "silent" | "heard":
            world.brokers_answer = event == "heard"
        case "rollback" | "upgrade":
            world.older = event == "rollback"
        case "app unreadable" | "app readable":
            world.app_unreadable = event == "app unreadable"
        case "unsubmitted":
            world.fail_submission()
        case _:
            world.spark(event)


PASS = ("pass", None)
CANCELLED_UNHEARD = [PASS, "app", PASS, "silent", "delete", *["unsubmitted", PASS, ("wait", 70)] * 20]


@example(events=CANCELLED_UNHEARD, attempts=1, in_one_transaction=False)
@given(st.lists(EVENTS, max_size=40), st.sampled_from([1, 2]), st.booleans())
def test_whatever_happens_there_is_no_half_state_and_it_ends(events, attempts, in_one_transaction):
    """Jobs fail and operators die at any moment: nothing or everything is published when the application runs again.

    And never do both write at the same time, which the world checks.
    """
    world = World(spec=spec(attempts=attempts), in_one_transaction=in_one_transaction)
    for event in events:
        if world.gone:
            break
        happen(world, event)
        assert not (world.half and world.pods), "the application runs on half a state"
    world.brokers_answer, world.older, world.app_unreadable = True, False, False
    if not world.gone:
        world.settle(passes=400)
    world.app_pass()
    created = {action.object["metadata"]["name"] for action in world.done if isinstance(action, CreateObject)}
    assert len(created - {"history.backfill"}) <= attempts + 1, "one that was deleted has one more attempt at most"
    if world.half or world.is_kept:  # an older operator does not ask what is left
        assert phases(world) == ("Failed", True)
        assert world.pods == 0
        world.state = "suspended"
        world.settle()
    else:
        assert world.gone or world.pods == 2
    assert world.gone or FINALIZER not in world.finalizers
    assert not world.attempts_group, "it is of no use any more"


def test_reconcile_is_pure():
    """Two calls with the same arguments return the same."""
    world = running()
    assert reconcile_backfill(*world.look()) == reconcile_backfill(*world.look())
