"""What passes over resets and backfills share: both are operations on one application, done once, and one at a time.

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

import logging
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final

from millrace.manifest import StreamsBackfillStatus, StreamsResetStatus
from millrace_operator.app.app_controller import ControllerContext
from millrace_operator.app.backoff import STALE_SECONDS, failure_of
from millrace_operator.backfills.reconciler import has_begun
from millrace_operator.backfills.reconciler import has_ended as backfill_has_ended
from millrace_operator.children.naming import FINALIZER
from millrace_operator.cluster.executor import StaleError, write_status
from millrace_operator.cluster.kinds import APPS, BACKFILLS, RESETS, ResourceKind
from millrace_operator.cluster.observe import desired_backfill_from, desired_reset_from
from millrace_operator.cluster.requests import ApiError, NotAllowedToWriteError
from millrace_operator.model import Json, Object, ResourceRef, app_named_by
from millrace_operator.resets.reconciler import has_ended as reset_has_ended

log = logging.getLogger(__name__)


def run_pass(
    ref: ResourceRef, failures: int, run: Callable[[], float | None], report: Callable[[str], None]
) -> float | None:
    """Run a pass over an operation, whose status says why it failed; result and exceptions are those of `AppController.run`.

    Args:
        ref: The operation.
        failures: How many passes have failed before.
        run: The pass.
        report: Writes the reason of a failure to the status.
    """
    try:
        return run()
    except StaleError as error:
        log.info("%s: %s; looking again", ref, error)
        return STALE_SECONDS
    except Exception as error:
        failure = failure_of(error)
        if not isinstance(error, NotAllowedToWriteError):
            report(str(failure))
        log.debug("%s has failed %d times before", ref, failures)
        raise failure from error


def write_operation_status(
    context: ControllerContext, kind: ResourceKind, resource: Object, status: StreamsResetStatus | StreamsBackfillStatus
) -> None:
    """Write the status of an operation.

    Raises:
        StaleError: The operation is not the one that was seen.
    """
    try:
        write_status(context.requests, context.resources, kind, resource, status)
    except ApiError as error:
        if error.conflict or error.not_found:
            raise StaleError(f"{kind.kind} {resource['metadata']['name']} has changed or is gone") from error
        raise


def current(context: ControllerContext, kind: ResourceKind, resource: Object) -> Object:
    """Return an operation as an action of its pass has left it.

    Raises:
        StaleError: There is another one of its name, to which this one's status must not be written.
    """
    metadata = resource["metadata"]
    now = context.resources.get(kind, metadata["namespace"], metadata["name"])
    if now is not None and now["metadata"]["uid"] != metadata["uid"]:
        raise StaleError(f"{kind.kind} {metadata['name']} was created again")
    return now or resource


def find_app(context: ControllerContext, namespace: str, name: str) -> Object | None:
    """Return an application. An unknown one is requested: if both are applied together, the operation may be seen first.

    It is not kept: then it would be known when the watch has it, which would lead to no pass over it.
    """
    found = context.resources.get(APPS, namespace, name)
    if found is not None or not name:
        return found
    try:
        requested: Json = context.requests.get(APPS, namespace, name)
    except ApiError as error:
        if error.not_found:
            return None
        raise
    return requested


def unfinished_before(context: ControllerContext, resource: Object, app: str) -> tuple[str, ...]:
    """Return the operations on an application that come before one: kind and name of each.

    Args:
        context: Has all that are known.
        resource: The reset or the backfill.
        app: The name of the application.
    """
    found = [
        obj
        for kind in (RESETS, BACKFILLS)
        for obj in _others(context, kind, resource, app)
        if not _HAS_ENDED[kind.kind](obj) and _comes_before(obj, resource)
    ]
    found.sort(key=lambda obj: (_turn(obj), _age(obj)))
    return tuple(f"{obj['kind']} {obj['metadata']['name']}" for obj in found)


def is_repaired(context: ControllerContext, resource: Object, app: str) -> bool:
    """Return whether another backfill of an application has succeeded since one ended, so that no half state is left of it.

    Args:
        context: Has all that are known.
        resource: The backfill that has ended.
        app: The name of the application.
    """
    return any(_repairs(other, resource) for other in _others(context, BACKFILLS, resource, app))


def is_awaited(context: ControllerContext, resource: Object, app: str) -> bool:
    """Return whether another backfill of an application is kept until it has seen that this one has succeeded.

    Args:
        context: Has all that are known.
        resource: The backfill that has ended.
        app: The name of the application.
    """
    # Nearly always none: the rest validates resources.
    kept = [other for other in _others(context, BACKFILLS, resource, app) if _is_kept(other)]
    return any(_HAS_ENDED[BACKFILLS.kind](other) and _repairs(resource, other) for other in kept)


def _is_kept(obj: Object) -> bool:
    """Return whether a backfill that was deleted keeps its application stopped."""
    metadata = obj["metadata"]
    deleting = "deletionTimestamp" in metadata and FINALIZER in (metadata.get("finalizers") or ())
    return deleting and bool((obj.get("status") or {}).get("holdsApp"))


def _repairs(one: Object, other: Object) -> bool:
    """Return whether a backfill has succeeded since another one ended, and what that has left is whole again."""
    found, ended = desired_backfill_from(one), str(other["status"].get("completionTime") or "")
    return (
        found.status is not None
        and found.status.phase == "Succeeded"
        and (found.status.completion_time or "") > ended
        and found.spec is not None
        and found.spec.changes_kafka
    )


def _others(context: ControllerContext, kind: ResourceKind, resource: Object, app: str) -> list[Object]:
    """Return all other operations of a kind on an application."""
    return [
        obj
        for obj in context.resources.of_kind(kind)
        if obj["metadata"]["namespace"] == resource["metadata"]["namespace"]
        and obj["metadata"]["uid"] != resource["metadata"]["uid"]
        and app_named_by(obj) == app
    ]


_HAS_ENDED: Final[dict[str, Callable[[Object], bool]]] = {
    RESETS.kind: lambda obj: reset_has_ended(desired_reset_from(obj).status),
    BACKFILLS.kind: lambda obj: backfill_has_ended(desired_backfill_from(obj).status),
}


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
    if not has_begun(desired_backfill_from(obj).status):
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


def confirm(
    context: ControllerContext, kind: ResourceKind, resource: Object, app: Object, before: Sequence[str]
) -> None:
    """Read an operation and its application again, because what it does cannot be undone.

    Args:
        context: How to read them.
        kind: The kind of the operation.
        resource: The operation as it was seen.
        app: Its application.
        before: What was seen to come before it. Another operation may have begun while the brokers were asked.

    Raises:
        StaleError: One of them is gone or has changed, or something else comes before it now.
    """
    for of, known in ((kind, resource), (APPS, app)):
        metadata = known["metadata"]
        try:
            now: Json = context.requests.get(of, metadata["namespace"], metadata["name"])
        except ApiError as error:
            if error.not_found:
                context.resources.remove(of, known)
                raise StaleError(f"{of.kind} {metadata['name']} is gone") from error
            raise
        if _identity(of, now) != _identity(of, known):
            if of is not APPS:  # what its watch finds to be known already leads to no pass over an application
                context.resources.remove(of, known)
                context.resources.put(of, now)
            raise StaleError(f"{of.kind} {metadata['name']} has changed")
    now_before = unfinished_before(context, resource, app["metadata"]["name"])
    if now_before != tuple(before):
        raise StaleError(f"what comes before it has changed: {', '.join(now_before) or 'nothing'}")


def _identity(kind: ResourceKind, resource: Object) -> tuple[object, ...]:
    """Return what must not have changed: for an operation everything, as another operator may already have carried it out."""
    metadata = resource["metadata"]
    version = None if kind is APPS else metadata.get("resourceVersion")
    return metadata["uid"], metadata.get("generation"), metadata.get("deletionTimestamp"), version
