"""Pods are replaced, removed and evicted only while their tasks have copies that could take over, or for as long as one waits."""

import pytest
from tests.operator.reconcile.world import APP, Program, World, task_with_store

from millrace_operator import model
from millrace_operator.children.naming import APP_UID_LABEL
from millrace_operator.model import Key

LIMIT_S = 600
"""The default of `standby.catchUpTimeout`."""


def tasks(active=(), copies=(), behind=0):
    """Return what an instance reports; all of its copies are as far behind."""
    return (
        *(task_with_store(f"0_{number}", "active") for number in active),
        *(task_with_store(f"0_{number}", "standby", behind) for number in copies),
    )


def placed(world, *, behind=0, missing=()):
    """Give each of three pods an active task, and the next pod its copy, unless that is missing."""
    for pod in range(3):
        copies = [(pod + 2) % 3]
        world.tasks[f"{APP}-{pod}"] = tasks([pod], [task for task in copies if task not in missing], behind)


@pytest.fixture
def world():
    """A healthy application with three pods and a standby of each task."""
    world = World()
    world.change(replicas=3, standby={"replicas": 1, "acceptableRecoveryLag": 100})
    placed(world)
    world.run()
    world.log.clear()
    return world


def deleted(world):
    """Return the names of the pods that were deleted."""
    return [action.key.name for action in world.done(model.Delete) if action.key.kind == "Pod"]


def budget(world):
    """Return how many pods may be evicted."""
    return world.objects[Key("PodDisruptionBudget", APP)]["spec"]["maxUnavailable"]


def test_copies_that_are_caught_up_let_pods_go(world):
    """With a copy of each task within acceptableRecoveryLag, a roll goes on as without standbys."""
    placed(world, behind=100)
    world.change(restartNonce=1)
    world.run()
    assert deleted(world) == [f"{APP}-2", f"{APP}-1", f"{APP}-0"]
    assert world.condition("StateReplicated") == ("True", "CopiesCaughtUp")


@pytest.mark.parametrize("given", [{"behind": 101}, {"behind": None}, {"missing": (2,)}])
def test_a_roll_waits_for_copies_and_says_so(world, given):
    """Nothing is replaced while no other pod could take over the task; as soon as one could, the roll goes on."""
    placed(world, **given)
    world.change(restartNonce=1)
    world.run(LIMIT_S - 60)
    assert deleted(world) == []
    assert world.condition("StateReplicated") == ("False", "CopiesBehind")
    assert world.condition("Reconciling") == ("True", "WaitingForGate")
    assert f"Task 0_2 has no copy on another pod that could take over from pod {APP}-2" in world.message("Reconciling")
    placed(world)
    world.run()
    assert deleted(world) == [f"{APP}-2", f"{APP}-1", f"{APP}-0"]


def test_the_next_pod_waits_until_the_replaced_one_has_its_copies_again(world):
    """A pod that has returned has to catch up with what it keeps a copy of before that one's pod goes."""
    world.change(restartNonce=1)
    for _ in range(20):
        world.pass_over()
        if deleted(world):
            break
        world.settle()
        world.tick(5)
    world.tasks[f"{APP}-2"] = tasks([], [1, 2], behind=5000)
    world.tasks[f"{APP}-0"] = tasks([0, 2])
    world.run(300)
    assert deleted(world) == [f"{APP}-2"]
    world.tasks[f"{APP}-2"] = tasks([], [0, 1, 2], behind=5)
    world.run()
    assert deleted(world)[1:] == [f"{APP}-1", f"{APP}-0"]


def test_copies_that_never_catch_up_are_not_waited_for_for_ever(world):
    """After standby.catchUpTimeout, pods are replaced and removed, and may be evicted, all the same."""
    placed(world, missing=(0, 1, 2))
    world.change(restartNonce=1)
    world.run(LIMIT_S - 60)
    assert (deleted(world), budget(world)) == ([], 0)
    world.run(300)
    assert (len(deleted(world)), budget(world)) == (3, 1)
    world.change(replicas=2)
    world.run()
    assert len(world.pods()) == 2


def test_a_timeout_of_zero_waits_for_nothing(world):
    """With standby.catchUpTimeout 0s everything is as without standbys."""
    placed(world, missing=(0, 1, 2))
    world.change(restartNonce=1, standby={"replicas": 1, "catchUpTimeout": "0s"})
    world.run()
    assert (len(deleted(world)), budget(world)) == (3, 1)


def test_a_pod_is_removed_only_when_pods_that_stay_have_copies(world):
    """A copy on a pod that is to go as well does not count for it, but it does for the pod before."""
    world.tasks |= {
        f"{APP}-0": tasks([0], [2]),
        f"{APP}-1": tasks([1], [0]),
        f"{APP}-2": tasks([2], [1]),
    }
    world.change(replicas=1)
    world.run(60)
    assert [action.pod for action in world.done(model.DrainPod)] == [f"{APP}-2"]
    assert len(world.pods()) == 2
    assert world.condition("Reconciling") == ("True", "Draining")
    assert "Task 0_1 has no copy" in world.message("Reconciling")
    world.tasks[f"{APP}-0"] = tasks([0, 2], [1])
    world.run(60)
    assert [pod["metadata"]["name"] for pod in world.pods()] == [f"{APP}-0"]


