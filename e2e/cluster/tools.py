"""The programs that the setup built, by name, for tests and people."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster.build import MODULES, provide
from e2e.cluster.errors import ClusterError


def path(program: str) -> Path:
    """Return the path of a program, such as `helm` or `promtool`, building it first if necessary.

    Raises:
        ClusterError: There is no such program, or it cannot be built.
    """
    for name, module in MODULES.items():
        if program in module.programs:
            return provide(name) / program
    known = ", ".join(sorted(name for module in MODULES.values() for name in module.programs))
    raise ClusterError(f"There is no program {program}; there are {known}")


def kubernetes(component: str) -> list[str]:
    """Return the command line of a part of Kubernetes: `kubectl`, `kubelet`, `etcd`."""
    return [str(path("kubernetes")), component]


def schemas() -> str:
    """Return kubeconform's `-schema-location` for Kubernetes' own resources."""
    return f"{provide('kubernetes') / 'schemas'}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
