"""In which order operations (resets and backfills) on one application go: each is done once, and one at a time.

There is one order of all operations on an application, and each waits for those before it. So no two ever wait for each other.

1. Backfills that have begun, from their Spark job on. They wait for nobody.
2. Resets that have begun, the oldest first.
3. Backfills that have begun and wait for the application to stop, the newest first: it is for that one that it stops.
4. What has not begun, the oldest first. Of those that were created in the same second, the order is that of their names.

Nothing begins while it sees something before it. More than one has begun only if passes over both were made at the same time,
in which neither saw the other begin. But one that has begun may see one that looks older and has not: both were applied
together, and only one was known at first. It must not wait for that one, which waits for it.
"""

from __future__ import annotations

from enum import IntEnum

from millrace_operator.backfills.reconciler import has_begun
from millrace_operator.children.naming import FINALIZER
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.kinds import BACKFILLS, RESETS, ResourceKind
from millrace_operator.cluster.observe import desired_from
from millrace_operator.model import DesiredBackfill, DesiredReset, Object, app_named_by
from millrace_operator.reconcile.operation_context import has_ended


def unfinished_before(resources: Cache, resource: Object, app: str) -> tuple[str, ...]:
    """Return the operations on an application that come before one: kind and name of each.

    Args:
        resources: All that are known.
        resource: The reset or the backfill.
        app: The name of the application.
    """
    found = [
        obj
        for kind in (RESETS, BACKFILLS)
        for obj in _others(resources, kind, resource, app)
        if not _has_ended(obj) and _comes_before(obj, resource)
    ]
    found.sort(key=lambda obj: (_turn(obj), _age(obj)))
    return tuple(f"{obj['kind']} {obj['metadata']['name']}" for obj in found)


def is_repaired(resources: Cache, resource: Object, app: str) -> bool:
    """Return whether another backfill of an application has succeeded since one ended, so that no half state is left of it.

    Args:
        resources: All that are known.
        resource: The backfill that has ended.
        app: The name of the application.
    """
    return any(_repairs(other, resource) for other in _others(resources, BACKFILLS, resource, app))


def is_awaited(resources: Cache, resource: Object, app: str) -> bool:
    """Return whether another backfill of an application is kept until it has seen that this one has succeeded.

    Args:
        resources: All that are known.
        resource: The backfill that has ended.
        app: The name of the application.
    """
    # Nearly always none: the rest validates resources.
    kept = [other for other in _others(resources, BACKFILLS, resource, app) if _is_kept(other)]
    return any(_has_ended(other) and _repairs(resource, other) for other in kept)


def _is_kept(obj: Object) -> bool:
    """Return whether a backfill that was deleted keeps its application stopped."""
    metadata = obj["metadata"]
    deleting = "deletionTimestamp" in metadata and FINALIZER in (metadata.get("finalizers") or ())
    return deleting and bool((obj.get("status") or {}).get("holdsApp"))


def _repairs(one: Object, other: Object) -> bool:
    """Return whether a backfill has succeeded since another one ended, and what that has left is whole again."""
    found, ended = desired_from(one, DesiredBackfill), str(other["status"].get("completionTime") or "")
    return (
        found.status is not None
        and found.status.phase == "Succeeded"
        and (found.status.completion_time or "") > ended
        and found.spec is not None
        and found.spec.changes_kafka
    )


def _others(resources: Cache, kind: ResourceKind, resource: Object, app: str) -> list[Object]:
    """Return all other operations of a kind on an application."""
    return [
        obj
        for obj in resources.of_kind(kind)
        if obj["metadata"]["namespace"] == resource["metadata"]["namespace"]
        and obj["metadata"]["uid"] != resource["metadata"]["uid"]
        and app_named_by(obj) == app
    ]


def _has_ended(obj: Object) -> bool:
    if obj["kind"] == RESETS.kind:
        return has_ended(desired_from(obj, DesiredReset).status)
    return has_ended(desired_from(obj, DesiredBackfill).status)


class _Turn(IntEnum):
    """The groups of operations, in the order in which they go."""

    COMPUTES = 1
    RESETS = 2
    SUSPENDS = 3
    WAITS = 4


def _turn(obj: Object) -> _Turn:
    phase = (obj.get("status") or {}).get("phase")
    if obj["kind"] == RESETS.kind:
        return _Turn.RESETS if phase == "Running" else _Turn.WAITS
    if not has_begun(desired_from(obj, DesiredBackfill).status):
        return _Turn.WAITS
    return _Turn.SUSPENDS if phase == "Suspending" else _Turn.COMPUTES


def _comes_before(one: Object, other: Object) -> bool:
    turn = _turn(one)
    if turn != _turn(other):
        return turn < _turn(other)
    return _age(one) > _age(other) if turn is _Turn.SUSPENDS else _age(one) < _age(other)


def _age(obj: Object) -> tuple[str, str, str]:
    metadata = obj["metadata"]
    return str(metadata.get("creationTimestamp", "")), str(metadata["name"]), str(obj["kind"])
