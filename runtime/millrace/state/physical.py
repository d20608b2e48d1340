"""The lowest layer of every store: bytes to bytes, in memory or in RocksDB.

A physical store knows nothing of serdes, timestamps or changelogs. It promises key order in scans, that its own writes are
readable at once, and that what it keeps after a crash is the state of some `commit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from millrace.records import TopicPartition
from millrace.state.api import StoreContext
from millrace.state.positions import Position

Rows = Iterator[tuple[bytes, bytes]]


class PhysicalStore(Protocol):
    """What every kind of store needs of its lowest layer."""

    name: str
    persistent: bool
    position: Position
    """Input offsets applied so far; the layer above keeps it up, `commit` stores it."""

    def open(self, context: StoreContext) -> None:
        """Open or create the store below the task's directory."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Put waiting writes on disk in one batch with their changelog offsets."""

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the changelog offset that the disk reaches, or None."""

    def uncommitted_bytes(self) -> int:
        """Return the memory held by writes that wait for `commit`."""

    def is_open(self) -> bool:
        """Tell whether the store is usable."""

    def close(self) -> None:
        """Release everything; waiting writes are gone."""


class PhysicalKeyValueStore(PhysicalStore, Protocol):
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
        """Put restored rows straight down, together with the offsets they reach."""

    def approximate_num_entries(self) -> int:
        """Return roughly how many rows there are."""
