"""The three probes of the container, over what `millrace run --http` serves; docs/operations.md says what each means.

An instance that waits for a broker, restores or rebalances is live, so a restart is left to what a restart can mend. The
start-up probe is the generous one: it spans finding the brokers and joining the group, which others may hold up. No preStop hook
is there: the process is PID 1 and takes SIGTERM itself (it commits, closes its stores and exits), and it serves no traffic that
a load balancer would first have to turn away.
"""

from __future__ import annotations

from typing import Any

from millrace_operator.children.ports import HTTP_PORT_NAME


def probes() -> dict[str, Any]:
    """Return the probes of the container, by their names in it."""
    return {
        "startupProbe": _probe("/startedz", period_seconds=5, failure_threshold=60),
        "livenessProbe": _probe("/livez", period_seconds=10, failure_threshold=3),
        "readinessProbe": _probe("/readyz", period_seconds=5, failure_threshold=3),
    }


def _probe(path: str, *, period_seconds: int, failure_threshold: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": HTTP_PORT_NAME, "scheme": "HTTP"},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failure_threshold,
    }
