"""The lowest layer of every store: bytes to bytes, in memory or in RocksDB.

A bytes store knows nothing about serdes, timestamps or changelogs. It guarantees that scans are in key order, that its own writes
can be read at once, and that after a crash it has the state of some `commit`.

A store belongs to one thread and so has no locks. Queries read its `view`; a global store, which the tasks of all threads read,
is wrapped in `SharedBytesStore`.

A store's *position* says up to which input offsets its content reaches (KIP-796; formats §9). Java sizes its byte array in
bits, so its encoding has trailing zeroes. They are written here as well, so that the bytes are the same; readers ignore them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import wraps
from struct import pack, unpack_from
from typing import Any, Protocol, TypeVar

from millrace.records import TopicPartition
from millrace.state.api import StoreContext

Rows = Iterator[tuple[bytes, bytes]]

T = TypeVar("T")


class BytesStore(Protocol):
    """What every kind of store needs from its lowest layer."""

    name: str
    persistent: bool
    position: Position
    """Input offsets applied so far; the layer above updates it, `commit` stores it."""

    def open(self, context: StoreContext) -> None:
        """Open or create the store below the task's directory."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write pending changes to disk in one batch with their changelog offsets."""

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the changelog offset of the last change on disk, or None."""

    def uncommitted_bytes(self) -> int:
        """Return the memory held by writes that wait for `commit`."""

    def is_open(self) -> bool:
        """Tell whether the store is usable."""

    def close(self) -> None:
        """Release everything; pending writes are lost."""

    def view(self, *, committed: bool) -> Any:
        """Return the store as threads other than its own may read it.

        Args:
            committed: only what is on disk; otherwise also what waits for the next commit. Memory has no such difference.
        """


class KeyValueBytesStore(BytesStore, Protocol):
    """Keys to values, both bytes."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write one row; None deletes it."""

    def scan(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False, upper_inclusive: bool = True
    ) -> Rows:
        """Iterate the rows between the bounds (None = open) in byte order, as they were when the scan began."""

    def restore_batch(self, rows: Iterable[tuple[bytes, bytes | None]], offsets: Mapping[TopicPartition, int]) -> None:
        """Write restored rows directly to disk, with the offsets they reach."""

    def approximate_num_entries(self) -> int:
        """Return roughly how many rows there are."""


class SharedBytesStore:
    """A bytes store of any kind that one thread writes while others read it: each method holds a lock.

    A scan is started under the lock, so that it finds every row exactly once, in RocksDB or pending. Each row is read under the
    lock, which is released between rows.

    Args:
        bytes_store: the store, to be used only through this object from now on.
    """

    def __init__(self, bytes_store: BytesStore) -> None:
        self._shared = bytes_store
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the store; methods hold the lock."""
        found = getattr(self._shared, name)
        if not callable(found):
            return found
        lock = self._lock

        @wraps(found)
        def locked(*args: object, **options: object) -> Any:
            with lock:
                result = found(*args, **options)
            return _locked_rows(result, lock) if isinstance(result, Iterator) else result

        setattr(self, name, locked)  # looked up only once, as this is on the path of records
        return locked


def _locked_rows(rows: Iterator[T], lock: threading.RLock) -> Iterator[T]:
    while True:
        with lock:
            try:
                row = next(rows)
            except StopIteration:
                return
        yield row


Position = dict[tuple[str, int], int]
"""(topic, partition) → offset of the last record applied."""


def encode_position(position: Mapping[tuple[str, int], int]) -> bytes:
    """Return `00` ‖ topics(4) ‖ per topic: length(4) ‖ topic ‖ partitions(4) ‖ [partition(4) ‖ offset(8)], padded."""
    topics: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in position.items():
        topics.setdefault(topic, {})[partition] = offset
    out = bytearray(b"\0" + pack(">i", len(topics)))
    size = 8 + 32
    for topic, partitions in topics.items():
        name = topic.encode()
        out += pack(">i", len(name)) + name + pack(">i", len(partitions))
        for partition, offset in partitions.items():
            out += pack(">iq", partition, offset)
        size += 32 + len(name) + 32 + 96 * len(partitions)
    return bytes(out).ljust(size, b"\0")


def decode_position(data: bytes) -> Position:
    """Read what `encode_position` or Java wrote."""
    position: Position = {}
    (count,) = unpack_from(">i", data, 1)
    at = 5
    for _ in range(count):
        (length,) = unpack_from(">i", data, at)
        topic = data[at + 4 : at + 4 + length].decode()
        (partitions,) = unpack_from(">i", data, at + 4 + length)
        at += 8 + length
        for _ in range(partitions):
            partition, offset = unpack_from(">iq", data, at)
            position[topic, partition] = offset
            at += 12
    return position
