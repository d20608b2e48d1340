"""Prometheus metrics of the operator itself and of each application.

Only the replica that holds the Lease reports applications, so that none appears twice, and only existing ones: the series
of a deleted one end with it.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace_operator.model import Object

_PREFIX: Final = "millrace_operator"
_APP_PREFIX: Final = "millrace_app"
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class OperatorMetrics:
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
        self._reported: Final = Counter(
            f"{_PREFIX}_events",
            "Events about resources, written or not, by type and reason.",
            ["type", "reason"],
            registry=self.registry,
        )
        self._last_pass = time.monotonic()

    def watch(
        self, *, depth: Callable[[], int], leads: Callable[[], bool], apps: Callable[[], Iterable[Object]]
    ) -> None:
        """Set the sources of the values that are read when metrics are collected.

        Args:
            depth: How many resources wait for a pass.
            leads: Whether this operator holds the Lease.
            apps: All StreamsApps.
        """
        Gauge(f"{_PREFIX}_queue_depth", "Resources waiting for a pass.", registry=self.registry).set_function(depth)
        Gauge(f"{_PREFIX}_leader", "1 if this operator holds the Lease.", registry=self.registry).set_function(
            lambda: float(leads())
        )
        Gauge(
            f"{_PREFIX}_last_reconcile_age_seconds",
            "Seconds since the last pass ended; 0 if there is nothing to do: without StreamsApps, or without the Lease.",
            registry=self.registry,
        ).set_function(lambda: time.monotonic() - self._last_pass if leads() and any(True for _ in apps()) else 0.0)
        self.registry.register(_Apps(lambda: apps() if leads() else ()))

    def request(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """Count a request to the API server."""
        self._requests.labels(verb, resource, code).inc()
        self._request_seconds.labels(verb).observe(seconds)

    def event(self, resource: str) -> None:
        """Count an event of a watch."""
        self._events.labels(resource).inc()

    def event_recorded(self, kind: str, reason: str) -> None:
        """Count an Event about a resource, which cannot be written if the namespace is being deleted."""
        self._reported.labels(kind, reason).inc()

    def passed(self, result: str, seconds: float) -> None:
        """Count a pass.

        Args:
            result: ok, stale, error or stalled.
            seconds: How long it took.
        """
        self._reconciles.labels(result).observe(seconds)
        self._last_pass = time.monotonic()


_NUMBERS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "generation": (("metadata", "generation"), "The generation of the manifest."),
    "observed_generation": (("status", "observedGeneration"), "The generation that the status is about."),
    "replicas": (("status", "replicas"), "Pods that exist."),
    "desired_replicas": (("status", "desiredReplicas"), "Pods that are wanted."),
    "ready_replicas": (("status", "readyReplicas"), "Pods that run all the tasks assigned to them."),
    "recommended_replicas": (("status", "autoscaling", "recommended"), "Replicas that autoscaling recommends."),
    "lag_records": (
        ("status", "lag", "total"),
        "Records waiting in input and repartition topics, rounded to two digits.",
    ),
    "tasks": (("status", "topology", "tasks"), "Tasks of the topology."),
    "restoring_tasks": (("status", "tasks", "restoring"), "Active tasks that are restoring state."),
    "restoration_remaining_records": (
        ("status", "restoration", "remainingRecords"),
        "Changelog records left to restore, rounded to two digits.",
    ),
    "storage_used_percent": (("status", "storage", "maxUsedPercent"), "How full the fullest volume is."),
}
"""Gauges of an application: where the number is in the resource, and what it means. Unknown ones have no sample."""
_APP_LABELS: Final = ("namespace", "name")


class _Apps(Collector):
    def __init__(self, apps: Callable[[], Iterable[Object]]) -> None:
        self._apps = apps

    def collect(self) -> Iterator[Metric]:
        """Count applications by what they are doing, and report each."""
        apps = sorted(self._apps(), key=_labels)
        family = GaugeMetricFamily(f"{_PREFIX}_apps", "StreamsApps by lifecycle state.", labels=["state"])
        for state, count in sorted(Tally(map(_state, apps)).items()):
            family.add_metric([state], count)
        yield family
        yield from _described(apps)
        for name, (path, meaning) in _NUMBERS.items():
            gauge = GaugeMetricFamily(f"{_APP_PREFIX}_{name}", meaning, labels=_APP_LABELS)
            for app in apps:
                value = _at(app, path)
                if isinstance(value, int | float):
                    gauge.add_metric(_labels(app), value)
            yield gauge


def _described(apps: Iterable[Object]) -> Iterator[Metric]:
    """Report what applications are and how they are doing, in labels; the value is always 1."""
    names = ("application_id", "image", "revision", "guarantee")
    info = GaugeMetricFamily(f"{_APP_PREFIX}_info", "What the application is; always 1.", labels=[*_APP_LABELS, *names])
    states = GaugeMetricFamily(
        f"{_APP_PREFIX}_lifecycle_state", "What the application is doing; always 1.", labels=[*_APP_LABELS, "state"]
    )
    conditions = GaugeMetricFamily(
        f"{_APP_PREFIX}_condition",
        "The conditions of the application, with their status and reason; always 1.",
        labels=[*_APP_LABELS, "type", "status", "reason"],
    )
    for app in apps:
        spec, status = app.get("spec") or {}, app.get("status") or {}
        said = (
            spec.get("applicationId", ""),
            spec.get("image", ""),
            status.get("currentRevision", ""),
            (spec.get("processing") or {}).get("guarantee", ""),
        )
        info.add_metric([*_labels(app), *map(str, said)], 1)
        states.add_metric([*_labels(app), _state(app)], 1)
        for item in status.get("conditions") or ():
            conditions.add_metric([*_labels(app), item["type"], item["status"], item["reason"]], 1)
    yield from (info, states, conditions)


def _labels(app: Object) -> list[str]:
    return [app["metadata"]["namespace"], app["metadata"]["name"]]


def _state(app: Object) -> str:
    return str((app.get("status") or {}).get("lifecycleState", "Unknown"))


def _at(app: Object, path: Iterable[str]) -> object:
    value: object = app
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
