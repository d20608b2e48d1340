"""kafka-python's networking, with one IO thread and one connection manager for each `Connection`.

Only group membership and administration use it: librdkafka has no custom assignors and cannot remove members. These are internals
of kafka-python 3.0.12, which is why that release is pinned; only this module, `connection_check`, `group_admin` and
`membership.coordinator` know them. Each group member has its own manager: a broker answers one request per connection at a time,
and answers a JoinGroup only after the whole group has joined.
"""

from __future__ import annotations

import concurrent.futures
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import kafka.errors as kafka_errors
from kafka.future import Future
from kafka.net import KafkaConnectionManager, NetworkSelector
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

from millrace.errors import StreamsError, StreamsTimeoutError
from millrace.kafka.security import ClientProperties

log = logging.getLogger("millrace.kafka.connection")

_T = TypeVar("_T")
_LOOK_EVERY_S = 0.5
_SocketAddress = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, _SocketAddress]


class _Node(Protocol):
    host: str
    port: int


class _Manager(KafkaConnectionManager):  # type: ignore[misc]
    """The library's manager, except that it resolves names in another thread and closes the sockets of failed attempts."""

    async def _build_transport(self, node: _Node, timeout_at: float | None = None) -> KafkaTCPTransport:
        problem: Exception = kafka_errors.KafkaConnectionError(f"{node.host} has no address")
        tokens = self.config["sasl_oauth_token_provider"]
        if tokens is not None:
            try:
                await self._in_thread(tokens.current, timeout_at)
            except StreamsError as error:
                raise kafka_errors.KafkaConnectionError(str(error)) from error
        for family, kind, protocol, _, address in await self._look_up(node.host, node.port, timeout_at):
            link = socket.socket(family, kind, protocol)
            try:
                return await self._open(link, node.host, address, timeout_at)
            except (OSError, kafka_errors.KafkaError) as error:
                link.close()
                problem = error
            except BaseException:  # the manager is closing
                link.close()
                raise
        raise kafka_errors.KafkaConnectionError(f"{node.host}:{node.port}: {problem}") from problem

    async def _look_up(self, host: str, port: int, timeout_at: float | None) -> Sequence[_Address]:
        """Return the addresses of a host."""
        try:
            return await self._in_thread(
                lambda: socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM), timeout_at
            )
        except kafka_errors.KafkaTimeoutError:
            raise kafka_errors.KafkaConnectionError(f"No name server resolved {host} in time") from None
        except (OSError, UnicodeError) as error:
            raise kafka_errors.KafkaConnectionError(f"{host} has no address: {error}") from error

    async def _in_thread(self, function: Callable[[], _T], timeout_at: float | None) -> _T:
        """Call a function in another thread: it may take long, and the IO thread has heartbeats to send in the meantime."""
        answer: concurrent.futures.Future[_T] = concurrent.futures.Future()
        done, at_end = socket.socketpair()

        def call() -> None:
            with at_end:  # closing it wakes up the IO thread like any other input
                try:
                    answer.set_result(function())
                except Exception as error:  # raised by `answer.result()`
                    answer.set_exception(error)

        with done:
            threading.Thread(target=call, name="millrace-resolver", daemon=True).start()
            await self._net.wait_read(done, timeout_at)
            return answer.result()

    async def _open(
        self, link: socket.socket, host: str, address: _SocketAddress, timeout_at: float | None
    ) -> KafkaTCPTransport:
        link.setblocking(False)
        for option in self.config["socket_options"]:
            link.setsockopt(*option)
        await KafkaNetSocket().sock_connect(self._net, link, address, timeout_at=timeout_at)
        if not self.ssl_enabled:
            return KafkaTCPTransport(self._net, link, host=host)
        tls = {key: value for key, value in self.config.items() if key.startswith("ssl_")}
        transport = _Tls(self._net, link, host=host, **tls)
        try:
            await transport.handshake_within(timeout_at)
        except BaseException:  # including cancellation, when the manager closes
            transport.abort()
            raise
        return transport


class _Tls(KafkaSSLTransport):  # type: ignore[misc]
    """The library's transport, plus a TLS handshake with a time limit."""

    async def handshake_within(self, timeout_at: float | None) -> None:
        while True:
            try:
                self._sock.do_handshake()
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at)
            else:
                return


class Connection:
    """A connection manager with its own IO thread; `close` it once."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        """Start the IO thread; connects to nothing yet.

        Args:
            settings: kafka-python's settings, from `ClientSettings.kafka_python`.
        """
        quiet_library()
        self.net = NetworkSelector(client_id=settings["client_id"], slow_task_threshold_secs=0)
        self.net.start()
        self.manager = _Manager(self.net, **settings)
        if isinstance(settings, ClientProperties) and settings.on_open is not None:
            settings.on_open(self)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Authenticate with these from now on; on open connections when the broker asks for it (KIP-368)."""
        changed = {"sasl_plain_username": username, "sasl_plain_password": password}
        self.manager.config.update(changed)
        for connection in list(self.manager._conns.values()):  # noqa: SLF001 (each has a copy of the settings)
            connection.config.update(changed)

    def run(self, function: Callable[..., Awaitable[_T]], *args: object) -> _T:
        """Run a coroutine function on the IO thread and wait for its result."""
        result: _T = self.net.run(function, *args)
        return result

    def run_unless(self, given_up: Callable[[], bool], function: Callable[..., Awaitable[_T]], *args: object) -> _T:
        """Run a coroutine function as `run` does, but stop waiting for its result once `given_up` returns true.

        Raises:
            StreamsTimeoutError: The wait was given up.
        """
        done = threading.Event()
        future = self.start(function, *args)
        future.add_both(lambda _: done.set())
        while not done.wait(_LOOK_EVERY_S):
            if given_up():
                raise StreamsTimeoutError(
                    "The group's coordinator has not answered, and this thread has stopped waiting for it"
                )
        if future.exception is not None:
            raise future.exception
        result: _T = future.value
        return result

    def start(self, function: Callable[..., Awaitable[object]], *args: object) -> Future:
        """Start a coroutine function on the IO thread and return its future."""
        return self.net.call_soon_with_future(function, *args)

    async def send(self, request: object, node_id: int | str, timeout_ms: int | None = None) -> Any:
        """Send a request to a node and return its answer.

        Raises:
            kafka.errors.KafkaError: The node cannot be reached, closed the connection, or did not answer in time.
        """
        try:
            return await self.manager.send(request, node_id=node_id, request_timeout_ms=timeout_ms)
        except kafka_errors.KafkaError:
            raise
        except (OSError, RuntimeError) as error:  # from the transport, or a closed selector
            raise kafka_errors.KafkaConnectionError(str(error)) from error

    async def sleep(self, seconds: float) -> None:
        """Let the IO thread do other work for a while."""
        await self.net.sleep(seconds)

    def close(self) -> None:
        """Close all connections and end the IO thread."""
        self.manager.close()
        self.net.stop(timeout_ms=30_000)
        self.net.close()


def open_network(**settings: object) -> KafkaNetClient:
    """Return the network client for kafka-python's admin client: the library's own, with our connection manager."""
    net = NetworkSelector(**settings)
    return KafkaNetClient(net, _Manager(net, **settings), **settings)


def quiet_library() -> None:
    """Silence kafka-python's log, which reports every failed attempt as an error; real problems are logged here."""
    library = logging.getLogger("kafka")
    if library.level == logging.NOTSET:
        library.setLevel(logging.CRITICAL)
