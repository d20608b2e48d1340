"""A reset against a real API server and a real Kafka: everything is deleted together, once, whatever happens to the operator.

The application is suspended, so there are no pods, and the cluster needs no node. The operator runs on this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.operator.kafka.support import count_plan
from tests.waiting import wait_until

from e2e.cluster import Cluster
from millrace.dev.kafka import EmbeddedKafka
from millrace.kafka.admin import all_topic_partitions
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin
from millrace.manifest import StreamsApp
from millrace.records import TopicPartition
from millrace_operator.children.config_maps import plan_config_map
from millrace_operator.children.naming import labels
from millrace_operator.kafka.client_config import Credentials, client_config
from millrace_operator.kafka.clusters import KafkaClusters
from millrace_operator.model import AppRevision, ProvisionTopics
from millrace_operator.reconcile.revisions import revision_of

CRDS = Path(__file__).parents[1] / "crds"
_ROOT = Path(__file__).parents[1]
NAMESPACE = f"reset-{secrets.token_hex(3)}"
API_VERSION = "streams.millrace.dev/v1alpha1"


@pytest.fixture(scope="module")
def api(api_server: Cluster) -> Cluster:
    """Return an API server with the CRDs, and a namespace for these tests."""
    api_server.kubectl("apply", "--server-side", "--kustomize", str(CRDS))
    api_server.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
    api_server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    return api_server


@pytest.fixture(scope="module")
def brokers() -> Iterator[EmbeddedKafka]:
    """Return a Kafka for an operator on this machine."""
    with EmbeddedKafka() as kafka:
        yield kafka


@contextlib.contextmanager
def running_operator(cluster: Cluster, log: Path, *, crashing: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Run the operator as administrator until it ends or is stopped."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
    environment |= {
        "KUBECONFIG": str(cluster.kubeconfig),
        "MILLRACE_OPERATOR_METRICS_PORT": "0",
        "MILLRACE_OPERATOR_NAMESPACES": NAMESPACE,
        "MILLRACE_OPERATOR_POD_NAMESPACE": NAMESPACE,
        "MILLRACE_OPERATOR_LEASE_SECONDS": "3",
        "MILLRACE_OPERATOR_POD_NAME": f"operator-{secrets.token_hex(4)}",
    }
    module = "e2e.crashing_operator" if crashing else "millrace_operator"
    if crashing:
        environment["SIMULATED_CRASH_AFTER"] = "1"
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, "-m", module], cwd=_ROOT, env=environment, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


@dataclass
class Application:
    """A suspended application that has run: with topics, offsets, volumes, and an operator that remembers them."""

    cluster: Cluster
    kafka: EmbeddedKafka
    name: str = field(default_factory=lambda: f"words-{secrets.token_hex(3)}")

    @property
    def input(self) -> str:
        """The input topic."""
        return f"{self.name}-in"

    @property
    def topics(self) -> set[str]:
        """The internal topics."""
        return {f"{self.name}-c-repartition", f"{self.name}-c-changelog"}

    @property
    def claims(self) -> list[str]:
        """The claims of two replicas."""
        return [f"state-{self.name}-{index}" for index in range(2)]

    def manifest(self, state: str = "suspended") -> dict[str, Any]:
        """Return the StreamsApp."""
        return {
            "apiVersion": API_VERSION,
            "kind": "StreamsApp",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {
                "applicationId": self.name,
                "image": "registry.example/words:1",
                "app": {"entrypoint": "words:topology"},
                "state": state,
                "kafka": {"bootstrapServers": [self.kafka.bootstrap_servers]},
            },
        }

    def model(self) -> StreamsApp:
        """Return the same as a model."""
        return StreamsApp.model_validate(self.manifest())

    def group(self) -> GroupAdmin:
        """Return a client that administers the consumer group."""
        return GroupAdmin(ClientSettings(client_config(self.model(), Credentials()), "test"))

    def offsets(self) -> dict[int, int]:
        """Return the committed offsets of the input topic, by partition."""
        with self.group() as group:
            return {partition.partition: offset for partition, offset in group.committed().items()}

    def existing_topics(self) -> set[str]:
        """Return the existing internal topics."""
        return self.topics & all_topic_partitions(self.kafka.admin()).keys()

    def existing_claims(self) -> list[str]:
        """Return the existing claims."""
        found = self.get("pvc", f"--selector=streams.millrace.dev/app={self.name}")
        return sorted(item["metadata"]["name"] for item in found["items"])

    def create(self) -> None:
        """Create everything as a run would leave it."""
        self.kafka.create_topics(self.input, partitions=2)
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for number in range(20):
            producer.produce(self.input, b"word", partition=number % 2)
        assert producer.flush(30) == 0
        model, plan = self.model(), count_plan(self.input, self.name)
        kafka = KafkaClusters()
        kafka.act(model, Credentials(), ProvisionTopics(plan.to_json(), tuple(self.topics), 1))
        kafka.close()
        with self.group() as group:
            group.commit({TopicPartition(self.input, 0): 10, TopicPartition(self.input, 1): 7})
        revision = AppRevision(NAMESPACE, self.name, revision_of(model.spec), model.spec)
        self.cluster.apply(
            plan_config_map(revision, plan.to_json()),
            *(self._claim(name) for name in self.claims),
            self.manifest(),
        )

    def remember(self) -> None:
        """Wait until the operator has seen the topics, and make it believe that the application has run well."""
        wait_until(lambda: len(self.remembered()) == 2, f"status of {self.name}", 180)
        status = {"status": {"stableRevision": revision_of(self.model().spec)}}
        self.cluster.kubectl(
            "patch",
            "streamsapp",
            self.name,
            f"--namespace={NAMESPACE}",
            "--subresource=status",
            "--type=merge",
            f"--patch={json.dumps(status)}",
        )

    def remembered(self) -> set[str]:
        """Return the ids of topics that the operator remembers."""
        return {item["topicId"] for item in self.status().get("internalTopics", []) if item.get("topicId")}

    def status(self) -> dict[str, Any]:
        """Return the status of the StreamsApp."""
        return dict(self.get("streamsapp", self.name).get("status") or {})

    def true_conditions(self) -> set[str]:
        """Return the true conditions of the StreamsApp."""
        return {item["type"] for item in self.status().get("conditions", ()) if item["status"] == "True"}

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return what kubectl gets."""
        return dict(json.loads(self.cluster.kubectl("get", f"--namespace={NAMESPACE}", "--output=json", *arguments)))

    def events(self) -> list[str]:
        """Return the reasons of the events about this application and its resets."""
        return [
            item["reason"]
            for item in self.get("events")["items"]
            if item["involvedObject"]["name"].startswith(self.name)
        ]

    def reset(self, **spec: Any) -> Callable[[], dict[str, Any]]:
        """Create a reset and return a function that reads its status."""
        name = f"{self.name}-{secrets.token_hex(3)}"
        self.cluster.apply(
            {
                "apiVersion": API_VERSION,
                "kind": "StreamsReset",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"appRef": {"name": self.name}, **spec},
            }
        )
        return lambda: dict(self.get("streamsreset", name).get("status") or {})

    def _claim(self, name: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels(self.name)},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }


