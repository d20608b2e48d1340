"""One pass over one application: observe, decide, act, report.

What is reported is true of what was done: where an action is refused, the status says so, and for which generation.

Before anything is done the resource is read again: caches may be old, and acting for an application that has been deleted,
or replaced by another of its name, would create objects that nobody removes. So a pass with nothing to do costs no request,
and one that acts costs one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace.kafka.admin_requests import give_up_when
from millrace.plan.topology_plan import TopologyPlan
from millrace_operator.app.backoff import (
    FIRST_FOLLOW_UP_SECONDS,
    LONGEST_FOLLOW_UP_SECONDS,
    REFUSED_SECONDS,
    STALE_SECONDS,
    TRANSIENT_FAILURES,
    FailedError,
    TransientError,
    failure_of,
)
from millrace_operator.app.broker_access import BrokerAccess
from millrace_operator.app.handlers import SELECTOR
from millrace_operator.app.refusals import Refusal, carry_out, description_of, stalled_status, with_refusals
from millrace_operator.app.renewal_limiter import RenewalLimiter
from millrace_operator.children.config_maps import PLAN_KEY
from millrace_operator.children.naming import APP_LABEL, plan_config_map
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.events import EventRecorder
from millrace_operator.cluster.executor import Executor, NameTakenError, StaleError, write_status
from millrace_operator.cluster.instance_status_client import InstanceStatusClient
from millrace_operator.cluster.kinds import APPS, CLAIMS, CONFIG_MAPS, KINDS, NAMESPACES, PODS
from millrace_operator.cluster.observe import PlanJobOutputs, desired_from, holding_backfill, neighbours_of
from millrace_operator.cluster.requests import FORBIDDEN, ApiError, NotAllowedToWriteError, Requests
from millrace_operator.kafka.clusters import KafkaClusters
from millrace_operator.kafka.state_cache import AnswerAwaitedError, KafkaStateCache
from millrace_operator.model import (
    Action,
    Apply,
    ConfigureGroup,
    Decision,
    Delete,
    DeleteGroup,
    DeleteTopics,
    DesiredApp,
    Event,
    Json,
    KafkaAction,
    KafkaState,
    Key,
    Object,
    ObservedApp,
    ProvisionTopics,
    RemoveMembers,
    ResourceRef,
    SeenNode,
    SetFinalizer,
)
from millrace_operator.reconcile.children_view import read_plan
from millrace_operator.reconcile.revisions import revision_of
from millrace_operator.reconcile.timestamps import timestamp
from millrace_operator.reconcile.topics import internal_topics

log = logging.getLogger(__name__)

Reconcile = Callable[[DesiredApp, ObservedApp], Decision]


class _Taken(NamedTuple):
    """An object that belongs to somebody else."""

    uid: str | None
    """The uid that the action asked for, if any."""
    message: str


class _KnownTopics(NamedTuple):
    """The internal topics that an application has or had, as far as passes have seen."""

    uid: str
    names: frozenset[str]


@dataclass(slots=True)
class ControllerContext:
    """What the controllers share: the known state of the cluster, and how to reach it and the brokers."""

    requests: Requests
    resources: Cache
    children: Cache
    instances: InstanceStatusClient
    executor: Executor
    outputs: PlanJobOutputs
    recorder: EventRecorder
    access: BrokerAccess
    kafka: KafkaClusters
    operator_namespace: str
    working_since: float = 0.0
    """When this operator began to work, or could again after the API server was unreachable; seconds since the epoch."""
    expandable: Callable[[dict[Key, Object]], bool | None] = lambda _: None
    """Returns whether the claims among an app's objects may grow."""
    pod_monitors: bool = False
    nodes: Callable[[str, Mapping[Key, Object]], tuple[Mapping[str, SeenNode], frozenset[str]]] = lambda *_: (
        {},
        frozenset(),
    )
    """Returns the nodes of an app's pods that matter, and which of the pods are lost with theirs."""


