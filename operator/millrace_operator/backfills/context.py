"""What a pass over a backfill knows: the resource, what was observed, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from millrace.manifest import Condition, StreamsBackfillSpec, StreamsBackfillStatus
from millrace.plan.topology_plan import TopologyPlan
from millrace_operator.backfills.explanations import EVERYTHING, MAYBE_PARTS, NOTHING, PARTS, WHOLE
from millrace_operator.backfills.observed_backfill import ObservedBackfill, SparkPod
from millrace_operator.backfills.spark_application import application_name, state_of
from millrace_operator.model import DesiredBackfill, Object
from millrace_operator.reconcile.operation_context import OperationContext
from millrace_operator.reconcile.revisions import revision_of

PUBLISHING: Final = "PublicationBegun"
IN_ONE: Final = "InOneTransaction"
IN_ONE_BEFORE: Final = "EarlierInOneTransaction"
"""As an earlier attempt has reported; it says nothing about the latest one."""
_IN_PARTS: Final = "Publishing"
_WHOLLY: Final = "Published"
UNHEARD: Final = "NotHeard"
_PUBLICATIONS: Final[Mapping[str, tuple[Literal["True", "Unknown"], str]]] = {
    IN_ONE: ("True", WHOLE),
    IN_ONE_BEFORE: ("True", WHOLE),
    _IN_PARTS: ("True", PARTS),
    _WHOLLY: ("True", EVERYTHING),
    UNHEARD: ("Unknown", MAYBE_PARTS),
}
"""How attempts have begun to publish, or may have: by reason of the condition, its status and message."""
STOPPED: Final = "SparkPodsStopped"
NEVER_RAN: Final = "DriverNotStarted"
"""A reason of that condition: the SparkApplication was deleted before its driver was started."""
UNREADABLE: Final = "DriverLogUnreadable"
ANSWERED: Final = "BrokersAnswered"
LOG_PATIENCE_S: Final = 300.0
"""How long to keep trying to read the log of a driver that has ended."""
_ANSWER_PATIENCE_S: Final = 60.0
"""How long brokers may fail to answer before a backfill with no pods left reports it."""


@dataclass(frozen=True, slots=True)
class BackfillContext(OperationContext[StreamsBackfillSpec, StreamsBackfillStatus, ObservedBackfill]):
    """One backfill at the time of one pass."""

    desired: DesiredBackfill

    @property
    def plan(self) -> TopologyPlan | None:
        """The plan of the newest revision; None while that is not the one that pods are to run."""
        spec, status = self.app.spec, self.app.status
        if spec is None or status is None or status.current_revision != revision_of(spec):
            return None
        return self.view.plan(status.current_revision)

    @property
    def application(self) -> Object | None:
        """The SparkApplication of the latest attempt; None if there is none."""
        name = self.status.spark.name if self.status.spark else None
        return next((item for item in self.observed.applications if item["metadata"]["name"] == name), None)

    @property
    def next_attempt(self) -> int:
        """The number of the attempt after the latest."""
        return (self.status.attempt or 0) + 1

    @property
    def unrecorded(self) -> Object | None:
        """The SparkApplication of the next attempt, if it was created but the status could not be written."""
        name = application_name(self.desired.name, self.next_attempt)
        return next((item for item in self.observed.applications if item["metadata"]["name"] == name), None)

    @property
    def pods(self) -> list[SparkPod]:
        """The pods of the latest attempt."""
        return [pod for pod in self.observed.pods if pod.attempt == self.status.attempt]

    @property
    def running(self) -> list[Object]:
        """The SparkApplications that have not ended."""
        return [item for item in self.observed.applications if state_of(item) not in {"Succeeded", "Failed"}]

    @property
    def living(self) -> list[str]:
        """The names of the pods that may still write."""
        return sorted(pod.name for pod in self.observed.pods if pod.lives)

    @property
    def has_started(self) -> bool:
        """Whether the latest attempt's job has visibly started; its Spark operator may not have noticed yet."""
        # Executors are created by the driver.
        return self.observed.progress is not None or any(pod.has_started or not pod.is_driver for pod in self.pods)

    @property
    def has_succeeded(self) -> bool:
        """Whether an attempt has succeeded; its last report counts, whatever happens to its driver after that."""
        reported = self.observed.progress is not None and self.observed.progress.state == "Succeeded"
        handed_over = self.observed.published == "Everything"
        return reported or handed_over or (self.application is not None and state_of(self.application) == "Succeeded")

    @property
    def driver_was_seen(self) -> bool:
        """Whether the latest attempt's driver has been seen."""
        return self.status.spark is not None and self.status.spark.driver_pod is not None

    @property
    def driver_ended_s(self) -> float:
        """How long ago the latest attempt's driver ended or disappeared; 0 if it may still run."""
        driver = next((pod for pod in self.pods if pod.is_driver), None)
        if driver is not None:
            return 0.0 if driver.lives else self.waited_s(driver.ended_at or self.status.phase_time)
        # Without its reports the phase is `Submitted` again, unless it was publishing.
        is_gone = not self.never_ran and self.status.phase in {"Submitted", "Publishing"}
        return self.waited_s(self.status.phase_time) if is_gone else 0.0

    @property
    def log_is_late(self) -> bool:
        """Whether the driver's log cannot be read now but may be later, so that it is too early to tell what the job has done."""
        if not self.observed.log_problem:
            return False
        state = "Failed" if self.application is None else state_of(self.application)
        runs = state in {"New", "Running"} and any(pod.is_driver and pod.lives for pod in self.pods)
        known = self.known(UNREADABLE)
        since = known.last_transition_time if known is not None and known.status == "True" else None
        ended_at = next((pod.ended_at for pod in self.pods if pod.is_driver), None)
        return runs or min(self.waited_s(since), self.waited_s(ended_at or since)) < LOG_PATIENCE_S

    @property
    def log_is_gone(self) -> bool:
        """Whether the driver's log can never be read any more."""
        return not self.observed.log_is_there or (bool(self.observed.log_problem) and not self.log_is_late)

    @property
    def reports_publishing(self) -> bool:
        """Whether the latest attempt's job says that it has begun to publish."""
        return self.spec.changes_kafka and self.observed.progress is not None and self.observed.progress.has_published

    @property
    def went_unheard(self) -> bool:
        """Whether the latest attempt may have begun to publish unnoticed: it may have run, and its log is gone."""
        return self.status.phase in {"Submitted", "Computing"} and not self.never_ran and self.log_is_gone

    @property
    def went_unanswered(self) -> bool:
        """Whether a job was stopped that may have run, while neither its log nor the brokers say what it has done."""
        # A log without any report may have lost them all, and an evicted driver's is empty.
        is_unknown = self.observed.progress is None and self.observed.problem is not None
        return self.status.phase == "Stopping" and not self.never_ran and is_unknown

    @property
    def never_ran(self) -> bool:
        """Whether the latest attempt's driver was never started: not yet, or not until the backfill deleted its SparkApplication.

        If the SparkApplication ended or disappeared in another way, the driver may have run while the operator was away. A node
        that was lost may have started a driver without reporting it, so an answer of the brokers takes precedence.
        """
        if self.driver_was_seen or self.has_started:
            return False
        if self.application is not None:
            return state_of(self.application) == "New"
        known = self.known(STOPPED)
        return known is not None and known.reason == NEVER_RAN

    @property
    def publication(self) -> str | None:
        """How attempts have begun to publish, as the reason of a condition; None if none has.

        If the brokers know of nothing, an attempt that went unnoticed has published nothing. What was reported stays all the
        same, because brokers forget offsets.
        """
        if self.desired.spec is None or not self.spec.changes_kafka:
            return None
        known, progress, answer = self.known(PUBLISHING), self.observed.progress, self.observed.published
        before = None
        if known is not None and known.status == "True":
            before = known.reason if known.reason in _PUBLICATIONS else _IN_PARTS  # a later version may have others
        elif known is not None and known.status == "Unknown":
            before = UNHEARD
        in_parts = progress is not None and progress.has_published and not progress.in_one_transaction
        if self.has_succeeded or before == _WHOLLY:
            return _WHOLLY
        if in_parts or before == _IN_PARTS or answer == "Parts":
            return _IN_PARTS
        if self.reports_publishing or before == IN_ONE:
            # An attempt publishes in one transaction only if earlier ones have left nothing in parts.
            return IN_ONE
        if answer is None and (self.went_unheard or self.went_unanswered or before == UNHEARD):
            return UNHEARD
        return IN_ONE_BEFORE if before == IN_ONE_BEFORE else None

    @property
    def publishes_in_one(self) -> bool:
        """Whether attempts have published in one transaction each, so that either everything is visible or nothing."""
        return self.publication in {IN_ONE, IN_ONE_BEFORE}

    @property
    def publishes_in_parts(self) -> bool:
        """Whether parts may be visible, so that the state is consistent only once an attempt has published everything."""
        return self.publication in {_IN_PARTS, _WHOLLY}

    @property
    def is_to_be_finished(self) -> bool:
        """Whether the latest attempt is completed whatever happens to its backfill: it publishes, or parts are visible."""
        return self.publication == IN_ONE or self.publishes_in_parts

    @property
    def is_unheard(self) -> bool:
        """Whether it is not known what an attempt has published, if anything."""
        return self.publication == UNHEARD

    @property
    def publishes(self) -> bool:
        """Whether any attempt has begun to publish, or may have."""
        return self.publication is not None

    @property
    def is_taken_along(self) -> bool:
        """Whether a job that publishes in parts ends because its backfill was deleted, and with it all that it owns.

        Then there is one more attempt than the limit, because the last one did not fail. In a namespace that is being deleted,
        the API server refuses it.
        """
        ends = self.application is None or "deletionTimestamp" in self.application["metadata"]
        return self.desired.deleting and self.publishes_in_parts and ends

    @property
    def may_retry(self) -> bool:
        """Whether there may be another attempt."""
        return (self.status.attempt or 1) < self.spec.attempts + self.is_taken_along

    @property
    def asks_brokers(self) -> bool:
        """Whether to ask the brokers what was published: no log says it, and nothing is left that could still write."""
        if self.status.phase != "Stopping" or self.status.outcome == "Succeeded" or not self.status.attempt:
            return False
        if self.desired.spec is None:
            return False
        # A log without any report may have lost them all before it was first read.
        has_reported = self.observed.log_is_there and self.observed.progress is not None
        unknown = self.publishes or (self.spec.changes_kafka and not has_reported)
        return unknown and not self.running and not self.living

    @property
    def waits_for_brokers(self) -> bool:
        """Whether the brokers have not answered, but still may in a moment."""
        asked = self.status.phase == "Stopping" and self.observed.problem is not None
        known = self.known(STOPPED)
        since = known.last_transition_time if known is not None and known.status == "True" else None
        # An earlier attempt may have stopped too.
        return asked and min(self.waited_s(since), self.waited_s(self.status.phase_time)) < _ANSWER_PATIENCE_S

    @property
    def is_unanswered(self) -> bool:
        """Whether only the brokers know what was published, and do not answer: until they do, nothing begins or ends."""
        return self.observed.problem is not None and self.publishes and not self.publishes_in_one

    @property
    def may_end_unanswered(self) -> bool:
        """Whether it may end without an answer: its application would not start, or its user has let it go."""
        # A deletion of the application waits for a backfill that has not ended.
        is_harmless = self.app.deleting or (self.desired.deleting and not self.app_starts)
        return is_harmless or self.is_let_go

    @property
    def is_let_go(self) -> bool:
        """Whether its user has deleted it after it had reported that the brokers do not answer."""
        known, deleted = self.known(ANSWERED), self.desired.deletion_time
        if known is None or known.status == "True" or known.last_transition_time is None or deleted is None:
            return False
        return deleted > datetime.fromisoformat(known.last_transition_time).timestamp()

    @property
    def app_starts(self) -> bool:
        """Whether the application would start if no backfill kept it stopped."""
        app = self.observed.app
        return app is not None and not app.deleting and (app.spec is None or app.spec.state == "running")

    @property
    def nothing_is_left(self) -> Condition:
        """The condition that says that no Spark pod is left."""
        reason = NEVER_RAN if self.never_ran else "Stopped"
        return self.condition(STOPPED, "True", reason, "No Spark pod is left that could still write.")

    @property
    def conditions_of_publication(self) -> tuple[Condition, ...]:
        """The condition that says how attempts have begun to publish; it becomes false if it turns out that none has."""
        if self.desired.spec is None:  # what is known stays
            return ()
        if (reason := self.publication) is not None:
            value, what = _PUBLICATIONS[reason]
            return (self.condition(PUBLISHING, value, reason, what),)
        known = self.known(PUBLISHING)
        return () if known is None else (self.condition(PUBLISHING, "False", "NothingPublished", NOTHING),)

    @property
    def has_news_of_publication(self) -> bool:
        """Whether this pass has learnt how attempts have begun to publish."""
        known = self.known(PUBLISHING)
        return self.publishes and (known is None or known.reason != self.publication)

    @property
    def is_kept(self) -> bool:
        """Whether the backfill stays although it was deleted, because its application would start on an inconsistent state.

        The application does not start if it is suspended or gone, and the state may have been repaired by another backfill.
        """
        return self.desired.deleting and bool(self.status.holds_app) and self.app_starts and not self.observed.repaired

    def seconds_since(self, time: str | None) -> float:
        """Return how long ago a time of the status was; 0 if it has none."""
        return 0.0 if time is None else self.observed.now - datetime.fromisoformat(time).timestamp()

    def waited_s(self, time: str | None) -> float:
        """Return how long this operator has waited since a time of the status, or since it began to work; 0 if it has none."""
        return min(self.seconds_since(time), self.observed.now - self.observed.working_since)

    @property
    def in_phase_s(self) -> float:
        """How long ago the phase last changed."""
        return self.seconds_since(self.status.phase_time)
