"""Moving pods to another revision, and back."""

import itertools

import pytest
from tests.operator.reconcile.world import APP, Program, World, is_ready, plan

from millrace.plan.topology_plan import PlannedWindows
from millrace_operator import model
from millrace_operator.reconcile.reconciler import reconcile

NEW = "registry.example/words:2"


@pytest.fixture
def world():
    """A healthy application with three pods."""
    world = World()
    world.change(replicas=3)
    world.run()
    assert world.condition("Ready") == ("True", "AllTasksRun")
    world.most_pods_down = 0
    world.log.clear()
    return world


def deleted_pods(world):
    """Return the names of the deleted pods, in order."""
    return [action.key.name for action in world.done(model.Delete) if action.key.kind == "Pod"]


def test_pods_are_replaced_one_by_one_from_the_top(world):
    """Each pod is replaced once, the highest ordinal first, and never two at a time."""
    world.change(image=NEW)
    world.run()
    assert deleted_pods(world) == [f"{APP}-2", f"{APP}-1", f"{APP}-0"]
    assert world.most_pods_down == 1
    assert set(world.revisions()) == {world.status.stable_revision}
    assert world.pass_over().actions == ()


def test_a_rolling_pod_stays_a_member(world):
    """No member is removed in a roll: a static member comes back to its tasks."""
    world.change(image=NEW)
    world.run()
    assert world.done(model.RemoveMembers) == []
    assert world.done(model.DrainPod) == []


def test_all_pods_at_once_with_recreate(world):
    """With the strategy Recreate all pods are deleted together."""
    world.change(image=NEW, upgrade={**world.manifest["upgrade"], "strategy": "Recreate"})
    world.run()
    assert world.most_pods_down == 3
    assert sorted(deleted_pods(world)) == [f"{APP}-{index}" for index in range(3)]


@pytest.mark.parametrize(
    ("before", "after", "most_down"), [(("lines",), ("lines", "more"), 1), (("lines", "more"), ("lines",), 3)]
)
def test_versions_that_cannot_be_in_a_group_are_not(before, after, most_down):
    """The leader would assign an old member partitions that it does not read, so all pods are replaced at once."""
    programs = {
        "registry.example/words:1": Program(plan=plan([], inputs=before)),
        NEW: Program(plan=plan([], inputs=after)),
    }
    world = World(programs=programs)
    world.topics["more"] = world.topics["lines"]
    world.change(replicas=3)
    world.run()
    world.most_pods_down = 0
    world.change(image=NEW)
    world.run()
    assert world.condition("Ready")[0] == "True"
    assert set(world.revisions()) == {world.status.stable_revision}
    assert world.most_pods_down == most_down


def test_a_restart_nonce_rolls_all_pods(world):
    """Another restartNonce replaces every pod once."""
    world.change(restartNonce=1)
    world.run()
    assert len(deleted_pods(world)) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 3, "deletionPolicy": "Purge"},
        {"storage": {"retention": {"whenScaled": "Delete"}}},
        {"autoscaling": {"mode": "Recommend", "max": 5}},
        {"threads": 1, "state": "running", "restartNonce": 0},
        {"networkPolicy": {"enabled": False}},
    ],
)
def test_what_pods_do_not_depend_on_rolls_nothing(world, change):
    """Changing a field that only the operator uses, or spelling out a default, does not create a revision."""
    world.change(**change)
    world.run()
    assert deleted_pods(world) == []


def test_the_next_pod_waits_for_restoration(world):
    """While a task restores, no further pod is replaced."""
    world.restoring[f"{APP}-0"] = 1
    world.change(image=NEW)
    world.run(60)
    assert deleted_pods(world) == []
    assert world.condition("Reconciling") == ("True", "WaitingForGate")
    world.restoring.clear()
    world.run()
    assert len(deleted_pods(world)) == 3


def test_the_next_pod_waits_for_the_lag(world):
    """With upgrade.gate.maxLag, no pod is replaced while the application lags further behind."""
    world.lag = 5_000
    world.change(image=NEW, upgrade={"gate": {"minStable": "5s", "maxLag": 1_000}})
    world.run(60)
    assert deleted_pods(world) == []
    world.lag = 900
    world.run()
    assert len(deleted_pods(world)) == 3


