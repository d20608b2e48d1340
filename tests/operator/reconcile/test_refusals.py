"""Refusals of the API server are reported, and block only what depends on them."""

import pytest
from tests.operator.reconcile.world import APP, Program, World


@pytest.fixture
def world():
    """A healthy application with two pods."""
    world = World()
    world.change(replicas=2)
    world.run()
    world.events.clear()
    return world


def status_of(world, *kinds):
    """Return the status of conditions, by their types."""
    return {kind: world.condition(kind)[0] for kind in kinds}


@pytest.mark.parametrize("kind", ["PodDisruptionBudget", "Service", "NetworkPolicy", "ServiceAccount"])
def test_application_without_a_supporting_child_runs(kind):
    """A policy that forbids the child does not keep pods from starting; the status names it and is accurate otherwise."""
    world = World(refuses={kind})
    world.change(replicas=2, networkPolicy={"enabled": True})
    world.run()
    assert len(world.pods()) == 2
    assert status_of(world, "Ready", "Reconciling", "Stalled") == {
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "True",
    }
    assert (world.status.lifecycle_state, world.status.observed_generation) == ("Blocked", world.generation)
    assert kind in world.message("Stalled")
    world.refuses = set()
    world.run(30)
    assert (world.status.lifecycle_state, world.condition("Stalled")[0]) == ("Running", "False")


def test_refused_budget_holds_up_neither_rolls_nor_scaling(world):
    """Pods are replaced, added and drained while a change to the PodDisruptionBudget is refused."""
    world.refuses = {"PodDisruptionBudget"}
    world.change(podDisruptionBudget={"maxUnavailable": 2})
    before = world.revisions()
    world.change(image="registry.example/words:2")
    world.pass_over()
    world.pass_over()
    assert status_of(world, "Reconciling", "Stalled") == {"Reconciling": "True", "Stalled": "True"}, "it is at work"
    world.run(300)
    assert set(world.revisions()).isdisjoint(before)
    assert world.status.current_revision == world.status.stable_revision == world.revisions()[0]
    for replicas in (4, 1):
        world.change(replicas=replicas)
        world.run(300)
        assert len(world.pods()) == replicas
    assert status_of(world, "Ready", "Reconciling", "Stalled") == {
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "True",
    }


def test_revision_that_runs_well_is_stable_though_a_larger_volume_is_refused(world):
    """Its pods run it and the gate has passed: the status says so, however long a quota blocks something else."""
    before = world.revisions()
    world.refuses = {"PersistentVolumeClaim"}
    world.change(image="registry.example/words:2", storage={"size": "2Gi"})
    world.run(400)
    assert status_of(world, "Ready", "Stalled") == {"Ready": "True", "Stalled": "True"}
    assert set(world.revisions()).isdisjoint(before)
    assert world.status.stable_revision == world.status.current_revision == world.revisions()[0]


def test_revision_that_runs_well_is_stable_though_brokers_keep_members(world):
    """If members of deleted pods cannot be removed, that is reported and affects nothing else."""
    world.deaf, world.keeps_members = True, True
    before = world.revisions()
    world.change(replicas=1, image="registry.example/words:2", drain={"terminationGracePeriodSeconds": 30})
    world.run(400)
    assert world.condition("Stalled") == ("True", "RefusedByKafka")
    assert set(world.revisions()).isdisjoint(before)
    assert world.status.stable_revision == world.status.current_revision == world.revisions()[0]


def test_rollback_is_reported_whatever_else_is_refused(world):
    """A rollback is reported even though a quota keeps refusing larger volumes."""
    before = world.revisions()
    world.refuses = {"PersistentVolumeClaim"}
    world.programs["new"] = Program(crashes=True)
    world.change(image="new", storage={"size": "2Gi"})
    world.run(600)
    assert world.revisions() == before
    assert world.condition("RolledBack")[0] == "True"
    assert world.status.current_revision == world.status.stable_revision == before[0]


def test_refused_budget_does_not_hold_up_a_rollback(world):
    """A failed upgrade is rolled back anyway."""
    before = world.revisions()
    world.refuses = {"PodDisruptionBudget"}
    world.programs["new"] = Program(crashes=True)
    world.change(podDisruptionBudget={"maxUnavailable": 2}, image="new")
    world.run(600)
    assert world.revisions() == before
    assert world.condition("RolledBack")[0] == "True"
    assert "PodDisruptionBudget" in world.message("Stalled")
    assert world.condition("Stalled")[1] == "UpgradeFailed", "what needs the user most is said first"


