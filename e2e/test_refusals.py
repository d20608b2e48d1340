"""What a real API server refuses, and how users and their tools see it: the operator as a process, with simulated pods.

A quota, an admission policy or a missing permission is reported in an accurate status for the manifest's generation, and blocks
only what depends on the refused object.
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kubernetes import config
from tests.waiting import wait_until

from e2e.cluster import Cluster, ClusterError, tools
from e2e.operator_process import OperatorProcess
from e2e.simulated_pods import Kubelet, manifest
from e2e.support.application import PATIENCE_S
from millrace_operator.children.naming import DRAIN_ANNOTATION

BUDGET: dict[str, Any] = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "tried"},
    "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"a": "b"}}},
}
POD_THAT_DRAINS: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "tried", "annotations": {DRAIN_ANNOTATION: "1"}},
    "spec": {"containers": [{"name": "tried", "image": "registry.example/app:1"}]},
}
_POLICY = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy"}
_BINDING = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding"}


class World:
    """A control plane with a simulated node, and one application."""

    def __init__(self, cluster: Cluster, kubelet: Kubelet, folder: Path, namespace: str) -> None:
        self.cluster = cluster
        self.folder = folder
        self.namespace = namespace
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        kubelet.add(namespace)

    def operator(self) -> OperatorProcess:
        """Start an operator that serves the namespace."""
        return operator_for(self.cluster, self.folder, self.namespace)

    def apply(self, **spec: Any) -> None:
        """Apply the application."""
        app = manifest("orders", applicationId=self.namespace, **spec)
        self.cluster.apply({**app, "metadata": {**app["metadata"], "namespace": self.namespace}})

    def objects(self, kind: str, *names: str) -> list[dict[str, Any]]:
        """Return objects of the namespace."""
        arguments = ("get", kind, *names, "-n", self.namespace, "-o", "json", "--ignore-not-found")
        found = json.loads(self.cluster.kubectl(*arguments) or "{}")
        return list(found.get("items", [found] if found else []))

    def app(self) -> dict[str, Any]:
        """Return the application."""
        return self.objects("streamsapp", "orders")[0]

    def conditions(self) -> dict[str, str]:
        """Return the conditions that tools look at, with their status."""
        found = self.app().get("status", {}).get("conditions", [])
        return {item["type"]: item["status"] for item in found if item["type"] in {"Ready", "Reconciling", "Stalled"}}

    def message(self) -> str:
        """Return the message of `Stalled`."""
        found = self.app().get("status", {}).get("conditions", [])
        return next((item["message"] for item in found if item["type"] == "Stalled"), "")

    def wait(self, what: str, holds: Any, operator: OperatorProcess) -> None:
        """Wait until a condition holds; if it never does, show the application and the operator's log."""
        wait_until(holds, lambda: f"{what}. {json.dumps(self.app())}\n{operator.log[-3000:]}", PATIENCE_S)

    def forbid(self, group: str, resource: str, tried: dict[str, Any] | None, *, allowed: str = "false") -> str:
        """Let an admission policy refuse writes of a kind in the namespace, and return its name once it is effective.

        Args:
            group: The kind's API group.
            resource: The kind's plural name, with a subresource if there is one.
            tried: An object of the kind, which is tried until it is refused; None to only check the policy's status.
            allowed: A CEL expression for objects that are not refused.
        """
        name = f"no-{resource.replace('/', '-')}-{self.namespace}"
        rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [resource]}
        here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}}
        validation = {"expression": allowed, "message": f"{resource} are not for you"}
        spec = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}
        self.cluster.apply({**_POLICY, "metadata": {"name": name}, "spec": spec})
        bound = {"policyName": name, "validationActions": ["Deny"], "matchResources": here}
        self.cluster.apply({**_BINDING, "metadata": {"name": name}, "spec": bound})
        if tried is not None:
            wait_until(lambda: self._is_refused(tried), "the policy to be in force", PATIENCE_S)
        return name

    def allow(self, policy: str) -> None:
        """Remove a policy."""
        self.cluster.kubectl("delete", "validatingadmissionpolicybinding", policy)

    def _is_refused(self, tried: dict[str, Any]) -> bool:
        path = self.folder / "tried.json"
        path.write_text(json.dumps(tried))
        try:
            self.cluster.kubectl("create", "--dry-run=server", "-n", self.namespace, "-f", str(path))
        except ClusterError as error:
            return "not for you" in str(error)
        return False


