"""What helm renders from the chart, for many values: valid, consistent objects without excessive permissions."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e import manifests
from e2e.cluster import tools
from e2e.manifests import CHART, KUSTOMIZE, ROOT, RenderError, render

RELEASE, NAMESPACE = "stream", "platform"
NAME = f"{RELEASE}-millrace-operator"
DIGEST = "sha256:" + "a" * 64
CLUSTER_SCOPED = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "Namespace",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
FOREIGN = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
"""Kinds that are not part of Kubernetes itself."""

EVERYTHING: dict[str, Any] = {
    "image": {"repository": "registry.example.com:5000/millrace/operator", "digest": DIGEST, "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "replicas": 3,
    "operator": {
        "logLevel": "DEBUG",
        "logFormat": "text",
        "workers": 16,
        "extraEnv": [{"name": "OTEL_SDK_DISABLED", "value": "true"}],
    },
    "serviceAccount": {"annotations": {"example.com/role": "streams"}},
    "metrics": {
        "service": {"annotations": {"example.com/scrape": "true"}},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "for": "5m",
            "extraRules": [{"alert": "Mine", "expr": "vector(1)"}],
        },
        "dashboard": {"enabled": True, "annotations": {"grafana_folder": "Streams"}},
    },
    "networkPolicy": {
        "from": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}],
        "egress": [{"ports": [{"port": 9092, "protocol": "TCP"}]}],
    },
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {},
        }
    ],
    "podAnnotations": {"example.com/note": "yes"},
    "podLabels": {"team": "platform"},
    "commonLabels": {"cost-center": "42"},
}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "namespaces": {"watchNamespaces": ["orders", "payments"]},
    "own namespace only": {
        "watchNamespaces": [NAMESPACE],
        "rbac": {"readStorageClasses": False, "readNodes": False, "aggregate": False},
        "crds": {"install": False},
    },
    "no rights": {"rbac": {"create": False, "aggregate": False}},
    "foreign account": {"serviceAccount": {"create": False, "name": "operators"}},
    "CRDs go too": {"crds": {"keep": False}},
    "pod monitor": {"metrics": {"podMonitor": {"enabled": True}}},
    "none running": {"replicas": 0, "networkPolicy": {"enabled": False}},
    "own affinity": {"replicas": 2, "affinity": {"nodeAffinity": {}}, "podDisruptionBudget": {"maxUnavailable": "50%"}},
}


def objects(values: dict[str, Any], **release: str) -> list[dict[str, Any]]:
    """Return the rendered objects."""
    text = render(values, **{"release": RELEASE, "namespace": NAMESPACE, **release})
    return [item for item in yaml.safe_load_all(text) if item]


@pytest.fixture(scope="module", params=COMBINATIONS)
def values(request) -> dict[str, Any]:
    """Each combination of values."""
    return COMBINATIONS[request.param]


@pytest.fixture(scope="module")
def rendered(values) -> list[dict[str, Any]]:
    """The objects rendered for them."""
    return objects(values)


def of_kind(items: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind."""
    return [item for item in items if item["kind"] == kind]


