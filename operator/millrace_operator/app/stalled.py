"""What a resource's user is told when a pass over it fails."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from millrace.manifest.status import Condition, StreamsAppStatus
from millrace_operator.model import Desired

LONGEST_MESSAGE = 2000


def stalled_status(desired: Desired, reason: str, message: str) -> StreamsAppStatus:
    """Return the last status with `Stalled=True`; everything else in it stays as it was seen last."""
    status = desired.status or StreamsAppStatus()
    known = next((condition for condition in status.conditions if condition.type == "Stalled"), None)
    since = known.last_transition_time if known is not None and known.status == "True" else _now()
    condition = Condition(
        type="Stalled",
        status="True",
        reason=reason,
        message=message[:LONGEST_MESSAGE],
        last_transition_time=since,
        observed_generation=desired.generation,
    )
    others = tuple(item for item in status.conditions if item.type != "Stalled")
    return status.model_copy(update={"conditions": (*others, condition)})


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
