"""Session stores whose aggregates have headers (KIP-1271).

On disk they lie in the session format with headers (formats §2) where the supplier has it; a supplier of plain sessions keeps
the aggregates only. Changelog records carry the headers in any case, and those of deletions the headers of their cause.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from millrace.records import NO_HEADERS, Headers, Windowed
from millrace.state.session import TypedSessionStore
from millrace.state.values import Parts, Values, value_size

K = TypeVar("K")
A = TypeVar("A")


class AggregationWithHeaders(NamedTuple, Generic[A]):
    """A session's aggregate and its headers.

    >>> AggregationWithHeaders(7, Headers([("trace", b"1")])).headers.last("trace")
    b'1'
    """

    aggregation: A
    headers: Headers = NO_HEADERS


class HeaderAggregates(Values):
    """`AggregationWithHeaders`; changelog records have the timestamp of the record being processed."""

    def _split(self, value: Any) -> Parts:
        return self._value_bytes(self._topic, value[0]), self._record.timestamp, value[1]

    def _join(self, parts: Parts) -> Any:
        return AggregationWithHeaders(self._value_of(self._topic, parts[0]), parts[2])

    def _bare(self, value: Any) -> Any:
        return value[0]

    def _size(self, value: Any) -> int:
        return value_size(value[0]) + 1

    def _tombstone_headers(self) -> Headers:
        return self._record.headers


class SessionStoreWithHeaders(HeaderAggregates, TypedSessionStore[K, AggregationWithHeaders[A]]):
    """A session store of aggregates with headers."""

    def put(self, session: Windowed[K], aggregate: AggregationWithHeaders[A] | None) -> None:
        """Set a session's aggregate; None, or an aggregate that is None, deletes it."""
        super().put(session, None if aggregate is None or aggregate[0] is None else aggregate)
