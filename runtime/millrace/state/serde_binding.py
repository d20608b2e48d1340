"""Which serde a store uses: its own, else the configured default; bound to functions when the store is opened."""

from __future__ import annotations

import importlib
from typing import Any

from millrace.errors import ConfigError
from millrace.serdes.base import Serde


def resolve_serde(own: Serde[Any] | None, default: Any, *, store_name: str, part: str) -> Serde[Any]:
    """Return a store's serde.

    Args:
        own: the serde given to the builder.
        default: `default.key.serde` or `default.value.serde`: a serde, its class, or `module:Class`.
        store_name: for the message.
        part: `key` or `value`.

    Raises:
        ConfigError: neither is given, or the default cannot be imported.
    """
    if own is not None:
        return own
    if default is None:
        raise ConfigError(
            f"State store {store_name!r} has no {part} serde: give one to the operator or the store's builder, "
            f"or set default.{part}.serde"
        )
    if isinstance(default, str):
        module, _, name = default.replace(":", ".").rpartition(".")
        try:
            default = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"default.{part}.serde={default!r} cannot be imported: {error}") from None
    serde = default() if isinstance(default, type) else default
    if not isinstance(serde, Serde):
        raise ConfigError(f"default.{part}.serde={default!r} is not a Serde")
    return serde


def changelog_topic(application_id: str, store_name: str) -> str:
    """Return the name that a store's changelog has, and that its serdes are given."""
    return f"{application_id}-{store_name}-changelog"
