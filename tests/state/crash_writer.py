"""Child of test_crash: writes to a RocksDB store for ever, committing as it goes, until it is killed."""

from __future__ import annotations

import sys
from pathlib import Path

from millrace.config import StreamsConfig
from millrace.records import RecordContext, TaskId, TopicPartition
from millrace.serdes.primitives import LongSerde
from millrace.state import StoreContext, Stores

ROWS_PER_COMMIT = 50
KEYS = 997
CHANGELOG = TopicPartition("app-s-changelog", 0)


def row(offset: int) -> tuple[int, int]:
    """Return what changelog record `offset` says: any change can be computed, so the state at any offset can too."""
    return offset * 7919 % KEYS, offset


def open_store(directory: Path):
    """Open the store under test, with write buffers so small that flushes happen all the time."""
    builder = Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), LongSerde(), LongSerde())
    store = builder.build()
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
            changelog_topics={"s": "app-s-changelog"},
            send_change=lambda _: lambda *_: None,
            now_ms=lambda: 0,
        )
    )
    return store


class SmallBuffers:
    """Makes RocksDB flush after 64 KiB."""

    def set_config(self, store_name, options, config):
        options.options.set_write_buffer_size(64 * 1024)

    def close(self, store_name, options): ...


def main() -> None:
    """Continue behind the recorded offset, as a restored task would."""
    store = open_store(Path(sys.argv[1]))
    offset = store.committed_offset(CHANGELOG)
    offset = -1 if offset is None else offset
    print("ready", flush=True)
    while True:
        for _ in range(ROWS_PER_COMMIT):
            offset += 1
            store.put(*row(offset))
        store.commit({CHANGELOG: offset})
        print(offset, flush=True)


if __name__ == "__main__":
    main()
