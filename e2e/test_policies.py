"""NetworkPolicies, enforced: who can reach an application's pods, and what these and the plan Job can reach."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.waiting import wait_until

from e2e.cluster import Cluster
from e2e.helm import Release
from e2e.images.catalogue import Images
from e2e.support.application import KUBECTL_PATIENCE, PATIENCE_S, Application
from e2e.support.word_count import Words

PORT = 8080
_PROMETHEUS = {"app": "prometheus"}
_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()
    print("reached")
except OSError as error:
    print(error)
"""
_LISTEN = f"import http.server; http.server.test(http.server.BaseHTTPRequestHandler, port={PORT})"


class Pod:
    """A pod that tries to connect.

    Args:
        cluster: Where it is.
        namespace: Its namespace.
        name: Its name.
    """

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.name = name

    @property
    def address(self) -> str:
        """Its address; empty until it has one."""
        query = ("-n", self.namespace, "-o", "jsonpath={.status.podIP}")
        return self.cluster.kubectl("get", "pod", self.name, *query)

    def attempt(self, address: str, port: int) -> str:
        """Return `reached`, or why it cannot connect."""
        command = ("python3", "-c", _CONNECT, address, str(port))
        return self.cluster.kubectl("exec", self.name, "-n", self.namespace, "--", *command).strip()

    def reaches(self, address: str, port: int = PORT) -> bool:
        """Return whether it can connect."""
        return self.attempt(address, port) == "reached"

    def wait(self, address: str, port: int = PORT, *, reached: bool) -> None:
        """Wait until it can, or can no longer, connect: a policy takes effect soon after it is created."""
        what = f"{self.name} {'' if reached else 'not '}to reach {address}:{port}"
        wait_until(lambda: self.reaches(address, port) is reached, what, PATIENCE_S)


@pytest.fixture
def visitor(cluster: Cluster, images: Images) -> Callable[..., Pod]:
    """Start a pod that serves on its own port: `visitor(namespace, "name", labels)`."""

    def start(namespace: str, name: str, labels: Mapping[str, str] = {}) -> Pod:
        container = {
            "name": "main",
            "image": images.apps,
            "command": ["python3", "-c", _LISTEN],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
        cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "securityContext": security,
                    "containers": [container],
                },
            }
        )
        wait = ("wait", f"pod/{name}", "-n", namespace, "--for=condition=Ready", KUBECTL_PATIENCE)
        cluster.kubectl(*wait, timeout_s=200)
        return Pod(cluster, namespace, name)

    return start


@pytest.mark.thorough
def test_only_allowed_peers_reach_the_pods(
    word_count, words: Words, operator: Release, cluster: Cluster, visitor, namespaces
) -> None:
    """Prometheus and the operator can read metrics and status; pods without the label, or in another namespace, cannot."""
    monitoring = namespaces("monitoring")
    app: Application = word_count(
        words,
        replicas=1,
        networkPolicy={"enabled": False},
        observability={"metrics": {"podMonitor": {"enabled": True}}},
    )
    app.apply()
    prometheus = visitor(monitoring, "prometheus", _PROMETHEUS)
    strangers = [
        visitor(monitoring, "neighbour"),
        visitor(app.namespace, "impostor", _PROMETHEUS | {"app.kubernetes.io/name": "millrace-operator"}),
    ]
    app.wait_ready()
    pod = Pod(cluster, app.namespace, f"{app.name}-0")
    for each in (prometheus, *strangers):
        each.wait(pod.address, reached=True)

    peer = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": monitoring}},
        "podSelector": {"matchLabels": _PROMETHEUS},
    }
    app.apply(networkPolicy={"enabled": True, "ingressFrom": [peer]})
    for each in strangers:
        each.wait(pod.address, reached=False)
    app.wait_ready()
    for path in ("/metrics", "/status"):
        assert get(prometheus, pod.address, path).startswith("200 ")
    assert operator_pod(cluster, operator).reaches(pod.address)
    assert [each.reaches(pod.address) for each in strangers] == [False, False]
    assert pod.reaches(strangers[0].address), "it may connect everywhere"
    words.write(times=10)
    words.wait_exact()
    app.kubectl("delete", "pod", pod.name)
    app.wait_ready()
    words.write(times=10)
    words.wait_exact()
    for each in strangers:
        each.wait(pod.address, reached=False)


