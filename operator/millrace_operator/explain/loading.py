"""Reads the facts from the API server, with the rights of kubectl's user, in a handful of list requests.

What that user may not list is left out and named; only the application itself has to be readable.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from millrace.manifest.resource import GROUP
from millrace_operator.cluster.kubectl import ClusterError, KubectlApi, ask
from millrace_operator.explain.facts import Facts
from millrace_operator.model import Object

_SECONDS: Final = 15
_EVENTS: Final = 2000


def load_facts(api: KubectlApi, namespace: str, name: str) -> Facts:
    """Return the facts about an application.

    Args:
        api: where to read them.
        namespace: its namespace.
        name: its name.

    Raises:
        ClusterError: it does not exist or cannot be read.
    """
    app = api.streams_app(namespace, name)
    ours = f"{GROUP}/app={name}"
    lists: dict[str, tuple[Callable[..., Any], str]] = {
        "StatefulSets": (api.apps.list_namespaced_stateful_set, ours),
        "pods": (api.core.list_namespaced_pod, ours),
        "PersistentVolumeClaims": (api.core.list_namespaced_persistent_volume_claim, ours),
        "Jobs": (api.batch.list_namespaced_job, ours),
        "events": (api.core.list_namespaced_event, ""),
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
            found[kind] = ask(f"{kind} in namespace {namespace}", partial(listed, list_objects, selector))
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
