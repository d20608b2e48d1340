"""The metrics in Prometheus' format, for the page `/metrics` of an instance (`health.metrics`).

OpenTelemetry's own exporter does the work: it names and types the metrics, and asks for their values when the page is asked for,
never in between. It has a registry of its own here, so that what other libraries of the process count is not on the page.
"""

from __future__ import annotations

import threading

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from millrace.runtime.health import Page

__all__ = ["PrometheusPage"]


class PrometheusPage:
    """Gives the page; `reader` is to be made part of a meter provider first."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.reader = PrometheusMetricReader(registry=self._registry)
        self._lock = threading.Lock()

    def __call__(self) -> Page:
        """Return the metrics as they are now; call it in any thread."""
        with self._lock:  # the exporter hands values from one of its methods to another
            return Page(CONTENT_TYPE_LATEST, generate_latest(self._registry))
