"""`GlobalKTable`: a table whose partitions are all on every instance."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from millrace.checks import Suggesting
from millrace.dsl.processors.tables import View

K = TypeVar("K")
V = TypeVar("V")


class GlobalKTable(Suggesting, Generic[K, V]):
    """Made by `StreamsBuilder.global_table`; streams can be joined with it by any key."""

    _ELSEWHERE: ClassVar = dict.fromkeys(
        ("to_stream", "filter", "map_values", "group_by", "join", "left_join"),
        "streams can look it up, and nothing else: stream.join(global_table, joiner, key_selector=…)",
    )

    def __init__(self, view: View, queryable_store_name: str | None, topic: str) -> None:
        self._view = view
        self._queryable_store_name = queryable_store_name
        self._topic = topic

    def __repr__(self) -> str:
        store = "" if self._queryable_store_name is None else f", store {self._queryable_store_name}"
        return f"GlobalKTable(reads {self._topic}{store})"

    @property
    def queryable_store_name(self) -> str | None:
        """The name by which the store can be queried, None if it was not named."""
        return self._queryable_store_name
