"""The store keeper of `java/StoreKeeper.java` in Python: the same stores, commands, reads, output and way to end."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any

from millrace.instance.kafka_streams import KafkaStreams
from millrace.processor import Processor, ProcessorContext
from millrace.records import Headers, Record, TopicPartition, ValueAndTimestamp, Window, Windowed
from millrace.serdes import Serdes
from millrace.state import Stores, ValueTimestampHeaders
from millrace.state.versioned import VersionedRecord
from millrace.topology import Topology

RETENTION_MS = 120_000
WINDOW_MS = 10_000
HISTORY_MS = 60_000
KEYS = ["a", "aa", "ab", "b", "ba", "c"]
VERSIONS_ASKED = 40
S = Serdes.string()


def store_builders() -> list[Any]:
    """Return the builders of all stores."""
    timestamped_windows = [
        Stores.persistent_timestamped_window_store("window-timestamped", RETENTION_MS, WINDOW_MS),
        Stores.persistent_time_ordered_window_store("window-ordered", RETENTION_MS, WINDOW_MS),
        Stores.persistent_time_ordered_window_store("window-ordered-index", RETENTION_MS, WINDOW_MS, has_index=True),
    ]
    windows_with_headers = [
        Stores.persistent_timestamped_window_store_with_headers("window-headers", RETENTION_MS, WINDOW_MS),
        Stores.persistent_time_ordered_window_store(
            "window-ordered-headers", RETENTION_MS, WINDOW_MS, with_headers=True
        ),
    ]
    sessions = [
        Stores.persistent_session_store("session", RETENTION_MS),
        Stores.persistent_session_store_with_headers("session-headers", RETENTION_MS),
        Stores.persistent_time_ordered_session_store("session-ordered", RETENTION_MS),
        Stores.persistent_time_ordered_session_store("session-ordered-headers", RETENTION_MS, with_headers=True),
    ]
    return [
        Stores.key_value_store_builder(Stores.persistent_key_value_store("kv"), S, S),
        Stores.timestamped_key_value_store_builder(
            Stores.persistent_timestamped_key_value_store("kv-timestamped"), S, S
        ),
        Stores.timestamped_key_value_store_with_headers_builder(
            Stores.persistent_timestamped_key_value_store_with_headers("kv-headers"), S, S
        ),
        Stores.window_store_builder(Stores.persistent_window_store("window", RETENTION_MS, WINDOW_MS), S, S),
        Stores.window_store_builder(
            Stores.persistent_window_store("window-duplicates", RETENTION_MS, WINDOW_MS, True), S, S
        ),
        *(Stores.timestamped_window_store_builder(supplier, S, S) for supplier in timestamped_windows),
        *(Stores.timestamped_window_store_with_headers_builder(supplier, S, S) for supplier in windows_with_headers),
        *(Stores.session_store_builder(supplier, S, S) for supplier in sessions),
        Stores.versioned_key_value_store_builder(
            Stores.persistent_versioned_key_value_store("versioned", HISTORY_MS), S, S
        ),
    ]


def value_of(name: str, text: str, record: Record[str, str]) -> Any:
    """Return the value that a store keeps for a text."""
    if name.startswith("session"):
        return text
    if name.endswith("headers"):
        return ValueTimestampHeaders(text, record.timestamp, record.headers)
    if name.endswith("timestamped") or name.startswith("window-ordered"):
        return ValueAndTimestamp(text, record.timestamp)
    return text


def shown(value: Any) -> Any:
    """Return a value in the format of Java's program."""
    match value:
        case ValueAndTimestamp():
            return list(value)
        case ValueTimestampHeaders(text, timestamp, headers):
            return [text, timestamp, shown(headers)]
        case VersionedRecord(text, timestamp, valid_to):
            return [text, timestamp, -1 if valid_to is None else valid_to]
        case Headers():
            return [[name, "<null>" if data is None else data.decode()] for name, data in value]
        case _:
            return value


