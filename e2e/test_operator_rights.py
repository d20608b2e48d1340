"""What the operator's account may do, on a real API server: what the operator asks for and nothing else, to its own objects only.

The operator runs with only the chart's permissions, and the API server logs its requests. Pods and brokers are simulated.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import config
from tests.waiting import wait_until

from e2e.cluster import Cluster, ClusterError, reading
from e2e.cluster.control_plane import WATCHED_NAMESPACE
from e2e.manifests import render
from e2e.operator_process import OperatorProcess
from e2e.simulated_pods import Kubelet, manifest
from e2e.support.application import KUBECTL_PATIENCE, PATIENCE_S
from e2e.test_install import application, assert_may_do_nothing_elsewhere, may, patch_is_refused
from e2e.test_ownership import FOREIGN, SPEC
from millrace_operator.cluster.kinds import CHILDREN, CLAIMS, CONFIG_MAPS, POD_MONITORS, PODS, ResourceKind
from millrace_operator.cluster.requests import ApiError, Requests
from millrace_operator.reconcile.drift import is_part_of

ACCOUNT = f"system:serviceaccount:{WATCHED_NAMESPACE}:millrace-operator"
SPACE = "apps"
OURS = {"app.kubernetes.io/managed-by": "millrace-operator"}
Right = tuple[str, str, str]
GET_CHILDREN: set[Right] = {("get", kind.group, kind.plural) for kind in {*CHILDREN, POD_MONITORS} - {PODS, CLAIMS}}

NOT_SIMULATED: set[Right] = {
    ("get", "", "pods/log"),  # of plan Jobs
    ("get", "", "secrets"),  # with credentials
    ("get", "storage.k8s.io", "storageclasses"),  # before a volume grows
    ("patch", "", "persistentvolumeclaims"),  # to resize it
    ("get", "streams.millrace.dev", "streamsresets"),  # right before a reset is carried out
    ("patch", "streams.millrace.dev", "streamsresets"),  # for its finalizer
    ("patch", "streams.millrace.dev", "streamsresets/status"),
    ("get", "streams.millrace.dev", "streamsbackfills"),  # right before a SparkApplication is created
    ("patch", "streams.millrace.dev", "streamsbackfills"),  # for its finalizer
    ("patch", "streams.millrace.dev", "streamsbackfills/status"),
    ("delete", "streams.millrace.dev", "streamsbackfills"),  # whose time to live is over
    *(
        (verb, group, "sparkapplications")  # of backfills
        for verb in ("get", "list", "create", "delete")
        for group in ("sparkoperator.k8s.io", "spark.apache.org")
    ),
    ("patch", "", "events"),  # that come again
}
"""Permissions for parts of the world that are simulated here; tests with a node use them."""


@pytest.fixture(scope="module")
def guarded(own_api_server: Cluster) -> Cluster:
    """Return a control plane of our own, since this operator serves all namespaces, with the chart's objects, but no operator."""
    for name in (WATCHED_NAMESPACE, SPACE):
        own_api_server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    own_api_server.apply(*rendered({"replicas": 0}, WATCHED_NAMESPACE))
    own_api_server.kubectl("wait", "--for=condition=Established", "crd", "--all", KUBECTL_PATIENCE)
    wait_until(
        lambda: is_refused(own_api_server, "create", config_map("probe")), "the policy to be enforced", PATIENCE_S
    )
    return own_api_server


