"""Connections to a server that accepts them and then says nothing."""

import gc
import socket

import kafka.errors as kafka_errors
import pytest

from millrace.config import StreamsConfig
from millrace.errors import BrokerUnreachableError
from millrace.kafka.check import check_connection
from millrace.kafka.clients import ClientSettings
from millrace.kafka.connection import Connection


@pytest.fixture
def silent():
    """A server that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def config(silent):
    """The configuration of an application for which it is a broker with TLS."""
    servers = f"127.0.0.1:{silent.getsockname()[1]}"
    return StreamsConfig.of({"application.id": "app", "bootstrap.servers": servers, "security.protocol": "SSL"})


@pytest.fixture
def connection(config):
    """A connection with that configuration."""
    return Connection(ClientSettings(config, "test").kafka_python())


async def connect(connection, timeout_ms):
    """Connect to the first of the brokers."""
    await connection.manager.get_connection("bootstrap-0", timeout_ms=timeout_ms, pop_on_close=False)


def test_a_handshake_that_is_not_answered_is_given_up(connection):
    """TLS is waited for as long as the rest of connecting, and no longer."""
    try:
        with pytest.raises(kafka_errors.KafkaError):
            connection.run(connect, connection, 500)
    finally:
        connection.close()


def test_a_connection_closed_in_mid_handshake_leaves_no_socket(connection, silent):
    """Whoever gives up while it connects leaves nothing to the garbage collector, which would tell of it."""
    connection.start(connect, connection, 60_000)
    accepted, _ = silent.accept()
    with accepted:
        assert accepted.recv(1), "the handshake has begun"
        connection.close()
    del connection
    gc.collect()


def test_a_server_that_is_too_slow_is_not_told_as_one_of_another_protocol(config):
    """It may speak TLS well, once it does."""
    with pytest.raises(BrokerUnreachableError):
        check_connection(config, timeout_s=0.5)
