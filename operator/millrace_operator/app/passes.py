"""One pass over one application: look, decide, act, tell.

Before anything is done the resource is read once more: caches may be old, and to act for an application that has been deleted, or
replaced by another of its name, would make what nobody removes. So a pass at rest costs no request, and one that acts costs one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from millrace_operator.app.brokers import Brokers
from millrace_operator.app.context import Cluster
from millrace_operator.app.failures import FailedError, TransientError, failure_of
from millrace_operator.app.refs import Ref
from millrace_operator.app.stalled import stalled_status
from millrace_operator.cluster.act import StaleError
from millrace_operator.cluster.kinds import APPS, PODS
from millrace_operator.cluster.observe import desired_from
from millrace_operator.cluster.requests import ApiError, NotAllowedToWriteError
from millrace_operator.cluster.status import write_status
from millrace_operator.model import (
    Action,
    Decision,
    DeleteGroup,
    DeleteTopics,
    Desired,
    Event,
    Object,
    Observed,
    ProvisionTopics,
    RemoveMembers,
)

log = logging.getLogger(__name__)

STALE_SECONDS: Final = 0.5
_FIRST_AGAIN_SECONDS: Final = 0.05
_MOST_AGAIN_SECONDS: Final = 5.0
TRANSIENT_FAILURES: Final = 4
"""How often in a row something may fail that may pass by itself, before the user is told."""

Reconcile = Callable[[Desired, Observed], Decision]


@dataclass(slots=True)
class Passes:
    """Makes passes over applications; safe to use from several threads, for different applications.

    Args:
        cluster: The Kubernetes cluster.
        reconcile: What decides.
        brokers: What is known of brokers.
        resync_seconds: When to look again if a decision does not say.
        after_action: Called after each action; writing a status is one.
    """

    cluster: Cluster
    reconcile: Reconcile
    brokers: Brokers
    resync_seconds: float
    after_action: Callable[[], None] = lambda: None
    _acted: dict[Ref, int] = field(default_factory=dict)

    def run(self, ref: Ref, failures: int) -> float | None:
        """Make a pass.

        Args:
            ref: The application.
            failures: How many passes over it have failed in a row before.

        Returns:
            The seconds after which to make another; None if the application is gone.

        Raises:
            TransientError: Something did not answer, or was not ready.
            FailedError: Something is wrong; the resource's status says what.
        """
        app = self.cluster.resources.get(APPS, ref.namespace, ref.name)
        if app is None:
            self._forget(ref)
            return None
        desired = desired_from(app)
        try:
            return self._pass(ref, app, desired)
        except StaleError as error:
            log.info("%s: %s; looking again", ref, error)
            return STALE_SECONDS
        except Exception as error:
            failure = failure_of(error)
            mine = isinstance(error, NotAllowedToWriteError)
            if isinstance(failure, TransientError) and (mine or failures < TRANSIENT_FAILURES):
                raise failure from error
            told = FailedError(getattr(failure, "reason", "ActionFailed"), str(failure))
            self._tell(ref, told)
            raise told from error

    def _pass(self, ref: Ref, app: Object, desired: Desired) -> float:
        decision, seen = self._decide(ref, desired), app
        if decision.actions:
            app = self._confirm(app)
        for action in decision.actions:
            log.info("%s: %s", ref, described(action))
            self._do(desired, app, action)
            self.after_action()
            app = self.cluster.resources.get(APPS, ref.namespace, ref.name) or app
        gone = self.cluster.resources.get(APPS, ref.namespace, ref.name) is None
        if decision.status is not None and not gone and self._write_status(app, seen, decision):
            self.after_action()
        for event in decision.events:
            self.cluster.recorder.record(app, event)
        return self._again(ref, decision)

    def _decide(self, ref: Ref, desired: Desired) -> Decision:
        cluster = self.cluster
        objects = cluster.children.of_app(ref.namespace, ref.name)
        observed = Observed(
            now=time.time(),
            objects=objects,
            kafka=self.brokers.state(ref, lambda: self.cluster.kafka.observe(desired, objects), desired.generation),
            instances=cluster.instances.ask([obj for key, obj in objects.items() if key.kind == PODS.kind]),
            outputs=cluster.outputs.of(ref.namespace, objects),
            storage_class_expandable=cluster.expandable(objects),
            pod_monitors=cluster.pod_monitors,
            operator_namespace=cluster.operator_namespace,
        )
        try:
            return self.reconcile(desired, observed)
        except Exception as error:
            message = f"The operator failed on this resource, by its own fault: {type(error).__name__}: {error}"
            raise FailedError("OperatorError", message) from error

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

    def _do(self, desired: Desired, app: Object, action: Action) -> None:
        if isinstance(action, ProvisionTopics | DeleteTopics | RemoveMembers | DeleteGroup):
            act_on_kafka(self.cluster, self.brokers, desired, action)
        else:
            self.cluster.hands.do(action, app)

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

    def _again(self, ref: Ref, decision: Decision) -> float:
        """A pass that has acted is followed by another, sooner at first: until there is nothing left to do."""
        if not decision.actions:
            self._acted.pop(ref, None)
            return self.resync_seconds if decision.again_after is None else decision.again_after
        acted = self._acted[ref] = self._acted.get(ref, 0) + 1
        soon = min(_FIRST_AGAIN_SECONDS * 2.0 ** min(acted - 1, 20), _MOST_AGAIN_SECONDS)
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
            log.warning("%s: the status could not be written: %s", ref, error)

    def _forget(self, ref: Ref) -> None:
        self._acted.pop(ref, None)
        self.brokers.forget(ref)
        self.cluster.kafka.forget(ref)


def act_on_kafka(cluster: Cluster, brokers: Brokers, app: Desired, action: Any) -> None:
    """Carry out what a pass over an app, or over a reset of it, does at the brokers: what was known of them is old then."""
    cluster.requests.check_may_write()
    try:
        cluster.kafka.act(app, action)
    finally:
        brokers.changed(Ref(APPS.kind, app.namespace, app.name))


def described(action: Action) -> str:
    """Return an action in a few words, without what it writes."""
    match action:
        case _ if hasattr(action, "object"):
            return f"Apply {action.object['kind']} {action.object['metadata']['name']}"
        case ProvisionTopics(_, names):
            return f"ProvisionTopics {', '.join(names)}"
    return str(action)


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
