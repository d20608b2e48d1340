"""Times as Kubernetes writes them."""

from __future__ import annotations

import math
from datetime import UTC, datetime


def timestamp(seconds: float) -> str:
    """Return a time as Kubernetes writes it.

    >>> timestamp(0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(math.floor(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(timestamp: str) -> float:
    """Return a Kubernetes timestamp in seconds since the epoch."""
    return datetime.fromisoformat(timestamp).timestamp()
