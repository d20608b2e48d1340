"""Windowed keys: the inner key followed by its window (formats §8).

| serde | layout |
|---|---|
| time window | key ‖ start(8) |
| time window in the changelog of a window store | key ‖ start(8) ‖ seq(4) |
| session window | key ‖ end(8) ‖ start(8) |

The end of a time window is not written; the reader must know the window's size. As in Java, no bytes are read as None, and no
window starts before the epoch or ends before its start.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 (lower case in the standard library)
from typing import Final, Generic, TypeVar

from millrace.config import StreamsConfig
from millrace.errors import ConfigError, SerializationError
from millrace.records import NO_HEADERS, Headers, Window, Windowed
from millrace.serdes.base import Serde
from millrace.serdes.primitives import reject_bytes, reject_data

K = TypeVar("K")

_INT64: Final = Struct(">q")
_START_SEQ: Final = Struct(">qi")
_END_START: Final = Struct(">qq")
_pack_start, _pack_start_seq = _INT64.pack, _START_SEQ.pack
_MAX_INT64: Final = 2**63 - 1


class TimeWindowedSerde(Serde[Windowed[K]], Generic[K]):
    """Keys of windows of one size.

    Args:
        inner: the serde of the key itself.
        window_size_ms: needed for reading: the window is [start, start + size). If None, it is that of `window.size.ms`.
        for_changelog: use the format with a sequence number, for reading a window store's changelog.

    >>> from millrace.serdes import Serdes
    >>> serde = TimeWindowedSerde(Serdes.string(), 100)
    >>> serde.serialize("out", Windowed("k", Window(1, 101))).hex()
    '6b0000000000000001'
    """

    def __init__(self, inner: Serde[K], window_size_ms: int | None = None, *, for_changelog: bool = False) -> None:
        if window_size_ms is not None and window_size_ms < 0:  # windows that slide may contain one moment only
            raise ConfigError(f"A window size must be at least 0 ms, not {window_size_ms}")
        self.inner = inner
        self.window_size_ms = window_size_ms
        self.for_changelog = for_changelog
        self.shareable = inner.shareable
        self.suffix_size = _START_SEQ.size if for_changelog else _INT64.size
        """How many bytes follow the inner key."""

    def configure(self, config: StreamsConfig) -> None:
        """Configure the inner serde, and take the window's size if it was not given."""
        self.inner.configure(config)
        if self.window_size_ms is None:
            self.window_size_ms = config.window_size_ms

    def serialize(self, topic: str, data: Windowed[K], headers: Headers = NO_HEADERS) -> bytes:
        """Return the key and the window's start (and sequence number 0 in the changelog format)."""
        try:
            key, (start, _) = data
            suffix = _pack_start_seq(start, 0) if self.for_changelog else _pack_start(start)
        except (TypeError, ValueError, StructError) as error:
            reject_data(self, topic, data, "Windowed", error)
        if key is None or start < 0:
            reject_data(self, topic, data, "Windowed with a key and a start that is not negative")
        return self.inner.serialize(topic, key, headers) + suffix

    def serialize_base_key(self, topic: str, data: Windowed[K], headers: Headers = NO_HEADERS) -> bytes:
        """Return the bytes of only the inner key, which determine the partition of a windowed key."""
        return self.inner.serialize(topic, data[0], headers)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> Windowed[K]:
        """Return the key with its window; None if there are no bytes.

        Raises:
            SerializationError: there are too few bytes, the start is negative, or the window size was not given.
        """
        if not data:
            return None  # type: ignore[return-value]
        if self.window_size_ms is None:
            raise SerializationError(
                f"{self!r} cannot read topic {topic!r} without the window's size: "
                "give it to the serde, or set window.size.ms"
            )
        split = len(data) - self.suffix_size
        if split < 0:
            reject_bytes(self, topic, data, f"at least {self.suffix_size} bytes")
        (start,) = _INT64.unpack_from(data, split)
        if start < 0:
            reject_bytes(self, topic, data, f"a window that does not start at {start}")
        key = self.inner.deserialize(topic, data[:split], headers)
        return Windowed(key, Window(start, min(start + self.window_size_ms, _MAX_INT64)))

    def __repr__(self) -> str:
        return f"TimeWindowedSerde({self.inner!r}, {self.window_size_ms})"


class SessionWindowedSerde(Serde[Windowed[K]], Generic[K]):
    """Keys of session windows: both bounds are written, the end first."""

    def __init__(self, inner: Serde[K]) -> None:
        self.inner = inner
        self.shareable = inner.shareable
        self.suffix_size = _END_START.size
        """How many bytes follow the inner key."""

    def configure(self, config: StreamsConfig) -> None:
        """Configure the inner serde."""
        self.inner.configure(config)

    def serialize(self, topic: str, data: Windowed[K], headers: Headers = NO_HEADERS) -> bytes:
        """Return the key, the session's end and its start."""
        try:
            key, (start, end) = data
            suffix = _END_START.pack(end, start)
        except (TypeError, ValueError, StructError) as error:
            reject_data(self, topic, data, "Windowed", error)
        if key is None or not 0 <= start <= end:
            reject_data(self, topic, data, "Windowed with a key and 0 <= start <= end")
        return self.inner.serialize(topic, key, headers) + suffix

    def serialize_base_key(self, topic: str, data: Windowed[K], headers: Headers = NO_HEADERS) -> bytes:
        """Return the bytes of only the inner key, which determine the partition of a windowed key."""
        return self.inner.serialize(topic, data[0], headers)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> Windowed[K]:
        """Return the key with its session; None if there are no bytes."""
        if not data:
            return None  # type: ignore[return-value]
        split = len(data) - _END_START.size
        if split < 0:
            reject_bytes(self, topic, data, f"at least {_END_START.size} bytes")
        end, start = _END_START.unpack_from(data, split)
        if not 0 <= start <= end:
            reject_bytes(self, topic, data, f"a session that is not from {start} to {end}")
        return Windowed(self.inner.deserialize(topic, data[:split], headers), Window(start, end))

    def __repr__(self) -> str:
        return f"SessionWindowedSerde({self.inner!r})"
