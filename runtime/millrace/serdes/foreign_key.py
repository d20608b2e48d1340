"""The formats of foreign-key joins: subscriptions, responses, keys of the subscription store, and the hash (formats §6).

| item | layout |
|---|---|
| SubscriptionWrapper | version(1) ‖ instruction(1) ‖ [hash(16)] ‖ primary key ‖ primary partition(4) (not in version 0) |
| SubscriptionResponseWrapper | version(1) = 0 ‖ [hash(16)] ‖ right value; no bytes for None |
| CombinedKey | length of the foreign key(4) ‖ foreign key ‖ primary key |

Bit 0x80 of a version byte says that there is no hash. The hash is murmur3 (x64, 128 bits) of the serialised left value, as
two big-endian longs. It is sent with a subscription and comes back with the response, which is used only if the left value is
still the same.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Any, Final, Generic, NamedTuple, TypeVar

import mmh3

from millrace.errors import SerializationError
from millrace.records import NO_HEADERS, Headers
from millrace.serdes.base import Serde
from millrace.serdes.primitives import reject_bytes

K = TypeVar("K")
FK = TypeVar("FK")
V = TypeVar("V")

CURRENT_VERSION: Final = 1
RESPONSE_VERSION: Final = 0

_SEED: Final = 104_729
_NO_HASH: Final = 0x80
_VERSION: Final = 0x7F
_HASH_SIZE: Final = 16
_INT32: Final = Struct(">i")


def value_hash(data: bytes) -> bytes:
    """Return the 16 bytes that distinguish a left value from later ones.

    >>> value_hash(b"a").hex()
    '3361634e7e0f5188e9c7dda24eae326b'
    """
    halves = mmh3.hash_bytes(data, _SEED)  # two little-endian longs
    return halves[7::-1] + halves[15:7:-1]


class Instruction(IntEnum):
    """What the owner of a foreign key must do with a subscription."""

    DELETE_KEY_NO_PROPAGATE = 0
    """Delete the subscription; another one replaces it."""
    DELETE_KEY_AND_PROPAGATE = 1
    """Delete the subscription, and respond that there is no match."""
    PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE = 2
    """Store the subscription, and respond in any case."""
    PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE = 3
    """Store the subscription, and respond if there is a match."""


DELETES: Final = frozenset({Instruction.DELETE_KEY_NO_PROPAGATE, Instruction.DELETE_KEY_AND_PROPAGATE})

_INSTRUCTIONS: Final = tuple(Instruction)


class SubscriptionWrapper(NamedTuple, Generic[K]):
    """A left entry's subscription to a right key."""

    hash: bytes | None
    """The hash of the left value; None if the left entry was deleted."""
    instruction: Instruction
    primary_key: K
    primary_partition: int | None
    """The partition for the response; unknown in version 0."""
    version: int = CURRENT_VERSION


class SubscriptionResponseWrapper(NamedTuple, Generic[V]):
    """The current right value, for one left entry."""

    hash: bytes | None
    """The hash of the subscription."""
    foreign_value: V | None
    primary_partition: int | None = None
    """The partition to send it to; not part of the bytes."""
    version: int = RESPONSE_VERSION


class CombinedKey(NamedTuple, Generic[FK, K]):
    """The key of a subscription: the foreign key, and the primary key that is subscribed to it."""

    foreign_key: FK
    primary_key: K


class SubscriptionWrapperSerde(Serde[SubscriptionWrapper[K]], Generic[K]):
    """Writes subscriptions, if needed in version 0 for instances of 3.3 and older, and reads both versions.

    Args:
        primary_key_serde: the serde of the left table's keys.
        primary_key_topic: the topic name that serde is given (the registration topic with `-pk`).
        write_version_0: leave out the partition, while older instances may be running (`upgrade.from`).
    """

    def __init__(self, primary_key_serde: Serde[K], primary_key_topic: str, *, write_version_0: bool = False) -> None:
        self.primary_key_serde = primary_key_serde
        self.shareable = primary_key_serde.shareable
        self._topic = primary_key_topic
        self._write_version_0 = write_version_0

    def serialize(self, topic: str, data: SubscriptionWrapper[K], headers: Headers = NO_HEADERS) -> bytes:  # noqa: ARG002
        """Return the bytes of a subscription."""
        digest, instruction, primary_key, partition, version = data
        if version not in (0, CURRENT_VERSION):
            raise SerializationError(f"{self!r} cannot write subscriptions of version {version}, only 0 and 1")
        key = self.primary_key_serde.serialize(self._topic, primary_key, headers)
        tail = key
        if self._write_version_0 or version == 0 or partition is None:
            version = 0
        else:
            tail = key + _INT32.pack(partition)
        if digest is None:
            return bytes((version | _NO_HASH, instruction)) + tail
        return bytes((version, instruction)) + digest + tail

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> SubscriptionWrapper[K]:
        """Return the subscription."""
        start = 2 if data and data[0] & _NO_HASH else 2 + _HASH_SIZE
        end = len(data) - _INT32.size if data and data[0] & _VERSION else len(data)
        if end < start:
            reject_bytes(self, topic, data, f"a subscription of at least {start} bytes")
        version = data[0] & _VERSION
        if version > CURRENT_VERSION:
            raise SerializationError(
                f"{self!r} got a subscription of version {version} from topic {topic!r}, but knows only versions 0 and 1: "
                "instances of a newer version are running; update this one"
            )
        if data[1] >= len(_INSTRUCTIONS):
            reject_bytes(self, topic, data, f"a subscription with an instruction below {len(_INSTRUCTIONS)}")
        return SubscriptionWrapper(
            None if start == 2 else data[2:start],
            _INSTRUCTIONS[data[1]],
            self.primary_key_serde.deserialize(self._topic, data[start:end], headers),
            _INT32.unpack_from(data, end)[0] if version else None,
            version,
        )

    def __repr__(self) -> str:
        return f"SubscriptionWrapperSerde({self.primary_key_serde!r})"


