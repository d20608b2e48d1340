"""One pass over one StreamsReset: observe, decide, act, report, like a pass over an application."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from millrace.errors import StreamsError
from millrace.manifest import StreamsResetStatus
from millrace_operator.app.app_controller import ControllerContext, act_on_kafka
from millrace_operator.app.backoff import STALE_SECONDS, failure_of
from millrace_operator.children.naming import FINALIZER
from millrace_operator.cluster.executor import StaleError, write_status
from millrace_operator.cluster.kinds import APPS, RESETS, ResourceKind
from millrace_operator.cluster.observe import desired_from, desired_reset_from, neighbours_of
from millrace_operator.cluster.requests import ApiError, NotAllowedToWriteError
from millrace_operator.kafka.state_cache import KafkaStateCache
from millrace_operator.model import Apply, Delete, Json, Object, ResourceRef, SetFinalizer
from millrace_operator.resets.reconciler import (
    DesiredReset,
    ObservedReset,
    PatchApp,
    ResetAction,
    has_ended,
    question_for,
    reconcile_reset,
    with_problem,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResetController:
    """Runs passes over resets; thread-safe for different resets.

    Args:
        context: How the cluster and the brokers are reached.
        kafka_states: What is known about the brokers of applications.
    """

    context: ControllerContext
    kafka_states: KafkaStateCache

    def run(self, ref: ResourceRef, failures: int) -> float | None:
        """Run a pass; arguments, result and exceptions are those of `AppController.run`."""
        resource = self.context.resources.get(RESETS, ref.namespace, ref.name)
        if resource is None:
            return None
        desired = desired_reset_from(resource)
        try:
            return self._pass(ref, resource, desired)
        except StaleError as error:
            log.info("%s: %s; looking again", ref, error)
            return STALE_SECONDS
        except Exception as error:
            failure = failure_of(error)
            if not isinstance(error, NotAllowedToWriteError):
                self._report_failure(ref, desired, str(failure))
            log.debug("%s has failed %d times before", ref, failures)
            raise failure from error

    def _pass(self, ref: ResourceRef, resource: Object, desired: DesiredReset) -> float | None:
        if has_ended(desired.status) and FINALIZER not in desired.finalizers:
            return None
        name = desired.spec.app_ref.name if desired.spec else ""
        app = self._app(desired.namespace, name)
        observed = self._observe(desired, name, app)
        decision = reconcile_reset(desired, observed)
        # From its start on, a reset fails if it finds the application running.
        begins = decision.status is not None and decision.status.phase == "Running"
        begins = begins and (desired.status is None or desired.status.phase != "Running")
        if begins or any(not isinstance(item, SetFinalizer) for item in decision.actions):
            self._confirm(resource, app)
        for action in decision.actions:
            log.info("%s: %s", ref, type(action).__name__)
            self._do(resource, observed, action)
            resource = self.context.resources.get(RESETS, ref.namespace, ref.name) or resource
        if decision.status is not None:
            self._write(resource, decision.status)
        for event in decision.events:
            self.context.recorder.record(resource, event)
        return decision.again_after

    def _app(self, namespace: str, name: str) -> Object | None:
        """Return the application. An unknown one is requested: if both are applied together, the reset may be seen first."""
        found = self.context.resources.get(APPS, namespace, name)
        if found is not None or not name:
            return found
        try:
            self.context.resources.put(APPS, self.context.requests.get(APPS, namespace, name))
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return self.context.resources.get(APPS, namespace, name)

    def _observe(self, desired: DesiredReset, name: str, app: Object | None) -> ObservedReset:
        of = desired_from(app) if app else None
        context = self.context
        near = neighbours_of(of, context.resources, context.children, self.kafka_states.cluster_id) if of else ()
        observed = ObservedReset(
            now=time.time(),
            app=of,
            claimants=tuple(str(item) for item in near if item.same_id),
            objects=self.context.children.of_app(desired.namespace, name),
            before=self._before(desired, name),
        )
        question = question_for(desired, observed)
        if question is None or observed.app is None:
            return observed
        try:
            return replace(observed, brokers=self.context.kafka.observe_for_reset(observed.app, question))
        except StreamsError as error:
            return replace(observed, problem=str(error))

    def _before(self, desired: DesiredReset, app: str) -> tuple[str, ...]:
        """Return the names of older resets of the same application that are not finished."""
        others = sorted(
            (str(obj["metadata"].get("creationTimestamp", "")), obj["metadata"]["name"])
            for obj in self.context.resources.of_kind(RESETS)
            if obj["metadata"]["namespace"] == desired.namespace
            and (obj.get("spec") or {}).get("appRef", {}).get("name") == app
            and not has_ended(desired_reset_from(obj).status)
        )
        names = [name for _, name in others]
        return tuple(names[: names.index(desired.name)]) if desired.name in names else ()

    def _confirm(self, resource: Object, app: Object | None) -> None:
        """Read the reset and its application again: a reset cannot be undone."""
        assert app is not None
        for kind, known in ((RESETS, resource), (APPS, app)):
            metadata = known["metadata"]
            try:
                now: Json = self.context.requests.get(kind, metadata["namespace"], metadata["name"])
            except ApiError as error:
                if error.not_found:
                    self.context.resources.remove(kind, known)
                    raise StaleError(f"{kind.kind} {metadata['name']} is gone") from error
                raise
            if _identity(kind, now) != _identity(kind, known):
                self.context.resources.remove(kind, known)
                self.context.resources.put(kind, now)
                raise StaleError(f"{kind.kind} {metadata['name']} has changed")

    def _do(self, resource: Object, observed: ObservedReset, action: ResetAction) -> None:
        if isinstance(action, SetFinalizer):
            self.context.executor.do(action, resource)
            return
        app = observed.app
        assert app is not None
        if isinstance(action, PatchApp):
            self.context.executor.patch_app(app.namespace, app.name, action)
        elif isinstance(action, Apply | Delete):
            self.context.executor.do(action, resource)
        else:
            act_on_kafka(self.context, self.kafka_states, app, action)

    def _write(self, resource: Object, status: StreamsResetStatus) -> None:
        try:
            write_status(self.context.requests, self.context.resources, RESETS, resource, status)
        except ApiError as error:
            if error.conflict or error.not_found:
                raise StaleError("the reset has changed or is gone") from error
            raise

    def _report_failure(self, ref: ResourceRef, desired: DesiredReset, problem: str) -> None:
        """Report in the status why nothing is happening; if that fails too, it must not hide the original failure."""
        resource = self.context.resources.get(RESETS, ref.namespace, ref.name)
        if resource is None or has_ended(desired.status):
            return
        status = with_problem(desired_reset_from(resource).status or StreamsResetStatus(), problem)
        try:
            write_status(self.context.requests, self.context.resources, RESETS, resource, status)
        except (ApiError, NotAllowedToWriteError) as error:
            log.warning("%s: the status could not be written: %s", ref, error)


def _identity(kind: ResourceKind, resource: Object) -> tuple[object, ...]:
    """Return what must not have changed: for a reset everything, as another operator may already have carried it out."""
    metadata = resource["metadata"]
    version = metadata.get("resourceVersion") if kind is RESETS else None
    return metadata["uid"], metadata.get("generation"), metadata.get("deletionTimestamp"), version
