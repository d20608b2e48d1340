"""Two replicas of the operator in a cluster, only one of which writes; and an API server that goes down."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.waiting import wait_until

from e2e.cluster import Cluster, reading
from e2e.helm import Release
from e2e.support.application import KUBECTL_PATIENCE, PATIENCE_S, Application
from e2e.support.audit import strangers, writes_of
from e2e.support.word_count import Words

pytestmark = pytest.mark.disturbs

LEASE_S = 8
QUICK = {"gate": {"minStable": "1s"}}


class Replicas:
    """The pods of an operator release.

    Args:
        cluster: Where it is installed.
        release: The release.
    """

    def __init__(self, cluster: Cluster, release: Release) -> None:
        self._cluster = cluster
        self._release = release
        assert cluster.node
        self.node = cluster.node

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl in the operator's namespace."""
        return self._cluster.kubectl("--namespace", self._release.namespace, *arguments)

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the pods that are not terminating, by name."""
        selector = f"app.kubernetes.io/name=millrace-operator,app.kubernetes.io/instance={self._release.name}"
        items = reading.find(self._cluster.client, "pods", self._release.namespace, labelSelector=selector)
        return {item["metadata"]["name"]: item for item in items if "deletionTimestamp" not in item["metadata"]}

    def holder(self) -> str:
        """Return the name of the pod that has the Lease."""
        lease = reading.get(self._cluster.client, "lease", self._release.namespace, self._release.name)
        assert lease is not None
        return str(lease["spec"]["holderIdentity"])

    def wait_for_another(self, than: str) -> str:
        """Wait until another pod has the Lease, and return its name."""
        return wait_until(lambda: {self.holder()} - {than, ""}, "another holder", PATIENCE_S).pop()

    def wait_ready(self) -> None:
        """Wait until all of them are ready."""
        self.kubectl("rollout", "status", f"deployment/{self._release.name}", KUBECTL_PATIENCE)

    def get(self, pod: str, path: str) -> str:
        """Return a pod's response."""
        address = self.pods()[pod]["status"]["podIP"]
        return fetched(address, path)


def fetched(address: str, path: str) -> str:
    """Return the response of the operator at an address."""
    with urllib.request.urlopen(f"http://{address}:8080{path}", timeout=60) as response:
        return response.read().decode()


