"""From a new StreamsApp to a running application."""

from tests.operator.reconcile.world import APP, World

from millrace_operator import model
from millrace_operator.model import Key


def test_the_finalizer_comes_first():
    """The finalizer is added before anything else, so that nothing is created that deletion would miss."""
    world = World()
    assert world.pass_over().actions[0] == model.SetFinalizer(present=True)


def test_an_application_becomes_ready():
    """A plan is made, topics are created, pods start, and Ready becomes true; the plan Job is deleted."""
    world = World()
    world.change(replicas=2)
    world.run()
    assert world.condition("Ready") == ("True", "AllTasksRun")
    assert world.names("Job") == []
    assert world.topics["words-v1-counts-changelog"].partitions == 4
    assert world.status.ready_replicas == 2
    assert world.status.lifecycle_state == "Running"
    assert world.status.stable_revision == world.status.current_revision == world.revisions()[0]


def test_a_healthy_application_is_left_alone():
    """A pass over a settled application has no actions and no events, and does not write the status."""
    world = World()
    world.run()
    decision = world.pass_over()
    assert decision.actions == ()
    assert decision.status == world.status
    assert decision.events == ()


def test_no_pod_starts_before_its_topics_exist():
    """The StatefulSet is created only when all internal topics exist."""
    world = World()
    for _ in range(20):
        world.pass_over()
        if Key("StatefulSet", APP) in world.objects:
            break
        assert not world.pods()
        world.settle()
        world.tick(1)
    assert "words-v1-counts-changelog" in world.topics
    assert Key("StatefulSet", APP) in world.objects
