"""What pods and the operator may do: what they need, and no more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from e2e.cluster import Cluster
from e2e.helm import Release
from e2e.support.application import Application
from e2e.support.word_count import Words
from millrace_operator.cluster.kinds import CHILDREN, CLAIMS, POD_MONITORS, PODS


def test_pods_have_minimal_permissions(cluster: Cluster, operator: Release, word_count, words: Words) -> None:
    """Restricted is enforced, no pod has an API token or permissions, and the root filesystem is read-only.

    The pods' policy, which this cluster does not enforce, admits the operator in its own namespace; its labels alone are not
    enough.
    """
    app: Application = word_count(words)
    labels = json.loads(cluster.kubectl("get", "namespace", app.namespace, "--output=json"))["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    app.apply()
    app.wait_ready()
    seen = json.loads(app.kubectl("exec", "counts-0", "--", "python3", "-c", LOOK_AT_ONESELF))
    assert seen["token"] is False
    assert seen["read_only"] == ["/", "/etc/millrace/app"]
    assert seen["status"]["NoNewPrivs"] == "1"
    assert seen["status"]["Seccomp"] == "2"
    assert int(seen["status"]["CapEff"], 16) == int(seen["status"]["CapBnd"], 16) == 0
    assert "0" not in seen["status"]["Uid"].split()
    _, rule = app.object("networkpolicy")["spec"]["ingress"]
    [peer] = rule["from"]
    assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": operator.namespace}}
    admitted = ",".join(f"{label}={value}" for label, value in peer["podSelector"]["matchLabels"].items())
    assert cluster.kubectl("get", "pods", "-n", operator.namespace, "-l", admitted, "-o", "name").startswith("pod/")
    account = app.pods()[0]["spec"]["serviceAccountName"]
    assert account == app.name
    rules = rights(cluster, app.namespace, f"system:serviceaccount:{app.namespace}:{account}")
    assert [
        rule for rule in rules if not set(rule["apiGroups"]) <= {"authorization.k8s.io", "authentication.k8s.io"}
    ] == []


LOOK_AT_ONESELF = """
import json, os
print(json.dumps({
    "token": os.path.exists("/var/run/secrets/kubernetes.io"),
    "read_only": [
        folder
        for folder in ("/", "/etc/millrace/app", "/var/lib/millrace", "/tmp")
        if os.statvfs(folder).f_flag & os.ST_RDONLY
    ],
    "status": dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line),
}))
"""


def rights(cluster: Cluster, namespace: str, user: str) -> list[Mapping[str, Any]]:
    """Return the rules about what a user may do in a namespace, as the API server combines them."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    account = user.removeprefix("system:serviceaccount:").partition(":")[0]
    groups = [
        f"--as-group={group}"
        for group in ("system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{account}")
    ]
    flags = ["--filename=-", "--output=json", "--validate=false", f"--as={user}", *groups]
    answer = cluster.kubectl("create", *flags, stdin=json.dumps(review))
    return json.loads(answer)["status"]["resourceRules"]


def test_operator_has_minimal_permissions(cluster: Cluster, operator: Release, namespace: str) -> None:
    """Cluster-wide it reads Secrets and nodes by name only, creates no pods, roles or tokens, and cannot enter containers.

    It may also get the objects it creates by name, to see who has taken a name; that shows no more than a list does.
    """
    pod = json.loads(
        cluster.kubectl(
            "get", "pods", "-n", operator.namespace, "-l", "app.kubernetes.io/name=millrace-operator", "-o", "json"
        )
    )["items"][0]
    account = f"system:serviceaccount:{operator.namespace}:{pod['spec']['serviceAccountName']}"
    allowed: dict[tuple[str, str], set[str]] = {}
    for rule in rights(cluster, namespace, account):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                allowed.setdefault((group, resource), set()).update(rule["verbs"])
    assert not [where for where, verbs in allowed.items() if "*" in {*where, *verbs}]
    assert allowed["", "secrets"] == {"get"}
    for kind in {*CHILDREN, POD_MONITORS} - {PODS, CLAIMS}:
        assert allowed[kind.group, kind.plural] <= {"get", "list", "watch", "create", "patch", "delete"}, kind
    assert allowed["", "pods"] == {"list", "watch", "patch", "delete"}
    assert allowed["", "pods/log"] == allowed["storage.k8s.io", "storageclasses"] == {"get"}
    assert allowed["streams.millrace.dev", "streamsapps"] == {"get", "list", "watch", "patch"}
    subresources = {f"{group}/{resource}" for group, resource in allowed if group in ("", "apps") and "/" in resource}
    assert subresources == {"/pods/log"}
    assert {group for group, _ in allowed} <= {
        "",
        "apps",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "batch",
        "monitoring.coreos.com",
        "spark.apache.org",
        "sparkoperator.k8s.io",
        "networking.k8s.io",
        "policy",
        "storage.k8s.io",
        "streams.millrace.dev",
    }
    assert may(cluster, account, "get", "secrets", namespace)
    for verb, resource in (
        ("list", "secrets"),
        ("watch", "secrets"),
        ("create", "secrets"),
        ("patch", "serviceaccounts/token"),
        ("create", "serviceaccounts/token"),
        ("create", "pods"),
        ("create", "pods/exec"),
        ("create", "pods/ephemeralcontainers"),
        ("get", "pods/proxy"),
        ("create", "rolebindings.rbac.authorization.k8s.io"),
        ("escalate", "roles.rbac.authorization.k8s.io"),
        ("impersonate", "users"),
        ("list", "nodes"),
        ("patch", "nodes"),
        ("get", "namespaces"),
        ("list", "customresourcedefinitions.apiextensions.k8s.io"),
        ("get", "pods"),
        ("get", "persistentvolumeclaims"),
        ("update", "configmaps"),
        ("deletecollection", "configmaps"),
        ("get", "persistentvolumes"),
        ("delete", "namespaces"),
        ("delete", "streamsapps.streams.millrace.dev"),
        ("create", "mutatingwebhookconfigurations.admissionregistration.k8s.io"),
    ):
        assert not may(cluster, account, verb, resource, namespace), f"{verb} {resource}"


def may(cluster: Cluster, user: str, verb: str, resource: str, namespace: str) -> bool:
    """Return whether a user may do something in a namespace."""
    kind, _, sub = resource.partition("/")
    flags = [f"--subresource={sub}"] if sub else []
    answer = cluster.kubectl("auth", "can-i", verb, kind, *flags, f"--as={user}", "-n", namespace, check=False)
    return answer.strip() == "yes"
