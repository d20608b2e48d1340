"""Installing, upgrading and removing the operator in a separate cluster: with helm, namespaced, and with kubectl only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.waiting import wait_until

from e2e.cluster import Cluster, ClusterError
from e2e.cluster.leftovers import PREFIX
from e2e.helm import Release, image_values
from e2e.images.catalogue import Images, provide_images
from e2e.manifests import KUSTOMIZE
from e2e.support.application import KUBECTL_PATIENCE, PATIENCE_S
from millrace.manifest.streamsapp_status import UNSEEN_GENERATION

UNSEEN = {"observedGeneration": UNSEEN_GENERATION}
CRDS = tuple(f"{kind}.streams.millrace.dev" for kind in ("streamsapps", "streamsresets", "streamsbackfills"))
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="module")
def fresh() -> Iterator[Cluster]:
    """A cluster without Millrace."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder, Cluster.start(Path(folder) / "c") as cluster:
        provide_images(cluster, with_apps=False)
        for name in ("orders", "payments"):
            namespace(cluster, name)
        yield cluster


@pytest.fixture(scope="module")
def operator_values() -> dict[str, Any]:
    """The chart's values for the operator built from the checkout."""
    return image_values(Images().operator)


def namespace(cluster: Cluster, name: str) -> None:
    """Create a namespace that enforces the Pod Security Standard `restricted`."""
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}})


def get(cluster: Cluster, *arguments: str) -> Any:
    """Return what kubectl gets; None if it does not exist."""
    text = cluster.kubectl("get", *arguments, "--output=json", "--ignore-not-found")
    return json.loads(text) if text else None


def listed(cluster: Cluster, kinds: str, selector: str, *flags: str) -> list[str]:
    """Return the names of the objects that a selector finds."""
    return cluster.kubectl("get", kinds, f"--selector={selector}", "--output=name", *flags).split()


def application(name: str, namespace: str, **spec: Any) -> dict[str, Any]:
    """Return a StreamsApp that the operator can handle without a broker."""
    return {
        "apiVersion": "streams.millrace.dev/v1alpha1",
        "kind": "StreamsApp",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "applicationId": name,
            "image": "registry.invalid/missing:1",
            "app": {"entrypoint": "missing:topology"},
            "kafka": {"bootstrapServers": ["kafka.invalid:9092"]},
            **spec,
        },
    }


def seen(cluster: Cluster, name: str, namespace: str) -> bool:
    """Return whether the operator has seen the current generation of an application."""
    app = get(cluster, "streamsapp", name, "-n", namespace)
    return bool(app.get("status", {}).get("observedGeneration") == app["metadata"]["generation"])


def wait_until_seen(cluster: Cluster, name: str, namespace: str) -> None:
    """Wait until the operator has seen an application."""
    wait_until(lambda: seen(cluster, name, namespace), f"the operator to see {namespace}/{name}", PATIENCE_S)


def may(cluster: Cluster, account: str, verb: str, resource: str, *flags: str) -> bool:
    """Return whether a ServiceAccount may do something."""
    user = f"--as=system:serviceaccount:{account}"
    return cluster.kubectl("auth", "can-i", verb, resource, user, *flags, check=False).strip() == "yes"


def assert_may_do_nothing_elsewhere(cluster: Cluster, account: str) -> None:
    """Check that an account has no rights in the namespace payments, and none to pods and lists of Secrets in orders."""
    for verb, resource, *flags in (
        ("list", "secrets", "-n", "orders"),
        ("get", "secrets", "-n", "payments"),
        ("list", "streamsapps.streams.millrace.dev", "-n", "payments"),
        ("delete", "streamsapps.streams.millrace.dev", "-n", "payments"),
        ("create", "pods", "-n", "orders"),
        ("create", "pods", "--subresource=exec", "-n", "orders"),
        ("list", "nodes"),
    ):
        assert not may(cluster, account, verb, resource, *flags), f"{verb} {resource} {flags}"


def patch_is_refused(cluster: Cluster, account: str, name: str, namespace: str) -> bool:
    """Return whether the policy keeps a ServiceAccount from changing an application, without changing it."""
    change = json.dumps({"metadata": {"annotations": {"a": "b"}}})
    try:
        cluster.kubectl(
            *("patch", "streamsapp", name, "-n", namespace, "--type=merge", f"--patch={change}", "--dry-run=server"),
            *(f"--as=system:serviceaccount:{account}", "--as-group=system:authenticated"),
        )
    except ClusterError as error:
        return "does not serve this namespace" in str(error)
    return False


def replicas(cluster: Cluster, namespace: str) -> list[str]:
    """Return the names of the operator's pods, including terminating ones."""
    found = listed(cluster, "pods", "app.kubernetes.io/name=millrace-operator", "-n", namespace)
    return [name.removeprefix("pod/") for name in found]


def complaints(cluster: Cluster, namespace: str) -> list[str]:
    """Return the lines in the operator's log about missing permissions."""
    log = cluster.kubectl("logs", "-n", namespace, "-l", "app.kubernetes.io/name=millrace-operator", "--tail=-1")
    return [line for line in log.splitlines() if "orbidden" in line or '"403' in line]


