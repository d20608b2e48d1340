"""CPU time per record of the engine, beside a hand-written loop that does the same work.

    python benchmarks/engine.py [--records 200000] [--repeat 3]

Input and output are in memory, so that only the engine is measured: reading keys and values from bytes, nodes, stores, record
cache, changelog and serialisation. The hand-written loop is what a careful program without a framework would do: the same serdes,
a dict as the store, the same changelog record per change. The aim is a ratio of 2 or less.
"""
# ruff: noqa: D102, D103 (the table names what each function measures)

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.config import StreamsConfig
from millrace.dsl import Materialized, Produced, StreamsBuilder
from millrace.engine.task import StreamTask
from millrace.records import NO_HEADERS, ConsumedRecord, Headers, TaskId, TopicPartition
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.state.cache import RecordCache

S, L = Serdes.string(), Serdes.long()
INPUT = TopicPartition("in", 0)
CONFIG = {"application.id": "bench", "default.key.serde": "string", "default.value.serde": "string"}
BATCH = 1000
KEYS = 5000


class NullCollector:
    """Takes output and forgets it, but does count it."""

    def __init__(self) -> None:
        self.sent = 0

    def send(
        self, _topic: str, _key: bytes | None, _value: bytes | None, _ts: int | None, _headers: Headers, _p: int | None
    ) -> None:
        self.sent += 1

    def partition_count(self, _topic: str) -> int:
        return 1

    def change_sender(self, _partition: TopicPartition) -> Any:
        def log(_key: bytes, _value: bytes | None, _ts: int | None, _headers: Headers) -> None:
            self.sent += 1

        return log

    def flush(self) -> None:
        pass

    def changelog_offsets(self) -> dict[TopicPartition, int]:
        return {}


def stateless(builder: StreamsBuilder) -> None:
    builder.stream("in").filter(lambda _k, v: len(v) > 2).map_values(str.upper).to("out")


def count(store: Any) -> Callable[[StreamsBuilder], None]:
    def define(builder: StreamsBuilder) -> None:
        builder.stream("in").group_by_key().count(store).to_stream().to("out", Produced.with_(S, L))

    return define


def records(number: int) -> list[ConsumedRecord]:
    keys = [f"key-{i}".encode() for i in range(KEYS)]
    return [
        ConsumedRecord("in", 0, i, i, keys[(i * 7919) % KEYS], b"some words to count", NO_HEADERS)
        for i in range(number)
    ]


def engine(define: Callable[[StreamsBuilder], None], batches: list[list[ConsumedRecord]]) -> float:
    config = StreamsConfig.of(CONFIG)
    builder = StreamsBuilder()
    define(builder)
    with tempfile.TemporaryDirectory() as directory:
        task = StreamTask(
            TaskId(0, 0),
            builder.build(config).build(config).subtopologies[0],
            config,
            NullCollector(),
            state_dir=Path(directory),
            cache=RecordCache(10_485_760),
            clock=lambda: 0,
            input_partitions=frozenset({INPUT}),
        )
        task.open_stores()
        task.initialize()
        started = time.process_time()
        for batch in batches:
            task.add_records(INPUT, batch)
            task.process(0, len(batch))
        task.prepare_commit()
        task.post_commit({})
        spent = time.process_time() - started
        task.suspend()
        task.close_clean()
    return spent


def loop_stateless(batches: list[list[ConsumedRecord]]) -> float:
    collector = NullCollector()
    send, read, write = collector.send, S.deserialize, S.serialize
    started = time.process_time()
    for batch in batches:
        for topic, _, _, timestamp, raw_key, raw_value, headers in batch:
            key, value = read(topic, raw_key, headers), read(topic, raw_value, headers)
            if len(value) > 2:
                send("out", write("out", key, headers), write("out", value.upper(), headers), timestamp, headers, None)
    return time.process_time() - started


def loop_count(batches: list[list[ConsumedRecord]]) -> float:
    collector = NullCollector()
    send, log, read, write, write_long = (
        collector.send,
        collector.change_sender(INPUT),
        S.deserialize,
        S.serialize,
        L.serialize,
    )
    counts: dict[str, int] = {}
    started = time.process_time()
    for batch in batches:
        for topic, _, _, timestamp, raw_key, raw_value, headers in batch:
            key, _ = read(topic, raw_key, headers), read(topic, raw_value, headers)
            counts[key] = number = counts.get(key, 0) + 1
            key_bytes, number_bytes = write("out", key, headers), write_long("out", number, headers)
            log(key_bytes, number_bytes, timestamp, headers)
            send("out", key_bytes, number_bytes, timestamp, headers, None)
    return time.process_time() - started


def best(run: Callable[[], float], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        gc.collect()
        gc.disable()
        times.append(run())
        gc.enable()
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    everything = records(options.records)
    batches = [everything[i : i + BATCH] for i in range(0, len(everything), BATCH)]
    by_hand = {
        "stateless": best(lambda: loop_stateless(batches), options.repeat),
        "count": best(lambda: loop_count(batches), options.repeat),
    }
    in_memory = Stores.in_memory_key_value_store
    rows: list[tuple[str, Callable[[StreamsBuilder], None], str]] = [
        ("filter → map_values → sink", stateless, "stateless"),
        ("count, in memory", count(Materialized.as_(in_memory("c")).with_caching_disabled()), "count"),
        ("count, in memory, cached", count(Materialized.as_(in_memory("c"))), "count"),
        ("count, RocksDB", count(Materialized.as_("c").with_caching_disabled()), "count"),
        ("count, RocksDB, cached", count(Materialized.as_("c")), "count"),
    ]
    print(f"{'topology':30} {'engine µs':>10} {'by hand µs':>11} {'ratio':>6}")
    for name, define, baseline in rows:
        spent = best(lambda define=define: engine(define, batches), options.repeat)  # type: ignore[misc]
        hand = by_hand[baseline]
        per = 1e6 / options.records
        print(f"{name:30} {spent * per:10.2f} {hand * per:11.2f} {spent / hand:6.2f}")


if __name__ == "__main__":
    main()
