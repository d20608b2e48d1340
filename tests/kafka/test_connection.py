"""Connections to a server that accepts them and then says nothing."""

import gc
import socket
import threading

import kafka.errors as kafka_errors
import pytest
from tests.waiting import wait_until

from millrace.config import StreamsConfig
from millrace.errors import BrokerUnreachableError
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.connection import Connection
from millrace.kafka.connection_check import check_connection


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
        check_connection(ClientSettings(config, "test"), timeout_s=0.5)


@pytest.fixture
def slow_names(monkeypatch):
    """The name server answers for slow.example only once this event is set."""
    answers, look_up = threading.Event(), socket.getaddrinfo

    def slowly(host, *args, **options):
        if host == "slow.example":
            answers.wait(120)
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
    """Return a connection to a broker whose name is looked up slowly."""
    config = StreamsConfig.of({"application.id": "app", "bootstrap.servers": "slow.example:9092"})
    return Connection(ClientSettings(config, "test").kafka_python())


def test_a_slow_name_server_does_not_hold_up_other_work(slow_names):
    """While a broker's name is looked up, the IO thread goes on: it sends the heartbeats."""
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


def test_a_name_server_that_does_not_answer_is_given_up(slow_names):
    """A look-up takes no longer than connecting may take."""
    connection = connection_to_slow_name()
    try:
        with pytest.raises(kafka_errors.KafkaError):
            connection.run(connect, connection, 200)
        assert not slow_names.is_set()
    finally:
        slow_names.set()
        connection.close()
