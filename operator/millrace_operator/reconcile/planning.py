"""A revision's plan: the Job that finds it out, the ConfigMap that keeps it, and what is said when that fails.

A Job that failed is left where it is, so that it is not tried again and again; it goes when the spec changes, if only the
restartNonce, or when the user deletes it. So does the truth about it: nothing else needs to remember the failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millrace.manifest import StreamsAppSpec
from millrace.plan.model import TopologyPlan
from millrace_operator.children import naming
from millrace_operator.children.config_maps import plan_config_map
from millrace_operator.children.naming import COMPONENT_LABEL, REVISION_LABEL
from millrace_operator.children.plan_job import plan_job
from millrace_operator.model import AppRevision, Object
from millrace_operator.reconcile.reasons import Reason
from millrace_operator.reconcile.turn import Turn
from millrace_operator.reconcile.view import Trouble, is_terminating, read_plan, trouble_of

_LAST_LINES = 12
_LONGEST = 2000
_THEN = " Then set another restartNonce, which tries again."
_AGAIN = "To try again unchanged, set another restartNonce."


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known of a revision's plan: itself, or why it is not there."""

    plan: TopologyPlan | None = None
    failure: Reason | None = None
    message: str = ""


def planned(turn: Turn, revision: str, spec: StreamsAppSpec) -> Planned:
    """Return a revision's plan, or do the next step to get it.

    Args:
        turn: The turn.
        revision: The revision.
        spec: Its spec.
    """
    app = AppRevision(turn.desired.namespace, turn.desired.name, revision, spec)
    name = naming.plan_job(turn.desired.name, revision)
    job = turn.view.get("Job", name)
    plan = turn.view.plan(revision)
    if plan is not None:
        turn.delete("Job", name)
        return Planned(plan)
    if job is None or is_terminating(job):
        if job is None:
            turn.apply(plan_job(app))
        turn.look_after(5)
        return Planned(message=f"Job {name} asks image {spec.image} for the topology's plan.")
    return _from_job(turn, app, job)


def _from_job(turn: Turn, app: AppRevision, job: Object) -> Planned:
    name = job["metadata"]["name"]
    image = app.spec.image
    output = turn.observed.outputs.get(name)
    if _has(job, "Complete"):
        if output is None:
            turn.look_after(2)
            return Planned(message=f"Job {name} has finished; its output is being read.")
        if not output.strip():
            why = f"Job {name} printed nothing, or its log was lost. {_AGAIN}"
            return Planned(failure=Reason.PLAN_FAILED, message=why)
        if read_plan(output) is None:
            why = f"Job {name} printed something that is no plan: is another version of Millrace in {image}? {_tail(output)}"
            return Planned(failure=Reason.PLAN_FAILED, message=why)
        turn.apply(plan_config_map(app, output))
        if not turn.is_taken("ConfigMap", naming.plan_config_map(turn.desired.name, app.revision)):
            turn.look_after(1)
        return Planned(message=f"The plan that Job {name} printed is being kept.")
    if _has(job, "Failed"):
        trouble = _image_trouble(turn, app.revision) or _told_before(turn, job)
        if trouble is not None:
            return Planned(failure=Reason.PLAN_IMAGE_UNAVAILABLE, message=f"{trouble}{_THEN}")
        why = _tail(output) if output else _condition_message(job)
        return Planned(failure=Reason.PLAN_FAILED, message=f"Job {name} with image {image} failed: {why}\n{_AGAIN}")
    turn.look_after(5)
    trouble = _image_trouble(turn, app.revision)
    if trouble is not None:
        return Planned(failure=Reason.PLAN_IMAGE_UNAVAILABLE, message=trouble)
    return Planned(
        message=f"Job {name} asks image {image} for the topology's plan.{_other_trouble(turn, app.revision)}"
    )


def _has(job: Object, kind: str) -> bool:
    return any(
        item["type"] == kind and item["status"] == "True" for item in job.get("status", {}).get("conditions", ())
    )


def _condition_message(job: Object) -> str:
    for item in job.get("status", {}).get("conditions", ()):
        if item["type"] == "Failed":
            return f"{item.get('reason', '')}: {item.get('message', '')}".strip(": ") + "."
    return "Kubernetes does not say why."


def _image_trouble(turn: Turn, revision: str) -> str | None:
    for pod, trouble in _troubles(turn, revision):
        if trouble.is_image:
            image = pod["spec"]["containers"][0]["image"]
            return f"Image {image} cannot be pulled. Correct image or imagePullSecrets, or make the image available."
    return None


def _other_trouble(turn: Turn, revision: str) -> str:
    return "".join(f" Pod {pod['metadata']['name']}: {trouble.shown}" for pod, trouble in _troubles(turn, revision))


def _troubles(turn: Turn, revision: str) -> Iterator[tuple[Object, Trouble]]:
    for key, item in sorted(turn.view.objects.items()):
        labels = item["metadata"].get("labels", {})
        if key.kind == "Pod" and labels.get(COMPONENT_LABEL) == "plan" and labels.get(REVISION_LABEL) == revision:
            trouble = trouble_of(item)
            if trouble is not None:
                yield item, trouble


def _told_before(turn: Turn, job: Object) -> str | None:
    """Return what was told of an image while a Job waited for it: when its time is over, its pod is gone."""
    stalled = turn.condition("Stalled")
    deadline = "DeadlineExceeded" in _condition_message(job)
    if deadline and stalled is not None and stalled.reason == Reason.PLAN_IMAGE_UNAVAILABLE:
        return stalled.message.partition(_THEN)[0]
    return None


def _tail(output: str) -> str:
    """Return the last lines of an output."""
    lines = [line.rstrip() for line in output.strip().splitlines() if line.strip()]
    return "\n".join(lines[-_LAST_LINES:])[-_LONGEST:]
