"""What options with serdes have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, Self, TypeVar, cast

from millrace.serdes.base import Serde

K = TypeVar("K")
V = TypeVar("V")


class WithSerdes(Generic[K, V]):
    """An option with a `key_serde` and a `value_serde`; None leaves the choice to the stream or the application."""

    __slots__ = ()

    def with_key_serde(self, serde: Serde[K] | None) -> Self:
        """Use this serde for keys."""
        option: Any = self
        return cast("Self", replace(option, key_serde=serde))

    def with_value_serde(self, serde: Serde[V] | None) -> Self:
        """Use this serde for values."""
        option: Any = self
        return cast("Self", replace(option, value_serde=serde))