def the(items: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the only object of a kind."""
    (item,) = of_kind(items, kind)
    return item


def pods(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the specs of all pods: the operator's and the one of `helm test`."""
    for item in items:
        if item["kind"] == "Deployment":
            yield item["spec"]["template"]["spec"]
        elif item["kind"] == "Pod":
            yield item["spec"]


def conform(text: str) -> subprocess.CompletedProcess[str]:
    """Validate objects against Kubernetes' own schemas; unknown fields and duplicate keys are errors."""
    command = [
        str(tools.path("kubeconform")),
        "-strict",
        "-summary",
        "-schema-location",
        tools.schemas(),
        "-skip",
        ",".join(FOREIGN),
    ]
    return subprocess.run([*command, "-"], input=text, capture_output=True, text=True, check=False)


def helm(*arguments: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm."""
    flags = [] if values is None else ["--values", "-"]
    return subprocess.run(
        [str(tools.path("helm")), *arguments, *flags],
        input=yaml.safe_dump(values),
        capture_output=True,
        text=True,
        check=False,
    )


def test_lint(values) -> None:
    """`helm lint --strict` finds nothing."""
    result = helm("lint", "--strict", str(CHART), "--kube-version", manifests.KUBE_VERSION, values=values)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 chart(s) failed" in result.stdout


def test_kubernetes_knows_every_field(rendered) -> None:
    """Every object is valid under strict schemas; only the Prometheus operator's kinds are not part of Kubernetes."""
    result = conform(yaml.safe_dump_all(rendered))
    assert result.returncode == 0, result.stdout + result.stderr
    known = [item for item in rendered if item["kind"] not in FOREIGN]
    assert f"Valid: {len(known)}, Invalid: 0, Errors: 0" in result.stdout


def test_kubeconform_finds_what_is_wrong() -> None:
    """The check above can fail: a misspelt field in a pod is an error."""
    text = render({}).replace("readOnlyRootFilesystem", "readOnlyRootFileSystem")
    assert conform(text).returncode != 0


def test_every_object_is_labelled_and_in_its_namespace(rendered, values) -> None:
    """Objects have the recommended labels, and namespaced ones have a namespace, so that `kubectl apply` accepts them."""
    for item in rendered:
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == RELEASE
        assert labels["helm.sh/chart"].startswith("millrace-operator-")
        assert labels.items() >= values.get("commonLabels", {}).items()
        if item["kind"] in CLUSTER_SCOPED:
            assert "namespace" not in item["metadata"]
        else:
            assert item["metadata"]["namespace"] in {NAMESPACE, *values.get("watchNamespaces", [])}


def test_names_are_unique(rendered) -> None:
    """No object is rendered twice."""
    keys = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in rendered]
    assert len(keys) == len(set(keys))


def test_selectors_select_the_operator_only(rendered) -> None:
    """Deployment, Service, policies and monitors select the operator's pod, and never the pod of `helm test`."""
    labels = the(rendered, "Deployment")["spec"]["template"]["metadata"]["labels"]
    test_labels = the(rendered, "Pod")["metadata"]["labels"]
    selectors = [the(rendered, "Service")["spec"]["selector"]]
    for kind in ("Deployment", "PodDisruptionBudget", "ServiceMonitor", "PodMonitor"):
        selectors += [item["spec"]["selector"]["matchLabels"] for item in of_kind(rendered, kind)]
    selectors += [item["spec"]["podSelector"]["matchLabels"] for item in of_kind(rendered, "NetworkPolicy")]
    for selector in selectors:
        assert labels.items() >= selector.items()
        assert not test_labels.items() >= selector.items()


def test_pods_are_restricted(rendered) -> None:
    """Every pod, including that of `helm test`, satisfies the Pod Security Standard `restricted` and has limits."""
    found = list(pods(rendered))
    assert len(found) == 2
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert all({*volume} - {"name"} <= {"emptyDir", "configMap"} for volume in pod["volumes"])
        assert pod["enableServiceLinks"] is False
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


def test_everything_referenced_exists(rendered, values) -> None:
    """Bindings refer to existing roles and to the pods' ServiceAccount, volumes to ConfigMaps of the release."""
    there = {(item["kind"], item["metadata"]["name"]) for item in rendered}
    account = values.get("serviceAccount", {}).get("name", NAME)
    assert {pod["serviceAccountName"] for pod in pods(rendered)} == {account}
    assert (("ServiceAccount", account) in there) is values.get("serviceAccount", {}).get("create", True)
    for binding in [*of_kind(rendered, "RoleBinding"), *of_kind(rendered, "ClusterRoleBinding")]:
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in there
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    for pod in pods(rendered):
        for volume in pod["volumes"]:
            assert "configMap" not in volume or ("ConfigMap", volume["configMap"]["name"]) in there


def rules(items: list[dict[str, Any]], kind: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rules by namespace and name of their role."""
    return {
        f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}": item["rules"]
        for item in of_kind(items, kind)
    }


def test_no_excessive_permissions(rendered) -> None:
    """No wildcards; Secrets and nodes are only read one by one; nobody gets permissions, tokens or pods through the operator."""
    for rule in itertools.chain(*rules(rendered, "ClusterRole").values(), *rules(rendered, "Role").values()):
        assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        if {"secrets", "nodes"} & {*rule["resources"]}:
            assert rule["verbs"] == ["get"]
        forbidden = {
            "pods/exec",
            "pods/attach",
            "pods/portforward",
            "pods/proxy",
            "serviceaccounts/token",
            "roles",
        }
        assert not forbidden & {*rule["resources"]}
        assert not {"escalate", "bind", "impersonate"} & {*rule["verbs"]}


def test_all_namespaces_are_served_by_default() -> None:
    """Without watchNamespaces there is one ClusterRole for all; only the Lease is limited to the operator's own namespace."""
    items = objects({})
    assert [*rules(items, "Role")] == [f"{NAMESPACE}/{NAME}-leader"]
    (cluster_role,) = [found for name, found in rules(items, "ClusterRole").items() if name == f"/{NAMESPACE}:{NAME}"]
    assert {"streamsapps", "secrets"} <= {resource for rule in cluster_role for resource in rule["resources"]}
    assert {"name": "MILLRACE_OPERATOR_NAMESPACES", "value": ""} in next(pods(items))["containers"][0]["env"]


def test_namespaces_are_served_by_roles_in_them() -> None:
    """With watchNamespaces nothing can be read or written elsewhere, except which StorageClasses allow expansion, and nodes."""
    rbac = {"aggregate": False, "namespaceDeletion": False}
    items = objects({"watchNamespaces": ["orders", "payments"], "rbac": rbac})
    assert [*rules(items, "Role")] == [f"orders/{NAME}", f"payments/{NAME}", f"{NAMESPACE}/{NAME}-leader"]
    assert rules(items, "ClusterRole") == {
        f"/{NAMESPACE}:{NAME}:storage-classes": [
            {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get"]}
        ],
        f"/{NAMESPACE}:{NAME}:nodes": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
    }
    assert {"name": "MILLRACE_OPERATOR_NAMESPACES", "value": "orders,payments"} in next(pods(items))["containers"][0][
        "env"
    ]


def test_deletion_permissions_are_limited_to_the_namespaces() -> None:
    """While a namespace is deleted the operator needs a ClusterRole, which a policy limits to the namespaces it serves."""
    items = objects({"watchNamespaces": ["orders", "payments"]})
    found = rules(items, "ClusterRole")[f"/{NAMESPACE}:{NAME}:namespace-deletion"]
    assert {resource for rule in found for resource in rule["resources"] if "resourceNames" not in rule} == {
        *("streamsapps", "streamsresets", "streamsbackfills"),
        *("streamsapps/status", "streamsresets/status", "streamsbackfills/status"),
    }
    policies = of_kind(items, "ValidatingAdmissionPolicy")
    policy = next(item for item in policies if item["metadata"]["name"].endswith(".namespaces"))
    assert policy["spec"]["validations"][0]["expression"] == 'request.namespace in ["orders","payments"]'


def test_operator_may_only_write_its_own_lease() -> None:
    """Two releases in a namespace have separate Leases, and each may only write its own."""
    items = objects({})
    environment = {variable["name"]: variable.get("value") for variable in next(pods(items))["containers"][0]["env"]}
    named = [
        rule["resourceNames"] for rule in rules(items, "Role")[f"{NAMESPACE}/{NAME}-leader"] if "resourceNames" in rule
    ]
    assert named == [[environment["MILLRACE_OPERATOR_LEASE_NAME"]]]


def test_crds_match_the_project_and_are_kept() -> None:
    """The CRDs are the files in crds/, and helm keeps them, and with them every StreamsApp, on uninstall."""
    crds = {item["metadata"]["name"]: item for item in of_kind(objects({}), "CustomResourceDefinition")}
    originals = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("streams*.yaml")]
    assert {*crds} == {item["metadata"]["name"] for item in originals}
    for original in originals:
        crd = crds[original["metadata"]["name"]]
        assert crd["spec"] == original["spec"]
        assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert all(
        "annotations" not in item["metadata"]
        for item in of_kind(objects({"crds": {"keep": False}}), "CustomResourceDefinition")
    )
    assert not of_kind(objects({"crds": {"install": False}}), "CustomResourceDefinition")


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1)])
def test_replicas_are_spread_and_protected_when_there_are_several(replicas: int, budgets: int) -> None:
    """With one replica there is no budget, which would keep its node from being drained; two replicas avoid each other's node."""
    items = objects({"replicas": replicas})
    assert len(of_kind(items, "PodDisruptionBudget")) == budgets
    assert ("affinity" in next(pods(items))) is bool(budgets)
    assert the(items, "Deployment")["spec"]["replicas"] == replicas


