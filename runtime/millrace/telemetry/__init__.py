"""Traces and metrics with OpenTelemetry; off, and free of cost, unless the environment or the application turns it on."""

from __future__ import annotations

from millrace.telemetry.setup import Telemetry, configure
from millrace.telemetry.tracing import Tracing

__all__ = ["Telemetry", "Tracing", "configure"]
