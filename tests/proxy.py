"""A broker's proxy for tests: passes requests and answers on, as a subclass decides."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading

from tests.waiting import PATIENCE_S

HOST = "127.0.0.1"


class BrokerProxy:
    """Accepts clients' connections and opens one to the broker for each; two threads pass on what is sent.

    Args:
        port: where it listens; 0 for any.
    """

    def __init__(self, port):
        self.broker = None
        """The broker's port, once known."""
        self._listener = socket.create_server((HOST, port))
        self.port = self._listener.getsockname()[1]
        """Where it listens."""
        self._sockets = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self):
        """Accept no connection any more, and end those there are."""
        self._listener.shutdown(socket.SHUT_RDWR)  # `close` alone does not wake a thread that waits in `accept`
        self._accepting.join()
        self._listener.close()
        self.end_connections()

    def end_connections(self):
        """End the connections there are."""
        for each in self._sockets:
            with contextlib.suppress(OSError):  # its peer was faster
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._sockets.clear()

    def pass_requests(self, client, server):
        """Pass requests on until a connection ends, which raises OSError."""
        raise NotImplementedError

    def pass_answers(self, client, server):
        """Pass answers on until a connection ends."""
        raise NotImplementedError

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                server = socket.create_connection((HOST, self.broker))
                self._sockets.append(server)
            except OSError:
                return
            for pass_on in (self.pass_requests, self.pass_answers):
                threading.Thread(target=self._until_it_ends, args=(pass_on, client, server), daemon=True).start()

    @staticmethod
    def _until_it_ends(pass_on, client, server):
        with contextlib.suppress(OSError):
            pass_on(client, server)


class LateRequests(BrokerProxy):
    """Loses the connection on which a request is sent, and lets the broker have that request later.

    Clients that are told of brokers are told of the proxy instead.

    Args:
        broker: the broker's port.
    """

    def __init__(self, broker):
        self._kind = None
        self._held = self._held_for = None
        self._answers = queue.Queue()
        self.slow_s = 0
        """How long each answer takes."""
        super().__init__(0)
        self.broker = broker
        self.address = f"{HOST}:{self.port}"

    @property
    def holds(self):
        """Whether it has a request that the broker does not have yet."""
        return self._held is not None

    def hold(self, kind):
        """Hold the next request of a kind back, and end the connection that it came on."""
        self._kind = kind

    def deliver(self):
        """Let the broker have the request that was held, and return its answer, from the correlation id on."""
        request, self._held = self._held, None
        self._held_for.sendall(request)
        return self._answers.get(timeout=PATIENCE_S)

    def pass_requests(self, client, server):
        """Pass requests on until one is held."""
        while True:
            request = read_request(client)
            if api_key(request) == self._kind:
                self._kind, self._held, self._held_for = None, request, server
                client.shutdown(socket.SHUT_RDWR)
                return
            server.sendall(request)

    def pass_answers(self, client, server):
        """Pass answers on, with the proxy's port for the broker's."""
        brokers, own = (HOST.encode() + struct.pack(">i", port) for port in (self.broker, self.port))
        while answer := read_request(server):
            if server is self._held_for:
                self._answers.put(answer[4:])
            else:
                threading.Event().wait(self.slow_s)
                client.sendall(answer.replace(brokers, own))


def read_request(client):
    """Read one request with its length; a timeout applies to its beginning only."""
    begin = receive(client, 1)
    client.settimeout(None)
    begin += receive(client, 3)
    return begin + receive(client, struct.unpack(">i", begin)[0])


def api_key(request):
    """Return what kind of request it is."""
    return struct.unpack(">h", request[4:6])[0]


def receive(client, size):
    """Read this many bytes."""
    data = b""
    while len(data) < size:
        more = client.recv(size - len(data))
        if not more:
            raise OSError("the client has gone")
        data += more
    return data
