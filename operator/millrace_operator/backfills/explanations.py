"""What a backfill tells its user when something is in its way, and what to do about it."""

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
    "The application stays stopped until this StreamsBackfill is deleted. Before that, create another one that succeeds; or "
    "suspend the application (spec.state), delete this one, and create a StreamsReset. If it was deleted before it ended, it "
    "goes by itself when another one has succeeded or the application is suspended. Once the group has had no members for "
    "offsets.retention.minutes (7 days by default), brokers forget the mark in its offsets: then nothing but this "
    "StreamsBackfill keeps the application from restoring half a state."
)
HALF_PUBLISHED: Final = (
    f"Results were being published, so changelogs and offsets do not fit each other. {_UNTIL_IT_IS_DELETED}"
)
MAYBE_HALF_PUBLISHED: Final = (
    "Nobody knows whether results were being published, so changelogs and offsets may not fit each other. "
    f"{_UNTIL_IT_IS_DELETED}"
)
_IF_ITS_NODE_IS_LOST: Final = "If the node of a pod is gone for good, delete the pod by force."
LET_GO: Final = "It was deleted while the brokers did not say what it has published, so the application continues."
PARTS: Final = "Results may be published in part, so it is finished now."
MAYBE_PARTS: Final = (
    "Results may be published in part: the driver's log is gone. The brokers are asked once all pods have ended."
)
EVERYTHING: Final = "The brokers have all results of this backfill."
NOTHING: Final = "The brokers have no results of this backfill."
WHOLE: Final = "Results are published in one transaction, so there is all or nothing in the end."
WHOLE_OR_NOTHING: Final = (
    "All results were to be published in one transaction, so changelogs and offsets still belong together. The application "
    "continues from them."
)


def no_spark_operator(namespace: str) -> str:
    """Return what to do if the cluster serves no SparkApplications; kubeflow's chart watches one namespace unless told."""
    return (
        f"This cluster serves no SparkApplication ({' or '.join(SPARK_GROUPS.values())}). Install a Spark operator that watches "
        "this namespace: helm install spark-operator spark-operator --repo https://kubeflow.github.io/spark-operator "
        f"--namespace spark-operator --create-namespace --set 'spark.jobNamespaces={{{namespace}}}'"
    )


def unlisted(resource: str, namespace: str, problem: str, *, is_forbidden: bool) -> str:
    """Return why the operator cannot follow a Spark job, and which permission it is missing, if it is one.

    Args:
        resource: What cannot be listed, as roles name it.
        namespace: Where.
        problem: What the API server said.
        is_forbidden: Whether that is a missing permission.
    """
    remedy = f" {_let_role('list', resource, namespace)}" if is_forbidden else ""
    return f"The operator cannot list {resource}: {problem}.{remedy}"


def _let_role(verb: str, resource: str, namespace: str) -> str:
    return f"Let the operator's role {verb} {resource} in namespace {namespace}."


def obstacle_of(app: DesiredApp, claimants: Sequence[str], *, is_planned: bool) -> str | None:
    """Return what keeps an application from being stopped or computed; None if nothing does.

    Args:
        app: The application.
        claimants: Others with the same group and internal topics.
        is_planned: Whether the plan of its newest revision is known.
    """
    if app.spec is None:
        return f"The spec of StreamsApp {app.name} is not valid: correct it."
    if app.annotations.get(PAUSE_ANNOTATION, "").lower() == "true":
        return f"The annotation {PAUSE_ANNOTATION} of StreamsApp {app.name} keeps it as it is: remove it."
    if claimants:
        named = ", ".join(claimants)
        return (
            f"StreamsApp {named} has the same applicationId, so the backfill would affect it as well: give one of them another, "
            "or delete it."
        )
    if not is_planned:
        return (
            f"The topology of StreamsApp {app.name}'s newest revision is not known yet, or that revision is not the one that "
            "pods are to run: see its conditions."
        )
    return None


def create_another_after(obstacle: str) -> str:
    """Return what to do about an obstacle that has lasted too long."""
    return f"{obstacle.rstrip('.')}. Once this is solved, create another StreamsBackfill."


