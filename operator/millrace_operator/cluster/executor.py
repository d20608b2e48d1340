"""Carries out actions on Kubernetes, and writes status. Every action is idempotent."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import BaseModel, ValidationError

from millrace_operator.children.naming import (
    APP_UID_LABEL,
    DRAIN_ANNOTATION,
    FINALIZER,
    NODE_LABELS_ANNOTATION,
    RETAINED_LABEL,
)
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.kinds import APPS, CLAIMS, KINDS, PODS, STATEFUL_SETS, ResourceKind
from millrace_operator.cluster.requests import ApiError, Requests
from millrace_operator.model import (
    Action,
    Apply,
    Delete,
    DrainPod,
    Json,
    Key,
    Object,
    Release,
    ResizeClaim,
    SetFinalizer,
    TellNodeLabels,
)
from millrace_operator.reconcile.ownership import conflict_message, controller_of, is_own
from millrace_operator.resets.reconciler import PatchApp


class StaleError(Exception):
    """The observation is out of date: the pass ends, and the next one observes again."""


class NameTakenError(Exception):
    """An object that is not the application's has a name that is needed, or was mistaken for its own; it is left alone.

    Args:
        key: Which object.
        message: What it is and what to do, for the user.
    """

    def __init__(self, key: Key, message: str) -> None:
        super().__init__(message)
        self.key = key


class Executor:
    """Carries out the actions that concern Kubernetes, and puts what they changed into the cache.

    Args:
        requests: How to reach the API server.
        resources: The cache of StreamsApps.
        children: The cache of their children.
    """

    def __init__(self, requests: Requests, resources: Cache, children: Cache) -> None:
        self._requests = requests
        self._resources = resources
        self._children = children

    def do(self, action: Action, app: Object) -> None:
        """Carry out an action for an app, or a reset, with this resource.

        Raises:
            ApiError: The API server refused.
            StaleError: The object is not the one that was seen.
            NameTakenError: The object is somebody else's.
            NotAllowedToWriteError: This operator is not the leader.
            TypeError: The action does not concern Kubernetes.
        """
        namespace = app["metadata"]["namespace"]
        match action:
            case Apply(obj, uid):
                self._apply(KINDS[obj["kind"]], obj, uid, app)
            case Release(key, uid, retained):
                self._release(KINDS[key.kind], app, key.name, uid, retained=retained)
            case Delete(key, uid, orphan):
                if key.kind == PODS.kind:
                    self._check_controller(namespace, key)
                self._delete(KINDS[key.kind], namespace, key.name, uid, orphan=orphan)
            case ResizeClaim(name, uid, size):
                body = {"metadata": {"uid": uid}, "spec": {"resources": {"requests": {"storage": size}}}}
                self._patch(CLAIMS, namespace, name, body)
            case SetFinalizer(present):
                self._set_finalizer(app, present=present)
            case DrainPod(name, uid, since):
                body = {"metadata": {"uid": uid, "annotations": {DRAIN_ANNOTATION: str(since)}}}
                self._patch(PODS, namespace, name, body)
            case TellNodeLabels(name, uid, labels):
                body = {"metadata": {"uid": uid, "annotations": {NODE_LABELS_ANNOTATION: json.dumps(dict(labels))}}}
                self._patch(PODS, namespace, name, body)
            case _:
                raise TypeError(f"not an action on Kubernetes: {action}")

    def patch_app(self, namespace: str, name: str, change: PatchApp) -> None:
        """Change the resource of an application for a reset.

        Raises:
            ApiError: The API server refused.
            StaleError: The application is not the one that was seen.
        """
        metadata = {"uid": change.uid, **({"annotations": dict(change.annotations)} if change.annotations else {})}
        try:
            if change.annotations:
                self._resources.put(APPS, self._requests.patch(APPS, namespace, name, {"metadata": metadata}))
            if change.status:
                body = {"metadata": {"uid": change.uid}, "status": dict(change.status)}
                self._resources.put(APPS, self._requests.patch(APPS, namespace, name, body, "status"))
        except ApiError as error:
            if error.not_found or error.conflict:
                raise StaleError(f"StreamsApp {name} is gone or was replaced") from error
            raise

    def _apply(self, kind: ResourceKind, obj: Object, uid: str | None, app: Object) -> None:
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        if uid is None:
            try:
                self._children.put(kind, self._requests.create(kind, namespace, obj))
            except ApiError as error:
                if not error.exists:
                    raise
                uid = self._adopt(kind, namespace, name, app)
            else:
                return
        try:
            self._children.put(kind, self._requests.apply(kind, obj, uid))
        except ApiError as error:
            if error.status in {409, 422} and self._is_another(kind, namespace, name, uid):
                raise StaleError(f"{kind.kind} {name} is gone or is not the one that was seen") from error
            raise

    def _adopt(self, kind: ResourceKind, namespace: str, name: str, app: Object) -> str:
        """Return the uid of an object that is the application's own, although no watch has reported it yet."""
        try:
            found = self._requests.get(kind, namespace, name)
        except ApiError as error:
            if error.not_found:
                raise StaleError(f"{kind.kind} {name} has just gone") from error
            raise
        found = {**found, "kind": kind.kind}
        own_name = app["metadata"]["name"]
        if not is_own(Key(kind.kind, name), found, own_name, app["metadata"]["uid"]):
            raise NameTakenError(Key(kind.kind, name), conflict_message(found, own_name))
        self._children.put(kind, found)
        if "deletionTimestamp" in found["metadata"]:
            raise StaleError(f"{kind.kind} {name} is being deleted")
        return str(found["metadata"]["uid"])

    def _is_another(self, kind: ResourceKind, namespace: str, name: str, uid: str) -> bool:
        """Return whether the observed object is gone or replaced by another of its name; if so, it is dropped from the cache."""
        try:
            if self._requests.get(kind, namespace, name)["metadata"]["uid"] == uid:
                return False
        except ApiError as error:
            if not error.not_found:
                raise
        self._forget(kind, namespace, name, uid)
        return True

    def _release(self, kind: ResourceKind, app: Object, name: str, uid: str, *, retained: bool) -> None:
        namespace = app["metadata"]["namespace"]
        seen = self._children.get(kind, namespace, name) or {"metadata": {}}
        owners = seen["metadata"].get("ownerReferences") or []
        others = [owner for owner in owners if owner["uid"] != app["metadata"]["uid"]]
        labels = {APP_UID_LABEL: None, **({RETAINED_LABEL: "true"} if retained else {})}
        change = {"labels": labels, **({"ownerReferences": others} if others != owners else {})}
        body = {"metadata": {"uid": uid, **change}}
        try:
            self._children.put(kind, self._requests.patch(kind, namespace, name, body))
        except ApiError as error:
            if error.not_found or error.conflict:
                self._forget(kind, namespace, name, uid)
                raise StaleError(f"{kind.kind} {name} is gone or was replaced") from error
            raise

    def _check_controller(self, namespace: str, key: Key) -> None:
        """Check that a pod does not belong to somebody else's StatefulSet, which no watch reports."""
        pod = self._children.get(PODS, namespace, key.name)
        controller = None if pod is None else controller_of(pod)
        if controller is None:
            return
        name, uid = str(controller["name"]), controller["uid"]
        seen = self._children.get(STATEFUL_SETS, namespace, name)
        if seen is not None and seen["metadata"]["uid"] == uid:
            return
        try:
            found = self._requests.get(STATEFUL_SETS, namespace, name)
        except ApiError as error:
            if error.not_found:
                return
            raise
        if found["metadata"]["uid"] == uid:
            message = f"Pod {key.name} belongs to StatefulSet {name}, which does not belong to this StreamsApp. It is left alone."
            raise NameTakenError(key, message)

    def _delete(self, kind: ResourceKind, namespace: str, name: str, uid: str, *, orphan: bool) -> None:
        propagation = "Orphan" if orphan else "Background"
        try:
            answer = self._requests.delete(kind, namespace, name, uid=uid, propagation=propagation)
        except ApiError as error:
            if error.not_found:
                self._forget(kind, namespace, name, uid)
                return
            if error.conflict:
                raise StaleError(f"{kind.kind} {name} is not the one that was seen") from error
            raise
        if answer.get("kind") == kind.kind:  # it has finalizers, or a grace period
            self._children.put(kind, answer)
        else:
            self._forget(kind, namespace, name, uid)

    def _forget(self, kind: ResourceKind, namespace: str, name: str, uid: str) -> None:
        known = self._children.get(kind, namespace, name)
        if known is not None and known["metadata"]["uid"] == uid:
            self._children.remove(kind, known)

    def _patch(self, kind: ResourceKind, namespace: str, name: str, body: Object) -> None:
        try:
            self._children.put(kind, self._requests.patch(kind, namespace, name, body))
        except ApiError as error:
            if error.not_found or error.conflict:
                raise StaleError(f"{kind.kind} {name} is gone or was replaced") from error
            raise

    def _set_finalizer(self, resource: Object, *, present: bool) -> None:
        kind, metadata = KINDS[resource["kind"]], resource["metadata"]
        finalizers = [name for name in metadata.get("finalizers") or () if name != FINALIZER]
        body = {
            "metadata": {
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
                "finalizers": [*finalizers, FINALIZER] if present else finalizers,
            }
        }
        try:
            answer = self._requests.patch(kind, metadata["namespace"], metadata["name"], body)
        except ApiError as error:
            if error.not_found and not present:
                self._resources.remove(kind, resource)
                return
            if error.not_found or error.conflict:
                raise StaleError(f"{kind.kind} {metadata['name']} has changed") from error
            raise
        if not present and "deletionTimestamp" in answer["metadata"] and not answer["metadata"].get("finalizers"):
            self._resources.remove(kind, answer)
        else:
            self._resources.put(kind, answer)


