"""A control plane with the CRDs, and a namespace on it with a simulated node: for tests of the operator that need no pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from e2e.cluster import Cluster
from e2e.cluster.progress import phase
from e2e.cluster.temporary import temporary_cluster

CRDS: Final = Path(__file__).parents[2] / "crds"

POD_MONITOR_CRD: Final[dict[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "scope": "Namespaced",
        "names": {
            "kind": "PodMonitor",
            "listKind": "PodMonitorList",
            "plural": "podmonitors",
            "singular": "podmonitor",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                },
            }
        ],
    },
}


@contextmanager
def control_plane(saying: Callable[[str], AbstractContextManager[None]] = phase) -> Iterator[Cluster]:
    """Start a control plane that serves Millrace's kinds and PodMonitors, and take it down at the end."""
    with temporary_cluster(with_node=False, saying=saying) as cluster:
        cluster.kubectl("apply", "--server-side", "--kustomize", str(CRDS))
        cluster.apply(POD_MONITOR_CRD)
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=110s")
        yield cluster
