"""The operator as a process against a real API server, with simulated pods and brokers.

A bug in its own code delays nobody else, nothing is written at rest, and it continues after the API server was down. With real
pods, `test_operator_faults.py` and `test_operator_replicas.py` let it die and be replaced; in `test_many_applications.py` it
serves fifty applications, including broken ones.
"""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes import config
from tests.waiting import wait_until

from e2e.cluster import Cluster, reading
from e2e.operator_process import OperatorProcess
from e2e.simulated_pods import Kubelet, manifest
from e2e.support.application import PATIENCE_S
from e2e.support.audit import strangers, writes_of

_WRITES = {"APPLY", "CREATE", "DELETE", "DELETECOLLECTION", "PATCH", "POST", "PUT", "UPDATE"}
_OURS = {
    "streamsapps", "streamsresets", "streamsbackfills", "statefulsets", "configmaps", "services", "serviceaccounts", "jobs",
    "poddisruptionbudgets", "networkpolicies",
}  # fmt: skip
_WELL = {"ok": True, "reasons": []}
_WRITE_LINE = re.compile(r"DEBUG \S+requests: (apply|create|patch|delete|update) /(?!apis/coordination)")
"""What is logged before a write is sent."""


class World:
    """A control plane with a simulated node."""

    def __init__(self, cluster: Cluster, kubelet: Kubelet, folder: Path) -> None:
        self.cluster = cluster
        self.kubelet = kubelet
        self.folder = folder

    def namespace(self, name: str) -> str:
        """Create a namespace."""
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.kubelet.add(name)
        return name

    def operator(
        self, name: str, namespace: str, kubeconfig: Path | None = None, **settings: str | int
    ) -> OperatorProcess:
        """Start an operator that serves one namespace, as administrator or with a kubeconfig."""
        log = self.folder / f"{name}.log"
        settings = {"NAMESPACES": namespace, "POD_NAMESPACE": namespace, **settings}
        return OperatorProcess(kubeconfig or self.cluster.kubeconfig, log, **settings)

    def kubeconfig_of(self, pod: str, namespace: str) -> Path:
        """Return the kubeconfig of an administrator's pod, so that the audit log names it."""
        space, account = f"--namespace={namespace}", f"--serviceaccount={namespace}:default"
        wait_until(lambda: self.get(namespace, "serviceaccount", "default"), "the account", PATIENCE_S)
        spec = {"containers": [{"name": "c", "image": "registry.example/operator:1"}]}
        self.cluster.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": namespace}, "spec": spec}
        )
        self.cluster.kubectl("create", "clusterrolebinding", pod, "--clusterrole=cluster-admin", account)
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}")
        token = self.cluster.kubectl("create", "token", "default", space, *bound, "--duration=2h").strip()
        content = yaml.safe_load(self.cluster.kubeconfig.read_text())
        content["users"] = [{"name": user["name"], "user": {"token": token}} for user in content["users"]]
        file = self.folder / f"{pod}.kubeconfig"
        file.write_text(yaml.safe_dump(content))
        return file

    def apply(self, namespace: str, *names: str, **spec: object) -> None:
        """Apply StreamsApps."""
        apps = [manifest(name, **spec) for name in names]
        self.cluster.apply(*({**app, "metadata": {**app["metadata"], "namespace": namespace}} for app in apps))

    def get(self, namespace: str, kind: str, *names: str) -> list[dict]:
        """Return objects."""
        if not names:
            return reading.find(self.cluster.client, kind, namespace)
        found = [reading.get(self.cluster.client, kind, namespace, name) for name in names]
        return [item for item in found if item is not None]

    def ready(self, namespace: str) -> set[str]:
        """Return the names of the apps that are ready with their latest spec."""
        return {
            app["metadata"]["name"]
            for app in self.get(namespace, "streamsapps")
            if any(
                item["type"] == "Ready" and item["status"] == "True"
                for item in app.get("status", {}).get("conditions", [])
            )
            and app["status"]["observedGeneration"] == app["metadata"]["generation"]
            and app["status"]["readyReplicas"] == app["spec"]["replicas"]
        }

    def wait_ready(self, namespace: str, *names: str) -> None:
        """Wait until exactly these apps are ready."""
        wait_until(lambda: self.ready(namespace) == set(names), f"{len(names)} apps to be ready", PATIENCE_S)

    def images(self, namespace: str) -> list[str]:
        """Return the images of the pods that run applications."""
        runtime = {"labelSelector": "app.kubernetes.io/component=runtime"}
        pods = reading.find(self.cluster.client, "pods", namespace, **runtime)
        return [pod["spec"]["containers"][0]["image"] for pod in pods]

    def condition(self, namespace: str, name: str, kind: str) -> dict[str, str]:
        """Return a condition of an app; empty if it has none of that type."""
        conditions = self.get(namespace, "streamsapp", name)[0].get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == kind), {})

    def requests(self) -> dict[str, float]:
        """Return how many writes of the operator's kind the API server has received, by resource."""
        found: dict[str, float] = {}
        for line in self.cluster.kubectl("get", "--raw", "/metrics").splitlines():
            match = re.match(r"apiserver_request_total\{(.*)\} (\S+)$", line)
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[1])) if match else {}
            if labels.get("verb") in _WRITES and labels.get("resource") in _OURS:
                found[labels["resource"]] = found.get(labels["resource"], 0) + float(match[2])
        return found


