"""In-memory key-value stores: a map in byte order, and one that keeps only the most recently used entries.

They do not wait for `commit`: a crash loses everything anyway, and a task that aborts drops the whole store.
"""

# ruff: noqa: SLF001 (a view of a store is a changed copy of it, or reads its parts)

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from copy import copy

from millrace.records import TopicPartition
from millrace.state.api import StoreContext
from millrace.state.bytes_store import Position, Rows
from millrace.state.ordered_map import OrderedMap, OrderedMapView, copied


class MemoryStore:
    """What in-memory stores of every kind share: offsets and position for as long as the object lives."""

    persistent = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.position: Position = {}
        self._offsets: dict[TopicPartition, int] = {}
        self._open = False

    def open(self, context: StoreContext) -> None:  # noqa: ARG002 (memory needs nothing of the task)
        """Make the store usable."""
        self._open = True

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Remember the offsets."""
        self._offsets.update(offsets)

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset of the last commit of this object."""
        return self._offsets.get(partition)

    def uncommitted_bytes(self) -> int:
        """Return 0: nothing is pending."""
        return 0

    def is_open(self) -> bool:
        """Tell whether `open` was called and `close` was not."""
        return self._open

    def close(self) -> None:
        """Forget everything."""
        self._open = False
        self._offsets.clear()


class MemoryKeyValueStore(MemoryStore):
    """All rows in a dict; the order is maintained only once it is needed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._rows: OrderedMap[bytes] = OrderedMap()
        self.get: Callable[[bytes], bytes | None] = self._rows.data.get
        """Returns the value, or None; the dict's own method, to save a call."""

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write one row; None deletes it."""
        rows = self._rows
        if value is None:
            rows.remove(key)
        elif rows.order is None:
            rows.data[key] = value
        else:
            rows.set(key, value)

    def scan(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False, upper_inclusive: bool = True
    ) -> Rows:
        """Iterate rows in byte order; rows written meanwhile are not seen."""
        keys = self._rows.keys(lower, upper, reverse=reverse)
        if not upper_inclusive and keys:
            edge = 0 if reverse else -1
            if keys[edge] == upper:
                del keys[edge]
        find = self._rows.data.get
        return ((key, value) for key in keys if (value := find(key)) is not None)

    def view(self, *, committed: bool) -> MemoryKeyValueStore:  # noqa: ARG002 (memory has no committed state of its own)
        """Return the store as other threads may read it."""
        view = copy(self)
        view.position = dict(self.position)
        view._rows = OrderedMapView(self._rows)
        return view

    def restore_batch(self, rows: Iterable[tuple[bytes, bytes | None]], offsets: Mapping[TopicPartition, int]) -> None:
        """Apply restored rows."""
        for key, value in rows:
            self.put(key, value)
        self._offsets.update(offsets)

    def approximate_num_entries(self) -> int:
        """Return the exact number of rows."""
        return len(self._rows)

    def close(self) -> None:
        """Forget everything."""
        super().close()
        self._rows.clear()


class LruKeyValueStore(MemoryStore):
    """Keeps the `max_entries` most recently used rows.

    Java logs an eviction as a delete only if its change-logging layer sees the map directly, that is, in plain stores; a
    timestamped store on top of an LRU map leaves evicted rows in its changelog. `on_eviction` is set accordingly.
    """

    def __init__(self, name: str, max_entries: int) -> None:
        super().__init__(name)
        self._max_entries = max_entries
        self._rows: OrderedDict[bytes, bytes] = OrderedDict()
        self.on_eviction: Callable[[bytes], None] | None = None

    def get(self, key: bytes) -> bytes | None:
        """Return the value, and mark it as most recently used."""
        value = self._rows.get(key)
        if value is not None:
            self._rows.move_to_end(key)
        return value

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write one row; None deletes it. Evicts the least recently used row if there are too many."""
        evicted = self._put(key, value)
        if evicted is not None and self.on_eviction is not None:
            self.on_eviction(evicted)

    def _put(self, key: bytes, value: bytes | None) -> bytes | None:
        rows = self._rows
        if value is None:
            rows.pop(key, None)
            return None
        rows[key] = value
        rows.move_to_end(key)
        return rows.popitem(last=False)[0] if len(rows) > self._max_entries else None

    def scan(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False, upper_inclusive: bool = True
    ) -> Rows:
        """Iterate rows in byte order, without marking them as used."""
        keys = sorted(
            (
                key
                for key, _ in copied(self._rows)
                if (lower is None or key >= lower)
                and (upper is None or key < upper or (upper_inclusive and key == upper))
            ),
            reverse=reverse,
        )
        find = self._rows.get
        return ((key, value) for key in keys if (value := find(key)) is not None)

    def view(self, *, committed: bool) -> LruKeyValueStore:  # noqa: ARG002 (memory has no committed state of its own)
        """Return the store as other threads may read it; reading does not count as use."""
        view = copy(self)
        view.position = dict(self.position)
        view.get = self._rows.get  # type: ignore[method-assign, assignment]
        return view

    def restore_batch(self, rows: Iterable[tuple[bytes, bytes | None]], offsets: Mapping[TopicPartition, int]) -> None:
        """Apply restored rows; evictions are not logged."""
        for key, value in rows:
            self._put(key, value)
        self._offsets.update(offsets)

    def approximate_num_entries(self) -> int:
        """Return the exact number of rows."""
        return len(self._rows)

    def close(self) -> None:
        """Forget everything."""
        super().close()
        self._rows.clear()
