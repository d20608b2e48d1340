"""`spec.podDisruptionBudget` and `spec.networkPolicy`: what the operator puts around the pods."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from millrace.manifest.fields import Matches
from millrace.manifest.lists import in_order
from millrace.manifest.model import ManifestModel, PassedOn, broken

SHARE_PATTERN = "^(100|[1-9][0-9]?)%$|^[1-9][0-9]{0,4}$"
_SHARE_RULE = "must be a number of pods, at least 1, or a percentage such as 25%"


def _share(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise broken(_SHARE_RULE)
    return str(value)


Share = Annotated[
    str,
    BeforeValidator(_share),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": 8,
            "minimum": 1,
        }
    ),
    Matches(SHARE_PATTERN, _SHARE_RULE, explained=False),
]
"""A number of pods or a percentage of them."""


class PodDisruptionBudget(ManifestModel):
    """How many pods may be away when nodes are drained."""

    enabled: bool = True
    """Whether there is a PodDisruptionBudget."""
    max_unavailable: Share = "1"
    """How many pods, or what percentage of them, may be away at a time."""


class NetworkPeer(PassedOn):
    """A Kubernetes NetworkPolicyPeer: pods, namespaces or addresses."""


class IngressRule(PassedOn):
    """A Kubernetes NetworkPolicyIngressRule: from where, and to which ports."""


class EgressRule(PassedOn):
    """A Kubernetes NetworkPolicyEgressRule: where to, and to which ports."""


class NetworkPolicy(ManifestModel):
    """Who may talk to the pods, and to whom they may talk."""

    enabled: bool = True
    """Whether there is a NetworkPolicy. The operator, in its own namespace, and the application's own pods may always reach
    the pods."""
    ingress_from: (
        Annotated[
            tuple[NetworkPeer, ...],
            *in_order(32),
        ]
        | None
    ) = None
    """Who else may read from their port of health, status and metrics, for example Prometheus' namespace:
    each a Kubernetes NetworkPolicyPeer. Everybody if not given while there is a PodMonitor, otherwise nobody."""
    ingress: Annotated[
        tuple[IngressRule, ...],
        *in_order(32),
    ] = ()
    """Who may reach other ports, for example one on which the program answers queries of stores. Each is a Kubernetes
    NetworkPolicyIngressRule."""
    egress: (
        Annotated[
            tuple[EgressRule, ...],
            *in_order(32),
        ]
        | None
    ) = None
    """Where the pods may connect to, beside DNS and each other: the brokers, at least. Each is a Kubernetes
    NetworkPolicyEgressRule. Everywhere if not given."""