@pytest.fixture
def app(api: Cluster, brokers: EmbeddedKafka) -> Application:
    """Return an application that has run and is suspended."""
    app = Application(api, brokers)
    app.create()
    return app


def is_untouched(app: Application) -> bool:
    """Return whether an application still has everything."""
    return (
        app.existing_topics() == app.topics
        and app.existing_claims() == app.claims
        and app.offsets() == {0: 10, 1: 7}
        and app.status().get("stableRevision") is not None
    )


def is_reset(app: Application) -> bool:
    """Return whether nothing of an application's state is left, and nothing reports it as lost."""
    return (
        app.existing_topics() == set()
        and app.existing_claims() == []
        and app.offsets() == {0: 0, 1: 0}
        and app.status().get("stableRevision") is None
        and app.remembered() == set()
    )


def test_reset_runs_once_and_nothing_is_reported_lost(api: Cluster, app: Application, tmp_path: Path) -> None:
    """A dry run shows what a reset will do; afterwards nothing is reported lost, and the application starts from scratch."""
    with running_operator(api, tmp_path / "operator.log"):
        app.remember()
        dry = app.reset(dryRun=True)
        wait_until(lambda: dry().get("phase") == "Succeeded", "the dry run", 180)
        assert is_untouched(app)
        status = app.reset()
        wait_until(lambda: status().get("phase") == "Succeeded", "the reset", 180)
        done = status()
        assert done["result"]["deletedTopics"] == sorted(app.topics)
        assert done["result"] == done["plan"] == dry()["plan"]
        wait_until(lambda: is_reset(app), "all to be gone", 180)
        conditions = {item["type"]: item for item in app.status()["conditions"]}
        assert conditions["Stalled"]["status"] == "False"
        wait_until(lambda: {"ResetBegun", "ResetSucceeded"} <= set(app.events()), "the events", 180)
        assert "ChangelogLost" not in app.events()
    with running_operator(api, tmp_path / "operator.log"):
        api.apply(app.manifest("running"))
        wait_until(
            lambda: app.existing_topics() == app.topics and len(app.remembered()) == 2,
            "the topics to be made anew",
            180,
        )
        wait_until(lambda: {"TopicsReady", "TopologyCompatible"} <= app.true_conditions(), "it to be told", 180)
        api.apply(app.manifest("suspended"))
        wait_until(lambda: app.status().get("lifecycleState") == "Suspended", "it to be suspended again", 180)
    assert app.existing_topics() == app.topics
    assert status() == done