@dataclass(slots=True)
class AppController:
    """Runs passes over applications; thread-safe for different applications.

    Args:
        context: How the cluster and the brokers are reached.
        reconcile: Decides what to do.
        kafka_states: What is known about the brokers of applications.
        resync_seconds: When to run the next pass if a decision does not say.
        renewals: Which applications may have their pods renewed; by default none.
    """

    context: ControllerContext
    reconcile: Reconcile
    kafka_states: KafkaStateCache
    resync_seconds: float
    renewals: RenewalLimiter = field(default_factory=lambda: RenewalLimiter(0, lambda _: None))
    _acted: dict[ResourceRef, int] = field(default_factory=dict)
    _taken: dict[ResourceRef, dict[Key, _Taken]] = field(default_factory=dict)
    """Objects of other owners with the names of children, as passes have found them."""
    _known_topics: dict[ResourceRef, _KnownTopics] = field(default_factory=dict)

    def run(self, ref: ResourceRef, failures: int) -> float | None:
        """Run a pass.

        Args:
            ref: The application.
            failures: How many passes over it have just failed in a row.

        Returns:
            The seconds after which to run another; None if the application is gone.

        Raises:
            AnswerAwaitedError: The pass has to wait until the brokers have answered.
            TransientError: Something did not answer, or was not ready.
            FailedError: Something is wrong; the resource's status says what.
        """
        app = self.context.resources.get(APPS, ref.namespace, ref.name)
        if app is None:
            self._forget(ref)
            return None
        desired = desired_from(app, DesiredApp)
        try:
            return self._pass(ref, app, desired, failures)
        except StaleError as error:
            log.info("%s: %s; looking again", ref, error)
            return STALE_SECONDS
        except AnswerAwaitedError:
            raise
        except Exception as error:
            failure = _lasting(error, failures)
            if not isinstance(error, _RefusedActionsError):  # the status already reports these
                self._report_failure(ref, failure)
            raise failure from error

    def _pass(self, ref: ResourceRef, app: Object, desired: DesiredApp, failures: int) -> float:
        decision, seen = self._decide(ref, desired), app
        acted = 0
        self.renewals.report(ref, decision.renewal)
        if decision.actions:
            app = self._confirm(app)
        causes: list[Exception] = []

        def do(action: Action) -> Refusal | None:
            nonlocal acted
            log.info("%s: %s", ref, description_of(action))
            now = self.context.resources.get(APPS, ref.namespace, ref.name) or app
            try:
                if not self._do_unless_taken(ref, desired, now, action):
                    return None
            except StaleError:
                raise
            except Exception as error:
                causes.append(error)
                return _refusal(action, error, failures)
            acted += 1
            return None

        refusals = carry_out(decision.actions, do)
        if refusals:
            decision = with_refusals(desired, decision, refusals)
        now = self.context.resources.get(APPS, ref.namespace, ref.name)
        if decision.status is not None and now is not None:
            self._write_status(now, seen, decision)
        for event in decision.events:
            self.context.recorder.record(now or app, event)
        again = self._again(ref, decision, acted)
        if refusals:
            may_wait = any(item.stops_the_rest for item in refusals)
            raise _RefusedActionsError(refusals, None if may_wait else again) from causes[0]
        return again

    def _decide(self, ref: ResourceRef, desired: DesiredApp) -> Decision:
        context = self.context
        objects = context.children.of_app(ref.namespace, ref.name)
        servers = "" if desired.spec is None else ",".join(sorted(desired.spec.kafka.bootstrap_servers))
        # The brokers are asked in the background, perhaps after this pass: what they are asked about is settled now.
        plans = stored_plans(desired, objects)
        internal = self._internal_topics(ref, desired, plans)
        kafka = self.kafka_states.state(
            ref, lambda: _ask_brokers(context, desired, plans, internal), desired.generation, servers
        )
        nodes, lost_pods = context.nodes(ref.namespace, objects)
        observed = ObservedApp(
            now=time.time(),
            objects=objects,
            kafka=kafka,
            neighbours=neighbours_of(desired, context.resources, context.children, self.kafka_states.cluster_id),
            instances=context.instances.ask([obj for key, obj in objects.items() if key.kind == PODS.kind]),
            outputs=context.outputs.of(ref.namespace, objects),
            storage_class_expandable=context.expandable(objects),
            pod_monitors=context.pod_monitors,
            operator_namespace=context.operator_namespace,
            taken=self._known_as_taken(ref, objects),
            nodes=nodes,
            lost_pods=lost_pods,
            backfill=holding_backfill(context.resources, ref, ended=not desired.deleting),
            renewal=self.renewals.permit_of(ref),
        )
        try:
            return self.reconcile(desired, observed)
        except Exception as error:
            message = (
                f"The operator failed on this resource because of a bug of its own: {type(error).__name__}: {error}"
            )
            raise FailedError("OperatorError", message) from error

    def _internal_topics(self, ref: ResourceRef, desired: DesiredApp, plans: Sequence[TopologyPlan]) -> frozenset[str]:
        """Return what is to be asked about beside the plans' topics: the internal topics of the status, and what Purge deletes.

        These are also the topics of plans that were seen before: a namespace that is being deleted may lose its ConfigMaps first.
        """
        listed = {} if desired.status is None else {item.name for item in desired.status.internal_topics}
        named = {name for plan in plans for name in internal_topics(plan)}
        before = self._known_topics.get(ref)
        kept = before.names if before is not None and before.uid == desired.uid else frozenset()
        self._known_topics[ref] = known = _KnownTopics(desired.uid, kept.union(listed, named))
        return known.names if desired.deleting else frozenset(listed)

    def _known_as_taken(self, ref: ResourceRef, objects: Mapping[Key, Object]) -> Mapping[Key, str]:
        """Return the known objects of other owners, and forget pods among them that are gone.

        Other objects are forgotten once their names are free; nobody tries to take a pod's name.
        """
        known = self._taken.get(ref, {})
        for key in [key for key in known if key.kind == PODS.kind]:
            pod = objects.get(key)
            if pod is None or pod["metadata"]["uid"] != known[key].uid:
                del known[key]
        return {key: item.message for key, item in known.items()}

    def _confirm(self, app: Object) -> Object:
        """Return the current resource; a pass that has seen an older version ends."""
        metadata = app["metadata"]
        try:
            now: Json = self.context.requests.get(APPS, metadata["namespace"], metadata["name"])
        except ApiError as error:
            if error.not_found:
                self.context.resources.remove(APPS, app)
                raise StaleError("the resource is gone") from error
            raise
        if _identity(now) != _identity(app):
            self.context.resources.remove(APPS, app)
            self.context.resources.put(APPS, now)
            raise StaleError("the resource has changed")
        return {**now, "apiVersion": APPS.api_version, "kind": APPS.kind}

    def _do_unless_taken(self, ref: ResourceRef, desired: DesiredApp, app: Object, action: Action) -> bool:
        """Carry out an action and return True, or False if the decision already knew that the object is somebody else's.

        Raises:
            StaleError: The decision did not know.
        """
        taken = self._taken.setdefault(ref, {})
        try:
            self._do(desired, app, action)
        except NameTakenError as error:
            found = _Taken(action.uid if isinstance(action, Delete) else None, str(error))
            if taken.get(error.key) == found:
                return False
            taken[error.key] = found
            raise StaleError(str(error)) from error
        if isinstance(action, Apply):
            taken.pop(Key.of(action.object), None)
        return True

    def _do(self, desired: DesiredApp, app: Object, action: Action) -> None:
        if isinstance(action, ProvisionTopics | DeleteTopics | RemoveMembers | ConfigureGroup | DeleteGroup):
            act_on_kafka(self.context, self.kafka_states, desired, action)
            return
        if action == SetFinalizer(present=False):
            self._look_for_unknown(desired)
        try:
            self.context.executor.do(action, app)
        except ApiError as error:
            may_lose = "deletionTimestamp" in app["metadata"] and not isinstance(action, SetFinalizer)
            if not (may_lose and loses_its_namespace(self.context, desired.namespace, error)):
                raise
            log.info("%s is left to the deletion of namespace %s", description_of(action), desired.namespace)
            if isinstance(action, Delete):
                self._leave_to_its_namespace(desired.namespace, action.key)

    def _look_for_unknown(self, desired: DesiredApp) -> None:
        """List children that a watch has not reported yet: nobody would delete them once the finalizer is gone.

        Raises:
            StaleError: Something exists that the decision did not know about.
        """
        labels = f"{APP_LABEL}={desired.name},{SELECTOR}"
        unknown: list[str] = []
        for kind in (PODS, CLAIMS):
            try:
                found = self.context.requests.list(kind, desired.namespace, labelSelector=labels)["items"]
            except ApiError as error:
                if error.status != FORBIDDEN:
                    raise
                continue  # the operator's rights go with the namespace, and so does what is in it
            for item in found:
                name = item["metadata"]["name"]
                is_known = self.context.children.get(kind, desired.namespace, name) is not None
                if self.context.children.put(kind, item) and not is_known:
                    unknown.append(f"{kind.kind} {name}")
        if unknown:
            raise StaleError(f"no watch has reported {', '.join(unknown)} yet")

    def _leave_to_its_namespace(self, namespace: str, key: Key) -> None:
        """Assume that a child is deleted with its namespace, which a watch may no longer report.

        A pod still has its grace period, in which it writes: it counts as gone when the watch says so, or when that time is over.
        """
        kind, children = KINDS[key.kind], self.context.children
        child = children.get(kind, namespace, key.name)
        if child is None:
            return
        if kind is PODS:
            grace = child["spec"].get("terminationGracePeriodSeconds", 0)
            children.expect_end(kind, child, timestamp(time.time() + grace))
        else:
            children.remove(kind, child)

    def _write_status(self, app: Object, seen: Object, decision: Decision) -> None:
        """Write the decision's status if it differs from the current one.

        The pass's own actions may have changed the resource since it was seen, but neither its spec nor its status.
        """
        assert decision.status is not None
        if _basis(app) != _basis(seen):
            raise StaleError("the resource has changed")
        try:
            write_status(self.context.requests, self.context.resources, APPS, app, decision.status)
        except ApiError as error:
            if error.conflict:
                raise StaleError("the resource has changed") from error
            if error.not_found:
                self.context.resources.remove(APPS, app)
                raise StaleError("the resource is gone") from error
            raise

    def _again(self, ref: ResourceRef, decision: Decision, acted: int) -> float:
        """Return when to run the next pass: soon after one that has acted, then ever later, until nothing is left to do."""
        if not acted:
            self._acted.pop(ref, None)
            again = self.resync_seconds if decision.again_after is None else decision.again_after
            return max(again, REFUSED_SECONDS) if decision.actions else again
        times = self._acted[ref] = self._acted.get(ref, 0) + 1
        soon = min(FIRST_FOLLOW_UP_SECONDS * 2.0 ** min(times - 1, 20), LONGEST_FOLLOW_UP_SECONDS)
        return soon if decision.again_after is None else min(soon, decision.again_after)

    def _report_failure(self, ref: ResourceRef, failure: FailedError) -> None:
        """Report in the status why nothing is happening; if that fails too, it must not hide the original failure."""
        app = self.context.resources.get(APPS, ref.namespace, ref.name)
        if app is None:
            return
        status = stalled_status(desired_from(app, DesiredApp), failure.reason, str(failure))
        try:
            if write_status(self.context.requests, self.context.resources, APPS, app, status):
                self.context.recorder.record(app, Event(failure.reason, str(failure), "Warning"))
        except (ApiError, NotAllowedToWriteError) as error:
            log.error("%s: the status could not be written, so it does not report this: %s", ref, error)  # noqa: TRY400

    def _forget(self, ref: ResourceRef) -> None:
        self._acted.pop(ref, None)
        self._taken.pop(ref, None)
        self.renewals.report(ref, None)
        self.kafka_states.forget(ref)
        self.context.access.forget(ref)
        known = self._known_topics.pop(ref, None)
        if known is not None:
            self.context.kafka.forget(known.uid)


