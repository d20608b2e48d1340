"""What the status and Events report."""

import dataclasses

import pytest
from tests.operator.reconcile.world import APP, SMALL, Program, World, plan

from millrace.manifest.streamsapp_status import Condition, ConditionType
from millrace_operator import model
from millrace_operator.reconcile.app_status import transitions
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.reconciler import reconcile


@pytest.fixture
def world():
    """A healthy application with two pods."""
    world = World()
    world.change(replicas=2)
    world.run()
    world.events.clear()
    return world


def test_every_reason_is_explained():
    """Each reason has its condition, a meaning, and a remedy unless all is well."""
    assert all(ConditionReason.named(str(reason)) is reason for reason in ConditionReason)
    for reason in ConditionReason:
        assert reason.condition in ConditionType.__args__
        assert reason.meaning.endswith(".")


def test_all_conditions_are_set(world):
    """A running application has every condition, each with a reason that belongs to it."""
    assert {item.type for item in world.status.conditions} == set(ConditionType.__args__)
    for condition in world.status.conditions:
        assert ConditionReason(condition.reason).condition == condition.type


def test_what_a_healthy_application_says(world):
    """The counts of pods, tasks, members and topics are the observed ones."""
    status = world.status
    assert (status.replicas, status.ready_replicas) == (2, 2)
    assert status.topology.model_dump()["tasks"] == 4
    assert status.topology.compatibility == "Compatible"
    assert (status.group.state, status.group.members) == ("Stable", 2)
    assert status.tasks.active == 2
    assert [(pod.name, pod.active, pod.standby) for pod in status.tasks.pods] == [("words-0", 1, 0), ("words-1", 1, 0)]
    assert status.selector == "app.kubernetes.io/component=runtime,streams.millrace.dev/app=words"
    assert status.lag.total == 0
    assert status.observed_generation == world.generation


def test_a_condition_keeps_its_time_until_its_status_changes(world):
    """A new message or reason is not a transition."""
    before = next(item for item in world.status.conditions if item.type == "Ready").last_transition_time
    world.tick(100)
    world.pass_over()
    after = next(item for item in world.status.conditions if item.type == "Ready").last_transition_time
    assert after == before
    world.set_ready("words-0", False)
    world.pass_over()
    changed = next(item for item in world.status.conditions if item.type == "Ready")
    assert changed.status == "False"
    assert changed.last_transition_time == world.timestamp()


@pytest.mark.parametrize(("lag", "told"), [(0, 0), (99, 0), (12_345, 12_000), (996_000, 1_000_000)])
def test_lag_is_rounded_to_two_digits(world, lag, told):
    """A lag below a hundred records is reported as zero."""
    world.lag = lag
    world.pass_over()
    assert world.status.lag.total == told


def test_a_lag_that_hovers_is_not_written(world):
    """A change of up to a tenth is ignored, and the trend settles."""
    world.lag = 10_000
    world.pass_over()
    assert world.status.lag.trend == "Growing"
    world.pass_over()
    assert world.status.lag.trend == "Steady"
    writes = world.status_writes
    for lag in (10_400, 9_700, 10_900, 10_000):
        world.lag = lag
        world.pass_over()
    assert world.status_writes == writes


def test_restoration_is_reported(world):
    """Restoring tasks, the remaining records and the estimated time are in the status."""
    world.restoring["words-0"] = 2
    world.pass_over()
    assert world.condition("StateRestored") == ("False", "Restoring")
    assert world.status.tasks.restoring == 2


def test_problems_stall_and_touch_nothing(world):
    """A spec that breaks a rule is reported in Stalled; running pods are left alone."""
    desired = world.desired()
    broken = model.DesiredApp(
        namespace=desired.namespace,
        name=desired.name,
        uid=desired.uid,
        generation=desired.generation + 1,
        spec=None,
        problems=("spec.threads: must be at least 1",),
        status=world.status,
        finalizers=world.finalizers,
    )
    decision = reconcile(broken, world.observed())
    assert decision.actions == ()
    stalled = next(item for item in decision.status.conditions if item.type == "Stalled")
    assert (stalled.status, stalled.reason) == ("True", "InvalidSpec")
    assert "spec.threads" in stalled.message
    ready = next(item for item in decision.status.conditions if item.type == "Ready")
    assert ready.status == "True"


