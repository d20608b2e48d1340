"""Which serde a store uses: its own, else the configured default."""

from __future__ import annotations

from typing import Any

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.serdes.base import Serde
from millrace.serdes.resolve import default_key_serde, default_value_serde


def store_serdes(
    store_name: str, key_serde: Serde[Any] | None, value_serde: Serde[Any] | None, config: StreamsConfig
) -> tuple[Serde[Any], Serde[Any]]:
    """Return the key and the value serde of a store, configured.

    Raises:
        ConfigError: one is neither given nor configured; the message names the store.
    """
    keys = key_serde or default_key_serde(config)
    values = value_serde or default_value_serde(config)
    if keys is None or values is None:
        part = "key" if keys is None else "value"
        raise ConfigError(
            f"State store {store_name!r} has no {part} serde: give one to the operator or the store's builder, "
            f"or set default.{part}.serde"
        )
    keys.configure(config)
    values.configure(config)
    return keys, values


def changelog_topic(application_id: str, store_name: str) -> str:
    """Return the name that a store's changelog has, and that its serdes are given."""
    return f"{application_id}-{store_name}-changelog"
