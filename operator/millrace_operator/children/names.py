"""What an application's children are called.

An application's name has at most 52 characters (the API server sees to it), because a StatefulSet's pods carry `<name>-<hash>`
in a label of at most 63.

No two applications ever have a child of the same kind and name. What is appended to an application's name therefore has a fixed
length (a revision has ten digits), is a number after a hyphen, or begins with a dot, which no application's name contains: with
`<name>-plan`, the applications `orders` and `orders-plan` would share an object.
"""

from __future__ import annotations

import hashlib
from typing import Final

LABEL_LENGTH: Final = 63
STATE_VOLUME: Final = "state"
"""The name of the claim template, and so of the volume, that holds the state directory."""


def stateful_set(app: str) -> str:
    """Return the name of the StatefulSet, which is also that of the headless Service: pods are `<app>-<index>`."""
    return app


def pod(app: str, index: int) -> str:
    """Return the name of a pod."""
    return f"{stateful_set(app)}-{index}"


def member(pod: str, uid: str) -> str:
    """Return what the stream threads of a pod are called in the consumer group: how their client ids and instance ids begin.

    A pod's name does not tell whose member that is: an application of the same name may be in the same group, from another
    namespace or another cluster. It has to be in both ids: brokers show a static member that has come back under the client id
    that it had first, and members of the same instance id put each other out of the group.

    >>> member("orders-0", "1b4e28ba-2fa1-11d2-883f-0016d3cca427")
    'orders-0.1b4e28ba'
    """
    return f"{pod}.{uid.partition('-')[0]}"


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
    return f"{app}.plan"


def pod_monitor(app: str) -> str:
    """Return the name of the PodMonitor."""
    return app


def revision_config_map(app: str, revision: str) -> str:
    """Return the name of the ConfigMap that holds a revision's manifest."""
    return f"{app}-rev-{revision}"


def plan_config_map(app: str, revision: str) -> str:
    """Return the name of the ConfigMap that holds a revision's topology plan."""
    return f"{app}-plan-{revision}"


def retained_config_map(app: str) -> str:
    """Return the name of the ConfigMap that outlives the application with the ids of its topics."""
    return f"{app}.retained"


def plan_job(app: str, revision: str) -> str:
    """Return the name of the Job that finds out a revision's plan; with the longest name, it just fits into a label.

    >>> plan_job("orders", "0123456789")
    'orders-0123456789'
    """
    return f"{app}-{revision}"


def is_child(app: str, kind: str, name: str, revision: str | None) -> bool:
    """Return whether an application has, or had with an earlier operator, a child of this kind and name.

    Labels alone do not tell: who copies an object copies its labels too.

    Args:
        app: The application.
        kind: The kind of an object with the application's labels; one of those that the operator applies.
        name: Its name.
        revision: The revision in its labels; None if it has none.
    """
    if kind == "ConfigMap":
        own = {retained_config_map(app)}
        if revision is not None:
            own |= {revision_config_map(app, revision), plan_config_map(app, revision)}
        return name in own
    if kind == "Job":
        return revision is not None and name in {plan_job(app, revision), _former_plan_job(app, revision)}
    if kind == "NetworkPolicy":
        return name in {network_policy(app), plan_network_policy(app), former_plan_network_policy(app)}
    return name == app


def former_plan_network_policy(app: str) -> str:
    """Return the name that the NetworkPolicy of plan Jobs had with an earlier operator; another application may want it."""
    return f"{app}-plan"


def _former_plan_job(app: str, revision: str) -> str:
    name = f"{app}-plan-{revision}"
    if len(name) <= LABEL_LENGTH:
        return name
    return f"{app[:40].rstrip('-')}-{hashlib.sha256(app.encode()).hexdigest()[:6]}-plan-{revision}"
