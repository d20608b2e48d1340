"""State stores: key-value, window, session and versioned, in RocksDB or memory, behind cache and changelog."""

from millrace.state.api import ChangelogRecord, StateStore, StoreBuilder, StoreContext, ValueTimestampHeaders
from millrace.state.cache import RecordCache
from millrace.state.key_value import KeyValueStore, TimestampedKeyValueStore, TimestampedKeyValueStoreWithHeaders
from millrace.state.stores import Stores

__all__ = [
    "ChangelogRecord",
    "KeyValueStore",
    "RecordCache",
    "StateStore",
    "StoreBuilder",
    "StoreContext",
    "Stores",
    "TimestampedKeyValueStore",
    "TimestampedKeyValueStoreWithHeaders",
    "ValueTimestampHeaders",
]
