"""`spec.observability`: where metrics, traces and logs go."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from millrace.manifest.base_model import ManifestModel
from millrace.manifest.fields import Labels, PositiveDuration, SecretReference, Url, of_keys
from millrace.manifest.rules import Rule

_RATIO_SAMPLERS = ("traceidratio", "parentbased_traceidratio")


class Sampler(ManifestModel):
    """Which traces are kept, in OpenTelemetry's terms."""

    type: Literal[
        "always_on",
        "always_off",
        "traceidratio",
        "parentbased_always_on",
        "parentbased_always_off",
        "parentbased_traceidratio",
    ] = "parentbased_always_on"
    """The sampler, as `OTEL_TRACES_SAMPLER` names it."""
    ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    """The fraction of traces that is kept, for the samplers by ratio."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda sampler: (sampler.ratio is not None) == (sampler.type in _RATIO_SAMPLERS),
            "has(self.ratio) == (self.type in ['traceidratio', 'parentbased_traceidratio'])",
            "ratio must be given with the types traceidratio and parentbased_traceidratio, and only with these",
        ),
    )


class Otlp(ManifestModel):
    """The OpenTelemetry collector."""

    endpoint: Url
    """Its URL, for OTLP over HTTP."""
    headers_secret_ref: Annotated[SecretReference, of_keys("headers")] | None = None
    """The Secret with headers for its requests, in the format of `OTEL_EXPORTER_OTLP_HEADERS`: key `headers`."""
    sampler: Sampler = Sampler()
    """Which traces are kept."""


class PodMonitor(ManifestModel):
    """A PodMonitor, with which the Prometheus operator finds the pods."""

    enabled: bool = False
    """Whether there is one. Only then do the pods serve `/metrics`."""
    interval: PositiveDuration = "30s"
    """How often the pods are scraped."""
    labels: Labels = Field(default_factory=dict)
    """Labels by which Prometheus selects it."""


class Metrics(ManifestModel):
    """Which metrics are recorded."""

    level: Literal["INFO", "DEBUG", "TRACE"] = "INFO"
    """Kafka Streams' `metrics.recording.level`."""
    pod_monitor: PodMonitor = PodMonitor()
    """A PodMonitor, with which the Prometheus operator finds the pods."""


class Logs(ManifestModel):
    """What the pods write to their logs."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The lowest level that is logged."""
    format: Literal["text", "json"] = "text"
    """Lines for people, or JSON for log collectors."""


class Observability(ManifestModel):
    """Where metrics, traces and logs go."""

    otlp: Otlp | None = None
    """The OpenTelemetry collector that metrics and traces are sent to; none if not given."""
    metrics: Metrics = Metrics()
    """Which metrics are recorded."""
    logs: Logs = Logs()
    """What the pods write to their logs."""
