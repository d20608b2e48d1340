"""Kafka's variable-length integers: zig-zag, so that small negative numbers are short too, and at most 32 bits."""

from __future__ import annotations

__all__ = ["decode_varint", "encode_varint"]


def encode_varint(number: int) -> bytes:
    """Encode a 32-bit number.

    >>> [encode_varint(number).hex() for number in (0, -1, 64, 300)]
    ['00', '01', '8001', 'd804']
    """
    rest = ((number << 1) ^ (number >> 31)) & 0xFFFFFFFF
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def decode_varint(data: bytes, position: int = 0) -> tuple[int, int]:
    """Return the number at a position, and the position after it.

    Raises:
        ValueError: The bytes end within it, or it is longer than five bytes.
    """
    result = 0
    try:
        for shift in (0, 7, 14, 21, 28):
            byte = data[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                result &= 0xFFFFFFFF
                return (result >> 1) ^ -(result & 1), position
    except IndexError:
        raise ValueError(f"the data ends within a varint, after {len(data)} bytes") from None
    raise ValueError(f"no varint ends at position {position}: it is longer than five bytes")
