"""Carries out actions on Kubernetes. Each may be done twice, and may find that it has been done."""

from __future__ import annotations

import os
from collections.abc import Callable

from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.instances import Instances
from millrace_operator.cluster.kinds import APPS, CLAIMS, PODS, Kind, kind_of, kind_of_object
from millrace_operator.cluster.requests import ApiError, Requests
from millrace_operator.model import (
    FINALIZER,
    Action,
    Apply,
    Delete,
    DrainPod,
    Object,
    ResizeClaim,
    SetFinalizer,
)
from millrace_operator.resets import PatchApp


class StaleError(Exception):
    """What was seen is no longer so: the pass ends, and the next one looks again."""


class Hands:
    """Carries out the actions that concern Kubernetes, and puts what they changed into the cache.

    Args:
        requests: How to reach the API server.
        resources: The cache of StreamsApps.
        children: The cache of their children.
        instances: How to reach pods.
    """

    def __init__(self, requests: Requests, resources: Cache, children: Cache, instances: Instances) -> None:
        self._requests = requests
        self._resources = resources
        self._children = children
        self._instances = instances

    def do(self, action: Action, app: Object) -> None:
        """Carry out an action for the app with this resource.

        Raises:
            ApiError: The API server refused.
            StaleError: The object is another one than the one that was seen.
            InstanceError: A pod does not do what it is told.
            NotAllowedToWriteError: This operator is not the leader.
            TypeError: The action does not concern Kubernetes.
        """
        namespace = app["metadata"]["namespace"]
        match action:
            case Apply(obj):
                kind = kind_of_object(obj)
                self._children.put(kind, self._requests.apply(kind, obj))
            case Delete(key, uid, orphan):
                self._delete(kind_of(key.kind), namespace, key.name, uid, orphan=orphan)
            case ResizeClaim(name, uid, size):
                body = {"metadata": {"uid": uid}, "spec": {"resources": {"requests": {"storage": size}}}}
                self._patch_claim(namespace, name, body)
            case SetFinalizer(present):
                self._set_finalizer(app, present=present)
            case DrainPod(name, uid):
                pod = self._children.get(PODS, namespace, name)
                if pod is None or pod["metadata"]["uid"] != uid:
                    raise StaleError(f"Pod {name} is gone or is another one")
                self._instances.drain(pod)
            case _:
                raise TypeError(f"not an action on Kubernetes: {action}")

    def patch_app(self, namespace: str, name: str, change: PatchApp) -> None:
        """Change the resource of an application for a reset.

        Raises:
            ApiError: The API server refused.
            StaleError: The application is another one than the one that was seen.
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
                raise StaleError(f"StreamsApp {name} is gone or is another one") from error
            raise

    def _delete(self, kind: Kind, namespace: str, name: str, uid: str, *, orphan: bool) -> None:
        propagation = "Orphan" if orphan else "Background"
        try:
            answer = self._requests.delete(kind, namespace, name, uid=uid, propagation=propagation)
        except ApiError as error:
            if error.not_found:
                self._forget(kind, namespace, name, uid)
                return
            if error.conflict:
                raise StaleError(f"{kind.kind} {name} is another one than was seen") from error
            raise
        if answer.get("kind") == kind.kind:  # it has finalizers, or time to end
            self._children.put(kind, answer)
        else:
            self._forget(kind, namespace, name, uid)

    def _forget(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        known = self._children.get(kind, namespace, name)
        if known is not None and known["metadata"]["uid"] == uid:
            self._children.remove(kind, known)

    def _patch_claim(self, namespace: str, name: str, body: Object) -> None:
        try:
            self._children.put(CLAIMS, self._requests.patch(CLAIMS, namespace, name, body))
        except ApiError as error:
            if error.not_found or error.conflict:
                raise StaleError(f"claim {name} is gone or is another one") from error
            raise

    def _set_finalizer(self, app: Object, *, present: bool) -> None:
        metadata = app["metadata"]
        finalizers = [name for name in metadata.get("finalizers") or () if name != FINALIZER]
        body = {
            "metadata": {
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
                "finalizers": [*finalizers, FINALIZER] if present else finalizers,
            }
        }
        try:
            answer = self._requests.patch(APPS, metadata["namespace"], metadata["name"], body)
        except ApiError as error:
            if error.not_found and not present:
                self._resources.remove(APPS, app)
                return
            if error.not_found or error.conflict:
                raise StaleError(f"StreamsApp {metadata['name']} has changed") from error
            raise
        if not present and "deletionTimestamp" in answer["metadata"] and not answer["metadata"].get("finalizers"):
            self._resources.remove(APPS, answer)
        else:
            self._resources.put(APPS, answer)


def crash_after(actions: int | None) -> Callable[[], None]:
    """Return what to call after each action: it ends the process after so many of them. For tests only.

    Args:
        actions: How many actions may be done; None for no end.
    """
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if done == actions:
            os._exit(137)

    return count
