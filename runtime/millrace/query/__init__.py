"""Interactive queries: reading the state stores of a running application from other threads.

`KafkaStreams.store` returns a store to read (KIP-67, KIP-535, KIP-562); `KafkaStreams.query` answers a request partition by
partition, with positions (KIP-796).
"""

from millrace.query.position import Position, PositionBound
from millrace.query.queries import (
    KeyQuery,
    MultiVersionedKeyQuery,
    Query,
    RangeQuery,
    ResultOrder,
    TimestampedKeyQuery,
    TimestampedKeyWithHeadersQuery,
    TimestampedRangeQuery,
    TimestampedRangeWithHeadersQuery,
    TimestampedWindowKeyWithHeadersQuery,
    TimestampedWindowRangeWithHeadersQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from millrace.query.read_only_stores import (
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyWindowStore,
    StoreIterator,
)
from millrace.query.state_query import FailureReason, InStore, QueryResult, StateQueryRequest, StateQueryResult
from millrace.query.store_types import IsolationLevel, QueryableStoreType, QueryableStoreTypes, StoreQueryParameters

__all__ = [
    "FailureReason",
    "InStore",
    "IsolationLevel",
    "KeyQuery",
    "MultiVersionedKeyQuery",
    "Position",
    "PositionBound",
    "Query",
    "QueryResult",
    "QueryableStoreType",
    "QueryableStoreTypes",
    "RangeQuery",
    "ReadOnlyKeyValueStore",
    "ReadOnlySessionStore",
    "ReadOnlyWindowStore",
    "ResultOrder",
    "StateQueryRequest",
    "StateQueryResult",
    "StoreIterator",
    "StoreQueryParameters",
    "TimestampedKeyQuery",
    "TimestampedKeyWithHeadersQuery",
    "TimestampedRangeQuery",
    "TimestampedRangeWithHeadersQuery",
    "TimestampedWindowKeyWithHeadersQuery",
    "TimestampedWindowRangeWithHeadersQuery",
    "VersionedKeyQuery",
    "WindowKeyQuery",
    "WindowRangeQuery",
]
