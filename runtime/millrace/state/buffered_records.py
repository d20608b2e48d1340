"""How records that wait in a buffer are encoded (formats §5).

| what | layout |
|---|---|
| context | timestamp(8) ‖ offset(8) ‖ topicLength(4) ‖ topic ‖ partition(4) ‖ headerCount(4) ‖ per header: nameLength(4) ‖ name ‖ valueLength(4, -1 null) ‖ value |
| change | context ‖ priorLength(4, -1 null) ‖ prior ‖ oldLength(4, -1 null, -2 the same as prior) ‖ old ‖ newLength(4, -1 null) ‖ new |
| changelog, version 3 | change ‖ time(8) |
| version 2 | context ‖ length(4) ‖ [oldLength ‖ old ‖ newLength ‖ new] ‖ priorLength ‖ prior ‖ time(8); some releases wrote version 3 under it |
| version 1 | time(8) ‖ context ‖ length(4) ‖ [oldLength ‖ old ‖ newLength ‖ new] |
| version 0 (no header) | time(8) ‖ oldLength ‖ old ‖ newLength ‖ new |
"""  # noqa: E501 (a table)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 (lower case in the standard library)

from millrace.errors import ProcessorStateError
from millrace.records import Headers, RecordContext

BufferKey = tuple[int, bytes]
"""The time when a record is due (ms), and the bytes of its key."""

LeaveOut = Callable[[Exception, RecordContext], None]
"""Gets the error and the context of a buffered record that cannot be read; returns if it is to be dropped."""

VERSION_HEADERS = Headers([("v", b"\x03")])

_INT = Struct(">i")
_LONG = Struct(">q")
_TIME_OFFSET = Struct(">qq")
_NULL, _SAME_AS_PRIOR = -1, -2


@dataclass(slots=True)
class BufferedChange:
    """A waiting change: the bytes of its values, and the context of the record that caused it."""

    context: RecordContext
    prior: bytes | None
    """The value that was forwarded last, before anything was buffered."""
    old: bytes | None
    new: bytes | None


def encode_context(context: RecordContext) -> bytes:
    """Return the bytes of a record's context."""
    topic = (context.topic or "").encode()
    parts = [
        _TIME_OFFSET.pack(context.timestamp, context.offset),
        _INT.pack(len(topic)),
        topic,
        _INT.pack(context.partition),
        _INT.pack(len(context.headers)),
    ]
    for name, value in context.headers:
        encoded = name.encode()
        parts += (_INT.pack(len(encoded)), encoded, _sized(value))
    return b"".join(parts)


def encode_change(change: BufferedChange) -> bytes:
    """Return the bytes of a change with its context."""
    prior, old = change.prior, change.old
    same = old is not None and old == prior
    return b"".join(
        (
            encode_context(change.context),
            _sized(prior),
            _INT.pack(_SAME_AS_PRIOR) if same else _sized(old),
            _sized(change.new),
        )
    )


def decode_change(data: bytes) -> tuple[BufferedChange, int]:
    """Read a change with its context; return it and the position after it."""
    reader = _Reader(data)
    change = reader.change()
    return change, reader.position


def decode_logged_change(
    data: bytes, version: bytes | None, context: RecordContext, prior: tuple[bytes | None] | None
) -> tuple[int, BufferedChange]:
    """Read a value of a suppression's changelog.

    Args:
        data: the value.
        version: the header `v`; None = version 0.
        context: of the changelog record itself, for versions that did not write one.
        prior: the prior value of the change already waiting for the key; None if there is none. For versions that did not write
            it.

    Raises:
        ProcessorStateError: the version is unknown, or the value is cut short.
    """
    try:
        match version:
            case b"\x03":
                return _Reader(data).version_3()
            case b"\x02":
                try:
                    return _Reader(data).version_2()
                except (StructError, ValueError):
                    return _Reader(data).version_3()
            case b"\x01":
                reader = _Reader(data)
                time = reader.long()
                context = reader.context()
                return time, reader.sized_change(context, prior)
            case None:
                reader = _Reader(data)
                time = reader.long()
                return time, reader.old_and_new(context, prior)
    except (StructError, ValueError) as error:
        raise ProcessorStateError(
            f"A suppression changelog record of version {version!r} at offset {context.offset} of {context.topic} cannot be "
            f"read: {error}"
        ) from error
    raise ProcessorStateError(
        f"The suppression changelog record at offset {context.offset} of {context.topic} has the unknown version {version!r}"
    )


def _sized(data: bytes | None) -> bytes:
    return _INT.pack(_NULL) if data is None else _INT.pack(len(data)) + data


class _Reader:
    """Reads the parts in sequence."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def number(self) -> int:
        """Read 4 bytes."""
        (value,) = _INT.unpack_from(self.data, self.position)
        self.position += _INT.size
        return value  # type: ignore[no-any-return]

    def long(self) -> int:
        """Read 8 bytes."""
        (value,) = _LONG.unpack_from(self.data, self.position)
        self.position += _LONG.size
        return value  # type: ignore[no-any-return]

    def last_long(self) -> int:
        """Read 8 bytes, which must be the last."""
        value = self.long()
        if self.position != len(self.data):
            raise ValueError(f"{len(self.data) - self.position} bytes too many")
        return value

    def take(self, length: int) -> bytes:
        """Read this number of bytes."""
        end = self.position + length
        if length < 0 or end > len(self.data):
            raise ValueError(f"a part of {length} bytes at position {self.position} of {len(self.data)}")
        found = self.data[self.position : end]
        self.position = end
        return found

    def sized(self) -> bytes | None:
        """Read a length and that many bytes; length -1 is None."""
        length = self.number()
        return None if length == _NULL else self.take(length)

    def context(self) -> RecordContext:
        """Read a record's context."""
        timestamp, offset = self.long(), self.long()
        topic = (self.sized() or b"").decode()
        partition = self.number()
        headers = Headers([((self.sized() or b"").decode(), self.sized()) for _ in range(self.number())])
        return RecordContext(topic, partition, offset, timestamp, headers)

    def change(self) -> BufferedChange:
        """Read a change with its context."""
        context = self.context()
        prior = self.sized()
        length = self.number()
        old = prior if length == _SAME_AS_PRIOR else None if length == _NULL else self.take(length)
        return BufferedChange(context, prior, old, self.sized())

    def version_3(self) -> tuple[int, BufferedChange]:
        """Read a change and its time, and nothing else."""
        change = self.change()
        return self.last_long(), change

    def version_2(self) -> tuple[int, BufferedChange]:
        """Read a change in the layout of version 2 and its time, and nothing else."""
        change = self.sized_change(self.context(), None)
        change.prior = self.sized()
        return self.last_long(), change

    def old_and_new(self, context: RecordContext, prior: tuple[bytes | None] | None) -> BufferedChange:
        """Read the old and the new value; if nothing is waiting, the old value is also the prior one."""
        old, new = self.sized(), self.sized()
        return BufferedChange(context, old if prior is None else prior[0], old, new)

    def sized_change(self, context: RecordContext, prior: tuple[bytes | None] | None) -> BufferedChange:
        """Read old and new value, preceded by the length of both."""
        length = self.number()
        if length < 0 or self.position + length > len(self.data):
            raise ValueError(f"a change of {length} bytes at position {self.position} of {len(self.data)}")
        return self.old_and_new(context, prior)
