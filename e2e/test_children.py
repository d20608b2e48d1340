"""Every object that the operator creates for a StreamsApp, checked by Kubernetes itself.

A real API server accepts each one in a namespace that enforces Restricted pod security, and stores it in such a way that there is
nothing left to apply; applying it again writes nothing. kubeconform finds no field that Kubernetes does not know.
"""

import copy
import json
import secrets
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client, dynamic
from tests.operator.children.apps import BOUND, FULL, SMALL, rendered, revision_of

from e2e.cluster import Cluster, tools
from millrace_operator.children import naming
from millrace_operator.children.canonical_form import canonical_quantity
from millrace_operator.children.plan_job import plan_job
from millrace_operator.children.pod import pod_template
from millrace_operator.reconcile.drift import needs_apply, stamped

MANAGER = "millrace-operator"
RUN = secrets.token_hex(3)
"""Distinguishes the namespaces from those of an earlier run, which may still be terminating."""

PECULIAR: dict[str, Any] = {
    "metadata": {"annotations": {"example.com/empty": ""}},
    "resources": {"limits": {"cpu": "0.250", "memory": "1.5Gi", "example.com/gpu": 1}},
    "env": [{"name": "NOTHING", "value": ""}, {"name": "OTEL_SERVICE_NAME", "value": "mine"}],
    "nodeSelector": {"node-role.example.com/streams": ""},
    "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}],
    "affinity": {
        "podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "topologyKey": "rack",
                        "labelSelector": {"matchLabels": {"a": ""}, "matchExpressions": []},
                        "namespaceSelector": {},
                        "namespaces": [],
                    },
                }
            ]
        }
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "rack",
            "whenUnsatisfiable": "DoNotSchedule",
            "minDomains": 2,
            "matchLabelKeys": [],
        }
    ],
    "volumes": [
        {"name": "settings", "configMap": {"name": "settings", "items": [], "optional": False, "defaultMode": 0o400}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "0.5Gi"}},
        {
            "name": "plugin",
            "csi": {"driver": "d.example", "readOnly": False, "volumeAttributes": {"a": "", "readOnly": "x"}},
        },
        {
            "name": "bound",
            "projected": {
                "sources": [{"serviceAccountToken": {"path": "token", "audience": "", "expirationSeconds": 3600}}]
            },
        },
        {
            "name": "own",
            "ephemeral": {
                "volumeClaimTemplate": {
                    "metadata": {"labels": {"a": ""}, "annotations": {}},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "storageClassName": "",
                        "resources": {"requests": {"storage": 1073741824}},
                    },
                }
            },
        },
    ],
    "volumeMounts": [{"name": "settings", "mountPath": "/settings", "readOnly": False, "subPath": ""}],
    "sidecars": [
        {
            "name": "sidecar",
            "image": "registry.example/sidecar:1",
            "args": [""],
            "command": [],
            "tty": False,
            "stdin": False,
            "env": [
                {
                    "name": "MEMORY",
                    "valueFrom": {
                        "resourceFieldRef": {"containerName": "", "resource": "limits.memory", "divisor": "1024Ki"}
                    },
                }
            ],
            "resources": {"limits": {"cpu": "1000m", "memory": "1000000Ki"}, "requests": {}},
            "ports": [{"containerPort": 9000, "hostPort": 0, "name": ""}],
            "livenessProbe": {
                "tcpSocket": {"port": 9000},
                "initialDelaySeconds": 0,
                "periodSeconds": 0,
                "failureThreshold": 0,
            },
            "securityContext": {},
            "lifecycle": None,
        }
    ],
    "initContainers": [
        {
            "name": "beside",
            "image": "registry.example/beside:1",
            "restartPolicy": "Always",
            "securityContext": {"privileged": False, "capabilities": {"drop": ["ALL"], "add": []}},
        }
    ],
}
"""What users may write and the API server stores differently: empty values, zeros, unusual quantities."""

