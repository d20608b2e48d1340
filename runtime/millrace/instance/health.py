"""Probes: whether an instance is alive, has started and is ready, and the HTTP server that answers them.

* *Live*: every loop makes progress. Delays that a restart would not fix do not count: restoring, rebalancing, waiting for a
  broker (which has its own limit, `task.timeout.ms`), closing.
* *Started*: every thread has been given an assignment, if only an empty one.
* *Ready*: the instance is live, and every task assigned to it runs.

The server has `/livez`, `/startedz`, `/readyz`, `/status` for people and the operator and, with `health.metrics`, `/metrics`
for Prometheus. Each request is answered in its own thread from a snapshot that never blocks, so it is answered even while
stream threads are stuck or brokers are down. The standard library's server is enough for a few small requests a minute. It
has no authentication, so it changes nothing and only exposes names and numbers, never keys, values or settings.
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
from typing import Final

from millrace.config import StreamsConfig
from millrace.errors import ListenerError
from millrace.instance.states import State, ThreadState
from millrace.instance_status import StreamsStatus, ThreadStatus
from millrace.kafka.client_settings import ClientSettings

_log = logging.getLogger(__name__)
_RUNS = frozenset({State.RUNNING.value, State.REBALANCING.value})
_FAILED = frozenset({State.PENDING_ERROR.value, State.ERROR.value})


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe, with the reasons why it fails; it passes if there are none."""

    reasons: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        """Whether the probe is answered with 200."""
        return not self.reasons


def check_live(status: StreamsStatus, max_poll_interval_ms: int) -> ProbeResult:
    """Return whether the instance should keep running, rather than be restarted.

    Args:
        status: a snapshot of it.
        max_poll_interval_ms: how long one round of a loop may take; a thread that takes longer counts as stuck, as in the
            group.
    """
    if status.state in _FAILED:
        return ProbeResult((f"the instance has failed: {status.error or status.state}",))
    if status.state not in _RUNS:
        return ProbeResult()
    reasons = (_why_stuck(thread, max_poll_interval_ms) for thread in status.threads)
    return ProbeResult(tuple(reason for reason in reasons if reason is not None))


def _why_stuck(thread: ThreadStatus, limit_ms: int) -> str | None:
    if not thread.alive:
        return None if thread.state == ThreadState.CREATED.value else f"{thread.name} has ended and was not replaced"
    if thread.waits_for is not None or thread.progress_age_ms <= limit_ms:
        return None
    return (
        f"{thread.name} has been in one round for {thread.progress_age_ms} ms, longer than max.poll.interval.ms={limit_ms}: "
        "it is stuck in a processor, punctuator or handler, or these are too slow"
    )


def check_started(status: StreamsStatus) -> ProbeResult:
    """Return whether the instance has joined its group."""
    if not status.threads:
        return ProbeResult((f"no thread has been started: {status.state}",))
    return ProbeResult(
        tuple(
            f"{thread.name} has not been given an assignment: {thread.state}"
            for thread in status.threads
            if not thread.joined
        )
    )


def check_ready(status: StreamsStatus, max_poll_interval_ms: int) -> ProbeResult:
    """Return whether every task of the instance is running, so that a rolling update may continue with the next one.

    Args:
        status: a snapshot of it.
        max_poll_interval_ms: as for `check_live`.
    """
    reasons = list(check_live(status, max_poll_interval_ms).reasons)
    reasons += check_started(status).reasons
    if status.state != State.RUNNING.value:
        reasons.append(f"the instance is {status.state}")
    for task in status.tasks:
        if task.role == "active" and task.state != "RUNNING":
            left = "" if task.remaining is None else f", {task.remaining} changelog records left"
            reasons.append(f"task {task.id} is {task.state}{left}")
    return ProbeResult(tuple(reasons))