def loses_its_namespace(context: ControllerContext, namespace: str, error: ApiError) -> bool:
    """Return whether a request was refused because its namespace is being deleted.

    Nothing can be created in it any more, and the operator's rights in it may already be gone.
    """
    if error.status != FORBIDDEN:
        return False
    if "is being terminated" in error.message:
        return True
    try:
        found = context.requests.get(NAMESPACES, None, namespace)
    except ApiError as unknown:
        log.debug("%s", unknown)
        return False
    return "deletionTimestamp" in found["metadata"]


def act_on_kafka(
    context: ControllerContext, kafka_states: KafkaStateCache, app: DesiredApp, action: KafkaAction
) -> None:
    """Carry out an action on the brokers for a pass over an application or a reset; what was known about them is then outdated.

    It may take longer than the Lease lasts. It stops when this operator may no longer write, as another may have taken over.
    """
    context.requests.check_may_write()
    give_up_when(lambda: not context.requests.may_write)
    try:
        if app.spec is not None:
            context.kafka.act(*context.access.of(app), action)
    finally:
        give_up_when(lambda: False)
        kafka_states.changed(app.ref)


def _ask_brokers(
    context: ControllerContext, desired: DesiredApp, plans: Sequence[TopologyPlan], internal_topics: Collection[str]
) -> KafkaState:
    """Return what an application's brokers report; never raises."""
    if desired.spec is None:
        return KafkaState(error="the manifest has problems", reason="Unknown")
    try:
        app, credentials = context.access.of(desired)
    except ApiError as error:
        return KafkaState(error=f"The credentials could not be read: {error}", reason="SecretMissing")
    state = context.kafka.observe(app, credentials, *plans, internal_topics=internal_topics)
    context.access.answered(desired.ref, state)
    return state


