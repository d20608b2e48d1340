"""The interface of a serde: functions between objects and bytes, which are given the topic and headers of the record."""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar

from millrace.config import StreamsConfig
from millrace.records import NO_HEADERS, Headers

T = TypeVar("T")


class Serde(Generic[T]):
    """Turns objects of one type into bytes and back. None is never passed in: it stands for a null key or a tombstone.

    `shareable` says that values of this type cannot be changed in place, so that caches may return the very object they
    keep; leave it False for anything mutable (dict, list, models).
    """

    shareable: bool = False

    def configure(self, config: StreamsConfig) -> None:
        """Take what this serde needs to know about the application, such as the address of its schema registry.

        It is called before the first use, possibly several times, and must not read secrets, which do not exist when a topology
        is only planned. A serde that wraps another one passes the call on.
        """

    def serialize(self, topic: str, data: T, headers: Headers = NO_HEADERS) -> bytes:
        """Return the bytes of `data`.

        Raises:
            SerializationError: `data` does not have this serde's type, or cannot be encoded.
        """
        raise NotImplementedError

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> T:
        """Return the object that `data` encodes.

        Raises:
            SerializationError: the bytes do not have this serde's format.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


AnySerde: TypeAlias = Serde[Any]
"""A serde of keys or values whose type only the topology's author knows."""
