"""Ownership of objects, checked by Kubernetes itself: nobody else's objects are written or deleted, and who owns the StatefulSet.

A real API server with its controllers, including garbage collection; pods and brokers are simulated.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import config
from tests.waiting import wait_until

from e2e.cluster import Cluster
from e2e.operator_process import OperatorProcess
from e2e.simulated_pods import Kubelet, manifest
from e2e.support.application import KUBECTL_PATIENCE, PATIENCE_S
from e2e.test_operator_process import World
from millrace.manifest import StreamsAppSpec
from millrace_operator.children import naming
from millrace_operator.children.config_maps import RETAINED_KEY
from millrace_operator.children.naming import APP_UID_LABEL, RETAINED_LABEL, labels
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.executor import Executor, StaleError
from millrace_operator.cluster.kinds import APPS, CHILDREN, CONFIG_MAPS, POD_MONITORS
from millrace_operator.cluster.requests import Requests
from millrace_operator.model import Apply, Key
from millrace_operator.reconcile.revisions import revision_of

SPEC: dict[str, Any] = {
    "replicas": 2,
    "networkPolicy": {"enabled": True},
    "observability": {"metrics": {"podMonitor": {"enabled": True}}},
    "drain": {"terminationGracePeriodSeconds": 1},
}
POD: dict[str, Any] = {
    "metadata": {"labels": {"app": "legacy"}},
    "spec": {"containers": [{"name": "c", "image": "registry.example/legacy:1"}], "restartPolicy": "Always"},
}
ONCE: dict[str, Any] = {**POD, "spec": {**POD["spec"], "restartPolicy": "Never"}}
SELECTOR = {"matchLabels": {"app": "legacy"}}


def revision(app: str) -> str:
    """Return the revision of the app with a name."""
    return revision_of(StreamsAppSpec.model_validate(manifest(app, **SPEC)["spec"]))


FOREIGN: dict[str, Callable[[str], tuple[str, str, str, dict[str, Any]]]] = {
    "account": lambda app: ("v1", "ServiceAccount", app, {"automountServiceAccountToken": True}),
    "service": lambda app: (
        "v1",
        "Service",
        app,
        {"spec": {"selector": {"app": "legacy"}, "ports": [{"port": 80}]}},
    ),
    "budget": lambda app: (
        "policy/v1",
        "PodDisruptionBudget",
        app,
        {"spec": {"minAvailable": 2, "selector": SELECTOR}},
    ),
    "policy": lambda app: ("networking.k8s.io/v1", "NetworkPolicy", app, {"spec": {"podSelector": SELECTOR}}),
    "plan-policy": lambda app: (
        "networking.k8s.io/v1",
        "NetworkPolicy",
        naming.plan_network_policy(app),
        {"spec": {"podSelector": SELECTOR}},
    ),
    "monitor": lambda app: (
        "monitoring.coreos.com/v1",
        "PodMonitor",
        app,
        {"spec": {"selector": SELECTOR, "podMetricsEndpoints": []}},
    ),
    "set": lambda app: (
        "apps/v1",
        "StatefulSet",
        app,
        {"spec": {"replicas": 0, "serviceName": "legacy", "selector": SELECTOR, "template": POD}},
    ),
    "manifest": lambda app: ("v1", "ConfigMap", naming.revision_config_map(app, revision(app)), {"data": {"a": "b"}}),
    "plan": lambda app: ("v1", "ConfigMap", naming.plan_config_map(app, revision(app)), {"data": {"a": "b"}}),
    "job": lambda app: (
        "batch/v1",
        "Job",
        naming.plan_job(app, revision(app)),
        {"spec": {"suspend": True, "template": ONCE}},
    ),
}
"""By application: somebody else's object with the name of one of its children."""
SUPPORTING = {"account", "service", "budget", "policy", "plan-policy", "monitor"}
"""The applications that run even though the name of their child is taken."""


class Place(World):
    """A control plane with a simulated node, queried without a process for each request."""

    def __init__(self, cluster: Cluster, kubelet: Kubelet, folder: Path) -> None:
        super().__init__(cluster, kubelet, folder)
        self.requests = Requests(config.new_client_from_config(str(cluster.kubeconfig)), lambda: 60.0, _count)

    def get(self, namespace: str, kind: str, *names: str) -> list[dict]:
        """Return objects."""
        found = next(one for one in (*CHILDREN, POD_MONITORS, APPS) if kind.lower() in {one.plural, one.kind.lower()})
        items = self.requests.list(found, namespace)["items"]
        return [{**item, "kind": found.kind} for item in items if not names or item["metadata"]["name"] in names]

    def children(self, namespace: str) -> list[dict]:
        """Return what the operator has applied."""
        kinds = [kind for kind in (*CHILDREN, POD_MONITORS) if kind.kind not in {"Pod", "PersistentVolumeClaim"}]
        found = [item for kind in kinds for item in self.get(namespace, kind.plural)]
        return [item for item in found if "streams.millrace.dev/app" in item["metadata"].get("labels", {})]


