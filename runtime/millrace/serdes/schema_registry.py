"""Avro, Protobuf and JSON Schema with a schema registry, in the wire format of Confluent's Java serdes.

Every value starts with a zero byte and the four bytes of its schema's id; Protobuf adds the path of the message type in its
file. Schemas are registered under the subject `<topic>-key` or `<topic>-value`, also for internal topics, as in Java.

The registry is asked once per schema and topic, never per record: the client caches what it learns. confluent-kafka's
serialisers do the work; here they become serdes with Millrace's errors. Needs `pip install 'millrace-streams[schema-registry]'`.

A serde uses the registry it was given, or the application's (`schema.registry.url`). The application's is known when the
topology is built for a configuration, and contacted when the first record needs it, because a topology that is only planned has
neither network nor secrets. Credentials in files are read at that moment, and again when the registry refuses them, so that
they may change while the application runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

from millrace import config_providers
from millrace.config import StreamsConfig
from millrace.errors import ConfigError, SerializationError, UnavailableSerdeError, causes
from millrace.records import NO_HEADERS, Headers
from millrace.serdes.base import Serde

try:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext
except ImportError as error:
    raise ImportError(
        f"Serdes with a schema registry need more packages (missing: {error.name}): "
        "`pip install 'millrace-streams[schema-registry]'`"
    ) from error

__all__ = ["AvroSerde", "JsonSchemaSerde", "ProtobufSerde", "Registry"]

T = TypeVar("T")
R = TypeVar("R")

Registry: TypeAlias = "SchemaRegistryClient | Mapping[str, object] | str"
"""A client, its settings (`url`, `basic.auth.user.info`, `ssl.ca.location` …), or just the registry's URL."""
JsonObject: TypeAlias = dict[str, Any]
"""An object as JSON or Avro have it: values by the names of their fields."""
Codec: TypeAlias = Callable[[Any, SerializationContext], Any]
MakeCodecs: TypeAlias = Callable[[SchemaRegistryClient], tuple[Codec, Codec]]

_PREFIX: Final = "schema.registry."
_LOGIN: Final = "basic.auth.user.info"
_REFUSED: Final = frozenset({401, 403})
_UNAVAILABLE: Final = _REFUSED | {408, 429, 500, 502, 503, 504}


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


@dataclass(frozen=True, slots=True)
class _Opened:
    client: SchemaRegistryClient
    write: Codec
    read: Codec
    settings: Mapping[str, object]


class _RegistrySerde(Serde[T], Generic[T]):
    """The base of the three serdes: the connection to the registry, which several threads may use; contexts per topic; errors.

    Args:
        registry: where the schemas are; None for the application's registry.
        make: creates the serialiser and the deserialiser for a client.
        is_key: whether this serde is for keys.
    """

    def __init__(self, registry: Registry | None, make: MakeCodecs, *, is_key: bool) -> None:
        self.is_key = is_key
        self._field = MessageField.KEY if is_key else MessageField.VALUE
        self._make = make
        self._lock = threading.Lock()
        self._of_application = registry is None
        self._settings: Mapping[str, object] = {}
        self._opened: _Opened | None = None
        if isinstance(registry, SchemaRegistryClient):
            self._opened = _Opened(registry, *make(registry), {})
        elif registry is not None:
            self._opened = self._with({"url": registry} if isinstance(registry, str) else registry)

    @property
    def client(self) -> SchemaRegistryClient:
        """The registry's client; give one client to several serdes to share its connections."""
        return self._open().client

    def configure(self, config: StreamsConfig) -> None:
        """Take the application's registry, unless this serde was given another one."""
        given = config.client_settings
        settings = {key.removeprefix(_PREFIX): value for key, value in given.items() if key.startswith(_PREFIX)}
        if _LOGIN in given:
            settings[_LOGIN] = given[_LOGIN]
        with self._lock:
            if self._of_application and settings != self._settings:
                self._settings, self._opened = settings, None

    def serialize(self, topic: str, data: T, headers: Headers = NO_HEADERS) -> bytes:
        """Return the schema's id and the encoded data, registering the schema on first use unless that is disabled."""
        try:
            encoded: bytes = self._do(lambda opened: opened.write(data, self._context(topic, headers)))
        except Exception as error:
            raise _kind_of(error)(
                f"{self!r} cannot write {type(data).__qualname__} for subject {self._subject(topic)!r}: {error}"
            ) from error
        return encoded

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> T:
        """Return the object, read with the schema it was written with."""
        try:
            decoded: T = self._do(lambda opened: opened.read(data, self._context(topic, headers)))
        except Exception as error:
            raise _kind_of(error)(f"{self!r} cannot read {len(data)} bytes from topic {topic!r}: {error}") from error
        return decoded

    def _context(self, topic: str, headers: Headers) -> SerializationContext:
        return SerializationContext(topic, self._field, list(headers))

    def _subject(self, topic: str) -> str:
        return f"{topic}-{'key' if self.is_key else 'value'}"

    def _do(self, work: Callable[[_Opened], R]) -> R:
        opened = self._opened or self._open()
        try:
            return work(opened)
        except Exception as error:
            renewed = self._renewed(opened) if _is_refusal(error) else None
            if renewed is None:
                raise
        return work(renewed)

    def _open(self) -> _Opened:
        with self._lock:
            if self._opened is None:
                self._opened = self._with(self._resolved())
            return self._opened

    def _renewed(self, refused: _Opened) -> _Opened | None:
        """Reconnect if the credentials have changed since."""
        with self._lock:
            if self._of_application and self._opened is refused and self._resolved() != refused.settings:
                self._opened = self._with(self._resolved())
            return None if self._opened is refused else self._opened

    def _resolved(self) -> dict[str, object]:
        if "url" not in self._settings:
            raise ConfigError(
                "the application has no schema registry: set schema.registry.url (spec.kafka.schemaRegistry in a manifest), "
                "or give the serde one"
            )
        return {key: config_providers.resolve(key, value) for key, value in self._settings.items()}

    def _with(self, settings: Mapping[str, object]) -> _Opened:
        client = SchemaRegistryClient(dict(settings))
        return _Opened(client, *self._make(client), settings)


