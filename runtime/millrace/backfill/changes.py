"""The changelog that a task's stores leave behind, as Kafka's log compaction would leave it.

Only the last change of each key is kept. It stays in memory up to a limit, and goes to a RocksDB database on the executor's disk
beyond it, so a task's state may be larger than memory. The changelog of a versioned store holds every version of a key, so there
each key has a list.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from pickle import dumps, loads
from typing import NamedTuple, cast

from rocksdict import AccessType, Options, Rdict, WriteBatch

from millrace.records import Headers, new_tuple

_ROW_OVERHEAD = 200
"""Bytes of memory per change in addition to key and value."""


_Change = tuple["bytes | None", "int | None", Headers]


class Change(NamedTuple):
    """The last change of a key."""

    value: bytes | None
    timestamp: int | None
    headers: Headers


class CompactedChanges:
    """The last change per key of one changelog partition.

    Args:
        directory: where changes go that exceed the limit; it need not exist.
        limit_bytes: how much memory they may take.
        every: keep all changes of a key instead of the last.
    """

    def __init__(self, directory: Path, *, limit_bytes: int, every: bool = False) -> None:
        self._directory = directory
        self._limit = limit_bytes
        self._every = every
        self._recent: dict[bytes, _Change] = {}
        self._bytes = 0
        """At most this much is in memory; changes that were replaced count until the next `_shrink`."""
        self._number = 0
        self._spilled: Rdict | None = None

    def log_change(self, key: bytes, value: bytes | None, timestamp: int | None, headers: Headers) -> None:
        """Take one change."""
        if self._every:
            self._number += 1
            key += self._number.to_bytes(8, "big")
        recent = self._recent
        recent.pop(key, None)  # compaction keeps a key where it changed last
        recent[key] = (value, timestamp, headers)
        self._bytes += _ROW_OVERHEAD + len(key) + (0 if value is None else len(value))
        if self._bytes > self._limit:
            self._shrink()

    def rows(self) -> Iterator[tuple[bytes, Change]]:
        """Return the changes left; of a versioned store, those of one key in order."""
        if self._spilled is None:
            changes = ((key, new_tuple(Change, change)) for key, change in self._recent.items())
        else:
            self._spill()
            stored = cast("Iterator[tuple[bytes, bytes]]", self._spilled.items())
            changes = ((key, Change(*loads(row))) for key, row in stored)  # noqa: S301 (written by us)
        return ((key[:-8], change) for key, change in changes) if self._every else changes

    def close(self) -> None:
        """Delete what is on disk."""
        if self._spilled is not None:
            self._spilled.close()
            shutil.rmtree(self._directory, ignore_errors=True)

    def _shrink(self) -> None:
        """Count what there is; if that is more than half of the limit, move it to disk."""
        self._bytes = sum(_ROW_OVERHEAD + len(key) + len(change[0] or b"") for key, change in self._recent.items())
        if self._bytes > self._limit // 2:
            self._spill()

    def _spill(self) -> None:
        if self._spilled is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._spilled = Rdict(str(self._directory), Options(raw_mode=True), access_type=AccessType.read_write())
        batch = WriteBatch(raw_mode=True)
        for key, change in self._recent.items():
            batch.put(key, dumps(change, protocol=5))
        self._spilled.write(batch)
        self._recent.clear()
        self._bytes = 0
