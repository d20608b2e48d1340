"""When a backfill begins, and what it waits for until then."""

import pytest
from tests.operator.backfills.world import APACHE, FOREIGN, World, advance, phases, spec

from millrace.plan.reset import ActiveMember
from millrace_operator.backfills.reconciler import (
    PATIENCE_S,
    CreateObject,
)
from millrace_operator.model import SetFinalizer


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
    """The earlier one has left an inconsistent state and was replaced: a pass that began after that may be starting pods."""
    world = World(pods=0, app_sees="history")
    world.pass_over()
    assert phases(world) == ("Waiting", False)
    assert world.status.message.endswith(
        "history is gone. Its conditions show what is holding it up: resolve that first."
    )
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
    assert world.status.message.endswith(". Once this is resolved, create another StreamsBackfill.")
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
