"""What the builders of children are told of an application."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.manifest import StreamsAppSpec


@dataclass(frozen=True, slots=True)
class AppRevision:
    """One revision of an application: what its children are made from, and nothing else is.

    Pods, the plan Job and the revision's ConfigMaps follow the spec of their revision, which in a rollback is not the newest.
    The rest (disruption budget, network policies, service account, pod monitor) is to follow the spec as it stands now.
    """

    namespace: str
    name: str
    revision: str
    """Ten hexadecimal digits."""
    spec: StreamsAppSpec
    uid: str = ""
    """The StreamsApp's; needed for pods only."""
