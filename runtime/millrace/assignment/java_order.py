"""The orders in which Java compares and iterates, as far as the decisions of Java's assignors depend on them.

Among equally good clients an assignor takes the first. So that a group's decisions do not change when a member in another
language becomes its leader, "first" means the same here: process ids compare by signed halves, hash tables iterate by bucket, and
a priority queue does not notice that the key of an element has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar
from uuid import UUID

from millrace.records import TaskId

T = TypeVar("T")
Hashed = TypeVar("Hashed", UUID, TaskId, str)

_SIGNS = 1 << 127 | 1 << 63
_MASK = 0xFFFFFFFF


def signed(process: UUID) -> int:
    """Return a number by which process ids sort as in Java, which compares both halves as signed numbers.

    >>> signed(UUID(int=1 << 127)) < signed(UUID(int=0))
    True
    """
    return process.int ^ _SIGNS


def hash_order(items: Iterable[Hashed], *, copied: bool = False) -> list[Hashed]:
    """Return items in the order in which Java's `HashSet` or `HashMap` iterates.

    Args:
        items: Different items, in the order in which they are added.
        copied: Whether the set is a copy of another collection; in Java 17 it then has more buckets if it is exactly full.

    >>> [str(task) for task in hash_order([TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)])]
    ['1_0', '0_1', '0_0']
    """
    given = list(items)
    buckets = max(16, 1 << int(len(given) / 0.75).bit_length()) if copied else _buckets(len(given))

    def bucket(item: Hashed) -> int:
        value = _hash(item)
        return (value ^ value >> 16) & (buckets - 1)

    return sorted(given, key=bucket)


def _hash(item: UUID | TaskId | str) -> int:
    """Return `hashCode()` as an unsigned number."""
    if isinstance(item, UUID):
        folded = (item.int >> 64) ^ (item.int & (1 << 64) - 1)
        return (folded >> 32) ^ (folded & _MASK)
    if isinstance(item, TaskId):
        return 31 * (31 * (31 + item.subtopology) + item.partition) & _MASK
    value = 0
    for unit in memoryview(item.encode("utf-16-le")).cast("H"):
        value = 31 * value + unit & _MASK
    return value


def tasks_in_hash_order(tasks: Iterable[TaskId]) -> list[TaskId]:
    """Return tasks in the order of the map from which Java's leader takes them; it adds them by sub-topology."""
    known = sorted(tasks)
    buckets = _buckets(len({task.subtopology for task in known}))
    return hash_order(sorted(known, key=lambda task: 31 * (31 + task.subtopology) & (buckets - 1)))


def _buckets(size: int) -> int:
    buckets = 16
    while size > buckets * 3 // 4:
        buckets *= 2
    return buckets


class PriorityQueue(Generic[T]):
    """Java's `PriorityQueue`, a binary heap whose keys are computed again for every comparison."""

    def __init__(self, key: Callable[[T], tuple[float, ...]], items: Iterable[T] = ()) -> None:
        """Put items in order.

        Args:
            key: Returns what items are compared by.
            items: The first elements.
        """
        self._key = key
        self._heap = list(items)
        for index in reversed(range(len(self._heap) // 2)):
            self._sink(index)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __contains__(self, item: T) -> bool:
        return item in self._heap

    def __iter__(self) -> Iterator[T]:
        """Iterate in the order of the heap's array, which is not sorted."""
        return iter(self._heap)

    def offer(self, item: T) -> None:
        """Add an element."""
        self._heap.append(item)
        self._rise(len(self._heap) - 1)

    def poll(self) -> T:
        """Remove the first element and return it."""
        first, last = self._heap[0], self._heap.pop()
        if self._heap:
            self._heap[0] = last
            self._sink(0)
        return first

    def remove(self, item: T) -> None:
        """Remove an element."""
        index = self._heap.index(item)
        last = self._heap.pop()
        if index < len(self._heap):
            self._heap[index] = last
            self._sink(index)
            if self._heap[index] is last:
                self._rise(index)

    def _sink(self, index: int) -> None:
        heap, item = self._heap, self._heap[index]
        while (child := 2 * index + 1) < len(heap):
            if child + 1 < len(heap) and self._key(heap[child]) > self._key(heap[child + 1]):
                child += 1
            if self._key(item) <= self._key(heap[child]):
                break
            heap[index] = heap[child]
            index = child
        heap[index] = item

    def _rise(self, index: int) -> None:
        heap, item = self._heap, self._heap[index]
        while index and self._key(item) < self._key(heap[(index - 1) // 2]):
            heap[index] = heap[(index - 1) // 2]
            index = (index - 1) // 2
        heap[index] = item
