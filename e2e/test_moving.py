"""Tasks that move to caught-up standbys under load: racks, a drained node, an upgrade, and a node that is out of service."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.cluster.node import Node
from e2e.images.catalogue import Images
from e2e.support.application import Application
from e2e.support.word_count import Words
from e2e.test_upgrades import settled, uids

pytestmark = [pytest.mark.disturbs, pytest.mark.thorough]
HALL = "example.com/hall"
TASKS = {f"1_{partition}" for partition in range(4)}
"""The tasks of a word count that have state."""
FEW = 400
"""Fewer records than any of their changelogs has."""
LAG = 100
"""How many records a copy may be behind; by default these changelogs would be too short for anything to count as behind."""


@pytest.fixture(scope="module")
def second(cluster: Cluster, images: Images) -> Iterator[Node]:
    """Return a second node, in another hall than the first, with the applications' image."""
    with cluster.another_node(f"n{secrets.token_hex(2)}", [images.apps]) as node:
        cluster.kubectl("label", "node", node.name, f"{HALL}=south")
        cluster.kubectl("label", "node", cluster.node.name, f"{HALL}=north", "--overwrite")
        yield node


def tasks(app: Application, role: str) -> dict[str, str]:
    """Return the pod on which each task with state is active, or has its copy."""
    return {
        task["id"]: pod["metadata"]["name"]
        for pod in app.pods()
        if pod["status"]["phase"] == "Running"
        for task in app.instance(pod["metadata"]["name"])["tasks"]
        if task["stores"] and task["role"] == role and task["state"] == "RUNNING"
    }


def are_caught_up(app: Application) -> bool:
    """Return whether all tasks run and have copies that could take over."""
    return (
        set(tasks(app, "active")) == set(tasks(app, "standby")) == TASKS
        and app.condition("StateReplicated")["reason"] == "CopiesCaughtUp"
    )


def restored(app: Application) -> dict[str, int]:
    """Return how many records each process has restored for active tasks since it started."""
    running = [pod for pod in app.pods() if pod["status"]["phase"] == "Running"]
    statuses = [app.instance(pod["metadata"]["name"]) for pod in running]
    return {status["pod_uid"]: status["restoration"]["restored_records"] for status in statuses}


def nodes(app: Application) -> dict[str, str]:
    """Return the node of each pod."""
    return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in app.pods()}


def started(word_count: Any, words: Words, **spec: Any) -> Application:
    """Start a word count whose state has caught-up copies, of some thousand records, and no early end of sessions."""
    app: Application = word_count(
        words,
        standby={"replicas": 1, "acceptableRecoveryLag": LAG},
        membership={"sessionTimeout": "30m"},
        upgrade={"gate": {"minStable": "1s"}},
        **spec,
    )
    app.apply()
    app.wait_ready()
    words.write(map("".join, itertools.product("abcdefghijklmnop", repeat=3)))
    words.wait_exact()
    app.wait("copies", lambda: are_caught_up(app))
    return app


def test_copies_are_on_other_racks_and_take_over_from_a_drained_node_and_in_an_upgrade(
    word_count, words: Words, cluster: Cluster, second: Node
) -> None:
    """Each copy is in another hall than the original; drained nodes and upgrades restore nothing; counts are exact."""
    app = started(word_count, words, replicas=3, racks={"nodeLabel": HALL})
    node_of, active, copy = nodes(app), tasks(app, "active"), tasks(app, "standby")
    assert set(node_of.values()) == {cluster.node.name, second.name}
    assert {task: node_of[active[task]] == node_of[copy[task]] for task in TASKS} == dict.fromkeys(TASKS, False)

    drained = min(Counter(node_of.values()).items(), key=lambda item: item[1])[0]
    before = restored(app)
    with words.load():
        pods = f"--pod-selector=streams.millrace.dev/app={app.name}"
        cluster.kubectl(
            "drain", drained, pods, "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=150s", timeout_s=180
        )
        app.wait("all tasks elsewhere", lambda: set(tasks(app, "active")) == TASKS)
        after = restored(app)
        cluster.kubectl("uncordon", drained)
        app.wait_ready()
        app.wait("copies again", lambda: are_caught_up(app))
        assert {
            pod: count - before.get(pod, 0) for pod, count in after.items() if count - before.get(pod, 0) >= FEW
        } == {}

        old = uids(app)
        app.apply(app={"entrypoint": "versions:compatible"})
        app.wait("all pods replaced", lambda: not old & uids(app))
        settled(app)
        app.wait("copies after the upgrade", lambda: are_caught_up(app))
        assert {pod: count for pod, count in restored(app).items() if count >= FEW} == {}
    words.wait_exact()


@pytest.mark.thorough
def test_standbys_take_over_from_a_node_that_is_out_of_service(
    word_count, words: Words, cluster: Cluster, second: Node
) -> None:
    """As soon as an administrator says that a silent node is gone, its members leave the group, long before sessions end."""
    app = started(word_count, words, replicas=2)
    (lost,) = (pod for pod, node in nodes(app).items() if node == second.name)
    (other,) = (pod for pod in nodes(app) if pod != lost)
    before = app.instance(other)["restoration"]["restored_records"]
    with words.load():
        second.machine.stop()
        cluster.kubectl("taint", "node", second.name, "node.kubernetes.io/out-of-service=gone:NoExecute")
        app.wait("all tasks on the other node", lambda: set_of_active(app, other) == TASKS)
    words.wait_exact()
    assert app.instance(other)["restoration"]["restored_records"] - before < FEW


def set_of_active(app: Application, pod: str) -> set[str]:
    """Return the tasks with state that are active in a pod."""
    found = app.instance(pod)["tasks"]
    return {task["id"] for task in found if task["stores"] and task["role"] == "active" and task["state"] == "RUNNING"}
