"""A driver's log that cannot be read says nothing, and is waited for."""

from tests.operator.backfills.world import advance, condition, phases, running, spec

from millrace.manifest.streamsbackfill import StoreResult
from millrace_operator.backfills.context import LOG_PATIENCE_S, PUBLISHING, UNREADABLE


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
