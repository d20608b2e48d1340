"""Sets up OpenTelemetry from its own environment variables, for applications that have not set it up themselves.

| variable | effect here |
|---|---|
| `OTEL_SDK_DISABLED=true` | nothing is set up |
| `OTEL_TRACES_EXPORTER`, `OTEL_METRICS_EXPORTER` | `otlp`, `console`, `none`, any other that is installed, or several |
| `OTEL_EXPORTER_OTLP_ENDPOINT` (or `…_TRACES_…`, …) | if set, `otlp` is the default exporter |
| `OTEL_EXPORTER_OTLP_PROTOCOL` (or `…_TRACES_…`, …) | `http/protobuf`; `grpc` needs its exporter installed |
| `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` | the resource; the default service name is the `application.id` |

The setting `telemetry.otlp.headers.file` adds headers from a file, such as an API key, which must not be in a variable and
may change while the process runs: the file is read before every request, a few times a minute. With
`health.metrics` Prometheus can fetch the metrics, alongside other exporters or alone.

The SDK itself reads the variables for samplers, propagators, batch sizes and timeouts. This set-up differs from the SDK's own in
one way: with no variable set, nothing is exported, instead of everything to a collector on this host.

Invariant: if there is nothing to export the result is None and the stream threads run without a single hook.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import TracerProvider
from requests import PreparedRequest, Session
from requests.auth import AuthBase

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.instance.health import Page
from millrace.instance.kafka_streams import KafkaStreams
from millrace.telemetry.metrics import Level, observe
from millrace.telemetry.tracing import Tracing

__all__ = ["INSTRUMENTATION_NAME", "Telemetry", "configure"]

INSTRUMENTATION_NAME: Final = "millrace"

_PROTOCOLS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_FLUSH_MS: Final = 5_000
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Telemetry:
    """What an application exports; pass `tracing` and `metrics_page` to `KafkaStreams`, and the client to `observe`."""

    tracing: Tracing | None
    """None if no spans are exported."""
    tracer_provider: TracerProvider | None
    meter_provider: MeterProvider | None
    owned: tuple[SdkTracerProvider | SdkMeterProvider, ...] = ()
    """The providers created here, which `shutdown` shuts down."""
    metrics_page: Callable[[], Page] | None = None
    """Returns the metrics in Prometheus' format; None unless `health.metrics` is set."""

    def observe(self, streams: KafkaStreams) -> None:
        """Export an instance's metrics, from `metrics.recording.level` up; does nothing if no metrics are exported."""
        if self.meter_provider is not None:
            config = streams.config
            observe(
                self.meter_provider.get_meter(INSTRUMENTATION_NAME),
                config.client_id or config.group_instance_id or config.application_id,
                lambda: streams.state,
                lambda: streams.threads,
                Level[config.metrics_recording_level],
            )

    def use_globally(self) -> None:
        """Install the providers created here in the whole process, so that the user's own metrics and spans are exported too.

        OpenTelemetry allows this once per process; instruments and tracers that already exist take part.
        """
        for provider in self.owned:
            if isinstance(provider, SdkMeterProvider):
                metrics.set_meter_provider(provider)
            else:
                trace.set_tracer_provider(provider)

    def flush(self) -> None:
        """Export what is pending."""
        for provider in self.owned:
            provider.force_flush(_FLUSH_MS)

    def shutdown(self) -> None:
        """Export what is pending and shut down the exporters created here."""
        for provider in self.owned:
            provider.shutdown()


def configure(config: StreamsConfig, environ: Mapping[str, str] | None = None) -> Telemetry | None:
    """Set up what the environment asks for, or use what the process has already set up.

    A provider that the application has installed globally (itself, or with `opentelemetry-instrument`) is used unchanged.

    Args:
        config: the application's settings.
        environ: the variables that choose exporters; the SDK always reads its own settings from the process.

    Returns:
        None if nothing is exported.

    Raises:
        ConfigError: an exporter or protocol is unknown or not installed.
    """
    variables = os.environ if environ is None else environ
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    instance_id = config.group_instance_id
    ours = {SERVICE_NAME: config.application_id, **({SERVICE_INSTANCE_ID: instance_id} if instance_id else {})}
    resource = Resource.create().merge(Resource(ours)).merge(OTELResourceDetector().detect())
    owned: list[SdkTracerProvider | SdkMeterProvider] = []
    tracer_provider: TracerProvider | None = trace.get_tracer_provider()
    if not isinstance(tracer_provider, SdkTracerProvider):  # the application has not installed one
        tracer_provider = None
        exporters = [_exporter("traces", name, variables, config) for name in _exporter_names("traces", variables)]
        if exporters:
            made = SdkTracerProvider(resource=resource, shutdown_on_exit=False)
            for exporter in exporters:
                made.add_span_processor(BatchSpanProcessor(exporter))
            owned.append(made)
            tracer_provider = made
    page = PrometheusPage() if config.health_metrics else None
    existing = metrics.get_meter_provider()
    meter_provider = existing if isinstance(existing, SdkMeterProvider) else None
    if meter_provider is None:
        made_readers = (_exporter("metrics", name, variables, config) for name in _exporter_names("metrics", variables))
        readers: list[MetricReader] = [
            item if isinstance(item, MetricReader) else PeriodicExportingMetricReader(item) for item in made_readers
        ]
        if page is not None:
            readers.append(page.reader)
        if readers:
            meter_provider = SdkMeterProvider(readers, resource, shutdown_on_exit=False)
            owned.append(meter_provider)
    elif page is not None:
        meter_provider.add_metric_reader(page.reader)
    if tracer_provider is None and meter_provider is None:
        return None
    tracing = (
        None
        if tracer_provider is None
        else Tracing(tracer_provider.get_tracer(INSTRUMENTATION_NAME), config.application_id)
    )
    return Telemetry(tracing, tracer_provider, meter_provider, tuple(owned), page)


