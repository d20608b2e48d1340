"""How RocksDB is opened: Kafka Streams' options (formats §9), and one memory budget for all stores of a process.

Java gives every store its own 50 MiB block cache and up to 48 MiB of write buffers, so memory grows with the number of tasks,
and every larger deployment writes the same config setter to bound it. Here memory is bounded by default: one block cache of
`rocksdb_budget` bytes, to which the write buffers are charged too. `rocksdb.config.setter` may change all of it per store.

The budget is a number of bytes, or a fraction of the memory that the process may use. In a container that is the limit of its
control group (version 1 or 2), which Kubernetes sets from `resources.limits.memory`. Processes outside containers may be
limited too, and every parent group has its own limit, so the smallest one counts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    UniversalCompactOptions,
    WriteBufferManager,
)

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.loading import implements, load_instance

BLOCK_SIZE = 4096
WRITE_BUFFER_BYTES = 16 * 1024 * 1024
WRITE_BUFFERS = 3


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
    if not implements(setter, RocksDBConfigSetter):
        raise ConfigError(
            f"rocksdb.config.setter: {value!r} is not a RocksDBConfigSetter, which has the methods set_config and close"
        )
    return setter


def store_options(store_name: str, config: StreamsConfig, setter: RocksDBConfigSetter | None) -> RocksDBOptions:
    """Return the options for opening one store."""
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


_log = logging.getLogger(__name__)
_UNLIMITED: Final = 1 << 60
"""Version 1 shows a very large number if there is no limit."""


def rocksdb_budget(config: StreamsConfig, root: Path = Path("/")) -> int:
    """Return how many bytes block cache and write buffers of a process may take together.

    `rocksdb.memory.max.bytes` takes precedence over `rocksdb.memory.fraction`; its default applies if there is no memory limit.

    Args:
        config: the application's.
        root: of the file system in which to look for control groups.
    """
    if config.rocksdb_memory_fraction is None or "rocksdb_memory_max_bytes" in config.model_fields_set:
        return config.rocksdb_memory_max_bytes
    return _fraction(config.rocksdb_memory_fraction, config.rocksdb_memory_max_bytes, root)


@cache
def _fraction(fraction: float, default: int, root: Path) -> int:
    limit = memory_limit(root)
    if limit is None:
        _log.warning(
            "rocksdb.memory.fraction=%s has no effect: the memory of this process is not limited. RocksDB takes %d bytes",
            fraction,
            default,
        )
        return default
    budget = max(1, int(limit * fraction))
    _log.info("RocksDB takes %d bytes of memory: %s of the limit of %d", budget, fraction, limit)
    return budget


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the memory limit of this process's control groups in bytes, or None."""
    limits = [limit for file in _limit_files(root) if (limit := _read(file)) is not None]
    return min(limits, default=None)


def _limit_files(root: Path) -> Iterator[Path]:
    mounted = root / "sys" / "fs" / "cgroup"
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            folder, name = mounted / "memory", "memory.limit_in_bytes"
        elif not controllers:
            folder, name = mounted, "memory.max"
        else:
            continue
        # In a container, its own group may be the root, while the path is the host's: then only the root exists.
        group = Path(path.lstrip("/"))
        yield from (folder / part / name for part in (group, *group.parents))


def _read(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None