SPECS: dict[str, dict[str, Any]] = {
    "small": SMALL,
    "full": FULL,
    "a" * 52: FULL,
    "peculiar": SMALL
    | {
        "podTemplate": PECULIAR,
        "storage": {"size": "1.5Gi"},
        "networkPolicy": {
            "enabled": True,
            "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": []}}], "ports": []}],
            "ingressFrom": [{"namespaceSelector": {}}, {"podSelector": {"matchLabels": {"a": ""}}}],
        },
    },
    "tls": SMALL | {"kafka": {"bootstrapServers": ["kafka:9093"], "tls": {}, "auth": FULL["kafka"]["auth"]}},
    "bound": SMALL | {"kafka": BOUND},
    "strimzi": SMALL
    | {
        "kafka": {
            "bootstrapServers": ["kafka:9093"],
            "tls": {"caSecretRef": {"name": "shop-cluster-ca-cert"}, "clientCertSecretRef": {"name": "orders"}},
            "auth": {"type": "scram-sha-512", "secretRef": {"name": "orders"}},
        }
    },
    "quiet": SMALL
    | {
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "storage": {"storageClassName": "none"},
    },
}


class Api:
    """The API server, as the operator uses it."""

    def __init__(self, api_client: client.ApiClient) -> None:
        self.client = api_client
        self._dynamic = dynamic.DynamicClient(api_client)

    def apply(self, wanted: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Apply an object on the server side and return what is stored."""
        kind = self._dynamic.resources.get(api_version=wanted["apiVersion"], kind=wanted["kind"])
        metadata = wanted["metadata"]
        kept = self._dynamic.server_side_apply(
            kind,
            body=wanted,
            name=metadata["name"],
            namespace=metadata.get("namespace"),
            field_manager=MANAGER,
            force_conflicts=True,
            **options,
        )
        return dict(kept.to_dict())

    def try_pod(self, namespace: str, spec: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
        """Have all admission plugins check a pod, without creating it, and return what would be stored."""
        pod = {"metadata": {"name": "tried-0", "labels": labels}, "spec": spec}
        kept = client.CoreV1Api(self.client).create_namespaced_pod(namespace, pod, dry_run="All")
        return dict(self.client.sanitize_for_serialization(kept))


def namespace_of(name: str) -> str:
    """Return the namespace in which a spec's children are tested."""
    return f"{RUN}-{name}"


def children_of(name: str) -> list[dict[str, Any]]:
    """Return the children of a spec, as reconciliation applies them."""
    app = revision_of(SPECS[name], name=name, namespace=namespace_of(name))
    return [stamped(child, "uid-of-app") for child in rendered(app, SPECS[name])]


def differences(wanted: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Yield the paths where what is stored does not match exactly what was wanted."""
    if isinstance(wanted, dict) and isinstance(kept, dict):
        for key, value in wanted.items():
            if key in kept:
                yield from differences(value, kept[key], f"{path}.{key}")
            else:
                yield f"{path}.{key} is gone"
    elif isinstance(wanted, list) and isinstance(kept, list) and len(wanted) == len(kept):
        for index, (one, other) in enumerate(zip(wanted, kept, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif wanted != kept:
        yield f"{path} is {kept!r}, not {wanted!r}"


def settled(kept: dict[str, Any]) -> dict[str, Any]:
    """Return the parts that only a write changes: everything except the status and the server's own bookkeeping."""
    noise = ("resourceVersion", "managedFields")
    metadata = {key: value for key, value in kept["metadata"].items() if key not in noise}
    return {**{key: value for key, value in kept.items() if key != "status"}, "metadata": metadata}


@pytest.fixture(scope="module")
def api(api_server: Cluster) -> Api:
    """Return an API server with the priority class and runtime class used in the specs; pods stay unscheduled."""
    served = Api(api_server.client)
    served.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": FULL["podTemplate"]["priorityClassName"]},
            "value": 1000,
        }
    )
    served.apply(
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": FULL["podTemplate"]["runtimeClassName"]},
            "handler": "sandbox",
        }
    )
    return served


@pytest.fixture(scope="module", params=SPECS)
def name(request, api) -> Iterator[str]:
    """Return the name of a spec whose namespace enforces Restricted and has the user's ServiceAccount."""
    spec_name, namespace = request.param, namespace_of(request.param)
    levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": levels}})
    account = {"name": FULL["serviceAccountName"], "namespace": namespace}
    api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    yield spec_name
    client.CoreV1Api(api.client).delete_namespace(namespace)


