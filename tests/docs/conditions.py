"""Makes `docs/conditions.md`, what each condition says, of the operator's table: `python -m tests.docs.conditions`."""

from __future__ import annotations

import sys
from typing import Final, get_args

from tests.docs.inventory import ROOT

from millrace.manifest.status import ConditionType
from millrace_operator.reconcile.reasons import REASONS

PAGE: Final = ROOT / "docs" / "conditions.md"

_HEAD: Final = """# Conditions

What the conditions of a `StreamsApp` say, each with its reasons and what to do. `kubectl describe streamsapp NAME` and
`millrace explain NAME` show them with a message that names the pods, topics and numbers of the case. A reason belongs to one
condition only, so it can be looked up here by itself. This page is generated from the operator's own table by
`python -m tests.docs.conditions`.

While something cannot be told (the brokers do not answer, no pod has reported), a condition is `Unknown`.
"""

ABOUT: Final[dict[ConditionType, str]] = {
    "Ready": "`True` when every replica runs all the tasks that are assigned to it, or none is wanted and none is left. "
    "It is about what runs: while `Stalled` holds a new manifest back, what ran before may well be ready.",
    "Reconciling": "`True` while the operator changes something, or waits for what it has changed.",
    "Stalled": "`True` when the operator cannot go on until someone does something. What runs, runs on. "
    "Where only a supporting child is refused (a PodDisruptionBudget, say), pods are started, rolled and scaled without it.",
    "BrokersReachable": "`True` when the brokers answer, asked with the application's own credentials.",
    "TopicsReady": "`True` when all topics exist and are as the topology needs them.",
    "TopologyCompatible": "`True` when the wanted topology can go on from the state of the running one.",
    "StateRestored": "`True` when no task is reading its changelog.",
    "ScalingAllowed": "`True` when nothing speaks against another number of replicas; `False` also holds autoscaling back.",
    "StorageHealthy": "`True` when volumes are as wanted and have room.",
    "RolledBack": "`True` when the wanted revision failed and the one before was brought back.",
    "PodsCurrent": "`True` when all pods of the wanted revision are as this version of the operator builds them.",
    "ReconciliationPaused": "`True` while an annotation keeps the operator from changing anything.",
    "ApplicationIdUnique": "`True` when nobody else has a better right to the application id, and so to the group and topics.",
}
"""What it means that a condition is `True`."""


def render() -> str:
    """Return the page."""
    parts = [_HEAD]
    for condition in get_args(ConditionType):
        rows = [
            f"| `{reason}` | {explanation.meaning} | {explanation.remedy} |"
            for reason, explanation in REASONS.items()
            if explanation.condition == condition
        ]
        table = "\n".join(["| reason | meaning | what to do |", "|---|---|---|", *rows])
        parts.append(f"## {condition}\n\n{ABOUT[condition]}\n\n{table}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render())
    sys.stdout.write(f"Written: {PAGE.relative_to(ROOT)}\n")
