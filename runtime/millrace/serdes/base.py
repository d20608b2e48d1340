"""What a serde is: two functions between objects and bytes, given the topic and headers of the record they belong to."""

from __future__ import annotations

from typing import Generic, TypeVar

from millrace.config import StreamsConfig
from millrace.records import NO_HEADERS, Headers

T = TypeVar("T")


class Serde(Generic[T]):
    """Turns objects of one type into bytes and back. None is never passed in: it stands for a null key or a tombstone.

    `shareable` tells that values of this type cannot be changed in place, so that caches may hand out the very object
    they keep; leave it False for anything mutable (dict, list, models).
    """

    shareable: bool = False

    def configure(self, config: StreamsConfig) -> None:
        """Take what this serde needs to know of the application, such as where its schema registry is.

        Called before the first use, perhaps several times; reads no secrets, as these are not there when a topology is only
        planned. A serde around another one hands it on.
        """

    def serialize(self, topic: str, data: T, headers: Headers = NO_HEADERS) -> bytes:
        """Return the bytes of `data`.

        Raises:
            SerializationError: `data` is not of this serde's type or cannot be encoded.
        """
        raise NotImplementedError

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> T:
        """Return the object that `data` encodes.

        Raises:
            SerializationError: the bytes are not of this serde's format.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
