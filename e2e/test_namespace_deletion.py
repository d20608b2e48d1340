"""`kubectl delete namespace`: objects disappear in any order, while a StreamsApp waits for the operator.

The API server, its namespace controller and the brokers are real; pods are simulated. The operator has exactly the permissions
that the chart gives it.
"""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes import config
from tests.waiting import wait_until

from e2e.cluster import Cluster
from e2e.manifests import render
from e2e.operator_process import OperatorProcess
from e2e.simulated_pods import INPUT, Kubelet, manifest
from e2e.support.application import KUBECTL_PATIENCE, PATIENCE_S
from millrace.dev.kafka import EmbeddedKafka

OPERATOR = "platform"
_RIGHTS = ("ServiceAccount", "Role", "ValidatingAdmissionPolicy", "ClusterRole")
"""Prefixes of the kinds that are about the operator's permissions."""


class World:
    """A control plane with a simulated node, and brokers."""

    def __init__(
        self, cluster: Cluster, kubelet: Kubelet, kafka: EmbeddedKafka, folder: Path, *, namespaced: bool
    ) -> None:
        self.cluster, self.kubelet, self.kafka, self.folder = cluster, kubelet, kafka, folder
        self.namespaced = namespaced

    def namespace(self) -> str:
        """Create a namespace for one application."""
        name = f"app-{secrets.token_hex(3)}"
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.kubelet.add(name)
        return name

    def operator(self, namespace: str) -> OperatorProcess:
        """Install an operator's permissions, and start it with them."""
        name = f"millrace-operator-{secrets.token_hex(3)}"
        values = {"watchNamespaces": [namespace] if self.namespaced else [], "crds": {"install": False}}
        rendered = [item for item in yaml.safe_load_all(render(values, release=name, namespace=OPERATOR)) if item]
        self.cluster.apply(*(item for item in rendered if item["kind"].startswith(_RIGHTS)))
        token = self.cluster.kubectl("create", "token", name, "-n", OPERATOR).strip()
        found = yaml.safe_load(self.cluster.kubeconfig.read_text())
        found["users"][0]["user"] = {"token": token}
        kubeconfig = self.folder / f"{name}.kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(found))
        settings = {
            "NAMESPACES": namespace if self.namespaced else "",
            "POD_NAMESPACE": OPERATOR,
            "LEASE_NAME": name,
            "RESYNC_SECONDS": 1,
        }
        return OperatorProcess(kubeconfig, self.folder / f"{name}.log", **settings, SIMULATED_BROKERS="real")

    def is_gone(self, namespace: str) -> bool:
        """Return whether a namespace is gone."""
        return not self.cluster.kubectl("get", "namespace", namespace, "--ignore-not-found", "-o", "name").strip()

    def topics(self) -> set[str]:
        """Return the existing topics."""
        return set(self.kafka.admin().list_topics(timeout=60).topics)


@pytest.fixture(scope="module")
def brokers(kafka: EmbeddedKafka) -> EmbeddedKafka:
    """Return a Kafka with the input topic."""
    kafka.create_topics(INPUT, partitions=2)
    return kafka


@pytest.fixture(scope="module", params=["namespaced", pytest.param("cluster-wide", marks=pytest.mark.thorough)])
def world(
    request: pytest.FixtureRequest, brokers: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Return a control plane with a simulated node, of which the operator serves one namespace or all."""
    namespaced = request.param == "namespaced"
    cluster: Cluster = request.getfixturevalue("api_server" if namespaced else "own_api_server")
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR}})
    kubelet = Kubelet(config.new_client_from_config(str(cluster.kubeconfig)))
    yield World(cluster, kubelet, brokers, tmp_path_factory.mktemp("going"), namespaced=namespaced)
    kubelet.close()


@pytest.mark.parametrize("policy", ["Purge", pytest.param("Retain", marks=pytest.mark.thorough)])
def test_namespace_is_deleted_with_its_applications(world: World, policy: str) -> None:
    """The namespace is deleted; internal topics are deleted with Purge and kept with Retain."""
    name = world.namespace()
    changelog = f"{name}-counts-changelog"
    app = manifest(name, deletionPolicy=policy, kafka={"bootstrapServers": world.kafka.bootstrap_servers.split(",")})
    with world.operator(name) as operator:
        operator.wait_until_it_leads()
        world.cluster.apply({**app, "metadata": {**app["metadata"], "namespace": name}})
        wait = ("wait", "--for=condition=Ready", f"streamsapp/{name}", "-n", name, KUBECTL_PATIENCE)
        world.cluster.kubectl(*wait)
        assert changelog in world.topics()
        world.cluster.kubectl("delete", "namespace", name, "--wait=false")
        wait_until(lambda: world.is_gone(name), lambda: f"the namespace to go. {operator.log[-6000:]}", PATIENCE_S)
    assert (changelog in world.topics()) == (policy == "Retain")
