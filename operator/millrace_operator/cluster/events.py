"""Events for `kubectl describe`: one object per resource, reason and message, whose count grows when it happens again."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from millrace_operator.cluster.kinds import EVENTS
from millrace_operator.cluster.requests import ApiError, Requests
from millrace_operator.model import Event, Json, Object

log = logging.getLogger(__name__)

COMPONENT: Final = "millrace-operator"
_LONGEST_MESSAGE: Final = 1024
_MOST_COUNTS: Final = 10_000


class EventRecorder:
    """Writes Events; failing to write one is only logged.

    Args:
        requests: How to reach the API server.
        identity: Which operator this is.
        count: Called with the type and reason of every Event.
    """

    def __init__(
        self, requests: Requests, identity: str, count: Callable[[str, str], None] = lambda _type, _reason: None
    ) -> None:
        self._requests = requests
        self._count = count
        self._identity = identity
        self._counts: dict[str, int] = {}
        """So that Events need not be read; after a restart counting starts again."""

    def record(self, resource: Object, event: Event) -> None:
        """Write an event about a resource, or count it once more; if that fails it is logged."""
        metadata = resource["metadata"]
        self._count(event.type, event.reason)
        what = f"{metadata['uid']}/{event.type}/{event.reason}/{event.message}"
        name = f"{metadata['name']}.{hashlib.sha256(what.encode()).hexdigest()[:16]}"
        now = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            self._write(metadata["namespace"], name, now, self._object(resource, event, name, now))
        except ApiError as error:
            where = f"{resource.get('kind', '')} {metadata['namespace']}/{metadata['name']}"
            log.warning("%s: %s: %s (this Event could not be written: %s)", where, event.reason, event.message, error)

    def _write(self, namespace: str, name: str, now: str, body: Object) -> None:
        if name not in self._counts:
            try:
                self._requests.create(EVENTS, namespace, body)
            except ApiError as error:
                if not error.conflict:
                    raise
            else:
                self._remember(name, 1)
                return
        count = self._counts.get(name, 1) + 1
        try:
            self._requests.patch(EVENTS, namespace, name, {"count": count, "lastTimestamp": now})
            self._remember(name, count)
        except ApiError as error:
            if not error.not_found:
                raise
            # Kubernetes forgets Events after an hour.
            self._requests.create(EVENTS, namespace, body)
            self._remember(name, 1)

    def _remember(self, name: str, count: int) -> None:
        if len(self._counts) >= _MOST_COUNTS:
            self._counts.clear()
        self._counts[name] = count

    def _object(self, resource: Object, event: Event, name: str, now: str) -> Json:
        metadata = resource["metadata"]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": resource["apiVersion"],
                "kind": resource["kind"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:_LONGEST_MESSAGE],
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._identity,
        }