def test_all_values_reach_the_pod() -> None:
    """Values for the pod end up in the pod."""
    items = objects(EVERYTHING)
    deployment = the(items, "Deployment")
    pod, (container,) = next(pods(items)), next(pods(items))["containers"]
    assert container["image"] == f"registry.example.com:5000/millrace/operator@{DIGEST}"
    assert container["imagePullPolicy"] == "Always"
    for name in ("imagePullSecrets", "priorityClassName", "nodeSelector", "tolerations", "topologySpreadConstraints"):
        assert pod[name] == EVERYTHING[name]
    assert (
        deployment["spec"]["template"]["metadata"]["labels"].items()
        >= {"team": "platform", "cost-center": "42"}.items()
    )
    assert deployment["spec"]["template"]["metadata"]["annotations"]["example.com/note"] == "yes"
    assert EVERYTHING["operator"]["extraEnv"][0] in container["env"]
    assert the(items, "ServiceAccount")["metadata"]["annotations"] == {"example.com/role": "streams"}
    (ingress,) = the(items, "NetworkPolicy")["spec"]["ingress"]
    assert ingress["from"][0] == EVERYTHING["networkPolicy"]["from"][0]
    assert the(items, "Pod")["metadata"]["labels"].items() >= ingress["from"][1]["podSelector"]["matchLabels"].items()
    assert the(items, "NetworkPolicy")["spec"]["egress"] == EVERYTHING["networkPolicy"]["egress"]


