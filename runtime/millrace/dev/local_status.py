"""What a replica says of itself, for the table: read from the file that its runtime rewrites every second."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """One instance at the moment it wrote its status."""

    pid: int
    state: str
    tasks: int
    lag: int | None
    """Records in the inputs that are not processed yet; none if not known."""
    records: int
    """Records processed since the process began."""
    written_at: float
    """Seconds since the epoch."""


def read_status(path: Path) -> InstanceStatus | None:
    """Return the status in a file, or none if there is none yet."""
    try:
        data = json.loads(path.read_text())
        return InstanceStatus(
            pid=data["pid"],
            state="RESTORING" if data["task_counts"]["restoring"] else data["state"],
            tasks=len(data["tasks"]),
            lag=data["lag"]["total"],
            records=data["processing"]["records"],
            written_at=data["time_ms"] / 1000,
        )
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return None
