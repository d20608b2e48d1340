"""A dict of bytes that can be scanned in key order, and maintains the order only once it is needed.

Most stores are only ever read by key, so the sorted index is built by the first range scan and maintained from then on.
Scans take a snapshot of the keys: a store may be written while it is iterated, as Java allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from sortedcontainers import SortedList

T = TypeVar("T")


class OrderedMap(Generic[T]):
    """Byte strings to values; `data` may be read directly, but is written through `set` and `remove`."""

    __slots__ = ("data", "order")

    def __init__(self) -> None:
        self.data: dict[bytes, T] = {}
        self.order: SortedList[bytes] | None = None
        """The index; while there is none, writing to `data` is enough."""

    def __len__(self) -> int:
        return len(self.data)

    def set(self, key: bytes, value: T) -> None:
        """Add or replace one entry."""
        if self.order is not None and key not in self.data:
            self.order.add(key)
        self.data[key] = value

    def remove(self, key: bytes) -> T | None:
        """Remove one entry if it is there, and return it."""
        value = self.data.pop(key, None)
        if value is not None and self.order is not None:
            self.order.discard(key)
        return value

    def clear(self) -> None:
        """Remove everything, the index too."""
        self.data.clear()
        self.order = None

    def keys(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> list[bytes]:
        """Return the keys in [lower, upper], None being open, in byte order."""
        if not self.data:
            return []
        if self.order is None:
            self.order = SortedList(self.data)
        return list(self.order.irange(lower, upper, reverse=reverse))

    def items(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, T]]:
        """Iterate the entries in [lower, upper]; entries removed in the meantime are skipped."""
        return self._live(self.keys(lower, upper, reverse=reverse))

    def _live(self, keys: list[bytes]) -> Iterator[tuple[bytes, T]]:
        data = self.data
        for key in keys:
            try:
                yield key, data[key]
            except KeyError:
                continue


class OrderedMapView(OrderedMap[T]):
    """The same entries for threads other than the one that writes them; it does not use the index, which is not theirs."""

    __slots__ = ()

    def __init__(self, of: OrderedMap[T]) -> None:
        self.data = of.data
        self.order = None

    def keys(self, lower: bytes | None, upper: bytes | None, *, reverse: bool = False) -> list[bytes]:
        """Return the keys in [lower, upper], None being open, in byte order."""
        return sorted(
            (
                key
                for key, _ in copied(self.data)
                if (lower is None or key >= lower) and (upper is None or key <= upper)
            ),
            reverse=reverse,
        )


K = TypeVar("K")


def copied(mapping: dict[K, T]) -> list[tuple[K, T]]:
    """Return the items of a dict that another thread may be changing: one call in C, repeated if it was interrupted.

    Subclasses that keep an order of their own are read as plain dicts.
    """
    while True:
        try:
            return list(dict.items(mapping))
        except RuntimeError:  # it changed in the middle
            continue


def prefix_upper_bound(prefix: bytes) -> bytes | None:
    r"""Return the smallest byte string greater than all that start with `prefix`; None when there is none.

    >>> prefix_upper_bound(b"a\xff")
    b'b'
    """
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None