@pytest.mark.thorough
def test_life_of_a_release(fresh, operator_values) -> None:
    """Install, test, upgrade over older CRDs, uninstall and install again: applications and CRDs are kept throughout."""
    namespace(fresh, "millrace")
    release = Release(fresh, "millrace")
    release.apply(operator_values)
    assert "Succeeded" in release.helm("test", release.name)
    assert "It serves StreamsApps in every namespace." in release.helm("get", "notes", release.name)
    fresh.apply(application("kept", "orders"))
    wait_until_seen(fresh, "kept", "orders")

    for crd in CRDS:  # as in an older version
        fresh.kubectl("patch", "crd", crd, "--type=json", "-p", '[{"op": "remove", "path": "/spec/names/shortNames"}]')
    release.apply({**operator_values, "replicas": 2, "operator": {"logLevel": "DEBUG"}})
    assert all(get(fresh, "crd", crd)["spec"]["names"]["shortNames"] for crd in CRDS)
    wait_until(lambda: len(replicas(fresh, "millrace")) == 2, "the old replica to be gone", PATIENCE_S)
    wait_until(
        lambda: (
            get(fresh, "lease", release.name, "-n", "millrace")["spec"].get("holderIdentity")
            in replicas(fresh, "millrace")
        ),
        "one of the new replicas to hold the Lease",
        PATIENCE_S,
    )
    fresh.apply(application("kept", "orders", replicas=2))
    wait_until_seen(fresh, "kept", "orders")
    assert complaints(fresh, "millrace") == []

    release.uninstall()
    assert listed(fresh, "deployments,services,serviceaccounts,roles", "helm.sh/chart", "-n", "millrace") == []
    assert listed(fresh, "clusterroles,clusterrolebindings", "app.kubernetes.io/part-of=millrace") == []
    assert all(get(fresh, "crd", crd) for crd in CRDS)
    assert get(fresh, "streamsapp", "kept", "-n", "orders")

    release.apply(operator_values)
    fresh.kubectl("delete", "streamsapp", "kept", "-n", "orders", KUBECTL_PATIENCE)
    wait_until(
        lambda: not listed(fresh, "all,configmaps", "streams.millrace.dev/app=kept", "-n", "orders"),
        "everything of the application to be gone",
        PATIENCE_S,
    )
    release.uninstall()


@pytest.mark.thorough
def test_some_namespaces_only(fresh, operator_values) -> None:
    """An operator for one namespace serves that one, may change nothing elsewhere, and has all the permissions it needs.

    It may read a StreamsApp elsewhere by name: the permission to finish deletions in a namespace cannot be limited to some.
    """
    namespace(fresh, "team")
    release = Release(fresh, "team", name="ours")
    values = {"crds": {"install": get(fresh, "crd", CRDS[0]) is None}, "watchNamespaces": ["orders"]}
    release.apply({**operator_values, **values})
    assert "Succeeded" in release.helm("test", release.name)
    fresh.apply(application("served", "orders"), application("foreign", "payments"))
    wait_until_seen(fresh, "served", "orders")
    assert get(fresh, "streamsapp", "foreign", "-n", "payments")["status"] == UNSEEN

    account = "team:ours-millrace-operator"
    assert may(fresh, account, "patch", "statefulsets.apps", "-n", "orders")
    assert may(fresh, account, "get", "secrets", "-n", "orders")
    assert_may_do_nothing_elsewhere(fresh, account)
    wait_until(lambda: patch_is_refused(fresh, account, "foreign", "payments"), "the policy to be enforced", PATIENCE_S)
    assert not patch_is_refused(fresh, account, "served", "orders")
    fresh.kubectl("delete", "streamsapp", "served", "-n", "orders", KUBECTL_PATIENCE)
    fresh.kubectl("delete", "streamsapp", "foreign", "-n", "payments")
    release.uninstall()


@pytest.mark.thorough
def test_without_helm(fresh, tmp_path) -> None:
    """`kubectl apply -k` of the overlay for one namespace serves that one; `millrace explain` explains an application there."""
    namespace(fresh, "alone")
    repository, _, tag = Images().operator.rpartition(":")
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "namespace": "alone",
                "resources": ["base"],
                "images": [{"name": "millrace-operator", "newName": repository, "newTag": tag}],
            }
        )
    )
    (tmp_path / "base").symlink_to(KUSTOMIZE / "namespaced")
    fresh.kubectl("apply", "--server-side", "-k", str(KUSTOMIZE.parents[1] / "crds"), "--force-conflicts")
    fresh.kubectl("apply", "--server-side", "-k", str(tmp_path))
    fresh.kubectl("rollout", "status", "deployment/millrace-operator", "-n", "alone", KUBECTL_PATIENCE)
    fresh.apply(application("missing", "alone"), application("foreign", "orders"))
    wait_until_seen(fresh, "missing", "alone")
    wait_until(
        lambda: reason(fresh, "missing", "alone") == "PlanImageUnavailable", "the image to be missed", PATIENCE_S
    )
    told = explained(fresh, "missing", "alone")
    assert "registry.invalid/missing:1" in told
    assert "PlanImageUnavailable" in told
    assert complaints(fresh, "alone") == []
    assert get(fresh, "streamsapp", "foreign", "-n", "orders")["status"] == UNSEEN


def reason(cluster: Cluster, name: str, namespace: str) -> str:
    """Return why an application has stalled; empty if it has not."""
    conditions = get(cluster, "streamsapp", name, "-n", namespace).get("status", {}).get("conditions", [])
    return next((item["reason"] for item in conditions if item["type"] == "Stalled" and item["status"] == "True"), "")


def explained(cluster: Cluster, name: str, namespace: str) -> str:
    """Return what `millrace explain` prints."""
    command = [sys.executable, "-m", "millrace.cli", "explain", name, "-n", namespace]
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "COLUMNS": "300"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
