"""The store that both sides of a left or outer stream-stream join share: records that have found no match yet (formats §4).

| part | layout |
|---|---|
| key | timestamp(8) ‖ side(1: 01 left, 00 right) ‖ key |
| element | side(1) ‖ value |
| row | 01 ‖ count(4) ‖ per element: length(4) ‖ bytes |

Records of the same side, key and timestamp share a row, in order of arrival; a put appends, a put of None deletes the row.
The changelog gets the whole row with every change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar

from millrace.records import NO_HEADERS, Headers, KeyValue
from millrace.serdes.base import AnySerde, Serde
from millrace.state.api import ChangelogRecord, LogChange, StateStore, StoreContext
from millrace.state.builders import StoreBuilderBase
from millrace.state.bytes_store import KeyValueBytesStore
from millrace.state.cache import CacheEntry
from millrace.state.change_log import Write, compile_write, disk_rows, restored_offsets
from millrace.state.keys import decode_join_side_key, encode_join_side_key
from millrace.state.layered_store import LayeredStore, store_serdes
from millrace.state.suppliers import KeyValueBytesStoreSupplier
from millrace.state.value_formats import PLAIN

K = TypeVar("K")
V = TypeVar("V")

_ROW_HEAD = Struct(">BI")
_LENGTH = Struct(">I")
_VARIABLE_SIZE = 1


class JoinSideKey(NamedTuple, Generic[K]):
    """The key of a waiting record: its timestamp (ms), the side it came from, its own key."""

    timestamp: int
    is_left: bool
    key: K

    def __str__(self) -> str:
        return f"<{'left' if self.is_left else 'right'},{self.key}:{self.timestamp}>"


class LeftOrRightValue(NamedTuple, Generic[V]):
    """The value of a waiting record, and the side it came from."""

    is_left: bool
    value: V

    def __str__(self) -> str:
        return f"<{'left' if self.is_left else 'right'},{self.value}>"


class JoinSideKeySerde(Serde[JoinSideKey[K]]):
    """Serialises keys of the shared store, so that they sort by time, right before left.

    Args:
        inner: the serde of the join's key.
    """

    def __init__(self, inner: Serde[K]) -> None:
        self.inner = inner
        self.shareable = inner.shareable

    def serialize(self, topic: str, data: JoinSideKey[K], headers: Headers = NO_HEADERS) -> bytes:
        """Return timestamp ‖ side ‖ key."""
        return encode_join_side_key(data[0], self.inner.serialize(topic, data[2], headers), left=data[1])

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> JoinSideKey[K]:
        """Read timestamp ‖ side ‖ key."""
        timestamp, is_left, key = decode_join_side_key(data)
        return JoinSideKey(timestamp, is_left, self.inner.deserialize(topic, key, headers))


class LeftOrRightValueSerde(Serde[LeftOrRightValue[Any]]):
    """Serialises values of either side.

    Args:
        left: the serde of the left stream's values.
        right: the serde of the right stream's values.
    """

    def __init__(self, left: AnySerde, right: AnySerde) -> None:
        self.left = left
        self.right = right
        self.shareable = left.shareable and right.shareable

    def serialize(self, topic: str, data: LeftOrRightValue[Any], headers: Headers = NO_HEADERS) -> bytes:
        """Return side ‖ value."""
        serde, side = (self.left, b"\x01") if data.is_left else (self.right, b"\x00")
        return side + serde.serialize(topic, data.value, headers)

    def deserialize(self, topic: str, data: bytes, headers: Headers = NO_HEADERS) -> LeftOrRightValue[Any]:
        """Read side ‖ value."""
        is_left = data[0] == 1
        serde = self.left if is_left else self.right
        return LeftOrRightValue(is_left, serde.deserialize(topic, data[1:], headers))


def append_element(row: bytes | None, element: bytes) -> bytes:
    """Return a row with one more element.

    >>> append_element(append_element(None, b"x"), b"x2").hex()
    '01000000020000000178000000027832'
    """
    if row is None:
        return _ROW_HEAD.pack(_VARIABLE_SIZE, 1) + _LENGTH.pack(len(element)) + element
    _, count = _ROW_HEAD.unpack_from(row)
    return b"".join(
        (_ROW_HEAD.pack(_VARIABLE_SIZE, count + 1), row[_ROW_HEAD.size :], _LENGTH.pack(len(element)), element)
    )


def elements(row: bytes) -> Iterator[bytes]:
    """Iterate the elements of a row."""
    _, count = _ROW_HEAD.unpack_from(row)
    position = _ROW_HEAD.size
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(row, position)
        position += _LENGTH.size
        yield row[position : position + length]
        position += length


class OuterJoinStore(LayeredStore[KeyValueBytesStore]):
    """The records of one join that wait for a match. Never cached.

    Args:
        bytes_store: holds the rows.
        key_serde: of the join's key; None means the configured default, as for the other serdes.
        left_serde: of the left stream's values.
        right_serde: of the right stream's values.
        logging: whether changes are logged.
    """

    kind = "list"

    def __init__(
        self,
        bytes_store: KeyValueBytesStore,
        key_serde: AnySerde | None,
        left_serde: AnySerde | None,
        right_serde: AnySerde | None,
        *,
        logging: bool,
    ) -> None:
        super().__init__(bytes_store, PLAIN, None, None, logging=logging)
        self._inner_serdes = key_serde, left_serde, right_serde

    def init(self, context: StoreContext) -> None:
        """Resolve the serdes, and open the store."""
        key, left, right = self._inner_serdes
        keys, lefts = store_serdes(self.name, key, left, context.config)
        _, rights = store_serdes(self.name, key, right, context.config)
        self._key_serde = JoinSideKeySerde(keys)
        self._value_serde = LeftOrRightValueSerde(lefts, rights)
        super().init(context)

    def _wire(self, context: StoreContext, log: LogChange | None) -> None:
        self._write: Write = compile_write(self._bytes_store, log, context)

    def restore(self, records: Sequence[ChangelogRecord]) -> None:
        """Apply changelog records, and note the offset they reach."""
        assert self._context is not None
        rows = disk_rows(records, PLAIN, self._bytes_store)
        self._bytes_store.restore_batch(rows, restored_offsets(records[-1:], self._context, self.name))

    def put(self, key: JoinSideKey[Any], value: LeftOrRightValue[Any] | None) -> None:
        """Add a waiting record for a key; None removes all of the key's records."""
        raw = self._key_bytes(self._topic, key)
        row = (
            None if value is None else append_element(self._bytes_store.get(raw), self._value_bytes(self._topic, value))
        )
        self._write(raw, row, row, self._record.timestamp, NO_HEADERS)

    def take(self, key: JoinSideKey[Any]) -> None:
        """Remove all waiting records of a key; if there are none, nothing is logged."""
        raw = self._key_bytes(self._topic, key)
        if self._bytes_store.get(raw) is not None:
            self._write(raw, None, None, self._record.timestamp, NO_HEADERS)

    def all(
        self, leave_out: Callable[[Exception], None] | None = None
    ) -> Iterator[KeyValue[JoinSideKey[Any], LeftOrRightValue[Any]]]:
        """Iterate the waiting records by time, right before left, then by key.

        Args:
            leave_out: asked about a row that cannot be read; if it returns, the row is removed.
        """
        topic, key_of, value_of = self._topic, self._key_of, self._value_of
        for raw, row in self._bytes_store.scan(None, None):
            try:
                key = key_of(topic, raw)
                found = [KeyValue(key, value_of(topic, element)) for element in elements(row)]
            except Exception as error:
                unreadable = self._unreadable(raw, error)
                if leave_out is None:
                    raise unreadable from error
                leave_out(unreadable)
                self._write(raw, None, None, self._record.timestamp, NO_HEADERS)
            else:
                yield from found

    def _write_back(self, key: bytes, entry: CacheEntry) -> None:
        raise NotImplementedError


class OuterJoinStoreBuilder(StoreBuilderBase):
    """Builds the shared store of a left or outer join.

    Args:
        supplier: of a plain key-value store.
        key_serde: of the join's key; None means the configured default, as for the other serdes.
        left_serde: of the left stream's values.
        right_serde: of the right stream's values.
    """

    kind = "list"
    value_format = "plain"

    def __init__(
        self,
        supplier: KeyValueBytesStoreSupplier,
        key_serde: AnySerde | None,
        left_serde: AnySerde | None,
        right_serde: AnySerde | None,
    ) -> None:
        super().__init__(supplier.name)
        self.supplier = supplier
        self.key_serde = key_serde
        self.left_serde = left_serde
        self.right_serde = right_serde

    @property
    def persistent(self) -> bool:
        """Tell whether the store survives a restart."""
        return self.supplier.persistent

    def build(self) -> StateStore:
        """Return a new store."""
        return OuterJoinStore(
            self.supplier.get(), self.key_serde, self.left_serde, self.right_serde, logging=self.logging_enabled
        )
