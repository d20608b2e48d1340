"""Connections to a server that accepts them and never answers."""

import gc
import socket
import threading

import kafka.errors as kafka_errors
import pytest
from tests.waiting import PATIENCE_S, wait_until

from millrace.config import StreamsConfig
from millrace.errors import BrokerUnreachableError
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.connection import Connection
from millrace.kafka.connection_check import check_connection


@pytest.fixture
def silent():
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def config(silent):
    """The configuration of an application that uses this server as a broker with TLS."""
    servers = f"127.0.0.1:{silent.getsockname()[1]}"
    return StreamsConfig.of({"application.id": "app", "bootstrap.servers": servers, "security.protocol": "SSL"})


@pytest.fixture
def connection(config):
    """A connection with that configuration."""
    return Connection(ClientSettings(config, "test").kafka_python())


async def connect(connection, timeout_ms):
    """Connect to the first of the brokers."""
    await connection.manager.get_connection("bootstrap-0", timeout_ms=timeout_ms, pop_on_close=False)


def test_an_unanswered_handshake_times_out(connection):
    """The TLS handshake has the same time limit as connecting."""
    try:
        with pytest.raises(kafka_errors.KafkaError):
            connection.run(connect, connection, 500)
    finally:
        connection.close()


def test_a_connection_closed_in_mid_handshake_leaves_no_socket(connection, silent):
    """Closing while it connects leaves no open socket, which would cause a ResourceWarning."""
    connection.start(connect, connection, 60_000)
    accepted, _ = silent.accept()
    with accepted:
        assert accepted.recv(1), "the handshake has begun"
        connection.close()
    del connection
    gc.collect()


def test_a_slow_server_is_not_mistaken_for_one_of_another_protocol(config):
    """A server that does not answer in time may still speak TLS."""
    with pytest.raises(BrokerUnreachableError):
        check_connection(ClientSettings(config, "test"), timeout_s=0.5)


@pytest.fixture
def slow_names(monkeypatch):
    """An event; the name server resolves slow.example only once it is set."""
    answers, look_up = threading.Event(), socket.getaddrinfo

    def slowly(host, *args, **options):
        if host == "slow.example":
            answers.wait(PATIENCE_S)
            answers.set()
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return look_up(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    yield answers
    answers.set()


async def answer():
    """Do something else on the IO thread."""
    return "done"


def connection_to_slow_name():
    """Return a connection to a broker whose name takes long to resolve."""
    config = StreamsConfig.of({"application.id": "app", "bootstrap.servers": "slow.example:9092"})
    return Connection(ClientSettings(config, "test").kafka_python())


def test_a_slow_name_server_does_not_hold_up_other_work(slow_names):
    """While a broker's name is being resolved, the IO thread keeps working, as it sends heartbeats."""
    connection = connection_to_slow_name()
    try:
        connecting = connection.start(connect, connection, 60_000)
        other = connection.start(answer)
        wait_until(lambda: other.is_done, "the other work")
        assert not connecting.is_done
        slow_names.set()
        wait_until(lambda: connecting.is_done, "the look-up")
        assert isinstance(connecting.exception, kafka_errors.KafkaConnectionError)
        assert "slow.example has no address" in str(connecting.exception)
    finally:
        slow_names.set()
        connection.close()


def test_an_unanswered_name_lookup_times_out(slow_names):
    """Resolving a name has the same time limit as connecting."""
    connection = connection_to_slow_name()
    try:
        with pytest.raises(kafka_errors.KafkaError):
            connection.run(connect, connection, 200)
        assert not slow_names.is_set()
    finally:
        slow_names.set()
        connection.close()