@pytest.fixture(scope="module")
def world_in(api_server: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], World]]:
    """Create worlds in namespaces of a control plane with a simulated node: `world_in("budget")`."""
    kubelet = Kubelet(config.new_client_from_config(str(api_server.kubeconfig)))
    folder = tmp_path_factory.mktemp("refusals")
    yield lambda namespace: World(api_server, kubelet, folder, namespace)
    kubelet.close()


Served = tuple[OperatorProcess, Mapping[str, World]]


def operator_for(cluster: Cluster, folder: Path, *namespaces: str) -> OperatorProcess:
    """Start an operator that serves some namespaces, and has its Lease in the first of them."""
    settings = {"NAMESPACES": ",".join(namespaces), "POD_NAMESPACE": namespaces[0], "RESYNC_SECONDS": 2}
    return OperatorProcess(cluster.kubeconfig, folder / f"{namespaces[0]}.log", **settings)


@pytest.fixture(scope="module")
def served(world_in: Callable[[str], World]) -> Iterator[Served]:
    """Return an operator and the worlds that it serves, one for each test."""
    worlds = {name: world_in(name) for name in ("budget", "undrained", "quota")}
    first = worlds["budget"]
    with operator_for(first.cluster, first.folder, *worlds) as operator:
        yield operator, worlds


def flux_says(resource: dict[str, Any]) -> str:
    """Return the answer of Flux's library."""
    asked = json.dumps([resource])
    answer = subprocess.run([str(tools.path("kstatus"))], input=asked, capture_output=True, text=True, check=True)
    return str(json.loads(answer.stdout)[0]["status"])


def test_unseen_resource_is_in_progress(world_in: Callable[[str], World]) -> None:
    """Without an operator a new StreamsApp is in progress, not current, so tools keep waiting."""
    world = world_in("unseen")
    world.apply()
    assert world.app()["status"] == {"observedGeneration": -1}
    assert flux_says(world.app()) == "InProgress"


@pytest.mark.thorough
def test_refused_budget_blocks_neither_rolls_nor_scaling(served: Served) -> None:
    """An admission policy that refuses PodDisruptionBudgets is named; pods start, roll and scale without a budget."""
    operator, world = served[0], served[1]["budget"]
    policy = world.forbid("policy", "poddisruptionbudgets", BUDGET)
    told = {"Ready": "True", "Reconciling": "False", "Stalled": "True"}
    world.apply(replicas=2)
    world.wait("two pods", lambda: world.conditions() == told, operator)
    assert "PodDisruptionBudget" in world.message()
    assert "poddisruptionbudgets are not for you" in world.message()
    world.apply(replicas=3, image="registry.example/app:2")

    def is_rolled() -> bool:
        pods = world.objects("pods", "-lapp.kubernetes.io/component=runtime")
        images = [pod["spec"]["containers"][0]["image"] for pod in pods]
        return images == ["registry.example/app:2"] * 3 and world.conditions() == told

    world.wait("three pods of the new image", is_rolled, operator)
    app = world.app()
    assert app["status"]["observedGeneration"] == app["metadata"]["generation"]
    assert flux_says(app) == "Failed"
    world.allow(policy)
    world.wait("all to be well", lambda: world.app()["status"]["lifecycleState"] == "Running", operator)
    assert len(world.objects("poddisruptionbudgets")) == 1
    world.wait("Flux to see it", lambda: flux_says(world.app()) == "Current", operator)