def test_running_application_is_not_reset(api: Cluster, app: Application, tmp_path: Path) -> None:
    """Nothing happens while `state` is running, and the status says what to do; the reset continues once it is suspended."""
    with running_operator(api, tmp_path / "operator.log"):
        app.remember()
        api.apply(app.manifest("running"))
        status = app.reset()
        wait_until(lambda: status().get("phase") == "Waiting", "the reset to wait", 180)
        assert "spec.state: suspended" in status()["message"]
        assert app.existing_topics() == app.topics
        assert app.offsets() == {0: 10, 1: 7}
        api.apply(app.manifest("suspended"))
        wait_until(lambda: status().get("phase") == "Succeeded", "the reset", 120)
        wait_until(lambda: is_reset(app), "all to be gone", 180)


def test_reset_without_application_fails(api: Cluster, brokers: EmbeddedKafka, tmp_path: Path) -> None:
    """There is nothing to wait for."""
    app = Application(api, brokers)
    with running_operator(api, tmp_path / "operator.log"):
        status = app.reset()
        wait_until(lambda: status().get("phase") == "Failed", "the reset to fail", 180)
        assert f"There is no StreamsApp {app.name}" in status()["message"]


def test_crashing_operator_completes_the_reset(api: Cluster, app: Application, tmp_path: Path) -> None:
    """Killed after every action, the operator still resets the application completely."""
    log = tmp_path / "operator.log"
    with running_operator(api, log):
        app.remember()
        wait_until(lambda: app.status().get("lifecycleState") == "Suspended", "the application to be at rest", 180)
    status = app.reset(toOffset="shift:-3")
    crashes = 0
    for _ in range(20):
        with running_operator(api, log, crashing=True) as process:

            def ended(process: subprocess.Popen[bytes] = process) -> bool:
                return process.poll() is not None or status().get("phase") == "Succeeded"

            wait_until(ended, "the operator to crash or the reset to end", 120)
        crashes += process.returncode == 137
        if status().get("phase") == "Succeeded":
            break
    assert status()["phase"] == "Succeeded"
    assert crashes >= 5
    assert app.existing_topics() == set()
    assert app.existing_claims() == []
    assert app.offsets() == {0: 7, 1: 4}
