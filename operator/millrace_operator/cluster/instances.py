"""Asks pods how they do, and tells them to drain: the runtime's own HTTP endpoints.

A pod that does not answer is left out: it may be starting, restoring or gone, which its own state in the API tells. The
time-outs are short, all pods are asked at once, and answers larger than any real one are cut off: a pod runs its user's code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import urllib3

from millrace_operator.children import HTTP_PORT
from millrace_operator.model import Instance, Object

_TIMEOUT: Final = urllib3.Timeout(connect=1.0, read=2.0)
_LARGEST_ANSWER: Final = 4 << 20
_MOST_AT_ONCE: Final = 32
_T = TypeVar("_T")


class InstanceError(Exception):
    """A pod did not do what it was asked."""


class Instances:
    """Talks to pods; safe to use from several threads.

    Args:
        port: The port of the runtime's endpoints.
    """

    def __init__(self, port: int = HTTP_PORT) -> None:
        self._port = port
        # A pod's address may be another pod's soon: connections are not kept.
        self._http = urllib3.PoolManager(num_pools=1, headers={"Connection": "close"}, retries=False)
        self._pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="instances")

    def ask(self, pods: Iterable[Object]) -> dict[str, Instance]:
        """Return what the pods say of themselves, by name; those that do not answer are left out."""
        addresses = {str(pod["metadata"]["name"]): str(pod["status"]["podIP"]) for pod in pods if is_asked(pod)}
        answers = zip(addresses, self._pool.map(self._ask, addresses.values()), strict=True)
        return {name: answer for name, answer in answers if answer is not None}

    def drain(self, pod: Object) -> None:
        """Tell a pod's instance to leave its group; a pod without an address has nothing to leave.

        Raises:
            InstanceError: The pod does not answer or refuses.
        """
        name, address = pod["metadata"]["name"], pod.get("status", {}).get("podIP")
        if not address:
            return
        try:
            response = self._http.request("POST", self._url(address, "drain"), timeout=_TIMEOUT)
        except urllib3.exceptions.HTTPError as error:
            raise InstanceError(f"Pod {name} does not answer: {error}") from error
        if response.status >= 300:
            raise InstanceError(f"Pod {name} answers {response.status} to drain: {response.data[:200]!r}")

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _ask(self, address: str) -> Instance | None:
        try:
            response = self._http.request("GET", self._url(address, "status"), timeout=_TIMEOUT, preload_content=False)
            try:
                data = response.read(_LARGEST_ANSWER)
            finally:
                response.close()
            return instance(json.loads(data)) if response.status == 200 else None
        except (urllib3.exceptions.HTTPError, OSError, ValueError, TypeError):
            return None

    def _url(self, address: str, path: str) -> str:
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{self._port}/{path}"


def is_asked(pod: Object) -> bool:
    """Return whether a pod runs the application and can be asked."""
    labels = pod["metadata"].get("labels") or {}
    status = pod.get("status") or {}
    of_runtime = labels.get("app.kubernetes.io/component") == "runtime"
    return of_runtime and status.get("phase") == "Running" and bool(status.get("podIP"))


def instance(status: Mapping[str, Any]) -> Instance:
    """Return what a `/status` answer says, whatever version of the runtime it comes from.

    Raises:
        ValueError: It is not such an answer.
        TypeError: As above.
    """
    if not isinstance(status, Mapping) or not isinstance(status.get("state"), str):
        raise ValueError("not a status")  # noqa: TRY004 - what is wrong is the answer, not the call
    tasks, restoration = _part(status, "task_counts"), _part(status, "restoration")
    processing = _part(status, "processing")
    listed = status.get("tasks")
    states = [task.get("state") for task in listed if isinstance(task, Mapping)] if isinstance(listed, list) else []
    restoring = int(tasks.get("restoring") or 0)
    return Instance(
        state=status["state"],
        error=None if status.get("error") is None else str(status["error"]),
        topology_hash=_optional(str, status.get("topology_hash") or None),
        ready=status["state"] == "RUNNING" and not restoring and all(state == "RUNNING" for state in states),
        active=int(tasks.get("active") or 0),
        standby=int(tasks.get("standby") or 0),
        warmup=int(tasks.get("warmup") or 0),
        restoring=restoring,
        remaining_records=_optional(int, restoration.get("remaining_records", 0)),
        eta_seconds=_optional(float, restoration.get("eta_seconds")),
        lag=_optional(int, _part(status, "lag").get("total")),
        records_per_second=_optional(float, processing.get("records_per_second")),
        busy_ratio=_optional(float, processing.get("busy_ratio")),
        storage_used_percent=_optional(float, _part(status, "storage").get("used_percent")),
        credentials_stale=bool(status.get("credentials_stale")),
        rebalances=int(_part(status, "group").get("rebalances") or 0),
    )


def _part(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = status.get(name)
    return part if isinstance(part, Mapping) else {}


def _optional(kind: Callable[[Any], _T], value: Any) -> _T | None:
    return None if value is None else kind(value)