def test_refused_drain_annotation_does_not_stop_scale_in(served: Served) -> None:
    """Pods that cannot be annotated are removed after their grace period without draining, and the status says why."""
    operator, world = served[0], served[1]["undrained"]
    allowed = f"!has(object.metadata.annotations) || !('{DRAIN_ANNOTATION}' in object.metadata.annotations)"
    world.forbid("", "pods", POD_THAT_DRAINS, allowed=allowed)
    world.apply(replicas=2, drain={"terminationGracePeriodSeconds": 5})
    world.wait("two pods", lambda: world.conditions().get("Ready") == "True", operator)
    world.apply(replicas=1, drain={"terminationGracePeriodSeconds": 5})
    world.wait("one pod", lambda: world.app()["status"].get("replicas") == 1, operator)
    told = [item for item in world.objects("events") if item["reason"] == "RefusedByApiServer"]
    assert "Annotate Pod orders-1 so that it drains" in told[0]["message"]
    assert "pods are not for you" in told[0]["message"]
    world.wait("all to be well", lambda: world.app()["status"]["lifecycleState"] == "Running", operator)
    assert world.conditions() == {"Ready": "True", "Reconciling": "False", "Stalled": "False"}


def test_exceeded_quota_is_reported_as_failure(served: Served) -> None:
    """A quota forbids the StatefulSet: this generation's status says so, tools see a failure, metrics name the app."""
    operator, world = served[0], served[1]["quota"]
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": world.namespace}}
    world.cluster.apply({**quota, "spec": {"hard": {"count/statefulsets.apps": "0"}}})
    wait_until(lambda: world.objects("resourcequota", "none")[0].get("status", {}).get("hard"), "the quota", PATIENCE_S)
    world.apply()
    world.wait("the refusal to be told", lambda: "exceeded quota" in world.message(), operator)
    app = world.app()
    assert app["status"]["observedGeneration"] == app["metadata"]["generation"]
    assert app["status"]["lifecycleState"] == "Blocked"
    assert world.conditions() == {"Ready": "False", "Reconciling": "False", "Stalled": "True"}
    assert flux_says(app) == "Failed"
    assert "StatefulSet" in world.message()
    sample = (
        'millrace_app_condition{name="orders",namespace="quota",reason="RefusedByApiServer",status="True",'
        'type="Stalled"}'
    )
    assert operator.metric(sample) == 1
    world.cluster.kubectl("delete", "resourcequota", "none", "-n", world.namespace)
    world.apply(replicas=2)
    world.wait("two pods", lambda: world.conditions().get("Ready") == "True", operator)
    assert operator.metric(sample) == 0


@pytest.mark.thorough
def test_refused_status_is_logged_and_counted(world_in: Callable[[str], World]) -> None:
    """If a status cannot be written, it cannot report that itself."""
    world = world_in("unwritten")
    world.forbid("streams.millrace.dev", "streamsapps/status", None)
    world.apply()
    app = world.app()

    def is_refused() -> bool:
        body = json.dumps({"status": {"replicas": 9}})
        patch = (
            "patch",
            "streamsapp",
            "orders",
            "-n",
            world.namespace,
            "--subresource=status",
            "--type=merge",
            "-p",
            body,
        )
        try:
            world.cluster.kubectl(*patch, "--dry-run=server")
        except ClusterError as error:
            return "not for you" in str(error)
        return False

    wait_until(is_refused, "the policy to be in force", PATIENCE_S)
    with world.operator() as operator:
        world.wait("the log", lambda: "the status could not be written" in operator.log, operator)
        assert "streamsapps/status are not for you" in operator.log
        lines = operator.get("/metrics").splitlines()
        refused = [line for line in lines if 'resource="streamsapps/status"' in line and 'code="4' in line]
        assert sum(float(line.rpartition(" ")[2]) for line in refused) >= 1
    assert world.app()["status"] == app["status"]
