"""More than one node: replicas that are kept apart, a node that is lost for good, and one that comes back."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.cluster.node import Node
from e2e.images.catalogue import Images
from e2e.support.application import Application
from e2e.support.word_count import Words

pytestmark = [pytest.mark.disturbs, pytest.mark.thorough]


def evicted_after(seconds: int) -> list[dict[str, Any]]:
    """Return tolerations that evict a pod from a lost node after this time; Kubernetes' default is 5 minutes."""
    taints = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    return [
        {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds} for taint in taints
    ]


@pytest.fixture
def second(cluster: Cluster, images: Images) -> Iterator[Node]:
    """Return a second node, with the applications' image."""
    with cluster.another_node(f"n{secrets.token_hex(2)}", [images.apps]) as node:
        yield node


def pod_on(app: Application, node: Node) -> str:
    """Return the name of an application's only pod on a node."""
    (pod,) = (pod["metadata"]["name"] for pod in app.pods() if pod["spec"]["nodeName"] == node.name)
    return pod


def is_lost(app: Application, node: Node) -> bool:
    """Return whether the cluster considers a node lost."""
    found = app.object("node", node.name)
    assert found is not None
    return any(item["type"] == "Ready" and item["status"] == "Unknown" for item in found["status"]["conditions"])


def test_lost_node_loses_no_word(word_count, words: Words, cluster: Cluster, second) -> None:
    """The replica on the other node counts everything; `explain` says how to free the lost one: by deleting its claim."""
    app: Application = word_count(words, replicas=2, podTemplate={"tolerations": evicted_after(5)})
    app.apply()
    app.wait_ready()
    assert {pod["spec"]["nodeName"] for pod in app.pods()} == {cluster.node.name, second.name}
    lost = pod_on(app, second)
    (kept,) = {pod["metadata"]["name"] for pod in app.pods()} - {lost}
    with words.load():
        words.write()
        second.machine.stop()
        app.wait("the node to be given up", lambda: is_lost(app, second))
        app.wait("the pod to be evicted", lambda: "deletionTimestamp" in app.object("pod", lost)["metadata"])
    words.wait_exact()
    app.wait("all partitions on one replica", lambda: app.status().get("readyReplicas") == 1)
    remedy = f"If node {second.name} is gone for good, delete the Node"
    app.wait("told what the pod waits for", lambda: remedy in app.explain())

    cluster.kubectl("delete", "node", second.name)
    remedy = "If that node is gone for good, delete the claim and the pod"
    app.wait("told what its successor waits for", lambda: remedy in app.explain())
    claim = next(item["metadata"]["name"] for item in app.objects("pvc") if item["metadata"]["name"].endswith(lost))
    app.kubectl("delete", "pvc", claim, "--wait=false")
    app.kubectl("delete", "pod", lost)
    app.wait_ready()
    assert {pod["spec"]["nodeName"] for pod in app.pods()} == {cluster.node.name}
    words.write(times=10)
    words.wait_exact()
    assert app.instance(kept)["state"] == app.instance(lost)["state"]


def test_isolated_node_comes_back(word_count, words: Words, cluster: Cluster, second) -> None:
    """Its replica continues where it stopped; pods deleted meanwhile end there, although nobody waited for them."""
    app: Application = word_count(words, replicas=2, drain={"terminationGracePeriodSeconds": 10})
    app.apply()
    app.wait_ready()
    away = pod_on(app, second)
    uids = {pod["metadata"]["uid"] for pod in app.pods()}
    with words.load():
        second.cut_off()
        app.wait("the node to be given up", lambda: is_lost(app, second))
    words.wait_exact()
    second.rejoin()
    app.wait_ready()
    words.write(times=10)
    words.wait_exact()
    assert {pod["metadata"]["uid"] for pod in app.pods()} == uids

    second.cut_off()
    app.wait("the node to be given up again", lambda: is_lost(app, second))
    app.ask_to_delete()
    app.wait("gone", lambda: app.object("streamsapp") is None)
    (event,) = (event for event in app.events() if event["reason"] == "PodsLeftBehind")
    assert away in event["message"]
    assert [pod["metadata"]["name"] for pod in app.objects("pod")] == [away]
    second.rejoin()
    app.wait("the pod to end", lambda: not app.objects("pod"))