def test_children_are_accepted_and_stored_unchanged(api, name):
    """Each child is accepted, in a dry run and for real; everything is stored, and nothing is left to apply."""
    for child in children_of(name):
        api.apply(child, dry_run="All")
        kept = api.apply(child)
        assert list(differences(child, kept)) == [], child["kind"]
        assert not needs_apply(child, kept), child["kind"]


def test_applying_again_writes_nothing(api, name):
    """Applying an object a second time changes nothing."""
    for child in children_of(name):
        before = api.apply(child)
        assert settled(api.apply(child)) == settled(before)


def test_unwanted_fields_are_removed(api, name):
    """A field that is no longer wanted is detected, and removed when the object is applied."""
    for child in children_of(name):
        labelled = copy.deepcopy(child)
        labelled["metadata"]["labels"]["example.com/old"] = "yes"
        kept = api.apply(stamped(labelled, "uid-of-app"))
        assert needs_apply(child, kept)
        assert "example.com/old" not in api.apply(child)["metadata"]["labels"]


def test_pods_are_admitted_where_restricted_is_enforced(api, name):
    """The pods of the StatefulSet and of the plan Job pass every admission check, including Pod Security at level Restricted."""
    app = revision_of(SPECS[name], name=name, namespace=namespace_of(name))
    for child in children_of(name):
        if child["kind"] == "ServiceAccount":
            api.apply(child)
    running, planning = pod_template(app), plan_job(app)["spec"]["template"]
    running["spec"]["volumes"].append({"name": naming.STATE_VOLUME, "emptyDir": {}})
    for template in (running, planning):
        api.try_pod(namespace_of(name), template["spec"], template["metadata"]["labels"])


def test_namespace_enforces_restricted_pods(api, name):
    """A pod that drops one of the restrictions is refused, by Pod Security and nothing else."""
    app = revision_of(SPECS[name], name=name, namespace=namespace_of(name))
    template = plan_job(app)["spec"]["template"]
    template["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(client.ApiException, match="violates PodSecurity"):
        api.try_pod(namespace_of(name), template["spec"], template["metadata"]["labels"])


def test_quantities_are_stored_as_written(api, name):
    """Whatever number and suffix a user writes, the operator's version of it is what the server stores."""
    numbers = ("1", "1.5", "0.3", "0.125", "7.25", "010", "999", "1000", "1024", "1536", "4096.125", "120000")
    suffixes = ("", "Ki", "Mi", "Gi", "Ti", "n", "u", "m", "k", "M", "G", "T", "e3", "E-2", "e1")
    ours = [canonical_quantity(number + suffix) for number in numbers for suffix in suffixes]
    pod = plan_job(revision_of(SMALL, name=name, namespace=namespace_of(name)))["spec"]["template"]
    pod["spec"]["volumes"] += [
        {"name": f"v{index}", "emptyDir": {"sizeLimit": quantity}} for index, quantity in enumerate(ours)
    ]
    pod["spec"]["serviceAccountName"] = FULL["serviceAccountName"]
    kept = api.try_pod(namespace_of(name), pod["spec"], pod["metadata"]["labels"])["spec"]["volumes"]
    assert [volume["emptyDir"]["sizeLimit"] for volume in kept if volume["name"].startswith("v")] == ours


def conforming(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return kubeconform's complaints about objects."""
    command = [str(tools.path("kubeconform")), "-strict", "-schema-location", tools.schemas(), "-output", "json", "-"]
    text = "\n---\n".join(json.dumps(item) for item in objects)
    result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    answer = json.loads(result.stdout)
    return list(answer.get("resources", []))


@pytest.mark.parametrize("spec", SPECS)
def test_kubeconform_finds_nothing(spec):
    """No child has a field that Kubernetes does not know, or lacks a required one; PodMonitors are not part of Kubernetes."""
    assert conforming([child for child in children_of(spec) if child["kind"] != "PodMonitor"]) == []


def test_kubeconform_finds_misspelt_fields():
    """A misspelt field is found."""
    (job,) = (child for child in children_of("small") if child["kind"] == "Job")
    job["spec"]["backofLimit"] = 1
    assert len(conforming([job])) == 1