@pytest.fixture(scope="module")
def world(own_api_server: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Return a control plane for these tests alone, which restart it and count its requests, and a simulated node."""
    kubelet = Kubelet(config.new_client_from_config(str(own_api_server.kubeconfig)))
    yield World(own_api_server, kubelet, tmp_path_factory.mktemp("process"))
    kubelet.close()


def test_apps_run_and_then_nothing_is_written(world):
    """Applications start running; after that neither time, the same manifest again, nor a new operator causes a write.

    The new one waits for the Lease meanwhile, alive and ready. It gets it when the other one is told to end, and gives it up.
    """
    space = world.namespace("rest")
    settings = {"RESYNC_SECONDS": 1, "RELIST_SECONDS": 10, "LEASE_SECONDS": 600}
    with world.operator("rest", space, **settings) as operator:
        world.apply(space, "one", "two", replicas=2)
        world.wait_ready(space, "one", "two")
        passes = operator.metric("millrace_operator_reconcile_seconds_count")
        settled = wait_until(lambda: _unchanged(world, operator), "the last writes", PATIENCE_S)
        world.apply(space, "one", "two", replicas=2)
        wait_until(
            lambda: operator.metric("millrace_operator_reconcile_seconds_count") > passes + 20,
            "twenty more passes",
            PATIENCE_S,
        )
        assert not _differing(settled, world.requests(), but={"streamsapps": 2})
        told = len(_writes(operator))
        wait_until(
            lambda: operator.metric("millrace_operator_reconcile_seconds_count") > passes + 25,
            "more passes",
            PATIENCE_S,
        )
        assert len(_writes(operator)) == told
        assert (json.loads(operator.get("/healthz")), json.loads(operator.get("/readyz"))["ok"]) == (_WELL, True)
        with world.operator("waiter", space, RESYNC_SECONDS=1) as waiter:
            wait_until(lambda: json.loads(waiter.get("/readyz"))["ok"], "readiness", PATIENCE_S)
            assert json.loads(waiter.get("/healthz")) == _WELL
            assert (operator.metric("millrace_operator_leader"), waiter.metric("millrace_operator_leader")) == (
                1.0,
                0.0,
            )
            looks = 'millrace_operator_api_requests_total{code="200",resource="leases",verb="get"}'
            wait_until(lambda: waiter.metric(looks) >= 1, "its look at the Lease", PATIENCE_S)
            operator.signal(signal.SIGTERM)
            assert operator.end() == 0
            [lease] = world.get(space, "lease", "millrace-operator")
            assert lease["spec"].get("holderIdentity") != "rest", "a clean end gives the Lease up"
            waiter.wait_until_it_leads()
            wait_until(lambda: waiter.metric("millrace_operator_reconcile_seconds_count") > 6, "passes", PATIENCE_S)
            assert not _differing(settled, world.requests(), but={"streamsapps": 2})
            assert _writes(waiter) == []


def _unchanged(world: World, operator: OperatorProcess) -> dict[str, float] | None:
    """Return the counts of writes once four more passes leave them unchanged."""
    before, passes = world.requests(), operator.metric("millrace_operator_reconcile_seconds_count")
    wait_until(lambda: operator.metric("millrace_operator_reconcile_seconds_count") > passes + 4, "passes", PATIENCE_S)
    return before if world.requests() == before else None


def _differing(before: dict[str, float], after: dict[str, float], but: dict[str, int]) -> dict[str, float]:
    """Return how much counts have grown, apart from the test's own writes."""
    grown = {name: count - before.get(name, 0) - but.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in grown.items() if count}


@pytest.mark.thorough
def test_broken_resource_does_not_block_others(world):
    """Among fifty good applications, one whose reconciliation fails reports it in `Stalled`; the others run, and can change."""
    space = world.namespace("poison")
    good = [f"good-{number}" for number in range(50)]
    with world.operator("poison", space, SIMULATED_BUG_IN="broken") as operator:
        world.apply(space, *good[:25], "broken", *good[25:])
        world.wait_ready(space, *good)
        wait_until(lambda: world.condition(space, "broken", "Stalled"), "the fault to be told", PATIENCE_S)
        stalled = world.condition(space, "broken", "Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "OperatorError")
        assert "ZeroDivisionError: simulated bug" in stalled["message"]
        world.apply(space, good[3], replicas=2)
        world.wait_ready(space, *good)
        failures = operator.metric('millrace_operator_reconcile_seconds_count{result="stalled"}')
        assert 1 <= failures < 30, "it is tried again, ever more seldom"
        assert json.loads(operator.get("/healthz"))["ok"]


def _writes(operator: OperatorProcess) -> list[str]:
    """Return the writes that an operator has sent, except for its Lease."""
    return _WRITE_LINE.findall(operator.log)


def test_only_the_holder_of_the_lease_writes(world):
    """One that is killed, and one that stands still during an upgrade, are replaced by another, and write nothing more.

    The audit log proves it: every write came from the last pod that had written the Lease, and was answered before another pod
    wrote the Lease.
    """
    space, names = world.namespace("pair"), ("first", "second", "third")
    credentials = {name: world.kubeconfig_of(name, space) for name in names}

    def operator(name: str) -> OperatorProcess:
        return world.operator(name, space, credentials[name], RESYNC_SECONDS=1, LEASE_SECONDS=15)

    def writers() -> set[str]:
        return {write.pod for write in writes_of(world.cluster, space, "default") if not write.of_lease}

    def upgrade(version: int) -> None:
        world.apply(space, "one", replicas=2, image=f"registry.example/app:{version}")

    def wait_upgraded(version: int) -> None:
        wait_until(lambda: world.images(space) == [f"registry.example/app:{version}"] * 2, "the upgrade", PATIENCE_S)
        world.wait_ready(space, "one")

    with operator("first") as first:
        first.wait_until_it_leads()
        with operator("second") as second:
            upgrade(1)
            wait_upgraded(1)
            upgrade(2)
            first.signal(signal.SIGKILL)
            second.wait_until_it_leads()
            wait_upgraded(2)
            with operator("third") as third:
                second.signal(signal.SIGSTOP)
                upgrade(3)
                third.wait_until_it_leads()
                wait_until(lambda: "third" in writers(), "its first write", PATIENCE_S)
                second.signal(signal.SIGCONT)
                assert second.end() == 1
                assert "the lease is lost" in second.log
                wait_upgraded(3)
    assert writers() == set(names)
    assert strangers(writes_of(world.cluster, space, "default")) == []


def test_watches_continue_after_an_api_server_restart(world):
    """Changes made while the API server was down are found, including deletions, which no watch reports."""
    space = world.namespace("restart")
    with world.operator("restart", space, RELIST_SECONDS=10, LEASE_SECONDS=120) as operator:
        world.apply(space, "one")
        world.wait_ready(space, "one")
        operator.signal(signal.SIGSTOP)
        world.cluster.kubectl("delete", "service", "one", "-n", space)
        world.apply(space, "one", replicas=3)
        with world.kubelet.silent():
            world.cluster.restart_api_server()
        operator.signal(signal.SIGCONT)
        world.wait_ready(space, "one")
        wait_until(
            lambda: world.get(space, "service", "one"), lambda: f"the Service. {operator.log[-3000:]}", PATIENCE_S
        )
        world.apply(space, "one", "two", replicas=2)
        world.wait_ready(space, "one", "two")
