"""Where `millrace top` finds an application's instances and asks them: the local host's files, or pods through the API server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from millrace.dev.local_directory import LocalDirectory
from millrace.errors import LocalHostError
from millrace.instance_status import StreamsStatus, parse_status, read_status
from millrace.manifest import load
from millrace_operator.top.snapshot import InstanceSnapshot, Snapshot

__all__ = ["cluster_source", "local_source"]

_SECONDS: Final = 3
_LIST_SECONDS: Final = 15
_AT_ONCE: Final = 16
_PROXY: Final = "the verb `get` on `pods/proxy` in the namespace, which the role `edit` includes"

_UNREACHABLE: Final = "is ready, but the API server cannot reach it: see spec.networkPolicy.ingressFrom"


def local_source(manifest: Path, directory: Path | None) -> Callable[[], Snapshot]:
    """Return a function that looks at the replicas that `millrace dev up` is running for a manifest.

    Args:
        manifest: its file.
        directory: where the local host keeps its data; None for the default.

    Raises:
        ManifestError: the manifest is wrong.
    """
    name = load(manifest).metadata.name
    place = LocalDirectory.of(name, directory)

    def look() -> Snapshot:
        host = place.running_host()
        if host is None:
            raise LocalHostError(
                f"{name} is not running on this machine: start it with `millrace dev up -f {manifest}`, or give its name to "
                f"see it in Kubernetes: `millrace top {name}`"
            )
        instances = []
        for replica in host.replicas:
            status = read_status(place.status(replica.name)) if replica.pid else None
            if status is not None and status.pid != replica.pid:  # an earlier process has written it
                status = None
            state = replica.state if status is None else status.state
            instances.append(InstanceSnapshot(replica.name, state, status, replica.restarts, replica.note))
        return Snapshot(name, _now_ms(), tuple(instances))

    return look


def cluster_source(namespace: str | None, name: str, context: str | None) -> Callable[[], Snapshot]:
    """Return a function that asks an application's pods, through the API server and with the rights of kubectl's user.

    A pod that does not answer is shown with its phase. All are asked at once.

    Args:
        namespace: the application's; None for the one that kubectl would use.
        name: the StreamsApp's.
        context: kubectl's context; None for its current one.

    Raises:
        ClusterError: the API server cannot be reached, the application does not exist, or one of them cannot be read.
    """
    from millrace_operator.children.naming import APP_LABEL, COMPONENT_LABEL, HTTP_PORT  # noqa: PLC0415
    from millrace_operator.cluster.kubectl import ClusterError, KubectlApi, ask  # noqa: PLC0415

    api = KubectlApi(context)
    space = namespace or api.namespace
    api.streams_app(space, name)
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="top")

    def answer(pod: dict[str, Any]) -> InstanceSnapshot:
        metadata, state = pod["metadata"], pod.get("status") or {}
        containers = state.get("containerStatuses") or ()
        restarts = sum(int(container.get("restartCount", 0)) for container in containers)
        pod_name, phase = str(metadata["name"]), _phase(pod)
        if state.get("phase") != "Running":
            return InstanceSnapshot(pod_name, phase, None, restarts)
        try:
            found = ask(
                f"the status of pod {pod_name}",
                lambda: api.core.connect_get_namespaced_pod_proxy_with_path(
                    f"{pod_name}:{HTTP_PORT}", space, "status", _preload_content=False, _request_timeout=_SECONDS
                ),
                needs=_PROXY,
            )
            status = parse_status(json.loads(found.data))
        except ClusterError as error:
            if error.forbidden:
                raise
            return InstanceSnapshot(
                pod_name, phase, None, restarts, _UNREACHABLE if _is_ready(pod) else "does not answer"
            )
        except ValueError:
            return InstanceSnapshot(pod_name, phase, None, restarts, "answers with something else than a status")
        if status.pod_uid not in {"", str(metadata.get("uid", ""))}:
            return InstanceSnapshot(pod_name, phase, None, restarts, "its address belongs to another pod")
        return InstanceSnapshot(pod_name, status.state, status, restarts, _note(status))

    def look() -> Snapshot:
        listed = ask(
            f"pods in namespace {space}",
            lambda: api.core.list_namespaced_pod(
                space,
                label_selector=f"{APP_LABEL}={name},{COMPONENT_LABEL}=runtime",
                _preload_content=False,
                _request_timeout=_LIST_SECONDS,
            ),
        )
        pods = sorted(json.loads(listed.data)["items"], key=_order)
        return Snapshot(f"{space}/{name}", _now_ms(), tuple(pool.map(answer, pods)))

    return look


def _order(pod: dict[str, Any]) -> tuple[str, int, str]:
    name = str(pod["metadata"]["name"])
    base, _, ordinal = name.rpartition("-")
    return (base, int(ordinal), name) if ordinal.isdigit() else (name, 0, name)


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _phase(pod: dict[str, Any]) -> str:
    """Return what `kubectl get pods` would show."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    state = pod.get("status") or {}
    for container in (*(state.get("initContainerStatuses") or ()), *(state.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return str(waiting["reason"])
    return str(state.get("phase") or "Unknown")


def _note(status: StreamsStatus) -> str:
    stuck = [thread.name for thread in status.threads if not thread.alive]
    if status.error:
        return status.error
    if status.refused_tasks:
        return f"refuses tasks {', '.join(status.refused_tasks)}: the group's leader has another topology"
    return f"threads have ended: {', '.join(stuck)}" if stuck else ""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
