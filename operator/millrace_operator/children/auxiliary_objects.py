"""The Service, ServiceAccount, PodDisruptionBudget and PodMonitor. They follow the newest spec, not a revision."""

from __future__ import annotations

from millrace_operator.children.naming import HTTP_PORT, HTTP_PORT_NAME, labels, selector
from millrace_operator.model import AppRevision, Json


def headless_service(app: AppRevision) -> Json:
    """Return the headless Service, which gives every pod a DNS name of its own.

    Addresses are published before a pod is ready: a pod that is restoring is asked for its status, and by other replicas for the
    state it has. Nothing balances load over the Service, so early addresses attract no traffic.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": app.name, "namespace": app.namespace, "labels": labels(app.name)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(app.name),
            "ports": [{"name": HTTP_PORT_NAME, "port": HTTP_PORT, "protocol": "TCP", "targetPort": HTTP_PORT_NAME}],
        },
    }


def service_account(app: AppRevision) -> Json | None:
    """Return the ServiceAccount; None if the spec names one of the user's.

    It is separate so that what a cluster grants to `default` does not apply to the pods. Nothing is granted to it, and neither it
    nor the pods ask for a token: a stream application has no business with the API server.
    """
    if app.spec.service_account_name is not None:
        return None
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": app.name, "namespace": app.namespace, "labels": labels(app.name)},
        "automountServiceAccountToken": False,
    }


def disruption_budget(app: AppRevision, *, hold: bool = False) -> Json | None:
    """Return the PodDisruptionBudget, which says how many pods draining nodes may take at a time; None if none is wanted.

    It limits what may be away rather than what must be there, so that an application with one replica does not block a drain
    forever. A pod that is not ready may always be evicted: a pod that cannot start would otherwise block its node until
    somebody looks.

    Args:
        app: The application.
        hold: Whether no pod may be evicted now, because a task could not go on elsewhere.
    """
    budget = app.spec.pod_disruption_budget
    if not budget.enabled:
        return None
    share = budget.max_unavailable
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app.name, "namespace": app.namespace, "labels": labels(app.name)},
        "spec": {
            "maxUnavailable": 0 if hold else share if share.endswith("%") else int(share),
            "selector": {"matchLabels": selector(app.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def pod_monitor(app: AppRevision) -> Json | None:
    """Return the PodMonitor; None if the spec does not want one. Only clusters with Prometheus' operator know the kind."""
    wanted = app.spec.observability.metrics.pod_monitor
    if not wanted.enabled:
        return None
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {
            "name": app.name,
            "namespace": app.namespace,
            "labels": {**wanted.labels, **labels(app.name)},
        },
        "spec": {
            "podMetricsEndpoints": [{"interval": wanted.interval, "path": "/metrics", "port": HTTP_PORT_NAME}],
            "selector": {"matchLabels": selector(app.name)},
        },
    }
