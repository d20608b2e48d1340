"""The record cache: holds back writes of a store so that many updates of a key are combined into one (KIP-63).

One `RecordCache` budget is shared by all caching stores of a stream thread; each store has its own `StoreCache`. When a put
exceeds the thread's budget, the cache that was just written evicts its least recently used entries until the total is within
bounds; evicting a dirty entry flushes all dirty entries of its cache, that one first. All this, the order of a flush (by the last
put of each key) and the accounting of sizes are as in Java, so that the output records are the same.

Every dirty entry keeps the context of its put. During its write-back, that is the task's record context, because changelog
records and forwarded records must have it.

Re-entrancy: a write-back forwards downstream, which may put into the same cache. The batch is fixed before the first entry is
written back, and until it is done a put creates a new entry instead of changing one that may be in the batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sortedcontainers import SortedList

from millrace.records import NO_HEADERS, Headers, RecordContext
from millrace.state.api import CacheBudget
from millrace.state.ordered_map import copied

_NODE_BYTES = 45
"""Java's estimate per entry, in addition to key, value and topic: three references, dirty flag, timestamp, offset, partition."""


@dataclass(slots=True)
class RecordCache:
    """The budget of one stream thread in bytes (`statestore.cache.max.bytes` / threads) and how much of it is used."""

    max_bytes: int
    used_bytes: int = 0


class CacheEntry:
    """A value (None = a delete) with the context of the put that made it dirty; clean entries have none."""

    __slots__ = ("dirty", "headers", "offset", "partition", "size", "timestamp", "topic", "value", "value_size")

    partition: int
    offset: int
    timestamp: int

    def __init__(self, value: Any, value_size: int, size: int, topic: str | None, headers: Headers) -> None:
        self.value = value
        self.value_size = value_size
        self.size = size
        self.dirty = False
        self.topic = topic
        self.headers = headers


def _size(key: bytes, value_size: int, topic: str | None, headers: Headers) -> int:
    """Return the size of an entry, as in Java."""
    size = len(key) + value_size + _NODE_BYTES
    if topic is not None:
        size += len(topic)
    if headers:
        size += sum(len(name) + len(data or b"") for name, data in headers)
    return size


