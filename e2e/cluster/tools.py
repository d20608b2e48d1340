"""The programs that the setup built, by name, for tests and people."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from e2e.cluster.build import MODULES, provide
from e2e.cluster.errors import ClusterError

FROM_PATH: Final = "E2E_PROGRAMS_FROM_PATH"
"""The variable that makes programs on the PATH take the place of those that the setup builds."""


def path(program: str) -> Path:
    """Return the path of a program, such as `helm` or `promtool`, building it first if necessary.

    Raises:
        ClusterError: There is no such program, or it cannot be built.
    """
    if found := _from_path(program):
        return found
    for name, module in MODULES.items():
        if program in module.programs:
            return provide(name) / program
    known = ", ".join(sorted(name for module in MODULES.values() for name in module.programs))
    raise ClusterError(f"There is no program {program}; there are {known}")


def kubernetes(component: str) -> list[str]:
    """Return the command line of a part of Kubernetes: `kubectl`, `kubelet`, `etcd`."""
    found = _from_path(component)
    return [str(found)] if found else [str(path("kubernetes")), component]


def schemas() -> str:
    """Return kubeconform's `-schema-location` for Kubernetes' own resources."""
    return f"{provide('kubernetes') / 'schemas'}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"


def _from_path(program: str) -> Path | None:
    found = shutil.which(program) if os.environ.get(FROM_PATH) else None
    return Path(found) if found else None