def test_unavailable_pod_monitor_is_reported(world):
    """Without the PodMonitor CRD the condition says so while one is wanted, and one Event is sent."""
    world.pod_monitors = False
    world.change(observability={"metrics": {"podMonitor": {"enabled": True}}})
    world.run(300)
    assert world.condition("Reconciling") == ("False", "UpToDate")
    assert "There is no PodMonitor" in world.message("Reconciling")
    assert [event.reason for event in world.events if "PodMonitor" in event.message] == ["NotAvailable"]
    world.pod_monitors = True
    world.run(30)
    assert "PodMonitor" not in world.message("Reconciling")
    assert world.names("PodMonitor") == ["words"]


def test_desired_replicas_are_reported(world):
    """`kubectl get` shows how many of the wanted pods are ready, whoever sets their number."""
    assert (world.status.desired_replicas, world.status.ready) == (2, "2/2")
    world.change(replicas=3)
    world.pass_over()
    assert (world.status.desired_replicas, world.status.ready) == (3, "2/3")
    world.change(replicas=3, autoscaling={"mode": "Auto", "min": 2, "max": 8})
    world.run()
    wanted = world.status.autoscaling.recommended
    assert world.status.ready == f"{wanted}/{wanted}"
    world.change(state="suspended")
    world.run()
    assert (world.status.desired_replicas, world.status.ready) == (0, "0/0")


def test_transitions_become_events(world):
    """A rollback is reported once, by its reason, as a Warning."""
    world.programs["new"] = Program(crashes=True)
    world.change(image="new")
    world.run(300)
    told = [(event.reason, event.type) for event in world.events]
    assert told.count(("PodCrashed", "Warning")) == 1
    assert ("RollingOut", "Normal") in told
    world.events.clear()
    world.run(60)
    assert world.events == []


def test_incompatible_topology_is_reported_once(world):
    """The Warning lists the reasons and is not repeated."""
    world.programs["new"] = Program(plan=plan(["sums"]))
    world.change(image="new")
    world.run(60)
    warnings = [event for event in world.events if event.reason == "NeedsReset"]
    assert len(warnings) == 1
    assert "counts was renamed to sums" in warnings[0].message


def test_the_life_of_an_application():
    """The lifecycle goes through the expected states in order."""
    world = World()
    seen = []
    for _ in range(40):
        world.pass_over()
        if not seen or seen[-1] != world.status.lifecycle_state:
            seen.append(world.status.lifecycle_state)
        world.settle()
        world.tick(2)
    assert seen == ["Planning", "Provisioning", "Starting", "Running"]


def test_a_pod_that_does_not_answer_in_time_changes_nothing(world):
    """A missed answer changes neither the numbers nor StateRestored, even if no pod answers."""
    observed = world.observed()
    for answers in (dict(list(observed.instances.items())[:1]), {}):
        decision = reconcile(world.desired(), dataclasses.replace(observed, instances=answers))
        assert decision.status == world.status
    world.restoring = {"words-0": 1}
    world.pass_over()
    assert world.condition("StateRestored") == ("False", "Restoring")
    decision = reconcile(world.desired(), dataclasses.replace(observed, instances={}))
    assert decision.status == world.status


def test_a_reason_of_a_newer_operator_does_not_stop_the_pass(world):
    """After a downgrade, a condition keeps a reason that this operator does not know until a pod answers."""
    of_tomorrow = [
        item.model_copy(update={"reason": "OfTomorrow"}) if item.type == "StateRestored" else item
        for item in world.status.conditions
    ]
    world.status = world.status.model_copy(update={"conditions": tuple(of_tomorrow)})
    decision = reconcile(world.desired(), dataclasses.replace(world.observed(), instances={}))
    assert {item.type: item.reason for item in decision.status.conditions}["StateRestored"] == "OfTomorrow"


