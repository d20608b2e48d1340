"""Traces and metrics with OpenTelemetry; off, and without any cost, unless the environment or the application enables it."""

from __future__ import annotations

from millrace.telemetry.setup import Telemetry, configure
from millrace.telemetry.tracing import Tracing

__all__ = ["Telemetry", "Tracing", "configure"]
