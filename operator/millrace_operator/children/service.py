"""The headless Service, which gives every pod a DNS name of its own.

Addresses are published before a pod is ready: a pod that restores is asked for its status, and by other replicas for the state
it has. Nothing balances load over it, so no traffic reaches a pod by being announced early.
"""

from __future__ import annotations

from typing import Any

from millrace_operator.children import names
from millrace_operator.children.app import AppRevision
from millrace_operator.children.labels import labels, selector
from millrace_operator.children.ports import HTTP_PORT, HTTP_PORT_NAME


def headless_service(app: AppRevision) -> dict[str, Any]:
    """Return the Service of an application's pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": names.service(app.name), "namespace": app.namespace, "labels": labels(app.name)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(app.name),
            "ports": [{"name": HTTP_PORT_NAME, "port": HTTP_PORT, "protocol": "TCP", "targetPort": HTTP_PORT_NAME}],
        },
    }