def test_new_pods_that_wait_for_their_volumes_are_no_trouble_yet():
    """Creating volumes during a start is not a problem; waiting long for one is reported in both conditions."""
    world = World()
    world.boot_seconds = 1000
    trouble = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "unbound claims"}
    for _ in range(40):
        world.pass_over()
        world.settle()
        for key, item in world.objects.items():
            if key.kind == "PersistentVolumeClaim":
                item["status"] = {"phase": "Pending"}
        for pod in world.pods():
            pod["status"] = {"conditions": [trouble]}
        world.tick(0.5)
    assert len(world.pods()) == 1
    assert world.condition("Ready") == ("False", "PodsNotReady")
    assert world.condition("StorageHealthy") == ("Unknown", "VolumePending")
    assert world.warnings == []
    world.tick(30)
    world.pass_over()
    assert world.condition("Ready") == ("False", "PodsFailing")
    assert world.condition("StorageHealthy") == ("False", "VolumePending")
    assert [event.reason for event in world.warnings] == ["VolumePending"]


def test_what_passes_by_itself_is_no_warning(world):
    """Creating topics and restoring state during a start are reported, but not as warnings."""
    new = World()
    new.run(30)
    world.restoring = {"words-0": 1}
    world.pass_over()
    told = {event.reason: event.type for event in (*new.events, *world.events)}
    assert (told["TopicsBeingCreated"], told["Restoring"]) == ("Normal", "Normal")
    assert new.warnings == world.warnings == []


def test_one_message_causes_one_event(world):
    """Two conditions with the same message send one Event, for the one that blocks the application."""
    old = world.status.model_copy(update={"conditions": ()})
    same = {"status": "True", "message": "Another StreamsApp has the id.", "lastTransitionTime": "2026-01-02T00:00:00Z"}
    stalled = Condition.model_validate({**same, "type": "Stalled", "reason": "ApplicationIdInUse"})
    unique = {**same, "type": "ApplicationIdUnique", "status": "False", "reason": "DuplicateApplicationId"}
    new = old.model_copy(update={"conditions": (stalled, Condition.model_validate(unique))})
    assert [event.reason for event in transitions(old, new)] == ["ApplicationIdInUse"]


def test_suspension_says_whether_pods_are_left(world):
    """While pods are stopping, suspension is not finished."""
    world.stuck = True
    world.change(state="suspended")
    world.run(20)
    assert world.message("Ready") == "The application is suspended; its pods commit and stop."
    world.stuck = False
    world.run(20)
    assert world.message("Ready") == "The application is suspended; no pods are left."


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (World(brokers_up=False), "No broker answers at kafka:9092."),
        (World(refuses={"StatefulSet"}), "exceeded quota."),
        (World(annotations={"streams.millrace.dev/pause": "true"}), "Remove it to continue."),
        (World(programs={SMALL["image"]: Program(plan=None)}), "no module words"),
    ],
    ids=["brokers", "refused", "paused", "plan"],
)
def test_an_application_without_pods_says_why(world, why):
    """`kubectl get -o wide` shows what blocks it, whichever condition has the message."""
    world.run(60)
    assert world.condition("Ready") == ("False", "NothingRuns")
    assert world.message("Ready").startswith("There are no pods yet: ")
    assert why in world.message("Ready")
    writes = world.status_writes
    world.run(60)
    assert world.status_writes == writes


def test_tasks_that_nobody_takes_are_a_condition():
    """TopologyShared is false while a pod refuses tasks that the leader's topology has and its own has not, and names them."""
    world = World()
    world.change(replicas=2)
    world.run()
    assert world.condition("TopologyShared") == ("True", "TopologyAgrees")
    world.not_taken = {f"{APP}-1": ("0_0", "0_1", "1_0", "1_1")}
    world.run(30)
    assert world.condition("TopologyShared") == ("False", "TopologiesDiffer")
    assert f"Pod {APP}-1 does not take tasks 0_0, 0_1, 1_0 …" in world.message("TopologyShared")
    assert world.condition("Ready")[0] == "True"
    world.not_taken = {}
    world.run(30)
    assert world.condition("TopologyShared") == ("True", "TopologyAgrees")


def test_what_pods_share_is_unknown_while_none_reports():
    """Without a report nothing is said about the topologies that run; without pods there is none to differ."""
    world = World()
    world.change(replicas=0)
    world.run()
    assert world.condition("TopologyShared") == ("True", "TopologyAgrees")
