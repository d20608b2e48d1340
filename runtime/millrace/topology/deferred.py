"""Parts of a topology that depend on the application's configuration, and so are decided when it is built for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from millrace.config import StreamsConfig
from millrace.serdes.base import Serde
from millrace.state.api import StoreBuilder


class DeferredSerde(Serde[Any]):
    """Stands for a serde made from the configuration, such as one around the default value serde."""

    def __init__(self, make: Callable[[StreamsConfig], Serde[Any]]) -> None:
        self.for_config = make


@runtime_checkable
class DeferredStore(Protocol):
    """A store builder whose implementation and default serdes the configuration decides."""

    generated_name: bool
    """Whether nobody chose the store's name (KIP-1111)."""

    def for_config(self, config: StreamsConfig) -> StoreBuilder:
        """Return the builder of the store as this application has it."""


def resolved_serde(serde: Serde[Any] | None, config: StreamsConfig) -> Serde[Any] | None:
    """Return a serde as this application has it, configured."""
    found = serde.for_config(config) if isinstance(serde, DeferredSerde) else serde
    if found is not None:
        found.configure(config)
    return found


def resolved_store(builder: StoreBuilder, config: StreamsConfig) -> StoreBuilder:
    """Return a store builder as this application has it."""
    return builder.for_config(config) if isinstance(builder, DeferredStore) else builder
