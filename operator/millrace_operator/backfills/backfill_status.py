"""The status of a backfill: its phase, its message, and what the Spark operator, the job and the brokers say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millrace.manifest import Condition, StreamsBackfillStatus
from millrace.manifest.streamsbackfill import Phase, SparkStatus
from millrace_operator.backfills.context import (
    ANSWERED,
    IN_ONE,
    IN_ONE_BEFORE,
    NEVER_RAN,
    PUBLISHING,
    STOPPED,
    UNREADABLE,
    BackfillContext,
)
from millrace_operator.backfills.observed_backfill import ObservedBackfill
from millrace_operator.backfills.spark_application import SparkState, application_name, shown_state, web_ui_of
from millrace_operator.model import DesiredBackfill
from millrace_operator.reconcile.timestamps import timestamp

CREATED: Final = "SparkApplicationCreated"


class BackfillStatus(BackfillContext):
    """Builds the status in one situation."""

    __slots__ = ()

    def progress_of(self, state: SparkState | None) -> tuple[Phase, str]:
        """Return how far the job has come."""
        progress, name = self.observed.progress, (self.status.spark or SparkStatus()).name
        phase: Phase = "Submitted"
        message = f"SparkApplication {name} waits for the Spark operator."
        if state == "Running":
            message = f"SparkApplication {name} starts its pods."
        if self.status.phase == "Publishing":  # how it was published is known, and must not be forgotten
            phase = "Publishing"
        has_driver = any(pod.is_driver for pod in self.pods)
        if phase == "Publishing" or (self.driver_was_seen and not has_driver):
            message = f"The driver of SparkApplication {name} has ended or is gone."
        if progress is not None:
            phase = "Publishing" if self.reports_publishing else "Computing"
            what = "Results are being published." if self.reports_publishing else "Spark is computing."
            message = progress.message or what
        if (stuck := next((pod for pod in self.pods if pod.trouble and pod.lives), None)) is not None:
            message = f"Pod {stuck.name} does not start: {stuck.trouble}"
        return phase, message

    def status_of(self, phase: Phase, message: str, *conditions: Condition) -> StreamsBackfillStatus:
        """Return the status with a phase, a message and what is known now; these conditions replace those of their types."""
        old, now = self.status, timestamp(self.observed.now)
        conditions = (*conditions, *self.conditions_of_publication)
        if self.known(UNREADABLE) is not None and self.observed.progress is not None:
            conditions = (*conditions, self.condition(UNREADABLE, "False", "Read", "The last report in it was read."))
        answered = self.known(ANSWERED)
        if answered is not None and self.observed.published is not None:
            said = self.condition(ANSWERED, "True", "Answered", "The brokers say what was published.")
            conditions = (*conditions, said)
        replaced = {item.type for item in conditions}
        update: dict[str, object] = {
            "observed_generation": self.desired.generation,
            "phase": phase,
            "message": message,
            "start_time": old.start_time or now,
            "phase_time": old.phase_time if old.phase == phase and old.phase_time else now,
            "conditions": (*(item for item in old.conditions if item.type not in replaced), *conditions),
        }
        return old.model_copy(update={**update, **self._reported()})

    def status_of_next_attempt(self) -> StreamsBackfillStatus:
        """Return the status of the next attempt, which is created now or was."""
        number, created = self.next_attempt, self.unrecorded
        name = application_name(self.desired.name, number)
        stopped = self.condition("AppStopped", "True", "NoMembers", "Nobody is in the group.")
        if not self.status.holds_app:
            what = "Nothing is written to Kafka, so the application may run."
            stopped = self.condition("AppStopped", "False", "NotNeeded", what)
        status = self.status_of(
            "Submitted",
            f"SparkApplication {name} waits for the Spark operator.",
            self.condition(CREATED, "True", "Created", f"SparkApplication {name} was created."),
            stopped,
        )
        api_version = self.observed.served if created is None else created["apiVersion"]
        return status.model_copy(
            update={
                "attempt": number,
                "outcome": None,
                "spark": SparkStatus(api_version=api_version, name=name),
                "phase_time": timestamp(self.observed.now),
                "progress": None,
                "stages": (),
                "conditions": _conditions_of_next_attempt(status.conditions),
            }
        )

    def _reported(self) -> dict[str, object]:
        """Return the fields that tell what the Spark operator and the job have reported."""
        fields: dict[str, object] = {}
        application, progress = self.application, self.observed.progress
        if (spark := self.status.spark) is not None:
            # One that was never started has published nothing: `spark-submit` removes it if the submission fails.
            drivers = [pod.name for pod in self.pods if pod.is_driver and pod.has_started]
            seen: dict[str, object] = {"driver_pod": drivers[0] if drivers else spark.driver_pod}
            if application is not None:
                seen |= {"state": shown_state(application) or None, "web_ui": web_ui_of(application) or spark.web_ui}
            fields["spark"] = spark.model_copy(update=seen)
        if progress is not None:
            fields["stages"] = progress.stages[:256]
            fields["progress"] = progress.stages_done
            fields["notes"] = tuple(note[:1000] for note in progress.notes[:100])
            found = {"ends": progress.ends, "stores": progress.stores, "outputs": progress.outputs}
            fields |= {name: items for name, items in found.items() if items}
        return fields


def _conditions_of_next_attempt(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the conditions as they are once another attempt was created: what they say of one attempt is that of an earlier."""
    kept = (item for item in conditions if item.type not in {UNREADABLE, STOPPED})
    return tuple(
        item.model_copy(update={"reason": IN_ONE_BEFORE}) if (item.type, item.reason) == (PUBLISHING, IN_ONE) else item
        for item in kept
        if item.type != PUBLISHING or item.status == "True"
    )


def with_problem(desired: DesiredBackfill, now: float, problem: str) -> StreamsBackfillStatus:
    """Return the status of a backfill whose pass has failed. While it stops, its message stays: it is the reason for its end."""
    this = BackfillContext(desired, ObservedBackfill(now))
    if this.status.phase != "Stopping":
        return this.status.model_copy(update={"message": problem})
    others = (item for item in this.status.conditions if item.type != STOPPED)
    stopped = this.condition(STOPPED, "False", NEVER_RAN if this.never_ran else "NotSeen", problem)
    return this.status.model_copy(update={"conditions": (*others, stopped)})
