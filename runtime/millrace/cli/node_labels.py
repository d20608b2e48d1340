"""Where a pod runs: the labels of its node that the manifest names.

A program may not ask the API server, so it gets the labels in files. Kubernetes copies some of them to the pod when it gets
a node (`topology.kubernetes.io/zone` and `/region`, from 1.35). The operator copies the others into an annotation as soon as
it sees the node, which may be shortly after the program has started. So the program waits for them, but not for ever: pods
must start even if the operator is down.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection
from pathlib import Path

_log = logging.getLogger(__name__)

LABELS_OF_POD = "labels"
"""The file with the pod's own labels, one `key="value"` in a line."""
TOLD = "told"
"""The file with the labels of the node in JSON; empty until the operator has seen it."""
PATIENCE_S = 30.0
_POLL_S = 0.1


def node_labels(directory: Path, wanted: Collection[str], patience_s: float = PATIENCE_S) -> dict[str, str]:
    """Return the wanted labels that the node has.

    Args:
        directory: Where the files are.
        wanted: The names of labels.
        patience_s: How long to wait for the operator to write them.
    """
    deadline = time.monotonic() + patience_s
    while (found := _known(directory, wanted)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if found is None:
        _log.warning(
            "Nobody has told within %.0f s on which rack this pod runs: starting without client.rack. Is the operator running, "
            "and may it read nodes (rbac.readNodes)? A restarted process looks again.",
            patience_s,
        )
    return found or {}


def _known(directory: Path, wanted: Collection[str]) -> dict[str, str] | None:
    """Return the wanted labels that the node has; None while they are not known."""
    lines = _text(directory / LABELS_OF_POD).splitlines()
    own = {key: json.loads(value) for key, equals, value in (line.partition("=") for line in lines) if equals}
    if all(own.get(label) for label in wanted):
        return {label: own[label] for label in wanted}
    told = _text(directory / TOLD)
    return {key: value for key, value in json.loads(told).items() if key in wanted} if told else None


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except OSError:
        return ""
