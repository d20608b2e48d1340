"""Looks at nodes, only those that a decision may depend on: of pods that are to be told where they run, or that are not ready.

Nodes are read one by one and not watched, so the operator needs no right to list them, and it can do without the right to read
them. A node counts as lost if it no longer exists or has the taint `node.kubernetes.io/out-of-service`, by which an administrator
says that nothing runs there any more: a node that does not answer may still be running its pods.

Only a pod that still exists is reported as lost, and this is asked last, after the group was observed: as long as it exists
there is no other of its name, so the members that were seen under that name are the lost pod's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from millrace_operator.children.naming import COMPONENT_LABEL
from millrace_operator.cluster.kinds import NODES, PODS
from millrace_operator.cluster.requests import ApiError, Requests
from millrace_operator.model import Key, Object, SeenNode, labels_of
from millrace_operator.reconcile.children_view import untold_labels

_OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
_KEPT_S: Final = 1.0
"""How long an answer is used: pods of a lost node are looked at together."""
_FORBIDDEN: Final = 403
_FORBIDDEN_KEPT_S: Final = 300.0


class _Answer(NamedTuple):
    until: float
    node: SeenNode | None
    lost: bool = False


class Nodes:
    """Reads nodes; safe to use from several threads.

    Args:
        requests: How to reach the API server.
        clock: Seconds that only go forward.
    """

    def __init__(self, requests: Requests, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = requests
        self._clock = clock
        self._known: dict[str, _Answer] = {}

    def of(self, namespace: str, objects: Mapping[Key, Object]) -> tuple[dict[str, SeenNode], frozenset[str]]:
        """Return the nodes that matter to an application's pods, by name, and the uids of the pods that are lost."""
        seen: dict[str, SeenNode] = {}
        lost: set[str] = set()
        for key, pod in objects.items():
            name = pod.get("spec", {}).get("nodeName")
            if key.kind != PODS.kind or labels_of(pod).get(COMPONENT_LABEL) != "runtime" or not name:
                continue
            if _is_ready(pod) and not untold_labels(pod):
                continue
            answer = self._look(name)
            if answer.node is not None:
                seen[name] = answer.node
            if answer.lost and self._exists(namespace, pod):
                lost.add(str(pod["metadata"]["uid"]))
        return seen, frozenset(lost)

    def _look(self, name: str) -> _Answer:
        answer = self._known.get(name)
        if answer is None or self._clock() >= answer.until:
            answer = self._known[name] = self._ask(name)
        return answer

    def _ask(self, name: str) -> _Answer:
        now = self._clock()
        try:
            node = self._requests.get(NODES, None, name)
        except ApiError as error:
            kept_s = _FORBIDDEN_KEPT_S if error.status == _FORBIDDEN else _KEPT_S
            return _Answer(now + kept_s, None, error.not_found)
        taints = {taint["key"] for taint in node.get("spec", {}).get("taints") or ()}
        return _Answer(now + _KEPT_S, SeenNode(labels_of(node), _is_ready(node)), _OUT_OF_SERVICE in taints)

    def _exists(self, namespace: str, pod: Object) -> bool:
        metadata = pod["metadata"]
        try:
            found = self._requests.list(PODS, namespace, fieldSelector=f"metadata.name={metadata['name']}")["items"]
            return any(item["metadata"]["uid"] == metadata["uid"] for item in found)
        except ApiError:
            return False


def _is_ready(item: Object) -> bool:
    """Return whether a pod or a node is ready, and a pod is not being deleted."""
    conditions = item.get("status", {}).get("conditions") or ()
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in item["metadata"]
