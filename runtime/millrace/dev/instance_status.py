"""The status that an instance writes into a file of its local directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """The status of an instance, at the moment it wrote it."""

    pid: int
    state: str
    tasks: int
    lag: int | None
    """Records in the inputs that have not been processed yet; None if unknown."""
    records: int
    """Records processed since the process started."""
    written_at: float
    """Seconds since the epoch."""

    @classmethod
    def read(cls, path: Path) -> InstanceStatus | None:
        """Return the status in a file, or None if there is none yet."""
        try:
            data = json.loads(path.read_text())
            return cls(
                pid=data["pid"],
                state="RESTORING" if data["task_counts"]["restoring"] else data["state"],
                tasks=len(data["tasks"]),
                lag=data["lag"]["total"],
                records=data["processing"]["records"],
                written_at=data["time_ms"] / 1000,
            )
        except (FileNotFoundError, json.JSONDecodeError, KeyError):
            return None
