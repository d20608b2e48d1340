"""Nodes: what their pods are told about them, and which of them are lost with all that ran there."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from millrace_operator.model import TellNodeLabels
from millrace_operator.reconcile.context import ReconcileContext

_LOOK_AGAIN_S: Final = 2.0


def tell_labels(context: ReconcileContext) -> None:
    """Tell new pods which of the labels that they ask for their nodes have; they wait for that before they join the group."""
    for _, pod in sorted(context.view.pods.items()):
        node = context.observed.nodes.get(pod.node or "")
        if node is not None and pod.untold_labels and not pod.terminating:
            labels = {label: node.labels[label] for label in pod.untold_labels if label in node.labels}
            context.actions.append(TellNodeLabels(pod.name, pod.uid, labels))


def lost_ordinals(context: ReconcileContext, members: Collection[int | None]) -> frozenset[int]:
    """Return the ordinals of pods that are lost with their nodes, and look again soon while a node does not answer.

    Args:
        context: What this pass works on.
        members: The ordinals of pods whose members are removed if they are lost; nothing is gained by others.
    """
    pods = context.view.pods.items()
    nodes = [context.observed.nodes.get(pod.node or "") for index, pod in pods if index in members]
    if any(node is not None and not node.ready for node in nodes):
        context.recheck_after(_LOOK_AGAIN_S)
    return frozenset(index for index, pod in pods if pod.uid in context.observed.lost_pods)
