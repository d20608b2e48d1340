"""The script that `helm test` runs: a response decides, and a server that refuses connections at first is asked again."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import ModuleType

import pytest
from tests.chart.test_files import CHART


class Operator(BaseHTTPRequestHandler):
    """Is ready, and knows nothing else."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 503)
        self.end_headers()
        self.wfile.write(b"as asked")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """An operator with an address, which refuses connections until it is started."""
    server = HTTPServer(("127.0.0.1", 0), Operator, bind_and_activate=False)
    server.server_bind()
    yield server
    server.server_close()


def start(server: HTTPServer) -> None:
    """Accept connections, at least one."""
    server.server_activate()
    threading.Thread(target=server.handle_request, daemon=True).start()


def url(server: HTTPServer, path: str = "/readyz") -> str:
    """Return the URL of a path."""
    return f"http://127.0.0.1:{server.server_port}{path}"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, configured with the API server's address."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    spec = importlib.util.spec_from_file_location("check", CHART / "files" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_refused_connections_are_retried(
    check: ModuleType, server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after an installation the operator may not be reachable yet."""
    monkeypatch.setattr(time, "sleep", lambda _: start(server))
    assert check.get(url(server)) == b"as asked"


def test_service_that_keeps_refusing_fails_the_check(
    check: ModuleType, server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails after a minute, and names the address that it tried."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with pytest.raises(SystemExit, match=f"{url(server)} does not answer"):
        check.get(url(server))
    assert 60 <= now[0] < 70


def test_error_response_fails_the_check_at_once(
    check: ModuleType, server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response comes from the right server, so asking again would not change it."""
    sleep, caller = time.sleep, threading.get_ident()

    def only_others(seconds):  # such as a thread of Spark's, which sleeps in this process
        assert threading.get_ident() != caller, "it was asked again"
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", only_others)
    start(server)
    with pytest.raises(SystemExit, match="answers 503: as asked"):
        check.get(url(server, "/elsewhere"))