class _SchemaSerde(_RegistrySerde[T]):
    """The base of the serdes that are given a schema as text, and read and write dicts."""

    _serializer: ClassVar[Callable[..., Codec]]
    _deserializer: ClassVar[Callable[..., Codec]]

    def __init__(
        self,
        registry: Registry | None,
        schema: str | Schema,
        *,
        is_key: bool = False,
        to_dict: Callable[[T], JsonObject] | None = None,
        from_dict: Callable[[JsonObject], T] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        writing, reading = _split(settings)

        def make(client: SchemaRegistryClient) -> tuple[Codec, Codec]:
            both = {"schema_registry_client": client, "schema_str": schema}
            return (
                self._serializer(**both, to_dict=_ignoring_context(to_dict), conf=writing),
                self._deserializer(**both, from_dict=_ignoring_context(from_dict), conf=reading),
            )

        super().__init__(registry, make, is_key=is_key)


class AvroSerde(_SchemaSerde[T]):
    """Avro records as dicts, or as the user's own objects.

    Args:
        registry: where the schemas are; None for the application's registry (`schema.registry.url`).
        schema: the schema to write with, as JSON text; data is read with the schema it was written with, resolved to this one.
        is_key: whether this serde is for keys, which have their own subject.
        to_dict: turns an object into the dict to write.
        from_dict: turns the dict that was read into an object.
        settings: for confluent-kafka's `AvroSerializer` (`auto.register.schemas`, `use.latest.version` …).
    """

    _serializer = AvroSerializer
    _deserializer = AvroDeserializer


class JsonSchemaSerde(_SchemaSerde[T]):
    """JSON that is validated against a JSON Schema when written and when read.

    Args:
        registry: where the schemas are; None for the application's registry (`schema.registry.url`).
        schema: the schema, as JSON text.
        is_key: whether this serde is for keys, which have their own subject.
        to_dict: turns an object into the dict to write, for example `Order.model_dump`.
        from_dict: turns the dict that was read into an object, for example `Order.model_validate`.
        settings: for confluent-kafka's `JSONSerializer`.
    """

    _serializer = JSONSerializer
    _deserializer = JSONDeserializer


class ProtobufSerde(_RegistrySerde[T]):
    """Protobuf messages of one generated class.

    Args:
        registry: where the schemas are, as for `AvroSerde`; the schema is the class's own.
        message_type: the class that protoc generated.
        is_key: whether this serde is for keys, which have their own subject.
        settings: for confluent-kafka's `ProtobufSerializer`.
    """

    def __init__(
        self,
        registry: Registry | None,
        message_type: type[T],
        *,
        is_key: bool = False,
        settings: Mapping[str, object] | None = None,
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


def _split(settings: Mapping[str, object] | None) -> tuple[dict[str, object], dict[str, object]]:
    """Return the settings of the serialiser, and the ones among them that the deserialiser also knows."""
    writing = {**_COMMON, **(settings or {})}
    return writing, {name: value for name, value in writing.items() if name in _READING}


def _ignoring_context(function: Callable[[Any], Any] | None) -> Codec | None:
    return None if function is None else lambda value, _context: function(value)


def _is_refusal(error: BaseException) -> bool:
    return any(isinstance(cause, SchemaRegistryError) and cause.http_status_code in _REFUSED for cause in causes(error))


def _kind_of(error: BaseException) -> type[SerializationError]:
    """Return the error to raise: the registry failed but may work later, or the data does not fit."""
    for cause in causes(error):
        if isinstance(cause, OSError | OAuthTokenError):
            return UnavailableSerdeError
        if isinstance(cause, SchemaRegistryError) and cause.http_status_code in _UNAVAILABLE:
            return UnavailableSerdeError
    return SerializationError
