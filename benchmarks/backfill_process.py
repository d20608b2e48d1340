"""One process of the benchmark of backfills: a Spark session with its executor and workers, or an instance of the live engine.

It prints one line of JSON: wall-clock and CPU seconds from the moment at which it was ready to begin. CPU is that of the process
and of all that it has started: Spark's JVM, and the Python workers.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from benchmarks.process_tree import cpu_seconds
from benchmarks.programs import OUTPUTS, Build, Names
from benchmarks.topics import PARTITIONS, Digest
from tests.waiting import wait_until

from millrace.backfill.collector import Outputs
from millrace.backfill.kafka_history import KafkaHistory, freeze
from millrace.backfill.run import BackfillSpec, run_backfill
from millrace.cli.backfill import start_session
from millrace.config import StreamsConfig
from millrace.instance import KafkaStreams
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import open_admin
from millrace.records import TopicPartition

_TIMEOUT_S = 3600.0
_TRANSACTION_RECORDS = 100_000_000


def main(arguments: list[str]) -> None:
    """Run what the JSON on the command line says."""
    wanted: dict[str, Any] = json.loads(arguments[0])
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    names, application = Names(wanted["source"]), wanted["application"]
    build = Build(wanted["program"], names, application)
    settings = {
        "application.id": application,
        "bootstrap.servers": wanted["servers"],
        "state.dir": str(Path(wanted["directory"]) / application),
    }
    if wanted["what"] == "live":
        report = live(build, settings, wanted["processed"])
    else:
        run = {"backfill": backfill, "parts": in_parts, "spark": group_by_count}[wanted["what"]]
        report = in_spark(
            wanted["cores"], lambda spark: run(spark, build, settings), only_kafka=run is not group_by_count
        )
    print(json.dumps(report), flush=True)


def in_spark(cores: int, run: Callable[[Any], dict[str, Any]], *, only_kafka: bool) -> dict[str, Any]:
    """Run something in a Spark with this many cores, started before; for `only_kafka` see `start_session`."""
    spark = start_session(f"local[{cores}]", "benchmark", only_kafka=only_kafka)
    spark.range(1).mapInArrow(_echo, "id bigint").collect()
    seconds = measured()
    report = run(spark)
    report |= seconds()
    spark.stop()
    return report


def _echo(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def backfill(spark: Any, build: Build, settings: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Run a backfill as the command does."""
    given = {"outputs": Outputs(OUTPUTS[build.program]), "transaction_records": _TRANSACTION_RECORDS, **options}
    result = run_backfill(spark, BackfillSpec(build, settings, **given))
    return {"processed": result.processed, "dropped": result.dropped}


def in_parts(spark: Any, build: Build, settings: dict[str, Any]) -> dict[str, Any]:
    """Run a backfill whose outputs are too many for one transaction."""
    return backfill(spark, build, settings, transaction_records=1, attempt_of="benchmark")


def group_by_count(spark: Any, build: Build, settings: dict[str, Any]) -> dict[str, Any]:
    """Read the same records into Spark, and have Spark count their values."""
    config = StreamsConfig.of(settings)
    history = freeze(build().build(config).plan(), settings, open_admin(ClientSettings(config, "benchmark").admin()))
    frozen = _Read(history, build.names.source)
    numbers = spark.range(PARTITIONS).selectExpr("int(id) id").repartitionById(PARTITIONS, "id")
    rows = numbers.mapInArrow(frozen, "value binary")
    counts = rows.groupBy("value").count().toArrow()
    digest, processed = Digest(), 0
    for word, count in zip(counts.column("value").to_pylist(), counts.column("count").to_pylist(), strict=True):
        digest.add(word, count.to_bytes(8, "big"))
        processed += count
    return {"processed": processed, "digest": asdict(digest)}


class _Read:
    """Reads the partitions of which it is given the numbers."""

    def __init__(self, history: KafkaHistory, topic: str) -> None:
        self._history = history
        self._topic = topic

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                for records in self._history.read(TopicPartition(self._topic, number)):
                    values = [value for *_, value, _ in records]
                    yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"])


def live(build: Build, settings: dict[str, Any], processed: int) -> dict[str, Any]:
    """Run one instance, with one stream thread and default settings, until it has caught up."""
    seconds = measured()
    with closing(KafkaStreams(build(), settings)) as streams:
        streams.start()

        def counters() -> tuple[int, int]:
            tasks = [
                task
                for thread in streams.threads
                if thread.tasks is not None
                for task in list(thread.tasks.running.values())
            ]
            return sum(t.counters.records_processed for t in tasks), sum(t.counters.dropped_records for t in tasks)

        def check() -> None:
            if streams.error is not None:
                raise SystemExit(f"The instance has failed: {streams.error}")

        wait_until(
            lambda: counters()[0] >= processed,
            lambda: f"It has processed {counters()[0]} of {processed} records",
            _TIMEOUT_S,
            meanwhile=check,
            poll_s=0.2,
            error=SystemExit,
        )
        done = counters()
        streams.close(120, leave_group=True)
        check()
        return {"processed": done[0], "dropped": done[1], **seconds()}


def measured() -> Callable[[], dict[str, float]]:
    """Begin to measure; the function that is returned says how much time has passed since."""
    began, cpu_began = time.monotonic(), cpu_seconds()
    return lambda: {"seconds": time.monotonic() - began, "cpu_seconds": cpu_seconds() - cpu_began}


if __name__ == "__main__":
    main(sys.argv[1:])
