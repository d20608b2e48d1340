"""A `StreamsBackfill` in a cluster, whose Spark pods are real, and what an application has in its changelogs."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.manifest import wrong
from tests.reading import read_to_end
from tests.waiting import wait_until

from e2e.spark.installation import DRIVER_ACCOUNT
from e2e.support.application import Application, Manifest, merged
from millrace.manifest import StreamsApp, StreamsBackfill
from millrace_operator.backfills.spark_application import Attempt
from millrace_operator.model import AppRevision

SECONDS = 900.0
"""How long a backfill may take on a busy machine with two cores."""
_READ_TIMEOUT_S = 120.0
SMALL = {"memory": "1Gi"}
REQUESTS = {
    "spark.kubernetes.driver.request.cores": "50m",
    "spark.kubernetes.executor.request.cores": "50m",
}


class Backfill:
    """One `StreamsBackfill` of an application.

    Args:
        app: The application.
        image: The image of its Spark pods.
        spec: Further fields of its spec.
    """

    def __init__(self, app: Application, image: str, **spec: Any) -> None:
        self.app = app
        self.name = f"{app.name}-{secrets.token_hex(2)}"
        base = {
            "appRef": {"name": app.name},
            "image": image,
            "driver": {**SMALL, "serviceAccountName": DRIVER_ACCOUNT},
            "executors": SMALL,
            "sparkConf": REQUESTS,
        }
        manifest = {
            "apiVersion": "streams.millrace.dev/v1alpha1",
            "kind": "StreamsBackfill",
            "metadata": {"name": self.name, "namespace": app.namespace},
            "spec": merged(base, spec),
        }
        app.kubectl("create", "--filename", "-", stdin=json.dumps(manifest))

    def resource(self) -> Manifest | None:
        """Return the resource; None if it is gone."""
        return self.app.object("streamsbackfill", self.name)

    def status(self) -> dict[str, Any]:
        """Return its status."""
        return dict((self.resource() or {}).get("status") or {})

    @property
    def phase(self) -> str | None:
        """Its phase."""
        return self.status().get("phase")

    def wait(self, what: str, condition: Callable[[], object], timeout_s: float = SECONDS) -> None:
        """Wait until a condition holds; if it never does, show what there is to see."""
        wait_until(condition, lambda: f"{what}:\n{self.story()}", timeout_s, poll_s=0.2)

    def wait_for(self, *phases: str) -> dict[str, Any]:
        """Wait for one of the phases, and return the status."""
        self.wait(f"phase {' or '.join(phases)}", lambda: self.phase in phases)
        return self.status()

    def wait_until_it_ends(self) -> dict[str, Any]:
        """Wait until it is over, and return the status."""
        return self.wait_for("Succeeded", "Failed", "Refused")

    def pods(self, role: str) -> list[Manifest]:
        """Return its pods that run, of all attempts: `driver` or `executor`."""
        selector = f"streams.millrace.dev/backfill={self.name},spark-role={role}"
        found = self.app.objects("pods", selector)
        return [pod for pod in found if pod["status"]["phase"] == "Running"]

    def wait_for_pod(self, role: str) -> Manifest:
        """Wait until a pod runs, and return it."""
        self.wait(f"a running {role}", lambda: self.pods(role))
        return self.pods(role)[0]

    def wait_until_it_says(self, state: str) -> None:
        """Wait until a running driver reports a state, which is before the status has it; one that ends is replaced."""
        self.wait(f"a report of {state}", lambda: any(self._says(pod, state) for pod in self.pods("driver")))

    def _says(self, pod: Manifest, state: str) -> bool:
        name = pod["metadata"]["name"]
        command = [*self.app.cluster.kubectl_command, "logs", "--follow", name, f"--namespace={self.app.namespace}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found = any(line.startswith(f'{{"backfill": {{"state": "{state}"') for line in process.stdout)
            process.kill()
        return found

    def kill(self, role: str) -> str:
        """Kill the process of a pod of this role, as SIGKILL does, and return the pod's name."""
        pod = self.wait_for_pod(role)
        [container] = pod["status"]["containerStatuses"]
        node = self.app.cluster.node
        assert node is not None
        node.kill_container(container["containerID"])
        return str(pod["metadata"]["name"])

    def spark_applications(self) -> list[Manifest]:
        """Return its SparkApplications."""
        selector = f"streams.millrace.dev/backfill={self.name}"
        return self.app.objects("sparkapplication", selector)

    def delete(self) -> None:
        """Delete it without waiting."""
        self.app.kubectl("delete", "streamsbackfill", self.name, "--wait=false")

    def story(self) -> str:
        """Return what a person would look at if something is stuck."""
        parts = [
            self.app.kubectl(
                "get", "streamsbackfills,sparkapplications.sparkoperator.k8s.io", "--output=yaml", check=False
            ),
            self.app.story(),
        ]
        for pod in self.app.objects("pods", f"streams.millrace.dev/backfill={self.name}"):
            name = pod["metadata"]["name"]
            parts.append(f"--- log of {name}\n{self.app.kubectl('logs', name, '--tail=60', check=False)}")
        return "\n".join(parts)


Record = tuple[bytes, int]


def stored(bootstrap_servers: str, topic: str) -> Mapping[tuple[int, bytes], Record]:
    """Return what is restored from a changelog: partition and key → value and timestamp. Only committed records count."""
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "nobody",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    found: dict[tuple[int, bytes], Record] = {}
    try:
        numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        starts = [TopicPartition(topic, number, 0) for number in numbers]
        for message in read_to_end(consumer, admin, starts, _READ_TIMEOUT_S):
            if message.value() is None:
                found.pop((message.partition(), message.key()), None)
            else:
                found[message.partition(), message.key()] = (message.value(), message.timestamp()[1])
    finally:
        consumer.close()
    return found


def example_attempt(good: str, namespace: str) -> Attempt:
    """Return an attempt with the application and the backfill of an example."""
    examples = wrong.good(good)
    app = StreamsApp.model_validate(examples["StreamsApp"])
    backfill = StreamsBackfill.model_validate(examples["StreamsBackfill"])
    revision = AppRevision(namespace, app.metadata.name, "0123456789", app.spec)
    return Attempt(
        name=backfill.metadata.name,
        uid="0f0f0f0f-0000-4000-8000-000000000000",
        number=1,
        spec=backfill.spec,
        app=revision,
        manifest=examples["StreamsApp"]["spec"],
        plan_hash="abc",
    )
