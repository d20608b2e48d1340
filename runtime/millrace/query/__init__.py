"""Interactive queries: reading the state stores of a running application from other threads (KIP-67, KIP-535, KIP-562)."""

from millrace.query.read_only_stores import (
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyWindowStore,
    StoreIterator,
)
from millrace.query.store_types import IsolationLevel, QueryableStoreType, QueryableStoreTypes, StoreQueryParameters

__all__ = [
    "IsolationLevel",
    "QueryableStoreType",
    "QueryableStoreTypes",
    "ReadOnlyKeyValueStore",
    "ReadOnlySessionStore",
    "ReadOnlyWindowStore",
    "StoreIterator",
    "StoreQueryParameters",
]
