"""kubeflow's Spark operator itself in place of ours, for who has built it: `E2E_SPARK_OPERATOR` is the path of its program.

Its controller and its webhook run beside the cluster's control plane, for one namespace, and as its chart configures them.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark
from tests.waiting import wait_until

from e2e.cluster import Cluster
from e2e.cluster.control_plane import API_PORT

PROGRAM: Final = os.environ.get("E2E_SPARK_OPERATOR")
"""The program; None where there is none."""
_GROUP: Final = "sparkoperator.k8s.io"
_ALSO_WATCHED: Final = {"ScheduledSparkApplication": "v1beta2", "SparkConnect": "v1alpha1"}
_WEBHOOK_PORT: Final = 9443
_NO_SERVERS: Final = ("--leader-election=false", "--metrics-bind-address=0", "--health-probe-bind-address=0")


def other_crds() -> list[dict[str, Any]]:
    """Return CRDs, without fields, of the other kinds that it watches, as it does not start without them."""
    return [_crd(kind, version) for kind, version in _ALSO_WATCHED.items()]


@contextmanager
def running_program(cluster: Cluster, namespace: str, kubeconfig: Path, log: Path) -> Iterator[None]:
    """Run the controller and the webhook until the context ends.

    Args:
        cluster: The cluster.
        namespace: The namespace that they serve.
        kubeconfig: With the rights of the controller's account.
        log: Gets their output.
    """
    name, folder = f"spark-operator-{namespace}", log.parent
    cluster.apply(*_webhooks(name, namespace))
    webhook = [
        *("webhook", "start", f"--kubeconfig={cluster.kubeconfig}", f"--webhook-cert-dir={folder / 'certificates'}"),
        *(f"--mutating-webhook-name={name}", f"--validating-webhook-name={name}", f"--webhook-port={_WEBHOOK_PORT}"),
        *(f"--webhook-secret-name={name}", f"--webhook-secret-namespace={namespace}"),
        *(f"--webhook-svc-name={name}", f"--webhook-svc-namespace={namespace}"),
    ]
    controller = ["controller", "start", f"--kubeconfig={kubeconfig}"]
    with (
        _running(cluster, namespace, webhook, log, kubeconfig),
        _running(cluster, namespace, controller, log, kubeconfig),
    ):
        try:
            wait_until(lambda: _is_served(cluster, name), lambda: f"the webhook:\n{log.read_text()}", 120)
            yield
        finally:
            for kind in ("mutating", "validating"):
                cluster.kubectl("delete", f"{kind}webhookconfiguration", name, check=False)


@contextmanager
def _running(cluster: Cluster, namespace: str, arguments: list[str], log: Path, kubeconfig: Path) -> Iterator[None]:
    command = [str(PROGRAM), *arguments, f"--namespaces={namespace}", *_NO_SERVERS]
    environment = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),  # for spark-submit
        "KUBERNETES_SERVICE_HOST": cluster.machine.addresses.node,
        "KUBERNETES_SERVICE_PORT": str(API_PORT),
        "SPARK_HOME": str(Path(pyspark.__path__[0])),
    }
    with (
        log.open("ab") as output,
        subprocess.Popen(
            cluster.machine.command(command),
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def _is_served(cluster: Cluster, name: str) -> bool:
    """Return whether the webhook has written its certificate into its configurations."""
    query = "--output=jsonpath={.webhooks[*].clientConfig.caBundle}"
    return all(
        cluster.kubectl("get", f"{kind}webhookconfiguration", name, query).strip()
        for kind in ("mutating", "validating")
    )


def _crd(kind: str, version: str) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{_GROUP}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": _GROUP,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced",
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }


def _webhooks(name: str, namespace: str) -> list[dict[str, Any]]:
    """Return what lets the API server ask the webhook: about SparkApplications, and about pods that come from them."""
    applications = {
        "apiGroups": [_GROUP],
        "apiVersions": ["v1beta2"],
        "resources": ["sparkapplications"],
        "operations": ["CREATE", "UPDATE"],
    }
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    path = f"{_GROUP.replace('.', '-')}-v1beta2-sparkapplication"
    launched = {"objectSelector": {"matchLabels": {f"{_GROUP}/launched-by-spark-operator": "true"}}}

    def hook(verb: str, path: str, rule: dict[str, Any], **fields: Any) -> dict[str, Any]:
        service = {"name": name, "namespace": namespace, "port": _WEBHOOK_PORT, "path": f"/{verb}-{path}"}
        return {
            "name": f"{verb}-{path.strip('-')}.{_GROUP}",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": service},
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "rules": [rule],
            **fields,
        }

    hooks = {
        "Mutating": [hook("mutate", "-v1-pod", pods, **launched), hook("mutate", path, applications)],
        "Validating": [hook("validate", path, applications)],
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }
    configurations = [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}WebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": items,
        }
        for kind, items in hooks.items()
    ]
    return [service, *configurations]