def _count(*_: Any) -> None:
    """Requests are not counted."""


@pytest.fixture(scope="module")
def world(api_server: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Return a control plane with a simulated node."""
    kubelet = Kubelet(config.new_client_from_config(str(api_server.kubeconfig)))
    yield Place(api_server, kubelet, tmp_path_factory.mktemp("ownership"))
    kubelet.close()


def get(world: Place, space: str, kind: str, name: str) -> dict[str, Any] | None:
    """Return an object, or None."""
    found = world.get(space, kind, name)
    return found[0] if found else None


def stalled(world: Place, space: str, app: str) -> dict[str, str]:
    """Return an app's condition Stalled; empty if it has none."""
    found = get(world, space, "streamsapp", app) or {}
    conditions = found.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == "Stalled"), {})


def is_settled(obj: dict[str, Any] | None) -> bool:
    """Return whether Kubernetes' controllers have finished writing to an object."""
    status = {} if obj is None else obj.get("status", {})
    if obj is None or obj["kind"] in {"StatefulSet", "PodDisruptionBudget"}:
        return "observedGeneration" in status
    return obj["kind"] != "Job" or bool(status.get("conditions"))


def gone(world: Place, space: str, kind: str, *objects: str) -> None:
    """Wait until objects are gone: all of the kind if none is named."""
    wait_until(lambda: not world.get(space, kind, *objects), f"{kind} {objects} to be gone", PATIENCE_S)


@pytest.mark.thorough
def test_foreign_objects_are_left_alone(world):
    """Whatever its kind, it is never written and survives the app, and the app continues by itself once it is gone."""
    space = world.namespace("foreign")
    theirs = {app: make(app) for app, make in FOREIGN.items()}
    for version, kind, name, fields in theirs.values():
        metadata = {"name": name, "namespace": space, "labels": {"app": "legacy"}}
        world.cluster.apply({"apiVersion": version, "kind": kind, "metadata": metadata, **fields})

    def seen(app: str) -> dict[str, Any] | None:
        return get(world, space, theirs[app][1], theirs[app][2])

    for app in theirs:
        wait_until(lambda app=app: is_settled(seen(app)), f"the controllers of {app}", PATIENCE_S)
    before = {app: seen(app) for app in theirs}
    with world.operator("foreign", space, RESYNC_SECONDS=1) as operator:
        tail = lambda: operator.log[-3000:]  # noqa: E731 - read when the wait fails
        world.apply(space, *theirs, **SPEC)
        for app, (_, kind, name, _) in theirs.items():
            told = wait_until(
                lambda app=app: (c := stalled(world, space, app)).get("status") == "True" and c,
                lambda app=app: f"{app} to be told. {tail()}",
                PATIENCE_S,
            )
            assert told["reason"] == "NameTaken", app
            assert f"{kind} {name} exists and does not belong to this StreamsApp" in told["message"], app
        wait_until(lambda: world.ready(space) == SUPPORTING, lambda: f"apps that run without it. {tail()}", PATIENCE_S)
        assert {app: seen(app) for app in theirs} == before
        world.cluster.kubectl("delete", "streamsapps", "--all", "-n", space, "--wait=false")
        gone(world, space, "streamsapps")
        assert {app: seen(app) for app in theirs} == before
        world.apply(space, *theirs, **SPEC)
        for app in theirs:
            wait_until(
                lambda app=app: stalled(world, space, app).get("status") == "True", f"{app} to be told", PATIENCE_S
            )
        for _, kind, name, _ in theirs.values():
            world.cluster.kubectl("delete", kind, name, "-n", space)
        world.wait_ready(space, *theirs)
        for app in theirs:
            wait_until(lambda app=app: stalled(world, space, app)["status"] == "False", f"{app} to go on", PATIENCE_S)


