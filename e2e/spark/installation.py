"""kubeflow's Spark operator in a test cluster: its CRDs, what its webhook refuses, its accounts, and its process.

The process is ours (`e2e.spark.operator`), or the real one where there is its program (`e2e.spark.program`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from tests.waiting import wait_until

from e2e.cluster import Cluster, ClusterError
from e2e.spark.program import PROGRAM, other_crds, running_program
from e2e.spark.submission import API_VERSION, Manifest

CRDS: Final = Path(__file__).parents[1] / "spark_crds"
DRIVER_ACCOUNT: Final = "spark"
"""The account of drivers, which the Spark operator's chart creates in namespaces for jobs."""
_ROOT: Final = Path(__file__).parents[2]
_OPERATOR: Final = "spark-operator"
_EXECUTORS: Final = ("pods", "configmaps", "persistentvolumeclaims", "services")
_DENIED: Final = (
    "spark.kubernetes.authenticate.driver.oauthToken",
    "spark.kubernetes.authenticate.driver.oauthTokenFile",
    "spark.kubernetes.authenticate.driver.serviceAccountName",
    "spark.kubernetes.authenticate.executor.oauthToken",
    "spark.kubernetes.authenticate.executor.oauthTokenFile",
    "spark.kubernetes.authenticate.executor.serviceAccountName",
    "spark.kubernetes.authenticate.oauthToken",
    "spark.kubernetes.authenticate.oauthTokenFile",
    "spark.kubernetes.container.image",
    "spark.kubernetes.driver.container.image",
    "spark.kubernetes.driver.master",
    "spark.kubernetes.executor.container.image",
    "spark.master",
)
"""Settings that the webhook does not let users make."""
_NAME: Final = "object.metadata.name"
_SPEC: Final = "object.spec"
_SETTINGS: Final = f"(has({_SPEC}.sparkConf) ? {_SPEC}.sparkConf : {{}})"
_REFUSED: Final = {
    f"{_NAME}.size() <= 63 && {_NAME}.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')": "invalid SparkApplication name",
    f"!(has({_SPEC}.driver.template) || has({_SPEC}.executor.template)) || int({_SPEC}.sparkVersion.split('.')[0]) >= 3": (
        "pod template feature requires Spark version 3.0.0 or higher"
    ),
    f"!has({_SPEC}.nodeSelector) || !(has({_SPEC}.driver.nodeSelector) || has({_SPEC}.executor.nodeSelector))": (
        "node selector cannot be defined at both SparkApplication and Driver/Executor"
    ),
    f"{_SETTINGS}.all(key, !(key in {json.dumps(_DENIED)}))": "sparkConf key is not allowed",
    f"{_SETTINGS}.all(key, key != 'spark.kubernetes.namespace' || {_SETTINGS}[key] == object.metadata.namespace)": (
        "sparkConf key spark.kubernetes.namespace must equal the application namespace"
    ),
}
"""What the webhook checks, and its messages."""


def install_crds(cluster: Cluster, *, with_checks: bool = True) -> None:
    """Install both Spark operators' CRDs; succeeds if they exist.

    Args:
        cluster: The cluster.
        with_checks: Whether the API server refuses what the webhook of kubeflow's refuses. No, if that will run.
    """
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename", str(CRDS))
    if PROGRAM is not None:
        cluster.apply(*other_crds())
    wait_until(lambda: all(map(_is_served, _crds(cluster))), "all CRDs", 120)
    if not with_checks:
        return
    cluster.apply(*_admission_policy())
    probe = {**minimal("default"), "spec": {**minimal("default")["spec"], "sparkConf": {"spark.master": "local"}}}
    wait_until(lambda: "spark.master" in refusal(cluster, probe), "the admission policy to be enforced", 120)


def _crds(cluster: Cluster) -> list[Manifest]:
    return list(json.loads(cluster.kubectl("get", "crd", "--output=json"))["items"])


def _is_served(crd: Manifest) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


