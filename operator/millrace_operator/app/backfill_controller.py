"""Passes over StreamsBackfills.

The SparkApplications and their pods are asked for in every pass and not watched: they are needed only while a backfill runs, and
most clusters have no such kind.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Final

from millrace.errors import StreamsError
from millrace.manifest import StreamsAppSpec, StreamsBackfillStatus
from millrace.plan.reset import ActiveMember, OffsetTarget
from millrace_operator.app.app_controller import act_on_kafka, loses_its_namespace, stored_plans
from millrace_operator.app.backoff import FailedError, TransientError
from millrace_operator.app.operation_controller import DecideAgainError, OperationController
from millrace_operator.app.operation_order import is_awaited, is_repaired
from millrace_operator.backfills.backfill_status import with_problem
from millrace_operator.backfills.context import BackfillContext
from millrace_operator.backfills.driver_log import last_words, parse_progress
from millrace_operator.backfills.explanations import unlisted, unread_log
from millrace_operator.backfills.observed_backfill import ObservedBackfill, SparkPod
from millrace_operator.backfills.reconciler import (
    BackfillAction,
    BackfillDecision,
    CreateObject,
    DeleteAttemptsGroup,
    DeleteBackfill,
    DeleteSparkApplication,
    has_begun,
    needs_members,
    reconcile_backfill,
)
from millrace_operator.backfills.spark_application import (
    ATTEMPT_LABEL,
    BACKFILL_UID_LABEL,
    DRIVER_CONTAINER,
    EXECUTOR_CONTAINER,
    config_map_name,
    is_of_backfill,
    state_of,
)
from millrace_operator.children.naming import COMPONENT_LABEL
from millrace_operator.cluster.executor import StaleError
from millrace_operator.cluster.kinds import BACKFILLS, CONFIG_MAPS, PODS, SPARK_APPLICATIONS, ResourceKind
from millrace_operator.cluster.observe import desired_from
from millrace_operator.cluster.requests import FORBIDDEN, ApiError
from millrace_operator.model import (
    DeleteGroup,
    DesiredApp,
    DesiredBackfill,
    Json,
    Object,
    SetFinalizer,
    app_named_by,
    labels_of,
)
from millrace_operator.reconcile.children_view import trouble_of
from millrace_operator.reconcile.operation_context import has_ended
from millrace_operator.reconcile.revisions import revision_of, spec_of
from millrace_operator.resets.reset_plan import merged_plan

log = logging.getLogger(__name__)

_TAIL_LINES: Final = ("50", "500", "5000")
"""How much of a log is read: what nearly always suffices, and more if that has no report.

