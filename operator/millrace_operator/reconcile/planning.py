"""A revision's plan: the Job that obtains it, the ConfigMap that stores it, and what is reported when that fails.

A failed Job is left in place, so that it is not tried again and again; it is deleted when the spec changes, if only the
restartNonce, or by the user. The Job itself records the failure: nothing else needs to remember it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millrace.manifest import StreamsAppSpec
from millrace.plan.topology_plan import TopologyPlan
from millrace_operator.children import naming
from millrace_operator.children.config_maps import plan_config_map
from millrace_operator.children.naming import COMPONENT_LABEL, REVISION_LABEL
from millrace_operator.children.plan_job import plan_job
from millrace_operator.model import AppRevision, Object, labels_of
from millrace_operator.reconcile.children_view import Trouble, is_terminating, read_plan, trouble_of
from millrace_operator.reconcile.condition_reason import ConditionReason
from millrace_operator.reconcile.context import ReconcileContext

_LAST_LINES = 12
_LONGEST = 2000
_THEN = " Then change restartNonce to try again."
_AGAIN = "To try again unchanged, change restartNonce."


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known of a revision's plan: the plan, or why there is none."""

    plan: TopologyPlan | None = None
    failure: ConditionReason | None = None
    message: str = ""


def planned(context: ReconcileContext, revision: str, spec: StreamsAppSpec) -> Planned:
    """Return a revision's plan, or take the next step to get it.

    Args:
        context: What this pass works on.
        revision: The revision.
        spec: Its spec.
    """
    app = AppRevision(context.desired.namespace, context.desired.name, revision, spec)
    name = naming.plan_job(context.desired.name, revision)
    job = context.view.get("Job", name)
    plan = context.view.plan(revision)
    if plan is not None:
        context.delete("Job", name)
        return Planned(plan)
    if job is None or is_terminating(job):
        if job is None:
            context.apply(plan_job(app))
        context.recheck_after(5)
        return Planned(message=f"Job {name} asks image {spec.image} for the topology's plan.")
    return _from_job(context, app, job)


def _from_job(context: ReconcileContext, app: AppRevision, job: Object) -> Planned:
    name = job["metadata"]["name"]
    image = app.spec.image
    output = context.observed.outputs.get(name)
    troubles = list(_troubles(context, app.revision))
    images = (pod["spec"]["containers"][0]["image"] for pod, trouble in troubles if trouble.is_image)
    no_image = None
    if (lacking := next(images, None)) is not None:
        no_image = f"Image {lacking} cannot be pulled. Correct image or imagePullSecrets, or make the image available."
    if _condition(job, "Complete") is not None:
        return _from_output(context, app, name, output)
    failed = _condition(job, "Failed")
    if failed is not None:
        why = f"{failed.get('reason', '')}: {failed.get('message', '')}".strip(": ") + "."
        stalled = context.condition("Stalled")
        was_reported = stalled is not None and stalled.reason == ConditionReason.PLAN_IMAGE_UNAVAILABLE
        if no_image is None and was_reported and stalled is not None and "DeadlineExceeded" in why:
            no_image = stalled.message.partition(_THEN)[0]  # the pod that showed it went when the Job's time was over
        if no_image is not None:
            return Planned(failure=ConditionReason.PLAN_IMAGE_UNAVAILABLE, message=f"{no_image}{_THEN}")
        why = _tail(output) if output else why
        return Planned(
            failure=ConditionReason.PLAN_FAILED, message=f"Job {name} with image {image} failed: {why}\n{_AGAIN}"
        )
    context.recheck_after(5)
    if no_image is not None:
        return Planned(failure=ConditionReason.PLAN_IMAGE_UNAVAILABLE, message=no_image)
    others = "".join(f" Pod {pod['metadata']['name']}: {trouble.shown}" for pod, trouble in troubles)
    return Planned(message=f"Job {name} asks image {image} for the topology's plan.{others}")


def _from_output(context: ReconcileContext, app: AppRevision, name: str, output: str | None) -> Planned:
    if output is None:
        context.recheck_after(2)
        return Planned(message=f"Job {name} has finished; its output is being read.")
    if not output.strip():
        why = f"Job {name} printed nothing, or its log was lost. {_AGAIN}"
        return Planned(failure=ConditionReason.PLAN_FAILED, message=why)
    if read_plan(output) is None:
        why = (
            f"Job {name} printed something that is not a plan: does {app.spec.image} contain another version of Millrace? "
            f"{_tail(output)}"
        )
        return Planned(failure=ConditionReason.PLAN_FAILED, message=why)
    context.apply(plan_config_map(app, output))
    if not context.is_taken("ConfigMap", naming.plan_config_map(context.desired.name, app.revision)):
        context.recheck_after(1)
    return Planned(message=f"The plan that Job {name} printed is being stored.")


def _condition(job: Object, kind: str) -> Object | None:
    """Return a condition of a Job if it is true."""
    conditions = job.get("status", {}).get("conditions", ())
    return next((item for item in conditions if item["type"] == kind and item["status"] == "True"), None)


def _troubles(context: ReconcileContext, revision: str) -> Iterator[tuple[Object, Trouble]]:
    for key, item in sorted(context.view.objects.items()):
        labels = labels_of(item)
        if key.kind == "Pod" and labels.get(COMPONENT_LABEL) == "plan" and labels.get(REVISION_LABEL) == revision:
            trouble = trouble_of(item)
            if trouble is not None:
                yield item, trouble


def _tail(output: str) -> str:
    """Return the last lines of an output."""
    lines = [line.rstrip() for line in output.strip().splitlines() if line.strip()]
    return "\n".join(lines[-_LAST_LINES:])[-_LONGEST:]
