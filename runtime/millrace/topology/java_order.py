"""The iteration orders of Java's collections, on which the text of `describe()` depends.

Kafka Streams keeps topics, store names and nodes in hash sets and in tree sets whose keys change while they are filled.
These orders therefore appear in the texts that people compare when they upgrade an application, and must appear in ours too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


def string_hash(text: str) -> int:
    """Return Java's `String.hashCode` as an unsigned 32-bit number (over UTF-16 code units).

    >>> string_hash("hello")
    99162322
    """
    result = 0
    units = text.encode("utf-16-be")
    for index in range(0, len(units), 2):
        result = (31 * result + (units[index] << 8) + units[index + 1]) & 0xFFFFFFFF
    return result


def hash_ordered(names: Iterable[str], *, copied: bool = False) -> list[str]:
    """Return names in the order in which a Java `HashSet` or the keys of a `HashMap` iterate.

    Args:
        names: in the order of their insertion.
        copied: the set is made from another collection, which sizes its table up front instead of growing it.
    """
    distinct = list(dict.fromkeys(names))
    size = 16
    if copied:
        wanted = max(int(len(distinct) / 0.75) + 1, 16)
        while size < wanted:
            size *= 2
    while len(distinct) > size * 0.75:
        size *= 2

    def bucket(name: str) -> int:
        value = string_hash(name)
        return (value ^ (value >> 16)) & (size - 1)

    return sorted(distinct, key=bucket)


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
