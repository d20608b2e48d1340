"""Fixtures of the tests of a running instance."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def app() -> str:
    """Return a new application id."""
    return f"app-{secrets.token_hex(4)}"


@pytest.fixture
def silent_broker() -> Iterator[tuple[str, threading.Event]]:
    """Listen on a port without answering; yield the address, and an event that is set when somebody has connected."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connected, links = threading.Event(), []

        def accept() -> None:
            while True:
                try:
                    links.append(server.accept()[0])
                except OSError:
                    return
                connected.set()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", connected
        server.shutdown(socket.SHUT_RDWR)
        accepting.join()
        for link in links:
            link.close()