def health_warnings(status: StreamsStatus) -> tuple[str, ...]:
    """Return problems of the application as a whole, which are no reason to restart or hold back this instance.

    A roll from one topology to another ends only if instances that refuse each other's tasks count as ready.
    """
    if not status.refused_tasks:
        return ()
    warning = (
        f"tasks {', '.join(status.refused_tasks)} are not taken: the group's leader has another topology. Run the same program "
        "in all instances, or give this one its own application.id"
    )
    return (warning,)


_CLIENT_TIMEOUT_S: Final = 10.0
_STOP_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Page:
    """A page that is not JSON."""

    content_type: str
    body: bytes


_Answer = tuple[HTTPStatus, dict[str, object] | Page]


class ProbeServer:
    """Answers probes about one instance.

    Args:
        listener: where to listen, HOST:PORT; no host means all IPv4 addresses, and all IPv6 addresses if the machine has any;
            port 0 means any free port.
        take_status: returns a snapshot without waiting; called in any thread.
        max_poll_interval_ms: how long one round of a stream thread may take.
        metrics: returns the page of metrics, in any thread; None = there is no such page.
    """

    def __init__(
        self,
        listener: str,
        take_status: Callable[[], StreamsStatus],
        max_poll_interval_ms: int,
        metrics: Callable[[], Page] | None = None,
    ) -> None:
        self._listener = listener
        self._server: _HttpServer | None = None
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
        """The host and port it listens on; None before `start` and after `close`."""
        return None if self._server is None else (self._server.server_name, self._server.server_port)

    def start(self) -> None:
        """Start listening and answering.

        Raises:
            ListenerError: the address is in use, does not belong to this machine, or is not allowed.
        """
        host, _, port = self._listener.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            self._server = _HttpServer((host, int(port)), self._pages)
        except OSError as error:
            raise ListenerError(f"Cannot listen on {self._listener} (health.listener): {error.strerror}") from error
        threading.Thread(
            target=self._server.serve_forever, args=(_STOP_POLL_S,), name="millrace-health", daemon=True
        ).start()
        name = f"[{self._server.server_name}]" if ":" in self._server.server_name else self._server.server_name
        _log.info("Probes and status are served on http://%s:%d", name, self._server.server_port)

    def close(self) -> None:
        """Stop listening; does nothing if it does not listen."""
        if self._server is not None:
            server, self._server = self._server, None
            server.shutdown()
            server.server_close()


def serve_probes(
    config: StreamsConfig,
    settings: ClientSettings,
    take_status: Callable[[], StreamsStatus],
    metrics: Callable[[], Page] | None,
) -> ProbeServer | None:
    """Start answering probes where `health.listener` says; None if it is not set.

    Raises:
        ListenerError: the address is in use, does not belong to this machine, or is not allowed.
    """
    if config.health_listener is None:
        return None
    server = ProbeServer(config.health_listener, take_status, settings.membership(1).max_poll_interval_ms, metrics)
    server.start()
    return server


def _probe(status: StreamsStatus, check: Callable[[StreamsStatus], ProbeResult]) -> _Answer:
    verdict = check(status)
    code = HTTPStatus.OK if verdict.passes else HTTPStatus.SERVICE_UNAVAILABLE
    return code, _answer(status, *verdict.reasons)


def _status(status: StreamsStatus, max_poll_interval_ms: int) -> _Answer:
    return HTTPStatus.OK, {**status.to_dict(), "ready": check_ready(status, max_poll_interval_ms).passes}


def _answer(status: StreamsStatus, *reasons: str) -> dict[str, object]:
    warnings = list(health_warnings(status))
    return {"ok": not reasons, "state": status.state, "reasons": list(reasons), "warnings": warnings}


class _HttpServer(ThreadingHTTPServer):
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
        """Log failed requests for debugging only: a client that disconnects is nothing to worry about."""
        _log.debug("A request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _HttpServer
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

    def _answer(self, code: HTTPStatus, body: dict[str, object] | Page) -> None:
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