def rendered(values: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    """Return the objects of a release in a namespace, without the pod of `helm test`."""
    documents = yaml.safe_load_all(render(values, namespace=namespace))
    return [item for item in documents if item and "helm.sh/hook" not in item["metadata"].get("annotations", {})]


def config_map(name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a ConfigMap."""
    metadata = {"name": name, "namespace": SPACE, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}


def refusal(cluster: Cluster, *arguments: str, obj: dict[str, Any] | None = None) -> str:
    """Return the API server's message if it refuses the operator's account something; empty if it does not."""
    files = () if obj is None else ("--filename=-",)
    try:
        cluster.kubectl(
            *arguments,
            *files,
            f"--as={ACCOUNT}",
            "--as-group=system:authenticated",
            f"--namespace={SPACE}",
            stdin=None if obj is None else json.dumps(obj),
        )
    except ClusterError as error:
        return str(error)
    return ""


def refused_patch(cluster: Cluster, kind: ResourceKind, name: str, body: dict[str, Any]) -> str:
    """Return the API server's message if it refuses the operator's account a merge patch; empty if it does not."""
    api = config.new_client_from_config(str(cluster.kubeconfig))
    api.set_default_header("Impersonate-User", ACCOUNT)
    try:
        Requests(api, lambda: 60.0, lambda *_: None).patch(kind, SPACE, name, body)
    except ApiError as error:
        return str(error)
    return ""


def is_refused(cluster: Cluster, verb: str, obj: dict[str, Any]) -> bool:
    """Return whether the policy refuses to let an object be written, without writing it."""
    return "managed-by" in refusal(cluster, verb, "--dry-run=server", "--validate=false", obj=obj)


def test_operator_can_only_touch_its_own_objects(guarded: Cluster) -> None:
    """Objects without the operator's label cannot be created, changed, deleted, or taken over by labelling them."""
    guarded.apply(config_map("theirs"), config_map("ours", OURS))
    kinds = [("v1", "Service", {"ports": [{"port": 80}]}), ("v1", "ServiceAccount", None)]
    for version, kind, spec in kinds:
        obj = {"apiVersion": version, "kind": kind, "metadata": {"name": "theirs", "namespace": SPACE}}
        guarded.apply(obj | ({"spec": spec} if spec else {}))
        assert "managed-by" in refusal(guarded, "delete", kind, "theirs")
    assert "managed-by" in refusal(guarded, "create", "--validate=false", obj=config_map("new"))
    assert "managed-by" in refusal(guarded, "delete", "configmap", "theirs")
    change, take = {"data": {"a": "b"}}, {"metadata": {"labels": OURS}}
    assert "managed-by" in refused_patch(guarded, CONFIG_MAPS, "theirs", change)
    assert "managed-by" in refused_patch(guarded, CONFIG_MAPS, "theirs", take)
    give_away = {"metadata": {"labels": dict.fromkeys(OURS)}}
    assert "managed-by" in refused_patch(guarded, CONFIG_MAPS, "ours", give_away)
    assert refused_patch(guarded, CONFIG_MAPS, "ours", change) == ""
    assert refusal(guarded, "delete", "configmap", "ours", "--wait=false") == ""
    guarded.kubectl("delete", "configmap,service,serviceaccount", "theirs", "-n", SPACE)


def test_only_the_drain_annotation_of_a_pod_can_be_changed(guarded: Cluster) -> None:
    """With the operator's account nobody can run their own image in an existing pod, or reassign a pod."""
    for name, labels in (("theirs", {}), ("ours", OURS)):
        metadata = {"name": name, "namespace": SPACE, "labels": labels, "annotations": {"a": "b"}}
        spec = {"automountServiceAccountToken": False, "containers": [{"name": "c", "image": "registry.example/a:1"}]}
        wait_until(
            lambda: guarded.kubectl("get", "serviceaccount", "default", "-n", SPACE),
            "the namespace's account",
            PATIENCE_S,
        )
        guarded.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    pod = json.loads(guarded.kubectl("get", "pod", "ours", "-n", SPACE, "-o", "json"))
    [container] = pod["spec"]["containers"]
    drain = {"metadata": {"annotations": {"streams.millrace.dev/drain": "1"}}}
    assert "managed-by" in refused_patch(guarded, PODS, "theirs", drain)
    for patch in (
        {"spec": {"containers": [{**container, "image": "registry.example/b:1"}]}},
        {"metadata": {"labels": {"app": "another"}}},
        {"metadata": {"annotations": {"a": "c"}}},
        {"metadata": {"annotations": {"a": None}}},
        {"metadata": {"annotations": {"new": "d"}}},
        {"metadata": {"finalizers": ["example.com/f"]}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "theirs", "uid": "1"}]}},
    ):
        assert "only change the annotation" in refused_patch(guarded, PODS, "ours", patch), patch
    assert refused_patch(guarded, PODS, "ours", drain) == ""
    again = {"metadata": {"annotations": {"streams.millrace.dev/drain": "2"}}}
    assert refused_patch(guarded, PODS, "ours", again) == ""
    guarded.kubectl("delete", "pod", "theirs", "ours", "-n", SPACE, "--grace-period=0", "--force")


def test_operator_for_one_namespace_may_change_nothing_elsewhere(guarded: Cluster) -> None:
    """It has rights in that namespace; elsewhere it may read a StreamsApp by name, but a policy keeps it from changing one.

    The permission to finish deletions in a namespace cannot be limited to some.
    """
    for name in ("team", "orders", "payments"):
        guarded.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    guarded.apply(*rendered({"replicas": 0, "watchNamespaces": ["orders"], "crds": {"install": False}}, "team"))
    guarded.apply(application("served", "orders"), application("foreign", "payments"))
    account = "team:millrace-operator"
    assert may(guarded, account, "patch", "statefulsets.apps", "-n", "orders")
    assert may(guarded, account, "get", "secrets", "-n", "orders")
    assert_may_do_nothing_elsewhere(guarded, account)
    wait_until(
        lambda: patch_is_refused(guarded, account, "foreign", "payments"), "the policy to be enforced", PATIENCE_S
    )
    assert not patch_is_refused(guarded, account, "served", "orders")
    guarded.kubectl("delete", "streamsapp", "served", "-n", "orders")
    guarded.kubectl("delete", "streamsapp", "foreign", "-n", "payments")