def test_a_gate_waits_for_the_group_to_be_stable_long_enough(world):
    """All pods must have been ready for minStable before the next one is replaced."""
    world.change(image=NEW, upgrade={"gate": {"minStable": "30s"}})
    times = []
    for _ in range(60):
        before = len(deleted_pods(world))
        world.pass_over()
        world.settle()
        if len(deleted_pods(world)) > before:
            times.append(world.now)
        world.tick(5)
    assert len(times) == 3
    assert all(later - earlier >= 30 for earlier, later in itertools.pairwise(times))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (Program(crashes=True), "PodCrashed"),
        (Program(becomes_ready=False), "ReadyTimeout"),
        (Program(pod_pulls=False), "ImageUnavailable"),
    ],
)
def test_a_revision_that_fails_is_rolled_back(world, program, reason):
    """One pod is tried and goes back to the previous revision; RolledBack says why, and there is no second attempt."""
    world.programs[NEW] = program
    old = world.status.stable_revision
    world.change(image=NEW)
    world.run(300)
    assert world.revisions() == [old] * 3
    assert all(map(is_ready, world.pods()))
    assert world.condition("RolledBack") == ("True", reason)
    assert world.condition("Stalled") == ("True", "UpgradeFailed")
    assert world.condition("Ready")[0] == "True"
    assert world.status.stable_revision == world.status.current_revision == old
    assert deleted_pods(world) == [f"{APP}-2", f"{APP}-2"]
    assert world.most_pods_down == 1
    assert world.pass_over().actions == ()


def test_rollback_is_reported_once_and_never_forgotten(world):
    """Exactly one Event is sent, even if the operator dies while sending it, before it or right after."""
    world.programs[NEW] = Program(crashes=True)
    world.change(image=NEW)
    deaths = 0
    for _ in range(60):
        decision = reconcile(world.desired(), world.observed())
        dies = deaths < 3 and any(event.reason == "RolledBack" for event in decision.events)
        deaths += dies
        world.carry_out(decision, deaths if dies else None)
        world.settle()
        world.tick(5)
    assert world.condition("RolledBack")[0] == "True"
    assert deaths == 3
    assert [event.reason for event in world.events].count("RolledBack") == 1


def test_a_failing_upgrade_that_was_overtaken_gives_way_to_what_ran_well(world):
    """If a spec without a plan interrupts a failing upgrade, the failing pods go back to the stable revision."""
    old = world.status.stable_revision
    world.programs |= {NEW: Program(crashes=True), "registry.example/words:3": Program(plan=None)}
    world.change(image=NEW)
    while len(set(world.revisions())) == 1:
        world.pass_over()
        world.settle()
    world.change(image="registry.example/words:3")
    world.run(300)
    assert world.revisions() == [old] * 3
    assert world.condition("RolledBack") == ("True", "UpgradeNotBegun")
    assert world.condition("Stalled") == ("True", "PlanFailed")
    assert world.pass_over().actions == ()


def test_a_single_crash_is_no_failure(world):
    """A pod that crashes once is restarted, and the upgrade continues."""
    world.programs[NEW] = Program(crashes=True)
    world.restarts = 1
    world.change(image=NEW)
    world.run(30)
    assert world.condition("RolledBack")[0] == "False"
    del world.programs[NEW]
    for pod in world.pods():
        pod["status"].pop("containerStatuses", None)
    world.run()
    assert set(world.revisions()) == {world.status.stable_revision}
    assert deleted_pods(world) == [f"{APP}-2", f"{APP}-1", f"{APP}-0"]


def test_pod_that_runs_again_at_the_timeout_reports_its_crashes(world):
    """Its termination message explains the timeout, even if the pod is just being started again."""
    world.programs[NEW] = Program(becomes_ready=False)
    world.change(image=NEW)
    while len(set(world.revisions())) == 1:
        world.pass_over()
        world.settle()
    ended = {"exitCode": 1, "message": "ValueError: no such store", "finishedAt": world.timestamp()}
    running = {"state": {"running": {}}, "restartCount": 1, "lastState": {"terminated": ended}}
    world.pods()[-1]["status"]["containerStatuses"] = [running]
    world.run(120)
    assert world.condition("RolledBack") == ("True", "ReadyTimeout")
    assert "was not ready within 60s; it crashed: exit code 1: ValueError: no such store" in world.message("RolledBack")


