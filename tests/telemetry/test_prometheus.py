"""The page `/metrics` of an instance, as Prometheus reads it."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.instance.support import last_counts, produce, running, settings, two_step_word_count
from tests.waiting import wait_until

from millrace.config import StreamsConfig
from millrace.instance import State
from millrace.telemetry import configure
from millrace.telemetry.metrics import mapping_rows

LINES = [f"w{number % 7}" for number in range(50)]


def fetch(address):
    """Return status code, content type and text of the page."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type"), response.read().decode()
    finally:
        connection.close()


def samples(text):
    """Return labels and value of every series by its name."""
    found: dict[str, list] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def run(kafka, tmp_path, look, **others):
    """Run a word count with the telemetry that its settings alone ask for, and scrape it once it has counted."""
    app = f"app-{secrets.token_hex(4)}"
    kafka.create_topics(f"{app}-in", f"{app}-out")
    produce(kafka, f"{app}-in", LINES)
    given = settings(kafka.bootstrap_servers, app, tmp_path / "state", metrics_recording_level="DEBUG")
    config = StreamsConfig.of(given | {"health.listener": "127.0.0.1:0", **others})
    telemetry = configure(config, {})
    options = {} if telemetry is None else {"metrics_page": telemetry.metrics_page}
    try:
        with running(two_step_word_count(f"{app}-in", f"{app}-out"), config, **options) as streams:
            if telemetry is not None:
                telemetry.observe(streams)
            wait_until(lambda: sum(last_counts(kafka, f"{app}-out").values()) == len(LINES), "counted")
            wait_until(lambda: streams.state is State.RUNNING, "running")
            look(streams.health_address)
    finally:
        if telemetry is not None:
            telemetry.shutdown()


@pytest.mark.broker
def test_prometheus_can_read_every_metric(kafka, tmp_path):
    """With `health.metrics` the page has every metric, with the names used by the alerts and current values."""
    total = "org_apache_kafka_stream_thread_process_total"

    def look(address):
        wait_until(
            lambda: total in (page := samples(fetch(address)[2])) and page[total][0][1] == 2 * len(LINES), "counted"
        )
        status, content_type, text = fetch(address)
        assert status == 200
        assert content_type.startswith("text/plain; version=")
        page = samples(text)
        known = {name.replace(".", "_") for _, _, name, _, _ in mapping_rows()}
        assert {name for name in page if name.startswith("org_apache_kafka_")} <= known
        [(labels, processed)] = page[total]
        assert processed == 2 * len(LINES)
        assert labels["thread_id"].endswith("StreamThread-1")
        by_task = page["org_apache_kafka_stream_task_process_total"]
        assert sum(value for _, value in by_task) == 2 * len(LINES)
        assert {labels["task_id"] for labels, _ in by_task} == {"0_0", "1_0"}
        assert page["org_apache_kafka_stream_alive_stream_threads"][0][1] == 1
        [(labels, _)] = page["target_info"]
        assert labels["service_name"].startswith("app-")
        polls = "org_apache_kafka_stream_thread_poll_total"
        wait_until(lambda: samples(fetch(address)[2])[polls][0][1] > page[polls][0][1], "the page to be of the moment")

    run(kafka, tmp_path, look, **{"health.metrics": True})


@pytest.mark.broker
def test_without_the_setting_there_is_no_page(kafka, tmp_path):
    """Nothing is measured, and the page is not found."""

    def look(address):
        status, _, text = fetch(address)
        assert status == 404
        assert "/metrics" not in json.loads(text)["reasons"][0]

    run(kafka, tmp_path, look)


JOINED = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from millrace.config import StreamsConfig
from millrace.telemetry import configure

metrics.set_meter_provider(MeterProvider())
telemetry = configure(StreamsConfig.of({"application.id": "app", "health.metrics": True}), {})
metrics.get_meter("orders").create_counter("orders.rejected").add(3)
print(telemetry.metrics_page().body.decode())
"""


def test_users_own_metrics_are_on_the_page():
    """A meter provider set up by the application is used; runs in a separate process, as there can be only one provider."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    result = subprocess.run(
        [sys.executable, "-c", JOINED], env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    assert samples(result.stdout)["orders_rejected_total"][0][1] == 3
