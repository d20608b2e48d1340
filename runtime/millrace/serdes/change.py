"""Updates of a table on its repartition topic: the new value, the old value, or both in one record (formats §8, KIP-904).

| flag | layout | written |
|---|---|---|
| 0 | old ‖ `00` | yes |
| 1 | new ‖ `01` | yes |
| 2 | varint(newLength) ‖ new ‖ old ‖ `02` | yes, except during an upgrade from 3.4 or older |
| 3, 4, 5 | as 0, 1, 2 with one more byte, isLatest, before the flag | no; later versions may |
"""

from __future__ import annotations

from typing import Generic, TypeVar

from millrace.config import StreamsConfig
from millrace.errors import SerializationError
from millrace.records import NO_HEADERS, Change, Headers
from millrace.serdes.base import Serde
from millrace.serdes.primitives import reject_bytes, reject_data
from millrace.serdes.varint import decode_varint, encode_varint

T = TypeVar("T")

_OLD, _NEW, _BOTH = 0, 1, 2
_WITH_LATEST = 3


class ChangeSerde(Serde[Change[T]], Generic[T]):
    """Changes of values of an inner serde.

    Args:
        inner: the serde of the table's values.
        allow_both: False while an application is upgraded from 3.4 or older (`upgrade.from`): a change with both values is
            then an error, and two records must be sent.
    """

    def __init__(self, inner: Serde[T], *, allow_both: bool = True) -> None:
        self.inner = inner
        self.allow_both = allow_both
        self.shareable = inner.shareable

    def configure(self, config: StreamsConfig) -> None:
        """Configure the inner serde."""
        self.inner.configure(config)

    def serialize(self, topic: str, data: Change[T], headers: Headers = NO_HEADERS) -> bytes:
        """Return the values that are not None, and the flag that says which they are.

        Raises:
            SerializationError: both values are None, or neither is and `allow_both` is False.
        """
        try:
            new, old, _ = data
        except (TypeError, ValueError) as error:
            reject_data(self, topic, data, "Change", error)
        if new is None:
            if old is None:
                raise SerializationError(f"A change for topic {topic!r} has neither an old nor a new value")
            return self.inner.serialize(topic, old, headers) + b"\x00"
        new_bytes = self.inner.serialize(topic, new, headers)
        if old is None:
            return new_bytes + b"\x01"
        if not self.allow_both:
            raise SerializationError(
                f"A change for topic {topic!r} has both an old and a new value, which upgrade.from forbids in one record"
            )
        return b"".join((encode_varint(len(new_bytes)), new_bytes, self.inner.serialize(topic, old, headers), b"\x02"))

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> Change[T]:
        """Return the change; flags 0 to 5 are understood."""
        if not data:
            reject_bytes(self, topic, data, "at least the flag")
        flag, end, is_latest = data[-1], len(data) - 1, True
        if _WITH_LATEST <= flag <= _WITH_LATEST + _BOTH and end > 0:
            flag, end, is_latest = flag - _WITH_LATEST, end - 1, data[end - 1] == 1
        read = self.inner.deserialize
        if flag == _NEW:
            return Change(read(topic, data[:end], headers), None, is_latest)
        if flag == _OLD:
            return Change(None, read(topic, data[:end], headers), is_latest)
        if flag != _BOTH:
            reject_bytes(self, topic, data, f"a change (flag 0 to 5, not {flag})")
        try:
            length, start = decode_varint(data[:end])
        except ValueError as error:
            reject_bytes(self, topic, data, "the new value's length first", error)
        middle = start + length
        if length < 0 or middle > end:
            reject_bytes(self, topic, data, f"{length} bytes of a new value")
        return Change(read(topic, data[start:middle], headers), read(topic, data[middle:end], headers), is_latest)

    def __repr__(self) -> str:
        return f"ChangeSerde({self.inner!r})"
