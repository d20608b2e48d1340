"""The operator against a real API server, with simulated pods and brokers: to test and measure only the operator.

`python -m e2e.simulated_pods` runs the operator as a separate process. Its brokers have every topic and a stable group, its pods
are healthy, and plan Jobs print the plan of a topology without state. For applications listed in `SIMULATED_BUG_IN`, names
separated by commas, reconciliation raises. With `SIMULATED_BROKERS=real` the manifest's brokers are used, and the topology has a
store.

`Kubelet` acts as the pods' node: it binds them, reports them as running, and releases those that are deleted. Others can share
the API server, since it serves some namespaces only.
"""

import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from millrace.instance_status import InputLag, StreamsStatus, TaskCounts
from millrace.plan.topology_plan import PlannedChangelogTopic, PlannedSubtopology, TopologyPlan
from millrace_operator.app.operator import Operator, api_client
from millrace_operator.app.settings import configure_logs, settings_from
from millrace_operator.children import naming
from millrace_operator.children.naming import DRAIN_ANNOTATION
from millrace_operator.cluster.instance_status_client import InstanceStatusClient
from millrace_operator.cluster.observe import PlanJobOutputs
from millrace_operator.model import (
    ConsumerGroup,
    ConsumerGroupMember,
    Decision,
    DesiredApp,
    KafkaState,
    Key,
    ObservedApp,
    Topic,
)
from millrace_operator.reconcile.reconciler import reconcile

INPUT = "input"
_PARTITIONS = 8


def plan(application_id: str) -> TopologyPlan:
    """Return the plan of a topology that forwards records."""
    return TopologyPlan(
        application_id=application_id, hash="0" * 64, subtopologies=(PlannedSubtopology(id=0, source_topics=(INPUT,)),)
    )


def plan_with_a_store(application_id: str) -> TopologyPlan:
    """Return the plan of a topology with a changelog."""
    changelog = PlannedChangelogTopic(name=f"{application_id}-counts-changelog", config={"cleanup.policy": "compact"})
    subtopology = PlannedSubtopology(id=0, source_topics=(INPUT,), changelog_topics=(changelog,))
    return TopologyPlan(application_id=application_id, hash="0" * 64, subtopologies=(subtopology,))


def manifest(name: str, **spec: Any) -> dict[str, Any]:
    """Return a StreamsApp for simulated brokers."""
    return {
        "apiVersion": "streams.millrace.dev/v1alpha1",
        "kind": "StreamsApp",
        "metadata": {"name": name},
        "spec": {
            "applicationId": name,
            "image": "registry.example/app:1",
            "app": {"entrypoint": "app:topology"},
            "kafka": {"bootstrapServers": ["broker.example:9092"]},
            "upgrade": {"gate": {"minStable": "1s"}},
            **spec,
        },
    }


class SimulatedKafka:
    """Brokers with all topics, and a group of all pods that were not told to leave."""

    def __init__(self, children):
        self._children = children

    def observe(self, app, credentials, *plans, internal_topics=()):
        """Return a stable group of the existing pods."""
        metadata = app.metadata
        group = _group(metadata.name, metadata.uid, self._children.of_app(metadata.namespace, metadata.name))
        return KafkaState(topics={INPUT: Topic("1", _PARTITIONS, 1)}, brokers=1, group=group, lag=0)

    def observe_for_reset(self, app, credentials, plan, target, inputs=()):
        """Resets are not simulated."""
        raise NotImplementedError

    def act(self, app, credentials, action):
        """Pretend to carry out the action."""

    def forget(self, uid):
        """Nothing is kept."""

    def close(self):
        """Nothing is open."""


def _group(app: str, uid: str, objects: Mapping[Key, Any]) -> ConsumerGroup | None:
    pods = [
        key.name
        for key, obj in objects.items()
        if key.kind == "Pod" and key.name.removeprefix(f"{app}-").isdigit() and not _is_drained(obj)
    ]
    ids = {pod: f"{naming.member(pod, uid)}-StreamThread-1-consumer" for pod in pods}
    members = tuple(ConsumerGroupMember(pod, pod, client_id=ids[pod]) for pod in sorted(pods))
    return ConsumerGroup("Stable", members=members) if members else None


class SimulatedInstances(InstanceStatusClient):
    """Healthy pods, which leave when told to."""

    def ask(self, pods):
        """Return, for each running pod, that it runs all its tasks, or that it has left."""
        return {
            pod["metadata"]["name"]: StreamsStatus(state="DRAINED")
            if _is_drained(pod)
            else StreamsStatus(
                state="RUNNING", task_counts=TaskCounts(active=1), lag=InputLag(0), topology_hash="0" * 64
            )
            for pod in pods
            if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "runtime"
            and pod.get("status", {}).get("phase") == "Running"
        }


def _is_drained(pod: Mapping[str, Any]) -> bool:
    return DRAIN_ANNOTATION in pod["metadata"].get("annotations", {})


class SimulatedOutputs(PlanJobOutputs):
    """Plan Jobs that print a plan."""

    make = staticmethod(plan)

    def of(self, namespace, objects):
        """Return the plan for every Job that has ended."""
        return {
            key.name: self.make(obj["metadata"]["labels"]["streams.millrace.dev/app"]).to_json()
            for key, obj in objects.items()
            if key.kind == "Job" and obj.get("status", {}).get("succeeded")
        }


