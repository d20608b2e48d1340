"""RocksDB in memory: a simulated run opens many databases for a few rows each, and opening a real one takes 15 ms.

What is written with a batch stays, whatever becomes of the process, as on a disk; `RocksDatabase` writes nothing in another way.
A database is lost with its directory. Only what `millrace.state.rocksdb` and `millrace.state.disk_offsets` call is here; these
modules themselves are the product's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from sortedcontainers import SortedDict

from millrace.state import disk_offsets, rocksdb

__all__ = ["disks_in_memory"]

_Families = dict[str, "SortedDict[bytes, bytes]"]


class _Batch:
    def __init__(self, *, raw_mode: bool) -> None:
        del raw_mode
        self.changes: list[tuple[str, bytes, bytes | None]] = []

    def put(self, key: bytes, value: bytes, family: str) -> None:
        self.changes.append((family, key, value))

    def delete(self, key: bytes, family: str) -> None:
        self.changes.append((family, key, None))


class _Rows:
    """One column family; the default one stands for the database."""

    def __init__(self, families: _Families, name: str) -> None:
        self._families = families
        self._rows = families.setdefault(name, SortedDict())
        self.get = self._rows.get

    def get_column_family(self, name: str) -> _Rows:
        return _Rows(self._families, name)

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
        for family, key, value in batch.changes:
            if value is None:
                self._families[family].pop(key, None)
            else:
                self._families[family][key] = value

    def property_int_value(self, _name: str) -> int:
        return len(self._rows)

    def flush(self, _wait: object = None) -> None:
        pass

    def close(self) -> None:
        pass


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


class _Disks:
    """The databases of one run, by directory; stands for the class `Rdict`."""

    def __init__(self) -> None:
        self._databases: dict[str, _Families] = {}

    def __call__(self, path: str, *_options: object, **_settings: object) -> _Rows:
        exists = Path(path) / "CURRENT"
        if not exists.exists():
            self._databases[path] = {}
            exists.touch()
        return _Rows(self._databases[path], "default")

    def list_cf(self, path: str, _options: object) -> list[str]:
        return list(self._databases[path])


@contextmanager
def disks_in_memory() -> Iterator[None]:
    """Keep what stores write in memory, in this process, until the end of the `with` statement."""
    disks = _Disks()
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
        yield
