"""Pod security: everything the Restricted profile asks, and a root filesystem that cannot be written.

The user, group and volume group are those of Millrace's image. A volume's ownership is only changed when its root does not have
it yet, because walking over gigabytes of state at every start would delay it by minutes.
"""

from __future__ import annotations

from typing import Any, Final

USER: Final = 65532
"""User and group of processes in Millrace's images, and the group of volumes."""


def pod_security_context() -> dict[str, Any]:
    """Return the securityContext of a pod."""
    return {
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "runAsGroup": USER,
        "runAsNonRoot": True,
        "runAsUser": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security_context() -> dict[str, Any]:
    """Return the securityContext of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }
