"""RocksDB in memory: a simulated run opens many databases for a few rows each, and opening a real one takes 15 ms.

A batch survives if the database is flushed before the process dies: there is no write-ahead log, and a flush takes all
column families together. RocksDB also flushes on its own; here this happens now and then. A database is lost with its
directory. It only has the methods that `millrace.state.rocksdb` and `millrace.state.disk_offsets` call; these modules run
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Final
from unittest import mock

from sortedcontainers import SortedDict

from millrace.state import disk_offsets, rocksdb

__all__ = ["Disks", "disks_in_memory"]

_Families = dict[str, "SortedDict[bytes, bytes]"]
_FLUSHED_BY_ITSELF: Final = 0.1
"""The share of its writes after which a database is flushed without being asked to."""


class _Batch:
    def __init__(self, *, raw_mode: bool) -> None:
        del raw_mode
        self.changes: list[tuple[str, bytes, bytes | None]] = []

    def put(self, key: bytes, value: bytes, family: str) -> None:
        self.changes.append((family, key, value))

    def delete(self, key: bytes, family: str) -> None:
        self.changes.append((family, key, None))


class _Database:
    """Column families, and how to undo unflushed changes."""

    def __init__(self, families: _Families, rng: Random) -> None:
        self.families = families
        self._rng = rng
        self._unflushed: list[tuple[str, bytes, bytes | None]] = []
        """For each change: the place, and its former content."""
        self._dead = False

    def write(self, changes: list[tuple[str, bytes, bytes | None]]) -> None:
        """Apply changes; a dead process's changes get lost."""
        if self._dead:
            return
        for family, key, value in changes:
            rows = self.families[family]
            self._unflushed.append((family, key, rows.get(key)))
            _set(rows, key, value)
        if self._rng.random() < _FLUSHED_BY_ITSELF:
            self.flush()

    def flush(self) -> None:
        """Make all changes so far survive."""
        self._unflushed.clear()

    def after_crash(self) -> _Database:
        """Return the content that is left when the process has died."""
        self._dead = True
        for family, key, value in reversed(self._unflushed):
            _set(self.families[family], key, value)
        return _Database(self.families, self._rng)


def _set(rows: SortedDict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value is None:
        rows.pop(key, None)
    else:
        rows[key] = value


class _Rows:
    """One column family; the default one stands for the database."""

    def __init__(self, database: _Database, name: str) -> None:
        self._database = database
        self._rows = database.families.setdefault(name, SortedDict())
        self.get = self._rows.get

    def get_column_family(self, name: str) -> _Rows:
        return _Rows(self._database, name)

    def get_column_family_handle(self, name: str) -> str:
        return name

    def keys(self) -> Iterator[bytes]:
        return iter(list(self._rows))

    def items(self, *, backwards: bool = False, from_key: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        low, high = (None, from_key) if backwards else (from_key, None)
        keys = list(self._rows.irange(low, high, reverse=backwards))
        return iter([(key, self._rows[key]) for key in keys])

    def iter(self) -> _Check:
        return _Check()

    def write(self, batch: _Batch, _options: object) -> None:
        self._database.write(batch.changes)

    def property_int_value(self, _name: str) -> int:
        return len(self._rows)

    def flush(self, _wait: object = None) -> None:
        self._database.flush()

    def close(self) -> None:
        self._database.flush()


class _Check:
    """An iterator that only tells whether rows ended because of damage, which these disks do not have."""

    def seek(self, _key: bytes) -> None:
        pass

    seek_for_prev = seek

    def seek_to_first(self) -> None:
        pass

    seek_to_last = seek_to_first

    def valid(self) -> bool:
        return False

    def status(self) -> None:
        pass


class Disks:
    """The databases of one run, by directory; stands for the class `Rdict`."""

    def __init__(self) -> None:
        self._databases: dict[str, _Database] = {}
        self._rng = Random(0)  # noqa: S311

    def __call__(self, path: str, *_options: object, **_settings: object) -> _Rows:
        """Open a database, or create it."""
        exists = Path(path) / "CURRENT"
        if not exists.exists():
            self._databases[path] = _Database({}, self._rng)
            exists.touch()
        return _Rows(self._databases[path], "default")

    def list_cf(self, path: str, _options: object) -> list[str]:
        """Return the names of a database's column families."""
        return list(self._databases[path].families)

    def crash(self, folder: Path) -> None:
        """Drop a dead process's unflushed writes to the databases in a folder."""
        for path, database in self._databases.items():
            if Path(path).is_relative_to(folder):
                self._databases[path] = database.after_crash()


@contextmanager
def disks_in_memory() -> Iterator[Disks]:
    """Keep stores' data in memory, in this process, until the end of the `with` statement."""
    disks = Disks()
    with (
        mock.patch.multiple(
            rocksdb,
            Rdict=disks,
            WriteBatch=_Batch,
            store_options=lambda *_: SimpleNamespace(options=None),
            Options=lambda **_: SimpleNamespace(set_write_buffer_size=lambda _bytes: None),
        ),
        mock.patch.object(disk_offsets, "Rdict", disks),
    ):
        yield disks
