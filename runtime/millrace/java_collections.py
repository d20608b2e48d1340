"""Java's hash codes and the order of its collections, where Kafka Streams' results depend on them.

* Among equally good clients an assignor takes the first. So that a group's decisions do not change when a member in another
  language becomes its leader, "first" means the same here: process ids compare by signed halves, hash tables iterate by
  bucket, and a priority queue does not notice that the key of an element has changed.
* `describe()` prints topics, stores and nodes in the order of hash sets, and of tree sets whose keys change while they are
  filled. People compare these texts when they upgrade an application.
* A suppression buffer logs its keys in the order of a hash set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar
from uuid import UUID

from millrace.records import TaskId

T = TypeVar("T")
Hashed = TypeVar("Hashed", UUID, TaskId, str, bytes)

_SIGNS = 1 << 127 | 1 << 63
_MASK = 0xFFFFFFFF


def signed(process: UUID) -> int:
    """Return a number by which process ids sort as in Java, which compares both halves as signed numbers.

    >>> signed(UUID(int=1 << 127)) < signed(UUID(int=0))
    True
    """
    return process.int ^ _SIGNS


def hash_code(item: UUID | TaskId | str | bytes) -> int:
    """Return `hashCode()`, of bytes `Arrays.hashCode`, as an unsigned 32-bit number.

    >>> hash_code("hello"), hash_code(TaskId(0, 1)), hash_code(b"k1"), hash_code(bytes([255]))
    (99162322, 29822, 4327, 30)
    """
    if isinstance(item, UUID):
        folded = (item.int >> 64) ^ (item.int & (1 << 64) - 1)
        return (folded >> 32) ^ (folded & _MASK)
    if isinstance(item, TaskId):
        return 31 * (31 * (31 + item.subtopology) + item.partition) & _MASK
    if isinstance(item, bytes):
        value = 1
        for byte in item:
            value = 31 * value + (byte if byte < 128 else byte - 256) & _MASK
        return value
    value = 0
    for unit in memoryview(item.encode("utf-16")).cast("H")[
        1:
    ]:  # in the machine's byte order, after the mark that says which
        value = 31 * value + unit & _MASK
    return value


def hash_order(items: Iterable[Hashed], *, copied: bool = False) -> list[Hashed]:
    """Return items in the order in which Java's `HashSet` or the keys of a `HashMap` iterate, each once.

    Args:
        items: in the order in which they are added.
        copied: whether the set is a copy of another collection; in Java 17 it then has more buckets if it is exactly full.

    >>> [str(task) for task in hash_order([TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)])]
    ['1_0', '0_1', '0_0']
    """
    given = list(dict.fromkeys(items))
    return by_bucket(given, max(16, 1 << int(len(given) / 0.75).bit_length()) if copied else _buckets(len(given)))


def by_bucket(items: Iterable[Hashed], buckets: int) -> list[Hashed]:
    """Return items in the order in which a hash table with this many buckets iterates."""

    def bucket(item: Hashed) -> int:
        value = hash_code(item)
        return (value ^ value >> 16) & (buckets - 1)

    return sorted(items, key=bucket)


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


class _Entry(Generic[T]):
    """A node of the tree."""

    __slots__ = ("item", "left", "parent", "red", "right")

    def __init__(self, item: T, parent: _Entry[T] | None) -> None:
        self.item = item
        self.parent = parent
        self.left: _Entry[T] | None = None
        self.right: _Entry[T] | None = None
        self.red = True


class MutableKeyTreeSet(Generic[T]):
    """A red-black tree that compares keys as they are at the moment of insertion, like Java's `TreeSet`.

    The descriptions' nodes grow while they are put into such sets, so the result is not sorted by the final keys; it
    depends on the path of each insertion, and so on the tree's shape.
    """

    def __init__(self, compare: Callable[[T, T], int]) -> None:
        self._compare = compare
        self._root: _Entry[T] | None = None

    def add(self, item: T) -> None:
        """Insert an item, unless an equal one is found on the way down."""
        parent: _Entry[T] | None = None
        current = self._root
        order = 0
        while current is not None:
            parent = current
            order = self._compare(item, current.item)
            if order == 0:
                return
            current = current.left if order < 0 else current.right
        entry = _Entry(item, parent)
        if parent is None:
            self._root = entry
        elif order < 0:
            parent.left = entry
        else:
            parent.right = entry
        self._rebalance(entry)

    def _rebalance(self, entry: _Entry[T]) -> None:
        while entry.parent is not None and entry.parent.red:
            parent = entry.parent
            grandparent = parent.parent
            assert grandparent is not None
            parent_is_left = grandparent.left is parent
            uncle = grandparent.right if parent_is_left else grandparent.left
            if uncle is not None and uncle.red:
                parent.red = uncle.red = False
                grandparent.red = True
                entry = grandparent
                continue
            inner = parent.right if parent_is_left else parent.left
            if entry is inner:
                self._rotate(parent, left=parent_is_left)
                entry, parent = parent, entry
            parent.red = False
            grandparent.red = True
            self._rotate(grandparent, left=not parent_is_left)
        assert self._root is not None
        self._root.red = False

    def _rotate(self, entry: _Entry[T], *, left: bool) -> None:
        child = entry.right if left else entry.left
        assert child is not None
        moved = child.left if left else child.right
        if left:
            entry.right, child.left = moved, entry
        else:
            entry.left, child.right = moved, entry
        if moved is not None:
            moved.parent = entry
        parent = child.parent = entry.parent
        entry.parent = child
        if parent is None:
            self._root = child
        elif parent.left is entry:
            parent.left = child
        else:
            parent.right = child

    def __iter__(self) -> Iterator[T]:
        stack: list[_Entry[T]] = []
        current = self._root
        while stack or current is not None:
            while current is not None:
                stack.append(current)
                current = current.left
            current = stack.pop()
            yield current.item
            current = current.right
