"""A pre-flight check of the brokers that tells why a first connection fails.

Both client libraries retry indefinitely and report "timed out" or "disconnected" whether nothing listens, the password is wrong,
or the listener speaks another protocol. This check makes one connection step by step and reports the step that failed.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from enum import Enum

import kafka.errors as kafka_errors
from kafka.protocol.metadata import MetadataRequest

from millrace.config import StreamsConfig
from millrace.deadline import Deadline
from millrace.errors import AuthenticationError, BrokerUnreachableError, StreamsError
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.connection import Connection
from millrace.kafka.security import Security

log = logging.getLogger("millrace.kafka.check")

_RETRY_S = 0.25
_MISMATCH_PATIENCE_S = 5.0
"""Brokers also close connections while they start or stop, so a protocol mismatch counts only if it lasts this long."""
_ATTEMPT_S = 10.0


class _Step(Enum):
    NOBODY_LISTENS = "nobody listens"
    NOT_THE_PROTOCOL = "the listener speaks another protocol"
    CREDENTIALS = "the credentials were refused"
    NO_ANSWER = "it did not answer"


@dataclass(frozen=True, slots=True)
class _Failure:
    step: _Step
    server: str
    reason: str


def check_connection(settings: ClientSettings, timeout_s: float = 15.0) -> None:
    """Check that a broker answers and accepts the admin client's security settings; returns as soon as one does.

    Raises:
        BrokerUnreachableError: No broker of `bootstrap.servers` answered in time.
        AuthenticationError: The credentials or the mechanism were refused, or `security.protocol` is not the listener's.
        StreamsError: No token could be fetched.
    """
    config, security = settings.config, settings.security("admin.")
    security.for_librdkafka()
    if (tokens := settings.tokens("admin.")) is not None:
        tokens.current()  # raises if there is none, without asking a broker
    deadline, patience = Deadline(timeout_s), Deadline(min(timeout_s, _MISMATCH_PATIENCE_S))
    servers = list(config.bootstrap_servers)
    mismatch: _Failure | None = None
    while True:
        failures = []
        for server in servers:
            failure = _try(server, settings, security, min(_ATTEMPT_S, deadline.left_s(at_least=0.5)))
            if failure is None:
                return
            failures.append(failure)
        refused = next((f for f in failures if f.step is _Step.CREDENTIALS), None)
        if refused is not None:
            raise _error(refused, config, timeout_s)
        if any(f.step is not _Step.NO_ANSWER for f in failures):  # an attempt that timed out disproves nothing
            mismatch = next((f for f in failures if f.step is _Step.NOT_THE_PROTOCOL), None)
        if mismatch is not None and patience.passed:
            raise _error(mismatch, config, timeout_s)
        if deadline.left_s() <= _RETRY_S:
            raise _error(mismatch or failures[0], config, timeout_s)
        time.sleep(_RETRY_S)


def _error(failure: _Failure, config: StreamsConfig, timeout_s: float) -> StreamsError:
    servers, protocol = ",".join(config.bootstrap_servers), config.security_protocol
    if failure.step is _Step.CREDENTIALS:
        return AuthenticationError(f"The broker at {failure.server} refused the credentials: {failure.reason}")
    if failure.step is _Step.NOT_THE_PROTOCOL:
        return AuthenticationError(
            f"The broker at {failure.server} accepts connections but not security.protocol={protocol}: {failure.reason}. "
            "Set security.protocol to the listener's (PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL), or use another listener's port"
        )
    return BrokerUnreachableError(
        f"No broker of bootstrap.servers={servers} answered within {timeout_s:g} s ({failure.server}: {failure.reason}). "
        "Check that the brokers are running, that host and port are right, and that no firewall, network policy or DNS problem "
        "is in the way"
    )


def _try(server: str, settings: ClientSettings, security: Security, timeout_s: float) -> _Failure | None:
    host, port = split_server(server)
    try:
        link = socket.create_connection((host, port), timeout_s)
    except OSError as error:
        return _Failure(_Step.NOBODY_LISTENS, server, str(error))
    with link:
        if security.tls and (problem := _tls_problem(link, host, security)):
            return _Failure(problem[0], server, problem[1])
    own = settings.kafka_python() | {"bootstrap_servers": [server]}
    connection = Connection(own)
    try:
        return connection.run(_probe, connection, server, security, int(timeout_s * 1000))
    finally:
        connection.close()


def _tls_problem(link: socket.socket, host: str, security: Security) -> tuple[_Step, str] | None:
    try:
        with security.ssl_context().wrap_socket(link, server_hostname=host):
            return None
    except ssl.SSLCertVerificationError as error:
        return (
            _Step.NOT_THE_PROTOCOL,
            f"its TLS certificate is not trusted ({error.verify_message}): check ssl.ca.location and the host name",
        )
    except TimeoutError as error:
        return _Step.NO_ANSWER, str(error)
    except OSError as error:
        return _Step.NOT_THE_PROTOCOL, f"it does not speak TLS ({error})"


async def _probe(connection: Connection, server: str, security: Security, timeout_ms: int) -> _Failure | None:
    manager = connection.manager
    link = manager.get_connection(
        "bootstrap-0", timeout_ms=timeout_ms, pop_on_close=False, refresh_metadata_on_err=False
    )
    connected = False
    try:
        await link
        connected = True
        await link.send_request(MetadataRequest(topics=[]), request_timeout_ms=timeout_ms)
    except (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError) as error:
        return _Failure(_Step.NO_ANSWER, server, str(error))
    except (kafka_errors.SaslAuthenticationFailedError, kafka_errors.UnsupportedSaslMechanismError) as error:
        return _Failure(_Step.CREDENTIALS, server, _sasl_reason(server, security, str(error)))
    except kafka_errors.IllegalSaslStateError:
        return _Failure(_Step.NOT_THE_PROTOCOL, server, "this listener does not ask for SASL")
    except (kafka_errors.KafkaError, OSError, ValueError) as error:
        if security.sasl and link.broker_version_data is not None and not connected:
            # Brokers that refuse credentials close the connection, often before their answer has been read.
            return _Failure(_Step.CREDENTIALS, server, _sasl_reason(server, security, "it closed the connection"))
        hint = "it closed the connection; this listener asks for SASL or TLS" if not security.sasl else str(error)
        return _Failure(_Step.NOT_THE_PROTOCOL, server, str(error) if security.tls else hint)
    return None


def _sasl_reason(server: str, security: Security, fallback: str) -> str:
    offered = None
    with contextlib.suppress(OSError, struct.error, ValueError):  # it only improves the message
        offered = offered_mechanisms(server, security)
    if offered and security.mechanism not in offered:
        return f"it does not offer sasl.mechanism={security.mechanism}, but {', '.join(offered)}"
    if security.oauth is not None:
        return f"it does not accept the token ({fallback})"
    if offered:
        return f"the user name or password is wrong for sasl.mechanism={security.mechanism}"
    return fallback


def offered_mechanisms(server: str, security: Security, timeout_s: float = 5.0) -> list[str]:
    """Return the SASL mechanisms a listener offers, from its answer to a SaslHandshake (version 1).

    Raises:
        OSError: The listener cannot be reached, or closed the connection.
    """
    host, port = split_server(server)
    name = (security.mechanism or "PLAIN").encode()
    body = struct.pack(">hhih", 17, 1, 1, -1) + struct.pack(">h", len(name)) + name
    with contextlib.ExitStack() as stack:
        link: socket.socket = stack.enter_context(socket.create_connection((host, port), timeout_s))
        if security.tls:
            link = stack.enter_context(security.ssl_context().wrap_socket(link, server_hostname=host))
        link.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _receive(link, 4))
        answer = _receive(link, size)
    (count,) = struct.unpack_from(">i", answer, 6)
    position, mechanisms = 10, []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", answer, position)
        mechanisms.append(answer[position + 2 : position + 2 + length].decode())
        position += 2 + length
    return mechanisms


def _receive(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def split_server(server: str) -> tuple[str, int]:
    """Return host and port of `host:port`, `PROTOCOL://host:port` or `[ipv6]:port`.

    >>> split_server("[::1]:9092")
    ('::1', 9092)

    Raises:
        BrokerUnreachableError: It has no port, or the port is not a number.
    """
    address = server.rpartition("://")[2]
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise BrokerUnreachableError(f"bootstrap.servers has {server!r}, which is not host:port")
    return host.strip("[]"), int(port)