def test_a_rolled_back_spec_is_tried_again_when_it_changes(world):
    """The next change of the spec ends the rollback."""
    world.programs[NEW] = Program(crashes=True)
    world.change(image=NEW)
    world.run()
    world.change(image="registry.example/words:3")
    world.run()
    assert world.condition("RolledBack") == ("False", "NotRolledBack")
    assert world.condition("Stalled")[0] == "False"
    assert len(set(world.revisions())) == 1
    assert world.revisions()[0] == world.status.stable_revision
    assert len(world.names("ConfigMap")) == 2


def test_scaling_a_rolled_back_application_does_not_try_again(world):
    """Changing replicas does not retry the failed revision."""
    world.programs[NEW] = Program(crashes=True)
    world.change(image=NEW)
    world.run()
    world.log.clear()
    world.change(replicas=4)
    world.run()
    assert deleted_pods(world) == []
    assert len(world.pods()) == 4
    assert world.condition("RolledBack")[0] == "True"


def test_without_rollback_the_upgrade_stops(world):
    """With upgrade.rollback.enabled false the other pods are left alone, and Stalled says what failed."""
    world.programs[NEW] = Program(crashes=True)
    world.change(image=NEW, upgrade={**world.manifest["upgrade"], "rollback": {"enabled": False}})
    world.run()
    assert deleted_pods(world) == [f"{APP}-2"]
    assert world.condition("Stalled") == ("True", "UpgradeFailed")
    assert world.condition("RolledBack")[0] == "False"


def test_a_failed_upgrade_without_rollback_is_mended_by_the_next(world):
    """A broken pod is replaced first and does not block its own fix."""
    world.programs[NEW] = Program(crashes=True)
    world.change(image=NEW, upgrade={**world.manifest["upgrade"], "rollback": {"enabled": False}})
    world.run()
    world.change(image="registry.example/words:3")
    world.run()
    assert world.condition("Ready")[0] == "True"
    assert set(world.revisions()) == {world.status.stable_revision}


def test_an_image_that_cannot_be_pulled_touches_no_pod(world):
    """The plan Job fails first: the running pods stay, and RolledBack and Stalled say so."""
    world.programs[NEW] = Program(pulls=False)
    old = world.revisions()
    world.change(image=NEW)
    world.run()
    assert world.revisions() == old
    assert deleted_pods(world) == []
    assert world.condition("Stalled") == ("True", "PlanImageUnavailable")
    assert world.condition("RolledBack") == ("True", "UpgradeNotBegun")
    assert NEW in world.message("Stalled")
    assert world.condition("Ready")[0] == "True"


def test_a_plan_that_fails_touches_no_pod(world):
    """The Job's last lines are reported, the Job is kept, and nothing is retried."""
    world.programs[NEW] = Program(plan=None)
    world.change(image=NEW)
    world.run()
    assert deleted_pods(world) == []
    assert world.condition("Stalled") == ("True", "PlanFailed")
    assert "ImportError: no module words" in world.message("Stalled")
    jobs = [action for action in world.done(model.Apply) if action.object["kind"] == "Job"]
    assert len(jobs) == 1
    assert len(world.names("Job")) == 1
    world.change(image="registry.example/words:3")
    world.run()
    assert world.names("Job") == []
    assert world.condition("Stalled")[0] == "False"


def test_incompatible_topology_is_not_started(world):
    """A renamed store is refused before any pod is touched, with the reason."""
    world.programs[NEW] = Program(plan=plan(["totals"]))
    old = world.revisions()
    world.change(image=NEW)
    world.run()
    assert world.revisions() == old
    assert deleted_pods(world) == []
    assert world.condition("TopologyCompatible") == ("False", "NeedsReset")
    assert "counts was renamed to totals" in world.message("TopologyCompatible")
    assert world.condition("Stalled") == ("True", "TopologyHeldBack")
    assert world.status.topology.compatibility == "NeedsReset"
    assert "words-v1-totals-changelog" not in world.topics


def windowed(size_ms=None):
    """Return a plan with windows of this size, or one of a Millrace that did not tell them."""
    (part,) = plan(kinds={"counts": "window"}).subtopologies
    told = {}
    if size_ms is not None:
        told = {"retention_ms": size_ms, "windows": PlannedWindows(kind="time", size_ms=size_ms, advance_ms=size_ms)}
    stores = tuple(store.model_copy(update=told) for store in part.stores)
    return plan().model_copy(update={"subtopologies": (part.model_copy(update={"stores": stores}),)})


