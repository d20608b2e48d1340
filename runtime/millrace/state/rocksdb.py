"""A RocksDB database whose writes are kept in memory until `commit`.

Invariants: Only `commit` and `restore_batch` write to RocksDB, each with one WriteBatch over the data and the `offsets` column
family. The write-ahead log is off, and flushes are atomic across column families. So a crash always leaves the state of some
commit behind, with that commit's offset, and lost changes are replayed from there.

Layout (formats §9): the data lives in the column family of its value format; families of older formats are read if a key is not
found in the new one, and rows are moved when they are written. `offsets` holds `<topic>-<partition>` → offset(8), `position`,
and `status` → 0 after a clean close, 2 while open here, 1 while open in Java. The status 2 on opening means that the process
died, which is harmless. 1 means that a Java process died, which may have written more than it committed: under exactly-once
such a store is wiped. Java wipes it in both cases.
"""

# ruff: noqa: SLF001 (a view of a store is a changed copy of it, or reads its parts)

from __future__ import annotations

import contextlib
import heapq
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from millrace.errors import (
    LockError,
    ProcessorStateError,
    StateDirectoryError,
    StateStoreMigratedError,
    StreamsError,
    TaskCorruptedError,
)
from millrace.records import TopicPartition
from millrace.state.api import StoreContext
from millrace.state.bytes_store import Position, Rows, decode_position, encode_position
from millrace.state.ordered_map import OrderedMap
from millrace.state.rocksdb_options import (
    RocksDBOptions,
    config_setter,
    store_options,
)
from millrace.state.value_formats import PLAIN, ValueFormat, convert_from_family, pack_long, unpack_long

OFFSETS_FAMILY = "offsets"
"""The small column family that holds offsets, position and status."""
_OFFSETS_WRITE_BUFFER_BYTES = 1024 * 1024
STATUS = b"status"
_POSITION = b"position"
_CLOSED, OPEN_IN_JAVA, _OPEN = pack_long(0), pack_long(1), pack_long(2)
_ROW_OVERHEAD = 120
"""Bytes of memory per pending row in addition to key and value: two bytes objects and a dict slot."""

_NOT_WAITING: Any = object()

_key_of = itemgetter(0)


def explain(error: Exception, directory: Path) -> ProcessorStateError:
    """Turn an error of RocksDB or the system into one that says what to do."""
    text = str(error)
    lowered = text.replace(str(directory), "").lower()  # whose names mean nothing
    if "lock" in lowered and ("lock file" in lowered or "lock hold" in lowered or "no locks available" in lowered):
        return LockError(
            f"State store {directory} is in use by another process (or another instance in this one); "
            f"give each instance its own state.dir, or stop the other one ({text})"
        )
    if "no space left" in lowered or "file too large" in lowered or "quota exceeded" in lowered:
        return StateDirectoryError(
            f"The disk of state store {directory} is full: free or add space; the store then resumes from its last "
            f"commit ({text})"
        )
    if "read-only" in lowered or "permission denied" in lowered or "not permitted" in lowered:
        return StateDirectoryError(
            f"State store {directory} cannot be written: check owner, mode and mount of state.dir ({text})"
        )
    if "column families not opened" in lowered:
        return ProcessorStateError(
            f"State store {directory} was written with a newer value format (dsl.store.format or a header-aware store); "
            f"downgrading is not possible: keep the newer format, or delete the directory to restore it ({text})"
        )
    return ProcessorStateError(f"State store {directory} failed: {text}")


class RocksDatabase:
    """A directory with a RocksDB database, and the rows that wait for the next commit."""

    def __init__(self, store_name: str, directory: Path, value_format: ValueFormat = PLAIN) -> None:
        self.directory = directory
        self.position: Position = {}
        self.committed_position: Position = {}
        """The position that the rows on disk have reached at least; replaced as a whole after a commit."""
        self._store_name = store_name
        self._format = value_format
        self._pending: OrderedMap[bytes | None] = OrderedMap()
        self._pending_rows = self._pending.data
        self._pending_bytes = 0
        self.commits = 0
        """How often a commit has begun or ended, for readers in other threads that combine pending rows with those on disk."""
        self.guard = threading.Lock()
        """Held by other threads while they use RocksDB, and while it is closed; the store's own thread reads without it."""
        self.scans: WeakSet[GuardedRows] = WeakSet()
        """Scans of other threads, which end when the database is closed."""
        self.closed = False
        self.expired = False
        """Whether it was a segment whose rows have expired: for readers it has no rows any more."""
        self._db: Rdict | None = None
        self._data: Rdict | None = None
        self._offsets: Rdict | None = None
        self._older_families: list[str] = []
        self._older: list[tuple[Rdict, Callable[[bytes], bytes]]] = []
        self._read: Callable[[bytes], bytes | None] = lambda _key: None
        self._handles: dict[str, Any] = {}
        self._write_options = WriteOptions()
        # Changes since the last flush are restored from the changelog. The stubs call this property a method.
        setattr(self._write_options, "disable_wal", True)  # noqa: B010
        self._opened_with: RocksDBOptions | None = None
        self._setter: Any = None
        self._context: StoreContext | None = None

    def exists(self) -> bool:
        """Tell whether the directory holds a database."""
        return (self.directory / "CURRENT").exists()

    def open(self, context: StoreContext) -> None:
        """Open or create the database.

        Raises:
            LockError: another process has it open.
            StateDirectoryError: the directory cannot be written.
            ProcessorStateError: the database was written in a newer format.
            TaskCorruptedError: it is damaged, or may contain uncommitted changes.
        """
        if self._db is not None:
            return
        self._context = context
        self.closed = False
        self._setter = config_setter(context.config)
        self._opened_with = store_options(self._store_name, context.config, self._setter)
        options = self._opened_with.options
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            present: list[str] = []
            if self.exists():
                present = Rdict.list_cf(str(self.directory), options)
            else:
                self._clear_unfinished()
            self._older_families = [name for name in self._format.older if name == "default" or name in present]
            names = [name for name in (self._format.family, *self._older_families) if name != "default"]
            offsets_options = Options(raw_mode=True)
            offsets_options.set_write_buffer_size(_OFFSETS_WRITE_BUFFER_BYTES)
            families = dict.fromkeys(names, options) | {OFFSETS_FAMILY: offsets_options}
            self._db = Rdict(str(self.directory), options=options, column_families=families)
            self._attach()
            self._check_status(context)
            self._write_status(_OPEN)
        except TaskCorruptedError:
            self._release()
            raise
        except Exception as error:
            self._release()
            raise self._failure(error, context, opening=True) from error
        stored = self._offsets.get(_POSITION) if self._offsets is not None else None
        if stored is not None:
            self.committed_position = decode_position(stored)
            for partition, offset in self.committed_position.items():
                self.position.setdefault(partition, offset)

    def _failure(self, error: Exception, context: StoreContext | None, *, opening: bool = False) -> StreamsError:
        """Return what to raise: if files are damaged or, as found when opening, missing, the store has to be restored."""
        text = str(error).lower()  # it begins with the kind of error, and then has paths, whose names mean nothing
        damaged = text.startswith("corruption:") or (opening and text.startswith("io error: no such file"))
        if damaged and context is not None and self._restorable(context):
            message = f"State store {self.directory} is damaged; its task's state is wiped and restored ({error})"
            return TaskCorruptedError(frozenset({context.task_id}), message)
        return explain(error, self.directory)

    def _clear_unfinished(self) -> None:
        """Delete what a process left behind when it died while creating the database: RocksDB would refuse to create it again."""
        for path in self.directory.iterdir():
            if path.is_file():
                path.unlink()

    def _restorable(self, context: StoreContext) -> bool:
        """Tell whether a task would restore this store; global stores do not belong to a task."""
        return context.task_id.subtopology >= 0

    def _check_status(self, context: StoreContext) -> None:
        assert self._offsets is not None
        died_in_java = self._offsets.get(STATUS) == OPEN_IN_JAVA
        if died_in_java and context.config.exactly_once and self._restorable(context):
            raise TaskCorruptedError(
                frozenset({context.task_id}),
                f"A Java process died with state store {self.directory} open, which may hold uncommitted data; the "
                "task's state is wiped and restored",
            )

    def _attach(self) -> None:
        assert self._db is not None
        db = self._db
        family = self._format.family
        self._data = db if family == "default" else db.get_column_family(family)
        self._offsets = db.get_column_family(OFFSETS_FAMILY)
        for name in (family, *self._older_families, OFFSETS_FAMILY):
            self._handles[name] = db.get_column_family_handle(name)
        self._older = []
        for name in self._older_families:
            rows = db if name == "default" else db.get_column_family(name)
            if any(True for _ in rows.keys()):  # noqa: SIM118 (not a dict)
                self._older.append((rows, convert_from_family(name, self._format)))
        self._read = self._read_with_older if self._older else self._data.get

    def _read_with_older(self, key: bytes) -> bytes | None:
        assert self._data is not None
        value: bytes | None = self._data.get(key)
        if value is not None:
            return value
        for rows, convert in self._older:
            value = rows.get(key)
            if value is not None:
                return convert(value)
        return None

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, committed or pending."""
        value: bytes | None = self._pending_rows.get(key, _NOT_WAITING)
        if value is not _NOT_WAITING:
            return value
        try:
            return self._read(key)
        except Exception as error:
            raise self._failure(error, self._context) from error

    def put(self, key: bytes, value: bytes | None) -> None:
        """Keep a row for the next commit; None deletes it."""
        rows = self._pending_rows
        old = rows.get(key, _NOT_WAITING)
        grown = 0 if value is None else len(value)
        if old is _NOT_WAITING:
            if self._pending.order is None:
                rows[key] = value
            else:
                self._pending.set(key, value)
            self._pending_bytes += grown + len(key) + _ROW_OVERHEAD
        else:
            rows[key] = value
            self._pending_bytes += grown if old is None else grown - len(old)

    def scan(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False, upper_inclusive: bool = True
    ) -> Rows:
        """Iterate rows in byte order as they are now; later writes are not seen."""
        if lower is not None and upper is not None and lower > upper:
            return iter(())
        waiting = self._pending_rows
        pending = [(key, waiting[key]) for key in self._pending.keys(lower, upper, reverse=reverse)]
        if not upper_inclusive and pending and pending[0 if reverse else -1][0] == upper:
            del pending[0 if reverse else -1]
        sources = self._scan_disk(lower, upper, reverse=reverse, upper_inclusive=upper_inclusive)
        return sources[0] if not pending and len(sources) == 1 else _merge([iter(pending), *sources], reverse=reverse)

    def _scan_disk(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool, upper_inclusive: bool
    ) -> list[Rows]:
        """Return snapshots of the rows on disk: first those in the store's format, which replace those in older ones."""
        first, last = (upper, lower) if reverse else (lower, upper)
        sources: list[Rows] = []
        for source, convert in reversed(self._sources()):  # a commit may move a row to the newest format meanwhile
            rows: Any = source.items(backwards=reverse, from_key=first)  # takes the snapshot
            end = partial(self._check_end, source, first, reverse=reverse)
            sources.append(_until(rows, last, upper, reverse, upper_inclusive, convert, end))
        sources.reverse()
        return sources

    def _sources(self) -> list[tuple[Rdict, Callable[[bytes], bytes] | None]]:
        return [] if self._data is None else [(self._data, None), *self._older]

    def _check_end(self, source: Rdict, first: bytes | None, last: bytes | None, *, reverse: bool) -> None:
        """Find out whether rows ended after `last` because the next block is damaged, which their iterator does not tell."""
        check = source.iter()
        start = first if last is None else last
        try:
            if start is None:
                (check.seek_to_last if reverse else check.seek_to_first)()
            else:
                (check.seek_for_prev if reverse else check.seek)(start)
                if check.valid():
                    (check.prev if reverse else check.next)()
            check.status()
        except Exception as error:
            raise self._failure(error, self._context) from error

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write all pending rows, the offsets and the position in one batch.

        Raises:
            StateDirectoryError: the disk is full or read-only; nothing is lost, and the call can be repeated.
        """
        if not self._pending_rows and not offsets:
            return
        self.commits += 1
        try:
            self._write(self._pending_rows.items(), offsets)
            self._pending.clear()
            self._pending_bytes = 0
        finally:
            self.commits += 1

    def view(self, *, committed: bool) -> RocksView:
        """Return the database as other threads may read it; `committed`: only what is on disk."""
        return RocksView(self, committed=committed)

    def restore_batch(self, rows: Iterable[tuple[bytes, bytes | None]], offsets: Mapping[TopicPartition, int]) -> None:
        """Write restored rows directly, with the offsets they reach."""
        if self._pending_rows:  # written before restoration, and superseded by a later change in the changelog
            for key, value in rows:
                self.put(key, value)
            self.commit(offsets)
            return
        self._write(rows, offsets)

    def _write(self, rows: Iterable[tuple[bytes, bytes | None]], offsets: Mapping[TopicPartition, int]) -> None:
        db, handles = self._db, self._handles
        if db is None:
            raise ProcessorStateError(f"State store {self.directory} is closed")
        batch = WriteBatch(raw_mode=True)
        data = handles[self._format.family]
        older = [handles[name] for name in self._older_families] if self._older else ()
        put, delete = batch.put, batch.delete
        for key, value in rows:
            if value is None:
                delete(key, data)
            else:
                put(key, value, data)
            for handle in older:
                delete(key, handle)
        meta = handles[OFFSETS_FAMILY]
        for partition, offset in offsets.items():
            put(f"{partition.topic}-{partition.partition}".encode(), pack_long(offset), meta)
        if self.position:
            put(_POSITION, encode_position(self.position), meta)
        try:
            db.write(batch, self._write_options)
        except Exception as error:
            raise self._failure(error, self._context) from error
        self.committed_position = dict(self.position)

    def _write_status(self, status: bytes) -> None:
        assert self._db is not None
        batch = WriteBatch(raw_mode=True)
        batch.put(STATUS, status, self._handles[OFFSETS_FAMILY])
        self._db.write(batch, self._write_options)

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset recorded for a changelog partition."""
        if self._offsets is None:
            return None
        stored = self._offsets.get(f"{partition.topic}-{partition.partition}".encode())
        return None if stored is None else unpack_long(stored)

    def flush(self) -> None:
        """Make the committed rows survive a crash: data before offsets, so that offsets are never ahead."""
        if self._db is None or self._data is None or self._offsets is None:
            return
        try:
            for rows, _ in self._sources():
                rows.flush(True)
            self._offsets.flush(True)
        except Exception as error:
            raise self._failure(error, self._context) from error

    def uncommitted_bytes(self) -> int:
        """Return the memory held by pending rows."""
        return self._pending_bytes

    def approximate_num_entries(self) -> int:
        """Return RocksDB's estimate plus the number of pending rows."""
        estimate = 0
        for rows, _ in self._sources():
            estimate += rows.property_int_value("rocksdb.estimate-num-keys") or 0
        return estimate + sum(1 for value in self._pending_rows.values() if value is not None)

    def is_open(self) -> bool:
        """Tell whether the database is open."""
        return self._db is not None

    def close(self) -> None:
        """Flush what was committed, and release the directory. Pending rows are lost."""
        self.closed = True
        self._pending.clear()
        self._pending_bytes = 0
        if self._db is None:
            return
        try:
            self._write_status(_CLOSED)
            self.flush()
        except ProcessorStateError:
            raise
        except Exception as error:
            raise explain(error, self.directory) from error
        finally:
            self._release()

    def destroy(self, trash: Path) -> None:
        """Close the database and delete it, after renaming it: a crash leaves it either complete or hidden."""
        self.expired = True
        self.close()
        if self.directory.exists():
            self.directory.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)

    def _release(self) -> None:
        """Drop every reference to the database: RocksDB shuts down with the last one."""
        opened = self._opened_with
        with self.guard:
            for scan in tuple(self.scans):
                scan.end()
            self._read = lambda _key: None
            self._handles.clear()
            families = {
                id(rows): rows for rows in (*(rows for rows, _ in self._older), self._data, self._offsets, self._db)
            }
            for rows in families.values():
                if rows is not None:
                    with contextlib.suppress(Exception):  # it flushes once more; `close` has reported any failure
                        rows.close()
            self._older = []
            self._data = self._offsets = self._db = self._opened_with = None
        if self._setter is not None and opened is not None:
            self._setter.close(self._store_name, opened)