def status_patch(old: Object, new: Object) -> Json:
    """Return the merge patch that turns the first into the second; empty if they are equal.

    >>> status_patch({"replicas": 1, "lag": {"total": 5, "trend": "Steady"}}, {"replicas": 2, "lag": {"total": 5}})
    {'replicas': 2, 'lag': {'trend': None}}
    """
    patch: Json = {}
    for name, value in new.items():
        known = old.get(name)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            if inner := status_patch(known, value):
                patch[name] = inner
        elif value != known or name not in old:
            patch[name] = value
    return patch | {name: None for name in old if name not in new}


def _left_alone(model: type[BaseModel], name: str, value: Json) -> bool:
    """Return whether a value is one that this version does not know: after a rollback, the later version finds it again."""
    if name not in {field.alias or known for known, field in model.model_fields.items()}:
        return True
    try:
        model.model_validate({name: value})
    except ValidationError:
        return True
    return False


def write_status(requests: Requests, cache: Cache, kind: ResourceKind, resource: Object, status: BaseModel) -> bool:
    """Write a status if it differs from the one in the resource as it was read, and return whether it did.

    The resource must still be the one that was read: a status is derived from the one before it. Values that this version does
    not know, or cannot read, stay unless it has others.

    Raises:
        ApiError: The API server refused; 409 if the resource has changed since, 404 if it is gone.
    """
    new = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    old = resource.get("status") or {}
    kept = {name for name, value in old.items() if not new.get(name) and _left_alone(type(status), name, value)}
    patch = status_patch(*({name: each[name] for name in each.keys() - kept} for each in (old, new)))
    if not patch:
        return False
    metadata = resource["metadata"]
    versioned = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    body = {"metadata": versioned, "status": patch}
    cache.put(kind, requests.patch(kind, metadata["namespace"], metadata["name"], body, "status"))
    return True
