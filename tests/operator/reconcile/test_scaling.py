"""More pods, fewer pods, none."""

import itertools

import pytest
from tests.operator.reconcile.world import APP, SMALL, Program, World, is_ready

from millrace.manifest.pods import format_last_message
from millrace_operator import model
from millrace_operator.children.naming import DRAIN_ANNOTATION
from millrace_operator.model import ConsumerGroupMember


@pytest.fixture
def world():
    """A healthy application with three pods."""
    world = World()
    world.change(replicas=3)
    world.run()
    world.log.clear()
    return world


def test_pods_are_added_at_once(world):
    """Scaling out only changes the number of replicas."""
    world.change(replicas=5)
    world.run(30)
    assert len(world.pods()) == 5
    assert world.condition("Ready")[0] == "True"


def test_a_pod_is_drained_before_it_goes(world):
    """The StatefulSet records the start, the highest ordinal is told to leave, and then replicas drop by one; then the next."""
    world.change(replicas=1)
    world.run()
    steps = [
        action.pod if isinstance(action, model.DrainPod) else action.object["spec"]["replicas"]
        for action in world.log
        if isinstance(action, model.DrainPod)
        or (isinstance(action, model.Apply) and action.object["kind"] == "StatefulSet")
    ]
    assert [step for step, _ in itertools.groupby(steps)] == [3, f"{APP}-2", 2, f"{APP}-1", 1]
    assert [pod["metadata"]["name"] for pod in world.pods()] == [f"{APP}-0"]
    assert world.members == {f"{APP}-0"}
    assert world.pass_over().actions == ()


def test_a_pod_that_does_not_drain_holds_nothing_up_for_long(world):
    """After its grace period the pod is removed anyway, and so is its member."""
    world.change(replicas=2, drain={"terminationGracePeriodSeconds": 30})
    world.run(300)
    world.log.clear()
    world.deaf = True
    world.change(replicas=1)
    world.run(20)
    assert len(world.pods()) == 2
    world.run(60)
    assert len(world.pods()) == 1
    assert world.done(model.RemoveMembers) == [model.RemoveMembers((f"{APP}-1",), (f"m-{APP}-1-1",))]
    assert world.members == {f"{APP}-0"}


def end_process(world, pod, *, state="lastState", members=None):
    """End a pod's process: its termination message names the members that it had, by default those that are in the group."""
    message = format_last_message(members or [f"m-{pod}-1"], "killed")
    container = world.objects[model.Key("Pod", pod)]["status"]["containerStatuses"][0]
    container[state] = {"terminated": {"exitCode": 137, "message": message, "finishedAt": "2026-01-02T00:00:00Z"}}


@pytest.mark.parametrize("state", ["state", "lastState"])
def test_members_of_a_dead_process_are_removed_where_standbys_can_take_over(world, state):
    """The brokers would wait for them until their session times out; all others stay."""
    world.change(standby={"replicas": 1})
    world.run(600)
    world.log.clear()
    end_process(world, f"{APP}-1", state=state)
    world.pass_over()
    assert world.done(model.RemoveMembers) == [model.RemoveMembers((f"{APP}-1",), (f"m-{APP}-1-1",))]


def test_successor_of_a_dead_process_stays_in_the_group(world):
    """It has the same name, but its own member id: the message of the container that has ended names another one."""
    world.change(standby={"replicas": 1})
    world.run(600)
    world.log.clear()
    end_process(world, f"{APP}-1", members=[f"m-{APP}-1-0"])
    world.pass_over()
    assert world.done(model.RemoveMembers) == []


def test_dead_process_keeps_its_place_without_standbys(world):
    """Its successor in the same pod has its state, and others would have to restore it."""
    end_process(world, f"{APP}-1")
    world.pass_over()
    assert world.done(model.RemoveMembers) == []


def test_a_namesake_in_the_group_stays_when_pods_are_removed(world):
    """A member with the name of a deleted pod may belong to another cluster's application: it is left alone."""
    namesake = ConsumerGroupMember("m", f"{APP}-5", "10.0.0.4", f"{APP}-5.other-StreamThread-1-consumer")
    world.strangers = [namesake]
    world.run(30)
    assert (world.done(model.RemoveMembers), world.strangers) == ([], [namesake])