def test_users_rights_come_with_the_clusters_roles(guarded: Cluster) -> None:
    """Those who may view or edit a namespace may view or edit its StreamsApps, but not their status."""
    for role in ("view", "edit"):
        guarded.kubectl("create", "serviceaccount", role, "-n", SPACE)
        bound = (f"--clusterrole={role}", f"--serviceaccount={SPACE}:{role}")
        guarded.kubectl("create", "rolebinding", role, "-n", SPACE, *bound)
    resource = "streamsapps.streams.millrace.dev"
    for account, *what in (
        ("view", "list", resource),
        ("edit", "create", resource),
        ("edit", "patch", resource, "--subresource=scale"),
    ):
        wait_until(
            lambda account=account, what=what: may(guarded, f"{SPACE}:{account}", *what, "-n", SPACE),
            f"the roles to be aggregated: {account} {what}",
            PATIENCE_S,
        )
    assert not may(guarded, f"{SPACE}:view", "create", resource, "-n", SPACE)
    assert not may(guarded, f"{SPACE}:edit", "patch", resource, "--subresource=status", "-n", SPACE)


@pytest.fixture
def kubelet(guarded: Cluster) -> Iterator[Kubelet]:
    """Return a simulated node."""
    kubelet = Kubelet(config.new_client_from_config(str(guarded.kubeconfig)), SPACE)
    yield kubelet
    kubelet.close()


def test_operator_has_exactly_the_permissions_it_uses(guarded: Cluster, kubelet: Kubelet, tmp_path: Path) -> None:
    """In an application's whole life nothing is refused to the operator, and each of its permissions is used."""
    settings = {
        "POD_NAMESPACE": WATCHED_NAMESPACE,
        "LEASE_NAME": "millrace-operator",
        "RESYNC_SECONDS": 1,
        "RELIST_SECONDS": 10,
    }
    with OperatorProcess(own_kubeconfig(guarded, tmp_path), tmp_path / "operator.log", **settings) as operator:
        operator.wait_until_it_leads()
        live_through(guarded, kubelet)
    events = audited(guarded)
    for event in events:
        assert event.get("responseStatus", {}).get("code", 200) not in {401, 403, 422}, event
    asked, allowed = rights_used(events), rights_of_the_chart()
    assert asked - allowed == set()
    assert allowed >= NOT_SIMULATED
    assert allowed - asked - NOT_SIMULATED == set()


def own_kubeconfig(cluster: Cluster, folder: Path) -> Path:
    """Return the kubeconfig of the operator's account."""
    token = cluster.kubectl("create", "token", "millrace-operator", "-n", WATCHED_NAMESPACE, "--duration=2h").strip()
    content = yaml.safe_load(cluster.kubeconfig.read_text())
    content["users"] = [{"name": user["name"], "user": {"token": token}} for user in content["users"]]
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(content))
    return file


def live_through(cluster: Cluster, kubelet: Kubelet) -> None:
    """Let an application be created, scaled in, upgraded, tampered with, stripped of optional parts, and purged.

    Another one is orphaned, and others find that names are taken.
    """
    name = "one"

    def apply(**spec: Any) -> None:
        app = manifest(name, deletionPolicy="Purge", **spec)
        cluster.apply({**app, "metadata": {"name": name, "namespace": SPACE}})
        wait_until(lambda: is_settled(cluster, name, spec["replicas"]), f"{name} with {spec}", PATIENCE_S)

    apply(replicas=2, observability=monitored("30s"))
    apply(replicas=1, observability=monitored("10s"), networkPolicy={"ingressFrom": []})
    apply(replicas=1, observability=monitored("10s"), podDisruptionBudget={"maxUnavailable": "2"})
    apply(replicas=1, observability=monitored("10s"), image="registry.example/app:2")
    tampered = {
        "service": {"spec": {"publishNotReadyAddresses": False}},
        "serviceaccount": {"automountServiceAccountToken": True},
    }
    for kind, change in tampered.items():
        cluster.kubectl("patch", kind, name, "-n", SPACE, "--type=merge", f"--patch={json.dumps(change)}")
        wait_until(
            lambda of=kind, change=change: not has(cluster, of, name, change), f"{kind} to be put right", PATIENCE_S
        )
    off = {"enabled": False}
    apply(replicas=1, image="registry.example/app:2", networkPolicy=off, podDisruptionBudget=off)
    cluster.kubectl("delete", "streamsapp", name, "-n", SPACE, KUBECTL_PATIENCE)
    orphan(cluster, kubelet, "two")
    meet_objects_of_others(cluster)