def running(first):
    """Return a healthy application with this plan and three pods."""
    world = World(programs={"registry.example/words:1": Program(plan=first)})
    world.change(replicas=3)
    world.run()
    world.log.clear()
    return world


def test_windows_of_another_size_are_not_started():
    """The size of windows is compared too: old ones would be misread."""
    world = running(windowed(300_000))
    world.programs[NEW] = Program(plan=windowed(600_000))
    world.change(image=NEW)
    world.run()
    assert deleted_pods(world) == []
    assert world.condition("TopologyCompatible") == ("False", "NeedsReset")
    assert "counts had time windows of 5m and has time windows of 10m" in world.message("TopologyCompatible")


def test_upgrade_of_millrace_itself_needs_no_reset():
    """The plan of an older Millrace does not tell windows; an image with a newer one is compatible all the same."""
    world = running(windowed())
    world.programs[NEW] = Program(plan=windowed(300_000))
    world.change(image=NEW)
    world.run(600)
    assert len(deleted_pods(world)) == 3
    assert world.condition("TopologyCompatible") == ("True", "Compatible")


def test_an_incompatible_topology_runs_when_only_warned_of(world):
    """With topologyPolicy Warn it is rolled out, and the condition keeps warning."""
    world.programs[NEW] = Program(plan=plan(["totals"]))
    world.change(image=NEW, upgrade={**world.manifest["upgrade"], "topologyPolicy": "Warn"})
    world.run(60)
    assert len(deleted_pods(world)) == 3
    assert "words-v1-totals-changelog" in world.topics


def test_application_with_an_incompatible_topology_still_scales(world):
    """The running revision stays the target, so it can still be scaled."""
    world.programs[NEW] = Program(plan=plan(["totals"]))
    old = world.revisions()[0]
    world.change(image=NEW, replicas=5)
    world.run()
    assert world.revisions() == [old] * 5


def test_a_store_that_is_added_gets_its_topic_before_pods_roll(world):
    """A compatible change is rolled out after its new changelog was created."""
    world.programs[NEW] = Program(plan=plan(["counts", "totals"]))
    world.change(image=NEW)
    world.run()
    created = next(n for n, action in enumerate(world.log) if isinstance(action, model.ProvisionTopics))
    deleted = next(
        n for n, action in enumerate(world.log) if isinstance(action, model.Delete) and action.key.kind == "Pod"
    )
    assert created < deleted
    assert len(deleted_pods(world)) == 3
    assert [item.name for item in world.status.internal_topics] == [
        "words-v1-counts-changelog",
        "words-v1-totals-changelog",
    ]


def test_a_first_install_that_fails_has_nothing_to_go_back_to():
    """The pods' own messages are in Ready and Stalled."""
    world = World(programs={"registry.example/words:1": Program(crashes=True)})
    world.run()
    assert world.condition("Ready") == ("False", "PodsFailing")
    assert world.condition("Stalled") == ("True", "StartFailed")
    assert "no such store" in world.message("Ready")
    assert world.condition("RolledBack")[0] == "False"
    world.change(image=NEW)
    world.run()
    assert world.condition("Ready")[0] == "True"


def test_brokers_that_are_away_roll_nothing_back(world):
    """A pod that is not ready because no broker answers says nothing about its revision."""
    world.change(image=NEW)
    for _ in range(4):
        world.pass_over()
        world.settle()
    world.brokers_up = False
    world.run(600)
    assert world.condition("RolledBack")[0] == "False"
    world.brokers_up = True
    world.run()
    assert set(world.revisions()) == {world.status.stable_revision}
    assert world.condition("Ready")[0] == "True"


def test_a_plan_that_cannot_begin_says_why():
    """What keeps the plan Job's pod from starting, such as a missing ConfigMap, is reported while waiting."""
    world = World(programs={NEW: Program(plan_waits="CreateContainerConfigError")})
    world.change(image=NEW)
    world.run(30)
    assert world.condition("Reconciling") == ("True", "Planning")
    assert "CreateContainerConfigError" in world.message("Reconciling")
