"""Requests to `KafkaStreams.query`, and what they return (KIP-796)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, Self, TypeVar

from millrace.checks import Suggesting, mistake
from millrace.query.position import Position, PositionBound
from millrace.query.queries import Query
from millrace.query.store_types import IsolationLevel

R = TypeVar("R")


class FailureReason(Enum):
    """Why a partition has no answer."""

    UNKNOWN_QUERY_TYPE = "unknown query type"
    """The store cannot answer a query of this type."""
    NOT_ACTIVE = "not active"
    """An active task was required, and it is not running here."""
    NOT_UP_TO_BOUND = "not up to bound"
    """The store does not yet reflect the records that it was asked for; ask again, or another instance."""
    NOT_PRESENT = "not present"
    """The partition is not on this instance (any more)."""
    DOES_NOT_EXIST = "does not exist"
    """The store has no such partition."""
    STORE_EXCEPTION = "store exception"
    """The store failed, for example because a row is damaged."""


@dataclass(frozen=True)
class StateQueryRequest(Suggesting, Generic[R]):
    """A question to this instance's part of a state store.

    >>> from millrace.query import KeyQuery
    >>> request = StateQueryRequest.in_store("counts").with_query(KeyQuery.with_key("hello"))
    >>> request.with_partitions({0}).require_active().partitions
    frozenset({0})
    """

    store_name: str
    query: Query[R]
    position_bound: PositionBound = field(default_factory=PositionBound.unbounded)
    partitions: frozenset[int] | None = None
    """None: all that are here."""
    execution_info_enabled: bool = False
    active_required: bool = False
    isolation_level: IsolationLevel | None = None
    """None: READ_COMMITTED under exactly-once, otherwise READ_UNCOMMITTED."""

    @staticmethod
    def in_store(name: str) -> InStore:
        """Begin with the store's name.

        Raises:
            TopologyError: it is not a string.
        """
        if not isinstance(name, str):
            raise mistake(f"A query needs the name of a store, not {name!r}")
        return InStore(name)

    def with_position_bound(self, bound: PositionBound) -> Self:
        """Accept only an answer that is new enough."""
        return replace(self, position_bound=bound)

    def with_all_partitions(self) -> Self:
        """Ask all partitions that are here."""
        return replace(self, partitions=None)

    def with_partitions(self, partitions: Collection[int]) -> Self:
        """Ask these partitions; those that are not here fail with `NOT_PRESENT`."""
        return replace(self, partitions=frozenset(partitions))

    def enable_execution_info(self) -> Self:
        """Have the result tell what was done."""
        return replace(self, execution_info_enabled=True)

    def require_active(self) -> Self:
        """Ask only active tasks that run; these are always up to date, so a position bound does not count (as in Java)."""
        return replace(self, active_required=True)

    def with_isolation_level(self, isolation_level: IsolationLevel) -> Self:
        """Choose between committed rows and all rows (KIP-892)."""
        return replace(self, isolation_level=isolation_level)


@dataclass(frozen=True, slots=True)
class InStore:
    """The first half of a request: the store."""

    store_name: str

    def with_query(self, query: Query[R]) -> StateQueryRequest[R]:
        """Add the question.

        Raises:
            TopologyError: it is not a query.
        """
        if not isinstance(query, Query):
            raise mistake(f"with_query needs a query, such as KeyQuery.with_key(…), not {query!r}")
        return StateQueryRequest(self.store_name, query)


@dataclass(frozen=True, slots=True)
class QueryResult(Generic[R]):
    """The answer of one partition, or why there is none."""

    value: R | None = None
    """The answer; use `result`."""
    failure_reason: FailureReason | None = None
    failure_message: str = ""
    position: Position = field(default_factory=Position.empty)
    """The input records that the answer reflects; it may also reflect newer ones."""
    execution_info: tuple[str, ...] = ()
    """What was done, if it was asked for."""

    @property
    def is_success(self) -> bool:
        """Whether there is an answer."""
        return self.failure_reason is None

    @property
    def is_failure(self) -> bool:
        """Whether there is none."""
        return self.failure_reason is not None

    @property
    def result(self) -> R | None:
        """The answer: None if the store has no such row.

        Raises:
            ValueError: there is no answer; the message says why.
        """
        if self.failure_reason is not None:
            raise ValueError(f"The query failed: {self.failure_reason.value}: {self.failure_message}")
        return self.value


@dataclass(frozen=True, slots=True)
class StateQueryResult(Generic[R]):
    """The answers of all partitions that were asked."""

    partition_results: Mapping[int, QueryResult[R]] = field(default_factory=dict)
    """By partition."""
    global_result: QueryResult[R] | None = None
    """Of a global store."""

    @property
    def only_partition_result(self) -> QueryResult[R] | None:
        """The one answer that is not None, of a query for one key; None if there is none.

        Raises:
            ValueError: several partitions have one.
        """
        found = [each for each in self.partition_results.values() if each.is_success and each.value is not None]
        if len(found) > 1:
            raise ValueError(f"{len(found)} partitions have an answer, not one: {dict(self.partition_results)}")
        return found[0] if found else None

    @property
    def position(self) -> Position:
        """What all answers together reflect: use it as the bound of a later query, so that it does not go back."""
        if self.global_result is not None:
            return self.global_result.position
        position = Position.empty()
        for each in self.partition_results.values():
            position = position.merge(each.position)
        return position
