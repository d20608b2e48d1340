"""One pass over one operation (a reset or a backfill): observe, decide, act, report, like a pass over an application."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from millrace_operator.app.app_controller import ControllerContext
from millrace_operator.app.backoff import STALE_SECONDS, failure_of
from millrace_operator.app.operation_order import unfinished_before
from millrace_operator.cluster.executor import StaleError, write_status
from millrace_operator.cluster.kinds import APPS, ResourceKind
from millrace_operator.cluster.observe import desired_from, neighbours_of
from millrace_operator.cluster.requests import ApiError, NotAllowedToWriteError
from millrace_operator.kafka.state_cache import KafkaStateCache
from millrace_operator.model import DesiredApp, DesiredResource, Json, Object, ResourceRef, app_named_by
from millrace_operator.reconcile.operation_context import ObservedT, OperationDecision, OperationStatus, has_ended

log = logging.getLogger(__name__)
DesiredT = TypeVar("DesiredT", bound=DesiredResource[Any, Any])
DecisionT = TypeVar("DecisionT", bound=OperationDecision[Any, Any])


class DecideAgainError(Exception):
    """An action has failed in a way that is not a failure of the pass, but decides how to go on.

    Args:
        observed: What the pass has observed, this included.
    """

    def __init__(self, observed: object) -> None:
        super().__init__()
        self.observed: Any = observed


@dataclass(frozen=True, slots=True)
class OperationController(ABC, Generic[DesiredT, ObservedT, DecisionT]):
    """Runs passes over the operations of one kind; thread-safe for different operations.

    Args:
        context: How the cluster and the brokers are reached.
        kafka_states: What is known about the brokers of applications.
    """

    kind: ClassVar[ResourceKind]
    desired_type: ClassVar[type[Any]]
    observed_type: ClassVar[type[Any]]

    context: ControllerContext
    kafka_states: KafkaStateCache

    def run(self, ref: ResourceRef, failures: int) -> float | None:
        """Run a pass; arguments, result and exceptions are those of `AppController.run`. The status says why one has failed."""
        resource = self.context.resources.get(self.kind, ref.namespace, ref.name)
        if resource is None:
            return None
        try:
            return self._pass(ref, resource)
        except StaleError as error:
            log.info("%s: %s; looking again", ref, error)
            return STALE_SECONDS
        except Exception as error:
            failure = failure_of(error)
            # Another operator leads now: what it writes must stand.
            if not isinstance(error, NotAllowedToWriteError):
                self._report_failure(ref, str(failure))
            log.debug("%s has failed %d times before", ref, failures)
            raise failure from error

    @abstractmethod
    def _needs_app(self, desired: DesiredT) -> bool:
        """Return whether it depends on the application what to do."""

    @abstractmethod
    def _observe(self, desired: DesiredT, resource: Object, seen: ObservedT) -> ObservedT:
        """Add to what was seen what only this kind of operation has to know."""

    @abstractmethod
    def _decide(self, desired: DesiredT, observed: ObservedT) -> DecisionT:
        """Return what to do."""

    @abstractmethod
    def _is_irrevocable(self, desired: DesiredT, decision: DecisionT) -> bool:
        """Return whether a decision cannot be taken back, so that nothing it rests on may be outdated."""

    @abstractmethod
    def _do(self, desired: DesiredT, resource: Object, observed: ObservedT, action: Any) -> None:
        """Carry out an action.

        Raises:
            DecideAgainError: What to do has to be decided again, with what the action has shown.
        """

    @abstractmethod
    def _with_problem(self, desired: DesiredT, problem: str) -> OperationStatus:
        """Return the status of an operation of which a pass has failed."""

    def _pass(self, ref: ResourceRef, resource: Object) -> float | None:
        desired: DesiredT = desired_from(resource, self.desired_type)
        name = app_named_by(resource)
        app = self._find_app(desired.namespace, name) if self._needs_app(desired) else None
        observed = self._observe(desired, resource, self._see(desired, resource, app))
        decision = self._decide(desired, observed)
        if app is not None and self._is_irrevocable(desired, decision):
            self._confirm(resource, app, observed.before)
        for action in decision.actions:
            log.info("%s: %s", ref, type(action).__name__)
            try:
                self._do(desired, resource, observed, action)
            except DecideAgainError as error:
                # Its actions, if any, are left to the next pass, which decides them after this status.
                decision = self._decide(desired, error.observed)
                break
            resource = self._current(resource)
        if decision.status is not None:
            self._write_status(resource, decision.status)
        for event in decision.events:
            self.context.recorder.record(resource, event)
        return decision.again_after

    def _see(self, desired: DesiredT, resource: Object, app: Object | None) -> ObservedT:
        """Return what a pass over any operation has to know; of one that has ended, hardly anything."""
        context, now = self.context, time.time()
        of = desired_from(app, DesiredApp) if app else None
        if has_ended(desired.status):
            ended: ObservedT = self.observed_type(now, app=of)
            return ended
        name = app_named_by(resource)
        near = neighbours_of(of, context.resources, context.children, self.kafka_states.cluster_id) if of else ()
        seen: ObservedT = self.observed_type(
            now,
            app=of,
            objects=context.children.of_app(desired.namespace, name),
            claimants=tuple(str(item) for item in near if item.same_id),
            before=unfinished_before(context.resources, resource, name),
        )
        return seen

    def _find_app(self, namespace: str, name: str) -> Object | None:
        """Return an application. An unknown one is requested: if both are applied together, the operation may be seen first.

        It is not kept: then it would be known when the watch has it, which would lead to no pass over it.
        """
        found = self.context.resources.get(APPS, namespace, name)
        if found is not None or not name:
            return found
        try:
            requested: Json = self.context.requests.get(APPS, namespace, name)
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return requested

    def _confirm(self, resource: Object, app: Object, before: Sequence[str]) -> None:
        """Read an operation and its application again, because what it does cannot be undone.

        Args:
            resource: The operation as it was seen.
            app: Its application.
            before: What was seen to come before it. Another operation may have begun while the brokers were asked.

        Raises:
            StaleError: One of them is gone or has changed, or something else comes before it now.
        """
        resources = self.context.resources
        for of, known in ((self.kind, resource), (APPS, app)):
            metadata = known["metadata"]
            try:
                now: Json = self.context.requests.get(of, metadata["namespace"], metadata["name"])
            except ApiError as error:
                if error.not_found:
                    resources.remove(of, known)
                    raise StaleError(f"{of.kind} {metadata['name']} is gone") from error
                raise
            if _identity(of, now) != _identity(of, known):
                if of is not APPS:  # what its watch finds to be known already leads to no pass over an application
                    resources.remove(of, known)
                    resources.put(of, now)
                raise StaleError(f"{of.kind} {metadata['name']} has changed")
        now_before = unfinished_before(resources, resource, app["metadata"]["name"])
        if now_before != tuple(before):
            raise StaleError(f"what comes before it has changed: {', '.join(now_before) or 'nothing'}")

    def _current(self, resource: Object) -> Object:
        """Return an operation as an action of its pass has left it.

        Raises:
            StaleError: There is another one of its name, to which this one's status must not be written.
        """
        metadata = resource["metadata"]
        now = self.context.resources.get(self.kind, metadata["namespace"], metadata["name"])
        if now is not None and now["metadata"]["uid"] != metadata["uid"]:
            raise StaleError(f"{self.kind.kind} {metadata['name']} was created again")
        return now or resource

    def _write_status(self, resource: Object, status: OperationStatus) -> None:
        try:
            write_status(self.context.requests, self.context.resources, self.kind, resource, status)
        except ApiError as error:
            if error.conflict or error.not_found:
                raise StaleError(f"{self.kind.kind} {resource['metadata']['name']} has changed or is gone") from error
            raise

    def _report_failure(self, ref: ResourceRef, problem: str) -> None:
        """Report in the status why nothing is happening; if that fails too, it must not hide the original failure."""
        resource = self.context.resources.get(self.kind, ref.namespace, ref.name)
        if resource is None:
            return
        desired: DesiredT = desired_from(resource, self.desired_type)
        if has_ended(desired.status):
            return
        try:
            status = self._with_problem(desired, problem)
            write_status(self.context.requests, self.context.resources, self.kind, resource, status)
        except (ApiError, NotAllowedToWriteError) as error:
            log.warning("%s: the status could not be written: %s", ref, error)


def _identity(kind: ResourceKind, resource: Object) -> tuple[object, ...]:
    """Return what must not have changed: for an operation everything, as another operator may already have carried it out."""
    metadata = resource["metadata"]
    version = None if kind is APPS else metadata.get("resourceVersion")
    return metadata["uid"], metadata.get("generation"), metadata.get("deletionTimestamp"), version
