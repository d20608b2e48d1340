"""Reads the facts from the API server, with the rights of kubectl's user, in a handful of list requests.

What that user may not list is left out and named; only the application itself has to be readable.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from urllib3.exceptions import HTTPError

from millrace.errors import StreamsError
from millrace.manifest.resource import GROUP, VERSION
from millrace_operator.explain.facts import Facts
from millrace_operator.model import Object

_PLURAL: Final = "streamsapps"
_FORBIDDEN: Final = 403
_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404
_SECONDS: Final = 15
_EVENTS: Final = 2000


class ClusterError(StreamsError):
    """The API server cannot be reached, or does not have what was requested.

    Args:
        message: What is wrong, and what to do.
        forbidden: Whether the user may not read what was requested.
    """

    def __init__(self, message: str, *, forbidden: bool = False) -> None:
        super().__init__(message)
        self.forbidden = forbidden


class ClusterReader:
    """The API server that kubectl would talk to.

    Args:
        context: of kubectl's configuration; its current one if not given.

    Raises:
        ClusterError: there is no configuration, or not this context.
    """

    def __init__(self, context: str | None = None) -> None:
        self.namespace = "default"
        """The namespace that kubectl would use."""
        try:
            try:
                config.load_kube_config(context=context)
                contexts, chosen = config.list_kube_config_contexts()
                if context is not None:
                    chosen = next(item for item in contexts if item["name"] == context)
                self.namespace = chosen["context"].get("namespace") or self.namespace
            except ConfigException:
                if context is not None:
                    raise
                config.load_incluster_config()
        except ConfigException as error:
            raise ClusterError(
                f"The cluster cannot be reached: {str(error).rstrip('.')}. Set KUBECONFIG, or choose a context with --context."
            ) from None
        self._core = client.CoreV1Api()
        self._apps = client.AppsV1Api()
        self._batch = client.BatchV1Api()
        self._custom = client.CustomObjectsApi()

    def names(self, namespace: str) -> list[str]:
        """Return the names of the applications in a namespace.

        Raises:
            ClusterError: they cannot be listed.
        """
        what = f"the StreamsApps in namespace {namespace}"
        found = _ask(what, lambda: self._custom.list_namespaced_custom_object(GROUP, VERSION, namespace, _PLURAL))
        return sorted(str(item["metadata"]["name"]) for item in found["items"])

    def facts(self, namespace: str, name: str) -> Facts:
        """Return the facts about an application.

        Args:
            namespace: its namespace.
            name: its name.

        Raises:
            ClusterError: it does not exist or cannot be read.
        """
        what = f"StreamsApp {name} in namespace {namespace}"
        app = _ask(what, lambda: self._custom.get_namespaced_custom_object(GROUP, VERSION, namespace, _PLURAL, name))
        ours = f"{GROUP}/app={name}"
        lists: dict[str, tuple[Callable[..., Any], str]] = {
            "StatefulSets": (self._apps.list_namespaced_stateful_set, ours),
            "pods": (self._core.list_namespaced_pod, ours),
            "PersistentVolumeClaims": (self._core.list_namespaced_persistent_volume_claim, ours),
            "Jobs": (self._batch.list_namespaced_job, ours),
            "events": (self._core.list_namespaced_event, ""),
        }

        def listed(list_objects: Callable[..., Any], selector: str) -> list[Object]:
            options = {"label_selector": selector} if selector else {"limit": _EVENTS}
            answer = list_objects(namespace, _preload_content=False, _request_timeout=_SECONDS, **options)
            items: list[Object] = json.loads(answer.data)["items"]
            return items

        found: dict[str, list[Object]] = {}
        unreadable = []
        for kind, (list_objects, selector) in lists.items():
            try:
                found[kind] = _ask(f"{kind} in namespace {namespace}", partial(listed, list_objects, selector))
            except ClusterError as error:
                if not error.forbidden:
                    raise
                found[kind] = []
                unreadable.append(kind)
        children = [item for kind, items in found.items() if kind != "events" for item in items]
        uids = {item["metadata"]["uid"] for item in (app, *children)}
        events = [event for event in found["events"] if event["involvedObject"].get("uid") in uids]
        return Facts(
            now=datetime.now(UTC),
            app=app,
            stateful_set=next(iter(found["StatefulSets"]), None),
            pods=tuple(found["pods"]),
            claims=tuple(found["PersistentVolumeClaims"]),
            jobs=tuple(found["Jobs"]),
            events=tuple(sorted(events, key=_time)),
            unreadable=tuple(unreadable),
        )


def _time(event: Object) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next((time for time in times if time), event["metadata"].get("creationTimestamp", "")))


def _ask(what: str, request: Callable[[], Any]) -> Any:
    try:
        return request()
    except ApiException as error:
        raise ClusterError(_problem(what, error), forbidden=error.status == _FORBIDDEN) from None
    except HTTPError as error:
        raise ClusterError(
            f"The API server does not answer: {error}. Check the cluster and kubectl's context."
        ) from None


def _problem(what: str, error: ApiException) -> str:
    if error.status == _UNAUTHORIZED:
        return f"The API server does not accept your credentials: log in again, then retry reading {what}."
    if error.status == _FORBIDDEN:
        return f"You are not allowed to read {what}: ask for the role `view` in the namespace."
    if error.status == _NOT_FOUND:
        body = str(error.body or "")
        if f'"group":"{GROUP}"' in body or _PLURAL in body:
            return f"There is no {what}. `kubectl get streamsapps -A` lists the existing ones."
        return "The cluster does not know StreamsApps: install the operator, whose chart brings the CRDs (docs/install.md)."
    return f"Reading {what} failed: {error.status} {error.reason}"
