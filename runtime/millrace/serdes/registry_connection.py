"""How a serde reaches its schema registry: the one it was given, or that of the application (`schema.registry.url`).

The application's is known when the topology is built for a configuration, and reached when the first record wants it: a topology
that is only planned has neither network nor secrets. Credentials that stand in files are read then, and again when the registry
refuses them, so that they may change while the application runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import SerializationContext

from millrace import references
from millrace.config import StreamsConfig
from millrace.errors import ConfigError

__all__ = ["Codec", "MakeCodecs", "Registry", "RegistryConnection"]

Registry: TypeAlias = "SchemaRegistryClient | Mapping[str, Any] | str"
"""A client, its settings (`url`, `basic.auth.user.info`, `ssl.ca.location` …), or just the registry's URL."""
Codec: TypeAlias = Callable[[Any, SerializationContext], Any]
MakeCodecs: TypeAlias = Callable[[SchemaRegistryClient], tuple[Codec, Codec]]

_PREFIX: Final = "schema.registry."
_LOGIN: Final = "basic.auth.user.info"
_REFUSED: Final = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class _Opened:
    client: SchemaRegistryClient
    write: Codec
    read: Codec
    settings: Mapping[str, Any]


class RegistryConnection:
    """The registry's client and what a serde does with it; several threads may use it.

    Args:
        registry: Where the schemas are; None for the application's registry.
        make: Makes the serialiser and the deserialiser over a client.
    """

    def __init__(self, registry: Registry | None, make: MakeCodecs) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._of_application = registry is None
        self._settings: Mapping[str, Any] = {}
        self._opened: _Opened | None = None
        if isinstance(registry, SchemaRegistryClient):
            self._opened = _Opened(registry, *make(registry), {})
        elif registry is not None:
            self._opened = self._with({"url": registry} if isinstance(registry, str) else registry)

    @property
    def client(self) -> SchemaRegistryClient:
        """Holds the connections."""
        return self._open().client

    def configure(self, config: StreamsConfig) -> None:
        """Take the application's registry, unless another one was given."""
        settings = _settings_of(config)
        with self._lock:
            if self._of_application and settings != self._settings:
                self._settings, self._opened = settings, None

    def write(self, data: Any, context: SerializationContext) -> Any:
        """Serialise."""
        return self._do(lambda opened: opened.write(data, context))

    def read(self, data: bytes, context: SerializationContext) -> Any:
        """Deserialise."""
        return self._do(lambda opened: opened.read(data, context))

    def _do(self, work: Callable[[_Opened], Any]) -> Any:
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
        """Open anew if the credentials have changed since."""
        with self._lock:
            if self._of_application and self._opened is refused and self._resolved() != refused.settings:
                self._opened = self._with(self._resolved())
            return None if self._opened is refused else self._opened

    def _resolved(self) -> dict[str, Any]:
        if "url" not in self._settings:
            raise ConfigError(
                "the application has no schema registry: set schema.registry.url (in a manifest spec.kafka.schemaRegistry), "
                "or give the serde one"
            )
        return {key: references.resolve(key, value) for key, value in self._settings.items()}

    def _with(self, settings: Mapping[str, Any]) -> _Opened:
        client = SchemaRegistryClient(dict(settings))
        return _Opened(client, *self._make(client), settings)


def _settings_of(config: StreamsConfig) -> dict[str, Any]:
    given = config.client_settings
    settings = {key.removeprefix(_PREFIX): value for key, value in given.items() if key.startswith(_PREFIX)}
    return settings | ({_LOGIN: given[_LOGIN]} if _LOGIN in given else {})


def _is_refusal(error: BaseException) -> bool:
    return any(isinstance(item, SchemaRegistryError) and item.http_status_code in _REFUSED for item in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
