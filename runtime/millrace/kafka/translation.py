"""Translates Java's client settings to librdkafka's.

Most keys have the same name in both. The rest are renamed, converted, or dropped with a debug log, because they are handled
elsewhere (`max.poll.records`), have no counterpart (`default.api.timeout.ms`) or are specific to Java
(`interceptor.classes`). There is no list of librdkafka's keys here: librdkafka is asked.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

from millrace.config import ClientConfig
from millrace.config_providers import Hidden
from millrace.errors import ConfigError
from millrace.kafka.security import HIDDEN, ClientProperties, is_secret

log = logging.getLogger("millrace.kafka.clients")

_PROBE = "millrace.unknown.property"


def _socket_buffer(value: Any) -> object:
    return 0 if int(value) < 0 else value  # Java's -1 and librdkafka's 0 mean the system's default


_RENAMED: Mapping[str, tuple[str, Callable[[Any], object]]] = {
    "receive.buffer.bytes": ("socket.receive.buffer.bytes", _socket_buffer),
    "send.buffer.bytes": ("socket.send.buffer.bytes", _socket_buffer),
    "fetch.max.wait.ms": ("fetch.wait.max.ms", int),
    "max.request.size": ("message.max.bytes", int),
    "buffer.memory": ("queue.buffering.max.kbytes", lambda value: max(1, int(value) // 1024)),
    "compression.gzip.level": ("compression.level", int),
    "compression.lz4.level": ("compression.level", int),
    "compression.zstd.level": ("compression.level", int),
    "socket.connection.setup.timeout.ms": ("socket.connection.setup.timeout.ms", int),
}
_REQUEST_TIMEOUT = "request.timeout.ms"

HANDLED_ELSEWHERE = frozenset(
    {
        *(
            "max.poll.records",
            "max.poll.interval.ms",
            "session.timeout.ms",
            "heartbeat.interval.ms",
            "group.instance.id",
        ),
        *("group.protocol", "group.remote.assignor", "partition.assignment.strategy", "auto.offset.reset", "group.id"),
        *("key.serializer", "value.serializer", "key.deserializer", "value.deserializer", "partitioner.class"),
        *("enable.auto.commit", "auto.commit.interval.ms", "transactional.id", "enable.auto.offset.store"),
    }
)
"""Client settings of librdkafka or Java that Millrace sets or uses itself."""

_FOR_OTHERS = ("ssl.", "sasl.", "security.", "schema.registry.", "basic.auth.")
"""Settings that are read elsewhere: by `security`, and by clients of a schema registry."""

_CONSUMER_ONLY = (
    "fetch.",
    "max.partition.fetch.bytes",
    "isolation.level",
    "check.crcs",
    "queued.",
    "allow.auto.create",
)
_PRODUCER_ONLY = (
    *(
        "linger.ms",
        "batch.",
        "acks",
        "retries",
        "compression.",
        "queue.buffering.",
        "delivery.timeout.ms",
        "partitioner",
    ),
    *(
        "enable.idempotence",
        "max.in.flight.requests",
        "transaction.timeout.ms",
        "message.timeout.ms",
        "sticky.",
        "message.max",
    ),
)

NO_COUNTERPART = frozenset(
    {
        *(
            "default.api.timeout.ms",
            "exclude.internal.topics",
            "interceptor.classes",
            "metric.reporters",
            "max.block.ms",
        ),
        *("schema.registry.url", "basic.auth.credentials.source", "basic.auth.user.info"),
        *("metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms", "auto.include.jmx.reporter"),
        *("socket.connection.setup.timeout.max.ms", "internal.leave.group.on.close", "config.providers"),
        *("partitioner.ignore.keys", "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms"),
        *("metadata.max.idle.ms", "internal.throw.on.fetch.stable.offset.unsupported", "bootstrap.controllers"),
        *(
            "ssl.protocol",
            "ssl.provider",
            "ssl.enabled.protocols",
            "ssl.trustmanager.algorithm",
            "ssl.engine.factory.class",
        ),
        *(
            "ssl.keymanager.algorithm",
            "ssl.secure.random.implementation",
            "security.providers",
            "share.acknowledgement.mode",
        ),
        *("sasl.client.callback.handler.class", "sasl.login.callback.handler.class", "sasl.login.class"),
        *(
            "sasl.login.refresh.buffer.seconds",
            "sasl.login.refresh.min.period.seconds",
            "sasl.login.refresh.window.factor",
        ),
        *("sasl.login.refresh.window.jitter", "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms"),
        *("sasl.login.retry.backoff.ms", "sasl.login.retry.backoff.max.ms", "transaction.two.phase.commit.enable"),
    }
)


def _complaint(key: str, value: object) -> str:
    """Return librdkafka's complaint about a property; opens no client, as the second property is never valid."""
    try:
        Producer({key: value, _PROBE: ""})
    except KafkaException as error:
        return str(error.args[0].str())
    raise AssertionError(f"librdkafka took the property {_PROBE}")


@functools.cache
def is_known(key: str) -> bool:
    """Return whether librdkafka has a property of this name."""
    return f'No such configuration property: "{key}"' not in _complaint(key, "")


def check_value(key: str, value: object) -> None:
    """Check one property's value with librdkafka itself.

    Raises:
        ConfigError: librdkafka does not accept the value; the message says what it accepts.
    """
    try:
        message = _complaint(key, value)
    except TypeError as error:
        raise ConfigError(f"Client setting {key} has a value of type {type(value).__name__}: {error}") from None
    if _PROBE not in message:
        if is_secret(key) or isinstance(value, Hidden):
            raise ConfigError(f"Client setting {key}={HIDDEN} is not valid: {message.replace(str(value), HIDDEN)}")
        raise ConfigError(f"Client setting {key}={value!r} is not valid: {message}")


def translate(settings: ClientConfig, client: str) -> ClientProperties:
    """Return Java client settings under librdkafka's names; security settings are left out (see `security`).

    Args:
        settings: Without prefixes.
        client: The kind of client: "producer", "admin", or ending in "consumer".

    Raises:
        ConfigError: A value is not valid.
    """
    translated = ClientProperties()
    for key, value in settings.items():
        if value is None or key.startswith(_FOR_OTHERS) or key in HANDLED_ELSEWHERE:
            continue
        if key == _REQUEST_TIMEOUT:
            translated["socket.timeout.ms"] = min(max(10, int(value)), 300_000)
            if client == "producer":
                translated[key] = int(value)
        elif key in _RENAMED:
            name, convert = _RENAMED[key]
            translated[name] = _converted(key, value, convert)
        elif key in NO_COUNTERPART:
            log.debug("%s setting %s has no counterpart here and is ignored", client, key)
        elif is_known(key):
            translated[key] = value
        else:
            log.warning(
                "%s setting %s is not known to any Kafka client and is ignored: check its spelling", client, key
            )
    foreign: tuple[str, ...] = _PRODUCER_ONLY if client.endswith("consumer") else _CONSUMER_ONLY
    if client == "admin":
        foreign = (*_PRODUCER_ONLY, *_CONSUMER_ONLY)
    for key, value in translated.items():
        check_value(key, value)
    return ClientProperties({key: value for key, value in translated.items() if not key.startswith(foreign)})


def _converted(key: str, value: object, convert: Callable[[Any], object]) -> object:
    try:
        return convert(value)
    except (TypeError, ValueError):
        raise ConfigError(f"Client setting {key}={value!r} is not a number") from None
