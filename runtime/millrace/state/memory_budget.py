"""How much memory RocksDB may take: a number of bytes, or a fraction of what the process may take at all.

In a container that is the limit of its control group (version 1 or 2), which Kubernetes sets from `resources.limits.memory`. A
process outside of containers may be limited as well, and in every group above its own, so the smallest limit counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from millrace.config import StreamsConfig

__all__ = ["memory_limit", "rocksdb_budget"]

_log = logging.getLogger(__name__)
_UNLIMITED: Final = 1 << 60
"""Version 1 writes no limit as the largest number of pages there is."""


def rocksdb_budget(config: StreamsConfig, root: Path = Path("/")) -> int:
    """Return how many bytes block cache and write buffers of a process may take together.

    `rocksdb.memory.max.bytes` goes before `rocksdb.memory.fraction`, and its default applies where no limit is set.

    Args:
        config: the application's.
        root: of the file system that the control groups are looked for in.
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
    """Return the memory limit of this process's control groups in bytes, None if there is none."""
    limits = [limit for file in _limit_files(root) if (limit := _read(file)) is not None]
    return min(limits, default=None)


def _limit_files(root: Path) -> Iterator[Path]:
    mounted = root / "sys" / "fs" / "cgroup"
    for controllers, path in _groups(root):
        if "memory" in controllers.split(","):
            folder, name = mounted / "memory", "memory.limit_in_bytes"
        elif not controllers:
            folder, name = mounted, "memory.max"
        else:
            continue
        # A container may see its own group as the root while the path is that of the host: then only the root is there.
        group = Path(path.lstrip("/"))
        yield from (folder / part / name for part in (group, *group.parents))


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        yield controllers, path


def _read(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None
