"""Setting up OpenTelemetry from its environment variables."""

import gzip
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.waiting import PATIENCE_S

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.records import NO_HEADERS, TaskId
from millrace.telemetry import configure

CONFIG = StreamsConfig.of({"application.id": "word-count", "group.instance.id": "word-count-0"})


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def collector():
    """An OTLP/HTTP receiver on loopback that keeps what it is sent."""
    requests = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            requests.append((self.path, body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args):
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.requests = requests
        server.url = f"http://127.0.0.1:{server.server_port}"
        yield server
        server.shutdown()
        thread.join()


def _process_one(telemetry):
    with telemetry.tracing.record(TaskId(0, 0), "in", 0, 0, NO_HEADERS):
        pass


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"},
        {"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "console"},
    ],
    ids=["nothing set", "none", "disabled"],
)
def test_without_an_exporter_nothing_is_set_up(environ):
    """The result is None, so that stream threads run without hooks."""
    assert configure(CONFIG, environ) is None


def test_an_endpoint_turns_otlp_on(collector, monkeypatch):
    """With OTEL_EXPORTER_OTLP_ENDPOINT alone, spans and metrics reach a collector, named after the application."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    telemetry = configure(CONFIG)
    _process_one(telemetry)
    telemetry.meter_provider.get_meter("test").create_counter("things").add(1)
    telemetry.shutdown()
    received = dict(collector.requests)
    traces = ExportTraceServiceRequest.FromString(received["/v1/traces"])
    metrics = ExportMetricsServiceRequest.FromString(received["/v1/metrics"])
    resource = {pair.key: pair.value.string_value for pair in traces.resource_spans[0].resource.attributes}
    assert resource["service.name"] == "word-count"
    assert resource["service.instance.id"] == "word-count-0"
    assert traces.resource_spans[0].scope_spans[0].spans[0].name == "process in"
    assert metrics.resource_metrics[0].scope_metrics[0].metrics[0].name == "things"


def test_traces_alone(collector, monkeypatch):
    """Each signal has its own exporter setting: with metrics set to none there is no meter provider."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    telemetry = configure(CONFIG)
    assert telemetry.meter_provider is None
    _process_one(telemetry)
    telemetry.shutdown()
    assert [path for path, _ in collector.requests] == ["/v1/traces"]


def test_metrics_alone():
    """Without a traces exporter there are no hooks, only metrics."""
    telemetry = configure(CONFIG, {"OTEL_METRICS_EXPORTER": "console"})
    assert telemetry.tracing is None
    assert telemetry.meter_provider is not None
    telemetry.shutdown()


def test_the_console_exporter_prints():
    """`console` writes spans to standard output."""
    program = (
        "from millrace.config import StreamsConfig; from millrace.records import NO_HEADERS, TaskId\n"
        "from millrace.telemetry import configure\n"
        "telemetry = configure(StreamsConfig.of({'application.id': 'word-count'}))\n"
        "with telemetry.tracing.record(TaskId(0, 0), 'in', 0, 0, NO_HEADERS): pass\n"
        "telemetry.shutdown()"
    )
    environ = {**os.environ, "OTEL_TRACES_EXPORTER": "console"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(result.stdout)["name"] == "process in"


def test_the_services_name_may_be_given(monkeypatch):
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence over the configuration."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-7")
    telemetry = configure(CONFIG, {"OTEL_TRACES_EXPORTER": "console"})
    resource = telemetry.tracer_provider.resource.attributes
    telemetry.shutdown()
    assert (resource["service.name"], resource["service.instance.id"]) == ("shop", "pod-7")


def test_the_sampler_of_the_environment_is_honoured(collector, monkeypatch):
    """With OTEL_TRACES_SAMPLER=always_off nothing is exported."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    telemetry = configure(CONFIG)
    _process_one(telemetry)
    telemetry.shutdown()
    assert collector.requests == []


@pytest.mark.parametrize(
    ("environ", "hint"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkinn"}, "OTEL_TRACES_EXPORTER.*zipkinn"),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "otlp-proto-grpc"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"}, "http/protobuf"),
    ],
)
def test_missing_exporter_is_an_error(environ, hint):
    """The message names the variable and what to do."""
    with pytest.raises(ConfigError, match=hint):
        configure(CONFIG, environ)


OWN_METRIC = """
import opentelemetry.metrics, opentelemetry.trace
from millrace import Processor, StreamsConfig, Topology, TopologyTestDriver
from millrace.telemetry import configure

rejected = opentelemetry.metrics.get_meter("orders").create_counter("orders.rejected")

class Check(Processor):
    def process(self, record):
        with opentelemetry.trace.get_tracer("orders").start_as_current_span("check"):
            rejected.add(1, {"task_id": str(self.context.task_id)})

settings = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}
telemetry = configure(StreamsConfig.of(settings))
telemetry.use_globally()
topology = Topology().add_source("s", "in").add_processor("p", Check, "s")
with TopologyTestDriver(topology, settings) as driver:
    driver.create_input_topic("in").pipe_input("k", "v")
telemetry.shutdown()
"""


def test_users_own_metrics_and_spans_are_exported(collector):
    """They are created with OpenTelemetry's API, even before setup; runs in a separate process, since setup happens only once."""
    environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    subprocess.run([sys.executable, "-c", OWN_METRIC], env=environ, check=True, timeout=PATIENCE_S)
    sent = dict(collector.requests)
    assert b"orders.rejected" in sent["/v1/metrics"]
    assert b"task_id" in sent["/v1/metrics"]
    assert b"check" in sent["/v1/traces"]