class OutputsWithAStore(SimulatedOutputs):
    """Plan Jobs that print the plan of a topology with a changelog."""

    make = staticmethod(plan_with_a_store)


class Kubelet:
    """Acts as the node of the pods in some namespaces, until it is closed; the scheduler sends it none of the others.

    Args:
        api: A client for the API server that nothing else uses.
        namespaces: The namespaces at first; `add` adds more.
    """

    def __init__(self, api: client.ApiClient, *namespaces: str) -> None:
        self._core = client.CoreV1Api(api)
        self._stop = threading.Event()
        self._done: dict[str, str] = {}
        self._namespaces = namespaces
        self._node = f"simulated-{secrets.token_hex(3)}"
        self._core.create_node({"metadata": {"name": self._node}, "spec": {"unschedulable": True}})
        self._begin()

    def add(self, namespace: str) -> None:
        """Serve another namespace too."""
        self._namespaces = (*self._namespaces, namespace)

    def close(self) -> None:
        """Stop, and take the node away."""
        self._pause()
        self._core.delete_node(self._node)

    def _pause(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Send no requests to the API server, because it is about to be killed.

        `ssl` leaves a socket open whose peer resets it between connecting and the handshake (Python 3.11 at least), and an
        open socket that is garbage fails whichever test runs when it is collected.
        """
        self._pause()
        try:
            yield
        finally:
            self._stop.clear()
            self._begin()

    def _begin(self) -> None:
        # Heartbeats have a separate thread: if a node's heartbeat is late, its pods are marked as not ready.
        self._threads = [
            threading.Thread(target=self._forever, args=work, daemon=True)
            for work in ((self._serve, 0.1), (self._beat, 5.0))
        ]
        for thread in self._threads:
            thread.start()

    def _forever(self, work: Callable[[], None], pause_s: float) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                work()
            except (ApiException, HTTPError, OSError) as error:
                print(f"kubelet: {error}", file=sys.stderr)  # noqa: T201 - seen when the test fails
            # Listing thousands of pods takes a while, and the API server and the operator have to share it.
            self._stop.wait(max(pause_s, 2 * (time.monotonic() - begun)))

    def _beat(self) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Simulated",
            "message": "",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        room = {"cpu": "10000", "memory": "10000Gi", "pods": "10000"}
        self._core.patch_node_status(
            self._node, {"status": {"conditions": [ready], "capacity": room, "allocatable": room}}
        )

    def _serve(self) -> None:
        for namespace in self._namespaces:
            response = self._core.list_namespaced_pod(
                namespace,
                label_selector="app.kubernetes.io/managed-by=millrace-operator",
                resource_version="0",
                _preload_content=False,
            )
            for pod in json.loads(response.data)["items"]:
                self._serve_pod(pod)

    def _serve_pod(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        state = "terminating" if "deletionTimestamp" in pod["metadata"] else "running"
        if self._done.get(uid) == state:
            return
        try:
            (self._let_go if state == "terminating" else self._start)(pod)
        except ApiException as error:
            if error.status != 404:
                return  # others write pods too, so it is retried
        self._done[uid] = state

    def _let_go(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        self._core.delete_namespaced_pod(metadata["name"], metadata["namespace"], body=body, _preload_content=False)

    def _start(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        if not pod["spec"].get("nodeName"):
            target = {"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": self._node}}
            self._core.create_namespaced_pod_binding(name, namespace, target, _preload_content=False)
        is_plan = metadata["labels"]["app.kubernetes.io/component"] == "plan"
        self._core.patch_namespaced_pod_status(name, namespace, {"status": _status(pod, ended=is_plan)})


def _status(pod: dict[str, Any], *, ended: bool) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    container = pod["spec"]["containers"][0]
    state = (
        {"terminated": {"exitCode": 0, "startedAt": now, "finishedAt": now}}
        if ended
        else {"running": {"startedAt": now}}
    )
    holds = "False" if ended else "True"
    return {
        "phase": "Succeeded" if ended else "Running",
        "podIP": "192.0.2.1",
        "podIPs": [{"ip": "192.0.2.1"}],
        "startTime": now,
        "conditions": [
            {"type": kind, "status": holds, "lastTransitionTime": now} for kind in ("Ready", "ContainersReady")
        ],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": not ended,
                "started": not ended,
                "restartCount": 0,
                "state": state,
            }
        ],
    }


def main() -> int:
    """Run the operator."""
    settings = settings_from(os.environ)
    configure_logs(settings)
    bugs = set(filter(None, os.environ.get("SIMULATED_BUG_IN", "").split(",")))

    def decide(desired: DesiredApp, observed: ObservedApp) -> Decision:
        if desired.name in bugs:
            raise ZeroDivisionError("simulated bug")
        return reconcile(desired, observed)

    operator = Operator(settings, api_client(settings.workers))
    operator._apps.reconcile = decide
    context = operator._context
    context.instances.close()
    context.instances = SimulatedInstances()
    if os.environ.get("SIMULATED_BROKERS") == "real":
        context.outputs = OutputsWithAStore(context.requests)
    else:
        context.outputs = SimulatedOutputs(context.requests)
        context.kafka = SimulatedKafka(context.children)
    return operator.run()


if __name__ == "__main__":
    sys.exit(main())
