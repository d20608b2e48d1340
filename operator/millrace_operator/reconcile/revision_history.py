"""Which revisions have run on the existing state, stable or not: a new topology has to fit what each of them may have written.

A plan is marked before the first pod of its revision may start. A marked plan is kept even when its revision is not, until the
plan of the stable revision covers everything in it; a reset, which discards the state, removes the marks as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.plan.diff import diff_plans
from millrace.plan.topology_plan import TopologyPlan
from millrace_operator.children import naming
from millrace_operator.children.config_maps import plan_config_map
from millrace_operator.children.naming import STARTED_ANNOTATION
from millrace_operator.model import Apply, AppRevision, DesiredApp, Json
from millrace_operator.reconcile import retained
from millrace_operator.reconcile.children_view import ChildrenView
from millrace_operator.reconcile.context import ReconcileContext, Target
from millrace_operator.reconcile.drift import stamped
from millrace_operator.reconcile.revisions import revision_of


def mark_started(context: ReconcileContext, revision: str, replicas: int) -> None:
    """Record that pods of a revision may start from now on.

    Args:
        context: What this pass works on.
        revision: The revision.
        replicas: How many pods of it there should be; if none, it is only marked if there are pods already.
    """
    text = context.view.plan_text(revision)
    if text is None or not (replicas or context.view.pods):
        return
    item = _plan_config_map(context.desired, revision, text)
    item["metadata"]["annotations"] = {STARTED_ANNOTATION: _mark(context.view, revision) or f"{context.now:.0f}"}
    context.apply(item)


def obstacles(context: ReconcileContext, revision: str, plan: TopologyPlan) -> Sequence[str]:
    """Return why a revision cannot continue from the existing state, line by line.

    State of the running and of the stable revision must neither be left behind nor misread. State of earlier revisions must only
    not be misread. The stable revision itself is always allowed: a failed upgrade goes back to it as well.

    Args:
        context: What this pass works on.
        revision: The revision.
        plan: Its plan.
    """
    stable = retained.stable_revision(context)
    if revision == stable:
        return ()
    since = started(context)
    current = since.keys() & {stable, context.view.running_revision} or {max(since, key=since.__getitem__, default="")}
    lines: dict[str, str] = {}
    for old in sorted(since, key=lambda item: (item not in current, item)):
        known = context.view.plan(old)
        if known is None or old == revision:
            continue
        for reason in diff_plans(known, plan).reasons:
            if reason.needs_reset and (old in current or not reason.leaves_behind):
                lines.setdefault(str(reason), old)
    return tuple(line if old in current else f"{line} (revision {old} ran before)" for line, old in lines.items())


def forgotten(app: DesiredApp, view: ChildrenView) -> Sequence[Apply]:
    """Return the actions that remove all marks, for a reset that has discarded the state.

    Args:
        app: The application, whose spec can be read.
        view: Its children.
    """
    marked = [revision for revision in sorted(view.revisions()) if _mark(view, revision) is not None]
    return [
        Apply(stamped(_plan_config_map(app, revision, text), app.uid), kept["metadata"]["uid"])
        for revision in marked
        if (kept := view.plan_config_map(revision)) is not None and (text := view.plan_text(revision)) is not None
    ]


def started(context: ReconcileContext) -> dict[str, float]:
    """Return the revisions whose pods may have written state, with the time since when, as far as known."""
    marks = {revision: _mark(context.view, revision) for revision in context.view.revisions()}
    marked = {revision: float(mark) for revision, mark in marks.items() if mark is not None}
    present = {context.stable, *(pod.revision for pod in context.view.pods.values())}
    return dict.fromkeys(filter(None, present), 0.0) | marked


def _plan_config_map(app: DesiredApp, revision: str, text: str) -> Json:
    assert app.spec is not None
    return plan_config_map(AppRevision(app.namespace, app.name, revision, app.spec), text)


def _mark(view: ChildrenView, revision: str) -> str | None:
    kept = view.plan_config_map(revision)
    return None if kept is None else (kept["metadata"].get("annotations") or {}).get(STARTED_ANNOTATION)


def collect_garbage(context: ReconcileContext, target: Target | None, stable: str | None) -> None:
    """Delete what is left of revisions that are not running, wanted, or a rollback target, except plans that describe state."""
    name = context.desired.name
    used = {
        revision_of(context.spec),
        target and target.revision,
        stable,
        context.status.stable_revision,
        context.view.running_revision,
    }
    used |= {pod.revision for pod in context.view.pods.values()}
    for key in sorted(context.view.objects):
        if key.kind == "Job" and key.name not in {naming.plan_job(name, revision) for revision in used if revision}:
            context.delete(key.kind, key.name)
    kept = context.view.plan(stable)
    for revision in sorted(context.view.revisions() - used):
        old = None if _mark(context.view, revision) is None else context.view.plan(revision)
        # Does it describe state that the plan of the stable revision does not?
        if old is None or (kept is not None and not any(item.needs_reset for item in diff_plans(old, kept).reasons)):
            context.delete("ConfigMap", naming.plan_config_map(name, revision))
        context.delete("ConfigMap", naming.revision_config_map(name, revision))
