"""How RocksDB is opened: Kafka Streams' options (formats §9), and one memory budget for all stores of a process.

Java gives every store its own 50 MiB block cache and up to 48 MiB of write buffers, so memory grows with the number of tasks
and every larger deployment writes the same config setter to bound it. Here the bound is the default: one block cache, as large
as `memory_budget` says, which also pays for the write buffers. `rocksdb.config.setter` may change all of it per store.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol, runtime_checkable

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    UniversalCompactOptions,
    WriteBufferManager,
    WriteOptions,
)

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.loading import load_instance
from millrace.state.memory_budget import rocksdb_budget

BLOCK_SIZE = 4096
WRITE_BUFFER_BYTES = 16 * 1024 * 1024
WRITE_BUFFERS = 3
OFFSETS_WRITE_BUFFER_BYTES = 1024 * 1024
OFFSETS_FAMILY = "offsets"


@dataclass(slots=True)
class RocksDBOptions:
    """What a `rocksdb.config.setter` may change before a store is opened."""

    options: Options
    """Database and column family options."""
    table: BlockBasedOptions
    """Block-based table options; applied to `options` after the setter ran."""
    block_cache: Cache
    """Shared by the process; replace it (and call `table.set_block_cache`) to give a store its own."""
    write_buffer_manager: WriteBufferManager


@runtime_checkable
class RocksDBConfigSetter(Protocol):
    """Tunes RocksDB per store; the class, an instance, or its `module:Class` is the value of `rocksdb.config.setter`."""

    def set_config(self, store_name: str, options: RocksDBOptions, config: StreamsConfig) -> None:
        """Change options of one store before it is opened."""

    def close(self, store_name: str, options: RocksDBOptions) -> None:
        """Release what `set_config` made for the store, after it was closed."""


@cache
def _shared_memory(max_bytes: int) -> tuple[Cache, WriteBufferManager]:
    block_cache = Cache(max_bytes)
    half = max_bytes // 2
    return block_cache, WriteBufferManager.new_write_buffer_manager_with_cache(half, False, block_cache)


def config_setter(config: StreamsConfig) -> RocksDBConfigSetter | None:
    """Return the setter of a configuration.

    Raises:
        ConfigError: it cannot be imported or is not a setter.
    """
    value = config.rocksdb_config_setter
    if value is None:
        return None
    setter = load_instance(value, "rocksdb.config.setter")
    if not isinstance(setter, RocksDBConfigSetter):
        raise ConfigError(
            f"rocksdb.config.setter: {value!r} is not a RocksDBConfigSetter, which has the methods set_config and close"
        )
    return setter


def store_options(store_name: str, config: StreamsConfig, setter: RocksDBConfigSetter | None) -> RocksDBOptions:
    """Return the options to open one store with."""
    block_cache, manager = _shared_memory(rocksdb_budget(config))
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_atomic_flush(True)
    options.set_compression_type(DBCompressionType.none())
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_universal_compaction_options(UniversalCompactOptions())
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(WRITE_BUFFERS)
    options.set_optimize_filters_for_hits(True)
    options.increase_parallelism(max(os.cpu_count() or 2, 2))
    options.set_max_background_jobs(4)
    options.set_keep_log_file_num(2)
    options.set_write_buffer_manager(manager)
    table = BlockBasedOptions()
    table.set_block_size(BLOCK_SIZE)
    table.set_bloom_filter(10, False)
    table.set_block_cache(block_cache)
    result = RocksDBOptions(options, table, block_cache, manager)
    if setter is not None:
        setter.set_config(store_name, result, config)
    result.options.set_block_based_table_factory(result.table)
    return result


def offsets_options() -> Options:
    """Return the options of the small column family that holds offsets, position and status."""
    options = Options(raw_mode=True)
    options.set_write_buffer_size(OFFSETS_WRITE_BUFFER_BYTES)
    return options


def without_wal() -> WriteOptions:
    """Return write options without write-ahead log: a store is rebuilt from its changelog from the last flush on."""
    options = WriteOptions()
    setattr(options, "disable_wal", True)  # noqa: B010 (the stubs call this property a method)
    return options


StoreOptions = Callable[[str], RocksDBOptions]
