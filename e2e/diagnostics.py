"""What a failed test shows about the cluster: pods, events and the end of each log."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

from e2e.cluster import Cluster

_LOG_LINES = 40


def describe(cluster: Cluster, namespaces: list[str]) -> str:
    """Return the state of some namespaces as text; what cannot be fetched is left out."""
    return "\n\n".join(part for namespace in namespaces for part in _parts(cluster, namespace) if part)


def _parts(cluster: Cluster, namespace: str) -> Iterator[str]:
    def ask(*arguments: str) -> str:
        try:
            return cluster.kubectl(f"--namespace={namespace}", *arguments, check=False, timeout_s=30).strip()
        except subprocess.TimeoutExpired:
            return ""

    yield f"=== namespace {namespace}"
    if cluster.kubectl("get", "crd", "streamsapps.streams.millrace.dev", "--ignore-not-found", check=False):
        yield ask("get", "streamsapps,streamsresets,streamsbackfills", "--output=yaml", "--show-managed-fields=false")
    yield ask("get", "statefulsets,jobs,pods,persistentvolumeclaims", "--output=wide")
    yield ask("get", "events", "--sort-by=.lastTimestamp")
    pods = json.loads(ask("get", "pods", "--output=json") or '{"items": []}')["items"]
    for pod in pods:
        name = pod["metadata"]["name"]
        if log := ask("logs", name, "--all-containers", f"--tail={_LOG_LINES}"):
            yield f"--- log of {name}\n{log}"
        restarted = any(each.get("restartCount") for each in pod.get("status", {}).get("containerStatuses", []))
        if restarted and (log := ask("logs", name, "--all-containers", "--previous", f"--tail={_LOG_LINES}")):
            yield f"--- log of {name} before its last restart\n{log}"