def stored_plans(desired: DesiredApp, objects: Mapping[Key, Object]) -> list[TopologyPlan]:
    """Return the stored plans of all revisions, starting with the wanted one."""
    wanted = plan_config_map(desired.name, "" if desired.spec is None else revision_of(desired.spec))
    kept = sorted((key.name != wanted, key.name) for key in objects if key.kind == CONFIG_MAPS.kind)
    texts = ((objects[Key(CONFIG_MAPS.kind, name)].get("data") or {}).get(PLAN_KEY) for _, name in kept)
    return [plan for text in texts if text is not None and (plan := read_plan(text)) is not None]


class _RefusedActionsError(FailedError):
    """Actions were refused, and the status reports it."""

    def __init__(self, refusals: Sequence[Refusal], again_after: float | None) -> None:
        messages = dict.fromkeys(item.message for item in refusals)
        super().__init__(refusals[0].reason, "; ".join(messages), again_after)


def _lasting(error: Exception, failures: int) -> FailedError:
    """Return what an error means if it does not go away by itself.

    Raises:
        TransientError: It still may.
    """
    if isinstance(error, TransientError):
        raise error
    failure = failure_of(error)
    if isinstance(failure, FailedError):
        return failure
    if isinstance(error, NotAllowedToWriteError) or failures < TRANSIENT_FAILURES:
        raise failure from error
    return FailedError("ActionFailed", str(failure))


def _refusal(action: Action, error: Exception, failures: int) -> Refusal:
    """Return why an action is not carried out.

    Raises:
        TransientError: The reason may go away by itself.
    """
    failure = _lasting(error, failures)
    match error:
        case ApiError() if failure.reason == "RefusedByApiServer":
            why = (error.message or error.reason).rstrip(".")
            remedy = (
                "Change what refuses it (a quota, an admission policy, the operator's role), or the spec: the operator "
                "retries."
            )
            return Refusal(
                action, failure.reason, f"{description_of(action)}: the API server refuses it: {why}. {remedy}"
            )
    return Refusal(action, failure.reason, f"{description_of(action)}: {failure}")


def _basis(app: Object) -> tuple[object, ...]:
    """Return what a status is derived from: the spec's generation and the previous status."""
    return app["metadata"].get("generation"), app.get("status") or {}


def _identity(app: Object) -> tuple[object, ...]:
    metadata = app["metadata"]
    return (
        metadata["uid"],
        *_basis(app),
        metadata.get("deletionTimestamp"),
        tuple(metadata.get("finalizers") or ()),
        metadata.get("annotations") or {},
    )
