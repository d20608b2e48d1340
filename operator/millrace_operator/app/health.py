"""Serves the operator's probes and metrics.

Liveness is about progress, not about answering: it fails when a pass has taken longer than any should, a worker has died, or the
loop of watches or that of the Lease has stopped running. A long queue fails no probe, nor does an API server or a broker that is
away: a restart would not help.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Check = Callable[[], list[str]]
"""Returns what is wrong, as messages; nothing if all is well."""


class _Server(ThreadingHTTPServer):
    """Listens on all addresses, of IPv4 and of IPv6 where the machine has both: a pod may have either."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class OperatorHealthServer:
    """Answers /healthz, /readyz and /metrics until it is closed.

    Args:
        port: Where to listen; 0 for any free port.
        live: Returns reasons why the operator is not alive.
        ready: Returns reasons why it is not ready.
        registry: The metrics.
    """

    def __init__(self, port: int, *, live: Check, ready: Check, registry: CollectorRegistry) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                match self.path.partition("?")[0]:
                    case "/healthz":
                        self._answer_check(live)
                    case "/readyz":
                        self._answer_check(ready)
                    case "/metrics":
                        self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                    case _:
                        self._answer(404, "text/plain", b"there are /healthz, /readyz and /metrics\n")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Probes come every few seconds: they are not logged."""

            def _answer_check(self, check: Check) -> None:
                reasons = check()
                body = json.dumps({"ok": not reasons, "reasons": reasons}).encode()
                self._answer(503 if reasons else 200, "application/json", body)

            def _answer(self, status: int, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = _Server(("", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
