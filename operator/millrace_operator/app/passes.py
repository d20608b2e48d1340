"""One pass over one application: look, decide, act, tell.

What is told is true of what was done: where an action is refused, the status says so, and of which generation.

Before anything is done the resource is read once more: caches may be old, and to act for an application that has been deleted, or
replaced by another of its name, would make what nobody removes. So a pass at rest costs no request, and one that acts costs one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from millrace.kafka.admin_requests import give_up_when
from millrace_operator.app.brokers import AnswerAwaitedError, KafkaStateCache
from millrace_operator.app.context import ControllerContext
from millrace_operator.app.failures import FailedError, TransientError, failure_of
from millrace_operator.app.handlers import SELECTOR
from millrace_operator.app.neighbours import neighbours
from millrace_operator.app.refs import Ref
from millrace_operator.app.renewals import RenewalLimiter
from millrace_operator.app.stalled import Refusal, carry_out, described, stalled_status, with_refusals
from millrace_operator.cluster.act import NameTakenError, StaleError
from millrace_operator.cluster.cache import APP_LABEL
from millrace_operator.cluster.kinds import APPS, CLAIMS, NAMESPACES, PODS, kind_of
from millrace_operator.cluster.observe import desired_from
from millrace_operator.cluster.requests import ApiError, NotAllowedToWriteError
from millrace_operator.cluster.status import write_status
from millrace_operator.model import (
    Action,
    Apply,
    Decision,
    Delete,
    DeleteGroup,
    DeleteTopics,
    DesiredApp,
    Event,
    Key,
    Object,
    ObservedApp,
    ProvisionTopics,
    RemoveMembers,
    SetFinalizer,
)
from millrace_operator.reconcile.ownership import key_of
from millrace_operator.reconcile.status import timestamp

log = logging.getLogger(__name__)

STALE_SECONDS: Final = 0.5
FORBIDDEN: Final = 403
_FIRST_AGAIN_SECONDS: Final = 0.05
_MOST_AGAIN_SECONDS: Final = 5.0
_REFUSED_AGAIN_SECONDS: Final = 5.0
"""How soon something that was refused is tried again at the earliest, where all else goes on."""
TRANSIENT_FAILURES: Final = 4
"""How often in a row something may fail that may pass by itself, before the user is told."""

Reconcile = Callable[[DesiredApp, ObservedApp], Decision]


class _Taken(NamedTuple):
    """An object of somebody else."""

    uid: str | None
    """Of the object that the action was about, if it was about a certain one."""
    message: str


@dataclass(slots=True)
class AppController:
    """Makes passes over applications; safe to use from several threads, for different applications.

    Args:
        cluster: The Kubernetes cluster.
        reconcile: What decides.
        brokers: What is known of brokers.
        resync_seconds: When to look again if a decision does not say.
        after_action: Called after each action; writing a status is one.
        renewals: Whose turn it is to have its pods renewed; by default nobody's ever.
    """

    cluster: ControllerContext
    reconcile: Reconcile
    brokers: KafkaStateCache
    resync_seconds: float
    after_action: Callable[[], None] = lambda: None
    renewals: RenewalLimiter = field(default_factory=lambda: RenewalLimiter(0, lambda _: None))
    _acted: dict[Ref, int] = field(default_factory=dict)
    _taken: dict[Ref, dict[Key, _Taken]] = field(default_factory=dict)
    """What other people's objects under the names of children are, as passes have found."""

    def run(self, ref: Ref, failures: int) -> float | None:
        """Make a pass.

        Args:
            ref: The application.
            failures: How many passes over it have failed in a row before.

        Returns:
            The seconds after which to make another; None if the application is gone.

        Raises:
            AnswerAwaitedError: The pass is to be made when the brokers have answered.
            TransientError: Something did not answer, or was not ready.
            FailedError: Something is wrong; the resource's status says what.
        """
        app = self.cluster.resources.get(APPS, ref.namespace, ref.name)
        if app is None:
            self._forget(ref)
            return None
        desired = desired_from(app)
        try:
            return self._pass(ref, app, desired, failures)
        except StaleError as error:
            log.info("%s: %s; looking again", ref, error)
            return STALE_SECONDS
        except AnswerAwaitedError:
            raise
        except Exception as error:
            told = _lasting(error, failures)
            if not isinstance(error, _RefusedActionsError):  # of which the status tells already
                self._tell(ref, told)
            raise told from error

    def _pass(self, ref: Ref, app: Object, desired: DesiredApp, failures: int) -> float:
        decision, seen = self._decide(ref, desired), app
        acted = 0
        self.renewals.tell(ref, decision.renewal)
        if decision.actions:
            app = self._confirm(app)
        causes: list[Exception] = []

        def do(action: Action) -> Refusal | None:
            nonlocal acted
            log.info("%s: %s", ref, described(action))
            now = self.cluster.resources.get(APPS, ref.namespace, ref.name) or app
            try:
                if not self._do_unless_taken(ref, desired, now, action):
                    return None
            except StaleError:
                raise
            except Exception as error:
                causes.append(error)
                return _refusal(action, error, failures)
            acted += 1
            self.after_action()
            return None

        refusals = carry_out(decision.actions, do)
        if refusals:
            decision = with_refusals(desired, decision, refusals)
        now = self.cluster.resources.get(APPS, ref.namespace, ref.name)
        if decision.status is not None and now is not None and self._write_status(now, seen, decision):
            self.after_action()
        for event in decision.events:
            self.cluster.recorder.record(now or app, event)
        again = self._again(ref, decision, acted)
        if refusals:
            may_wait = any(item.stops_the_rest for item in refusals)
            raise _RefusedActionsError(refusals, None if may_wait else again) from causes[0]
        return again

    def _decide(self, ref: Ref, desired: DesiredApp) -> Decision:
        cluster = self.cluster
        objects = cluster.children.of_app(ref.namespace, ref.name)
        servers = "" if desired.spec is None else ",".join(sorted(desired.spec.kafka.bootstrap_servers))
        kafka = self.brokers.state(ref, lambda: cluster.kafka.observe(desired, objects), desired.generation, servers)
        observed = ObservedApp(
            now=time.time(),
            objects=objects,
            kafka=kafka,
            neighbours=neighbours(desired, cluster.resources, cluster.children, self.brokers.cluster_id),
            instances=cluster.instances.ask([obj for key, obj in objects.items() if key.kind == PODS.kind]),
            outputs=cluster.outputs.of(ref.namespace, objects),
            storage_class_expandable=cluster.expandable(objects),
            pod_monitors=cluster.pod_monitors,
            operator_namespace=cluster.operator_namespace,
            taken=self._known_as_taken(ref, objects),
            renewal=self.renewals.turn_of(ref),
        )
        try:
            return self.reconcile(desired, observed)
        except Exception as error:
            message = f"The operator failed on this resource, by its own fault: {type(error).__name__}: {error}"
            raise FailedError("OperatorError", message) from error

    def _known_as_taken(self, ref: Ref, objects: Mapping[Key, Object]) -> Mapping[Key, str]:
        """Return what other people's objects there are, and forget their pods that have gone.

        Other objects are forgotten when their names can be had; nobody tries to have a pod's.
        """
        known = self._taken.get(ref, {})
        for key in [key for key in known if key.kind == PODS.kind]:
            pod = objects.get(key)
            if pod is None or pod["metadata"]["uid"] != known[key].uid:
                del known[key]
        return {key: item.message for key, item in known.items()}

    def _confirm(self, app: Object) -> Object:
        """Return the resource as it is now; a pass that has looked at an older one ends."""
        metadata = app["metadata"]
        try:
            now: dict[str, Any] = self.cluster.requests.get(APPS, metadata["namespace"], metadata["name"])
        except ApiError as error:
            if error.not_found:
                self.cluster.resources.remove(APPS, app)
                raise StaleError("the resource is gone") from error
            raise
        if _identity(now) != _identity(app):
            self.cluster.resources.remove(APPS, app)
            self.cluster.resources.put(APPS, now)
            raise StaleError("the resource has changed")
        return {**now, "apiVersion": APPS.api_version, "kind": APPS.kind}

    def _do_unless_taken(self, ref: Ref, desired: DesiredApp, app: Object, action: Action) -> bool:
        """Carry out an action and return True, or False if the decision knew that it is about an object of somebody else.

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
            taken.pop(key_of(action.object), None)
        return True

    def _do(self, desired: DesiredApp, app: Object, action: Action) -> None:
        if isinstance(action, ProvisionTopics | DeleteTopics | RemoveMembers | DeleteGroup):
            act_on_kafka(self.cluster, self.brokers, desired, action)
            return
        if action == SetFinalizer(present=False):
            self._look_for_unknown(desired)
        try:
            self.cluster.hands.do(action, app)
        except ApiError as error:
            if isinstance(action, SetFinalizer) or not self._loses_its_namespace(app, error):
                raise
            log.info("%s is left to the deletion of namespace %s", described(action), desired.namespace)
            if isinstance(action, Delete):
                self._leave_to_its_namespace(desired.namespace, action.key)

    def _look_for_unknown(self, desired: DesiredApp) -> None:
        """List what a StatefulSet's controller makes, of which a watch tells late: without the finalizer nobody would delete it.

        Raises:
            StaleError: There was something that the decision did not know.
        """
        labels = f"{APP_LABEL}={desired.name},{SELECTOR}"
        unknown: list[str] = []
        for kind in (PODS, CLAIMS):
            try:
                found = self.cluster.requests.list(kind, desired.namespace, labelSelector=labels)["items"]
            except ApiError as error:
                if error.status != FORBIDDEN:
                    raise
                continue  # the operator's rights go with the namespace, and so does what is in it
            for item in found:
                name = item["metadata"]["name"]
                is_known = self.cluster.children.get(kind, desired.namespace, name) is not None
                if self.cluster.children.put(kind, item) and not is_known:
                    unknown.append(f"{kind.kind} {name}")
        if unknown:
            raise StaleError(f"a watch has not told of {', '.join(unknown)} yet")

    def _leave_to_its_namespace(self, namespace: str, key: Key) -> None:
        """Take a child for one that is deleted with its namespace. A watch may not tell of that any more.

        A pod has its grace period yet, in which it writes: it is taken for gone when the watch says so, or when its time is over.
        """
        kind, children = kind_of(key.kind), self.cluster.children
        child = children.get(kind, namespace, key.name)
        if child is None:
            return
        if kind is PODS:
            grace = child["spec"].get("terminationGracePeriodSeconds", 0)
            children.expect_end(kind, child, timestamp(time.time() + grace))
        else:
            children.remove(kind, child)

    def _loses_its_namespace(self, app: Object, error: ApiError) -> bool:
        """Return whether a write was refused because the application is deleted with its namespace.

        Nothing can be made in it any more, and the operator's rights in it may be gone already.
        """
        if error.status != FORBIDDEN or "deletionTimestamp" not in app["metadata"]:
            return False
        if "is being terminated" in error.message:
            return True
        try:
            namespace = self.cluster.requests.get(NAMESPACES, None, app["metadata"]["namespace"])
        except ApiError as unknown:
            log.debug("%s", unknown)
            return False
        return "deletionTimestamp" in namespace["metadata"]

    def _write_status(self, app: Object, seen: Object, decision: Decision) -> bool:
        """Write the decision's status, and say whether it differed from the one that is there.

        The pass's own actions may have changed the resource since it was seen, but neither its spec nor its status.
        """
        assert decision.status is not None
        if _basis(app) != _basis(seen):
            raise StaleError("the resource has changed")
        try:
            return write_status(self.cluster.requests, self.cluster.resources, APPS, app, decision.status)
        except ApiError as error:
            if error.conflict:
                raise StaleError("the resource has changed") from error
            if error.not_found:
                self.cluster.resources.remove(APPS, app)
                raise StaleError("the resource is gone") from error
            raise

    def _again(self, ref: Ref, decision: Decision, acted: int) -> float:
        """A pass that has acted is followed by another, sooner at first: until there is nothing left to do."""
        if not acted:
            self._acted.pop(ref, None)
            again = self.resync_seconds if decision.again_after is None else decision.again_after
            return max(again, _REFUSED_AGAIN_SECONDS) if decision.actions else again
        times = self._acted[ref] = self._acted.get(ref, 0) + 1
        soon = min(_FIRST_AGAIN_SECONDS * 2.0 ** min(times - 1, 20), _MOST_AGAIN_SECONDS)
        return soon if decision.again_after is None else min(soon, decision.again_after)

    def _tell(self, ref: Ref, failure: FailedError) -> None:
        """Say in the status why nothing goes on; that this may fail as well must not hide the failure."""
        app = self.cluster.resources.get(APPS, ref.namespace, ref.name)
        if app is None:
            return
        status = stalled_status(desired_from(app), failure.reason, str(failure))
        try:
            if write_status(self.cluster.requests, self.cluster.resources, APPS, app, status):
                self.cluster.recorder.record(app, Event(failure.reason, str(failure), "Warning"))
        except (ApiError, NotAllowedToWriteError) as error:
            log.error("%s: the status could not be written, so it does not tell of this: %s", ref, error)  # noqa: TRY400

    def _forget(self, ref: Ref) -> None:
        self._acted.pop(ref, None)
        self._taken.pop(ref, None)
        self.renewals.tell(ref, None)
        self.brokers.forget(ref)
        self.cluster.kafka.forget(ref)


def act_on_kafka(cluster: ControllerContext, brokers: KafkaStateCache, app: DesiredApp, action: Any) -> None:
    """Carry out what a pass over an app, or over a reset of it, does at the brokers: what was known of them is old then.

    It may take longer than the Lease lasts, and ends when this operator may write no longer: another may have begun by then.
    """
    cluster.requests.check_may_write()
    give_up_when(lambda: not cluster.requests.may_write)
    try:
        cluster.kafka.act(app, action)
    finally:
        give_up_when(lambda: False)
        brokers.changed(Ref(APPS.kind, app.namespace, app.name))


class _RefusedActionsError(FailedError):
    """Actions were refused, and the status tells of it."""

    def __init__(self, refusals: Sequence[Refusal], again_after: float | None) -> None:
        messages = dict.fromkeys(item.message for item in refusals)
        super().__init__(refusals[0].reason, "; ".join(messages), again_after)


def _lasting(error: Exception, failures: int) -> FailedError:
    """Return what an error means that does not pass by itself.

    Raises:
        TransientError: It may yet.
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
        TransientError: The reason may pass by itself.
    """
    failure = _lasting(error, failures)
    match error:
        case ApiError() if failure.reason == "RefusedByApiServer":
            why = (error.message or error.reason).rstrip(".")
            remedy = (
                "Change what refuses it (a quota, an admission policy, the operator's role), or what the spec says of it: "
                "it is tried again."
            )
            return Refusal(action, failure.reason, f"{described(action)}: the API server refuses it: {why}. {remedy}")
    return Refusal(action, failure.reason, f"{described(action)}: {failure}")


def _basis(app: Object) -> tuple[Any, ...]:
    """Return what a status is derived from: the spec, by its generation, and the status before."""
    return app["metadata"].get("generation"), app.get("status") or {}


def _identity(app: Object) -> tuple[Any, ...]:
    metadata = app["metadata"]
    return (
        metadata["uid"],
        *_basis(app),
        metadata.get("deletionTimestamp"),
        tuple(metadata.get("finalizers") or ()),
        metadata.get("annotations") or {},
    )
