"""Serdes of single values, each with the bytes of the Java serde of the same name.

They run once or twice per record, so the happy path is one C call inside a `try` (free in CPython 3.11). What was wrong is
determined only after that call has failed.
"""

# ruff: noqa: ARG002 (most serdes need neither topic nor headers; the interface has them for those that do)
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812 (lower case in the standard library)
from types import NoneType
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, cast
from uuid import UUID

from millrace.errors import SerializationError
from millrace.records import NO_HEADERS, Headers
from millrace.serdes.base import Serde

S = TypeVar("S", bound=Serde[Any])

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_FLOAT: Final = Struct(">f")
_DOUBLE: Final = Struct(">d")
_pack_int16, _unpack_int16 = _INT16.pack, _INT16.unpack
_pack_int32, _unpack_int32 = _INT32.pack, _INT32.unpack
_pack_int64, _unpack_int64 = _INT64.pack, _INT64.unpack
_pack_float, _unpack_float = _FLOAT.pack, _FLOAT.unpack
_pack_double, _unpack_double = _DOUBLE.pack, _DOUBLE.unpack
_encode, _decode = str.encode, bytes.decode
_JAVA_NAN: Final = bytes.fromhex("7ff8000000000000")
_UUID_GROUPS: Final = re.compile(rb"-".join([rb"([0-9a-fA-F]+)"] * 5)).fullmatch
_UUID_BITS: Final = (32, 16, 16, 16, 48)
_UUID_SIZE: Final = 36


def reject_data(serde: object, topic: str, data: object, expected: str, cause: Exception | None = None) -> NoReturn:
    """Raise the error for an object that a serde cannot encode, naming its type."""
    detail = "" if cause is None or isinstance(cause, TypeError) else f" ({cause})"
    raise SerializationError(
        f"{serde!r} writes {expected}, but was given {type(data).__qualname__} for topic {topic!r}{detail}: "
        "give the operator a serde for that type, or convert the value first"
    ) from cause


def reject_bytes(serde: object, topic: str, data: bytes, expected: str, cause: Exception | None = None) -> NoReturn:
    """Raise the error for bytes that a serde cannot decode, naming their length."""
    raise SerializationError(
        f"{serde!r} expects {expected}, but got {len(data)} bytes from topic {topic!r}: "
        "the topic was written with another serde"
    ) from cause


_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def decode_malformed(data: bytes) -> str:
    r"""Return text as Java decodes it: what is not UTF-8 becomes U+FFFD.

    Java and Python replace the same bytes by one character, except that Java takes the three bytes of a surrogate for one.

    >>> len(decode_malformed(bytes.fromhex("41 eda0bd edb880 ff")))
    4
    """
    return _SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")


class StringSerde(Serde[str]):
    """Text as UTF-8.

    Bytes that are not UTF-8 become U+FFFD, as in Java. A lone surrogate cannot be written (Java would write `?`).
    """

    shareable = True

    def serialize(self, topic: str, data: str, headers: Headers = NO_HEADERS) -> bytes:
        """Return the UTF-8 bytes."""
        try:
            return _encode(data)
        except (TypeError, UnicodeEncodeError) as error:
            reject_data(self, topic, data, "str", error)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> str:
        """Return the text."""
        try:
            return _decode(data)
        except UnicodeDecodeError:
            return decode_malformed(data)


class ByteArraySerde(Serde[bytes]):
    """Bytes, unchanged; `bytearray` and `memoryview` are copied when written."""

    shareable = True

    def serialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> bytes:
        """Return the bytes themselves."""
        if type(data) is bytes:
            return data
        return _copy_buffer(self, topic, data)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> bytes:
        """Return the bytes themselves."""
        return data


class BytesSerde(ByteArraySerde):
    """Java's `Serdes.Bytes()`: the same as `ByteArraySerde`, since Python's bytes can already be compared and hashed."""


class ByteBufferSerde(Serde[memoryview]):
    """Any buffer when written; a read-only `memoryview` of the record's bytes when read."""

    shareable = True

    def serialize(self, topic: str, data: Any, headers: Headers = NO_HEADERS) -> bytes:
        """Return a copy of the buffer's bytes."""
        if type(data) is bytes:
            return data
        return _copy_buffer(self, topic, data)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> memoryview:
        """Return a view of the bytes."""
        return memoryview(data)


