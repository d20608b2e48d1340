"""The kinds of scalar values that manifests are made of: names, addresses, quantities, durations, entrypoints.

Each is a plain string (or number) with a rule. The rule stands twice in its type, as a check with a message a person can use
and as the schema the API server evaluates, both from the same regular expression (which Go's RE2 and Python read alike).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from millrace.manifest.model import broken, cel

ENTRYPOINT_PATTERN = (
    r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
)
APPLICATION_ID_PATTERN = r"^[A-Za-z0-9._-]+$"
RESOURCE_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
OBJECT_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
SERVER_PATTERN = r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$"
IMAGE_PATTERN = r"^[^\s]+$"
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
SERVER_WITH_PORT_PATTERN = SERVER_PATTERN.replace("[0-9]{1,5}", _PORT)
URL_PATTERN = r"^https?://[^\s/@]+(/[^\s@]*)?$"
QUANTITY_PATTERN = r"^([0-9]+(\.[0-9]+)?)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$"
DURATION_PATTERN = r"^([0-9]+(ms|s|m|h))+$"
SOME_TIME_PATTERN = r"^([0-9]+(ms|s|m|h))*[0-9]*[1-9][0-9]*(ms|s|m|h)([0-9]+(ms|s|m|h))*$"
LABEL_KEY_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

RESOURCE_NAME_LENGTH = 52
"""A StatefulSet's pods carry its name and a revision hash in a label, which may have 63 characters."""
OBJECT_NAME_LENGTH = 253

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


def matches(pattern: str, rule: str) -> AfterValidator:
    """Return the check of a text against a regular expression; `rule` is what its author is told."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.match(value) or value.endswith("\n"):
            raise broken(rule)
        return value

    return AfterValidator(check)


def demands(holds: Callable[[Any], bool], rule: str) -> AfterValidator:
    """Return the check of a value against a predicate; `rule` is what its author is told."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise broken(rule)
        return value

    return AfterValidator(check)


def _quantity(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise broken("must be a quantity, for example 10Gi")
    return str(value)


_ENTRYPOINT_RULE = "must be `package.module:callable`, for example `wordcount:topology`"
Entrypoint = Annotated[
    str,
    Field(max_length=253, json_schema_extra=cel((f"self.matches(r'{ENTRYPOINT_PATTERN}')", _ENTRYPOINT_RULE))),
    matches(ENTRYPOINT_PATTERN, _ENTRYPOINT_RULE),
]
"""Where the topology is: `package.module:callable`."""

_NOT_DOTS = "must not be `.` or `..`, which Kafka does not take in topic names"
ApplicationId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        json_schema_extra={
            "pattern": APPLICATION_ID_PATTERN,
            **cel(
                ("self == oldSelf", "applicationId is immutable: the application's offsets, topics and state carry it"),
                ("!(self in ['.', '..'])", f"applicationId {_NOT_DOTS}"),
            ),
        },
    ),
    matches(APPLICATION_ID_PATTERN, "must consist of letters, digits, `.`, `_` and `-`, as Kafka's topic names do"),
    demands(lambda value: value not in {".", ".."}, _NOT_DOTS),
]
"""Kafka's `application.id`: at most 200 characters, so that internal topics keep within Kafka's 249."""

TopicName = Annotated[
    str,
    Field(min_length=1, max_length=249, json_schema_extra={"pattern": APPLICATION_ID_PATTERN}),
    matches(APPLICATION_ID_PATTERN, "must be the name of a topic: letters, digits, `.`, `_` and `-`"),
]
"""A topic of Kafka."""

ResourceName = Annotated[
    str,
    Field(min_length=1, max_length=RESOURCE_NAME_LENGTH, json_schema_extra={"pattern": RESOURCE_NAME_PATTERN}),
    matches(
        RESOURCE_NAME_PATTERN,
        "must consist of lower-case letters, digits and `-`, start with a letter and not end with `-`",
    ),
]
"""The name of a resource of Millrace's, which pods are named after."""

