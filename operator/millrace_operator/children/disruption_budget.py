"""The PodDisruptionBudget: how many pods the draining of nodes may take at a time.

It counts what may be away and not what must be there, so that an application with one replica does not block a drain for ever. A
pod that is not ready may always be evicted: it could otherwise, when it cannot start, hold its node back until somebody looks.
"""

from __future__ import annotations

from typing import Any

from millrace_operator.children import names
from millrace_operator.children.app import AppRevision
from millrace_operator.children.labels import labels, selector


def disruption_budget(app: AppRevision) -> dict[str, Any] | None:
    """Return the PodDisruptionBudget; None if the spec does not want one."""
    budget = app.spec.pod_disruption_budget
    if not budget.enabled:
        return None
    share = budget.max_unavailable
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": names.disruption_budget(app.name), "namespace": app.namespace, "labels": labels(app.name)},
        "spec": {
            "maxUnavailable": share if share.endswith("%") else int(share),
            "selector": {"matchLabels": selector(app.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