class _Hands:
    """The operator's access to a real API server, and the app on whose behalf it acts."""

    def __init__(self, world: Place, space: str) -> None:
        self.requests = Requests(config.new_client_from_config(str(world.cluster.kubeconfig)), lambda: 60.0, _count)
        self.children = Cache()
        self._hands = Executor(self.requests, Cache(), self.children)
        self.app = {"metadata": {"name": "orders", "namespace": space, "uid": "11111111-2222-3333-4444-555555555555"}}

    def config_map(self, **marks: str) -> dict[str, Any]:
        """Return the desired ConfigMap of a revision."""
        own = {**labels("orders", revision="r"), APP_UID_LABEL: self.app["metadata"]["uid"], **marks}
        metadata = {"name": "orders-rev-r", "namespace": self.app["metadata"]["namespace"], "labels": own}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}

    def apply(self, obj: dict[str, Any], uid: str | None = None) -> dict[str, Any]:
        """Apply an object and return the result."""
        self._hands.do(Apply(obj, uid), self.app)
        found = self.children.of_app(self.app["metadata"]["namespace"], "orders")
        return dict(found[Key(obj["kind"], obj["metadata"]["name"])])


@pytest.fixture
def hands(world) -> _Hands:
    """Return the operator's access to a namespace for this test."""
    return _Hands(world, world.namespace(f"hands-{secrets.token_hex(3)}"))


def test_unwanted_field_of_a_created_object_is_removed(hands):
    """An object is first created, not applied, yet a later apply removes fields that only the creation had."""
    made = hands.apply(hands.config_map(old="yes"))
    assert made["metadata"]["labels"]["old"] == "yes"
    applied = hands.apply(hands.config_map(), made["metadata"]["uid"])
    assert "old" not in applied["metadata"]["labels"]
    kept = hands.requests.get(CONFIG_MAPS, hands.app["metadata"]["namespace"], "orders-rev-r")
    assert [item["operation"] for item in kept["metadata"]["managedFields"]] == ["Apply"]


def test_replaced_object_is_not_overwritten(hands, world):
    """It has the name of the object that was seen, but another uid."""
    space = hands.app["metadata"]["namespace"]
    made = hands.apply(hands.config_map())
    world.cluster.kubectl("delete", "configmap", "orders-rev-r", "-n", space)
    world.cluster.kubectl("create", "configmap", "orders-rev-r", "-n", space)
    before = get(world, space, "configmap", "orders-rev-r")
    with pytest.raises(StaleError):
        hands.apply(hands.config_map(old="yes"), made["metadata"]["uid"])
    assert get(world, space, "configmap", "orders-rev-r") == before


@pytest.fixture
def running(world) -> Iterator[tuple[str, OperatorProcess]]:
    """Return a namespace with a running application `orders`, and its operator."""
    space = world.namespace(f"running-{secrets.token_hex(3)}")
    with world.operator(space, space, RESYNC_SECONDS=1) as operator:
        world.apply(space, "orders", **SPEC)
        world.wait_ready(space, "orders")
        yield space, operator


CASCADES = ["background", "foreground", "orphan"]


def pods(world: Place, space: str) -> dict[str, str]:
    """Return the uids of the application's pods by name."""
    found = world.get(space, "pods")
    runtime = [pod for pod in found if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "runtime"]
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in runtime}


def owners(world: Place, space: str) -> list[str]:
    """Return the kinds of the StatefulSet's owners."""
    found = get(world, space, "statefulset", "orders")
    assert found is not None
    return [owner["kind"] for owner in found["metadata"].get("ownerReferences", [])]


def test_children_of_an_older_operator_are_marked_and_nothing_rolls(world, running):
    """Without uid and owner reference they are taken over as they are; a change of the policy rolls nothing either."""
    space, _ = running
    before, generation = pods(world, space), _generation(world, space)
    orders = get(world, space, "streamsapp", "orders")
    world.cluster.kubectl(
        "label",
        "sts,svc,sa,cm,pdb,netpol,podmonitor",
        "-n",
        space,
        "-l",
        "streams.millrace.dev/app=orders",
        f"{APP_UID_LABEL}-",
    )
    world.cluster.kubectl(
        "patch", "statefulset", "orders", "-n", space, "--type=merge", "-p", '{"metadata":{"ownerReferences":null}}'
    )

    def marked() -> bool:
        uids = {item["metadata"]["labels"].get(APP_UID_LABEL) for item in world.children(space)}
        return uids == {orders["metadata"]["uid"]} and owners(world, space) == ["StreamsApp"]

    wait_until(marked, "the marks", PATIENCE_S)
    for policy, kept in (("Orphan", []), ("Retain", ["StreamsApp"])):
        world.apply(space, "orders", **SPEC, deletionPolicy=policy)
        wait_until(lambda kept=kept: owners(world, space) == kept, f"the reference under {policy}", PATIENCE_S)
    world.wait_ready(space, "orders")
    assert pods(world, space) == before
    assert _generation(world, space) == generation


