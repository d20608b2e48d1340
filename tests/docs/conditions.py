"""Generates `docs/conditions.md`, the reference of conditions, from the operator's table: `python -m tests.docs.conditions`."""

from __future__ import annotations

import sys
from typing import Final, get_args

from tests.docs.inventory import ROOT

from millrace.manifest.streamsapp_status import ConditionType
from millrace_operator.reconcile.condition_reason import ConditionReason

PAGE: Final = ROOT / "docs" / "conditions.md"

_HEAD: Final = """# Conditions

The conditions of a `StreamsApp`, each with its reasons and what to do. `kubectl describe streamsapp NAME` and
`millrace explain NAME` show them with a message that names the pods, topics and numbers involved. Each reason belongs to only one
condition, so you can look it up by its name. This page is generated from the operator's own table by
`python -m tests.docs.conditions`.

A condition is `Unknown` while the operator cannot tell (the brokers do not answer, no pod has reported).
"""

ABOUT: Final[dict[ConditionType, str]] = {
    "Ready": "`True` when every replica runs all its assigned tasks, or when no replicas are wanted and none are left. "
    "It is about the running pods: while `Stalled` holds back a new manifest, the old pods may well be ready.",
    "Reconciling": "`True` while the operator is changing something, or waiting for a change to take effect.",
    "Stalled": "`True` when the operator cannot continue until someone acts. Running pods keep running. "
    "If only a supporting object is refused (such as a PodDisruptionBudget), pods are started, rolled and scaled without it.",
    "BrokersReachable": "`True` when the brokers answer to the application's own credentials.",
    "TopicsReady": "`True` when all topics exist and are as the topology needs them.",
    "TopologyCompatible": "`True` when the desired topology can continue from the existing state.",
    "TopologyShared": "`True` when no pod refuses tasks because another member of the group, its leader, runs another topology.",
    "StateRestored": "`True` when no task is restoring its state.",
    "StateReplicated": "`True` when every task with state could go on at once on another pod, from a standby's copy; "
    "or when no copies are wanted.",
    "ScalingAllowed": "`True` when the number of replicas may change; `False` also pauses autoscaling.",
    "StorageHealthy": "`True` when volumes are as specified and have enough space.",
    "RolledBack": "`True` when the desired revision failed and the previous one was restored.",
    "PodsCurrent": "`True` when all pods of the desired revision are as this version of the operator builds them.",
    "ReconciliationPaused": "`True` while an annotation keeps the operator from changing anything.",
    "ApplicationIdUnique": "`True` when nobody else has a better claim to the application id, and so to the group and topics.",
}
"""What the condition means if it is `True`."""


def render() -> str:
    """Return the page."""
    parts = [_HEAD]
    for condition in get_args(ConditionType):
        rows = [
            f"| `{reason}` | {reason.meaning} | {reason.remedy} |"
            for reason in ConditionReason
            if reason.condition == condition
        ]
        table = "\n".join(["| reason | meaning | what to do |", "|---|---|---|", *rows])
        parts.append(f"## {condition}\n\n{ABOUT[condition]}\n\n{table}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render())
    sys.stdout.write(f"Written: {PAGE.relative_to(ROOT)}\n")
