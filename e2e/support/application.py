"""A `StreamsApp` in a cluster, used like its user does: with manifests, kubectl, and its status."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tests.waiting import wait_until

from e2e.cluster import Cluster, ClusterError, reading

Manifest = dict[str, Any]

PATIENCE_S = 600.0
"""How long anything may take: ten times as long as the longest wait, a roll of three pods, takes on an idle machine."""
KUBECTL_PATIENCE = f"--timeout={PATIENCE_S:.0f}s"
"""The same, for commands that wait."""


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping merged recursively with another; None removes a key."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


class Application:
    """One `StreamsApp`.

    Args:
        cluster: The cluster to run it in.
        namespace: Its namespace.
        name: Its name.
        spec: Its spec, which `apply` may change.
    """

    def __init__(self, cluster: Cluster, namespace: str, name: str, spec: Mapping[str, Any]) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.name = name
        self.spec = copy.deepcopy(dict(spec))

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True, timeout_s: float = 660.0) -> str:
        """Run kubectl in the app's namespace."""
        command = ("--namespace", self.namespace, *arguments)
        return self.cluster.kubectl(*command, stdin=stdin, check=check, timeout_s=timeout_s)

    def apply(self, **changes: Any) -> None:
        """Apply the manifest with changes, which are kept: `apply(upgrade={"rollback": {"enabled": False}})`."""
        self.spec = merged(self.spec, changes)
        manifest = {
            "apiVersion": "streams.millrace.dev/v1alpha1",
            "kind": "StreamsApp",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": self.spec,
        }
        self.kubectl("apply", "--filename", "-", stdin=json.dumps(manifest))

    def object(self, kind: str, name: str | None = None) -> Manifest | None:
        """Return an object in the namespace, or None."""
        return reading.get(self.cluster.client, kind, self.namespace, name or self.name)

    def objects(self, kind: str, selector: str | None = None) -> list[Manifest]:
        """Return the app's objects of a kind by name."""
        chosen = selector or f"streams.millrace.dev/app={self.name}"
        items = reading.find(self.cluster.client, kind, self.namespace, labelSelector=chosen)
        return sorted(items, key=lambda item: item["metadata"]["name"])

    def pods(self) -> list[Manifest]:
        """Return the pods that run the topology and are not terminating."""
        found = self.objects("pods", f"streams.millrace.dev/app={self.name},app.kubernetes.io/component=runtime")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def instance(self, pod: str) -> dict[str, Any]:
        """Return an instance's status."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:8080/proxy/status"
        return dict(json.loads(reading.get_raw(self.cluster.client, path)))

    def resource(self) -> Manifest:
        """Return the current resource."""
        found = self.object("streamsapp")
        assert found is not None, f"{self.name} is gone"
        return found

    def status(self) -> dict[str, Any]:
        """Return the status."""
        return self.resource().get("status", {})

    def condition(self, kind: str) -> dict[str, Any]:
        """Return a condition; empty if there is none."""
        return next((item for item in self.status().get("conditions", ()) if item["type"] == kind), {})

    def events(self) -> list[Manifest]:
        """Return the Events about the app, oldest first."""
        selector = f"involvedObject.kind=StreamsApp,involvedObject.name={self.name}"
        return reading.find(self.cluster.client, "events", self.namespace, fieldSelector=selector)

    def wait(self, what: str, condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        """Wait until a condition holds; if it never does, show the app's state. A check that fails is repeated."""
        problem = ""

        def holds() -> object:
            nonlocal problem
            try:
                problem = ""
                return condition()
            except (ClusterError, subprocess.TimeoutExpired) as error:
                problem = f" ({error})"
                return False

        wait_until(holds, lambda: f"{what}{problem}:\n{self.story()}", timeout_s, poll_s=0.3)

    def wait_for(
        self, kind: str, status: str = "True", reason: str | None = None, timeout_s: float = PATIENCE_S
    ) -> None:
        """Wait for a condition about the newest manifest."""

        def holds() -> bool:
            resource = self.resource()
            state = resource.get("status", {})
            if state.get("observedGeneration") != resource["metadata"]["generation"]:
                return False
            return any(
                item["type"] == kind and item["status"] == status and reason in {None, item["reason"]}
                for item in state.get("conditions", ())
            )

        self.wait(f"{kind}={status} {reason or ''}", holds, timeout_s)

    def wait_ready(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all replicas run the newest manifest and nothing is changing."""

        def holds() -> bool:
            resource = self.resource()
            state = resource.get("status", {})
            conditions = {item["type"]: item["status"] for item in state.get("conditions", ())}
            return (
                state.get("observedGeneration") == resource["metadata"]["generation"]
                and conditions.get("Ready") == "True"
                and conditions.get("Reconciling") == "False"
                and state.get("readyReplicas") == self.spec.get("replicas", 1)
            )

        self.wait("ready", holds, timeout_s)

    def reset(self, name: str, **spec: Any) -> Callable[[], dict[str, Any]]:
        """Create a StreamsReset for the app, and return a function that reads its status: `reset("again", dryRun=True)`."""
        manifest = {
            "apiVersion": "streams.millrace.dev/v1alpha1",
            "kind": "StreamsReset",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"appRef": {"name": self.name}, **spec},
        }
        self.kubectl("create", "--filename", "-", stdin=json.dumps(manifest))

        def status() -> dict[str, Any]:
            found = self.object("streamsreset", name)
            assert found is not None, f"StreamsReset {name} is gone"
            return found.get("status", {})

        return status

    def ask_to_delete(self) -> None:
        """Delete the resource without waiting."""
        self.kubectl("delete", "streamsapp", self.name, "--ignore-not-found", "--wait=false")

    def delete(self, timeout_s: float = PATIENCE_S) -> None:
        """Delete the resource and wait until it is gone."""
        self.ask_to_delete()
        self.wait("deleted", lambda: self.object("streamsapp") is None, timeout_s)

    def explain(self) -> str:
        """Return what `millrace explain` prints."""
        return self._millrace("explain")

    def top(self) -> dict[str, Any]:
        """Return what `millrace top --json` prints."""
        found: dict[str, Any] = json.loads(self._millrace("top", "--json"))
        return found

    def _millrace(self, *command: str) -> str:
        command = (sys.executable, "-m", "millrace.cli", *command, self.name, "--namespace", self.namespace)
        environment = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig), "COLUMNS": "500"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    def story(self) -> str:
        """Return what a person would look at if something is stuck."""
        parts = [
            self.kubectl("get", "streamsapp", self.name, "--output=yaml", "--show-managed-fields=false", check=False),
            self.kubectl("get", "statefulsets,pods,jobs,pvc,configmaps", "--output=wide", check=False),
            self.kubectl("get", "events", "--sort-by=.lastTimestamp", check=False)[-4000:],
        ]
        for pod in self.objects("pods"):
            name = pod["metadata"]["name"]
            parts.append(f"--- log of {name}\n{self.kubectl('logs', name, '--tail=30', check=False)}")
        return "\n".join(parts)
