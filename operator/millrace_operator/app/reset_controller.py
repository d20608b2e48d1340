"""Passes over StreamsResets."""

from __future__ import annotations

from dataclasses import replace

from millrace.errors import StreamsError
from millrace.manifest import StreamsResetStatus
from millrace_operator.app.app_controller import act_on_kafka
from millrace_operator.app.operation_controller import OperationController
from millrace_operator.cluster.kinds import RESETS
from millrace_operator.cluster.requests import ApiError
from millrace_operator.model import Apply, Delete, DesiredReset, Object, SetFinalizer
from millrace_operator.reconcile.operation_context import has_ended
from millrace_operator.resets.reconciler import (
    ObservedReset,
    PatchApp,
    ResetAction,
    ResetDecision,
    question_for,
    reconcile_reset,
    with_problem,
)


class ResetController(OperationController[DesiredReset, ObservedReset, ResetDecision]):
    """Runs passes over resets."""

    __slots__ = ()
    kind = RESETS
    desired_type = DesiredReset
    observed_type = ObservedReset

    def _needs_app(self, desired: DesiredReset) -> bool:
        return desired.spec is not None and not has_ended(desired.status)

    def _observe(self, desired: DesiredReset, resource: Object, seen: ObservedReset) -> ObservedReset:
        del resource
        question = question_for(desired, seen)
        if question is None or seen.app is None:
            return seen
        try:
            access = self.context.access.of(seen.app)
            brokers = self.context.kafka.observe_for_reset(*access, question.plan, question.target, question.inputs)
            return replace(seen, brokers=brokers)
        except StreamsError as error:
            return replace(seen, problem=str(error))
        except ApiError as error:
            return replace(seen, problem=f"The credentials could not be read: {error}")

    def _decide(self, desired: DesiredReset, observed: ObservedReset) -> ResetDecision:
        return reconcile_reset(desired, observed)

    def _is_irrevocable(self, desired: DesiredReset, decision: ResetDecision) -> bool:
        # From its start on, a reset fails if it finds the application running.
        begins = decision.status is not None and decision.status.phase == "Running"
        begins = begins and (desired.status is None or desired.status.phase != "Running")
        return begins or any(not isinstance(item, SetFinalizer) for item in decision.actions)

    def _do(self, desired: DesiredReset, resource: Object, observed: ObservedReset, action: ResetAction) -> None:
        if isinstance(action, SetFinalizer | Apply | Delete):
            self.context.executor.do(action, resource)
            return
        assert observed.app is not None
        if isinstance(action, PatchApp):
            self.context.executor.patch_app(desired.namespace, observed.app.name, action)
        else:
            act_on_kafka(self.context, self.kafka_states, observed.app, action)

    def _with_problem(self, desired: DesiredReset, problem: str) -> StreamsResetStatus:
        return with_problem(desired.status or StreamsResetStatus(), problem)