def test_a_namesake_in_the_group_does_not_keep_a_drained_pod(world):
    """A pod has left once its own members have; a namesake's pods have the same names and do not count."""
    world.change(drain={"terminationGracePeriodSeconds": 3600})
    world.run(300)
    namesake = ConsumerGroupMember(
        "m", f"{APP}-2", "10.0.0.4", f"{APP}-2.other-StreamThread-1-consumer", f"{APP}-2.other-1"
    )
    world.strangers = [namesake]
    world.change(replicas=2)
    world.run(60)
    assert [pod["metadata"]["name"] for pod in world.pods()] == [f"{APP}-0", f"{APP}-1"]
    assert world.strangers == [namesake]


def test_pod_that_cannot_drain_is_removed_immediately(world):
    """A pod made by an older operator has no file to watch: SIGTERM stops it, and its member is removed."""
    world.change(replicas=2, drain={"terminationGracePeriodSeconds": 600})
    world.run(300)
    world.log.clear()
    for pod in world.pods():
        (container,) = pod["spec"]["containers"]
        container["env"] = [each for each in container["env"] if each["name"] != "MILLRACE_DRAIN_FILE"]
    world.change(replicas=1)
    world.run(30)
    assert [pod["metadata"]["name"] for pod in world.pods()] == [f"{APP}-0"]
    assert world.done(model.DrainPod) == []
    assert world.members == {f"{APP}-0"}


def test_draining_pod_is_annotated_once_and_not_restarted(world):
    """It stays drained while others take over its tasks, and the annotation says since when."""
    world.change(replicas=2)
    world.pass_over()
    drained = world.drained.copy()
    world.rebalancing = True
    for _ in range(5):
        world.now += 2
        world.pass_over()
    (told,) = world.done(model.DrainPod)
    assert {told.uid} == drained == world.drained
    (pod,) = (pod for pod in world.pods() if pod["metadata"]["uid"] == told.uid)
    assert pod["metadata"]["annotations"][DRAIN_ANNOTATION] == str(told.since)
    assert "deletionTimestamp" not in pod["metadata"]
    world.rebalancing = False
    world.run()
    assert len(world.pods()) == 2


def test_time_to_drain_is_counted_from_the_first_word(world):
    """Neither a restart of the operator nor an annotation set by somebody else prolongs it."""
    world.change(replicas=2, drain={"terminationGracePeriodSeconds": 30})
    world.run(300)
    world.deaf = True
    (pod,) = (pod for pod in world.pods() if pod["metadata"]["name"] == f"{APP}-1")
    pod["metadata"].setdefault("annotations", {})[DRAIN_ANNOTATION] = "true"
    world.log.clear()
    world.change(replicas=1)
    world.run(60)
    assert len(world.done(model.DrainPod)) == 1
    assert len(world.pods()) == 1


@pytest.mark.parametrize("deaf", [False, True])
def test_drained_pod_that_is_wanted_again_is_restarted(world, deaf):
    """Scaling back out while a pod drains replaces it, even if it has not noticed yet that it should drain."""
    world.deaf = deaf
    world.change(replicas=2)
    world.pass_over()
    [told] = world.done(model.DrainPod)
    world.change(replicas=3)
    world.run()
    assert told.uid not in {pod["metadata"]["uid"] for pod in world.pods()}
    assert len(world.pods()) == 3
    assert all(map(is_ready, world.pods()))
    assert len(world.members) == 3


def test_claims_of_removed_pods_are_kept(world):
    """By default a volume outlives its pod and is reused."""
    world.change(replicas=1)
    world.run()
    assert len(world.names("PersistentVolumeClaim")) == 3
    assert not [action for action in world.done(model.Delete) if action.key.kind == "PersistentVolumeClaim"]


def test_claims_of_removed_pods_are_deleted_if_so_wanted(world):
    """With storage.retention.whenScaled Delete, volumes are deleted once their pods are gone."""
    world.change(replicas=1, storage={"retention": {"whenScaled": "Delete"}})
    world.run()
    assert world.names("PersistentVolumeClaim") == [f"state-{APP}-0"]


def test_suspending_keeps_claims_even_if_scaling_does_not(world):
    """Suspending is not scaling: every volume is kept for resuming."""
    world.change(state="suspended", storage={"retention": {"whenScaled": "Delete"}})
    world.run()
    assert world.pods() == []
    assert len(world.names("PersistentVolumeClaim")) == 3


