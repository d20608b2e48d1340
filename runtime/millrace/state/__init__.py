"""State stores: key-value, window, session and versioned, in RocksDB or memory, behind cache and changelog."""

from millrace.state.api import ChangelogRecord, StateStore, StoreBuilder, StoreContext, ValueTimestampHeaders
from millrace.state.builders import StoreBuilderBase
from millrace.state.cache import RecordCache
from millrace.state.key_value import KeyValueStore, TimestampedKeyValueStore, TimestampedKeyValueStoreWithHeaders
from millrace.state.rocksdb_options import RocksDBConfigSetter, RocksDBOptions
from millrace.state.session import AggregationWithHeaders, SessionStore, SessionStoreWithHeaders
from millrace.state.stores import Stores
from millrace.state.versioned import (
    PUT_RETURN_CODE_NOT_PUT,
    PUT_RETURN_CODE_VALID_TO_UNDEFINED,
    VersionedKeyValueStore,
    VersionedRecord,
)
from millrace.state.window import TimestampedWindowStore, TimestampedWindowStoreWithHeaders, WindowStore

__all__ = [
    "PUT_RETURN_CODE_NOT_PUT",
    "PUT_RETURN_CODE_VALID_TO_UNDEFINED",
    "AggregationWithHeaders",
    "ChangelogRecord",
    "KeyValueStore",
    "RecordCache",
    "RocksDBConfigSetter",
    "RocksDBOptions",
    "SessionStore",
    "SessionStoreWithHeaders",
    "StateStore",
    "StoreBuilder",
    "StoreBuilderBase",
    "StoreContext",
    "Stores",
    "TimestampedKeyValueStore",
    "TimestampedKeyValueStoreWithHeaders",
    "TimestampedWindowStore",
    "TimestampedWindowStoreWithHeaders",
    "ValueTimestampHeaders",
    "VersionedKeyValueStore",
    "VersionedRecord",
    "WindowStore",
]
