"""The changelog that a task's stores leave behind, as Kafka's log compaction would leave it.

Only the last change of each key is kept. It stays in memory up to a limit, and is appended to files on the executor's disk beyond
it, so a task's state may be larger than memory. A key's changes are all in the same file. A file is compacted when it is twice as
large as the last compaction left it, and files are compacted one after the other when rows are returned. The changelog of a
versioned store holds every version of a key, so there nothing is compacted.

Rows come in an order that depends on nothing but the changes: Spark may run a task again, and use some of its rows of both runs.
That is why sizes are counted, and not those of files, in which objects that are the same take less.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from pickle import dump, load
from zlib import crc32

from millrace.errors import StateDirectoryError
from millrace.records import Headers

_FILES = 64
"""How many files changes are divided into: of each, the last changes of its keys must fit into memory."""
_ROW_OVERHEAD = 300
"""Bytes of memory per change in addition to key and value."""
_COMPACT_BYTES = 16 * 1024 * 1024
"""How large a file may become in any case before it is compacted."""
_ROWS = 10_000
"""How many rows of a compacted file are written at once."""

Change = tuple["bytes | None", "int | None", Headers]
"""The value, None for a deletion; the timestamp, if the change has one; and the headers."""
_Numbered = tuple["bytes | None", "int | None", Headers, int]
"""A change and its number: compaction keeps a key where it changed last."""


class CompactedChanges:
    """The last change per key of one changelog partition.

    Args:
        directory: where changes go that exceed the limit; it need not exist.
        limit_bytes: how much memory they may take.
        every: keep all changes of a key instead of the last.
        deletions: keep them too, if they are the last change of a key.
    """

    def __init__(self, directory: Path, *, limit_bytes: int, every: bool = False, deletions: bool = True) -> None:
        self._directory = directory
        self._limit = limit_bytes
        self._every = every
        self._deletions = deletions or every
        self._recent: dict[bytes, _Numbered] = {}
        self._bytes = 0
        """At most this much is in memory; changes that were replaced count until the next `_shrink`."""
        self._number = 0
        self._spilled = False
        self._sizes = [0] * _FILES
        """What the files would take in memory."""
        self._compact_at = [_COMPACT_BYTES] * _FILES

    def log_change(self, key: bytes, value: bytes | None, timestamp: int | None, headers: Headers) -> None:
        """Take one change.

        Raises:
            StateDirectoryError: it cannot be written to disk.
        """
        self._number = number = self._number + 1
        if self._every:
            key += number.to_bytes(8, "big")
        self._recent[key] = (value, timestamp, headers, number)
        self._bytes += _ROW_OVERHEAD + len(key) + (0 if value is None else len(value))
        if self._bytes > self._limit:
            self._shrink()

    def rows(self) -> Iterator[tuple[bytes, Change]]:
        """Return the changes left; of a versioned store, those of one key in order."""
        changes = self._read_spilled() if self._spilled else _in_order(self._recent)
        for key, change in filter(self._is_kept, changes):
            yield key[:-8] if self._every else key, change[:3]

    def close(self) -> None:
        """Delete what is on disk."""
        if self._spilled:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _is_kept(self, row: tuple[bytes, _Numbered]) -> bool:
        return self._deletions or row[1][0] is not None

    def _shrink(self) -> None:
        """Count what there is; if that is more than half of the limit, move it to disk."""
        self._bytes = _memory(self._recent.items())
        if self._bytes > self._limit // 2:
            try:
                self._spill()
                if not self._every:
                    for number, size in enumerate(self._sizes):
                        if size > self._compact_at[number]:
                            self._compact(number)
            except OSError as error:  # which exception handlers would take for the fault of a record
                raise StateDirectoryError(f"State cannot be written to {self._directory}: {error}") from error

    def _spill(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._spilled = True
        divided: list[list[tuple[bytes, _Numbered]]] = [[] for _ in range(_FILES)]
        every = self._every
        for row in self._recent.items():
            key = row[0]
            divided[crc32(key[:-8] if every else key) % _FILES].append(row)
        for number, rows in enumerate(divided):
            if rows:
                with self._file(number).open("ab") as file:
                    dump(rows, file, protocol=5)
                self._sizes[number] += _memory(rows)
        self._recent.clear()
        self._bytes = 0

    def _compact(self, number: int) -> None:
        """Leave the last change of each key in a file."""
        rows = list(filter(self._is_kept, self._last(number).items()))
        compacted = self._directory / "compacted"
        with compacted.open("wb") as file:
            for start in range(0, len(rows), _ROWS):
                dump(rows[start : start + _ROWS], file, protocol=5)
        compacted.replace(self._file(number))
        self._sizes[number] = size = _memory(rows)
        self._compact_at[number] = max(_COMPACT_BYTES, 2 * size)

    def _read_spilled(self) -> Iterator[tuple[bytes, _Numbered]]:
        self._spill()
        for number in range(_FILES):
            if self._every:
                yield from chain.from_iterable(self._read(number))
            else:  # without a name for it, so that a file is let go of before the next one is loaded
                yield from _in_order(self._last(number))

    def _last(self, number: int) -> dict[bytes, _Numbered]:
        last: dict[bytes, _Numbered] = {}
        for rows in self._read(number):
            last.update(rows)
        return last

    def _read(self, number: int) -> Iterator[list[tuple[bytes, _Numbered]]]:
        path = self._file(number)
        if not path.exists():
            return
        with path.open("rb") as file:
            while file.peek(1):
                yield load(file)  # noqa: S301 (written by us)

    def _file(self, number: int) -> Path:
        return self._directory / str(number)


def _in_order(changes: dict[bytes, _Numbered]) -> list[tuple[bytes, _Numbered]]:
    return sorted(changes.items(), key=lambda row: row[1][3])


def _memory(rows: Iterable[tuple[bytes, _Numbered]]) -> int:
    """Return about how much memory rows take."""
    return sum(_ROW_OVERHEAD + len(key) + len(change[0] or b"") for key, change in rows)
