"""Pod security: everything the Restricted profile asks, and a root filesystem that cannot be written.

The user, group and volume group are those of Millrace's image unless the user names others; root is never among them. A volume's
ownership is only changed when its root does not have it yet, because walking over gigabytes of state at every start would
delay it by minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millrace_operator.children.app import AppRevision
from millrace_operator.children.passed_on import as_kept

USER: Final = 65532
"""User and group of processes in Millrace's images, and the group of volumes."""


def pod_security_context(app: AppRevision) -> dict[str, Any]:
    """Return the securityContext of a pod."""
    return {
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "runAsGroup": USER,
        "runAsUser": USER,
        **as_kept(app.spec.pod_template.security_context),
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security_context() -> dict[str, Any]:
    """Return the securityContext of the program's container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }


def secured(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return a user's container, with what it leaves open of its securityContext set as Restricted demands.

    What it does say stays: whether a namespace admits it is the cluster's decision. Its root filesystem is its own affair.
    """
    restricted = {
        name: value for name, value in container_security_context().items() if name != "readOnlyRootFilesystem"
    }
    return {**container, "securityContext": {**restricted, **container.get("securityContext", {})}}
