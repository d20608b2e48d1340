"""Caches of every object that concerns the operator, as last seen.

Three sources write here: watch events, answers to the operator's own writes (so that the next pass sees what this one did),
and lists, which find what a watch has missed, above all deletions. They arrive in any order, so the newest version wins.

`relist` lists everything again, before the first pass and from time to time. A watch that was interrupted for too long restarts
from what exists, and never reports what was deleted in the meantime. A list reveals it: what is not in it and not newer is
gone.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

from millrace_operator.children.naming import APP_LABEL
from millrace_operator.cluster.kinds import APPS, BACKFILLS, CHILDREN, POD_MONITORS, RESOURCES, ResourceKind
from millrace_operator.cluster.requests import ApiError, Requests
from millrace_operator.model import Key, Object, ResourceRef, app_named_by, labels_of

_Id = tuple[str, str, str]


def version_of(obj: Object) -> int:
    """Return an object's resource version as the number it is, 0 if it has none."""
    text = str(obj.get("metadata", {}).get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0


class Cache:
    """Objects of several kinds; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[_Id, Object] = {}
        self._deleted: dict[_Id, int] = {}
        """Versions at which objects were deleted, so that an older answer does not bring them back."""
        self._by_app: defaultdict[tuple[str, str], set[_Id]] = defaultdict(set)

    def put(self, kind: ResourceKind, obj: Object) -> bool:
        """Keep an object unless a newer version of it is known, and say whether it was kept."""
        identity, slim = _id(kind, obj), _slim(kind, obj)
        with self._lock:
            return self._put(identity, slim)

    def expect_end(self, kind: ResourceKind, obj: Object, timestamp: str) -> None:
        """Mark an object as being deleted until this time, unless a newer version of it is known."""
        identity = _id(kind, obj)
        with self._lock:
            known = self._objects.get(identity)
            if known is not None and version_of(known) <= version_of(obj):
                self._objects[identity] = {**known, "metadata": {**known["metadata"], "deletionTimestamp": timestamp}}

    def remove(self, kind: ResourceKind, obj: Object) -> None:
        """Forget an object that was seen to be deleted."""
        identity, version = _id(kind, obj), version_of(obj)
        with self._lock:
            known = self._objects.get(identity)
            if known is None or version_of(known) <= version:
                self._drop(identity, version)

    def replace(
        self, kind: ResourceKind, objects: Iterable[Object], as_of: int, namespace: str | None = None
    ) -> set[ResourceRef]:
        """Take over a list, and return what has to be looked at because of its changes.

        Args:
            kind: The kind that was listed.
            objects: Everything that the list has.
            as_of: The list's resource version; what is newer than it stays.
            namespace: The namespace that was listed; None for all.
        """
        listed = {_id(kind, obj): _slim(kind, obj) for obj in objects}
        changed: set[ResourceRef] = set()
        with self._lock:
            for identity, obj in listed.items():
                if self._put(identity, obj):
                    changed |= concerned_by(kind, obj)
            for identity, obj in list(self._objects.items()):
                here = identity[0] == kind.kind and namespace in {None, identity[1]}
                if here and identity not in listed and version_of(obj) <= as_of:
                    changed |= concerned_by(kind, obj)
                    self._drop(identity, as_of)
            self._deleted = {
                identity: version
                for identity, version in self._deleted.items()
                if identity[0] != kind.kind or version >= as_of
            }
        return changed

    def get(self, kind: ResourceKind, namespace: str, name: str) -> Object | None:
        """Return an object, or None."""
        with self._lock:
            return self._objects.get((kind.kind, namespace, name))

    def of_kind(self, kind: ResourceKind) -> list[Object]:
        """Return all objects of a kind."""
        with self._lock:
            return [obj for identity, obj in self._objects.items() if identity[0] == kind.kind]

    def of_app(self, namespace: str, app: str) -> dict[Key, Object]:
        """Return the objects that carry an app's label."""
        with self._lock:
            found = self._by_app.get((namespace, app), set())
            return {Key(kind, name): self._objects[kind, space, name] for kind, space, name in found}

    def _put(self, identity: _Id, obj: Object) -> bool:
        known, version = self._objects.get(identity), version_of(obj)
        if version <= self._deleted.get(identity, -1) or (known is not None and version_of(known) >= version):
            return False
        if known is not None:
            self._by_app[app_of(known)].discard(identity)
        self._objects[identity] = obj
        self._by_app[app_of(obj)].add(identity)
        return True

    def _drop(self, identity: _Id, version: int) -> None:
        self._deleted[identity] = version
        known = self._objects.pop(identity, None)
        if known is not None:
            of_app = self._by_app[app_of(known)]
            of_app.discard(identity)
            if not of_app:
                del self._by_app[app_of(known)]


def app_of(obj: Object) -> tuple[str, str]:
    """Return namespace and name of the app that an object belongs to; it is itself one if it carries no label."""
    metadata: Object = obj["metadata"]
    return str(metadata.get("namespace", "")), str(labels_of(obj).get(APP_LABEL) or metadata["name"])


def concerned_by(kind: ResourceKind, obj: Object) -> set[ResourceRef]:
    """Return what has to be looked at when an object changes: itself or its app, and both if it is a backfill.

    An app stops or continues because of a backfill.
    """
    metadata: Object = obj["metadata"]
    if kind not in RESOURCES:
        return {ResourceRef(APPS.kind, *app_of(obj))}
    ref = ResourceRef(kind.kind, str(metadata["namespace"]), str(metadata["name"]))
    app = app_named_by(obj) if kind is BACKFILLS else ""
    return {ref, ResourceRef(APPS.kind, ref.namespace, app)} if app else {ref}


def _id(kind: ResourceKind, obj: Object) -> _Id:
    metadata = obj["metadata"]
    return kind.kind, str(metadata.get("namespace", "")), str(metadata["name"])


def _slim(kind: ResourceKind, obj: Object) -> Object:
    """Add the kind, which lists leave out, and drop managed fields, which are half of an object and never read here."""
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}


_PAGE: Final = "500"


def relist(
    requests: Requests, resources: Cache, children: Cache, namespaces: Collection[str], selector: str
) -> tuple[set[ResourceRef], bool]:
    """List all kinds into the caches.

    Args:
        requests: How to reach the API server.
        resources: The cache of the kinds that users create.
        children: The cache of children.
        namespaces: The namespaces to list; all if empty.
        selector: The label selector of children.

    Returns:
        What has to be looked at because of changes, and whether the cluster knows `PodMonitor`.

    Raises:
        ApiError: A list failed.
    """
    changed: set[ResourceRef] = set()
    pod_monitors = True
    for namespace in namespaces or (None,):
        for kind in RESOURCES:
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
) -> set[ResourceRef]:
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