class StoreCache:
    """One store's entries by cache key, least recently used first."""

    __slots__ = (
        "_budget",
        "_dirty",
        "_order",
        "_record",
        "_writing",
        "bytes",
        "entries",
        "leaving",
        "put",
        "reached",
        "touch",
        "write_back",
    )

    def __init__(
        self, budget: CacheBudget, record: RecordContext, write_back: Callable[[bytes, CacheEntry], None]
    ) -> None:
        self._budget = budget
        self._record = record
        self.write_back = write_back
        """Writes one dirty entry to the layers below, and forwards it."""
        self._writing = 0
        """How many nested write-backs are in progress."""
        self._dirty: dict[bytes, CacheEntry] = {}
        """In the order of the last puts. A plain dict is cheaper to fill, and is always emptied from its beginning to its end."""
        self._order: SortedList[bytes] | None = None
        self.entries: OrderedDict[bytes, CacheEntry] = OrderedDict()
        self.leaving: dict[bytes, CacheEntry] = {}
        """Entries that are being written back: if they are evicted before, other threads find them only here."""
        self.reached: dict[str | None, int] = {}
        """The largest offset of each topic whose record put something."""
        self.touch = self.entries.move_to_end
        """Marks an entry as the most recently used."""
        self.bytes = 0
        self.put: Callable[[bytes, Any, int], None] = self._compile_put()
        """Caches a write (key, value or None to delete, size) with the context of the record being processed."""

    def load(self, key: bytes, value: object, value_size: int) -> None:
        """Cache a value that was read from the layer below."""
        self._add(key, CacheEntry(value, value_size, _size(key, value_size, None, NO_HEADERS), None, NO_HEADERS))
        if self._budget.used_bytes > self._budget.max_bytes:
            self._evict()

    def _compile_put(self) -> Callable[[bytes, Any, int], None]:
        """Return `put` as a closure: it is on the path of every write, and what it uses never changes."""
        record, budget, entries, touch, reached = self._record, self._budget, self.entries, self.touch, self.reached
        dirty, take_dirty, find = self._dirty, self._dirty.pop, self.entries.get

        def put(key: bytes, value: object, value_size: int) -> None:
            topic, headers = record.topic, record.headers
            entry = find(key)
            if entry is not None and (entry.dirty or not self._writing):
                touch(key)
                entry.value = value
                if value_size != entry.value_size or topic is not entry.topic or headers is not entry.headers:
                    size = _size(key, value_size, topic, headers)
                    self._resize(size - entry.size)
                    entry.size = size
                    entry.value_size = value_size
                    entry.topic = topic
                    entry.headers = headers
                if entry.dirty:
                    dirty[key] = take_dirty(key)
                else:
                    entry.dirty = True
                    dirty[key] = entry
            else:
                size = _size(key, value_size, topic, headers)
                if entry is not None:  # replaced in one step, as other threads may be looking for it
                    touch(key)
                    self._resize(-entry.size)
                elif self._order is not None:
                    self._order.add(key)
                entry = CacheEntry(value, value_size, size, topic, headers)
                entry.dirty = True
                entries[key] = dirty[key] = entry
                self.bytes += size
                budget.used_bytes += size
            entry.partition = record.partition
            entry.offset = offset = record.offset
            entry.timestamp = record.timestamp
            if offset > reached.get(topic, -1):  # after the value, for readers in other threads
                reached[topic] = offset
            if budget.used_bytes > budget.max_bytes:
                self._evict()

        return put

    @property
    def is_dirty(self) -> bool:
        """Whether there are entries to write back."""
        return bool(self._dirty)

    def flush(self) -> None:
        """Write every dirty entry back, in the order of the last puts."""
        if self._dirty:
            self._flush([])

    def forget(self, key: bytes) -> None:
        """Drop an entry whose row has changed in the layer below (restoration)."""
        if key in self.entries:
            self._dirty.pop(key, None)
            self._remove(key)

    def clear(self) -> None:
        """Drop all entries, and return their memory to the budget."""
        self._dirty.clear()
        self.entries.clear()
        self._order = None
        self._resize(-self.bytes)

    def scan(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> list[tuple[bytes, CacheEntry]]:
        """Return the current entries in [lower, upper] in byte order, without marking them as used."""
        if not self.entries:
            return []
        if self._order is None:
            self._order = SortedList(self.entries)
        entries = self.entries
        return [(key, entries[key]) for key in self._order.irange(lower, upper, reverse=reverse)]

    def _resize(self, change: int) -> None:
        self.bytes += change
        self._budget.used_bytes += change

    def _add(self, key: bytes, entry: CacheEntry) -> None:
        self.entries[key] = entry
        self._resize(entry.size)
        if self._order is not None:
            self._order.add(key)

    def _remove(self, key: bytes) -> CacheEntry:
        entry = self.entries.pop(key)
        self._resize(-entry.size)
        if self._order is not None:
            self._order.discard(key)
        return entry

    def _evict(self) -> None:
        budget, entries = self._budget, self.entries
        while budget.used_bytes > budget.max_bytes and entries:
            key, entry = next(iter(entries.items()))
            was_dirty = entry.dirty
            if was_dirty:
                self.leaving[key] = entry  # before it is gone from `entries`
                del self._dirty[key]
            del entries[key]
            self.bytes -= entry.size
            budget.used_bytes -= entry.size
            if self._order is not None:
                self._order.discard(key)
            if was_dirty:
                self._flush([(key, entry)])

    def _has_left(self, key: bytes, entry: CacheEntry) -> None:
        if self.leaving.get(key) is entry:
            del self.leaving[key]

    def _flush(self, batch: list[tuple[bytes, CacheEntry]]) -> None:
        batch += self._dirty.items()
        self._dirty.clear()
        leaving = self.leaving
        for key, entry in batch:
            leaving[key] = entry
            entry.dirty = False
        record = self._record
        saved = (record.topic, record.partition, record.offset, record.timestamp, record.headers)
        raw = record.raw_key, record.raw_value
        record.raw_key = record.raw_value = None
        write_back = self.write_back
        deleted: list[tuple[bytes, CacheEntry]] = []
        done = 0
        self._writing += 1
        try:
            for key, entry in batch:
                record.topic = entry.topic
                record.partition = entry.partition
                record.offset = entry.offset
                record.timestamp = entry.timestamp
                record.headers = entry.headers
                if entry.value is None:
                    deleted.append((key, entry))
                write_back(key, entry)
                done += 1
                self._has_left(key, entry)
        finally:
            self._writing -= 1
            record.topic, record.partition, record.offset, record.timestamp, record.headers = saved
            record.raw_key, record.raw_value = raw
            for key, entry in batch[done:]:
                if key not in self.entries:  # evicted
                    self._add(key, entry)
                if self.entries[key] is entry:
                    entry.dirty = True
                    self._dirty[key] = entry
                self._has_left(key, entry)
        for key, entry in deleted:
            if self.entries.get(key) is entry and not entry.dirty:
                self._remove(key)


class CacheView:
    """What threads other than the store's own see of its cache. Looking changes nothing, not even the order of eviction.

    An entry is looked for in `entries`, then in `leaving`, and then in the layer below: whichever step the store's thread is
    at, it is in one of them.
    """

    def __init__(self, cache: StoreCache) -> None:
        self._cache = cache
        self.entries = _Entries(cache)
        self.reached = dict(cache.reached)

    def touch(self, key: bytes) -> None:
        """Do nothing."""

    def load(self, key: bytes, value: object, value_size: int) -> None:
        """Do nothing."""

    def put(self, key: bytes, value: object, value_size: int) -> None:
        """Refuse.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError

    def scan(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> list[tuple[bytes, CacheEntry]]:
        """Return the current entries in [lower, upper] in byte order."""
        found = dict(copied(self._cache.entries))
        for key, entry in copied(self._cache.leaving):
            found.setdefault(key, entry)
        inside = [key for key in found if (lower is None or key >= lower) and (upper is None or key <= upper)]
        return [(key, CacheEntry(found[key].value, 0, 0, None, NO_HEADERS)) for key in sorted(inside, reverse=reverse)]


class _Entries:
    """The entries, and those that are leaving."""

    __slots__ = ("_cache",)

    def __init__(self, cache: StoreCache) -> None:
        self._cache = cache

    def get(self, key: bytes) -> CacheEntry | None:
        """Return an entry, or None."""
        return self._cache.entries.get(key) or self._cache.leaving.get(key)

    def __bool__(self) -> bool:
        return bool(self._cache.entries or self._cache.leaving)
