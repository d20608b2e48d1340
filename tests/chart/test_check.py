"""What `helm test` runs: an answer decides, and who refuses connections at first is asked again for a while."""

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
    """Is ready, and has nothing else."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 503)
        self.end_headers()
        self.wfile.write(b"as asked")

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """An operator that has its address, but refuses connections until it is started."""
    server = HTTPServer(("127.0.0.1", 0), Operator, bind_and_activate=False)
    server.server_bind()
    yield server
    server.server_close()


def start(server: HTTPServer) -> None:
    """Have it take connections, one at least."""
    server.server_activate()
    threading.Thread(target=server.handle_request, daemon=True).start()


def url(server: HTTPServer, path: str = "/readyz") -> str:
    """Return an address of it."""
    return f"http://127.0.0.1:{server.server_port}{path}"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, which knows where the API server is."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    spec = importlib.util.spec_from_file_location("check", CHART / "files" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_service_that_refuses_connections_at_first_is_asked_again(
    check: ModuleType, server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Straight after an installation nothing may lead to the operator yet."""
    monkeypatch.setattr(time, "sleep", lambda _: start(server))
    assert check.get(url(server)) == b"as asked"


def test_service_that_goes_on_refusing_fails_the_check(
    check: ModuleType, server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a minute, with the address that was tried."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    with pytest.raises(SystemExit, match=f"{url(server)} does not answer"):
        check.get(url(server))
    assert 60 <= now[0] < 70


def test_answer_that_is_no_success_fails_the_check_at_once(
    check: ModuleType, server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from who was asked, so that asking again says nothing new."""
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it was asked again"))
    start(server)
    with pytest.raises(SystemExit, match="answers 503: as asked"):
        check.get(url(server, "/elsewhere"))
