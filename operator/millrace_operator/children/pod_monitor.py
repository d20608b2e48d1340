"""The PodMonitor, by which Prometheus' operator finds the pods. Only clusters that have that operator know the kind."""

from __future__ import annotations

from typing import Any

from millrace_operator.children import names
from millrace_operator.children.app import AppRevision
from millrace_operator.children.labels import labels, selector
from millrace_operator.children.ports import HTTP_PORT_NAME


def pod_monitor(app: AppRevision) -> dict[str, Any] | None:
    """Return the PodMonitor; None if the spec does not want one."""
    wanted = app.spec.observability.metrics.pod_monitor
    if not wanted.enabled:
        return None
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {
            "name": names.pod_monitor(app.name),
            "namespace": app.namespace,
            "labels": {**wanted.labels, **labels(app.name)},
        },
        "spec": {
            "podMetricsEndpoints": [{"interval": wanted.interval, "path": "/metrics", "port": HTTP_PORT_NAME}],
            "selector": {"matchLabels": selector(app.name)},
        },
    }