def rows(found: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Return what an iterator yields."""
    return [
        [key.key, key.window.start, key.window.end, shown(value)] if isinstance(key, Windowed) else [key, shown(value)]
        for key, value in found
    ]


def per_key(read: Callable[[str], Any]) -> list[Any]:
    """Return what a read returns for each key."""
    return [read(key) for key in KEYS]


class Keeper(Processor[str, str, None, None]):
    """Changes and dumps the stores."""

    def __init__(self, kinds: dict[str, str], epoch: int) -> None:
        self.kinds = kinds
        self.epoch = epoch

    def init(self, context: ProcessorContext[None, None]) -> None:
        """Print a result."""
        super().init(context)
        self.dump_all("start")

    def process(self, record: Record[str, str]) -> None:
        """Execute a command."""
        command = json.loads(record.value)
        if command[0] == "dump":
            self.dump_all(command[1])
        else:
            self.change(record.key, command, record)

    def change(self, name: str, command: list[Any], record: Record[str, str]) -> None:
        """Change one store."""
        store, kind = self.context.get_state_store(name), self.kinds[name]
        operation, key, text, *times = [*command, *[None] * (3 - len(command))]
        value = None if text is None else value_of(name, text, record)
        match kind, operation:
            case "key-value" | "versioned", "delete":
                store.delete(key, *times)
            case "key-value", "putIfAbsent":
                store.put_if_absent(key, value)
            case "key-value", "append":
                before = store.get(key)
                whole = text if before is None else (before if isinstance(before, str) else before.value) + text
                store.put(key, value_of(name, whole, record))
            case "session", _:
                store.put(Windowed(key, Window(*times)), value)
            case _:
                store.put(key, value, *times)

    def dump_all(self, label: str) -> None:
        """Print the results of the reads of every store."""
        for name, kind in self.kinds.items():
            reads = {"label": label, "store": name}
            store = self.context.get_state_store(name)
            if kind == "key-value":
                self.dump_pairs(reads, store)
            elif kind == "window":
                self.dump_windows(reads, store)
            elif kind == "session":
                self.dump_sessions(reads, store, name)
            else:
                self.dump_versions(reads, store)
            say("READ " + json.dumps(reads))
        say("DUMPED " + label)

    def dump_pairs(self, reads: dict[str, Any], store: Any) -> None:
        """Read a key-value store in every way."""
        reads["get"] = per_key(lambda key: shown(store.get(key)))
        reads["all"] = rows(store.all())
        reads["reverseAll"] = rows(store.reverse_all())
        reads["range"] = rows(store.range("aa", "b"))
        reads["range to"] = rows(store.range(None, "ab"))
        reads["range from"] = rows(store.range("ab", None))
        reads["reverseRange"] = rows(store.reverse_range("aa", "b"))
        reads["prefixScan"] = rows(store.prefix_scan("a", S))

    def ranges(self) -> list[tuple[int, int, str]]:
        """Return the requested times."""
        epoch = self.epoch
        pairs = [(0, epoch + 1_000_000_000), (epoch + 60_000, epoch + 130_000), (epoch + 150_000, epoch + 260_000)]
        return [(start, end, f" {start - epoch}..{end - epoch}") for start, end in pairs]

    def dump_windows(self, reads: dict[str, Any], store: Any) -> None:
        """Read a window store in every way."""
        reads["all"] = rows(store.all())
        reads["backwardAll"] = rows(store.backward_all())
        for start, end, suffix in self.ranges():
            between = start, end
            reads["fetchAll" + suffix] = rows(store.fetch_all(*between))
            reads["backwardFetchAll" + suffix] = rows(store.backward_fetch_all(*between))
            reads["fetch key" + suffix] = [rows(store.fetch(key, *between)) for key in KEYS]
            reads["backwardFetch key" + suffix] = [rows(store.backward_fetch(key, *between)) for key in KEYS]
            reads["fetch keys" + suffix] = rows(store.fetch_keys("a", "b", *between))
            reads["fetch keys to" + suffix] = rows(store.fetch_keys(None, "aa", *between))
            reads["backwardFetch keys" + suffix] = rows(store.backward_fetch_keys("aa", None, *between))
            reads["fetch one" + suffix] = [shown(store.fetch(key, start)) for key in KEYS]

    def dump_sessions(self, reads: dict[str, Any], store: Any, name: str) -> None:
        """Read a session store in every way."""
        reads["fetch key"] = per_key(lambda key: rows(store.fetch(key)))
        reads["backwardFetch key"] = per_key(lambda key: rows(store.backward_fetch(key)))
        reads["fetch keys"] = rows(store.fetch_keys("a", "b"))
        reads["backwardFetch keys"] = rows(store.backward_fetch_keys("aa", None))
        for start, end, suffix in self.ranges():
            between = start, end
            reads["findSessions" + suffix] = [rows(store.find_sessions(key, *between)) for key in KEYS]
            reads["findSessions keys" + suffix] = rows(store.find_sessions_of_keys("a", "b", *between))
            reads["backwardFindSessions" + suffix] = [rows(store.backward_find_sessions(key, *between)) for key in KEYS]
            reads["fetchSession" + suffix] = [shown(store.fetch_session(key, start, start)) for key in KEYS]
            if name.startswith("session-ordered"):
                reads["findSessions ended" + suffix] = rows(store.find_sessions_ended(*between))

    def dump_versions(self, reads: dict[str, Any], store: Any) -> None:
        """Read a versioned store as of many times."""
        reads["get"] = per_key(lambda key: shown(store.get(key)))
        for step in range(VERSIONS_ASKED):
            as_of = self.epoch + step * 10_000
            reads[f"get {step * 10_000}"] = [shown(store.get(key, as_of)) for key in KEYS]


class Restores:
    """Prints the progress of restoration."""

    def on_restore_start(self, partition: TopicPartition, store: str, start_offset: int, end_offset: int) -> None:
        """Print where it starts and will end."""
        say(f"RESTORE {store} {start_offset} {end_offset}")

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end_offset: int, restored: int) -> None:
        """Nothing to print."""

    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        """Print how many records were restored."""
        say(f"RESTORED {store} {total_restored}")

    def on_restore_suspended(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        """Nothing to print."""


class SmallBuffers:
    """Makes RocksDB flush to disk all the time."""

    def set_config(self, store_name: str, options: Any, config: Any) -> None:
        """Set the size."""
        options.options.set_write_buffer_size(4 * 1024)

    def close(self, store_name: str, options: Any) -> None:
        """Nothing needs closing."""


def say(text: str) -> None:
    """Print one line of the protocol with the test, in one write, since several threads print."""
    print(text + "\n", end="", flush=True)  # noqa: T201


def main(arguments: list[str]) -> int:
    """Run until standard input ends."""
    settings: dict[str, Any] = dict(argument.split("=", 1) for argument in arguments)
    source, epoch = settings.pop("input"), int(settings.pop("epoch"))
    if settings.pop("small.buffers", None):
        settings["rocksdb.config.setter"] = SmallBuffers()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)

    builders = store_builders()
    kinds = {builder.name: builder.kind for builder in builders}
    topology = Topology().add_source("source", source, key_serde=S, value_serde=S)
    topology.add_processor("keeper", lambda: Keeper(kinds, epoch), "source")
    for builder in builders:
        topology.add_state_store(builder, "keeper")

    streams = KafkaStreams(topology, settings)
    streams.set_state_listener(lambda now, _: say(now.value))
    streams.set_restore_listener(Restores())
    streams.start()
    for thread in streams.metadata_for_local_threads():
        say(f"THREAD {thread.thread_name}")
    sys.stdin.read()
    closed = streams.close(60, leave_group=True)
    say("CLOSED" if closed else "NOT CLOSED IN TIME")
    return 0 if closed and streams.error is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
