"""What an application's children are called.

An application's name has at most 52 characters (the API server sees to it), because a StatefulSet's pods carry `<name>-<hash>`
in a label of at most 63. Names that would be longer than that, and become a label too, are cut and made unique by a hash.
"""

from __future__ import annotations

import hashlib
from typing import Final

LABEL_LENGTH: Final = 63
_CUT: Final = 40
STATE_VOLUME: Final = "state"
"""The name of the claim template, and so of the volume, that holds the state directory."""


def stateful_set(app: str) -> str:
    """Return the name of the StatefulSet, which is also that of the headless Service: pods are `<app>-<index>`."""
    return app


def pod(app: str, index: int) -> str:
    """Return the name of a pod, which is also its static member id in the consumer group."""
    return f"{stateful_set(app)}-{index}"


def claim(app: str, index: int) -> str:
    """Return the name of the claim of a pod's state volume, which the StatefulSet's controller gives it."""
    return f"{STATE_VOLUME}-{pod(app, index)}"


def service(app: str) -> str:
    """Return the name of the headless Service."""
    return app


def service_account(app: str) -> str:
    """Return the name of the application's own ServiceAccount."""
    return app


def disruption_budget(app: str) -> str:
    """Return the name of the PodDisruptionBudget."""
    return app


def network_policy(app: str) -> str:
    """Return the name of the NetworkPolicy of the application's pods."""
    return app


def plan_network_policy(app: str) -> str:
    """Return the name of the NetworkPolicy of the application's plan Jobs."""
    return f"{app}-plan"


def pod_monitor(app: str) -> str:
    """Return the name of the PodMonitor."""
    return app


def revision_config_map(app: str, revision: str) -> str:
    """Return the name of the ConfigMap that holds a revision's manifest."""
    return f"{app}-rev-{revision}"


def plan_config_map(app: str, revision: str) -> str:
    """Return the name of the ConfigMap that holds a revision's topology plan."""
    return f"{app}-plan-{revision}"


def plan_job(app: str, revision: str) -> str:
    """Return the name of the Job that finds out a revision's plan.

    >>> plan_job("orders", "0123456789")
    'orders-plan-0123456789'
    >>> plan_job("orders-of-all-shops-and-of-all-warehouses-in-europe", "0123456789")
    'orders-of-all-shops-and-of-all-warehouse-d2113b-plan-0123456789'
    """
    name = f"{app}-plan-{revision}"
    if len(name) <= LABEL_LENGTH:
        return name
    return f"{app[:_CUT].rstrip('-')}-{hashlib.sha256(app.encode()).hexdigest()[:6]}-plan-{revision}"
