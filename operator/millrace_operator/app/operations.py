"""What passes over resets and backfills share: both are operations on one application, done once, and one at a time.

The oldest goes first, whatever its kind; one that has begun keeps all others waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from millrace.manifest import StreamsBackfillStatus, StreamsResetStatus
from millrace_operator.app.app_controller import ControllerContext
from millrace_operator.app.backoff import STALE_SECONDS, failure_of
from millrace_operator.backfills.reconciler import has_begun
from millrace_operator.backfills.reconciler import has_ended as backfill_has_ended
from millrace_operator.cluster.executor import StaleError, write_status
from millrace_operator.cluster.kinds import APPS, BACKFILLS, RESETS, ResourceKind
from millrace_operator.cluster.observe import desired_backfill_from, desired_reset_from
from millrace_operator.cluster.requests import ApiError, NotAllowedToWriteError
from millrace_operator.model import Json, Object, ResourceRef
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


def find_app(context: ControllerContext, namespace: str, name: str) -> Object | None:
    """Return an application. An unknown one is requested: if both are applied together, the operation may be seen first."""
    found = context.resources.get(APPS, namespace, name)
    if found is not None or not name:
        return found
    try:
        context.resources.put(APPS, context.requests.get(APPS, namespace, name))
    except ApiError as error:
        if error.not_found:
            return None
        raise
    return context.resources.get(APPS, namespace, name)


def unfinished_before(
    context: ControllerContext, resource: Object, app: str, *, begun: bool = False
) -> tuple[str, ...]:
    """Return the operations on an application that come before one: kind and name of each.

    Args:
        context: Has all that are known.
        resource: The reset or the backfill.
        app: The name of the application.
        begun: Whether it is a backfill that has begun itself. Then only resets and newer backfills come before it that have begun
            as well: passes over both were made at the same time, neither saw the other begin, and the newest has the application.
    """
    own = _age(resource)
    others = [
        (_age(obj), obj)
        for kind in (RESETS, BACKFILLS)
        for obj in context.resources.of_kind(kind)
        if obj["metadata"]["namespace"] == resource["metadata"]["namespace"]
        and obj["metadata"]["uid"] != resource["metadata"]["uid"]
        and ((obj.get("spec") or {}).get("appRef") or {}).get("name") == app
        and not _HAS_ENDED[kind.kind](obj)
    ]
    if begun:
        found = [
            (age, obj) for age, obj in others if _BEGUN[obj["kind"]](obj) and (obj["kind"] == RESETS.kind or age > own)
        ]
    else:
        found = [(age, obj) for age, obj in others if age < own or _BEGUN[obj["kind"]](obj)]
    return tuple(f"{obj['kind']} {obj['metadata']['name']}" for _, obj in sorted(found, key=lambda item: item[0]))


_HAS_ENDED: Final[dict[str, Callable[[Object], bool]]] = {
    RESETS.kind: lambda obj: reset_has_ended(desired_reset_from(obj).status),
    BACKFILLS.kind: lambda obj: backfill_has_ended(desired_backfill_from(obj).status),
}
_BEGUN: Final[dict[str, Callable[[Object], bool]]] = {
    RESETS.kind: lambda obj: (obj.get("status") or {}).get("phase") == "Running",
    BACKFILLS.kind: lambda obj: has_begun(desired_backfill_from(obj).status),
}


def _age(obj: Object) -> tuple[str, str, str]:
    metadata = obj["metadata"]
    return str(metadata.get("creationTimestamp", "")), str(metadata["name"]), str(obj["kind"])


def confirm(context: ControllerContext, kind: ResourceKind, resource: Object, app: Object) -> None:
    """Read an operation and its application again, because what it does cannot be undone.

    Raises:
        StaleError: One of them is gone or has changed.
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
            context.resources.remove(of, known)
            context.resources.put(of, now)
            raise StaleError(f"{of.kind} {metadata['name']} has changed")


def _identity(kind: ResourceKind, resource: Object) -> tuple[object, ...]:
    """Return what must not have changed: for an operation everything, as another operator may already have carried it out."""
    metadata = resource["metadata"]
    version = None if kind is APPS else metadata.get("resourceVersion")
    return metadata["uid"], metadata.get("generation"), metadata.get("deletionTimestamp"), version
