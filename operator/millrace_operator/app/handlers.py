"""kopf's watches: each event goes into a cache and its application's key into the queue; nothing else happens here.

Only `on.event` handlers are used: kopf keeps no record of these in annotations or finalizers, so it writes nothing. What kopf's
watches miss (an object that was deleted while a watch was interrupted) `relist` finds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import kopf

from millrace_operator.app.metrics import OperatorMetrics
from millrace_operator.app.queue import WorkQueue
from millrace_operator.children.naming import APP_LABEL, MANAGER
from millrace_operator.cluster.cache import Cache, concerned_by
from millrace_operator.cluster.kinds import CHILDREN, GROUP, PODS, RESOURCES, ResourceKind
from millrace_operator.model import Object, ResourceRef, labels_of

log = logging.getLogger(__name__)

SELECTOR: Final = f"app.kubernetes.io/managed-by={MANAGER},{APP_LABEL}"
"""What the API server is to tell of children: those of applications. The pods of Spark jobs, often thousands, belong to none."""
PREFIX: Final = GROUP
_TOGETHER_SECONDS: Final = 0.1
"""Child events arrive in bursts; those within this time are coalesced into one pass."""


class Handlers:
    """Handles the events of watches.

    Args:
        resources: The cache of the kinds that users create.
        children: The cache of their children.
        queue: The keys to be worked on.
        metrics: Counts every event.
    """

    def __init__(
        self, resources: Cache, children: Cache, queue: WorkQueue[ResourceRef], metrics: OperatorMetrics
    ) -> None:
        self._resources = resources
        self._children = children
        self._queue = queue
        self._metrics = metrics

    def registry(self) -> kopf.OperatorRegistry:
        """Return kopf's registry with a watch of every kind."""
        registry = kopf.OperatorRegistry()
        for kind in RESOURCES:
            self._watch(registry, kind, self.on_resource)
        for kind in CHILDREN:
            self._watch(registry, kind, self.on_child)
        return registry

    def on_resource(self, kind: ResourceKind, event_type: str | None, obj: Object) -> None:
        """Handle an event of a kind that users create."""
        ref = ResourceRef(kind.kind, obj["metadata"]["namespace"], obj["metadata"]["name"])
        for other in concerned_by(kind, obj) - {ref}:
            self._queue.add(other, _TOGETHER_SECONDS)
        if event_type == "DELETED":
            self._resources.remove(kind, obj)
            self._queue.add(ref)
            return
        known = self._resources.get(kind, ref.namespace, ref.name)
        if self._resources.put(kind, obj):
            # Only user changes are urgent: the operator's own status writes come back here as well.
            asked = known is None or _asked(known) != _asked(obj)
            if asked:
                self._queue.add(ref, urgent=True)

    def on_child(self, kind: ResourceKind, event_type: str | None, obj: Object) -> None:
        """Handle an event of a child."""
        if event_type == "DELETED":
            self._children.remove(kind, obj)
        elif APP_LABEL not in labels_of(obj) or not self._children.put(kind, obj):
            return
        for ref in concerned_by(kind, obj):
            self._queue.add(ref, _TOGETHER_SECONDS)

    def _watch(
        self,
        registry: kopf.OperatorRegistry,
        kind: ResourceKind,
        take: Callable[[ResourceKind, str | None, Object], None],
    ) -> None:
        async def handle(event: Object, **_: object) -> None:
            self._metrics.event(kind.plural)
            try:
                take(kind, event["type"], event["object"])
            except Exception:
                log.exception("an event of %s could not be handled", kind.plural)
            await asyncio.sleep(0)

        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"on-{kind.plural}")(handle)


def _asked(obj: Object) -> tuple[object, ...]:
    """Return the parts of a resource that its user controls."""
    metadata = obj["metadata"]
    annotations = metadata.get("annotations") or {}
    return metadata["uid"], metadata.get("generation"), metadata.get("deletionTimestamp"), annotations


def configure(settings: kopf.OperatorSettings) -> None:
    """Configure kopf to watch and do nothing else."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.persistence.finalizer = f"{PREFIX}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=PREFIX)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=PREFIX)
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 75
    settings.watching.reconnect_backoff = 1.0
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.queueing.idle_timeout = 1.0
    settings.process.ultimate_exiting_timeout = 20
    for kind in CHILDREN:
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = SELECTOR


__all__ = ["PODS", "PREFIX", "SELECTOR", "Handlers", "configure"]
