"""Serialisers and deserialisers, and `Serdes`, where to get them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar, cast

from pydantic import BaseModel

from millrace.checks import Suggesting
from millrace.errors import ConfigError
from millrace.records import Windowed
from millrace.serdes.base import AnySerde, Serde
from millrace.serdes.change import ChangeSerde
from millrace.serdes.json import JsonSerde, PydanticSerde
from millrace.serdes.list import FIXED_SIZES, ListSerde
from millrace.serdes.primitives import (
    BUILT_IN,
    BooleanSerde,
    ByteArraySerde,
    ByteBufferSerde,
    BytesSerde,
    DoubleSerde,
    FloatSerde,
    IntegerSerde,
    LongSerde,
    ShortSerde,
    StringSerde,
    UUIDSerde,
    VoidSerde,
    shared,
)
from millrace.serdes.resolve import default_key_serde, default_value_serde
from millrace.serdes.resolve import resolve as _resolve
from millrace.serdes.windowed import SessionWindowedSerde, TimeWindowedSerde

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

_BY_TYPE: Final[Mapping[type, AnySerde]] = {built_in.type: built_in.serde for built_in in BUILT_IN if built_in.type}


class Serdes(Suggesting):
    """The serdes that come with Millrace. Those with the same name as in Java's `Serdes` write the same bytes.

    >>> Serdes.long().serialize("t", 1).hex()
    '0000000000000001'
    """

    resolve = staticmethod(_resolve)
    default_key = staticmethod(default_key_serde)
    default_value = staticmethod(default_value_serde)

    @staticmethod
    def string() -> StringSerde:
        """Text as UTF-8."""
        return shared(StringSerde)

    @staticmethod
    def byte_array() -> ByteArraySerde:
        """Bytes, unchanged."""
        return shared(ByteArraySerde)

    @staticmethod
    def bytes() -> BytesSerde:
        """Bytes, unchanged."""
        return shared(BytesSerde)

    @staticmethod
    def byte_buffer() -> ByteBufferSerde:
        """Any buffer, read as a memoryview."""
        return shared(ByteBufferSerde)

    @staticmethod
    def short() -> ShortSerde:
        """Signed integers of 16 bits."""
        return shared(ShortSerde)

    @staticmethod
    def integer() -> IntegerSerde:
        """Signed integers of 32 bits."""
        return shared(IntegerSerde)

    @staticmethod
    def long() -> LongSerde:
        """Signed integers of 64 bits."""
        return shared(LongSerde)

    @staticmethod
    def float() -> FloatSerde:
        """Floating-point numbers of single precision."""
        return shared(FloatSerde)

    @staticmethod
    def double() -> DoubleSerde:
        """Floating-point numbers of double precision; Python's own."""
        return shared(DoubleSerde)

    @staticmethod
    def boolean() -> BooleanSerde:
        """Truth values."""
        return shared(BooleanSerde)

    @staticmethod
    def uuid() -> UUIDSerde:
        """UUIDs as text."""
        return shared(UUIDSerde)

    @staticmethod
    def void() -> VoidSerde:
        """Null only."""
        return shared(VoidSerde)

    @staticmethod
    def json(type_: type[T] | None = None, *, sort_keys: bool = False) -> JsonSerde[T]:
        """JSON text, read into a type if one is given."""
        return JsonSerde(type_, sort_keys=sort_keys)

    @staticmethod
    def pydantic(model: type[M], *, shareable: bool = False) -> PydanticSerde[M]:
        """Instances of a pydantic model as JSON."""
        return PydanticSerde(model, shareable=shareable)

    @staticmethod
    def list(inner: Serde[T]) -> ListSerde[T]:
        """Lists of values of an inner serde (KIP-466)."""
        return ListSerde(inner)

    @staticmethod
    def time_windowed(inner: Serde[T], window_size_ms: int, *, for_changelog: bool = False) -> Serde[Windowed[T]]:
        """Keys of time windows of one size in milliseconds."""
        return TimeWindowedSerde(inner, window_size_ms, for_changelog=for_changelog)

    @staticmethod
    def session_windowed(inner: Serde[T]) -> Serde[Windowed[T]]:
        """Keys of session windows."""
        return SessionWindowedSerde(inner)

    @staticmethod
    def serde_from(type_: type[T]) -> Serde[T]:
        """Return the serde for a Python type: str, bytes, int (long), float (double), bool, UUID, or a pydantic model.

        Raises:
            ConfigError: there is none for that type.
        """
        found = _BY_TYPE.get(type_)
        if found is not None:
            return found
        if isinstance(type_, type) and issubclass(type_, BaseModel):
            return cast("Serde[T]", PydanticSerde(type_))
        known = ", ".join(sorted(known.__name__ for known in _BY_TYPE))
        raise ConfigError(f"There is no serde for {type_!r}; there is one for {known} and for pydantic models")


__all__ = [
    "FIXED_SIZES",
    "BooleanSerde",
    "ByteArraySerde",
    "ByteBufferSerde",
    "BytesSerde",
    "ChangeSerde",
    "DoubleSerde",
    "FloatSerde",
    "IntegerSerde",
    "JsonSerde",
    "ListSerde",
    "LongSerde",
    "PydanticSerde",
    "Serde",
    "Serdes",
    "SessionWindowedSerde",
    "ShortSerde",
    "StringSerde",
    "TimeWindowedSerde",
    "UUIDSerde",
    "VoidSerde",
    "default_key_serde",
    "default_value_serde",
]
