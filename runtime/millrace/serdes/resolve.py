"""Finds the serde that a configuration names, and the default serdes of an application.

Java's class names are accepted too, so that a Java application's configuration can be reused unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.loading import construct, java_name, load
from millrace.serdes.base import AnySerde, Serde
from millrace.serdes.json import JsonSerde
from millrace.serdes.list import ListSerde
from millrace.serdes.primitives import BUILT_IN
from millrace.serdes.windowed import SessionWindowedSerde, TimeWindowedSerde

_BY_NAME: Final[Mapping[str, AnySerde]] = {
    **{name: built_in.serde for built_in in BUILT_IN for name in built_in.names},
    "json": JsonSerde(),
}
_SUFFIXES: Final = ("Serde", "Deserializer", "Serializer")
_WINDOWED_INNER: Final = (
    "windowed.inner.class.serde",
    "windowed.inner.serializer.class",
    "windowed.inner.deserializer.class",
)
"""The first one is for everything; plain clients use the others (KIP-1020), and a serde here is both."""
_NEEDS_INNER: Final[Mapping[str, type[AnySerde]]] = {
    "ListSerde": ListSerde,
    "TimeWindowedSerde": TimeWindowedSerde,
    "SessionWindowedSerde": SessionWindowedSerde,
}


def resolve(value: object, *, key: str | None = None) -> AnySerde:
    """Return the serde that a configuration value stands for.

    Args:
        value: what `millrace.loading` accepts: a serde, a serde class, a short name (`string`, `long`), Java's class name
            (`org.apache.kafka.common.serialization.Serdes$StringSerde`), or an import path; or a function that makes a serde.
        key: the configuration key, for the message.

    Raises:
        ConfigError: the value does not stand for a serde.

    >>> resolve("long"), resolve("org.apache.kafka.common.serialization.Serdes$StringSerde")
    (LongSerde(), StringSerde())
    """
    setting = key or "serde"
    found = _find(value, setting)
    made = construct(found, setting) if callable(found) and not isinstance(found, Serde) else found
    if not isinstance(made, Serde):
        raise ConfigError(f"{setting}: {value!r} is not a serde: a serde is needed, with serialize and deserialize")
    return made


def default_key_serde(config: StreamsConfig) -> AnySerde | None:
    """Return the serde of `default.key.serde`, with the inner serde it may need, or None if it is not set."""
    return _default(config, "key")


def default_value_serde(config: StreamsConfig) -> AnySerde | None:
    """Return the serde of `default.value.serde`, with the inner serde it may need, or None if it is not set."""
    return _default(config, "value")


def _default(config: StreamsConfig, which: str) -> AnySerde | None:
    value = config.default_key_serde if which == "key" else config.default_value_serde
    if value is None:
        return None
    key = f"default.{which}.serde"
    found = _find(value, key)
    windowed_inner = next((name for name in _WINDOWED_INNER if _setting(config, name)), _WINDOWED_INNER[0])
    serde: AnySerde
    if found is ListSerde:
        kind = config.default_list_key_serde_type if which == "key" else config.default_list_value_serde_type
        container = _list_type(kind, f"default.list.{which}.serde.type")
        serde = ListSerde(_inner(config, f"default.list.{which}.serde.inner"), container)
    elif found is TimeWindowedSerde:
        serde = TimeWindowedSerde(_inner(config, windowed_inner), config.window_size_ms)
    elif found is SessionWindowedSerde:
        serde = SessionWindowedSerde(_inner(config, windowed_inner))
    else:
        serde = resolve(value, key=key)
    serde.configure(config)
    return serde


def _inner(config: StreamsConfig, key: str) -> AnySerde:
    value = _setting(config, key)
    if value is None:
        raise ConfigError(f"{key} must be set: the default serde is made of an inner one")
    return resolve(value, key=key)


def _setting(config: StreamsConfig, key: str) -> object:
    return getattr(config, key.replace(".", "_"), None) or config.client_settings.get(key)


def _list_type(value: object, key: str) -> type[list[object] | tuple[object, ...]]:
    """Return list for all of Java's list classes, or tuple, which is immutable."""
    if value in (tuple, "tuple"):
        return tuple
    if value in (None, list, "list") or (isinstance(value, str) and value.startswith("java.util.")):
        return list
    raise ConfigError(f"{key}: {value!r} is not a list type: use list or tuple")


def _find(value: object, setting: str) -> object:
    if not isinstance(value, str):
        return value
    name = java_name(value.strip())
    if name in _NEEDS_INNER:
        return _NEEDS_INNER[name]
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    short = _BY_NAME.get(name.replace("_", "").lower())
    return load(value, setting, _BY_NAME) if short is None else short
