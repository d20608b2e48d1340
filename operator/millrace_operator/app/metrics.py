"""What the operator measures of itself, in Prometheus' form."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace_operator.model import Object

_PREFIX: Final = "millrace_operator"
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The operator's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        self._reconciles: Final = Histogram(
            f"{_PREFIX}_reconcile_seconds",
            "How long passes over one resource took, by their result.",
            ["result"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._requests: Final = Counter(
            f"{_PREFIX}_api_requests",
            "Requests to the API server, by verb, resource and HTTP status (none: no answer).",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self._request_seconds: Final = Histogram(
            f"{_PREFIX}_api_request_seconds",
            "How long requests to the API server took.",
            ["verb"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._events: Final = Counter(
            f"{_PREFIX}_watch_events", "Events of watches, by resource.", ["resource"], registry=self.registry
        )
        self._last_pass = time.monotonic()

    def watch(
        self, *, depth: Callable[[], int], leads: Callable[[], bool], apps: Callable[[], Iterable[Object]]
    ) -> None:
        """Say where to read what is asked for when metrics are collected.

        Args:
            depth: How many resources wait for a pass.
            leads: Whether this operator holds the Lease.
            apps: All StreamsApps.
        """
        Gauge(f"{_PREFIX}_queue_depth", "Resources that wait for a pass.", registry=self.registry).set_function(depth)
        Gauge(f"{_PREFIX}_leader", "1 if this operator holds the Lease.", registry=self.registry).set_function(
            lambda: float(leads())
        )
        Gauge(
            f"{_PREFIX}_last_reconcile_age_seconds",
            "Since a pass was last ended; 0 where there is nothing to do: without StreamsApps, or without the Lease.",
            registry=self.registry,
        ).set_function(lambda: time.monotonic() - self._last_pass if leads() and any(True for _ in apps()) else 0.0)
        self.registry.register(_Apps(apps))

    def request(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """Count a request to the API server."""
        self._requests.labels(verb, resource, code).inc()
        self._request_seconds.labels(verb).observe(seconds)

    def event(self, resource: str) -> None:
        """Count an event of a watch."""
        self._events.labels(resource).inc()

    def passed(self, result: str, seconds: float) -> None:
        """Count a pass.

        Args:
            result: ok, stale, error or stalled.
            seconds: How long it took.
        """
        self._reconciles.labels(result).observe(seconds)
        self._last_pass = time.monotonic()


class _Apps(Collector):
    def __init__(self, apps: Callable[[], Iterable[Object]]) -> None:
        self._apps = apps

    def collect(self) -> Iterator[Metric]:
        """Count apps by what they are doing."""
        family = GaugeMetricFamily(f"{_PREFIX}_apps", "StreamsApps by lifecycle state.", labels=["state"])
        states = Tally(str((app.get("status") or {}).get("lifecycleState", "Unknown")) for app in self._apps())
        for state, count in sorted(states.items()):
            family.add_metric([state], count)
        yield family
