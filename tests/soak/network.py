"""The network between clients and brokers: a TCP proxy in front of each broker, which can be slow, silent or broken.

A `Rule` says what happens to which connections while it is active; several may be. Connections differ by broker, by the client
id in the client's first request, and by a random number that each gets when it is created. So a rule can affect some of them
while the others pass: responses on different connections then overtake each other, as on a real network.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

HOST = "127.0.0.1"
_CHUNK = 16_384
_LOOK_AGAIN_S = 0.05


@dataclass(eq=False)
class Connection:
    """A client's connection to a broker."""

    broker: int
    lot: float
    """A random number from 0 to 1."""
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    client_id: str = ""

    def reset(self) -> None:
        """End it immediately, without a goodbye (RST)."""
        for writer in (self.client, self.server):
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                writer.transport.abort()


@dataclass(frozen=True, eq=False)
class Rule:
    """What happens to matching connections."""

    broker: int | None = None
    client: str = ""
    """What the client id begins and ends with, around an asterisk; empty matches all."""
    lots: tuple[float, float] = (0.0, 1.0)
    silent: bool = False
    """Nothing passes, and nobody is notified: a black hole."""
    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Up to this much more, chosen at random for each piece of data."""
    bytes_per_s: float = 0.0
    answers_only: bool = False

    def is_for(self, connection: Connection) -> bool:
        """Whether a connection matches."""
        begin, _, end = self.client.partition("*")
        return (
            self.broker in (None, connection.broker)
            and self.lots[0] <= connection.lot < self.lots[1]
            and connection.client_id.startswith(begin)
            and connection.client_id.endswith(end)
        )


@dataclass
class Network:
    """Proxies for a number of brokers, in a separate thread; `ports` are the proxies' ports.

    Args:
        brokers: how many.
    """

    brokers: int
    ports: tuple[int, ...] = ()
    upstream: tuple[int, ...] = ()
    """The brokers' ports, once known."""
    rules: set[Rule] = field(default_factory=set)
    connections: set[Connection] = field(default_factory=set)
    made: int = 0
    cut: int = 0

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._chance = random.Random(0)
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        self.ports = tuple(self._call(self._listen(number)) for number in range(self.brokers))
        return self

    def __exit__(self, *_exc: object) -> None:
        self.reset(Rule())
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def bootstrap_servers(self) -> str:
        """The proxies' addresses, for `bootstrap.servers`."""
        return ",".join(f"{HOST}:{port}" for port in self.ports)

    def begin(self, rule: Rule) -> None:
        """Activate a rule, for new connections too."""
        self.rules = self.rules | {rule}

    def end(self, rule: Rule) -> None:
        """Deactivate a rule; connections that were silent are reset, as nobody knows what they missed."""
        self.rules = self.rules - {rule}
        if rule.silent:
            self.reset(rule)

    def reset(self, rule: Rule) -> int:
        """Reset the connections that a rule matches; return how many."""

        async def reset() -> int:
            doomed = [connection for connection in self.connections if rule.is_for(connection)]
            for connection in doomed:
                connection.reset()
            return len(doomed)

        count = self._call(reset())
        self.cut += count
        return count

    def _call(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _listen(self, broker: int) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(Connection(broker, self._chance.random(), writer), reader)

        server = await asyncio.start_server(accept, HOST, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _end(self) -> None:
        for server in self._servers:
            for listening in server.sockets:
                self._loop.remove_reader(listening.fileno())
        await asyncio.sleep(_LOOK_AGAIN_S)  # a closed server would leak what it has just accepted
        for server in self._servers:
            server.close()
        left = list(self.connections)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in left:
            connection.reset()
        await asyncio.sleep(0)  # sockets are closed in the loop's next round

    async def _serve(self, connection: Connection, reader: asyncio.StreamReader) -> None:
        self.connections.add(connection)
        self.made += 1
        try:
            first = await reader.read(_CHUNK)
            connection.client_id = client_id(first)
            server_reader, server = await asyncio.open_connection(HOST, self.upstream[connection.broker])
            connection.server = server
            await self._pass(connection, first, answer=False)
            server.write(first)
            pumps = (
                asyncio.create_task(self._pump(connection, reader, server, answer=False)),
                asyncio.create_task(self._pump(connection, server_reader, connection.client, answer=True)),
            )
            _, pending = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pending:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        finally:
            writers = [writer for writer in (connection.client, connection.server) if writer is not None]
            for writer in writers:
                writer.close()
            try:
                await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
            finally:
                self.connections.discard(connection)

    async def _pump(
        self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answer: bool
    ) -> None:
        while data := await reader.read(_CHUNK):
            await self._pass(connection, data, answer=answer)
            writer.write(data)
            await writer.drain()

    async def _pass(self, connection: Connection, data: bytes, *, answer: bool) -> None:
        wait_s = 0.0
        for rule in _for(connection, self.rules):
            if answer or not rule.answers_only:
                wait_s += rule.delay_s + rule.jitter_s * self._chance.random()
                wait_s += len(data) / rule.bytes_per_s if rule.bytes_per_s else 0.0
        if wait_s:
            await asyncio.sleep(wait_s)
        while any(rule.silent for rule in _for(connection, self.rules)):  # noqa: ASYNC110 (rules come from other threads)
            await asyncio.sleep(_LOOK_AGAIN_S)


def _for(connection: Connection, rules: Iterable[Rule]) -> list[Rule]:
    return [rule for rule in rules if rule.is_for(connection)]


def client_id(request: bytes) -> str:
    """Return the client id in a request's header: size, api key, version, correlation id, then a string with its length.

    >>> client_id(bytes.fromhex("00000010 0012 0003 00000001 0003") + b"one...")
    'one'
    """
    if len(request) < 14:
        return ""
    length = int.from_bytes(request[12:14], "big", signed=True)
    return request[14 : 14 + max(0, length)].decode(errors="replace")