def orphan(cluster: Cluster, kubelet: Kubelet, name: str) -> None:
    """Leave an application alone while its plan Job is running."""
    app = manifest(name, deletionPolicy="Orphan", observability=monitored("30s"))
    selector = f"--selector=streams.millrace.dev/app={name}"
    with kubelet.silent():
        cluster.apply({**app, "metadata": {"name": name, "namespace": SPACE}})
        wait_until(
            lambda: cluster.kubectl("get", "jobs", "-n", SPACE, selector, "-o", "name"), "its plan Job", PATIENCE_S
        )
        cluster.kubectl("delete", "streamsapp", name, "-n", SPACE, KUBECTL_PATIENCE)
        kinds = "jobs,configmaps,services,serviceaccounts,poddisruptionbudgets,networkpolicies,podmonitors"
        assert "job.batch" in cluster.kubectl("get", kinds, "-n", SPACE, selector, "-o", "name")
        cluster.kubectl("delete", kinds, "-n", SPACE, selector)


def meet_objects_of_others(cluster: Cluster) -> None:
    """Create applications that each find somebody else's object under a name they need."""
    metadata = {"namespace": SPACE, "labels": {"app": "legacy"}}
    theirs = [
        {"apiVersion": version, "kind": kind, "metadata": {**metadata, "name": name}, **fields}
        for version, kind, name, fields in (make(app) for app, make in FOREIGN.items())
    ]
    cluster.apply(*theirs)
    for app in FOREIGN:
        cluster.apply({**manifest(app, **SPEC), "metadata": {"name": app, "namespace": SPACE}})
    wait_until(lambda: rights_used(audited(cluster)) >= GET_CHILDREN, "all kinds to be read", PATIENCE_S)
    cluster.kubectl("delete", "streamsapp", *FOREIGN, "-n", SPACE, KUBECTL_PATIENCE)
    for obj in theirs:
        cluster.kubectl("delete", obj["kind"], obj["metadata"]["name"], "-n", SPACE)


def monitored(interval: str) -> dict[str, Any]:
    """Return `spec.observability` of an application that is scraped this often."""
    return {"metrics": {"podMonitor": {"enabled": True, "interval": interval}}}


def has(cluster: Cluster, kind: str, name: str, change: dict[str, Any]) -> bool:
    """Return whether an object has the change that somebody made."""
    return is_part_of(change, json.loads(cluster.kubectl("get", kind, name, "-n", SPACE, "-o", "json")))


def is_settled(cluster: Cluster, name: str, replicas: int) -> bool:
    """Return whether an application runs as specified, and its operator has nothing left to do."""
    app = reading.get(cluster.client, "streamsapp", SPACE, name)
    assert app is not None
    status, generation = app.get("status", {}), app["metadata"]["generation"]
    conditions = {item["type"]: item["status"] for item in status.get("conditions", ())}
    done = (conditions.get("Ready"), conditions.get("Reconciling")) == ("True", "False")
    stable = status.get("stableRevision") == status.get("currentRevision")
    return bool(done and stable and status["observedGeneration"] == generation and status["replicas"] == replicas)


def audited(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the requests of the operator's process that are about objects, not only about which kinds exist."""
    lines = cluster.audit_log.read_bytes().rpartition(b"\n")[0].decode().splitlines()
    events = [json.loads(line) for line in lines if ACCOUNT in line]
    return [event for event in events if event["user"]["username"] == ACCOUNT and "objectRef" in event]


def rights_used(events: list[dict[str, Any]]) -> set[Right]:
    """Return verb, group and resource of the requests."""
    references = [(event["verb"], event["objectRef"]) for event in events]
    return {
        (verb, item.get("apiGroup", ""), "/".join(filter(None, (item["resource"], item.get("subresource")))))
        for verb, item in references
    }


def rights_of_the_chart() -> set[Right]:
    """Return verb, group and resource of every permission in the chart's roles for the operator."""
    found: set[Right] = set()
    for item in yaml.safe_load_all(render({}, namespace=WATCHED_NAMESPACE)):
        if (
            item
            and item["kind"] in {"Role", "ClusterRole"}
            and not item["metadata"]["name"].endswith((":view", ":edit"))
        ):
            for rule in item["rules"]:
                found |= {
                    (verb, group, resource)
                    for verb in rule["verbs"]
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                }
    return found