class SubscriptionResponseWrapperSerde(Serde[SubscriptionResponseWrapper[V]], Generic[V]):
    """Writes and reads responses. A right value that is serialised to zero bytes is read as None, as in Java."""

    def __init__(self, foreign_value_serde: Serde[V]) -> None:
        self.foreign_value_serde = foreign_value_serde
        self.shareable = foreign_value_serde.shareable

    def serialize(self, topic: str, data: SubscriptionResponseWrapper[V], headers: Headers = NO_HEADERS) -> bytes:
        """Return the bytes of a response."""
        value = data.foreign_value
        tail = b"" if value is None else self.foreign_value_serde.serialize(topic, value, headers)
        if data.hash is None:
            return bytes((data.version | _NO_HASH,)) + tail
        return bytes((data.version,)) + data.hash + tail

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> SubscriptionResponseWrapper[V]:
        """Return the response, without the partition."""
        start = 1 if data and data[0] & _NO_HASH else 1 + _HASH_SIZE
        if len(data) < start:
            reject_bytes(self, topic, data, f"a response of at least {start} bytes")
        version = data[0] & _VERSION
        if version != RESPONSE_VERSION:
            raise SerializationError(
                f"{self!r} got a response of version {version} from topic {topic!r}, but knows only version "
                f"{RESPONSE_VERSION}: instances of a newer version are running; update this one"
            )
        tail = data[start:]
        value = self.foreign_value_serde.deserialize(topic, tail, headers) if tail else None
        return SubscriptionResponseWrapper(None if start == 1 else data[1:start], value)

    def __repr__(self) -> str:
        return f"SubscriptionResponseWrapperSerde({self.foreign_value_serde!r})"


class CombinedKeySchema(Generic[FK, K]):
    """Writes and reads the keys of the subscription store; all subscriptions to one foreign key share a prefix.

    Args:
        foreign_key_serde: the serde of the right table's keys.
        foreign_key_topic: the topic name that serde is given (the registration topic with `-fk`).
        primary_key_serde: the serde of the left table's keys.
        primary_key_topic: the topic name that serde is given (the registration topic with `-pk`).
    """

    def __init__(
        self, foreign_key_serde: Serde[FK], foreign_key_topic: str, primary_key_serde: Serde[K], primary_key_topic: str
    ) -> None:
        self._foreign = foreign_key_serde
        self._foreign_topic = foreign_key_topic
        self._primary = primary_key_serde
        self._primary_topic = primary_key_topic

    def prefix(self, foreign_key: FK, headers: Headers = NO_HEADERS) -> bytes:
        """Return the prefix of the keys of all subscriptions to a foreign key, and of no others."""
        data = self._foreign.serialize(self._foreign_topic, foreign_key, headers)
        return _INT32.pack(len(data)) + data

    def serialize(self, foreign_key: FK, primary_key: K, headers: Headers = NO_HEADERS) -> bytes:
        """Return the key of one subscription."""
        return self.prefix(foreign_key, headers) + self._primary.serialize(self._primary_topic, primary_key, headers)

    def deserialize(self, data: bytes, headers: Headers = NO_HEADERS) -> CombinedKey[FK, K]:
        """Return both keys.

        Raises:
            SerializationError: the bytes are shorter than they say.
        """
        size = _INT32.size
        length = _INT32.unpack_from(data)[0] if len(data) >= size else -1
        if not 0 <= length <= len(data) - size:
            raise SerializationError(
                f"The key of a subscription has {len(data)} bytes, which cannot hold a foreign key of {length} bytes"
            )
        middle = size + length
        return CombinedKey(
            self._foreign.deserialize(self._foreign_topic, data[size:middle], headers),
            self.primary_key(data, middle, headers),
        )

    def primary_key(self, data: bytes, prefix_size: int, headers: Headers = NO_HEADERS) -> Any:
        """Return the primary key behind a prefix of known size."""
        return self._primary.deserialize(self._primary_topic, data[prefix_size:], headers)
