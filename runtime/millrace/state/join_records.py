"""What the shared store of a left or outer stream-stream join holds: records that have found no partner yet (formats §4)."""

from __future__ import annotations

from typing import Any, NamedTuple


class JoinSideKey(NamedTuple):
    """The key of a waiting record: its timestamp (ms), the side it came from, its own key."""

    timestamp: int
    is_left: bool
    key: Any


class LeftOrRightValue(NamedTuple):
    """The value of a waiting record, and the side it came from."""

    is_left: bool
    value: Any
