"""Lists in the layout of Java's `ListSerde` (formats §4, KIP-466).

| inner serde | layout |
|---|---|
| of fixed size (Short, Integer, Long, Float, Double, UUID) | `00` ‖ nullCount(4) ‖ nullIndex(4)* ‖ count(4) ‖ items |
| any other | `01` ‖ count(4) ‖ per item: length(4, -1 null) ‖ bytes |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from struct import Struct, pack, unpack_from
from struct import error as StructError  # noqa: N812 (lower case in the standard library)
from typing import Any, Final, Generic, TypeVar

from millrace.config import StreamsConfig
from millrace.errors import SerializationError
from millrace.records import NO_HEADERS, Headers
from millrace.serdes.base import AnySerde, Serde
from millrace.serdes.primitives import (
    DoubleSerde,
    FloatSerde,
    IntegerSerde,
    LongSerde,
    ShortSerde,
    UUIDSerde,
    reject_bytes,
    reject_data,
)

T = TypeVar("T")

FIXED_SIZES: Final[dict[type[AnySerde], int]] = {
    ShortSerde: 2,
    IntegerSerde: 4,
    FloatSerde: 4,
    LongSerde: 8,
    DoubleSerde: 8,
    UUIDSerde: 36,
}
"""Bytes per item for the serdes that Java's list serde writes without lengths."""

_FIXED, _VARIABLE = 0, 1
_INT32: Final = Struct(">i")
_VARIABLE_HEAD: Final = Struct(">bi")


class ListSerde(Serde["list[T | None]"], Generic[T]):
    """A list of values of one type, any of which may be None.

    Args:
        inner: the serde of the items.
        container: creates the result from the items read; `tuple` for an immutable one.

    >>> from millrace.serdes import Serdes
    >>> ListSerde(Serdes.string()).serialize("t", ["ab", None]).hex()
    '0100000002000000026162ffffffff'
    """

    def __init__(self, inner: Serde[T], container: Callable[[Iterable[T | None]], Any] = list) -> None:
        self.inner = inner
        self.shareable = container is tuple and inner.shareable
        self._container = container
        self._item_size = FIXED_SIZES.get(type(inner))

    def configure(self, config: StreamsConfig) -> None:
        """Configure the inner serde."""
        self.inner.configure(config)

    def serialize(self, topic: str, data: Sequence[T | None], headers: Headers = NO_HEADERS) -> bytes:
        """Return the list's bytes; it may also be a tuple or deque."""
        if not isinstance(data, (list, tuple, deque)):
            reject_data(self, topic, data, "a list")
        items = [None if item is None else self.inner.serialize(topic, item, headers) for item in data]
        if self._item_size is None:
            parts = [_VARIABLE_HEAD.pack(_VARIABLE, len(items))]
            for item in items:
                parts += (b"\xff\xff\xff\xff",) if item is None else (_INT32.pack(len(item)), item)
        else:
            nulls = [index for index, item in enumerate(items) if item is None]
            parts = [pack(f">bi{len(nulls)}ii", _FIXED, len(nulls), *nulls, len(items))]
            parts += (item for item in items if item is not None)
        return b"".join(parts)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> list[T | None]:
        """Return the items in a container of this serde's type."""
        try:
            slices = self._slices(topic, data)
        except StructError as error:
            reject_bytes(self, topic, data, "a complete list", error)
        read = self.inner.deserialize
        return self._container(None if item is None else read(topic, item, headers) for item in slices)  # type: ignore[no-any-return]

    def _slices(self, topic: str, data: bytes) -> list[bytes | None]:
        flag, count = _VARIABLE_HEAD.unpack_from(data)
        position, nulls = 5, frozenset[int]()
        if flag == _FIXED:
            self._check_count(topic, data, count, 4, position)
            indexes = unpack_from(f">{count}i", data, position)
            position += 4 * count
            (count,) = _INT32.unpack_from(data, position)
            position += 4
            nulls = frozenset(indexes)
            if self._item_size is None:
                raise SerializationError(f"{self!r} cannot read a list of fixed-size items from topic {topic!r}")
        elif flag != _VARIABLE:
            reject_bytes(self, topic, data, f"a list (flag 00 or 01, not {flag & 0xFF:02x})")
        self._check_count(topic, data, count - len(nulls), self._item_size if flag == _FIXED else 4, position)
        items: list[bytes | None] = []
        for index in range(count):
            if index in nulls:
                items.append(None)
                continue
            if flag == _FIXED:
                size = self._item_size or 0
            else:
                (size,) = _INT32.unpack_from(data, position)
                position += 4
                if size == -1:
                    items.append(None)
                    continue
            if size < 0 or position + size > len(data):
                reject_bytes(self, topic, data, f"{size} bytes for item {index} at position {position}")
            items.append(data[position : position + size])
            position += size
        return items

    def _check_count(self, topic: str, data: bytes, count: int, least_size: int | None, position: int) -> None:
        """Refuse counts that the remaining bytes cannot hold, before allocating memory for them."""
        if count < 0 or position + count * (least_size or 0) > len(data):
            reject_bytes(self, topic, data, f"room for {count} items")

    def __repr__(self) -> str:
        return f"ListSerde({self.inner!r})"
