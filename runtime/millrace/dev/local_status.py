"""What a replica says of itself, for the table: read from the file that its runtime rewrites every second."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_WINDOW_S = 5.0


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
            state="RESTORING" if data["restoration_remaining"] else data["state"],
            tasks=len(data["tasks"]),
            lag=sum(data["lag"].values()) if data["lag"] or data["state"] == "RUNNING" else None,
            records=data["records_total"],
            written_at=data["time_ms"] / 1000,
        )
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return None


class RateMeter:
    """Records per second over the last seconds, from a counter's readings."""

    def __init__(self) -> None:
        self._readings: list[tuple[float, int]] = []

    def add(self, at: float, count: int) -> float | None:
        """Take a reading and return the rate, or none while there is only one.

        Args:
            at: When it was taken, in seconds.
            count: The counter, which only grows; a smaller one begins anew.
        """
        if self._readings and count < self._readings[-1][1]:
            self._readings.clear()
        if not self._readings or at > self._readings[-1][0]:
            self._readings.append((at, count))
        while len(self._readings) > 2 and at - self._readings[0][0] > _WINDOW_S:
            self._readings.pop(0)
        (first_at, first), (last_at, last) = self._readings[0], self._readings[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else None
