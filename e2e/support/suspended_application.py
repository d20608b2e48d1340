"""An application with state but without pods, and an operator on this machine: for tests that need no node."""

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

from confluent_kafka import Producer
from tests.operator.kafka.support import count_plan
from tests.waiting import wait_until

from e2e.cluster import Cluster, ClusterError, reading
from e2e.support.application import PATIENCE_S
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

_ROOT = Path(__file__).parents[2]
API_VERSION = "streams.millrace.dev/v1alpha1"


@contextlib.contextmanager
def running_operator(
    cluster: Cluster, namespace: str, log: Path, *, crashing: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the operator as administrator until it ends or is stopped."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
    environment |= {
        "KUBECONFIG": str(cluster.kubeconfig),
        "MILLRACE_OPERATOR_METRICS_PORT": "0",
        "MILLRACE_OPERATOR_NAMESPACES": namespace,
        "MILLRACE_OPERATOR_POD_NAMESPACE": namespace,
        "MILLRACE_OPERATOR_LEASE_SECONDS": "60",
        "MILLRACE_OPERATOR_POD_NAME": "operator",  # always the same: after a crash it has the Lease already
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
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


@dataclass
class SuspendedApplication:
    """A suspended application that has run: with topics, offsets, volumes, and an operator that remembers them."""

    cluster: Cluster
    kafka: EmbeddedKafka
    namespace: str
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
            "metadata": {"name": self.name, "namespace": self.namespace},
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
        found = self.find("pvc", labelSelector=f"streams.millrace.dev/app={self.name}")
        return sorted(item["metadata"]["name"] for item in found)

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
        revision = AppRevision(self.namespace, self.name, revision_of(model.spec), model.spec)
        self.cluster.apply(
            plan_config_map(revision, plan.to_json()),
            *(self._claim(name) for name in self.claims),
            self.manifest(),
        )

    def remember(self) -> None:
        """Wait until the operator has seen the topics, and make it believe that the application has run well."""
        wait_until(lambda: len(self.remembered()) == 2, f"status of {self.name}", PATIENCE_S)
        status = {"status": {"stableRevision": revision_of(self.model().spec)}}
        self.cluster.kubectl(
            "patch",
            "streamsapp",
            self.name,
            f"--namespace={self.namespace}",
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

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object in its namespace."""
        found = reading.get(self.cluster.client, kind, self.namespace, name)
        if found is None:
            raise ClusterError(f"{kind} {name} is gone")
        return found

    def find(self, kind: str, **selectors: str) -> list[dict[str, Any]]:
        """Return objects in its namespace."""
        return reading.find(self.cluster.client, kind, self.namespace, **selectors)

    def events(self) -> list[str]:
        """Return the reasons of the events about this application and its resets."""
        return [item["reason"] for item in self.find("events") if item["involvedObject"]["name"].startswith(self.name)]

    def reset(self, **spec: Any) -> Callable[[], dict[str, Any]]:
        """Create a reset and return a function that reads its status."""
        name = f"{self.name}-{secrets.token_hex(3)}"
        self.cluster.apply(
            {
                "apiVersion": API_VERSION,
                "kind": "StreamsReset",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"appRef": {"name": self.name}, **spec},
            }
        )
        return lambda: dict(self.get("streamsreset", name).get("status") or {})

    def _claim(self, name: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels(self.name)},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }
