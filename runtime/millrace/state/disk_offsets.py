"""Changelog offsets of stores that are on disk but not open: how much of a task's state would not have to be restored.

`rocksdb` writes them. A database is opened read-only for this, with its family of offsets alone. That takes no lock and reads no
rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from millrace.records import TopicPartition
from millrace.state.rocksdb import OFFSETS_FAMILY, OPEN_IN_JAVA, STATUS, explain
from millrace.state.value_formats import unpack_long

_FILES_OPEN = 8
"""Without a limit, RocksDB opens every file of the default family, which may contain the store's rows."""


def offset_on_disk(state_dir: Path, store: str, changelog: TopicPartition, *, exactly_once: bool = False) -> int | None:
    """Return the offset of the last changelog record in a store on disk; None if there is none.

    Of a store with segments it is the smallest offset that one of them records, as when the store is open. Under exactly-once a
    store in which a Java process died has none, because it is wiped when it is opened.

    Args:
        state_dir: the task's directory.
        store: the store's name.
        changelog: its changelog.
        exactly_once: whether the application runs with exactly-once.

    Raises:
        ProcessorStateError: a database cannot be read.
    """
    known = [_read(directory, changelog) for directory in _databases(state_dir, store)]
    if exactly_once and any(status == OPEN_IN_JAVA for status, _ in known):
        return None
    return min((unpack_long(offset) for _, offset in known if offset is not None), default=None)


def _databases(state_dir: Path, store: str) -> Iterator[Path]:
    segments = state_dir / store
    for directory in (state_dir / "rocksdb" / store, *(segments.iterdir() if segments.is_dir() else ())):
        if (directory / "CURRENT").exists():
            yield directory


def _read(directory: Path, changelog: TopicPartition) -> tuple[bytes | None, bytes | None]:
    """Return a database's status and the offset that it records."""
    options = Options(raw_mode=True)
    options.set_max_open_files(_FILES_OPEN)
    options.set_keep_log_file_num(2)
    try:
        if OFFSETS_FAMILY not in Rdict.list_cf(str(directory), options):
            return None, None
        families = {OFFSETS_FAMILY: Options(raw_mode=True)}
        database = Rdict(str(directory), options, families, AccessType.read_only())
        try:
            stored = database.get_column_family(OFFSETS_FAMILY)
            return stored.get(STATUS), stored.get(str(changelog).encode())
        finally:
            database.close()
    except Exception as error:
        raise explain(error, directory) from error
