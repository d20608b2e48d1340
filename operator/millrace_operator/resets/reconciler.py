"""`reconcile_reset`: from a reset and what was observed to what to do about it.

A pure function, called again until the reset has finished. The plan is written into the status first. Then everything is done in
one pass, or in several if a pass is interrupted: first the offsets, which the brokers refuse to set while the group has members;
then topics, volumes, and the operator's record of them. Each step is idempotent. The status records that all is done, and a reset
that has finished never does anything again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal

from millrace.errors import ActiveGroupError, ConfigError
from millrace.manifest import Condition, StreamsResetSpec, StreamsResetStatus
from millrace.manifest.streamsreset import ResetResult
from millrace.plan import reset
from millrace.plan.reset import OffsetTarget, ResetActions
from millrace.plan.topology_plan import TopologyPlan
from millrace_operator.children.naming import ACCEPT_LOSS_ANNOTATION, FINALIZER, PAUSE_ANNOTATION
from millrace_operator.model import (
    Apply,
    Delete,
    DeleteTopics,
    DesiredApp,
    DesiredReset,
    Event,
    Key,
    SetFinalizer,
    SetOffsets,
)
from millrace_operator.reconcile import retained, revision_history
from millrace_operator.reconcile.consumer_group import listed
from millrace_operator.reconcile.operation_context import (
    ObservedOperation,
    OperationContext,
    OperationDecision,
    has_ended,
)
from millrace_operator.reconcile.timestamps import timestamp
from millrace_operator.resets.reset_plan import merged_plan, plan_actions, planned_offsets, result_of

Phase = Literal["Pending", "Waiting", "Running", "Succeeded", "Failed", "Refused"]
PATIENCE_S: Final = 600.0
"""How long a reset waits for the application to be suspended."""
LAST_PATIENCE_S: Final = 60.0
"""How long the operator tries to finish a reset that is deleted after it has begun."""
_NOT_ALL: Final = "Not everything could be done yet"
_LATER_S: Final = 5.0
_SOON_S: Final = 1.0
_EXECUTED: Final = "Executed"


@dataclass(frozen=True, slots=True)
class ResetQuestion:
    """What to ask the brokers for a reset."""

    plan: TopologyPlan
    target: OffsetTarget
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ObservedReset(ObservedOperation):
    """Everything that a pass over a reset has observed."""

    brokers: reset.ObservedApplication | None = None
    """What the brokers know about the application; None if they were not asked or do not answer."""


@dataclass(frozen=True, slots=True)
class PatchApp:
    """Change the application's resource by a merge patch, provided it is the one that was observed."""

    uid: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    status: Mapping[str, None] = field(default_factory=dict)
    """Fields to remove from the status."""


ResetAction = SetOffsets | PatchApp | DeleteTopics | Delete | Apply | SetFinalizer


@dataclass(frozen=True, slots=True)
class ResetDecision(OperationDecision[ResetAction, StreamsResetStatus]):
    """What a pass over a reset has decided."""


def question_for(desired: DesiredReset, observed: ObservedReset) -> ResetQuestion | None:
    """Return what to ask the brokers before `reconcile_reset` can continue; None if it is waiting for something else."""
    this = _Pass(desired, observed)
    if this.is_over or desired.spec is None:
        return None
    if this.executed or this.hindrance() is not None:
        return None
    plan = this.plan
    return None if plan is None else ResetQuestion(plan, desired.spec.target(), desired.spec.input_topics)


def reconcile_reset(desired: DesiredReset, observed: ObservedReset) -> ResetDecision:
    """Return what to do about a reset, and its status.

    Args:
        desired: The resource as it stands.
        observed: What was seen of the application, its children and its brokers.
    """
    this = _Pass(desired, observed)
    if this.is_over:
        return ResetDecision((SetFinalizer(present=False),) if FINALIZER in desired.finalizers else ())
    decision = this.finish() if this.executed else this.hindrance() or this.decide()
    goes_on = this.begun and decision.status is not None and decision.status.phase == "Running"
    if not goes_on or FINALIZER in desired.finalizers or desired.deleting:
        return decision
    # It keeps a reset that has begun, as offsets and state belong together; `kubectl replace` has dropped it.
    return replace(decision, actions=(SetFinalizer(present=True), *decision.actions))


