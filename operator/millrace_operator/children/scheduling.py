"""On which nodes pods run, and how they find others.

Replicas are kept apart, over nodes and over zones, as far as that is possible: a node that is lost then takes one replica. It is
a preference only, because two replicas on one node are better than one that waits. What the user says takes the place of the
operator's default of that kind.
"""

from __future__ import annotations

from typing import Any

from millrace_operator.children.app import AppRevision
from millrace_operator.children.labels import selector
from millrace_operator.children.passed_on import all_as_kept, as_kept


def placement(app: AppRevision) -> dict[str, Any]:
    """Return the fields of a pod's spec that say where it may run, without what spreads replicas."""
    template = app.spec.pod_template
    fields: dict[str, Any] = {
        "nodeSelector": dict(template.node_selector),
        "tolerations": all_as_kept(template.tolerations),
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
        "schedulerName": template.scheduler_name,
    }
    return {name: value for name, value in fields.items() if value}


def spread(app: AppRevision) -> dict[str, Any]:
    """Return the fields of a pod's spec that keep replicas apart."""
    template = app.spec.pod_template
    constraints = [
        {"labelSelector": _selector(app), **constraint}
        for constraint in all_as_kept(template.topology_spread_constraints)
    ]
    return {
        "affinity": _apart(app) if template.affinity is None else as_kept(template.affinity),
        "topologySpreadConstraints": constraints or [_over_zones(app)],
    }


def names_and_addresses(app: AppRevision) -> dict[str, Any]:
    """Return the fields of a pod's spec that say how names are looked up; the plan Job talks to nobody."""
    template = app.spec.pod_template
    fields: dict[str, Any] = {
        "dnsConfig": None if template.dns_config is None else as_kept(template.dns_config),
        "dnsPolicy": template.dns_policy,
        "hostAliases": all_as_kept(template.host_aliases),
    }
    return {name: value for name, value in fields.items() if value}


def _selector(app: AppRevision) -> dict[str, Any]:
    return {"matchLabels": selector(app.name)}


def _apart(app: AppRevision) -> dict[str, Any]:
    term = {"labelSelector": _selector(app), "topologyKey": "kubernetes.io/hostname"}
    preferred = {"podAffinityTerm": term, "weight": 100}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


def _over_zones(app: AppRevision) -> dict[str, Any]:
    return {
        "labelSelector": _selector(app),
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
    }
