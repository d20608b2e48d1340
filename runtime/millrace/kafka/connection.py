"""kafka-python's networking, wrapped: one IO thread and one connection manager per user of it.

Only group membership goes this way (librdkafka has no custom assignors). These are internals of kafka-python 3.0.12, which is why
it is pinned; this module, `check` and `membership.coordinator` are the only ones that know them. One manager per group member: a
broker answers one request per connection at a time, and it answers a JoinGroup only when the whole group has joined.
"""

from __future__ import annotations

import concurrent.futures
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

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


class _Manager(KafkaConnectionManager):  # type: ignore[misc]
    """The library's, except that it looks names up in another thread, and closes the sockets of attempts to connect that fail."""

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        problem: Exception = kafka_errors.KafkaConnectionError(f"{node.host} has no address")
        tokens = self.config["sasl_oauth_token_provider"]
        if tokens is not None:
            try:
                await self._elsewhere(tokens.current, timeout_at)
            except StreamsError as error:
                raise kafka_errors.KafkaConnectionError(str(error)) from error
        for family, kind, protocol, _, address in await self._look_up(node.host, node.port, timeout_at):
            link = socket.socket(family, kind, protocol)
            try:
                return await self._open(link, node.host, address, timeout_at)
            except (OSError, kafka_errors.KafkaError) as error:
                link.close()
                problem = error
            except BaseException:  # the attempt is given up, because the manager closes
                link.close()
                raise
        raise kafka_errors.KafkaConnectionError(f"{node.host}:{node.port}: {problem}") from problem

    async def _look_up(self, host: str, port: int, timeout_at: float | None) -> Any:
        """Return the addresses of a host."""
        try:
            return await self._elsewhere(
                lambda: socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM), timeout_at
            )
        except kafka_errors.KafkaTimeoutError:
            raise kafka_errors.KafkaConnectionError(f"No name server has told the address of {host} in time") from None
        except (OSError, UnicodeError) as error:
            raise kafka_errors.KafkaConnectionError(f"{host} has no address: {error}") from error

    async def _elsewhere(self, function: Callable[[], _T], timeout_at: float | None) -> _T:
        """Call a function in a thread of its own: it may take long, and the IO thread has heartbeats to send meanwhile."""
        answer: concurrent.futures.Future[_T] = concurrent.futures.Future()
        done, at_end = socket.socketpair()

        def call() -> None:
            with at_end:  # its end can be waited for as any other input
                try:
                    answer.set_result(function())
                except Exception as error:  # raised where it is waited for
                    answer.set_exception(error)

        with done:
            threading.Thread(target=call, name="millrace-resolver", daemon=True).start()
            await self._net.wait_read(done, timeout_at)
            return answer.result()

    async def _open(self, link: socket.socket, host: str, address: Any, timeout_at: float | None) -> Any:
        link.setblocking(False)
        for option in self.config["socket_options"]:
            link.setsockopt(*option)
        await KafkaNetSocket().sock_connect(self._net, link, address, timeout_at=timeout_at)
        if not self.ssl_enabled:
            return KafkaTCPTransport(self._net, link, host=host)
        tls = {key: value for key, value in self.config.items() if key.startswith("ssl_")}
        transport = _Tls(self._net, link, host=host, **tls)
        try:
            await transport.shake_hands(timeout_at)
        except BaseException:  # also when the attempt is given up, because the manager closes
            transport.abort()
            raise
        return transport


class _Tls(KafkaSSLTransport):  # type: ignore[misc]
    """The library's transport, except that a server that does not finish the handshake is not waited for for ever."""

    async def shake_hands(self, timeout_at: float | None) -> None:
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
    """A connection manager on an IO thread of its own; closed once, by `close`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Start the IO thread; nothing is connected yet.

        Args:
            settings: kafka-python's, as `ClientSettings.kafka_python` gives them.
        """
        quiet_library()
        self.net = NetworkSelector(client_id=settings["client_id"], slow_task_threshold_secs=0)
        self.net.start()
        self.manager = _Manager(self.net, **settings)
        if isinstance(settings, ClientProperties) and settings.on_open is not None:
            settings.on_open(self)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Authenticate with these from now on; connections that stand use them when the broker asks again (KIP-368)."""
        changed = {"sasl_plain_username": username, "sasl_plain_password": password}
        self.manager.config.update(changed)
        for connection in list(self.manager._conns.values()):  # noqa: SLF001 (each has a copy of the settings)
            connection.config.update(changed)

    def run(self, function: Callable[..., Awaitable[_T]], *args: Any) -> _T:
        """Run a coroutine function on the IO thread and wait for its result."""
        result: _T = self.net.run(function, *args)
        return result

    def run_unless(self, given_up: Callable[[], bool], function: Callable[..., Awaitable[_T]], *args: Any) -> _T:
        """Run a coroutine function as `run` does, but leave it to itself when its result is waited for no more.

        Raises:
            StreamsTimeoutError: It was given up.
        """
        done = threading.Event()
        future = self.start(function, *args)
        future.add_both(lambda _: done.set())
        while not done.wait(_LOOK_EVERY_S):
            if given_up():
                raise StreamsTimeoutError("The group's coordinator has not answered, and is waited for no more")
        if future.exception is not None:
            raise future.exception
        result: _T = future.value
        return result

    def start(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Future:
        """Start a coroutine function on the IO thread and return its future."""
        return self.net.call_soon_with_future(function, *args)

    async def send(self, request: Any, node_id: int | str, timeout_ms: int | None = None) -> Any:
        """Send a request to a node and return its answer.

        Raises:
            kafka.errors.KafkaError: The node cannot be reached, closed the connection, or did not answer in time.
        """
        try:
            return await self.manager.send(request, node_id=node_id, request_timeout_ms=timeout_ms)
        except kafka_errors.KafkaError:
            raise
        except (OSError, RuntimeError) as error:  # what the transport and a closed selector raise
            raise kafka_errors.KafkaConnectionError(str(error)) from error

    async def sleep(self, seconds: float) -> None:
        """Let the IO thread do other work for a while."""
        await self.net.sleep(seconds)

    def close(self) -> None:
        """Close all connections and end the IO thread."""
        self.manager.close()
        self.net.stop(timeout_ms=30_000)
        self.net.close()


def open_network(**settings: Any) -> KafkaNetClient:
    """Return what kafka-python's admin client sends its requests over: the library's own, with our connection manager."""
    net = NetworkSelector(**settings)
    return KafkaNetClient(net, _Manager(net, **settings), **settings)


def quiet_library() -> None:
    """Keep kafka-python's log to what is fatal: it reports each failed attempt as an error; what matters of it we report."""
    library = logging.getLogger("kafka")
    if library.level == logging.NOTSET:
        library.setLevel(logging.CRITICAL)