class _Pass(OperationContext[StreamsResetSpec, StreamsResetStatus, ObservedReset]):
    """Decides what to do in one pass."""

    __slots__ = ()

    @property
    def begun(self) -> bool:
        """Whether something may have been done already."""
        return self.status.phase == "Running"

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do: it has ended, or was deleted before it began."""
        return has_ended(self.desired.status) or (self.desired.deleting and not self.begun)

    @property
    def overdue(self) -> bool:
        """Whether it is being deleted and has run out of time."""
        deleted = self.desired.deletion_time
        return deleted is not None and self.observed.now >= deleted + LAST_PATIENCE_S

    @property
    def executed(self) -> bool:
        """Whether everything has been done."""
        return any(item.type == _EXECUTED for item in self.status.conditions)

    @property
    def plan(self) -> TopologyPlan | None:
        """What all revisions of the application need."""
        assert self.app.spec is not None
        return merged_plan(self.app.spec.application_id, self.view.plans())

    def hindrance(self) -> ResetDecision | None:
        """Return what to do about a reset that cannot continue yet, or ever; None if it can."""
        spec, app = self.desired.spec, self.observed.app
        if spec is None:
            return self._end("Failed", "\n".join(self.desired.problems) or "The spec cannot be read.")
        name = spec.app_ref.name
        if app is None:
            return self._end("Failed", f"There is no StreamsApp {name} in namespace {self.desired.namespace}.")
        if app.deleting:
            return self._end("Failed", f"StreamsApp {name} is being deleted.")
        if app.spec is None:
            return self._wait(f"The spec of StreamsApp {name} is not valid: correct it first.")
        if not spec.dry_run and (decision := self._activity(app)):
            return decision
        if self.plan is None:
            return self._wait(f"The topology of StreamsApp {name} is not known yet: see its conditions.")
        return None

    def decide(self) -> ResetDecision:
        """Return what to do when nothing is in the way except perhaps the brokers."""
        spec, plan = self.desired.spec, self.plan
        assert spec is not None
        assert plan is not None
        if self.observed.brokers is None:
            return self._wait(self.observed.problem or "The brokers have not been asked yet.")
        try:
            actions = plan_actions(spec, self.observed.brokers, plan, self.app, self.view)
        except ActiveGroupError as error:
            return self._wait(str(error))
        except ConfigError as error:
            return self._end("Refused", str(error))
        if spec.dry_run:
            return self._describe(result_of(spec, actions, self.view))
        if not self.begun or self.status.plan is None:
            return self._begin(result_of(spec, actions, self.view))
        return self._execute(spec, actions, self.status.plan, self.observed.brokers)

    def finish(self) -> ResetDecision:
        """Return what to do after everything has been executed; volumes may take a while to disappear."""
        planned = self.status.plan or ResetResult()
        if self.observed.app is not None:
            going = [claim.name for claim in self.view.claims.values() if claim.terminating]
            if going and not self.desired.deleting:
                return ResetDecision(
                    (), self._status("Running", f"Volumes are being deleted: {listed(going)}."), (), _LATER_S
                )
        return self._end(
            "Succeeded",
            f"The application is reset: {_summary(planned)}. Set spec.state: running to start it.",
            result=planned,
        )

    def _activity(self, app: DesiredApp) -> ResetDecision | None:
        """Return what to do about an application that has not stopped; None if it has."""
        assert app.spec is not None
        if app.spec.state != "suspended":
            return self._not_suspended(app.name)
        if app.annotations.get(PAUSE_ANNOTATION, "").lower() == "true":
            return self._wait(f"StreamsApp {app.name} is paused by the annotation {PAUSE_ANNOTATION}: remove it.")
        if self.observed.before:
            return self._wait(f"{self.observed.before[0]} of the same application has not finished yet.")
        if self.observed.claimants:
            return self._wait(
                f"StreamsApp {listed(self.observed.claimants)} has the same applicationId, so the reset would affect it as well."
            )
        pods = [pod.name for pod in self.view.pods.values()]
        if pods:
            return self._wait(f"Pods of StreamsApp {app.name} are stopping: {listed(pods)}.")
        if self.view.may_get_pods:
            return self._wait(f"StreamsApp {app.name} may still get pods: its StatefulSet has not settled yet.")
        return None

    def _not_suspended(self, name: str) -> ResetDecision:
        if self.begun:
            return self._end(
                "Failed",
                f"StreamsApp {name} was started while the reset was under way, so the reset is incomplete. Set its spec.state: "
                "suspended, then create another StreamsReset.",
            )
        # A reset must not lie in wait: otherwise it would start when somebody suspends the application weeks later.
        if self.observed.now < self._began + PATIENCE_S:
            return self._wait(
                f"StreamsApp {name} is running: set its spec.state: suspended. The reset is refused if that is not done within "
                f"{PATIENCE_S / 60:.0f} minutes."
            )
        return self._end(
            "Refused",
            f"StreamsApp {name} is running. Set its spec.state: suspended, then create another StreamsReset.",
        )

    @property
    def _began(self) -> float:
        start = self.status.start_time
        return self.observed.now if start is None else datetime.fromisoformat(start).timestamp()

    def _begin(self, planned: ResetResult) -> ResetDecision:
        status = self._status("Running", "The plan is ready and is now being carried out.").model_copy(
            update={"plan": planned}
        )
        event = Event("ResetBegun", f"The reset begins: {_summary(planned)}.")
        # If the operator ended between writing the finalizer and the status, the finalizer is already there.
        actions = () if FINALIZER in self.desired.finalizers else (SetFinalizer(present=True),)
        return ResetDecision(actions, status, (event,), _SOON_S)

    def _execute(
        self, spec: StreamsResetSpec, actions: ResetActions, planned: ResetResult, brokers: reset.ObservedApplication
    ) -> ResetDecision:
        # A deleted reset gets one more try after its time is over, as the operator may have been away.
        if self.overdue and (self.status.message or "").startswith(_NOT_ALL):
            return self._give_up(self.status.message or "")
        app, todo = self.app, list[ResetAction]()
        committed = brokers.committed or {}
        offsets = {tp: to for tp, to in planned_offsets(actions, planned, brokers).items() if committed.get(tp) != to}
        if offsets or actions.remove_members:
            todo.append(SetOffsets(actions.remove_members, offsets))
        if spec.delete_internal_topics:
            # Before the topics go: a pass over the application would report them as lost.
            todo += _accepted_losses(app)
            if actions.delete_topics:
                todo.append(DeleteTopics(actions.delete_topics))
        if spec.delete_volumes:
            claims = [claim for _, claim in sorted(self.view.claims.items()) if not claim.terminating]
            todo += [Delete(Key("PersistentVolumeClaim", claim.name), claim.uid) for claim in claims]
        if spec.delete_internal_topics:
            if remembered := _remembered(app):
                todo.append(PatchApp(app.uid, status=remembered))
            todo += revision_history.forgotten(app, self.view)
            todo += retained.forgotten(self.view)
        message = "Offsets are set, topics and volumes deleted."
        status = self._status("Running", message, self.condition(_EXECUTED, "True", "Done", message))
        return ResetDecision(tuple(todo), status, (), _SOON_S)

    def _describe(self, planned: ResetResult) -> ResetDecision:
        assert self.app.spec is not None
        runs = self.app.spec.state != "suspended"
        first = " The application is running: before a reset, set its spec.state: suspended." if runs else ""
        message = f"Dry run, nothing was changed. A reset would do this: {_summary(planned)}.{first}"
        return self._end("Succeeded", message, plan=planned)

    def _give_up(self, message: str) -> ResetDecision:
        return self._end(
            "Failed",
            f"The reset was deleted while it was under way, and could not be finished: {message} Offsets, topics and volumes may "
            "be inconsistent: leave the application suspended until another StreamsReset has succeeded.",
        )

    def _wait(self, message: str) -> ResetDecision:
        if self.overdue:
            return self._give_up(message)
        return ResetDecision((), self._status("Running" if self.begun else "Waiting", message), (), _LATER_S)

    def _end(self, phase: Phase, message: str, **fields: ResetResult) -> ResetDecision:
        good = phase == "Succeeded"
        status = self._status(phase, message, self.condition("Complete" if good else "Failed", "True", phase, message))
        ended = {"completion_time": timestamp(self.observed.now), **fields}
        event = Event(f"Reset{phase}", message, "Normal" if good else "Warning")
        again = _SOON_S if FINALIZER in self.desired.finalizers else None
        return ResetDecision((), status.model_copy(update=ended), (event,), again)

    def _status(self, phase: Phase, message: str, *conditions: Condition) -> StreamsResetStatus:
        return self.status.model_copy(
            update={
                "observed_generation": self.desired.generation,
                "phase": phase,
                "message": message,
                "start_time": self.status.start_time or timestamp(self.observed.now),
                "conditions": (*self.status.conditions, *conditions),
            }
        )


def with_problem(status: StreamsResetStatus, problem: str) -> StreamsResetStatus:
    """Return the status of a reset whose action has failed; the next pass tries it again."""
    return status.model_copy(update={"message": f"{_NOT_ALL}: {problem}"})


def _accepted_losses(app: DesiredApp) -> Sequence[ResetAction]:
    """Return the action that accepts the loss of the topics."""
    known = {item.topic_id for item in app.status.internal_topics if item.topic_id} if app.status else set()
    accepted = {part.strip() for part in app.annotations.get(ACCEPT_LOSS_ANNOTATION, "").split(",")}
    return (
        [PatchApp(app.uid, annotations={ACCEPT_LOSS_ANNOTATION: ",".join(sorted(known))})] if known - accepted else []
    )


def _remembered(app: DesiredApp) -> dict[str, None]:
    """Return the fields of the application's status that refer to what a reset deletes."""
    if app.status is None:
        return {}
    ids = [item for item in app.status.internal_topics if item.topic_id]
    fields = {"stableRevision": app.status.stable_revision, "internalTopics": ids}
    return dict.fromkeys(name for name, value in fields.items() if value)


def _summary(planned: ResetResult) -> str:
    def count(number: int, what: str) -> str:
        return f"{number} {what}{'' if number == 1 else 's'}"

    return (
        f"offsets of {count(len(planned.offsets), 'partition')} set, {count(len(planned.deleted_topics), 'internal topic')} and "
        f"{count(len(planned.deleted_volumes), 'volume')} deleted"
    )