def test_alerts_are_about_the_release() -> None:
    """Placeholders are replaced: alerts use the operator's namespace and the configured wait; the user's own rules come last."""
    rule = the(objects(EVERYTHING), "PrometheusRule")
    alerts = rule["spec"]["groups"][0]["rules"]
    assert "@" not in yaml.safe_dump(alerts)
    assert alerts[-1] == {"alert": "Mine", "expr": "vector(1)"}
    down = next(alert for alert in alerts if alert["alert"] == "MillraceOperatorDown")
    assert f'namespace="{NAMESPACE}"' in down["expr"]
    assert down["for"] == "5m"
    assert "{{ $value }}" in yaml.safe_dump(alerts)


def test_dashboards_are_found_by_grafana() -> None:
    """The ConfigMap has the label that the sidecar looks for, and contains every dashboard."""
    (found,) = [
        item for item in of_kind(objects(EVERYTHING), "ConfigMap") if item["metadata"]["name"].endswith("-dashboards")
    ]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {*found["data"]} == {path.name for path in (CHART / "files/dashboards").iterdir()}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}}, "disable one"),
        ({"serviceAccount": {"create": False}}, "give serviceAccount.name"),
        ({"replica": 2}, "replica"),
        ({"operator": {"logLevel": "loud"}}, "operator.logLevel"),
        ({"watchNamespaces": "orders"}, "watchNamespaces"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], message: str) -> None:
    """Helm stops with a message that names the value."""
    with pytest.raises(RenderError) as error:
        render(values)
    assert message in str(error.value).replace("/", ".")


def test_old_kubernetes_is_refused() -> None:
    """The chart says which Kubernetes it needs."""
    result = helm("template", RELEASE, str(CHART), "--kube-version", "1.29.0")
    assert result.returncode != 0
    assert "requires kubeVersion" in result.stderr


@pytest.mark.parametrize(("release", "name"), [("millrace-operator", "millrace-operator"), ("a" * 53, None)])
def test_names_fit(release: str, name: str | None) -> None:
    """A release with the chart's own name gives short names; the longest name that helm allows gives valid ones."""
    items = objects(EVERYTHING, release=release)
    found = the(items, "Deployment")["metadata"]["name"]
    assert found == (name or found)
    for item in items:
        assert len(item["metadata"]["name"]) <= 63 or item["kind"] in CLUSTER_SCOPED
        assert all(len(value) <= 63 for value in item["metadata"]["labels"].values())


def test_rendered_manifests_are_up_to_date() -> None:
    """charts/kustomize matches the chart; run `make manifests` after a change."""
    assert manifests.main(["--check"]) == 0


@pytest.mark.parametrize("overlay", ["cluster-wide", "namespaced"])
def test_kustomize(overlay: str) -> None:
    """`kubectl apply -k` accepts the overlay: Kubernetes knows every field, and nothing in it is specific to helm."""
    command = [*tools.kubernetes("kubectl"), "kustomize", str(KUSTOMIZE / overlay)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result = conform(text)
    assert result.returncode == 0, result.stdout + result.stderr
    items = list(yaml.safe_load_all(text))
    assert "helm" not in text.lower().replace("helm test", "")
    assert bool(of_kind(items, "CustomResourceDefinition")) is (overlay == "cluster-wide")
    assert the(items, "Deployment")["metadata"]["namespace"] == manifests.NAMESPACE


def test_namespaced_overlay_can_be_moved(tmp_path) -> None:
    """Setting `namespace` moves the whole overlay: objects, bindings, and so the namespace that is served."""
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {"namespace": "orders", "resources": ["base"], "images": [{"name": "millrace-operator", "newTag": "7"}]}
        )
    )
    (tmp_path / "base").symlink_to(KUSTOMIZE / "namespaced")
    command = [*tools.kubernetes("kubectl"), "kustomize", str(tmp_path)]
    items = list(yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert {item["metadata"]["namespace"] for item in items} == {"orders"}
    assert {subject["namespace"] for item in of_kind(items, "RoleBinding") for subject in item["subjects"]} == {
        "orders"
    }
    (container,) = next(pods(items))["containers"]
    assert container["image"] == "millrace-operator:7"
    served = next(item for item in container["env"] if item["name"] == "MILLRACE_OPERATOR_NAMESPACES")
    assert served["valueFrom"] == {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}} or served[
        "valueFrom"
    ] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
