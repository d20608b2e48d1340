"""What has run on the state there is, stable or not: a new topology has to fit what each of these revisions may have written.

A plan is marked before the first pod of its revision may start. A marked plan is kept when its revision is not, until the plan of
the stable revision says all that it says; a reset, which throws the state away, takes the marks away as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.plan.diff import diff_plans
from millrace.plan.model import TopologyPlan
from millrace_operator.children.config_maps import plan_config_map
from millrace_operator.children.naming import STARTED_ANNOTATION
from millrace_operator.model import Apply, AppRevision, Desired
from millrace_operator.reconcile import retained
from millrace_operator.reconcile.applying import stamped
from millrace_operator.reconcile.turn import Turn
from millrace_operator.reconcile.view import View


def mark_started(turn: Turn, revision: str, replicas: int) -> None:
    """Note that pods of a revision may start from now on.

    Args:
        turn: The turn.
        revision: The revision.
        replicas: How many pods of it there are to be; with none it is only marked if there are pods already.
    """
    text = turn.view.plan_text(revision)
    if text is None or not (replicas or turn.view.pods):
        return
    item = _plan_config_map(turn.desired, revision, text)
    item["metadata"]["annotations"] = {STARTED_ANNOTATION: _mark(turn.view, revision) or f"{turn.now:.0f}"}
    turn.apply(item)


def has_started(turn: Turn, revision: str | None) -> bool:
    """Return whether pods of a revision may have written state."""
    return revision is not None and revision in _started(turn)


def obstacles(turn: Turn, revision: str, plan: TopologyPlan) -> Sequence[str]:
    """Return why a revision cannot go on from the state there is, line by line.

    What runs, and what ran well last, is not to be left behind or misread. What earlier revisions have left is only not to be
    misread. The stable revision itself is let through: a failed upgrade goes back to it as well.

    Args:
        turn: The turn.
        revision: The revision.
        plan: Its plan.
    """
    stable = retained.stable_revision(turn)
    if revision == stable:
        return ()
    started = _started(turn)
    current = started.keys() & {stable, turn.view.running_revision} or {
        max(started, key=started.__getitem__, default="")
    }
    lines: dict[str, str] = {}
    for old in sorted(started, key=lambda item: (item not in current, item)):
        known = turn.view.plan(old)
        if known is None or old == revision:
            continue
        for reason in diff_plans(known, plan).reasons:
            if reason.needs_reset and (old in current or not reason.leaves_behind):
                lines.setdefault(str(reason), old)
    return tuple(line if old in current else f"{line} (revision {old} ran before)" for line, old in lines.items())


def is_worth_keeping(turn: Turn, revision: str) -> bool:
    """Return whether a plan tells of state that the plan of the stable revision does not tell of."""
    if _mark(turn.view, revision) is None:
        return False
    old, stable = turn.view.plan(revision), turn.view.plan(turn.stable)
    return old is not None and (stable is None or any(item.needs_reset for item in diff_plans(old, stable).reasons))


def forgotten(app: Desired, view: View) -> Sequence[Apply]:
    """Return what takes all marks away, for a reset that has thrown the state away.

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


def _started(turn: Turn) -> dict[str, float]:
    """Return the revisions of which pods may have written state, with since when as far as that is known."""
    marks = {revision: _mark(turn.view, revision) for revision in turn.view.revisions()}
    started = {revision: float(mark) for revision, mark in marks.items() if mark is not None}
    present = {turn.stable, *(pod.revision for pod in turn.view.pods.values())}
    return dict.fromkeys(filter(None, present), 0.0) | started


def _plan_config_map(app: Desired, revision: str, text: str) -> dict[str, Any]:
    assert app.spec is not None
    return plan_config_map(AppRevision(app.namespace, app.name, revision, app.spec), text)


def _mark(view: View, revision: str) -> str | None:
    kept = view.plan_config_map(revision)
    return None if kept is None else (kept["metadata"].get("annotations") or {}).get(STARTED_ANNOTATION)
