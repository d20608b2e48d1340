"""One pass over one StreamsReset: observe, decide, act, report, like a pass over an application."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from functools import partial

from millrace.errors import StreamsError
from millrace.manifest import StreamsResetStatus
from millrace_operator.app.app_controller import ControllerContext, act_on_kafka
from millrace_operator.app.operations import (
    confirm,
    current,
    find_app,
    run_pass,
    unfinished_before,
    write_operation_status,
)
from millrace_operator.children.naming import FINALIZER
from millrace_operator.cluster.executor import write_status
from millrace_operator.cluster.kinds import RESETS
from millrace_operator.cluster.observe import desired_from, desired_reset_from, neighbours_of
from millrace_operator.cluster.requests import ApiError, NotAllowedToWriteError
from millrace_operator.kafka.state_cache import KafkaStateCache
from millrace_operator.model import Apply, Delete, Object, ResourceRef, SetFinalizer
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
        report = partial(self._report_failure, ref, desired)
        return run_pass(ref, failures, lambda: self._pass(ref, resource, desired), report)

    def _pass(self, ref: ResourceRef, resource: Object, desired: DesiredReset) -> float | None:
        if has_ended(desired.status) and FINALIZER not in desired.finalizers:
            return None
        name = desired.spec.app_ref.name if desired.spec else ""
        app = find_app(self.context, desired.namespace, name)
        observed = self._observe(resource, desired, name, app)
        decision = reconcile_reset(desired, observed)
        # From its start on, a reset fails if it finds the application running.
        begins = decision.status is not None and decision.status.phase == "Running"
        begins = begins and (desired.status is None or desired.status.phase != "Running")
        if begins or any(not isinstance(item, SetFinalizer) for item in decision.actions):
            assert app is not None
            confirm(self.context, RESETS, resource, app, observed.before)
        for action in decision.actions:
            log.info("%s: %s", ref, type(action).__name__)
            self._do(resource, observed, action)
            resource = current(self.context, RESETS, resource)
        if decision.status is not None:
            write_operation_status(self.context, RESETS, resource, decision.status)
        for event in decision.events:
            self.context.recorder.record(resource, event)
        return decision.again_after

    def _observe(self, resource: Object, desired: DesiredReset, name: str, app: Object | None) -> ObservedReset:
        of = desired_from(app) if app else None
        context = self.context
        near = neighbours_of(of, context.resources, context.children, self.kafka_states.cluster_id) if of else ()
        observed = ObservedReset(
            now=time.time(),
            app=of,
            claimants=tuple(str(item) for item in near if item.same_id),
            objects=self.context.children.of_app(desired.namespace, name),
            before=unfinished_before(context, resource, name),
        )
        question = question_for(desired, observed)
        if question is None or observed.app is None:
            return observed
        try:
            return replace(observed, brokers=self.context.kafka.observe_for_reset(observed.app, question))
        except StreamsError as error:
            return replace(observed, problem=str(error))
        except ApiError as error:
            return replace(observed, problem=f"The credentials could not be read: {error}")

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
