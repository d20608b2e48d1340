"""The types of manifest fields: names, addresses, quantities, durations, lists, references to other objects.

A scalar is a plain string or number with rules. Every rule is checked both in Python and by the API server, with the same
message, so regular expressions are limited to what Go's RE2 and Python read alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from millrace.durations import duration_ms
from millrace.manifest.base_model import ManifestModel
from millrace.manifest.rules import Rule, rule_error

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
URL_PATTERN = r"^https?://[^\s/]+(/[^\s]*)?$"
QUANTITY_PATTERN = r"^([0-9]+(\.[0-9]+)?)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$"
DURATION_PATTERN = r"^([0-9]{1,9}(ms|s|m|h))+$"
LABEL_KEY_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

RESOURCE_NAME_LENGTH = 52
"""A StatefulSet's pods carry its name and a revision hash in a label, which may have 63 characters."""

_SUFFIXES = {
    "": Decimal(1),
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    **{letter: Decimal(1000) ** -power for power, letter in enumerate("mun", 1)},
}


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


@dataclass(frozen=True, slots=True)
class Matches:
    """A regular expression that a string must match, as an annotation of a field."""

    pattern: str
    message: str
    """The message for the author, worded to follow the field's path: `must be …`."""
    explained: bool = True
    """Whether the API server shows the message too. It cannot for values that may be integers."""

    @property
    def rule(self) -> Rule:
        """The same as a `Rule`."""
        compiled = re.compile(self.pattern)
        return Rule(
            lambda value: compiled.match(value) is not None and not value.endswith("\n"),
            f"self.matches(r'{self.pattern}')" if self.explained else None,
            self.message,
        )

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check values of the annotated type."""
        return self.rule.__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the expression to the schema: as a `pattern` for tools, and as a rule with a message for people."""
        return {**self.rule.__get_pydantic_json_schema__(schema, handler), "pattern": self.pattern}


def cel_list(texts: Iterable[str]) -> str:
    """Return strings as a list in CEL.

    >>> cel_list(("a", "b"))
    "['a', 'b']"
    """
    return f"[{', '.join(map(repr, texts))}]"


def sets_none_of(owned: Mapping[str, str], message: str) -> Rule:
    """Return the rule that a mapping must not set certain keys; `owned` says who sets each of them."""
    return Rule(
        lambda settings: not settings.keys() & owned.keys(),
        f"{cel_list(owned)}.all(key, !(key in self))",
        message,
        lambda settings: "; ".join(f"`{key}` is set by {owned[key]}" for key in owned if key in settings),
        ", ".join(f"{key} ({owner})" for key, owner in owned.items()),
    )


def text(pattern: str, message: str, *, most: int, least: int | None = None) -> tuple[object, ...]:
    """Return the annotations of a string that has to match a pattern, to be unpacked into `Annotated`."""
    return Field(min_length=least, max_length=most), Matches(pattern, message)


def int_or_string(pattern: str, message: str, *, most: int, least: int) -> tuple[object, ...]:
    """Return the annotations of a string that may also be written as a number, to be unpacked into `Annotated`.

    Args:
        pattern: The pattern to match.
        message: The message for the author if it does not match.
        most: How many characters it may have.
        least: The least number.
    """

    def as_string(value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise rule_error(message)
        return str(value)

    schema = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "maxLength": most,
        "minimum": least,
    }
    return BeforeValidator(as_string), WithJsonSchema(schema), Matches(pattern, message, explained=False)


Entrypoint = Annotated[
    str, *text(ENTRYPOINT_PATTERN, "must be `package.module:callable`, for example `wordcount:topology`", most=253)
]
"""Where the topology is: `package.module:callable`."""

ApplicationId = Annotated[
    str,
    *text(
        APPLICATION_ID_PATTERN,
        "must consist of letters, digits, `.`, `_` and `-`, as Kafka's topic names do",
        least=1,
        most=200,
    ),
    Rule(
        lambda value: value not in {".", ".."},
        "!(self in ['.', '..'])",
        "must not be `.` or `..`, which Kafka does not allow in topic names",
    ),
    Rule(None, "self == oldSelf", "is immutable: offsets, topics and state are stored under it"),
]
"""Kafka's `application.id`: at most 200 characters, so that internal topics keep within Kafka's 249."""

TopicName = Annotated[
    str,
    *text(APPLICATION_ID_PATTERN, "must be the name of a topic: letters, digits, `.`, `_` and `-`", least=1, most=249),
]
"""The name of a Kafka topic."""

ResourceName = Annotated[
    str,
    *text(
        RESOURCE_NAME_PATTERN,
        "must consist of lower-case letters, digits and `-`, start with a letter and not end with `-`",
        least=1,
        most=RESOURCE_NAME_LENGTH,
    ),
]
"""The name of a Millrace resource; pods are named after it."""

ObjectName = Annotated[
    str,
    *text(
        OBJECT_NAME_PATTERN,
        "must be a Kubernetes object name: lower-case letters, digits, `-` and `.`",
        least=1,
        most=253,
    ),
]
"""The name of a Kubernetes object."""

