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
from millrace.engine.task import StreamTask
from millrace.processor.node import NodeContext, ProcessFn
from millrace.records import NO_HEADERS, ConsumedRecord, Headers, TaskId, TopicPartition
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.state.cache import RecordCache
from millrace.topology import Topology

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


def node(make: Callable[[NodeContext, ProcessFn], ProcessFn]) -> Callable[[NodeContext], ProcessFn]:
    return lambda context: make(context, context.forward)


def filter_node(_context: NodeContext, forward: ProcessFn) -> ProcessFn:
    def run(key: Any, value: Any, ts: int, headers: Headers) -> None:
        if len(value) > 2:
            forward(key, value, ts, headers)

    return run


def upper_node(context: NodeContext, forward: ProcessFn) -> ProcessFn:
    fail = context.processing_failed

    def run(key: Any, value: Any, ts: int, headers: Headers) -> None:
        try:
            new = value.upper()
        except Exception as error:
            fail(error, key, value, ts, headers)
            return
        forward(key, new, ts, headers)

    return run


def count_node(context: NodeContext, forward: ProcessFn) -> ProcessFn:
    store = context.state_store("counts")
    record, get, put = context.record, store.get, store.put

    def run(key: Any, _value: Any, ts: int, headers: Headers) -> None:
        record.timestamp = ts
        record.headers = headers
        count = (get(key) or 0) + 1
        put(key, count)
        forward(key, count, ts, headers)

    return run


def stateless() -> Topology:
    topology = Topology().add_source("src", "in")
    return _nodes(topology, [("f", filter_node), ("u", upper_node)], "src").add_sink("snk", "out", "u")


def count(*, persistent: bool, cached: bool) -> Topology:
    supplier = Stores.persistent_key_value_store("counts") if persistent else Stores.in_memory_key_value_store("counts")
    store = Stores.key_value_store_builder(supplier, S, L)
    if cached:
        store = store.with_caching_enabled()
    topology = _nodes(Topology().add_source("src", "in"), [("c", count_node)], "src")
    return topology.add_state_store(store, "c").add_sink("snk", "out", "c", value_serde=L)


def _nodes(topology: Topology, nodes: list[tuple[str, Any]], parent: str) -> Topology:
    for name, make in nodes:
        topology._builder.add_processor(name, node(make), [parent])  # noqa: SLF001
        parent = name
    return topology


def records(number: int) -> list[ConsumedRecord]:
    keys = [f"key-{i}".encode() for i in range(KEYS)]
    return [
        ConsumedRecord("in", 0, i, i, keys[(i * 7919) % KEYS], b"some words to count", NO_HEADERS)
        for i in range(number)
    ]


def engine(topology: Topology, batches: list[list[ConsumedRecord]]) -> float:
    config = StreamsConfig.of(CONFIG)
    with tempfile.TemporaryDirectory() as directory:
        task = StreamTask(
            TaskId(0, 0),
            topology.build(config).subtopologies[0],
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
    rows: list[tuple[str, Callable[[], Topology], str]] = [
        ("filter → map_values → sink", stateless, "stateless"),
        ("count, in memory", lambda: count(persistent=False, cached=False), "count"),
        ("count, in memory, cached", lambda: count(persistent=False, cached=True), "count"),
        ("count, RocksDB", lambda: count(persistent=True, cached=False), "count"),
        ("count, RocksDB, cached", lambda: count(persistent=True, cached=True), "count"),
    ]
    print(f"{'topology':30} {'engine µs':>10} {'by hand µs':>11} {'ratio':>6}")
    for name, make, baseline in rows:
        spent = best(lambda make=make: engine(make(), batches), options.repeat)  # type: ignore[misc]
        hand = by_hand[baseline]
        per = 1e6 / options.records
        print(f"{name:30} {spent * per:10.2f} {hand * per:11.2f} {spent / hand:6.2f}")


if __name__ == "__main__":
    main()
