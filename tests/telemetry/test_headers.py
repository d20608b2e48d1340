"""Headers of OTLP requests from a file: sent, reread, and never shown."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.records import NO_HEADERS, TaskId
from millrace.telemetry import configure
from millrace.telemetry.setup import read_headers


@pytest.fixture
def collector():
    """Give an HTTP server on loopback that keeps the headers it is sent, by path."""
    received = {}

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            received.setdefault(self.path, []).append(self.headers)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args):
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.received, server.url = received, f"http://127.0.0.1:{server.server_port}"
        yield server
        server.shutdown()
        thread.join()


def config(file):
    """Return the configuration of an application with headers in a file."""
    return StreamsConfig.of({"application.id": "app", "telemetry.otlp.headers.file": str(file)})


def test_headers_are_sent_and_read_again(tmp_path, collector, monkeypatch, caplog):
    """Traces and metrics are sent with the headers: new ones after the file changes, the last ones while it is missing."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=from-variable,x-key=from-variable")
    file = tmp_path / "headers"
    file.write_text("X-Key=first%20key\n")
    telemetry = configure(config(file))
    telemetry.meter_provider.get_meter("test").create_counter("tests").add(1)
    traces = []

    def export():
        with telemetry.tracing.record(TaskId(0, 0), "in", 0, 0, NO_HEADERS):
            pass
        for provider in telemetry.owned:
            assert provider.force_flush()
        traces.append(collector.received["/v1/traces"][-1])

    try:
        export()
        file.write_text("x-key=second,x-more=a=b\n")
        export()
        file.unlink()
        export()
    finally:
        telemetry.shutdown()
    assert [headers["x-key"] for headers in traces] == ["first key", "second", "second"]
    assert traces[0]["x-tenant"] == "from-variable"
    assert traces[2]["x-more"] == "a=b"
    assert collector.received["/v1/metrics"][0]["x-key"] == "first key"
    assert "the previous headers are sent" in caplog.text
    assert "second" not in caplog.text


def test_missing_file_ends_the_start(tmp_path, monkeypatch):
    """The error names the setting and the file."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(
        ConfigError, match=rf"telemetry\.otlp\.headers\.file={tmp_path}/headers cannot be read: No such"
    ):
        configure(config(tmp_path / "headers"))


@pytest.mark.parametrize("text", ["no-header", "=do-not-show", "a b=c", "ok=1,do-not-show"])
def test_invalid_header_is_refused_and_not_shown(tmp_path, text):
    """The error gives the number of the entry and not its text, which may be a key without a name."""
    (tmp_path / "headers").write_text(text)
    with pytest.raises(ConfigError, match=r"entry \d is not a header") as caught:
        read_headers(tmp_path / "headers")
    assert text.rpartition(",")[2] not in str(caught.value)


def test_headers_may_be_on_separate_lines(tmp_path):
    """Headers may be on one line or on several, with blank lines."""
    (tmp_path / "headers").write_text("a=1\n\nb=2, c = 3,\n")
    assert read_headers(tmp_path / "headers") == {"a": "1", "b": "2", "c": "3"}
