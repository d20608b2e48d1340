"""Which serdes a topology declares for a topic, and keys and values as JSON.

A key or value has the JSON form of its Python object: text, a number, a model's fields. Bytes are text if they are UTF-8.
Other bytes, and bytes that the serde cannot read, are `{"$bytes": "<base64>"}`, and can be written like that with any serde.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import to_json

from millrace.config import StreamsConfig
from millrace.errors import SerializationError
from millrace.records import Headers, Window, Windowed
from millrace.serdes import (
    ByteArraySerde,
    ByteBufferSerde,
    DoubleSerde,
    FloatSerde,
    JsonSerde,
    ListSerde,
    PydanticSerde,
    SessionWindowedSerde,
    StringSerde,
    TimeWindowedSerde,
    UUIDSerde,
)
from millrace.serdes.base import AnySerde
from millrace.serdes.resolve import default_key_serde, default_value_serde
from millrace.state.api import StoreBuilder
from millrace.topology import BuiltTopology, SinkNode, SourceNode

__all__ = ["TopicSerdes", "declared_serdes", "decode", "encode", "readable"]

_BYTES: Final = "$bytes"
_BYTES_SERDES: Final = (ByteArraySerde, ByteBufferSerde)
_NOT_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_WINDOW_KEYS: Final = {"key", "window"}


@dataclass(frozen=True, slots=True)
class TopicSerdes:
    """The serdes of a topic's keys and values; None if unknown."""

    key: AnySerde | None = None
    value: AnySerde | None = None


def declared_serdes(topology: BuiltTopology, config: StreamsConfig, topic: str) -> TopicSerdes:
    """Return the serdes with which a topology reads or writes a topic; for a changelog, its store's serdes.

    Args:
        topology: What reads or writes the topic.
        config: Its settings; their default serdes are used where it declares none.
        topic: The topic's full name.
    """
    for keys, values in _declared(topology, topic):
        return TopicSerdes(keys or default_key_serde(config), values or default_value_serde(config))
    return TopicSerdes()


def _declared(topology: BuiltTopology, topic: str) -> Iterator[tuple[AnySerde | None, AnySerde | None]]:
    parts = [*topology.subtopologies, *filter(None, [topology.global_subtopology])]
    for node in (node for part in parts for node in part.nodes):
        if isinstance(node, SourceNode):
            if topic in node.topics or (node.pattern is not None and node.pattern.fullmatch(topic)):
                yield node.key_serde, node.value_serde
        elif isinstance(node, SinkNode) and node.topic == topic:
            yield node.key_serde, node.value_serde
    for part in parts:
        for builder in part.store_builders:
            if part.changelog_topics.get(builder.name) == topic:
                yield _changelog_key(builder), getattr(builder, "value_serde", None)


def _changelog_key(builder: StoreBuilder) -> AnySerde | None:
    inner: AnySerde | None = getattr(builder, "key_serde", None)
    if inner is None or builder.kind not in {"window", "session"}:
        return inner
    if builder.kind == "session":
        return SessionWindowedSerde(inner)
    return TimeWindowedSerde(inner, getattr(builder, "window_size_ms", None) or None, for_changelog=True)


def readable(data: bytes | None) -> object:
    """Return bytes as JSON: text if they are UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {_BYTES: base64.b64encode(data).decode()}


def decode(serde: AnySerde | None, topic: str, data: bytes | None, headers: Headers) -> tuple[object, str | None]:
    """Return a key or value as JSON and, if the serde cannot read it, the error, with the bytes instead.

    Args:
        serde: None to show the bytes.
        topic: Where the record is.
        data: The bytes; None is null.
        headers: The record's headers.
    """
    if data is None or serde is None:
        return readable(data), None
    if isinstance(serde, StringSerde) and not isinstance(found := readable(data), str):
        return found, f"{serde!r} expects UTF-8 text, but got {len(data)} other bytes"
    try:
        return _to_json(serde, serde.deserialize(topic, data, headers)), None
    except Exception as error:  # the serde may be the user's own
        return readable(data), str(error) or repr(error)


def _to_json(serde: AnySerde, value: Any) -> object:
    if isinstance(serde, (TimeWindowedSerde, SessionWindowedSerde)):
        key, (start, end) = value
        return {"key": _to_json(serde.inner, key), "window": {"start": start, "end": end}}
    if isinstance(value, (bytes, memoryview)):
        return readable(bytes(value))
    if isinstance(serde, ListSerde):
        return [None if item is None else _to_json(serde.inner, item) for item in value]
    if hasattr(value, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 (of an extra)

        return MessageToDict(value)
    return json.loads(to_json(value, by_alias=True, bytes_mode="base64", inf_nan_mode="strings", fallback=repr))


def encode(serde: AnySerde | None, topic: str, value: object, headers: Headers) -> bytes | None:
    """Return the bytes of a key or value that is given as JSON; None is null.

    Raises:
        SerializationError: It does not fit the serde, or there is none and it is not `$bytes`.
    """
    if value is None:
        return None
    if isinstance(value, dict) and value.keys() == {_BYTES}:
        try:
            return base64.b64decode(value[_BYTES], validate=True)
        except (TypeError, ValueError, binascii.Error) as error:
            raise SerializationError(f"{value[_BYTES]!r} is not base64") from error
    if serde is None:
        raise SerializationError(f"nothing declares the serde of topic {topic}: give --key-serde and --value-serde")
    try:
        return serde.serialize(topic, _from_json(serde, topic, value, headers), headers)
    except SerializationError:
        raise
    except Exception as error:  # the serde may be the user's own
        raise SerializationError(f"{serde!r} cannot write {value!r}: {error!r}") from error


def _from_json(serde: AnySerde, topic: str, value: Any, headers: Headers) -> object:
    if isinstance(serde, (JsonSerde, PydanticSerde)):
        return serde.deserialize(topic, json.dumps(value, ensure_ascii=False).encode(), headers)
    if isinstance(serde, _BYTES_SERDES) and isinstance(value, str):
        return value.encode()
    if isinstance(serde, UUIDSerde) and isinstance(value, str):
        return uuid.UUID(value)
    if isinstance(serde, (DoubleSerde, FloatSerde)) and value in _NOT_NUMBERS:
        return float(value)
    if isinstance(serde, ListSerde) and isinstance(value, list):
        return [None if item is None else _from_json(serde.inner, topic, item, headers) for item in value]
    if isinstance(serde, (TimeWindowedSerde, SessionWindowedSerde)) and isinstance(value, dict):
        if value.keys() != _WINDOW_KEYS:
            raise SerializationError(f'{serde!r} needs {{"key": …, "window": {{"start": …, "end": …}}}}')
        window = value["window"]
        return Windowed(_from_json(serde.inner, topic, value["key"], headers), Window(window["start"], window["end"]))
    if (message := getattr(serde, "message_type", None)) is not None and isinstance(value, dict):
        from google.protobuf.json_format import ParseDict  # noqa: PLC0415 (of an extra)

        return ParseDict(value, message())
    return value