def container_of(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the status of the pod's only container."""
    return pod["status"]["containerStatuses"][0]


@pytest.fixture
def pair(cluster: Cluster, operator_values) -> Iterator[Callable[[str], Replicas]]:
    """Install two replicas that serve one namespace and live in it: `pair(namespace)`.

    They have no liveness probe, so that a frozen one ends by itself and is not killed by the kubelet.
    """
    releases: list[Release] = []

    def install(namespace: str) -> Replicas:
        release = Release(cluster, namespace)
        releases.append(release)
        lease = {"name": "MILLRACE_OPERATOR_LEASE_SECONDS", "value": str(LEASE_S)}
        release.apply(
            {
                **operator_values,
                "replicas": 0,
                "crds": {"install": False},
                "watchNamespaces": [namespace],
                "operator": {"extraEnv": [lease]},
            }
        )
        replicas = Replicas(cluster, release)
        probe = {"op": "remove", "path": "/spec/template/spec/containers/0/livenessProbe"}
        patch = [probe, {"op": "replace", "path": "/spec/replicas", "value": 2}]
        replicas.kubectl("patch", f"deployment/{release.name}", "--type=json", f"--patch={json.dumps(patch)}")
        replicas.wait_ready()
        return replicas

    yield install
    for release in releases:
        release.uninstall()


@pytest.mark.thorough
def test_only_one_of_two_replicas_writes(cluster, word_count, words: Words, stood_down, pair) -> None:
    """A leader that is killed, or frozen, during an upgrade is replaced by the other, and writes nothing more.

    The API server's audit log proves it: every write came from the last pod that had written the Lease, and was answered before
    another pod wrote the Lease.
    """
    app: Application = word_count(words, replicas=2, upgrade=QUICK)
    replicas = pair(app.namespace)
    words.write(times=10)
    app.apply()
    app.wait_ready()
    first = replicas.holder()
    with words.load():
        begin_roll(app, entrypoint="versions:compatible")
        replicas.node.kill_container(container_of(replicas.pods()[first])["containerID"])
        # Otherwise it would be back before its Lease ends.
        replicas.kubectl("delete", "pod", first, "--force", "--grace-period=0")
        killed = time.time()
        second = replicas.wait_for_another(first)
        app.wait_ready()
        replicas.wait_ready()

        begin_roll(app, entrypoint="wordcount:topology")
        frozen = container_of(replicas.pods()[second])["containerID"]
        replicas.node.pause_container(frozen)
        stopped = time.time()
        try:
            third = replicas.wait_for_another(second)
            wait_until(lambda: wrote(cluster, app, third), "its first write", PATIENCE_S)
        finally:
            replicas.node.resume_container(frozen)
        app.wait_ready()
    words.wait_exact()

    wait_until(lambda: ended(replicas.pods()[second]), "the end of the one that stood still", PATIENCE_S)
    assert ended(replicas.pods()[second]) == 1
    assert "the lease is lost" in replicas.kubectl("logs", second, "--previous")
    writes = writes_of(cluster, app.namespace, "millrace-operator")
    assert len({write.pod for write in writes if not write.of_lease} & {first, second, third}) == 3
    assert strangers(writes) == []
    for since, successor in ((killed, second), (stopped, third)):
        taken = next(
            write.ended for write in writes if write.of_lease and write.pod == successor and write.begun > since
        )
        print(f"{successor} took over after {taken - since:.1f} s")  # noqa: T201 - shown by `-s`


def begin_roll(app: Application, entrypoint: str) -> None:
    """Change the application, and wait until its first pod is being replaced."""
    before = {pod["metadata"]["uid"] for pod in app.pods()}
    app.apply(app={"entrypoint": entrypoint})
    app.wait("a pod to be taken", lambda: before - {pod["metadata"]["uid"] for pod in app.pods()})


def wrote(cluster: Cluster, app: Application, pod: str) -> bool:
    """Return whether a replica has written anything except the Lease."""
    found = writes_of(cluster, app.namespace, "millrace-operator")
    return any(write.pod == pod and not write.of_lease for write in found)


def ended(pod: dict[str, Any]) -> int | None:
    """Return how the pod's container ended before it was restarted."""
    last = container_of(pod).get("lastState", {}).get("terminated")
    return last["exitCode"] if last else None


@pytest.mark.thorough
def test_operator_survives_an_api_server_outage(cluster, operator, word_count, words: Words) -> None:
    """Down for longer than the Lease, during an upgrade: the operator stays alive, does not write, and continues afterwards."""
    app: Application = word_count(words, replicas=2, upgrade=QUICK)
    words.write(times=10)
    app.apply()
    app.wait_ready()
    replicas = Replicas(cluster, operator)
    [name] = replicas.pods()
    before = replicas.pods()[name]
    address = before["status"]["podIP"]
    with words.load():
        begin_roll(app, entrypoint="versions:compatible")
        cluster.api_server.kill()
        wait_until(
            lambda: "\nmillrace_operator_leader 0.0" in fetched(address, "/metrics"), "the end of its term", PATIENCE_S
        )
        assert json.loads(fetched(address, "/healthz"))["ok"]
        cluster.restart_api_server()
        app.wait_ready()
    words.wait_exact()
    app.kubectl("delete", "service", app.name)
    app.wait("what a watch tells", lambda: app.object("service"))
    after = replicas.pods()[name]
    assert container_of(after)["restartCount"] == container_of(before)["restartCount"]
    app.wait("a leader", lambda: "\nmillrace_operator_leader 1.0" in fetched(address, "/metrics"))