def test_a_pod_that_leaves_is_not_called_back_because_its_copies_fall_behind(world):
    """Once it was told to hand over its tasks, only that and the time to drain count."""
    world.deaf = True
    world.change(replicas=2, drain={"terminationGracePeriodSeconds": 40})
    world.run(10)
    placed(world, missing=(2,))
    world.run(60)
    assert len(world.pods()) == 2


def test_evictions_wait_for_copies(world):
    """No pod may be evicted while a task has no copy elsewhere; a pod that is not ready always may."""
    assert budget(world) == 1
    placed(world, behind=5000)
    world.run(30)
    assert budget(world) == 0
    assert world.objects[Key("PodDisruptionBudget", APP)]["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    placed(world)
    world.run(30)
    assert budget(world) == 1


def test_state_that_cannot_be_copied_is_not_waited_for(world):
    """A store without a changelog never has copies."""
    plan = next(item for key, item in world.objects.items() if key.kind == "ConfigMap" and "plan.json" in item["data"])
    assert '"changelogTopic":"words-v1-counts-changelog"' in plan["data"]["plan.json"]
    plan["data"]["plan.json"] = plan["data"]["plan.json"].replace(
        '"changelogTopic":"words-v1-counts-changelog"', '"changelogTopic":null'
    )
    placed(world, missing=(0, 1, 2))
    world.run(30)
    assert world.condition("StateReplicated") == ("True", "CopiesCaughtUp")


def test_a_single_pod_waits_for_nobody(world):
    """Where no other pod could keep a copy, a roll goes on as without standbys."""
    world.change(replicas=1)
    world.run()
    world.tasks = {f"{APP}-0": tasks([0, 1, 2])}
    world.run(30)
    assert world.condition("StateReplicated") == ("True", "NoCopiesWanted")
    world.change(restartNonce=1)
    world.run()
    assert deleted(world) == [f"{APP}-0"]


def test_a_missed_answer_changes_nothing(world, monkeypatch):
    """A pod that does not report for once neither has its tasks forgotten nor lets anything go that was waiting."""
    placed(world, behind=5000)
    world.run(30)
    monkeypatch.setattr(World, "_is_up", staticmethod(lambda pod: pod["metadata"]["name"] != f"{APP}-2"))
    world.change(restartNonce=1)
    world.run(60)
    assert (deleted(world), budget(world)) == ([], 0)


def test_a_pod_that_never_reports_its_copies_is_not_waited_for_for_ever(world, monkeypatch):
    """It is ready, but the operator does not reach it: the time runs although its copies had caught up before."""
    monkeypatch.setattr(World, "_is_up", staticmethod(lambda pod: pod["metadata"]["name"] != f"{APP}-0"))
    world.change(restartNonce=1)
    world.run(LIMIT_S - 60)
    assert (deleted(world), world.condition("StateReplicated")) == ([], ("False", "CopiesBehind"))
    world.run(400)
    assert deleted(world) == [f"{APP}-2", f"{APP}-1", f"{APP}-0"]


def test_pods_that_never_had_copies_do_not_wait_for_them():
    """They get standbys only by being replaced with a revision that has some."""
    world = World()
    world.change(replicas=3)
    world.tasks = {f"{APP}-{pod}": tasks([pod]) for pod in range(3)}
    world.run()
    world.log.clear()
    world.change(standby={"replicas": 1})
    world.run()
    assert deleted(world) == [f"{APP}-2", f"{APP}-1", f"{APP}-0"]
    assert world.condition("StateReplicated") == ("False", "CopiesBehind")


def test_standbys_that_a_rollback_keeps_are_no_warm_ups(world):
    """Where a revision with fewer standbys failed, the running one still has its own, and may be scaled."""
    world.change(replicas=3, standby={"replicas": 2})
    for pod in range(3):
        world.tasks[f"{APP}-{pod}"] = tasks([pod], [task for task in range(3) if task != pod])
    world.run()
    assert world.condition("ScalingAllowed")[0] == "True"
    world.programs["registry.example/words:2"] = Program(crashes=True)
    world.change(standby={"replicas": 1}, image="registry.example/words:2")
    world.run(400)
    assert world.condition("RolledBack")[0] == "True"
    assert world.condition("ScalingAllowed")[1] != "TasksWarmUp"


def test_a_pod_that_never_started_is_removed_without_waiting(world, monkeypatch):
    """It runs no tasks, so nothing can be copied from it; that copies of other pods are behind is no reason to wait."""
    world.tick(1000)
    world.boot_seconds = 900
    monkeypatch.setattr(World, "_is_up", staticmethod(lambda pod: pod["metadata"]["name"] != f"{APP}-3"))
    world.change(replicas=4)
    world.run(10)
    placed(world, missing=(0, 1))
    world.run(10)
    assert world.condition("StateReplicated") == ("False", "CopiesBehind")
    world.change(replicas=3, drain={"terminationGracePeriodSeconds": 40})
    world.run(60)
    assert len(world.pods()) == 3


def test_an_application_that_is_left_alone_lets_its_pods_be_evicted(world):
    """With deletionPolicy Orphan nobody would allow it once the copies have caught up."""
    placed(world, behind=5000)
    world.change(deletionPolicy="Orphan")
    world.run(30)
    assert budget(world) == 0
    world.delete()
    world.run(30)
    assert (world.exists, budget(world)) == (False, 1)
    assert APP_UID_LABEL not in world.objects[Key("PodDisruptionBudget", APP)]["metadata"]["labels"]
