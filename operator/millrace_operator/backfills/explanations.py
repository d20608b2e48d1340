"""The messages of a backfill: what is holding it up, and what its user can do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.plan.reset import ActiveMember
from millrace_operator.backfills.observed_backfill import ObservedBackfill, SparkPod
from millrace_operator.backfills.spark_application import SPARK_GROUPS
from millrace_operator.children.naming import PAUSE_ANNOTATION
from millrace_operator.model import DesiredApp, DesiredBackfill
from millrace_operator.reconcile.children_view import ChildrenView
from millrace_operator.reconcile.consumer_group import is_member_of, known_uids, listed

_UNTIL_IT_IS_DELETED: Final = (
    "The application stays stopped until this StreamsBackfill is deleted. Repair the state before that: create another "
    "StreamsBackfill that succeeds; or suspend the application (spec.state), delete this one, and create a StreamsReset. If this "
    "one was deleted before it ended, it disappears once another one has succeeded or the application is suspended. Once the "
    "group has had no members for offsets.retention.minutes (7 days by default), the brokers forget the mark in its offsets: "
    "then only this StreamsBackfill keeps the application from restoring an inconsistent state."
)
HALF_PUBLISHED: Final = (
    f"Publishing was interrupted, so changelogs and offsets are inconsistent. {_UNTIL_IT_IS_DELETED}"
)
MAYBE_HALF_PUBLISHED: Final = (
    "It is not known whether publishing had begun, so changelogs and offsets may be inconsistent. "
    f"{_UNTIL_IT_IS_DELETED}"
)
_IF_ITS_NODE_IS_LOST: Final = "If a pod's node is gone for good, force-delete the pod."
LET_GO: Final = "It was deleted before the brokers could say what it had published, so the application continues."
PARTS: Final = "Some results may be published already, so the backfill is completed."
MAYBE_PARTS: Final = (
    "Some results may be published already: the driver's log is gone. The brokers are asked once all pods have ended."
)
EVERYTHING: Final = "The brokers have all results of this backfill."
NOTHING: Final = "The brokers have no results of this backfill."
WHOLE: Final = "Results are published in one transaction: either all of them become visible, or none."
WHOLE_OR_NOTHING: Final = (
    "All results were to be published in one transaction, so changelogs and offsets are still consistent, and the application "
    "continues from them."
)


def no_spark_operator(namespace: str) -> str:
    """Return what to do if the cluster serves no SparkApplications; by default, kubeflow's chart watches only one namespace."""
    return (
        f"This cluster serves no SparkApplication ({' or '.join(SPARK_GROUPS.values())}). Install a Spark operator that watches "
        "this namespace: helm install spark-operator spark-operator --repo https://kubeflow.github.io/spark-operator "
        f"--namespace spark-operator --create-namespace --set 'spark.jobNamespaces={{{namespace}}}'"
    )


def unlisted(resource: str, namespace: str, problem: str, *, is_forbidden: bool) -> str:
    """Return why the operator cannot follow a Spark job, and which permission it lacks, if that is the reason.

    Args:
        resource: What cannot be listed, as roles name it.
        namespace: Where.
        problem: What the API server said.
        is_forbidden: Whether it is a missing permission.
    """
    remedy = f" {_let_role('list', resource, namespace)}" if is_forbidden else ""
    return f"The operator cannot list {resource}: {problem}.{remedy}"


def _let_role(verb: str, resource: str, namespace: str) -> str:
    return f"Let the operator's role {verb} {resource} in namespace {namespace}."


def obstacle_of(app: DesiredApp, claimants: Sequence[str], *, is_planned: bool) -> str | None:
    """Return why an application cannot be stopped, or its state computed; None if it can.

    Args:
        app: The application.
        claimants: Others with the same group and internal topics.
        is_planned: Whether the plan of its newest revision is known.
    """
    if app.spec is None:
        return f"The spec of StreamsApp {app.name} is not valid: correct it."
    if app.annotations.get(PAUSE_ANNOTATION, "").lower() == "true":
        return f"StreamsApp {app.name} is paused by the annotation {PAUSE_ANNOTATION}: remove it."
    if claimants:
        named = ", ".join(claimants)
        return (
            f"StreamsApp {named} has the same applicationId, so the backfill would affect it as well: give one of them "
            "another one, or delete it."
        )
    if not is_planned:
        return (
            f"The topology of the newest revision of StreamsApp {app.name} is not known yet, or its pods run another revision: "
            "see its conditions."
        )
    return None


def create_another_after(obstacle: str) -> str:
    """Return the message of a backfill that an obstacle has held up for too long."""
    return f"{obstacle.rstrip('.')}. Once this is resolved, create another StreamsBackfill."


def still_known(app: str, backfill: str) -> str:
    """Return why a backfill waits: its application was stopped for an earlier one of its name, and may be starting right now."""
    return (
        f"StreamsApp {app} has not noticed yet that an earlier StreamsBackfill {backfill} is gone. Its conditions show what is "
        "holding it up: resolve that first."
    )


def activity_of(backfill: str, app: DesiredApp, view: ChildrenView, observed: ObservedBackfill) -> str | None:
    """Return why an application may still write; None if it has stopped and nobody is in its group.

    Args:
        backfill: The backfill that keeps it stopped.
        app: The application.
        view: Its children.
        observed: What was seen of its group.
    """
    if app.status is None or app.status.backfill != backfill:
        paused = app.annotations.get(PAUSE_ANNOTATION, "").lower() == "true"
        hint = f": remove the annotation {PAUSE_ANNOTATION}" if paused else ""
        return f"StreamsApp {app.name} is being stopped{hint}."
    if view.pods:
        return f"Pods of StreamsApp {app.name} are stopping: {listed([pod.name for pod in view.pods.values()])}."
    if view.may_get_pods:
        return f"StreamsApp {app.name} may still get pods: its StatefulSet has not settled yet."
    if observed.members is None:
        return observed.problem or "The brokers have not been asked yet."
    if foreign := members_of(app, view, observed, own=False):
        return strangers(app.name, foreign)
    if own := members_of(app, view, observed, own=True):
        return f"Members are leaving the group: {listed(own)}."
    return None