def test_refused_stateful_set_is_reported_for_this_generation(world):
    """A quota forbids scaling: the running pods are not enough for this generation, and nothing waits for more."""
    world.refuses = {"StatefulSet"}
    world.change(replicas=5)
    world.run()
    assert status_of(world, "Ready", "Reconciling", "Stalled") == {
        "Ready": "False",
        "Reconciling": "False",
        "Stalled": "True",
    }
    assert (world.status.lifecycle_state, world.status.observed_generation) == ("Blocked", world.generation)
    assert world.message("Stalled").startswith("Apply StatefulSet words")
    assert [event.reason for event in world.warnings if event.reason == "RefusedByApiServer"] == ["RefusedByApiServer"]
    writes = world.status_writes
    world.run(60)
    assert world.status_writes == writes, "told once"


def test_refused_plan_job_does_not_hold_up_what_runs(world):
    """The new revision waits for its plan; the running one can still be scaled."""
    before = set(world.revisions())
    world.refuses = {"Job"}
    world.change(image="registry.example/words:2")
    world.run()
    assert status_of(world, "Reconciling", "Stalled") == {"Reconciling": "False", "Stalled": "True"}
    world.change(replicas=3)
    world.run()
    assert (len(world.pods()), set(world.revisions())) == (3, before)


def test_refused_revision_stops_what_rests_on_it(world):
    """Pods that mount a refused ConfigMap are not started, and no upgrade is reported."""
    before = world.revisions()
    told = world.status.current_revision
    world.refuses = {"ConfigMap"}
    world.change(image="registry.example/words:2")
    world.run()
    assert world.revisions() == before
    assert world.status.current_revision == told
    assert world.status.lifecycle_state == "Blocked"
    world.refuses = set()
    world.run(300)
    assert set(world.revisions()).isdisjoint(before)
    assert world.status.lifecycle_state == "Running"


def test_refused_change_of_a_failed_revision_reports_no_rollback(world):
    """What could not be recorded is neither done nor reported."""
    world.programs["new"] = Program(crashes=True)
    world.change(image="new")
    for _ in range(100):
        world.pass_over()
        world.settle()
        if any("new" in pod["spec"]["containers"][0]["image"] for pod in world.pods()):
            break
        world.tick(2)
    world.refuses = {"ConfigMap"}
    world.run(200)
    assert world.condition("RolledBack")[0] == "False"
    world.refuses = set()
    world.run(200)
    assert world.condition("RolledBack")[0] == "True"


def test_refused_drain_is_reported_and_blocks_nothing_else(world):
    """If pods may not be annotated, the rest of the pass is done and scale-in continues after the grace period."""
    world.refuses = {"Pod"}
    world.members.add(f"{APP}-7")  # was killed, and has not left
    world.change(replicas=1)
    world.run(40)
    assert len(world.pods()) == 2
    assert status_of(world, "Reconciling", "Stalled") == {"Reconciling": "True", "Stalled": "True"}
    assert (world.status.lifecycle_state, world.condition("Reconciling")[1]) == ("Draining", "Draining")
    assert "Pod words-1" in world.message("Stalled")
    assert "words-1 could not be told" in world.message("Reconciling")
    assert world.members == {f"{APP}-0", f"{APP}-1"}, "members are removed last"
    world.run(200)
    assert [pod["metadata"]["name"] for pod in world.pods()] == [f"{APP}-0"]
    assert world.members == {f"{APP}-0"}
    assert status_of(world, "Ready", "Reconciling", "Stalled") == {
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "False",
    }


def test_each_pod_that_cannot_drain_has_its_own_deadline(world):
    """The second pod's grace period starts when the first one has gone."""
    world.change(replicas=3)
    world.run()
    world.refuses = {"Pod"}
    world.change(replicas=1)
    world.run(80)
    assert len(world.pods()) == 2
    world.run(80)
    assert len(world.pods()) == 1


def test_pod_that_could_not_drain_and_is_wanted_again_stays(world):
    """It has not left the group, so it is not replaced; if it has to go later, its grace period starts over."""
    before = {pod["metadata"]["uid"] for pod in world.pods()}
    world.refuses = {"Pod"}
    world.change(replicas=1)
    world.run(40)
    world.change(replicas=2)
    world.run(60)
    assert {pod["metadata"]["uid"] for pod in world.pods()} == before
    assert world.condition("Stalled")[0] == "False"
    world.change(replicas=1)
    world.run(40)
    assert len(world.pods()) == 2
    world.run(60)
    assert len(world.pods()) == 1
