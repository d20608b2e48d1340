"""Positions: which input records a store's content reflects, and how new an answer must be (KIP-796)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self


class Position(Mapping[tuple[str, int], int]):
    """The offset of the last record applied, by topic and partition; immutable.

    >>> Position.empty().with_component("lines", 0, 12).with_component("lines", 1, 3)
    Position(lines-0: 12, lines-1: 3)
    >>> Position({("lines", 0): 12}).merge(Position({("lines", 0): 9, ("words", 0): 4}))
    Position(lines-0: 12, words-0: 4)
    """

    __slots__ = ("_offsets",)

    def __init__(self, offsets: Mapping[tuple[str, int], int]) -> None:
        self._offsets = dict(offsets)

    @classmethod
    def empty(cls) -> Self:
        """Return the position before every record."""
        return cls({})

    def with_component(self, topic: str, partition: int, offset: int) -> Position:
        """Return the position that has also reached an offset."""
        return self.merge({(topic, partition): offset})

    def merge(self, other: Mapping[tuple[str, int], int]) -> Position:
        """Return the position that has reached what either has."""
        merged = dict(self._offsets)
        for at, offset in other.items():
            merged[at] = max(offset, merged.get(at, offset))
        return Position(merged)

    @property
    def topics(self) -> frozenset[str]:
        """The topics whose records it knows of."""
        return frozenset(topic for topic, _ in self._offsets)

    def partition_positions(self, topic: str) -> dict[int, int]:
        """Return a topic's offsets by partition."""
        return {partition: offset for (name, partition), offset in self._offsets.items() if name == topic}

    def __getitem__(self, at: tuple[str, int]) -> int:
        return self._offsets[at]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def __hash__(self) -> int:
        return hash(frozenset(self._offsets.items()))

    def __repr__(self) -> str:
        return f"Position({self._shown()})"

    def _shown(self) -> str:
        return ", ".join(f"{topic}-{partition}: {offset}" for (topic, partition), offset in sorted(self.items()))


@dataclass(frozen=True, slots=True)
class PositionBound:
    """How new an answer must be: it reflects at least the records up to a position.

    >>> PositionBound.at(Position({("lines", 0): 12}))
    PositionBound(position=Position(lines-0: 12))
    """

    position: Position

    @classmethod
    def unbounded(cls) -> Self:
        """Accept any answer."""
        return cls(Position.empty())

    @classmethod
    def at(cls, position: Mapping[tuple[str, int], int]) -> Self:
        """Accept an answer that reflects at least the records up to a position, such as that of an earlier answer."""
        return cls(Position(position))

    @property
    def is_unbounded(self) -> bool:
        """Whether any answer is accepted."""
        return not self.position

    def permits(self, position: Mapping[tuple[str, int], int], partition: int | None) -> bool:
        """Tell whether a store at a position may answer.

        Args:
            position: what it reflects.
            partition: of the store's task, whose bounds count; None: all of them (a global store).
        """
        return all(
            position.get(at, -1) >= offset
            for at, offset in self.position.items()
            if partition is None or at[1] == partition
        )
