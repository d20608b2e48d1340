"""What a running embedded cluster writes beside its data, so that another process can find and control it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from millrace.dev._broker_config import NodePorts
from millrace.dev._process import is_running

if TYPE_CHECKING:
    from pathlib import Path

STATE_FILE = "embedded-kafka.json"


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node's process and ports."""

    node_id: int
    pid: int
    started_at: str
    ports: NodePorts


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A running cluster."""

    bootstrap_servers: str
    nodes: tuple[NodeState, ...]
    config: dict[str, str]
    users: dict[str, str]
    log_level: str
    temporary: bool
    """Whether the directory goes when the cluster stops."""

    @property
    def running(self) -> bool:
        """Whether any node's process still runs."""
        return any(is_running(node.pid, node.started_at) for node in self.nodes)


def write_state(directory: Path, state: ClusterState) -> None:
    """Replace the state file of a directory; only its owner may read it, for it holds passwords."""
    part = directory / f"{STATE_FILE}.part"
    part.touch(mode=0o600)
    part.write_text(json.dumps(asdict(state), indent=2))
    part.replace(directory / STATE_FILE)


def read_running_state(directory: Path) -> ClusterState | None:
    """Return the state of the cluster that runs in a directory, or none if none does."""
    try:
        fields = json.loads((directory / STATE_FILE).read_text())
    except FileNotFoundError:
        return None
    nodes = tuple(NodeState(**{**node, "ports": NodePorts(**node["ports"])}) for node in fields.pop("nodes"))
    state = ClusterState(nodes=nodes, **fields)
    return state if state.running else None


def remove_state(directory: Path) -> None:
    """Forget the cluster of a directory."""
    (directory / STATE_FILE).unlink(missing_ok=True)
