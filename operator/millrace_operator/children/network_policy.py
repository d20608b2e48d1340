"""The NetworkPolicies: who may talk to an application's pods, and where these and the plan Job may connect to.

Pods serve one port, for health, status and metrics; no request to it changes anything. It is open to the operator, to whoever
scrapes metrics, and to kubelets, always. Any other port is open to the application's own pods only, which may forward queries
to each other, unless the spec has a rule for it. The operator is a pod with its labels *in its own namespace*: anybody may give
their pods any label. Brokers cannot be named in a policy (they are addresses outside the cluster, or pods of any operator), so
pods may connect everywhere unless the spec lists where to. The plan Job may connect nowhere.
"""

from __future__ import annotations

from typing import Final

from millrace_operator.children import naming
from millrace_operator.children.canonical_form import canonical_list
from millrace_operator.children.naming import HTTP_PORT_NAME, MANAGER, Component, labels, selector
from millrace_operator.model import AppRevision, Json

OPERATOR_LABELS: Final = {"app.kubernetes.io/name": MANAGER}
"""The labels of the operator's pods."""

_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_DNS_PORT: Final = 53


def network_policy(app: AppRevision, operator_namespace: str) -> Json | None:
    """Return the NetworkPolicy of the application's pods; None if the spec does not want one.

    Args:
        app: The application.
        operator_namespace: Where the operator runs.
    """
    wanted = app.spec.network_policy
    if not wanted.enabled:
        return None
    own = {"podSelector": {"matchLabels": selector(app.name)}}
    operator = {
        "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: operator_namespace}},
        "podSelector": {"matchLabels": dict(OPERATOR_LABELS)},
    }
    everybody = wanted.ingress_from is None and app.spec.observability.metrics.pod_monitor.enabled
    readers = {} if everybody else {"from": [operator, *canonical_list(wanted.ingress_from or ())]}
    ingress = [
        {"from": [own]},
        {**readers, "ports": [{"port": HTTP_PORT_NAME, "protocol": "TCP"}]},
        *canonical_list(wanted.ingress),
    ]
    rules: Json = {"ingress": ingress, "policyTypes": ["Ingress"]}
    if wanted.egress is not None:
        dns = {"ports": [{"port": _DNS_PORT, "protocol": protocol} for protocol in ("UDP", "TCP")]}
        rules = {
            "egress": [dns, {"to": [own]}, *canonical_list(wanted.egress)],
            "ingress": ingress,
            "policyTypes": ["Ingress", "Egress"],
        }
    return _policy(app, app.name, "runtime", rules)


def plan_network_policy(app: AppRevision) -> Json | None:
    """Return the NetworkPolicy that cuts plan Jobs off the network; None if the spec does not want policies."""
    if not app.spec.network_policy.enabled:
        return None
    return _policy(app, naming.plan_network_policy(app.name), "plan", {"policyTypes": ["Ingress", "Egress"]})


def _policy(app: AppRevision, name: str, component: Component, rules: Json) -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": app.namespace, "labels": labels(app.name, component)},
        "spec": {"podSelector": {"matchLabels": selector(app.name, component)}, **rules},
    }