def _exporter_names(signal: str, variables: Mapping[str, str]) -> list[str]:
    given = variables.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip()
    if not given:
        endpoint = variables.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT") or variables.get(
            "OTEL_EXPORTER_OTLP_ENDPOINT"
        )
        return ["otlp"] if endpoint else []
    names = [name.strip() for name in given.split(",") if name.strip()]
    return [] if names == ["none"] else names


def _exporter(signal: str, name: str, variables: Mapping[str, str], config: StreamsConfig) -> Any:
    make, file = _load(signal, name, variables), config.telemetry_otlp_headers_file
    if name != "otlp" or file is None:
        return make()
    if _protocol(signal, variables) == "grpc":
        return make(headers=dict(read_headers(file)))
    session = Session()
    session.auth = _FileHeaders(file)
    return make(session=session)


def _protocol(signal: str, variables: Mapping[str, str]) -> str:
    return (
        variables.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
        or variables.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    ).strip()


def _load(signal: str, name: str, variables: Mapping[str, str]) -> Any:
    wanted = name
    if name == "otlp":
        protocol = _protocol(signal, variables)
        if protocol not in _PROTOCOLS:
            raise ConfigError(
                f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r} is not supported: use http/protobuf, or grpc with its exporter"
            )
        wanted = _PROTOCOLS[protocol]
    found = next(iter(entry_points(group=f"opentelemetry_{signal}_exporter", name=wanted)), None)
    if found is None:
        hint = (
            "install opentelemetry-exporter-otlp-proto-grpc, or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
            if wanted == "otlp_proto_grpc"
            else "use otlp, console or none, or install the package that provides it"
        )
        raise ConfigError(f"OTEL_{signal.upper()}_EXPORTER: there is no exporter {wanted!r}; {hint}")
    return found.load()


def read_headers(file: Path) -> Mapping[str, str]:
    """Return the headers in a file: `name=value`, separated by commas or lines; values are URL-encoded.

    Raises:
        ConfigError: it cannot be read, or an entry is not a header; the message does not show values.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"telemetry.otlp.headers.file={file} cannot be read: {why}. Is the secret mounted?") from None
    headers = {}
    for number, part in enumerate(filter(None, map(str.strip, text.replace("\n", ",").split(","))), 1):
        name, equals, value = map(str.strip, part.partition("="))
        if not equals or not name or any(character.isspace() for character in name):
            raise ConfigError(
                f"telemetry.otlp.headers.file={file}: entry {number} is not a header: write name=value,name=value, with values "
                "URL-encoded (its text is not shown)"
            )
        headers[unquote(name).lower()] = unquote(value)
    return headers


class _FileHeaders(AuthBase):
    """Adds the headers that a file currently contains; while it cannot be read, those it contained last.

    Raises:
        ConfigError: the file cannot be read now.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._last = read_headers(file)

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        try:
            self._last = read_headers(self._file)
        except ConfigError as error:
            _log.warning("%s; the previous headers are sent", error)
        request.headers.update(self._last)
        return request


class PrometheusPage:
    """Gives the metrics in Prometheus' format, for the page `/metrics` of an instance.

    OpenTelemetry's own exporter names and types the metrics, and reads their values only when the page is requested. It has its
    own registry here, so that the page does not show metrics of other libraries in the process. `reader` must be added to a
    meter provider.
    """

    def __init__(self) -> None:
        # Loaded only if the page is enabled.
        from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415
        from prometheus_client import CollectorRegistry  # noqa: PLC0415
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest  # noqa: PLC0415

        registry = CollectorRegistry()
        self.reader = PrometheusMetricReader(registry=registry)
        self._lock = threading.Lock()
        self._page: Callable[[], Page] = lambda: Page(CONTENT_TYPE_LATEST, generate_latest(registry))

    def __call__(self) -> Page:
        """Return the metrics as they are now; call it in any thread."""
        with self._lock:  # the exporter passes values from one of its methods to another
            return self._page()
