"""Reading and writing the big-endian primitives of both payloads."""

from __future__ import annotations

import struct
from typing import Self


class Writer:
    """Bytes being written."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._parts: list[bytes] = []

    @property
    def data(self) -> bytes:
        """Everything written."""
        return b"".join(self._parts)

    def raw(self, data: bytes) -> Self:
        """Write bytes as they are."""
        self._parts.append(data)
        return self

    def int8(self, value: int) -> Self:
        """Write a signed byte."""
        return self.raw(struct.pack(">b", value))

    def int16(self, value: int) -> Self:
        """Write a signed 16-bit integer."""
        return self.raw(struct.pack(">h", value))

    def int32(self, value: int) -> Self:
        """Write a signed 32-bit integer."""
        return self.raw(struct.pack(">i", value))

    def int64(self, value: int) -> Self:
        """Write a signed 64-bit integer."""
        return self.raw(struct.pack(">q", value))

    def bytes32(self, value: bytes) -> Self:
        """Write bytes behind a 32-bit length."""
        return self.int32(len(value)).raw(value)

    def utf(self, value: str) -> Self:
        """Write a string behind an unsigned 16-bit length, as Java's DataOutput does (topic and host names are ASCII)."""
        data = value.encode()
        return self.raw(struct.pack(">H", len(data))).raw(data)


class Reader:
    """Bytes being read; running out of them raises struct.error or ValueError."""

    def __init__(self, data: bytes) -> None:
        """Begin at the start."""
        self._data = bytes(data)
        self._position = 0

    def raw(self, size: int) -> bytes:
        """Read so many bytes."""
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"it ends after {len(self._data)} bytes, but {end} are announced")
        part = self._data[self._position : end]
        self._position = end
        return part

    def int8(self) -> int:
        """Read a signed byte."""
        return int.from_bytes(self.raw(1), signed=True)

    def int16(self) -> int:
        """Read a signed 16-bit integer."""
        return int.from_bytes(self.raw(2), signed=True)

    def int32(self) -> int:
        """Read a signed 32-bit integer."""
        return int.from_bytes(self.raw(4), signed=True)

    def int64(self) -> int:
        """Read a signed 64-bit integer."""
        return int.from_bytes(self.raw(8), signed=True)

    def bytes32(self) -> bytes:
        """Read bytes behind a 32-bit length."""
        return self.raw(self.int32())

    def utf(self) -> str:
        """Read a string behind an unsigned 16-bit length."""
        return self.raw(int.from_bytes(self.raw(2))).decode()

    def nullable_string16(self) -> str | None:
        """Read a string behind a signed 16-bit length, -1 = None."""
        size = self.int16()
        return None if size < 0 else self.raw(size).decode()
