"""Spans and metrics of a running application."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from tests.waiting import PATIENCE_S, wait_until

from millrace.instance.kafka_streams import KafkaStreams
from millrace.processor.api import Processor
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.telemetry import Telemetry, Tracing
from millrace.telemetry.metrics import mapping_rows
from millrace.topology import Topology

pytestmark = pytest.mark.broker

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
RECORDS = 10


class Count(Processor):
    """Counts per key and forwards the count."""

    def init(self, context):
        """Find the store."""
        super().init(context)
        self.store = context.get_state_store("counts")

    def process(self, record):
        """Count one record."""
        if record.value == "drop":
            return
        count = (self.store.get(record.key) or 0) + 1
        self.store.put(record.key, count)
        self.context.forward(record.with_value(str(count)))


def _topology(source, sink):
    string = Serdes.string()
    counts = Stores.key_value_store_builder(Stores.persistent_key_value_store("counts"), string, Serdes.long())
    topology = Topology()
    topology.add_source("source", source, key_serde=string, value_serde=string)
    topology.add_processor("count", Count, "source")
    topology.add_state_store(counts, "count")
    topology.add_sink("sink", sink, "count", key_serde=string, value_serde=string)
    return topology


def _read(kafka, topic, count):
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    records = []

    def take():
        records.extend(message for message in consumer.consume(count, 0.2) if message.error() is None)

    wait_until(lambda: len(records) == count, lambda: f"{count} records, not {len(records)}", meanwhile=take, poll_s=0)
    consumer.close()
    return records


def _points(reader):
    data = reader.get_metrics_data()
    return {
        metric.name: [(dict(point.attributes), point.value) for point in metric.data.data_points]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@pytest.fixture
def traced_application(kafka, topic_factory, tmp_path):
    """Run an application over ten records of one trace; give what was exported and written."""
    source, sink = topic_factory("in"), topic_factory("out")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(RECORDS):
        traceparent = f"00-{TRACE_ID}-{number + 1:016x}-01"
        producer.produce(source, "word", "k", headers=[("traceparent", traceparent), ("lang", "en")])
    assert producer.flush(PATIENCE_S) == 0
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    settings = {
        "application.id": f"traced-{source}",
        "bootstrap.servers": kafka.bootstrap_servers,
        "state.dir": str(tmp_path),
        "commit.interval.ms": 50,
        "metrics.recording.level": "debug",
        "auto.offset.reset": "earliest",
    }
    telemetry = Telemetry(Tracing(tracers.get_tracer("test"), settings["application.id"]), tracers, meters)
    streams = KafkaStreams(_topology(source, sink), settings, instrumentation=telemetry.tracing)
    telemetry.observe(streams)
    with streams:
        written = _read(kafka, sink, RECORDS)
        changes = _read(kafka, f"traced-{source}-counts-changelog", RECORDS)
        wait_until(
            lambda: any(span.name.startswith("commit ") for span in exporter.get_finished_spans()), "a commit's span"
        )
        points = _points(reader)
    meters.shutdown()
    return exporter.get_finished_spans(), written, changes, points


def test_spans_and_metrics_of_a_running_application(traced_application):
    """Fetches, records, sends and commits are spans; traces are propagated; changelogs are unchanged; counters are exported."""
    spans, written, changes, points = traced_application
    by_kind = {kind: [span for span in spans if span.kind is kind] for kind in SpanKind}

    processed = by_kind[SpanKind.CONSUMER]
    assert [span.attributes["messaging.kafka.offset"] for span in processed] == list(range(RECORDS))
    assert {f"{span.context.trace_id:032x}" for span in processed} == {TRACE_ID}
    assert [span.parent.span_id for span in processed] == list(range(1, RECORDS + 1))

    sends = by_kind[SpanKind.PRODUCER]
    assert [span.parent.span_id for span in sends] == [span.context.span_id for span in processed]
    headers = [dict(record.headers()) for record in written]
    assert [header["traceparent"].decode().split("-")[2] for header in headers] == [
        f"{span.context.span_id:016x}" for span in sends
    ]
    assert {header["lang"] for header in headers} == {b"en"}
    assert not any(record.headers() for record in changes)

    names = {span.name.split()[0] for span in spans}
    assert names == {"poll", "process", "send", "flush", "commit"}
    fetched = [span.attributes["messaging.batch.message_count"] for span in spans if span.name.startswith("poll ")]
    assert sum(fetched) == RECORDS

    known = {exported for _, _, exported, _, _ in mapping_rows()}
    assert set(points) <= known
    [(attributes, total)] = points["org.apache.kafka.stream.thread.process.total"]
    assert total == RECORDS
    assert attributes["thread_id"].endswith("StreamThread-1")
    [(attributes, total)] = points["org.apache.kafka.stream.task.process.total"]
    assert (attributes["task_id"], total) == ("0_0", RECORDS)
    assert points["org.apache.kafka.stream.client.state"][0][1] == 2
    assert points["org.apache.kafka.stream.alive.stream.threads"][0][1] == 1
    assert points["org.apache.kafka.stream.thread.commit.total"][0][1] >= 1