def members_of(app: DesiredApp, view: ChildrenView, observed: ObservedBackfill, *, own: bool) -> list[ActiveMember]:
    """Return the members of an application's group that are its pods', or all others."""
    known = known_uids(app, view)
    return [
        item
        for item in observed.members or ()
        if is_member_of(app.name, known, item.client_id, item.instance_id) is own
    ]


def unanswered(problem: str, *, is_heard: bool, deleted: bool) -> str:
    """Return why a backfill does not end yet, and what to do if the brokers will never answer.

    Args:
        problem: Why they do not.
        is_heard: Whether the job has said that it publishes in parts.
        deleted: Whether the backfill was deleted before it said so.
    """
    what = (
        f"It is not known what was published: {problem.rstrip('.')}. The operator keeps asking the brokers, and the application "
        "stays stopped. If they will never answer, suspend the application (spec.state)"
    )
    if deleted:
        end = (
            "is completed once the brokers answer, and disappears once"
            if is_heard
            else "disappears once the brokers answer or"
        )
        return (
            f"{what} and create a StreamsReset or another StreamsBackfill. This StreamsBackfill was deleted already: it {end} "
            "the application is suspended."
        )
    end = (
        "stays stopped until another one has succeeded" if is_heard else "continues, perhaps from an inconsistent state"
    )
    return (
        f"{what}, delete this StreamsBackfill, and create a StreamsReset or another StreamsBackfill. If you only delete it, the "
        f"application {end}."
    )


def unreadable_backfill(desired: DesiredBackfill) -> str:
    """Return why a backfill that has begun is left alone: after a rollback, this operator is older than the one that began it."""
    part = "phase in the status"
    if desired.spec is None:
        part = f"spec ({'; '.join(desired.problems) or 'no reason is given'})"
    way_out = "" if desired.deleting else ", or delete it, and it ends with its job"
    return f"This operator cannot read the {part}: use the version of the operator that began this StreamsBackfill{way_out}."


def unreadable_app(app: str) -> str:
    """Return why no attempt is started: the application's spec is not valid, or this operator is too old for it."""
    return (
        f"The spec of StreamsApp {app} cannot be read, so the next attempt waits: correct the spec, or use the version of the "
        "operator that began this StreamsBackfill."
    )


def spec_changed(app: str) -> str:
    """Return why a backfill that has not published yet ends."""
    return (
        f"The spec of StreamsApp {app} has changed, so the result would no longer fit. Create another StreamsBackfill."
    )


def first_spec_lost(app: str, config_map: str, attempt: int) -> str:
    """Return that an attempt runs another spec than the first attempt, because that one is lost."""
    return (
        f"Attempt {attempt} runs the changed spec of StreamsApp {app}, because ConfigMap {config_map} with the first attempt's "
        "spec is gone. If the topology has changed too, the attempt is refused."
    )


def still_there(applications: Sequence[str], pods: Sequence[str]) -> str:
    """Return what a backfill that stops waits for, and what to do if it waits in vain.

    Args:
        applications: The SparkApplications that have not ended.
        pods: The pods that may still write.
    """
    if pods:
        return f"Pods that have not ended yet: {listed(pods)}. {_IF_ITS_NODE_IS_LOST}"
    return f"SparkApplication {listed(applications)} has not ended: check that its Spark operator is running."


def job_of_unreadable(running: Sequence[str], pods: Sequence[str], applications: Sequence[str]) -> str:
    """Return what a deleted backfill with an unreadable spec waits for, and how its user can end the job.

    Args:
        running: The SparkApplications that have not ended.
        pods: The pods that may still write.
        applications: The SparkApplications of all attempts.
    """
    end = f" To end the job, delete SparkApplication {listed(applications)}." if applications else ""
    return f"{still_there(running, pods)}{end}"


def unread_log(pod: str, namespace: str, problem: str, *, is_forbidden: bool) -> str:
    """Return why the log of a driver cannot be read, and what to do if that does not change.

    Args:
        pod: The driver's pod.
        namespace: Where.
        problem: What the API server said.
        is_forbidden: Whether it is a missing permission.
    """
    remedy = _let_role("get", "pods/log", namespace) if is_forbidden else _IF_ITS_NODE_IS_LOST
    return f"The log of pod {pod} cannot be read: {problem.rstrip('.')}. {remedy}"


def strangers(app: str, members: Sequence[ActiveMember]) -> str:
    """Return what to do about members of the group that are not the application's pods."""
    return (
        f"The group has members that are not pods of StreamsApp {app}: {listed(members)}. "
        "Stop them, then create another StreamsBackfill."
    )


def not_started(namespace: str, application: str, driver: SparkPod | None, minutes: float) -> str:
    """Return why a SparkApplication has not started: no Spark operator handles it, or its driver does not run.

    Args:
        namespace: Its namespace.
        application: Its name.
        driver: Its driver; None if there is none.
        minutes: For how long it has been waited for.
    """
    if driver is None:
        return (
            f"No Spark operator has started SparkApplication {application} within {minutes:.0f} minutes. Check that one is "
            f"running and watches namespace {namespace}."
        )
    why = driver.trouble or f"see kubectl describe pod {driver.name} --namespace {namespace}"
    return f"Pod {driver.name} of SparkApplication {application} did not start within {minutes:.0f} minutes: {why}"
