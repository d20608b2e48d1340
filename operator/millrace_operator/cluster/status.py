"""Writes the status of a resource, and only what differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.kinds import ResourceKind
from millrace_operator.cluster.requests import Requests
from millrace_operator.model import Object


def status_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that makes one of the other; empty if they are alike.

    >>> status_patch({"replicas": 1, "lag": {"total": 5, "trend": "Steady"}}, {"replicas": 2, "lag": {"total": 5}})
    {'replicas': 2, 'lag': {'trend': None}}
    """
    patch: dict[str, Any] = {}
    for name, value in new.items():
        known = old.get(name)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            if inner := status_patch(known, value):
                patch[name] = inner
        elif value != known or name not in old:
            patch[name] = value
    return patch | {name: None for name in old if name not in new}


def write_status(requests: Requests, cache: Cache, kind: ResourceKind, resource: Object, status: BaseModel) -> bool:
    """Write a status if it differs from that of the resource as it was read, and say whether it did.

    The resource must still be the one that was read: a status is derived from the one before it.

    Raises:
        ApiError: The API server refused; 409 if the resource has changed since, 404 if it is gone.
    """
    new = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    patch = status_patch(resource.get("status") or {}, new)
    if not patch:
        return False
    metadata = resource["metadata"]
    versioned = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    body = {"metadata": versioned, "status": patch}
    cache.put(kind, requests.patch(kind, metadata["namespace"], metadata["name"], body, "status"))
    return True
