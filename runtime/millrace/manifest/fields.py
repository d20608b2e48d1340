"""The kinds of scalar values that manifests are made of: names, addresses, quantities, durations, entrypoints.

Each is a plain string (or integer) with a rule. The rule stands twice in its type, as a check with a message a person can use
and as the schema the API server evaluates, both from the same regular expression (which Go's RE2 and Python read alike).
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from millrace.manifest.model import broken, cel

ENTRYPOINT_PATTERN = (
    r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
)
APPLICATION_ID_PATTERN = r"^[A-Za-z0-9._-]+$"
RESOURCE_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
SERVER_PATTERN = r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$"
IMAGE_PATTERN = r"^[^\s]+$"
QUANTITY_PATTERN = r"^([0-9]+(\.[0-9]+)?)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$"
DURATION_PATTERN = r"^([0-9]+(ms|s|m|h))+$"

RESOURCE_NAME_LENGTH = 52
"""A StatefulSet's pods carry its name and a revision hash in a label, which may have 63 characters."""

OWNED_SETTINGS = {
    "application.id": "spec.applicationId",
    "application.server": "the operator, for each replica",
    "bootstrap.servers": "spec.kafka.bootstrapServers",
    "client.id": "the operator, for each replica",
    "commit.interval.ms": "spec.processing.commitInterval",
    "consumer.group.id": "spec.applicationId",
    "consumer.group.instance.id": "the operator, for each replica",
    "enable.auto.commit": "Millrace, which commits offsets itself",
    "group.id": "spec.applicationId",
    "group.instance.id": "the operator, for each replica",
    "main.consumer.group.id": "spec.applicationId",
    "main.consumer.group.instance.id": "the operator, for each replica",
    "num.stream.threads": "spec.threads",
    "processing.guarantee": "spec.processing.guarantee",
    "producer.transactional.id": "Millrace, for each thread",
    "state.dir": "the operator, from spec.storage",
    "transactional.id": "Millrace, for each thread",
}
"""Kafka keys that `spec.kafka.config` may not set, and what sets each."""

_DURATION_PART = re.compile(r"([0-9]+)(ms|s|m|h)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_SUFFIXES = {
    "": Decimal(1),
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    **{letter: Decimal(1000) ** -power for power, letter in enumerate("mun", 1)},
}


def duration_ms(text: str) -> int:
    """Return a duration in milliseconds.

    >>> duration_ms("1m30s"), duration_ms("100ms")
    (90000, 100)
    """
    return sum(int(number) * _UNIT_MS[unit] for number, unit in _DURATION_PART.findall(text))


def quantity_value(text: str) -> int:
    """Return a quantity of bytes, rounded up.

    >>> quantity_value("1Gi"), quantity_value("1.5k"), quantity_value("2e3")
    (1073741824, 1500, 2000)
    """
    number = re.match(r"[0-9.]+", text)
    assert number
    suffix = text[number.end() :]
    factor = Decimal(f"1{suffix}") if re.match(r"[eE][+-]?[0-9]", suffix) else _SUFFIXES[suffix]
    return math.ceil(Decimal(number.group()) * factor)


def _matches(pattern: str, rule: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.match(value) or value.endswith("\n"):
            raise broken(rule)
        return value

    return AfterValidator(check)


def _application_id(value: str) -> str:
    if value in {".", ".."}:
        raise broken("must not be `.` or `..`, which Kafka does not take in topic names")
    return value


def _server(value: str) -> str:
    if not 0 < int(value.rpartition(":")[2]) <= 65535:
        raise broken("must have a port between 1 and 65535")
    return value


def _quantity(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise broken("must be a quantity, for example 10Gi")
    return str(value)


def _positive_quantity(value: str) -> str:
    if quantity_value(value) == 0:
        raise broken("must be more than nothing, for example 10Gi")
    return value


def _kafka_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise broken(f'must be a string or an integer: put it in quotes, as "{str(value).lower()}"')
    if not isinstance(value, int | str):
        raise broken("must be a string or an integer: put it in quotes")
    return value


def _kafka_config(value: dict[str, Any]) -> dict[str, Any]:
    owned = [key for key in value if key in OWNED_SETTINGS]
    if owned:
        reasons = "; ".join(f"`{key}` is set by {OWNED_SETTINGS[key]}" for key in owned)
        raise broken(f"must not set what the manifest or the operator sets: {reasons}")
    return value


_ENTRYPOINT_RULE = "must be `package.module:callable`, for example `wordcount:topology`"
Entrypoint = Annotated[
    str,
    Field(max_length=253, json_schema_extra=cel(f"self.matches(r'{ENTRYPOINT_PATTERN}')", _ENTRYPOINT_RULE)),
    _matches(ENTRYPOINT_PATTERN, _ENTRYPOINT_RULE),
]
"""Where the topology is: `package.module:callable`."""

_IMMUTABLE = "is immutable: the application's offsets, topics and state carry it"
ApplicationId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        json_schema_extra={"pattern": APPLICATION_ID_PATTERN, **cel("self == oldSelf", f"applicationId {_IMMUTABLE}")},
    ),
    _matches(APPLICATION_ID_PATTERN, "must consist of letters, digits, `.`, `_` and `-`, as Kafka's topic names do"),
    AfterValidator(_application_id),
]
"""Kafka's `application.id`: at most 200 characters, so that internal topics keep within Kafka's 249."""

ResourceName = Annotated[
    str,
    Field(min_length=1, max_length=RESOURCE_NAME_LENGTH, json_schema_extra={"pattern": RESOURCE_NAME_PATTERN}),
    _matches(
        RESOURCE_NAME_PATTERN,
        "must consist of lower-case letters, digits and `-`, start with a letter and not end with `-`",
    ),
]

BootstrapServer = Annotated[
    str,
    Field(max_length=262, json_schema_extra={"pattern": SERVER_PATTERN}),
    _matches(SERVER_PATTERN, "must be host:port, for example `kafka:9092`"),
    AfterValidator(_server),
]

Image = Annotated[
    str,
    Field(min_length=1, max_length=512, json_schema_extra={"pattern": IMAGE_PATTERN}),
    _matches(IMAGE_PATTERN, "must be the name of a container image, without blanks"),
]

Quantity = Annotated[
    str,
    BeforeValidator(_quantity),
    _matches(QUANTITY_PATTERN, "must be a quantity, for example 500Mi or 10Gi"),
    AfterValidator(_positive_quantity),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY_PATTERN,
        }
    ),
]
"""A number of bytes in Kubernetes' notation; `quantity_value` reads it."""

Duration = Annotated[
    str,
    Field(max_length=64, json_schema_extra={"format": "duration", "pattern": DURATION_PATTERN}),
    _matches(DURATION_PATTERN, "must be a duration, for example `100ms`, `30s` or `1m30s`"),
]
"""A length of time; `duration_ms` reads it."""

_KafkaValue = Annotated[
    Any,
    BeforeValidator(_kafka_value),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}),
]
KafkaConfig = Annotated[
    dict[str, _KafkaValue],
    AfterValidator(_kafka_config),
    Field(
        max_length=256,
        json_schema_extra=cel(
            f"[{', '.join(repr(key) for key in sorted(OWNED_SETTINGS))}].all(key, !(key in self))",
            "kafka.config must not set what the manifest or the operator sets: " + ", ".join(sorted(OWNED_SETTINGS)),
        ),
    ),
]
"""Kafka's dotted keys, for Kafka Streams or its clients; values are strings or integers, as the API server accepts them."""