def _copy_buffer(serde: object, topic: str, data: object) -> bytes:
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    reject_data(serde, topic, data, "bytes, bytearray or memoryview")


class ShortSerde(Serde[int]):
    """A 16-bit signed integer, big-endian."""

    shareable = True

    def serialize(self, topic: str, data: int, headers: Headers = NO_HEADERS) -> bytes:
        """Return two bytes."""
        try:
            return _pack_int16(data)
        except StructError as error:
            reject_data(self, topic, data, "int from -2**15 to 2**15-1", error)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> int:
        """Return the number."""
        try:
            return _unpack_int16(data)[0]  # type: ignore[no-any-return]
        except StructError as error:
            reject_bytes(self, topic, data, "exactly 2 bytes", error)


class IntegerSerde(Serde[int]):
    """A 32-bit signed integer, big-endian."""

    shareable = True

    def serialize(self, topic: str, data: int, headers: Headers = NO_HEADERS) -> bytes:
        """Return four bytes."""
        try:
            return _pack_int32(data)
        except StructError as error:
            reject_data(self, topic, data, "int from -2**31 to 2**31-1", error)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> int:
        """Return the number."""
        try:
            return _unpack_int32(data)[0]  # type: ignore[no-any-return]
        except StructError as error:
            reject_bytes(self, topic, data, "exactly 4 bytes", error)


class LongSerde(Serde[int]):
    """A 64-bit signed integer, big-endian; what `count` stores."""

    shareable = True

    def serialize(self, topic: str, data: int, headers: Headers = NO_HEADERS) -> bytes:
        """Return eight bytes."""
        try:
            return _pack_int64(data)
        except StructError as error:
            reject_data(self, topic, data, "int from -2**63 to 2**63-1", error)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> int:
        """Return the number."""
        try:
            return _unpack_int64(data)[0]  # type: ignore[no-any-return]
        except StructError as error:
            reject_bytes(self, topic, data, "exactly 8 bytes", error)


class FloatSerde(Serde[float]):
    """An IEEE 754 single, big-endian; Python's floats are rounded to it, and refused when beyond its range."""

    shareable = True

    def serialize(self, topic: str, data: float, headers: Headers = NO_HEADERS) -> bytes:
        """Return four bytes."""
        try:
            return _pack_float(data)
        except (StructError, OverflowError) as error:
            reject_data(self, topic, data, "float within single precision", error)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> float:
        """Return the number."""
        try:
            return _unpack_float(data)[0]  # type: ignore[no-any-return]
        except StructError as error:
            reject_bytes(self, topic, data, "exactly 4 bytes", error)


class DoubleSerde(Serde[float]):
    """An IEEE 754 double, big-endian; every NaN is written as Java's one."""

    shareable = True

    def serialize(self, topic: str, data: float, headers: Headers = NO_HEADERS) -> bytes:
        """Return eight bytes."""
        try:
            packed = _pack_double(data)
            return packed if data == data else _JAVA_NAN  # noqa: PLR0124 (only NaN differs from itself)
        except (StructError, OverflowError, TypeError, ValueError) as error:
            reject_data(self, topic, data, "float", error)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> float:
        """Return the number."""
        try:
            return _unpack_double(data)[0]  # type: ignore[no-any-return]
        except StructError as error:
            reject_bytes(self, topic, data, "exactly 8 bytes", error)


class BooleanSerde(Serde[bool]):
    """One byte: 0 or 1."""

    shareable = True

    def serialize(self, topic: str, data: bool, headers: Headers = NO_HEADERS) -> bytes:  # noqa: FBT001 (the value itself)
        """Return one byte."""
        if data is True:
            return b"\x01"
        if data is False:
            return b"\x00"
        reject_data(self, topic, data, "bool")

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> bool:
        """Return the truth value."""
        if data == b"\x01":
            return True
        if data == b"\x00":
            return False
        reject_bytes(self, topic, data, "one byte, 00 or 01")


class UUIDSerde(Serde[UUID]):
    """A UUID as its 36 characters of text."""

    shareable = True

    def serialize(self, topic: str, data: UUID, headers: Headers = NO_HEADERS) -> bytes:
        """Return the text form, lower case with hyphens."""
        if isinstance(data, UUID):
            return str(data).encode()
        reject_data(self, topic, data, "uuid.UUID")

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> UUID:
        """Return the UUID; as in Java, leading zeroes of its five groups may be missing, and nothing else is a UUID."""
        found = _UUID_GROUPS(data) if len(data) <= _UUID_SIZE else None
        if found is None:
            reject_bytes(self, topic, data, "a UUID as text")
        number = 0
        for group, bits in zip(found.groups(), _UUID_BITS, strict=True):
            number = number << bits | int(group, 16) & (1 << bits) - 1
        return UUID(int=number)