Kubernetes leaves out the end of what is more than `_TAIL_BYTES`. 500 lines never are: container runtimes split lines at 16 KiB.
"""
_TAIL_BYTES: Final = str(8 << 20)
_REFUSED: Final = {400, 403, 422}
"""How the API server answers if a webhook, a policy or a quota does not let an object in."""
_SPARK_KINDS: Final = {kind.api_version: kind for kind in SPARK_APPLICATIONS}


class BackfillController(OperationController[DesiredBackfill, ObservedBackfill, BackfillDecision]):
    """Runs passes over backfills."""

    __slots__ = ()
    kind = BACKFILLS
    desired_type = DesiredBackfill
    observed_type = ObservedBackfill

    def _needs_app(self, desired: DesiredBackfill) -> bool:
        # After the end, only what would start on half a state matters.
        status = desired.status
        return not has_ended(status) or (desired.deleting and status is not None and bool(status.holds_app))

    def _decide(self, desired: DesiredBackfill, observed: ObservedBackfill) -> BackfillDecision:
        return reconcile_backfill(desired, observed)

    def _is_irrevocable(self, desired: DesiredBackfill, decision: BackfillDecision) -> bool:
        del desired
        # Nothing is created for a backfill or an application that has been deleted or changed meanwhile.
        return any(isinstance(item, CreateObject) for item in decision.actions)

    def _observe(self, desired: DesiredBackfill, resource: Object, seen: ObservedBackfill) -> ObservedBackfill:
        context, app, name = self.context, seen.app, app_named_by(resource)
        if has_ended(desired.status):
            repaired = app is not None and is_repaired(context.resources, resource, name)
            return replace(seen, repaired=repaired, awaited=is_awaited(context.resources, resource, name))
        # The more common kind of SparkApplication, if the cluster serves both.
        served = next((kind.api_version for kind in SPARK_APPLICATIONS if context.requests.serves(kind)), None)
        observed = replace(seen, working_since=context.working_since, served=served)
        if has_begun(desired.status):
            observed = self._with_spark(desired, observed)
        elif observed.served is not None:
            observed = replace(observed, unlisted=self._why_unlisted(desired, _SPARK_KINDS[observed.served]))
        if app is None:
            return observed
        try:
            if needs_members(desired):
                return replace(observed, members=self._members(app, observed))
            if BackfillContext(desired, observed).asks_brokers:
                access, plans = context.access.of(_of_attempts(app, observed)), stored_plans(app, observed.objects)
                return replace(observed, published=context.kafka.published(*access, desired.uid, plans))
        except StreamsError as error:
            return replace(observed, problem=str(error))
        except ApiError as error:
            return replace(observed, problem=f"The credentials could not be read: {error}")
        return observed

    def _members(self, app: DesiredApp, observed: ObservedBackfill) -> tuple[ActiveMember, ...] | None:
        plan = merged_plan(app.spec.application_id, stored_plans(app, observed.objects)) if app.spec else None
        if plan is None:
            return None
        return self.context.kafka.observe_for_reset(*self.context.access.of(app), plan, OffsetTarget()).members

    def _with_spark(self, desired: DesiredBackfill, observed: ObservedBackfill) -> ObservedBackfill:
        spark = desired.status.spark if desired.status else None
        kind = _SPARK_KINDS.get((spark and spark.api_version) or observed.served or "")
        if kind is None:
            return observed
        selector = f"{BACKFILL_UID_LABEL}={desired.uid}"
        applications = self._list(kind, desired, selector)
        pods = self._list(PODS, desired, selector)
        attempt = (desired.status and desired.status.attempt) or 0
        driver = next((pod for pod in pods if _is_driver(pod) and _attempt(pod) == attempt), None)
        text, problem = self._log(desired, driver)
        failed = any(state_of(item) == "Failed" for item in applications if _attempt(item) == attempt)
        return replace(
            observed,
            applications=tuple(applications),
            pods=tuple(map(_spark_pod, pods)),
            progress=parse_progress(text),
            log_is_there=driver is not None,
            log_problem=problem,
            last_words=last_words(text) if failed else "",
            first_spec=self._first_spec(desired, observed.app),
        )

    def _list(self, kind: ResourceKind, desired: DesiredBackfill, selector: str) -> list[Object]:
        try:
            items = self.context.requests.list(kind, desired.namespace, labelSelector=selector).get("items") or []
        except ApiError as error:
            if self._is_gone(error, desired):
                return []
            raise
        return [{**item, "apiVersion": kind.api_version, "kind": kind.kind} for item in items]

    def _why_unlisted(self, desired: DesiredBackfill, spark: ResourceKind) -> str | None:
        """Return why what belongs to a backfill cannot be listed: every pass over one that has begun needs it."""
        for kind in (spark, PODS):
            try:
                self._list(kind, desired, f"{BACKFILL_UID_LABEL}={desired.uid}")
            except ApiError as error:
                resource = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
                return unlisted(resource, desired.namespace, str(error), is_forbidden=error.status == FORBIDDEN)
        return None

    def _first_spec(self, desired: DesiredBackfill, app: DesiredApp | None) -> StreamsAppSpec | None:
        """Return the application's spec as the attempts' ConfigMap has it, if it is needed because it is another one now."""
        status, spec = desired.status, None if app is None else app.spec
        if status is None or status.phase != "Stopping" or (spec and revision_of(spec) == status.revision):
            return None
        try:
            found = self.context.requests.get(CONFIG_MAPS, desired.namespace, config_map_name(desired.name))
        except ApiError as error:
            if self._is_gone(error, desired):
                return None
            raise
        return spec_of(found) if labels_of(found).get(BACKFILL_UID_LABEL) == desired.uid else None

    def _log(self, desired: DesiredBackfill, driver: Object | None) -> tuple[str, str]:
        """Return the end of a driver's log, and why it could not be read; the kubelet is asked for it, which may be away.

        A log that has lost the reports it had, because it was rotated, is one that cannot be read.
        """
        if driver is None or not _has_started(driver):
            return "", ""
        name = driver["metadata"]["name"]
        try:
            for lines in _TAIL_LINES:
                query = {"container": DRIVER_CONTAINER, "tailLines": lines, "limitBytes": _TAIL_BYTES}
                text = str(self.context.requests.get(PODS, desired.namespace, name, "log", **query))
                if parse_progress(text) is not None:
                    return text, ""
        except ApiError as error:
            log.info("the log of pod %s cannot be read: %s", name, error)
            why = unread_log(name, desired.namespace, str(error), is_forbidden=error.status == FORBIDDEN)
            return "", why
        has_reported = desired.status is not None and desired.status.phase in {"Computing", "Publishing"}
        return text, f"The end of the log of pod {name} has no report of the job." if has_reported else ""

    def _is_gone(self, error: ApiError, desired: DesiredBackfill) -> bool:
        """Return whether an object is not there, or its namespace is being deleted and the operator's rights with it."""
        if error.not_found:
            return True
        return desired.deleting and loses_its_namespace(self.context, desired.namespace, error)

    def _do(
        self, desired: DesiredBackfill, resource: Object, observed: ObservedBackfill, action: BackfillAction
    ) -> None:
        match action:
            case SetFinalizer():
                self.context.executor.do(action, resource)
            case CreateObject(obj):
                try:
                    self._create(desired, obj)
                except (ApiError, FailedError, TransientError) as error:
                    final = isinstance(error, FailedError) or (isinstance(error, ApiError) and error.status in _REFUSED)
                    refused = replace(observed, refusal=str(error), refusal_is_final=final)
                    raise DecideAgainError(refused) from error
            case DeleteSparkApplication(api_version, name, uid):
                self._delete(_SPARK_KINDS[api_version], desired.namespace, name, uid)
            case DeleteAttemptsGroup(uid):
                self._delete_attempts_group(desired, uid)
            case DeleteBackfill(uid):
                self._delete(BACKFILLS, desired.namespace, desired.name, uid)

    def _with_problem(self, desired: DesiredBackfill, problem: str) -> StreamsBackfillStatus:
        return with_problem(desired, time.time(), problem)

    def _delete_attempts_group(self, desired: DesiredBackfill, uid: str) -> None:
        app = self._find_app(desired.namespace, desired.spec.app_ref.name if desired.spec else "")
        if app is None:
            return
        try:
            act_on_kafka(self.context, self.kafka_states, desired_from(app, DesiredApp), DeleteGroup(uid))
        except (StreamsError, ApiError) as error:
            log.info("%s: the group of its attempts is left to expire: %s", desired.name, error)

    def _create(self, desired: DesiredBackfill, obj: Object) -> None:
        kind = _SPARK_KINDS.get(obj["apiVersion"], CONFIG_MAPS)
        name = obj["metadata"]["name"]
        try:
            self.context.requests.create(kind, desired.namespace, obj)
        except ApiError as error:
            if not error.exists:
                raise
            self._check_is_own(desired, kind, name)

    def _check_is_own(self, desired: DesiredBackfill, kind: ResourceKind, name: str) -> None:
        """Check that an object that exists already is one that this backfill has created.

        Raises:
            StaleError: It has just gone.
            TransientError: It is what an earlier backfill of the same name has left to the garbage collector.
            FailedError: It is somebody else's.
        """
        try:
            labels = labels_of(self.context.requests.get(kind, desired.namespace, name))
        except ApiError as error:
            if error.not_found:
                raise StaleError(f"{kind.kind} {name} has just gone") from error
            raise
        if labels.get(BACKFILL_UID_LABEL) == desired.uid:
            return
        if is_of_backfill(labels, desired.name):
            raise TransientError(
                f"{kind.kind} {name} belongs to an earlier StreamsBackfill of this name, and Kubernetes is about to delete it. "
                "If it stays, delete it."
            )
        raise FailedError(
            "NameTaken",
            f"{kind.kind} {name} exists and does not belong to this StreamsBackfill. It is left alone. Delete it, or give the "
            "StreamsBackfill another name.",
        )

    def _delete(self, kind: ResourceKind, namespace: str, name: str, uid: str) -> None:
        try:
            self.context.requests.delete(kind, namespace, name, uid=uid, propagation="Background")
        except ApiError as error:
            if error.conflict:
                raise StaleError(f"{kind.kind} {name} is not the one that was seen") from error
            if not error.not_found:
                raise


