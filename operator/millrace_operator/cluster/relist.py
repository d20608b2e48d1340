"""Lists everything anew: before the first pass, and now and then for what a watch has missed.

A watch that was interrupted for too long starts again from what exists, and never tells of what was deleted meanwhile. A list
does: what it does not have, and what is not newer than it, is gone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.kinds import APPS, CHILDREN, POD_MONITORS, RESETS, ResourceKind
from millrace_operator.cluster.requests import ApiError, Requests

_PAGE: Final = "500"


def relist(
    requests: Requests, resources: Cache, children: Cache, namespaces: Collection[str], selector: str
) -> tuple[set[tuple[str, str]], bool]:
    """List all kinds into the caches.

    Args:
        requests: How to reach the API server.
        resources: The cache of StreamsApps and StreamsResets.
        children: The cache of children.
        namespaces: Those to list; none means all.
        selector: The label selector of children.

    Returns:
        The applications (namespace, name) of which something was new, and whether the cluster knows `PodMonitor`.

    Raises:
        ApiError: A list failed.
    """
    changed: set[tuple[str, str]] = set()
    pod_monitors = True
    for namespace in namespaces or (None,):
        for kind in (APPS, RESETS):
            changed |= _list(requests, resources, kind, namespace)
        for kind in CHILDREN:
            changed |= _list(requests, children, kind, namespace, labelSelector=selector)
        try:
            changed |= _list(requests, children, POD_MONITORS, namespace, labelSelector=selector)
        except ApiError as error:
            if error.status not in {403, 404}:
                raise
            pod_monitors = False
    return changed, pod_monitors


def _list(
    requests: Requests, cache: Cache, kind: ResourceKind, namespace: str | None, **query: str
) -> set[tuple[str, str]]:
    """List a kind page by page; all pages are of the version of the first."""
    items: list[dict[str, object]] = []
    more: dict[str, str] = {}
    while True:
        page = requests.list(kind, namespace, limit=_PAGE, **query, **more)
        items += page.get("items") or []
        metadata = page.get("metadata") or {}
        if not metadata.get("continue"):
            version = str(metadata.get("resourceVersion", "0"))
            return cache.replace(kind, items, int(version) if version.isdigit() else 0, namespace)
        more = {"continue": str(metadata["continue"])}