def still_known(app: str, backfill: str) -> str:
    """Return why a backfill waits whose application has been stopped for an earlier one of its name, and may just be starting."""
    return (
        f"StreamsApp {app} has not noticed yet that an earlier StreamsBackfill {backfill} is gone. Its conditions say what keeps "
        "it from that: remove it."
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
        return f"StreamsApp {app.name} may still get pods: its StatefulSet is not at rest yet."
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
    """Return why a backfill does not end, and what to do if the brokers will never answer.

    Args:
        problem: Why they do not.
        is_heard: Whether the job has said that it publishes in parts.
        deleted: Whether the backfill was deleted before it said so.
    """
    what = (
        f"The brokers do not say what was published: {problem.rstrip('.')}. They are asked until they do, and the application "
        "stays stopped. If they never will, suspend the application (spec.state)"
    )
    if deleted:
        end = "is finished when the brokers answer, and goes when" if is_heard else "goes when the brokers answer or"
        return (
            f"{what} and create a StreamsReset or another StreamsBackfill. This StreamsBackfill, which was deleted before, {end} "
            "the application is suspended."
        )
    end = "stays stopped until another one has succeeded" if is_heard else "continues, perhaps from half a state"
    return (
        f"{what}, delete this StreamsBackfill, and create a StreamsReset or another StreamsBackfill. If it is only deleted, the "
        f"application {end}."
    )


def unreadable_backfill(desired: DesiredBackfill) -> str:
    """Return why a backfill that has begun is left alone: after a rollback, this operator is older than the one that began it."""
    part = "phase in the status"
    if desired.spec is None:
        part = f"spec ({'; '.join(desired.problems) or 'no reason is given'})"
    way_out = "" if desired.deleting else ", or delete it: then it ends with its job"
    return f"This operator cannot read the {part}: use the version of the operator that began this StreamsBackfill{way_out}."


def unreadable_app(app: str) -> str:
    """Return why no attempt is started: the application's spec is not valid, or this operator is older than what it needs."""
    return (
        f"The spec of StreamsApp {app} cannot be read, so the next attempt waits: correct the spec, or use the version of the "
        "operator that began this StreamsBackfill."
    )


def spec_changed(app: str) -> str:
    """Return why a backfill ends that has not published yet."""
    return f"The spec of StreamsApp {app} has changed, so the result would not fit it. Create another StreamsBackfill."


def first_spec_lost(app: str, config_map: str, attempt: int) -> str:
    """Return that an attempt runs another spec than the first, which is not known any more."""
    return (
        f"Attempt {attempt} runs StreamsApp {app} as it is now: its spec has changed, and ConfigMap {config_map} with that of "
        "the first attempt is gone. If the topology has changed too, the attempt is refused."
    )


def still_there(applications: Sequence[str], pods: Sequence[str]) -> str:
    """Return what a backfill waits for that stops, and what to do if that does not end.

    Args:
        applications: The SparkApplications that have not ended.
        pods: The pods that may still write.
    """
    if pods:
        return f"Still there: {listed(pods)}. {_IF_ITS_NODE_IS_LOST}"
    return f"SparkApplication {listed(applications)} has not ended: check that its Spark operator runs."


def job_of_unreadable(running: Sequence[str], pods: Sequence[str], applications: Sequence[str]) -> str:
    """Return what a deleted backfill waits for whose spec cannot be read, and how its user can end that.

    Args:
        running: The SparkApplications that have not ended.
        pods: The pods that may still write.
        applications: The SparkApplications of all attempts.
    """
    end = f" To end the job, delete SparkApplication {listed(applications)}." if applications else ""
    return f"{still_there(running, pods)}{end}"


def unread_log(pod: str, namespace: str, problem: str, *, is_forbidden: bool) -> str:
    """Return why the log of a driver cannot be read, and what to do if it never will be.

    Args:
        pod: The driver's pod.
        namespace: Where.
        problem: What the API server said.
        is_forbidden: Whether that is a missing permission.
    """
    remedy = _let_role("get", "pods/log", namespace) if is_forbidden else _IF_ITS_NODE_IS_LOST
    return f"The log of pod {pod} cannot be read: {problem.rstrip('.')}. {remedy}"


def strangers(app: str, members: Sequence[ActiveMember]) -> str:
    """Return what to do about members of the group that are not the application's pods."""
    return (
        f"Members of the group are not pods of StreamsApp {app}: {listed(members)}. "
        "Stop them, then create another StreamsBackfill."
    )


def not_started(namespace: str, application: str, driver: SparkPod | None, minutes: float) -> str:
    """Return why a SparkApplication has not started: nobody looks at it, or its driver does not run.

    Args:
        namespace: Its namespace.
        application: Its name.
        driver: Its driver; None if there is none.
        minutes: How long that has been so.
    """
    if driver is None:
        return (
            f"No Spark operator has started SparkApplication {application} within {minutes:.0f} minutes. Check that it runs and "
            f"watches namespace {namespace}."
        )
    why = driver.trouble or f"see kubectl describe pod {driver.name} --namespace {namespace}"
    return f"Pod {driver.name} of SparkApplication {application} did not start within {minutes:.0f} minutes: {why}"
