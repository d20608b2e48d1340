"""Avro, Protobuf and JSON Schema with a schema registry, in the wire format of Confluent's Java serdes.

Every value starts with a zero byte and the four bytes of its schema's id; Protobuf adds the path of the message type in its
file. Schemas stand under the subject `<topic>-key` or `<topic>-value`, internal topics included, as Java has it.

The registry is asked once per schema and topic, never per record: the client caches what it learns. The work is done by
confluent-kafka's serialisers; here they become serdes with Millrace's errors. Needs `millrace[schema-registry]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from millrace.config import StreamsConfig
from millrace.errors import SerializationError
from millrace.records import NO_HEADERS, Headers
from millrace.serdes.base import Serde

try:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    from millrace.serdes.registry_connection import Codec, MakeCodecs, Registry, RegistryConnection
except ImportError as error:
    raise ImportError(
        f"Serdes with a schema registry need more packages (missing: {error.name}): install 'millrace[schema-registry]'"
    ) from error

__all__ = ["AvroSerde", "JsonSchemaSerde", "ProtobufSerde", "Registry"]

T = TypeVar("T")

_COMMON: Final = {"subject.name.strategy.type": "TOPIC"}
_READING: Final = frozenset(
    {
        "use.latest.version",
        "use.latest.with.metadata",
        "subject.name.strategy",
        "subject.name.strategy.type",
        "subject.name.strategy.conf",
        "validate",
        "use.deprecated.format",
    }
)
"""The settings that deserialisers know too."""


class _RegistrySerde(Serde[T], Generic[T]):
    """What the three have in common: contexts per topic, and errors."""

    def __init__(self, registry: Registry | None, make: MakeCodecs, *, is_key: bool) -> None:
        self.is_key = is_key
        self._registry = RegistryConnection(registry, make)
        self._field = MessageField.KEY if is_key else MessageField.VALUE

    @property
    def client(self) -> SchemaRegistryClient:
        """Holds connections to the registry; give one client to several serdes to share them."""
        return self._registry.client

    def configure(self, config: StreamsConfig) -> None:
        """Take the application's registry, unless this serde was given another one."""
        self._registry.configure(config)

    def serialize(self, topic: str, data: T, headers: Headers = NO_HEADERS) -> bytes:
        """Return the schema's id and the encoded data, registering the schema on first use unless told not to."""
        try:
            encoded: bytes = self._registry.write(data, self._context(topic, headers))
        except Exception as error:
            raise SerializationError(
                f"{self!r} cannot write {type(data).__qualname__} for subject {self._subject(topic)!r}: {error}"
            ) from error
        return encoded

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> T:
        """Return the object, read with the schema it was written with."""
        try:
            decoded: T = self._registry.read(data, self._context(topic, headers))
        except Exception as error:
            raise SerializationError(f"{self!r} cannot read {len(data)} bytes from topic {topic!r}: {error}") from error
        return decoded

    def _context(self, topic: str, headers: Headers) -> SerializationContext:
        return SerializationContext(topic, self._field, list(headers))

    def _subject(self, topic: str) -> str:
        return f"{topic}-{'key' if self.is_key else 'value'}"


class AvroSerde(_RegistrySerde[T]):
    """Avro records as dicts, or as objects of a user's own.

    Args:
        registry: where the schemas are; None for the application's registry (`schema.registry.url`).
        schema: the schema to write with, as JSON text; data is read with the schema it was written with, resolved to this.
        is_key: whether this serde is for keys, which have a subject of their own.
        to_dict: turns an object into the dict to write.
        from_dict: turns the dict that was read into an object.
        settings: of confluent-kafka's `AvroSerializer` (`auto.register.schemas`, `use.latest.version` …).
    """

    def __init__(
        self,
        registry: Registry | None,
        schema: str | Schema,
        *,
        is_key: bool = False,
        to_dict: Callable[[T], dict[str, Any]] | None = None,
        from_dict: Callable[[dict[str, Any]], T] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        writing, reading = _split(settings)
        super().__init__(
            registry,
            lambda client: (
                AvroSerializer(client, schema, _ignoring_context(to_dict), writing),
                AvroDeserializer(client, schema, _ignoring_context(from_dict), conf=reading),
            ),
            is_key=is_key,
        )


class JsonSchemaSerde(_RegistrySerde[T]):
    """JSON that is validated against a JSON Schema when written and when read.

    Args:
        registry: where the schemas are; None for the application's registry (`schema.registry.url`).
        schema: the schema, as JSON text.
        is_key: whether this serde is for keys, which have a subject of their own.
        to_dict: turns an object into the dict to write, for example `Order.model_dump`.
        from_dict: turns the dict that was read into an object, for example `Order.model_validate`.
        settings: of confluent-kafka's `JSONSerializer`.
    """

    def __init__(
        self,
        registry: Registry | None,
        schema: str | Schema,
        *,
        is_key: bool = False,
        to_dict: Callable[[T], dict[str, Any]] | None = None,
        from_dict: Callable[[dict[str, Any]], T] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        writing, reading = _split(settings)
        super().__init__(
            registry,
            lambda client: (
                JSONSerializer(schema, client, _ignoring_context(to_dict), writing),
                JSONDeserializer(schema, _ignoring_context(from_dict), client, reading),
            ),
            is_key=is_key,
        )


class ProtobufSerde(_RegistrySerde[T]):
    """Protobuf messages of one generated class.

    Args:
        registry: where the schemas are, as for `AvroSerde`; the schema is that of the class.
        message_type: the class that protoc generated.
        is_key: whether this serde is for keys, which have a subject of their own.
        settings: of confluent-kafka's `ProtobufSerializer`.
    """

    def __init__(
        self,
        registry: Registry | None,
        message_type: type[T],
        *,
        is_key: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        writing, reading = _split(settings)
        self.message_type = message_type
        super().__init__(
            registry,
            lambda client: (
                ProtobufSerializer(message_type, client, writing),
                ProtobufDeserializer(message_type, reading, client),
            ),
            is_key=is_key,
        )

    def serialize(self, topic: str, data: T, headers: Headers = NO_HEADERS) -> bytes:
        """Return the schema's id, the message's index and the message."""
        if not isinstance(data, self.message_type):
            raise SerializationError(
                f"{self!r} writes {self.message_type.__qualname__}, but was given {type(data).__qualname__} "
                f"for topic {topic!r}"
            )
        return super().serialize(topic, data, headers)


def _split(settings: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the serialiser is given and, of that, what the deserialiser knows too."""
    writing = {**_COMMON, **(settings or {})}
    return writing, {name: value for name, value in writing.items() if name in _READING}


def _ignoring_context(function: Callable[[Any], Any] | None) -> Codec | None:
    return None if function is None else lambda value, _context: function(value)
