"""What attempts have published decides whether the application may continue."""

from dataclasses import replace

import pytest
from tests.operator.backfills.world import (
    World,
    advance,
    condition,
    die_unheard,
    message_of,
    phases,
    run_minutes,
    running,
    spec,
)

from millrace_operator.backfills.context import LOG_PATIENCE_S, PUBLISHING, BackfillContext
from millrace_operator.backfills.reconciler import (
    PATIENCE_S,
    DeleteSparkApplication,
    reconcile_backfill,
)


def context_of(world):
    """Return what the next pass knows."""
    return BackfillContext(*world.look())


def check_finished_by_the_first_attempt(world):
    """Check that the job is left alone and publishes everything, once its backfill has noticed that it publishes."""
    world.settle()
    assert (world.status.phase, world.status.attempt, world.published) == ("Succeeded", 1, 1)
    assert not any(isinstance(action, DeleteSparkApplication) for action in world.done)


@pytest.mark.parametrize("in_one_transaction", [True, False])
def test_refusal_while_publishing_is_final_too(in_one_transaction):
    """A record is too large for its topic in every attempt; only if there are parts, the application stays stopped."""
    world = running(in_one_transaction=in_one_transaction)
    world.spark("publish")
    world.pass_over()
    world.spark("refuse")
    advance(world, "Failed")
    assert (world.held, world.status.attempt) == (not in_one_transaction, 1)


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
    assert "create another StreamsBackfill that succeeds" in world.status.message
    world.gone = True
    world.app_pass()
    assert world.pods == 2


@pytest.mark.parametrize(
    "change", [{"repaired": True}, {"state": "suspended"}, {"app_deleting": True}, {"exists": False}]
)
def test_half_published_state_keeps_a_backfill_that_was_deleted_before_it_ended(change):
    """Nobody has read why it failed. It goes when its application would not start on an inconsistent state any more."""
    world = running(spec=spec(attempts=1))
    world.spark("publish")
    world.pass_over()
    world.deleted = True
    world.spark("fail")
    world.settle()
    world.pass_over()
    assert (phases(world), world.gone, world.pods) == (("Failed", True), False, 0)
    assert "If this one was deleted before it ended, it disappears" in world.status.message
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
    assert "in one transaction, so changelogs and offsets are still consistent" in world.status.message


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
    assert "in one transaction, so changelogs and offsets are still consistent" in world.status.message
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


def test_attempt_that_publishes_in_one_transaction_after_one_that_went_unheard_is_finished():
    """There was no inconsistent state when it began, and its result comes as a whole."""
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


def test_publication_that_only_a_later_operator_can_name_counts_as_one_in_parts():
    """The operator was rolled back; the only attempt fails before it publishes anything that this one has heard of."""
    world = running(spec=spec(attempts=1))
    known = context_of(world).condition(PUBLISHING, "True", "InAnotherWay", "Results are published in another way.")
    world.status = world.status.model_copy(update={"conditions": (*world.status.conditions, known)})
    world.pass_over()
    assert message_of(world, PUBLISHING) == "Some results may be published already, so the backfill is completed."
    world.spark("fail")
    advance(world, "Failed")
    assert world.held


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
    assert "in one transaction, so changelogs and offsets are still consistent" in world.status.message


def test_attempt_that_is_refused_after_publication_began_keeps_the_application_stopped():
    """What the earlier attempt has published is an inconsistent state."""
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
