"""The HTTP server of an instance's probes: `/livez`, `/startedz`, `/readyz`, and `/status` for people and the operator.

With `health.metrics` there is `/metrics` for Prometheus.

Each request is answered in a thread of its own from a snapshot that waits for nobody, so the answer comes also while stream
threads are stuck or brokers are away. The server is the standard library's: a few small requests a minute need no more. It has
no authentication, so it changes nothing, and tells names and numbers only, never keys, values or settings.
"""

from __future__ import annotations

import json
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from millrace.errors import ListenerError
from millrace.runtime.health import Verdict, check_live, check_ready, check_started
from millrace.runtime.status import StreamsStatus

__all__ = ["HealthServer", "Page"]

_log = logging.getLogger(__name__)
_CLIENT_TIMEOUT_S: Final = 10.0
_STOP_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Page:
    """A page that is not JSON."""

    content_type: str
    body: bytes


_Answer = tuple[HTTPStatus, dict[str, Any] | Page]


class HealthServer:
    """Answers probes about one instance.

    Args:
        listener: where to listen, HOST:PORT; no host means all addresses, of IPv4 and of IPv6 where the machine has it; port
            0 means any that is free.
        take_status: gives a snapshot, without waiting; called in any thread.
        max_poll_interval_ms: how long one round of a stream thread may take.
        metrics: gives the page of its metrics, in any thread; None = there is none.
    """

    def __init__(
        self,
        listener: str,
        take_status: Callable[[], StreamsStatus],
        max_poll_interval_ms: int,
        metrics: Callable[[], Page] | None = None,
    ) -> None:
        self._listener = listener
        self._server: _Server | None = None
        pages: dict[str, Callable[[], _Answer]] = {
            "/livez": lambda: _probe(take_status(), lambda status: check_live(status, max_poll_interval_ms)),
            "/startedz": lambda: _probe(take_status(), check_started),
            "/readyz": lambda: _probe(take_status(), lambda status: check_ready(status, max_poll_interval_ms)),
            "/status": lambda: _status(take_status(), max_poll_interval_ms),
        }
        if metrics is not None:
            pages["/metrics"] = lambda: (HTTPStatus.OK, metrics())
        self._pages = pages

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port it listens on, None before `start` and after `close`."""
        return None if self._server is None else (self._server.server_name, self._server.server_port)

    def start(self) -> None:
        """Listen, and answer from now on.

        Raises:
            ListenerError: the address is in use, not this machine's, or not allowed.
        """
        host, _, port = self._listener.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            self._server = _Server((host, int(port)), self._pages)
        except OSError as error:
            raise ListenerError(f"Cannot listen on {self._listener} (health.listener): {error.strerror}") from error
        threading.Thread(
            target=self._server.serve_forever, args=(_STOP_POLL_S,), name="millrace-health", daemon=True
        ).start()
        name = f"[{self._server.server_name}]" if ":" in self._server.server_name else self._server.server_name
        _log.info("Probes and status are served on http://%s:%d", name, self._server.server_port)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            server, self._server = self._server, None
            server.shutdown()
            server.server_close()


def _probe(status: StreamsStatus, check: Callable[[StreamsStatus], Verdict]) -> _Answer:
    verdict = check(status)
    code = HTTPStatus.OK if verdict.passes else HTTPStatus.SERVICE_UNAVAILABLE
    return code, _answer(status, *verdict.reasons)


def _status(status: StreamsStatus, max_poll_interval_ms: int) -> _Answer:
    return HTTPStatus.OK, {**status.to_dict(), "ready": check_ready(status, max_poll_interval_ms).passes}


def _answer(status: StreamsStatus, *reasons: str) -> dict[str, Any]:
    return {"ok": not reasons, "state": status.state, "reasons": list(reasons)}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Callable[[], _Answer]]) -> None:
        everywhere = not address[0] and socket.has_dualstack_ipv6()
        if everywhere or ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._both = everywhere
        self.pages = pages
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server for this machine's name, which may take long and is not needed."""
        if self._both:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 (as inherited)
        """Log what a client did, quietly: one that goes away is nothing to worry about."""
        _log.debug("A request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CLIENT_TIMEOUT_S
    server_version = "millrace"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with JSON, or with metrics."""
        pages = self.server.pages
        page = pages.get(self.path.partition("?")[0])
        if page is None:
            reason = f"there is {', '.join(pages)}"
            self._answer(HTTPStatus.NOT_FOUND, {"ok": False, "reasons": [reason]})
            return
        try:
            code, body = page()
        except Exception as error:
            _log.exception("%s could not be answered", self.path)
            code, body = (
                HTTPStatus.INTERNAL_SERVER_ERROR,
                {"ok": False, "reasons": [f"{type(error).__name__}: {error}"]},
            )
        self._answer(code, body)

    do_HEAD = do_GET  # noqa: N815 (named by the standard library)

    def _answer(self, code: HTTPStatus, body: dict[str, Any] | Page) -> None:
        page = body if isinstance(body, Page) else Page("application/json", json.dumps(body).encode() + b"\n")
        self.send_response(code)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (named by the standard library)
        """Log requests for debugging only: probes come every few seconds."""
        _log.debug(format, *args)