ObjectName = Annotated[
    str,
    Field(min_length=1, max_length=OBJECT_NAME_LENGTH, json_schema_extra={"pattern": OBJECT_NAME_PATTERN}),
    matches(OBJECT_NAME_PATTERN, "must be a name in Kubernetes: lower-case letters, digits, `-` and `.`"),
]
"""The name of an object of Kubernetes'."""

LabelValue = Annotated[
    str,
    Field(max_length=63, json_schema_extra={"pattern": LABEL_VALUE_PATTERN}),
    matches(LABEL_VALUE_PATTERN, "must be a label's value: letters, digits, `-`, `_` and `.`"),
]

_KEYS_RULE = "must have keys such as `team` or `example.com/team`"
KEYS_CEL = (f"self.all(key, size(key) <= 317 && key.matches(r'{LABEL_KEY_PATTERN}'))", _KEYS_RULE)
_KEY = re.compile(LABEL_KEY_PATTERN)
label_keys = demands(lambda labels: all(len(key) <= 317 and _KEY.match(key) for key in labels), _KEYS_RULE)
"""The check of a mapping whose keys are those of labels or annotations."""

Labels = Annotated[dict[str, LabelValue], label_keys, Field(max_length=64, json_schema_extra=cel(KEYS_CEL))]
Annotations = Annotated[dict[str, str], label_keys, Field(max_length=64, json_schema_extra=cel(KEYS_CEL))]

BootstrapServer = Annotated[
    str,
    Field(max_length=262, json_schema_extra={"pattern": SERVER_WITH_PORT_PATTERN}),
    matches(SERVER_PATTERN, "must be host:port, for example `kafka:9092`"),
    matches(SERVER_WITH_PORT_PATTERN, "must have a port between 1 and 65535"),
]

Image = Annotated[
    str,
    Field(min_length=1, max_length=512, json_schema_extra={"pattern": IMAGE_PATTERN}),
    matches(IMAGE_PATTERN, "must be the name of a container image, without blanks"),
]

Url = Annotated[
    str,
    Field(max_length=2048, json_schema_extra={"pattern": URL_PATTERN}),
    matches(URL_PATTERN, "must be a URL that starts with http:// or https:// and has no user or password in it"),
]

_SOME_QUANTITY = "must be more than nothing, for example 10Gi"
Quantity = Annotated[
    str,
    BeforeValidator(_quantity),
    matches(QUANTITY_PATTERN, "must be a quantity, for example 500Mi or 10Gi"),
    demands(lambda value: quantity_value(value) > 0, _SOME_QUANTITY),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            "pattern": QUANTITY_PATTERN,
            **cel(("quantity(string(self)).isGreaterThan(quantity('0'))", _SOME_QUANTITY)),
        }
    ),
]
"""A number of bytes in Kubernetes' notation; `quantity_value` reads it."""

Amount = Annotated[
    str,
    BeforeValidator(_quantity),
    matches(QUANTITY_PATTERN, "must be a quantity, for example 500m, 2 or 1Gi"),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            "pattern": QUANTITY_PATTERN,
        }
    ),
]
"""How much of a resource, such as a CPU or memory."""

Duration = Annotated[
    str,
    Field(max_length=64, json_schema_extra={"format": "duration", "pattern": DURATION_PATTERN}),
    matches(DURATION_PATTERN, "must be a duration, for example `100ms`, `30s` or `1m30s`"),
]
"""A length of time; `duration_ms` reads it."""

SomeTime = Annotated[
    str,
    Field(max_length=64, json_schema_extra={"format": "duration", "pattern": SOME_TIME_PATTERN}),
    matches(DURATION_PATTERN, "must be a duration, for example `100ms`, `30s` or `1m30s`"),
    demands(lambda value: duration_ms(value) > 0, "must be more than no time, for example `30s`"),
]
"""A length of time that is not zero."""

Int32 = Annotated[int, Field(ge=0, le=2**31 - 1, json_schema_extra={"format": "int32"})]
Int64 = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]