def test_suspend_and_resume(world):
    """All pods stop, the members leave, and the same revision comes back."""
    revision = world.status.stable_revision
    world.change(state="suspended")
    world.run()
    assert world.pods() == []
    assert world.members == set()
    assert world.status.lifecycle_state == "Suspended"
    assert world.condition("Ready") == ("True", "Suspended"), "it is as the spec says"
    assert world.pass_over().actions == ()
    world.change(state="running")
    world.run()
    assert world.revisions() == [revision] * 3
    assert world.condition("Ready")[0] == "True"
    assert world.status.lifecycle_state == "Running"


def test_a_paused_application_is_not_touched(world):
    """With the annotation only the status is written; without it, work continues."""
    world.annotations["streams.millrace.dev/pause"] = "true"
    world.change(replicas=1, image="registry.example/words:2")
    world.run()
    assert world.log == []
    assert world.condition("ReconciliationPaused") == ("True", "PausedByAnnotation")
    assert len(world.pods()) == 3
    del world.annotations["streams.millrace.dev/pause"]
    world.run()
    assert len(world.pods()) == 1
    assert world.condition("ReconciliationPaused")[0] == "False"


def test_nothing_is_added_while_brokers_are_away(world):
    """Running pods are left alone; new ones wait for the brokers."""
    world.brokers_up = False
    world.change(replicas=5)
    world.run(30)
    assert len(world.pods()) == 3
    assert world.condition("BrokersReachable") == ("False", "Unreachable")
    world.brokers_up = True
    world.run()
    assert len(world.pods()) == 5


@pytest.mark.parametrize("first", [0, 2], ids=["from the beginning", "later"])
def test_no_replicas_are_a_state_to_rest_in(first):
    """Like a Deployment with zero replicas: ready, not progressing, not stalled, and no more writes."""
    world = World()
    world.change(replicas=first)
    world.run()
    world.change(replicas=0)
    world.run(240)
    assert world.names("Pod") == []
    assert world.condition("Ready") == ("True", "ScaledToZero")
    assert world.condition("Reconciling")[0] == "False"
    assert world.condition("Stalled")[0] == "False"
    assert world.status.lifecycle_state == "Suspended"
    assert (world.status.replicas, world.status.observed_generation) == (0, world.generation)
    before = world.status
    assert world.pass_over() == model.Decision(status=before)
    world.change(replicas=3)
    world.run()
    assert world.condition("Ready") == ("True", "AllTasksRun")
    assert len(world.pods()) == 3


def test_no_replicas_are_ready_only_when_the_last_pod_has_ended(world):
    """Until then the operator waits for it, and says so."""
    world.stuck = True
    world.change(replicas=0)
    world.run(60)
    assert world.condition("Reconciling") == ("True", "Draining")
    world.stuck = False
    world.run(60)
    assert world.condition("Ready") == ("True", "ScaledToZero")


def test_an_application_that_cannot_be_started_is_not_ready_for_having_no_replicas():
    """Its plan is not known yet, so nothing exists that could be scaled."""
    world = World(programs={SMALL["image"]: Program(plan=None)})
    world.change(replicas=0)
    world.run(60)
    assert world.condition("Ready") == ("False", "NothingRuns")
    assert world.condition("Stalled") == ("True", "PlanFailed")


def test_running_pods_keep_the_ids_of_their_members(world):
    """Members that an older operator named after the pod alone stay recognised until the last such pod is gone."""

    def told(item):
        (container,) = item["spec"]["containers"]
        return [argument for argument in container["args"] if argument.startswith(("client.id=", "group.instance.id="))]

    world.change(replicas=3)
    world.run()
    (stateful_set,) = (item for key, item in world.objects.items() if key.kind == "StatefulSet")
    for item in (stateful_set["spec"]["template"], *world.pods()):
        (container,) = item["spec"]["containers"]
        given = [container["args"].index(argument) for argument in told(item)]
        container["args"] = [each for n, each in enumerate(container["args"]) if n not in given and n + 1 not in given]
    world.joined_as = {pod: pod for pod in world.members}
    world.run(3600, step=60)
    assert world.condition("PodsCurrent")[0] == "True"
    assert [told(pod) for pod in world.pods()] == [[], [], []]
    world.members.add(f"{APP}-7")  # was killed, and has not left
    world.run(60)
    assert world.members == {f"{APP}-0", f"{APP}-1", f"{APP}-2"}
    world.change(state="suspended")
    world.run(10)
    assert world.pods() == []
    assert world.members == set()  # whose sessions would last longer, and look foreign to the next pods
    world.run(60)
    world.change(state="running")
    world.run(600)
    assert all(told(pod) for pod in world.pods())
    assert world.condition("Ready")[0] == "True"
