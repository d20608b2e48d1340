"""CPU time per record of the engine, compared with hand-written loops that do the same work.

    python benchmarks/engine.py [--records 200000] [--repeat 5] [--only TEXT]

Input and output are in memory; RocksDB is real. The benchmark measures everything in between: deserialising keys and values,
nodes, stores, record cache, changelog, serialisation, and a commit every 10 000 records. `by_hand.py` has the loops, and
describes the work they do. Engine and loop run alternately, and the fastest run of each counts. The goal is a ratio of 2 or less.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import by_hand
from by_hand import COMMIT, WINDOW_MS, Batches, MemoryRows, Output, RocksRows
from millrace.config import StreamsConfig
from millrace.dsl import Materialized, Produced, StreamsBuilder
from millrace.dsl.windows import TimeWindows
from millrace.engine.task import StreamTask
from millrace.records import NO_HEADERS, ConsumedRecord, TaskId, TopicPartition
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.state.cache import RecordCache

BATCH = 1_000
KEYS = 5_000
CONFIG = {"application.id": "bench", "default.key.serde": "string", "default.value.serde": "string"}
LONGS = Produced.with_(Serdes.string(), Serdes.long())
WINDOWED = Produced.with_(Serdes.time_windowed(Serdes.string(), WINDOW_MS), Serdes.long())


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    topology: Callable[[StreamsBuilder], Any]
    loop: Callable[..., Iterator[None]]
    rows: type[MemoryRows | RocksRows] | None = None


def stateless(builder: StreamsBuilder) -> None:
    """Filter and map."""
    builder.stream("in").filter(lambda _k, v: len(v) > 2).map_values(str.upper).to("out")


def count(store: Materialized[Any, Any]) -> Callable[[StreamsBuilder], None]:
    """Count per key."""
    return lambda builder: builder.stream("in").group_by_key().count(store).to_stream().to("out", LONGS)


def windowed_count(store: Materialized[Any, Any]) -> Callable[[StreamsBuilder], None]:
    """Count per key and minute."""
    windows = TimeWindows.of_size_with_no_grace(WINDOW_MS)
    return lambda builder: (
        builder.stream("in").group_by_key().windowed_by(windows).count(store).to_stream().to("out", WINDOWED)
    )


def join(builder: StreamsBuilder) -> None:
    """Join a stream with a table."""
    table = builder.table("table", materialized=Materialized.as_("t"))
    builder.stream("in").join(table, lambda left, right: left + right).to("out")


IN_MEMORY = Stores.in_memory_key_value_store("c")
ROWS = (
    Row("filter → map_values", stateless, by_hand.stateless),
    Row("count, memory", count(Materialized.as_(IN_MEMORY).with_caching_disabled()), by_hand.count, MemoryRows),
    Row("count, memory, cached", count(Materialized.as_(IN_MEMORY)), by_hand.count_cached, MemoryRows),
    Row("count, RocksDB", count(Materialized.as_("c").with_caching_disabled()), by_hand.count, RocksRows),
    Row("count, RocksDB, cached", count(Materialized.as_("c")), by_hand.count_cached, RocksRows),
    Row(
        "windowed count, RocksDB",
        windowed_count(Materialized.as_("c").with_caching_disabled()),
        by_hand.windowed_count,
        RocksRows,
    ),
    Row(
        "windowed count, RocksDB, cached",
        windowed_count(Materialized.as_("c")),
        by_hand.windowed_count_cached,
        RocksRows,
    ),
    Row("stream-table join, RocksDB, cached", join, by_hand.join, RocksRows),
)


def records(topic: str, number: int) -> list[ConsumedRecord]:
    """Return records over `KEYS` keys, a millisecond apart."""
    keys = [f"key-{i}".encode() for i in range(KEYS)]
    return [
        ConsumedRecord(topic, 0, i, i, keys[(i * 7919) % KEYS], b"some words to count", NO_HEADERS)
        for i in range(number)
    ]


def in_batches(everything: list[ConsumedRecord]) -> Batches:
    """Split records into batches, as polls would return them."""
    return [everything[i : i + BATCH] for i in range(0, len(everything), BATCH)]


def run_engine(row: Row, batches: Batches, output: Output) -> float:
    """Run a topology over all batches; return CPU seconds. Records of topic `table` come first and are not timed."""
    config = StreamsConfig.of(CONFIG)
    builder = StreamsBuilder()
    row.topology(builder)
    subtopology = builder.build(config).build(config).subtopologies[0]
    with tempfile.TemporaryDirectory() as directory:
        task = StreamTask(
            TaskId(0, 0),
            subtopology,
            config,
            output,
            state_dir=Path(directory),
            cache=RecordCache(10_485_760),
            clock=lambda: 0,
            input_partitions=frozenset(TopicPartition(topic, 0) for topic in subtopology.source_topics),
        )
        task.open_stores()
        task.initialize()
        for partition in task.input_partitions:
            task.set_lag(partition, 0)
        started = time.process_time()
        uncommitted = 0
        for batch in batches:
            partition = TopicPartition(batch[0].topic, 0)
            task.add_records(partition, batch)
            task.process(0, len(batch))
            uncommitted += len(batch)
            if uncommitted >= COMMIT:
                commit(task, output)
                uncommitted = 0
            if partition.topic == "table":
                started = time.process_time()
        commit(task, output)
        spent = time.process_time() - started
        task.suspend()
        task.close_clean()
    return spent


def commit(task: StreamTask, output: Output) -> None:
    """Commit as a stream thread does."""
    task.prepare_commit()
    output.flush()
    task.post_commit(output.changelog_offsets())


def run_loop(row: Row, batches: Batches, output: Output) -> float:
    """Run the loop over all batches; return CPU seconds."""
    if row.rows is None:
        return by_hand.timed(row.loop(batches, output))
    with tempfile.TemporaryDirectory() as directory:
        store = MemoryRows() if row.rows is MemoryRows else RocksRows(Path(directory))
        spent = by_hand.timed(row.loop(batches, output, store))
        store.close()
    return spent


def fastest(row: Row, batches: Batches, repeat: int) -> tuple[float, float]:
    """Return the CPU seconds of the fastest runs of engine and loop."""
    engine, loop = [], []
    for _ in range(repeat):
        gc.collect()
        gc.disable()
        sent, sent_by_hand = Output(), Output()
        engine.append(run_engine(row, batches, sent))
        loop.append(run_loop(row, batches, sent_by_hand))
        gc.enable()
        if sent.sent != sent_by_hand.sent:
            raise SystemExit(f"{row.name}: the engine sent {sent.sent} records, the loop {sent_by_hand.sent}")
    return min(engine), min(loop)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="CPU time per record of the engine, compared with hand-written loops.")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="measure the rows whose name contains this")
    options = parser.parse_args()
    stream, table = in_batches(records("in", options.records)), in_batches(records("table", KEYS))
    per_record = 1e6 / options.records
    print(f"{'topology':36} {'engine µs':>10} {'by hand µs':>11} {'ratio':>6}")
    for row in ROWS:
        if options.only in row.name:
            batches = table + stream if row.topology is join else stream
            engine, loop = fastest(row, batches, options.repeat)
            print(f"{row.name:36} {engine * per_record:10.2f} {loop * per_record:11.2f} {engine / loop:6.2f}")


if __name__ == "__main__":
    main()