def _of_attempts(app: DesiredApp, observed: ObservedBackfill) -> DesiredApp:
    """Return the application as it was for the attempts, which write to the brokers that it had then."""
    first = observed.first_spec
    if first is None:
        return app
    return replace(app, spec=first, manifest=first.model_dump(mode="json", by_alias=True, exclude_none=True))


def _spark_pod(pod: Object) -> SparkPod:
    trouble = trouble_of(pod) if (pod.get("status") or {}).get("phase") == "Pending" else None
    return SparkPod(
        name=pod["metadata"]["name"],
        is_driver=_is_driver(pod),
        attempt=_attempt(pod),
        lives=_lives(pod),
        trouble="" if trouble is None else trouble.shown,
        has_started=_has_started(pod),
        ended_at=_ended_at(pod),
    )


def _is_driver(pod: Object) -> bool:
    return labels_of(pod).get(COMPONENT_LABEL) == "backfill-driver"


def _attempt(obj: Object) -> int:
    number = labels_of(obj).get(ATTEMPT_LABEL, "")
    return int(number) if number.isdigit() else 0


def _states(pod: Object) -> list[Json]:
    """Return the states of Spark's own containers; others may have been injected into the pod."""
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    own = (item for item in containers if item.get("name") in {DRIVER_CONTAINER, EXECUTOR_CONTAINER})
    return [item.get("state") or {} for item in own]


def _has_started(pod: Object) -> bool:
    return any(name in state for state in _states(pod) for name in ("running", "terminated"))


def _ended_at(pod: Object) -> str | None:
    """Return when Spark's own container ended; None if it has not, or nobody has seen it end.

    A pod that was evicted, or whose node is gone, may not say so: then its conditions have changed last when it ended.
    """
    times = [str((state.get("terminated") or {}).get("finishedAt") or "") for state in _states(pod)]
    if times and all(times):
        return max(times)
    changes = () if _lives(pod) else (pod["status"].get("conditions") or ())
    return max((str(item.get("lastTransitionTime") or "") for item in changes), default="") or None


def _lives(pod: Object) -> bool:
    """Return whether a pod may still write: it has not ended, or nobody knows."""
    return (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}