def _until(
    rows: Iterator[tuple[bytes, bytes]],
    last: bytes | None,
    upper: bytes | None,
    reverse: bool,  # noqa: FBT001 (a generator's plain parameters)
    upper_inclusive: bool,  # noqa: FBT001
    convert: Callable[[bytes], bytes] | None,
    check_end: Callable[[bytes | None], None],
) -> Rows:
    key = None
    for key, value in rows:
        if last is not None and (key < last if reverse else key > last):
            return
        if not upper_inclusive and key == upper:
            if reverse:
                continue
            return
        yield key, (value if convert is None else convert(value))
    check_end(key)


def _merge(sources: list[Iterator[tuple[bytes, Any]]], *, reverse: bool) -> Rows:
    """Merge sorted rows; for equal keys the first source takes precedence, and None hides the key."""
    previous: bytes | None = None
    for key, value in heapq.merge(*sources, key=_key_of, reverse=reverse):
        if key == previous:
            continue
        previous = key
        if value is not None:
            yield key, value


class GuardedRows:
    """Rows that a thread other than the store's own reads: each is read under the guard, until the database is closed."""

    def __init__(self, database: RocksDatabase, rows: Rows) -> None:
        self._database = database
        self._rows: Rows | None = rows
        self._ended = False
        database.scans.add(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        with self._database.guard:
            if self._rows is not None:
                row = next(self._rows, None)
                if row is not None:
                    return row
                self.close()
            elif not self._ended and not self._database.expired:
                raise _closed(self._database)
        raise StopIteration

    def close(self) -> None:
        """Release the snapshot."""
        self._ended = True
        self._rows = None

    def end(self) -> None:
        """Release the snapshot of a scan that has not come to its end."""
        self._rows = None


def _closed(database: RocksDatabase) -> StateStoreMigratedError:
    return StateStoreMigratedError(
        f"State store {database.directory} was closed while it was read: its task has moved or ended. Call "
        "KafkaStreams.store again"
    )


def _lazily(rows: Callable[[], Rows]) -> Rows:
    yield from rows()


class RocksView:
    """A database as threads other than its own read it: what is committed, or also what waits for the next commit.

    It takes no lock that the store's thread waits for, except when the database is closed. For rows of both kinds, those that
    wait are looked at first, since a commit writes them to the disk before it forgets them.
    """

    def __init__(self, database: RocksDatabase, *, committed: bool) -> None:
        self._database = database
        self._committed = committed
        self.position = database.committed_position if committed else dict(database.position)
        """What the rows have reached at least."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        database = self._database
        if not self._committed:
            value: bytes | None = database._pending_rows.get(key, _NOT_WAITING)
            if value is not _NOT_WAITING:
                return value
        with database.guard:
            if database.closed and not database.expired:
                raise _closed(database)
            try:
                # Older formats first: a commit may move the row to the newest one meanwhile.
                older = [(rows.get(key), convert) for rows, convert in database._older]
                value = None if database._data is None else database._data.get(key)
            except Exception as error:
                raise database._failure(error, database._context) from error
        if value is None:
            value = next((convert(found) for found, convert in older if found is not None), None)
        return value

    def scan(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False, upper_inclusive: bool = True
    ) -> Rows:
        """Iterate rows in byte order as they are now."""
        if lower is not None and upper is not None and lower > upper:
            return iter(())
        database = self._database
        while True:
            commits = database.commits
            waiting = {} if self._committed else dict(database._pending_rows)
            with database.guard:
                if database.closed and not database.expired:
                    raise _closed(database)
                sources: list[Rows] = [  # nothing else may refer to the rows, or closing would leave RocksDB open
                    GuardedRows(database, rows)
                    for rows in database._scan_disk(lower, upper, reverse=reverse, upper_inclusive=upper_inclusive)
                ]
            if not waiting or commits == database.commits:  # otherwise newer rows than those that waited may be on disk
                break
        if not waiting and len(sources) == 1:
            return sources[0]

        def pending() -> Iterator[tuple[bytes, bytes | None]]:  # sorted when it is needed, not while others wait
            keys = [
                key
                for key in waiting
                if (lower is None or key >= lower)
                and (upper is None or key < upper or (upper_inclusive and key == upper))
            ]
            return ((key, waiting[key]) for key in sorted(keys, reverse=reverse))

        return _lazily(lambda: _merge([pending(), *sources], reverse=reverse))

    def approximate_num_entries(self) -> int:
        """Return RocksDB's estimate, plus the number of rows that wait."""
        database = self._database
        with database.guard:
            if database.closed and not database.expired:
                raise _closed(database)
            estimate = sum(rows.property_int_value("rocksdb.estimate-num-keys") or 0 for rows, _ in database._sources())
        if self._committed:
            return estimate
        return estimate + sum(value is not None for value in dict(database._pending_rows).values())


class RocksKeyValueStore(RocksDatabase):
    """The bytes store of a persistent key-value store, in `<task directory>/rocksdb/<store name>`."""

    persistent = True

    def __init__(self, name: str, value_format: ValueFormat = PLAIN) -> None:
        super().__init__(name, Path(), value_format)
        self.name = name

    def open(self, context: StoreContext) -> None:
        """Open or create the database below the task's directory."""
        self.directory = context.state_dir / "rocksdb" / self.name
        super().open(context)