@pytest.mark.thorough
def test_pods_connect_only_where_the_policy_says(word_count, words: Words, cluster: Cluster, visitor) -> None:
    """With the brokers' address as the only destination, two replicas count exactly, and can reach nothing else."""
    host, port = words.bootstrap_servers.rsplit(":", 1)
    rule = {"to": [{"ipBlock": {"cidr": f"{host}/32"}}], "ports": [{"port": int(port), "protocol": "TCP"}]}
    app: Application = word_count(words, replicas=2, networkPolicy={"enabled": True, "egress": [rule]})
    app.apply()
    elsewhere = visitor(app.namespace, "elsewhere")
    app.wait_ready()
    words.write(times=10)
    words.wait_exact()
    pods = [Pod(cluster, app.namespace, f"{app.name}-{index}") for index in (0, 1)]
    for pod in pods:
        pod.wait(elsewhere.address, reached=False)
        assert pod.reaches(host, int(port))
    assert pods[0].reaches(pods[1].address)
    assert pods[0].attempt(f"{pods[1].name}.{service(app)}", PORT) == "reached", "names are found"
    with words.load():
        app.apply(restartNonce=1)
        app.wait_ready()
    words.wait_exact()


@pytest.mark.thorough
def test_plan_job_has_no_network(word_count, words: Words, cluster: Cluster, visitor) -> None:
    """A plan Job runs user code that does not need the network: under the policy it can reach no broker and resolve no name."""
    host, port = words.bootstrap_servers.rsplit(":", 1)
    program = {"entrypoint": "versions:endless"}
    plans = {}
    for name, enabled in (("open", False), ("closed", True)):
        app: Application = word_count(words, name=name, app=program, networkPolicy={"enabled": enabled})
        app.apply()
        app.wait("the plan to run", lambda app=app: running_plan(app))
        plans[name] = Pod(cluster, app.namespace, running_plan(app))
    server = visitor(app.namespace, "server")
    api = cluster.kubectl("get", "service", "kubernetes", "-n", "default", "-o", "jsonpath={.spec.clusterIP}")
    for address, number in ((host, int(port)), (server.address, PORT), (api, 443)):
        plans["open"].wait(address, number, reached=True)
        plans["closed"].wait(address, number, reached=False)
    assert "refused" in server.attempt(plans["open"].address, 1)
    assert "timed out" in server.attempt(plans["closed"].address, 1)
    assert "name resolution" in plans["closed"].attempt("kubernetes.default.svc.cluster.local", 443)
    assert plans["open"].reaches("kubernetes.default.svc.cluster.local", 443)


def get(visitor: Pod, address: str, path: str) -> str:
    """Return the status code and page that a pod gets from another."""
    program = (
        "import sys, urllib.request\n"
        f"answer = urllib.request.urlopen('http://{address}:{PORT}{path}', timeout=60)\n"
        "print(answer.status, answer.read().decode())"
    )
    return visitor.cluster.kubectl("exec", visitor.name, "-n", visitor.namespace, "--", "python3", "-c", program)


def operator_pod(cluster: Cluster, operator: Release) -> Pod:
    """Return a pod of the operator."""
    selector = f"--selector=app.kubernetes.io/instance={operator.name}"
    found = cluster.kubectl("get", "pods", "-n", operator.namespace, selector, "-o", "name").split()
    return Pod(cluster, operator.namespace, found[0].removeprefix("pod/"))


def service(app: Application) -> str:
    """Return the name of the Service that gives pods their names."""
    found: dict[str, Any] = app.object("statefulset", app.name) or {}
    return f"{found['spec']['serviceName']}.{app.namespace}.svc.cluster.local"


def running_plan(app: Application) -> str:
    """Return the name of the plan's pod once it is running; empty before."""
    selector = f"--selector=streams.millrace.dev/app={app.name},app.kubernetes.io/component=plan"
    pods = json.loads(app.kubectl("get", "pods", selector, "--field-selector=status.phase=Running", "-o", "json"))
    return next((pod["metadata"]["name"] for pod in pods["items"]), "")
