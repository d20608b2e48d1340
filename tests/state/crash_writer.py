"""Child of test_crash: changes RocksDB stores for ever, committing as it goes, until it is killed.

Which change a changelog offset stands for is computed, so the parent knows what each store must hold at any offset.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import NamedTuple

from millrace.config import StreamsConfig
from millrace.records import RecordContext, TaskId, TopicPartition
from millrace.serdes.primitives import LongSerde
from millrace.state import StoreContext, Stores
from millrace.state.suppliers import WindowSupplier

STORES = ("key-value", "window", "versioned")
KEYS = 97
MAX_ROWS_PER_COMMIT = 60
CHANGES_PER_MS = 4
SEGMENT_MS = 60
RETENTION_MS = 5 * SEGMENT_MS
LATENESS_MS = 2 * SEGMENT_MS


class Change(NamedTuple):
    """What one changelog record says: at that time the key gets the value, or is deleted (None)."""

    key: int
    value: int | None
    timestamp: int


def change(offset: int) -> Change:
    """Return the change of a changelog offset: keys at random, one in four a delete, some up to `LATENESS_MS` late.

    Deletes have odd timestamps: one at the very time of a key's latest version leaves no trace, in Java neither.
    """
    chance = (offset * 0x9E3779B97F4A7C15 + 0x7F4A7C15) & (2**64 - 1)
    chance ^= chance >> 29
    timestamp = offset // CHANGES_PER_MS - (chance >> 40) % LATENESS_MS * (chance % 3 == 0)
    value = None if (chance >> 20) % 4 == 0 else offset
    timestamp = max(timestamp, 0) & ~1 | (value is None)
    return Change((chance >> 8) % KEYS, value, timestamp)


def changelog(kind: str) -> TopicPartition:
    """Return the changelog partition of a store."""
    return TopicPartition(f"app-{kind}-changelog", 0)


def make_store(kind: str):
    """Return a store of this kind, which is also its name."""
    if kind == "key-value":
        return Stores.key_value_store_builder(Stores.persistent_key_value_store(kind), LongSerde(), LongSerde()).build()
    if kind == "versioned":
        versions = Stores.persistent_versioned_key_value_store(kind, RETENTION_MS, SEGMENT_MS)
        return Stores.versioned_key_value_store_builder(versions, LongSerde(), LongSerde()).build()
    supplier = WindowSupplier(kind, RETENTION_MS, 1, segment_interval_ms=SEGMENT_MS)
    return Stores.window_store_builder(supplier, LongSerde(), LongSerde()).build()


def apply(kind: str, store, made: Change) -> None:
    """Make one change."""
    if kind == "key-value":
        if made.value is None:
            store.delete(made.key)
        else:
            store.put(made.key, made.value)
    elif kind == "versioned" and made.value is None:
        store.delete(made.key, made.timestamp)
    else:
        store.put(made.key, made.value, made.timestamp)


def open_store(directory: Path, kind: str):
    """Open a store with write buffers so small that it flushes all the time."""
    store = make_store(kind)
    store.init(
        StoreContext(
            application_id="app",
            task_id=TaskId(0, 0),
            config=StreamsConfig.of(
                {
                    "application.id": "app",
                    "bootstrap.servers": "x:1",
                    "rocksdb.config.setter": SmallBuffers(),
                }
            ),
            state_dir=directory,
            record=RecordContext("in", 0, 0, 0),
            cache=None,
            changelog_topics={kind: changelog(kind).topic},
            send_change=lambda _: lambda *_: None,
            now_ms=lambda: 0,
        )
    )
    return store


class SmallBuffers:
    """Makes RocksDB flush after 64 KiB."""

    def set_config(self, store_name, options, config):
        """Set the size."""
        options.options.set_write_buffer_size(64 * 1024)

    def close(self, store_name, options):
        """Nothing was made that needs closing."""


def main(directory: Path, offset: int, seed: int) -> None:
    """Continue after an offset; print each offset before its commit (`+`) and after it (`-`)."""
    chance = random.Random(seed)
    stores = [(kind, open_store(directory, kind)) for kind in STORES]
    while True:
        for _ in range(chance.randint(1, MAX_ROWS_PER_COMMIT)):
            offset += 1
            made = change(offset)
            for kind, store in stores:
                apply(kind, store, made)
        print(f"+{offset}", flush=True)  # noqa: T201 (what the parent waits for)
        for kind, store in stores:
            store.commit({changelog(kind): offset})
        print(f"-{offset}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