def _generation(world: Place, space: str) -> int:
    found = get(world, space, "statefulset", "orders")
    assert found is not None
    return int(found["metadata"]["generation"])


@pytest.mark.thorough
@pytest.mark.parametrize("cascade", CASCADES)
def test_retain_ends_pods_and_keeps_state_however_the_app_is_deleted(world, running, cascade):
    """Kubectl's cascade concerns garbage collection; the deletion policy is carried out in any case."""
    space, _ = running
    world.cluster.kubectl("delete", "streamsapp", "orders", "-n", space, f"--cascade={cascade}", KUBECTL_PATIENCE)
    gone(world, space, "statefulsets")
    wait_until(lambda: not pods(world, space), "the pods to be gone", PATIENCE_S)
    assert len(world.get(space, "persistentvolumeclaims")) == 2
    retained = {naming.plan_config_map("orders", revision("orders")), naming.retained_config_map("orders")}
    assert {item["metadata"]["name"] for item in world.children(space)} == retained
    assert all(item["metadata"]["labels"][RETAINED_LABEL] == "true" for item in world.children(space))


@pytest.mark.thorough
@pytest.mark.parametrize("cascade", CASCADES)
def test_orphan_leaves_pods_running_however_the_app_is_deleted(world, running, cascade):
    """Without an owner reference the garbage collector deletes nothing; the next app takes over the pods."""
    space, _ = running
    before = pods(world, space)
    world.apply(space, "orders", **SPEC, deletionPolicy="Orphan")
    wait_until(lambda: owners(world, space) == [], "the reference to be gone", PATIENCE_S)
    world.cluster.kubectl("delete", "streamsapp", "orders", "-n", space, f"--cascade={cascade}", KUBECTL_PATIENCE)
    world.apply(space, "orders", **SPEC)
    world.wait_ready(space, "orders")
    assert pods(world, space) == before
    assert owners(world, space) == ["StreamsApp"]


@pytest.mark.thorough
def test_ids_of_adopted_pods_are_retained(world, running):
    """The StatefulSet, which has the ids, is deleted before the members; the next app finds them in the retained ConfigMap."""
    space, _ = running
    uids = [world.get(space, "streamsapps", "orders")[0]["metadata"]["uid"]]
    world.apply(space, "orders", **SPEC, deletionPolicy="Orphan")
    wait_until(lambda: owners(world, space) == [], "the reference to be gone", PATIENCE_S)
    world.cluster.kubectl("delete", "streamsapp", "orders", "-n", space, KUBECTL_PATIENCE)
    world.apply(space, "orders", **SPEC)
    world.wait_ready(space, "orders")
    uids += [world.get(space, "streamsapps", "orders")[0]["metadata"]["uid"]]
    world.cluster.kubectl("delete", "streamsapp", "orders", "-n", space, KUBECTL_PATIENCE)
    (record,) = world.get(space, "configmaps", naming.retained_config_map("orders"))
    assert json.loads(record["data"][RETAINED_KEY])["memberUids"] == [uid.partition("-")[0] for uid in uids]


@pytest.mark.thorough
def test_removing_the_finalizer_by_force_ends_pods_and_leaves_the_rest(world, running):
    """Garbage collection removes the StatefulSet; volumes, plans and manifests stay, and can be handed to the next app."""
    space, operator = running
    operator.signal(15)
    operator.end()
    world.cluster.kubectl("delete", "streamsapp", "orders", "-n", space, "--wait=false")
    nobody = '{"metadata":{"finalizers":null}}'
    world.cluster.kubectl("patch", "streamsapp", "orders", "-n", space, "--type=merge", "-p", nobody)
    gone(world, space, "statefulsets")
    wait_until(lambda: not pods(world, space), "the pods to be gone", PATIENCE_S)
    assert len(world.get(space, "persistentvolumeclaims")) == 2
    assert world.get(space, "service", "orders")
    with world.operator(f"{space}-2", space, RESYNC_SECONDS=1):
        world.apply(space, "orders", **SPEC)
        told = lambda: stalled(world, space, "orders")  # noqa: E731 - read twice
        wait_until(lambda: told().get("reason") == "NameTaken", "what is in the way", PATIENCE_S)

        def as_told() -> bool:
            commands = {line.partition("hand over all of them: ")[2] for line in told()["message"].splitlines()}
            for command in filter(None, commands):
                world.cluster.kubectl(*command.split()[1:], "-n", space)
            return told()["status"] == "False"

        wait_until(as_told, "it to go on", PATIENCE_S)
        world.wait_ready(space, "orders")