def refusal(cluster: Cluster, app: Manifest) -> str:
    """Return what the API server says to a SparkApplication; empty if it takes it."""
    try:
        cluster.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(app))
    except ClusterError as error:
        return str(error)
    return ""


def minimal(namespace: str) -> Manifest:
    """Return the smallest SparkApplication."""
    return {
        "apiVersion": API_VERSION,
        "kind": "SparkApplication",
        "metadata": {"name": "minimal", "namespace": namespace},
        "spec": {
            "type": "Python",
            "sparkVersion": "4.3.0",
            "mainApplicationFile": "local:///main.py",
            "driver": {},
            "executor": {},
        },
    }


@contextmanager
def running_spark_operator(cluster: Cluster, namespace: str, folder: Path) -> Iterator[Path]:
    """Run the Spark operator for a namespace, with no more rights than its chart gives it; yield its log."""
    cluster.apply(*_accounts(namespace))
    log = folder / "spark-operator.log"
    kubeconfig = _kubeconfig(cluster, namespace, folder)
    if PROGRAM is not None:
        with running_program(cluster, namespace, kubeconfig, log):
            yield log
        return
    command = [sys.executable, "-m", "e2e.spark.operator", str(kubeconfig), namespace]
    with log.open("ab") as output, subprocess.Popen(command, cwd=_ROOT, stderr=output) as process:
        try:
            yield log
        finally:
            process.terminate()


def _admission_policy() -> list[dict[str, Any]]:
    name, kind = "spark-operator-webhook", "admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": ["sparkoperator.k8s.io"],
        "apiVersions": ["v1beta2"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["sparkapplications"],
    }
    denied = f"'sparkConf key is not allowed: ' + {_SETTINGS}.filter(key, key in {json.dumps(_DENIED)}).join(', ')"
    return [
        {
            "apiVersion": kind,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [
                    {
                        "expression": expression,
                        "message": message,
                        "reason": "Forbidden",
                        **({"messageExpression": denied} if "not allowed" in message else {}),
                    }
                    for expression, message in _REFUSED.items()
                ],
            },
        },
        {
            "apiVersion": kind,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]


def _accounts(namespace: str) -> list[dict[str, Any]]:
    """Return the accounts of the operator and of drivers with the rights that the operator's chart gives them."""
    change = ["get", "list", "watch", "create", "update"]
    operators = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": [*change, "delete"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": [*change, "patch"]},
        {"apiGroups": [""], "resources": ["services"], "verbs": [*change, "patch", "delete"]},
        {
            "apiGroups": ["sparkoperator.k8s.io"],
            "resources": ["sparkapplications"],
            "verbs": ["get", "list", "watch", "create", "delete"],
        },
        {
            "apiGroups": ["sparkoperator.k8s.io"],
            "resources": ["scheduledsparkapplications", "sparkconnects"],
            "verbs": ["get", "list", "watch"],
        },
        {
            "apiGroups": ["sparkoperator.k8s.io"],
            "resources": ["sparkapplications/status", "sparkapplications/finalizers"],
            "verbs": ["update"],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "update", "patch"]},
    ]
    drivers = [
        {"apiGroups": [""], "resources": list(_EXECUTORS), "verbs": [*change, "patch", "delete", "deletecollection"]}
    ]
    return [
        item
        for name, rules in ((_OPERATOR, operators), (DRIVER_ACCOUNT, drivers))
        for item in _account(name, namespace, rules)
    ]


def _account(name: str, namespace: str, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    metadata = {"name": name, "namespace": namespace}
    rbac = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        },
    ]


def _kubeconfig(cluster: Cluster, namespace: str, folder: Path) -> Path:
    token = cluster.kubectl("create", "token", _OPERATOR, "-n", namespace, "--duration=4h").strip()
    content = yaml.safe_load(cluster.kubeconfig.read_text())
    content["users"] = [{"name": user["name"], "user": {"token": token}} for user in content["users"]]
    file = folder / "spark-operator.kubeconfig"
    file.write_text(yaml.safe_dump(content))
    return file
