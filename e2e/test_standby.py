"""Standbys in a cluster: they take over when a process dies, and when pods come and go."""

from __future__ import annotations

import itertools

import pytest

from e2e.support.application import Application
from e2e.support.word_count import Words
from e2e.test_faults import status_of_container


@pytest.mark.thorough
def test_a_standby_takes_over_from_a_killed_process(word_count, words: Words, cluster) -> None:
    """Its members are removed from the group long before their sessions time out, nothing is restored, and counts are exact."""
    app: Application = word_count(words, replicas=2, standby={"replicas": 1}, membership={"sessionTimeout": "30m"})
    app.apply()
    app.wait_ready()
    killed, other = f"{app.name}-0", f"{app.name}-1"
    app.wait("standbys", lambda: all(app.instance(pod)["task_counts"]["standby"] for pod in (killed, other)))
    before = app.instance(other)
    with words.load():
        for _ in range(2):  # the second time Kubernetes waits before it starts the process again
            app.wait("running", lambda: "running" in status_of_container(app, killed).get("state", {}))
            generation = app.instance(other)["group"]["generation"]
            container = status_of_container(app, killed)
            cluster.node.kill_container(container["containerID"])
            app.wait(
                "a group without the dead members",
                lambda since=generation: app.instance(other)["group"]["generation"] > since,
            )
            app.wait(
                "a restart",
                lambda old=container["containerID"]: status_of_container(app, killed).get("containerID") != old,
            )
        app.wait_ready()
    words.wait_exact()
    after = app.instance(other)
    assert after["pod_uid"] == before["pod_uid"]
    assert after["restoration"]["restored_records"] == before["restoration"]["restored_records"]


@pytest.mark.thorough
def test_pods_that_join_and_leave_under_load_restore_nothing_while_records_wait(word_count, words: Words) -> None:
    """One pod, three, and one again: copies warm up or take over before tasks move, and counts are exact."""
    app: Application = word_count(
        words,
        replicas=1,
        standby={"replicas": 1, "maxWarmups": 4, "acceptableRecoveryLag": 100},
        kafka={
            "bootstrapServers": words.bootstrap_servers.split(","),
            "config": {"probing.rebalance.interval.ms": 60_000},
        },
    )
    app.apply()
    app.wait_ready()
    words.write(map("".join, itertools.product("abcdefghijklmnop", repeat=3)))  # about 1,000 changelog records per task
    words.wait_exact()
    with words.load():
        app.apply(replicas=3)

        def stateful(pod: str) -> list[str]:
            tasks = app.instance(pod)["tasks"]
            return [task["id"] for task in tasks if task["stores"] and task["role"] == "active"]

        pods = [f"{app.name}-{number}" for number in range(3)]
        app.wait("stateful tasks on all pods", lambda: all(map(stateful, pods)))
        restored = [app.instance(pod)["restoration"]["restored_records"] for pod in pods]
        app.apply(replicas=1)
        app.wait("one pod", lambda: len(app.pods()) == 1)
        app.wait_ready()
    words.wait_exact()
    restored.append(app.instance(pods[0])["restoration"]["restored_records"])
    assert max(restored) < 500, "a task has moved to a pod that had to restore all of its state"