class VoidSerde(Serde[None]):
    """For keys or values that are always null: anything else is an error."""

    shareable = True

    def serialize(self, topic: str, data: None, headers: Headers = NO_HEADERS) -> bytes:
        """Raise: a serde is never asked to write null, and this one writes nothing else."""
        reject_data(self, topic, data, "null only")

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> None:
        """Raise: bytes are not null."""
        reject_bytes(self, topic, data, "null only")


class BuiltIn(NamedTuple):
    """A serde that needs no arguments: one object, which everybody uses."""

    serde: Serde[Any]
    names: tuple[str, ...]
    """In settings, in any case, with or without `_` (`byte_array`)."""
    type: type | None = None
    """The Python type whose values it is for, if there is no other serde for them."""


BUILT_IN: Final = (
    BuiltIn(StringSerde(), ("string",), str),
    BuiltIn(BytesSerde(), ("bytes",)),
    BuiltIn(ByteArraySerde(), ("bytearray",), bytes),
    BuiltIn(ByteBufferSerde(), ("bytebuffer",), memoryview),
    BuiltIn(ShortSerde(), ("short",)),
    BuiltIn(IntegerSerde(), ("integer", "int")),
    BuiltIn(LongSerde(), ("long",), int),
    BuiltIn(FloatSerde(), ("float",)),
    BuiltIn(DoubleSerde(), ("double",), float),
    BuiltIn(BooleanSerde(), ("boolean", "bool"), bool),
    BuiltIn(UUIDSerde(), ("uuid",), UUID),
    BuiltIn(VoidSerde(), ("void",), NoneType),
)
_SHARED: Final[Mapping[type[Serde[Any]], Serde[Any]]] = {type(row.serde): row.serde for row in BUILT_IN}


def shared(kind: type[S]) -> S:
    """Return the object of one of the classes above that everybody uses."""
    return cast("S", _SHARED[kind])


FIXED_FORMATS: Final = {ShortSerde: "h", IntegerSerde: "i", LongSerde: "q", FloatSerde: "f"}
"""The serdes that only pack one number, with its format in the `struct` module: it can be packed together with others."""

_C_ENCODERS: Final[Mapping[object, Callable[[Any], bytes]]] = {
    StringSerde.serialize: _encode,
    ShortSerde.serialize: _pack_int16,
    IntegerSerde.serialize: _pack_int32,
    LongSerde.serialize: _pack_int64,
}
_C_DECODERS: Final[Mapping[object, Callable[[bytes], Any]]] = {StringSerde.deserialize: _decode}
_READ_BACK: Final[Mapping[object, type]] = {
    StringSerde.serialize: str,
    ByteArraySerde.serialize: bytes,
    ByteBufferSerde.serialize: NoneType,
    ShortSerde.serialize: NoneType,
    IntegerSerde.serialize: NoneType,
    LongSerde.serialize: int,
    FloatSerde.serialize: NoneType,
    DoubleSerde.serialize: float,
    BooleanSerde.serialize: bool,
    UUIDSerde.serialize: UUID,
}


def c_encoder(serde: Serde[Any]) -> Callable[[Any], bytes] | None:
    """Return the function in C that a serde calls with only the object, or None if it does more than that.

    It saves a call for each record. If it raises, call the serde, whose error says what is wrong.
    """
    return _C_ENCODERS.get(getattr(serde.serialize, "__func__", None))


def c_decoder(serde: Serde[Any]) -> Callable[[bytes], Any] | None:
    """Return the function in C that a serde calls with only the bytes, or None; see `c_encoder`."""
    return _C_DECODERS.get(getattr(serde.deserialize, "__func__", None))


def type_read_back(serde: Serde[Any]) -> type | None:
    """Return the type of objects that a serde can write and reads back as they were; None if that is not known.

    It is `NoneType` if no object is certain to qualify: of another type, mutable, rounded, or out of range.
    """
    return _READ_BACK.get(getattr(serde.serialize, "__func__", None))
