"""What a backfill sends to a collector."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.backfill.broker_app import App, run_command
from tests.telemetry.test_setup import collector

__all__ = ["collector"]

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def spans_of(requests):
    """Return the spans that were sent, by name."""
    found = {}
    for path, body in requests:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                found |= {span.name: span for scope in resource.scope_spans for span in scope.spans}
    return found


def metrics_of(requests):
    """Return the names of the metrics that were sent."""
    return {
        metric.name
        for path, body in requests
        if path == "/v1/metrics"
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def attribute(span, name):
    """Return an attribute's value."""
    value = next(item.value for item in span.attributes if item.key == name)
    return getattr(value, value.WhichOneof("value"))


def test_spans_and_metrics_of_driver_and_executors(kafka, tmp_path, collector):
    """The tasks of executors are children of their stages, which are children of the whole; both sides send metrics."""
    app = App(kafka)
    app.produce([f"k{number % 3}" for number in range(10)])
    app.write_project(tmp_path, by_value=True)
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    done = run_command(tmp_path, "--master", "local[2]", **variables)
    assert done.returncode == 0, done.stdout
    spans = spans_of(collector.requests)
    tasks = {f"task {stage}_{number}": f"stage {stage}" for stage in (0, 1) for number in (0, 1)}
    root = spans[f"backfill {app.id}"]
    assert {*spans} == {root.name, "stage 0", "stage 1", f"publish {app.id}", *tasks}
    for name, parent in {**tasks, "stage 0": root.name, "stage 1": root.name, f"publish {app.id}": root.name}.items():
        assert spans[name].parent_span_id == spans[parent].span_id, name
        assert spans[name].trace_id == root.trace_id, name
    assert sum(attribute(spans[f"task 0_{number}"], "messaging.batch.message_count") for number in (0, 1)) == 10
    sent = metrics_of(collector.requests)
    assert {"millrace.backfill.records", "millrace.backfill.tasks.done"} <= sent
    assert "org.apache.kafka.stream.task.dropped.records.total" in sent
