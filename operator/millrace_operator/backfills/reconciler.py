"""`reconcile_backfill`: from a backfill and what was observed to what to do about it.

A pure function, called again until the backfill has finished:

    Waiting ─► Suspending ─► Submitted ─► Computing ─► Publishing ─► Stopping ─► Succeeded
                                 ▲                                         │
                                 └───────────── next attempt ──────────────┘

While `status.holdsApp` is true the application has no pods: that field in the API is the lock, which outlives the operator.
The application's own passes read it; `status.backfill` there says that they have. Nothing is computed before its group is empty,
and it is released only when no Spark pod is left that could still write.

A job publishes to Kafka only after everything is computed. Until then a backfill that is deleted or fails leaves nothing behind.
From its report `Publishing` on it is finished, by further attempts if need be and even if it is deleted, because changelogs and
offsets belong together. If all attempts fail in that phase, the application stays stopped, as it would restore half a state, and
a backfill that was deleted before stays too. If everything was to be published in one transaction, there is all or nothing: then
an attempt that has failed is not done again for a backfill that is pointless by then, and the application continues.

What the job reports is read from its driver's log, which the API server gets from the driver's node. If it cannot be read, that
says nothing; only a log that is gone, with its pod or for minutes after its driver has ended, may have said `Publishing`. In this
case the brokers are asked what was published: before the application is let go or the job is done again, and once nothing is left
that may still write. They are asked too about a job that has said that it publishes, as nobody may have heard of its end. While
they do not answer, nothing begins and nothing ends, unless everything was to be published in one transaction.

Each attempt is a SparkApplication with a name of its own. One that has disappeared is never created again under its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from millrace.manifest import Condition, StreamsAppSpec, StreamsBackfillStatus
from millrace.manifest.streamsbackfill import Phase, SparkStatus
from millrace_operator.backfills.backfill_status import CREATED, BackfillStatus, with_problem
from millrace_operator.backfills.context import ANSWERED, NEVER_RAN, STOPPED, UNREADABLE
from millrace_operator.backfills.driver_log import summary
from millrace_operator.backfills.explanations import (
    HALF_PUBLISHED,
    LET_GO,
    MAYBE_HALF_PUBLISHED,
    WHOLE_OR_NOTHING,
    activity_of,
    create_another_after,
    first_spec_lost,
    job_of_unreadable,
    members_of,
    no_spark_operator,
    not_started,
    obstacle_of,
    spec_changed,
    still_known,
    still_there,
    strangers,
    unanswered,
    unreadable_app,
    unreadable_backfill,
)
from millrace_operator.backfills.observed_backfill import ObservedBackfill
from millrace_operator.backfills.spark_application import (
    Attempt,
    application_name,
    config_map,
    config_map_name,
    error_of,
    spark_application,
    state_of,
)
from millrace_operator.children.naming import FINALIZER
from millrace_operator.model import AppRevision, DesiredBackfill, Event, Object, SetFinalizer
from millrace_operator.reconcile.operation_context import OperationDecision, has_ended
from millrace_operator.reconcile.revisions import revision_of
from millrace_operator.reconcile.timestamps import timestamp

_BEGUN: Final = frozenset({"Suspending", "Submitted", "Computing", "Publishing", "Stopping"})
PATIENCE_S: Final = 600.0
"""How long a backfill waits for what is in its way, for the application to stop, for the API server to let a SparkApplication
in, and for a Spark operator to begin, or to notice that a driver has ended."""
_ORPHANS_PATIENCE_S: Final = 60.0
"""How long executors may outlive their driver, and a driver its success, before they are deleted with the SparkApplication."""
_LATER_S: Final = 5.0
_MUCH_LATER_S: Final = 30.0
_SOON_S: Final = 1.0
_TURN: Final = "OthersFinished"

Outcome = Literal["Succeeded", "Failed", "Refused", "Cancelled", "Retry"]


@dataclass(frozen=True, slots=True)
class CreateObject:
    """Create an object. Idempotent: succeeds if the backfill has already created it."""

    object: Object


@dataclass(frozen=True, slots=True)
class DeleteSparkApplication:
    """Delete the SparkApplication that was seen."""

    api_version: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteBackfill:
    """Delete the backfill itself, whose time to live is over."""

    uid: str


@dataclass(frozen=True, slots=True)
class DeleteAttemptsGroup:
    """Delete the consumer group by which attempts knew that one of them had handed over; there will be no other.

    If it cannot be deleted it is left alone: its offsets expire.
    """

    uid: str


BackfillAction = SetFinalizer | CreateObject | DeleteSparkApplication | DeleteAttemptsGroup | DeleteBackfill


@dataclass(frozen=True, slots=True)
class BackfillDecision(OperationDecision[BackfillAction, StreamsBackfillStatus]):
    """What a pass over a backfill has decided."""


def has_begun(status: StreamsBackfillStatus | None) -> bool:
    """Return whether a backfill with this status may have changed something and is not over."""
    if status is None or has_ended(status):
        return False
    is_unreadable = status.phase is None and bool(status.holds_app or status.attempt)  # only a newer operator knows it
    return status.phase in _BEGUN or is_unreadable


def needs_members(desired: DesiredBackfill) -> bool:
    """Return whether the brokers have to be asked who is in the group."""
    spec, status = desired.spec, desired.status
    is_early = not (has_begun(status) or has_ended(status)) or (status is not None and status.phase == "Suspending")
    return spec is not None and spec.changes_kafka and is_early


def reconcile_backfill(desired: DesiredBackfill, observed: ObservedBackfill) -> BackfillDecision:
    """Return what to do about a backfill, and its status.

    Args:
        desired: The resource as it stands.
        observed: What was seen of the application, its brokers and its Spark pods.
    """
    this = _Pass(desired, observed)
    if has_ended(desired.status):
        return this.after_the_end()
    if not has_begun(desired.status):
        if desired.deleting:
            return BackfillDecision((SetFinalizer(present=False),) if FINALIZER in desired.finalizers else ())
        return this.hindrance() or this.begin()
    if desired.spec is None or this.status.phase is None:
        decision = this.leave_alone()
    elif this.unrecorded is not None:
        decision = this.submitted()
    elif this.status.phase == "Suspending":
        decision = this.suspend()
    else:
        decision = this.stop() if this.status.phase == "Stopping" else this.follow()
    if observed.log_problem:
        # The node of the driver may be away: each attempt to read the log occupies a worker until it times out.
        decision = replace(decision, again_after=max(decision.again_after or 0.0, _MUCH_LATER_S))
    if FINALIZER in desired.finalizers or desired.deleting:
        return decision
    # `kubectl replace` has dropped it.
    return replace(decision, actions=(SetFinalizer(present=True), *decision.actions))


def _names(objects: Sequence[Object]) -> list[str]:
    return [item["metadata"]["name"] for item in objects]


class _Pass(BackfillStatus):
    """Decides what to do in one situation."""

    __slots__ = ()

    def after_the_end(self) -> BackfillDecision:
        """Return what to do about a backfill that has ended: let it go, now or when its time to live is over."""
        if self.observed.awaited:  # nothing else says that the other one's state is whole again
            return BackfillDecision(again_after=_LATER_S)
        if FINALIZER in self.desired.finalizers:
            if self.is_kept:
                return BackfillDecision(again_after=_LATER_S)
            attempted = self.desired.spec is not None and self.spec.changes_kafka and self.status.attempt
            group = [DeleteAttemptsGroup(self.desired.uid)] if attempted else []
            return BackfillDecision([*group, SetFinalizer(present=False)], again_after=_SOON_S)
        ended = self.status.completion_time
        ttl = None if self.desired.spec is None else self.desired.spec.ttl_seconds_after_finished
        # A backfill that keeps the application stopped says why, and its deletion lets it run.
        if self.desired.deleting or ttl is None or ended is None or self.status.holds_app:
            return BackfillDecision()
        left = ttl - self.seconds_since(ended)
        return (
            BackfillDecision((DeleteBackfill(self.desired.uid),)) if left <= 0 else BackfillDecision(again_after=left)
        )

    def leave_alone(self) -> BackfillDecision:
        """Return what to do about a backfill that has begun and cannot be read: its job is neither stopped nor judged."""
        what = unreadable_backfill(self.desired)
        if not self.desired.deleting or self.running or self.living:
            if self.desired.deleting:
                names = _names(self.observed.applications)
                what = f"{what} {job_of_unreadable(_names(self.running), self.living, names)}"
            return BackfillDecision((), with_problem(self.desired, self.observed.now, what), (), _MUCH_LATER_S)
        if self.has_succeeded:
            return self._end("Succeeded", f"The job has succeeded. {what}")
        if self.status.holds_app and (self.status.attempt or self.observed.applications):
            return self._end("Failed", f"{what}\n{MAYBE_HALF_PUBLISHED}", holds=True)
        return self._end("Failed", what)

    def hindrance(self) -> BackfillDecision | None:
        """Return what to do about a backfill that cannot begin, now or ever; None if it can."""
        if self.desired.spec is None:
            return self._end("Refused", "\n".join(self.desired.problems) or "The spec cannot be read.")
        name = self.spec.app_ref.name
        if self.observed.app is None:
            return self._wait(f"There is no StreamsApp {name} in namespace {self.desired.namespace}: create it.")
        if self.app.deleting:
            return self._end("Refused", f"StreamsApp {name} is being deleted.")
        if self.observed.before:
            return self._wait_for_others(f"{self.observed.before[0]} of the same application is not finished.")
        if (obstacle := obstacle_of(self.app, self.observed.claimants, is_planned=self.plan is not None)) is not None:
            return self._wait(obstacle)
        if (waiting := self._wait_for_spark()) is not None or not self.spec.changes_kafka:
            return waiting
        if self.app.status is not None and self.app.status.backfill == self.desired.name:
            return self._wait(still_known(self.app.name, self.desired.name))
        if self.observed.members is None:
            return self._wait(self.observed.problem or "The brokers have not been asked yet.")
        if foreign := members_of(self.app, self.view, self.observed, own=False):
            return self._end("Refused", strangers(self.app.name, foreign))
        return None

    def _wait_for_spark(self) -> BackfillDecision | None:
        """Return what to do while no Spark job could be started, or be followed; None if one can."""
        if self.observed.served is None:
            what = no_spark_operator(self.desired.namespace)
            return self._wait(what, self.condition("SparkOperatorAvailable", "False", "NotInstalled", what))
        return None if self.observed.unlisted is None else self._wait(self.observed.unlisted)

    def begin(self) -> BackfillDecision:
        """Return the first step, which takes the lock: from then on the application's passes stop its pods."""
        assert self.plan is not None
        assert self.app.spec is not None
        holds = self.spec.changes_kafka
        message = f"StreamsApp {self.app.name} is being stopped." if holds else "The Spark job is being started."
        served = self.observed.served or ""
        status = self.status_of(
            "Suspending",
            message,
            self.condition("SparkOperatorAvailable", "True", "Served", f"The cluster serves {served}."),
            *self._turn(),
        ).model_copy(
            update={
                "holds_app": holds,
                "plan_hash": self.plan.hash,
                "revision": revision_of(self.app.spec),
                "outcome": None,
            }
        )
        actions = () if FINALIZER in self.desired.finalizers else (SetFinalizer(present=True),)
        what = f"The backfill of StreamsApp {self.app.name} begins: {message}"
        return BackfillDecision(actions, status, (Event("BackfillBegun", what),), _SOON_S)

    def suspend(self) -> BackfillDecision:
        """Return what to do while the application stops, and start the first attempt when it has."""
        if (pointless := self._why_pointless) is not None:
            return self._stopping("Cancelled", pointless)
        if self.observed.before:  # both began before the operator could see the other begin
            what = f"{self.observed.before[0]} of the same application has begun too, and goes first."
            return self._wait_before_stopping(what, _LATER_S)
        if self.app.spec is None:  # its own passes do not stop it either
            return self._wait_before_stopping(unreadable_app(self.app.name), _MUCH_LATER_S)
        if (
            self.status.holds_app
            and (obstacle := activity_of(self.desired.name, self.app, self.view, self.observed)) is not None
        ):
            if self.waited_s(self.status.phase_time) < PATIENCE_S:
                return BackfillDecision((), self.status_of("Suspending", obstacle), (), _LATER_S)
            return self._stopping(
                "Failed", f"The application did not stop within {PATIENCE_S / 60:.0f} minutes: {obstacle}"
            )
        if self.observed.served is None:
            return self._stopping("Failed", no_spark_operator(self.desired.namespace))
        return self._submit()

    def _wait_before_stopping(self, message: str, again_after_s: float) -> BackfillDecision:
        """Return what to do while the application cannot stop yet: patience with that begins afterwards."""
        status = self.status_of("Suspending", message)
        status = status.model_copy(update={"phase_time": timestamp(self.observed.now)})
        return BackfillDecision((), status, (), again_after_s)

    def follow(self) -> BackfillDecision:
        """Return what to do while a SparkApplication is computing or publishing."""
        application, progress = self.application, self.observed.progress
        state = None if application is None else state_of(application)
        if self.has_succeeded:
            return self._stopping("Succeeded", summary(self.spec, progress))
        is_left_alone = self.is_to_be_finished or self._may_publish_unheard
        if not is_left_alone and (pointless := self._why_pointless) is not None:
            return self._stopping("Cancelled", pointless)
        if self.log_is_late:
            return self._wait_for_the_log(self.status.phase or "Submitted")
        number, name = self.status.attempt or 1, (self.status.spark or SparkStatus()).name
        if application is None:
            by = "with the backfill" if self.desired.deleting else "by somebody"
            return self._stopping("Cancelled", f"SparkApplication {name} was deleted {by}.")
        if state == "Failed" or self.driver_ended_s >= PATIENCE_S:  # its Spark operator may be away
            why = (progress.message if progress else "") or self.observed.last_words or error_of(application)
            why = why or "its driver says nothing"
            if progress is not None and progress.state == "Refused":
                return self._stopping("Refused", why)
            return self._stopping("Retry" if self.may_retry else "Failed", f"Attempt {number} failed: {why}")
        if state == "New" and not self.has_started and self.waited_s(self.status.phase_time) >= PATIENCE_S:
            driver = next((pod for pod in self.pods if pod.is_driver), None)
            return self._stopping("Failed", not_started(self.desired.namespace, name or "", driver, PATIENCE_S / 60))
        return BackfillDecision((), self.status_of(*self.progress_of(state)), (), _LATER_S)

    def stop(self) -> BackfillDecision:
        """Return what to do until no Spark pod is left, and then."""
        outcome, message = self.status.outcome or "Failed", self.status.message or ""
        if outcome != "Succeeded" and self.has_succeeded:
            return self._stopping("Succeeded", summary(self.spec, self.observed.progress))  # it was faster
        if outcome == "Succeeded" and self.observed.progress is not None:
            message = summary(self.spec, self.observed.progress)  # its log could perhaps not be read when it succeeded
        if self._goes_on_if_it_publishes and self._may_publish_unheard:  # decided again when its log can be read
            return self._wait_for_the_log("Computing")
        if self._goes_on_if_it_publishes and self.reports_publishing:  # since that was decided, so it is finished
            published = self.status_of(*self.progress_of("Running")).model_copy(update={"outcome": None})
            return BackfillDecision((), published, (), _SOON_S)
        if self.running or self.living:
            what = still_there(_names(self.running), self.living)
            known = self.known(STOPPED)
            # Once they are deleted, only the status says whether the driver had been started.
            is_told = (known is not None and known.reason == NEVER_RAN) == self.never_ran
            condition = self.condition(STOPPED, "False", NEVER_RAN if self.never_ran else "Stopping", what)
            actions = self._deletions([] if outcome == "Succeeded" else self.running) if is_told else ()
            return BackfillDecision(actions, self.status_of("Stopping", message, condition), (), _SOON_S)
        if self.waits_for_brokers:
            return BackfillDecision((), self.status_of("Stopping", message, self.nothing_is_left), (), _LATER_S)
        return self._stopped(outcome, message)

    def _stopped(self, outcome: str, message: str) -> BackfillDecision:
        """Return what to do once no Spark pod is left: end as decided, or try again."""
        if outcome == "Cancelled" and self.publishes_in_parts:  # it had begun, so it is finished
            outcome = "Retry" if self.may_retry else "Failed"
        if outcome == "Retry" and not self.publishes_in_parts and (pointless := self._why_pointless) is not None:
            outcome, message = "Cancelled", pointless
        if outcome != "Succeeded" and self.is_unanswered and not self.may_end_unanswered:
            # Without a spec nobody knows which brokers to ask.
            return self._wait_for_spec() if self._spec_of_attempts is None else self._wait_for_an_answer(message)
        begins = outcome == "Retry" and self._may_submit and not self.is_unanswered
        if self.publishes and outcome != "Succeeded" and not begins:
            return self._failed_while_publishing(message)
        match outcome:
            case "Retry" if self.has_news_of_publication:  # the next attempt does not say what earlier ones have done
                return BackfillDecision((), self.status_of("Stopping", message, self.nothing_is_left), (), _SOON_S)
            case "Retry":
                return self._submit()
            case "Succeeded" | "Refused":
                return self._end(outcome, message)
            case "Cancelled":
                message = f"{message} Nothing was published."
        return self._end("Failed", message)

    def _failed_while_publishing(self, message: str) -> BackfillDecision:
        """Return the end of a backfill that has failed for good, perhaps in the middle of its publication."""
        if self.publishes_in_one:
            return self._end("Failed", f"{message}\n{WHOLE_OR_NOTHING}")
        if self.is_unheard and self.is_let_go and self.app_starts:
            return self._end("Failed", f"{message}\n{LET_GO}")
        what = MAYBE_HALF_PUBLISHED if self.is_unheard else HALF_PUBLISHED
        return self._end("Failed", f"{message}\n{what}", holds=bool(self.status.holds_app))

    def _wait_for_an_answer(self, message: str) -> BackfillDecision:
        """Return what to do until the brokers say what was published; a user who has read this may let it go."""
        problem = self.observed.problem or ""
        what = unanswered(problem, is_heard=not self.is_unheard, deleted=self.desired.deleting)
        known = self.known(ANSWERED)
        is_told = known is not None and known.status == "False"
        events = () if is_told else (Event("BrokersDoNotAnswer", what, "Warning"),)
        condition = self.condition(ANSWERED, "False", "NoAnswer", what)
        status = self.status_of("Stopping", message, self.nothing_is_left, condition)
        return BackfillDecision((), status, events, _MUCH_LATER_S)

    def _deletions(self, running: Sequence[Object]) -> tuple[DeleteSparkApplication, ...]:
        """Return the deletion of these SparkApplications, or of all if pods outlive them; others stay for their logs."""
        leaving = self.observed.applications if self.in_phase_s >= _ORPHANS_PATIENCE_S else running
        return tuple(
            DeleteSparkApplication(item["apiVersion"], item["metadata"]["name"], item["metadata"]["uid"])
            for item in leaving
            if "deletionTimestamp" not in item["metadata"]
        )

    @property
    def _why_pointless(self) -> str | None:
        """Why nobody needs the backfill now: it was deleted, or its application is gone or another one; None if somebody does."""
        if self.desired.deleting:
            return "The backfill was deleted."
        name = self.spec.app_ref.name
        if self.observed.app is None or self.app.deleting:
            return f"StreamsApp {name} was deleted."
        if self.app.spec is not None and revision_of(self.app.spec) != self.status.revision:
            return spec_changed(name)
        return None

    @property
    def _spec_of_attempts(self) -> StreamsAppSpec | None:
        """The spec of the application that all attempts run, even after it was changed; the changed one if the first is lost."""
        return self.observed.first_spec or self.app.spec

    @property
    def _may_submit(self) -> bool:
        """Whether there can be another attempt: now, or once the application's spec can be read, if nothing is deleted."""
        app = self.observed.app
        if app is None:
            return False
        return self._spec_of_attempts is not None or not (app.deleting or self.desired.deleting)

    def _submit(self) -> BackfillDecision:
        """Return the start of an attempt."""
        if self.observed.served is None:
            return self._stopping("Failed", no_spark_operator(self.desired.namespace))
        if self.observed.refusal is not None:
            return self._refused(self.observed.refusal)
        spec, revision = self._spec_of_attempts, self.status.revision or ""
        if spec is None:
            return self._wait_for_spec()
        attempt = Attempt(
            name=self.desired.name,
            uid=self.desired.uid,
            number=self.next_attempt,
            spec=self.spec,
            app=AppRevision(self.desired.namespace, self.app.name, revision, spec, self.app.uid),
            manifest=self.app.manifest,
            plan_hash=self.status.plan_hash or "",
        )
        actions = (CreateObject(config_map(attempt)), CreateObject(spark_application(attempt, self.observed.served)))
        submitted = self.submitted()
        return replace(submitted, actions=actions, events=(*submitted.events, *self._loss_of_first_spec()))

    def _wait_for_spec(self) -> BackfillDecision:
        # The message stays: it says why the last attempt has failed.
        waiting = self.condition(CREATED, "Unknown", "AppUnreadable", unreadable_app(self.app.name))
        status = self.status_of("Stopping", self.status.message or "", self.nothing_is_left, waiting)
        return BackfillDecision((), status, (), _MUCH_LATER_S)

    def _loss_of_first_spec(self) -> tuple[Event, ...]:
        """Return what to say about an attempt that cannot run the same program as the first: its ConfigMap is gone.

        Whatever earlier attempts have published, it replaces; and the job refuses a topology that is not the first one's.
        """
        spec = self.app.spec
        if self.observed.first_spec is not None or spec is None or revision_of(spec) == self.status.revision:
            return ()
        what = first_spec_lost(self.app.name, config_map_name(self.desired.name), self.next_attempt)
        return (Event("FirstSpecLost", what, "Warning"),)

    def _refused(self, why: str) -> BackfillDecision:
        """Return what to do about an attempt that cannot be created: wait for a while, if that may help."""
        condition = self.condition(CREATED, "False", "Refused", why)
        if self.observed.refusal_is_final or self.waited_s(condition.last_transition_time) >= PATIENCE_S:
            return self._stopping("Refused", create_another_after(why))
        phase = self.status.phase or "Suspending"
        message = (self.status.message or why) if phase == "Stopping" else why
        return BackfillDecision((), self.status_of(phase, message, condition), (), _LATER_S)

    def submitted(self) -> BackfillDecision:
        """Return the status of the next attempt, which is created now or was."""
        number, status = self.next_attempt, self.status_of_next_attempt()
        name = application_name(self.desired.name, number)
        which = f"Attempt {number} of {self.spec.attempts}"
        if number > self.spec.attempts:
            which = f"Attempt {number}, one more than the limit, because the job before was ended by the deletion"
        event = Event("SparkApplicationCreated", f"{which}: SparkApplication {name}.")
        return BackfillDecision((), status, (event,), _SOON_S)

    def _stopping(self, outcome: Outcome, message: str) -> BackfillDecision:
        status = self.status_of("Stopping", message).model_copy(update={"outcome": outcome})
        events = (Event("AttemptFailed", message[:1000], "Warning"),) if outcome == "Retry" else ()
        return BackfillDecision((), status, events, _SOON_S)

    @property
    def _may_publish_unheard(self) -> bool:
        """Whether the job may have begun to publish since its log was last read."""
        return self.spec.changes_kafka and self.log_is_late

    @property
    def _goes_on_if_it_publishes(self) -> bool:
        """Whether a job that is being stopped is finished if it publishes: it was cancelled, or has started after all."""
        if self.application is None or "deletionTimestamp" in self.application["metadata"]:
            return False
        runs = self.application in self.running and any(pod.is_driver and pod.lives for pod in self.pods)
        return self.status.outcome == "Cancelled" or (self.status.outcome == "Failed" and runs)

    def _wait_for_the_log(self, phase: Phase) -> BackfillDecision:
        problem = self.observed.log_problem
        status = self.status_of(phase, problem, self.condition(UNREADABLE, "True", "NotRead", problem))
        status = status.model_copy(update={"outcome": None})
        return BackfillDecision((), status, (), _LATER_S)

    def _wait_for_others(self, message: str) -> BackfillDecision:
        condition = self.condition(_TURN, "False", "Waiting", message)
        return BackfillDecision((), self.status_of("Waiting", message, condition), (), _LATER_S)

    def _wait(self, message: str, *conditions: Condition) -> BackfillDecision:
        turn = self._turn()
        if self.waited_s(turn[0].last_transition_time if turn else self.status.start_time) >= PATIENCE_S:
            return self._end("Refused", create_another_after(message))
        return BackfillDecision((), self.status_of("Waiting", message, *conditions, *turn), (), _LATER_S)

    def _turn(self) -> tuple[Condition, ...]:
        """Return since when no other operation goes first; nothing if none ever did."""
        if self.known(_TURN) is None:
            return ()
        return (self.condition(_TURN, "True", "Finished", "No other backfill or reset of the application goes first."),)

    def _end(
        self, phase: Literal["Succeeded", "Failed", "Refused"], message: str, *, holds: bool = False
    ) -> BackfillDecision:
        good = phase == "Succeeded"
        conditions = [self.condition("Complete" if good else "Failed", "True", phase, message)]
        if self.known(STOPPED) is not None:
            conditions.append(self.nothing_is_left)
        status = self.status_of(phase, message, *conditions).model_copy(
            update={"completion_time": timestamp(self.observed.now), "holds_app": holds or None, "outcome": None}
        )
        event = Event(f"Backfill{phase}", message[:1000], "Normal" if good else "Warning")
        return BackfillDecision((), status, (event,), _SOON_S)