LabelValue = Annotated[
    str, *text(LABEL_VALUE_PATTERN, "must be a label's value: letters, digits, `-`, `_` and `.`", most=63)
]
_KEY = re.compile(LABEL_KEY_PATTERN)
LABEL_KEYS = Rule(
    lambda labels: all(len(key) <= 317 and _KEY.match(key) for key in labels),
    f"self.all(key, size(key) <= 317 && key.matches(r'{LABEL_KEY_PATTERN}'))",
    "must have keys such as `team` or `example.com/team`",
)
"""The keys of a mapping have the form of label or annotation keys."""
Labels = Annotated[dict[str, LabelValue], Field(max_length=64), LABEL_KEYS]
Annotations = Annotated[dict[str, str], Field(max_length=64), LABEL_KEYS]

BootstrapServer = Annotated[
    str,
    Field(max_length=262),
    Matches(SERVER_PATTERN, "must be host:port, for example `kafka:9092`"),
    Matches(SERVER_WITH_PORT_PATTERN, "must have a port between 1 and 65535"),
]

Image = Annotated[str, *text(IMAGE_PATTERN, "must be the name of a container image, without spaces", least=1, most=512)]

Url = Annotated[
    str,
    *text(URL_PATTERN, "must be a URL that starts with http:// or https://", most=2048),
    Rule(
        lambda value: "@" not in value,
        "!self.contains('@')",
        "must not contain a user name or password, which belong in a Secret",
    ),
]

Quantity = Annotated[
    str, *int_or_string(QUANTITY_PATTERN, "must be a quantity, for example 500m, 2 or 10Gi", most=32, least=0)
]
"""An amount of a resource such as CPU or memory, in Kubernetes' notation."""

PositiveQuantity = Annotated[
    Quantity,
    Rule(
        lambda value: quantity_value(value) > 0,
        "quantity(string(self)).isGreaterThan(quantity('0'))",
        "must be more than zero, for example 10Gi",
    ),
]
"""A number of bytes; `quantity_value` reads it."""

Duration = Annotated[str, *text(DURATION_PATTERN, "must be a duration, for example `100ms`, `30s` or `1m30s`", most=64)]
"""A length of time; `duration_ms` reads it."""

PositiveDuration = Annotated[
    Duration,
    Rule(
        lambda value: duration_ms(value) > 0,
        "duration(self) > duration('0s')",
        "must be longer than zero, for example `30s`",
    ),
]
"""A length of time that is longer than zero."""

Int32 = Annotated[int, Field(ge=0, le=2**31 - 1, json_schema_extra={"format": "int32"})]
Int64 = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]


def atomic_list(most: int, *, least: int | None = None) -> tuple[object, ...]:
    """Return the annotations of a list that has a single owner: server-side apply replaces it as a whole.

    The API server wants to know for every list whether its order matters and what identifies its entries.
    """
    return (
        Field(strict=False, min_length=least, max_length=most, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    )


def map_list(most: int, key: str = "name") -> tuple[object, ...]:
    """Return the annotations of a list whose entries are identified by a field; `key` is its name in the manifest."""

    def holds(items: Sequence[BaseModel]) -> bool:
        alias = {field.alias: name for item in items for name, field in type(item).model_fields.items()}
        values = [getattr(item, alias[key]) for item in items]
        return len(set(values)) == len(values)

    return (
        Field(
            strict=False,
            max_length=most,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]},
        ),
        Rule(holds, None, f"must not have two entries with the same {key}"),
    )


SECRET_KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"  # noqa: S105 (not a secret, but the form of its name)

SecretKey = Annotated[
    str,
    *text(SECRET_KEY_PATTERN, "must be a key of a Secret: letters, digits, `-`, `_` and `.`", least=1, most=253),
]


class LocalReference(ManifestModel):
    """An object in the same namespace."""

    name: ObjectName
    """Its name."""


class SecretReference(ManifestModel):
    """A Secret in the same namespace. Pods get it as a directory of files, so changes reach them without a restart."""

    name: ObjectName
    """The Secret's name."""
    keys: Annotated[dict[str, SecretKey], Field(max_length=16)] = Field(default_factory=dict)
    """Keys that have another name in this Secret: from the expected name to the Secret's own."""

    def key(self, expected: str) -> str:
        """Return the Secret's own name for a key.

        >>> SecretReference(name="user", keys={"tls.crt": "user.crt"}).key("tls.crt")
        'user.crt'
        """
        return self.keys.get(expected, expected)


def of_keys(*expected: str) -> Rule:
    """Return the rule that only certain keys are expected in a `SecretReference`."""
    names = ", ".join(f"'{key}'" for key in expected)
    listed = ", ".join(f"`{key}`" for key in expected)
    return Rule(
        lambda reference: set(reference.keys) <= set(expected),
        f"!has(self.keys) || self.keys.all(key, key in [{names}])",
        f"keys may rename only the keys that are expected here: {listed}",
    )
