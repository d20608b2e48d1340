"""How well a backlog is fetched: records per second, bytes fetched twice, stalls and memory, on a real broker.

    python benchmarks/fetching.py [--records 1000000] [--only spread,hot] [--repeat 3]

Each scenario is one application instance with one stream thread in a separate process. It does almost nothing with its records,
so that only fetching is measured:

* `spread`: one topic, its records evenly in four partitions. The others are compared with this one.
* `hot`: all records in one of four partitions.
* `in-step`: two inputs of one task, whose timestamps alternate.
* `ahead`: two inputs of one task, all records of one earlier than those of the other.
* `wide`: a hundred partitions, all records in one of them.
* `restore`: a changelog with four partitions, nearly all records in one of them; until the instance is RUNNING.
* `global`: the same as a global table.

*Fetched* is the number of bytes that the consumers received from the brokers (`statistics.interval.ms`), divided by the size of
the records' segments on the brokers' disk. A *stall* is the longest time without a record while some were left. It is counted in
samples of the instance, every 5 ms, so that pauses of the whole process on a busy machine hardly count.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millrace.dev.kafka import EmbeddedKafka
from millrace.dsl import Materialized, StreamsBuilder
from millrace.instance.kafka_streams import KafkaStreams
from millrace.instance.states import State
from millrace.kafka import clients
from millrace.state import Stores

START_MS = int(time.time() * 1000) - 3_600_000
"""Recent, so that the brokers do not delete the records because of their age."""
VALUE = b"the quick brown fox jumps over the lazy dog and then has to do so all over again, a hundred times"
KEYS = [f"key-{number:06}".encode() for number in range(50_000)]
PATIENCE_S = 120.0
SAMPLE_S = 0.005

Write = Callable[[int, int], tuple[int, int]]
"""(number of the record, total number of records) → (partition, ms after the start)."""


def spread(number: int, _total: int) -> tuple[int, int]:
    """Spread over four partitions."""
    return number % 4, number


def hot(number: int, _total: int) -> tuple[int, int]:
    """Put all in the third partition."""
    return 2, number


def nearly_all(number: int, _total: int) -> tuple[int, int]:
    """Put all but one in a thousand into one partition."""
    return (number // 1000 % 4 if number % 1000 == 0 else 2), number


def wide(number: int, _total: int) -> tuple[int, int]:
    """Put all in one of a hundred partitions."""
    return 42, number


def alone(number: int, _total: int) -> tuple[int, int]:
    """Write one partition."""
    return 0, number


def later(number: int, total: int) -> tuple[int, int]:
    """Write one partition, after what `alone` writes."""
    return 0, total + number


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, and the records written to it before the measurement."""

    name: str
    partitions: int
    write: Write | None
    share: float = 1.0
    """Which share of `--records`."""
    compact: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """Topics and the topology that reads them."""

    topics: tuple[Topic, ...]
    topology: Callable[[StreamsBuilder, Callable[..., None]], None]
    kind: str = "input"


@dataclass(slots=True)
class Figures:
    """The results of a measurement."""

    records: int
    wall_s: float
    cpu_s: float
    fetched_bytes: int
    stall_s: float
    peak_mib: float
    pauses: int


def read(*topics: str) -> Callable[[StreamsBuilder, Callable[..., None]], None]:
    """Read topics into one processor."""

    def build(builder: StreamsBuilder, see: Callable[..., None]) -> None:
        stream = builder.stream(topics[0])
        for topic in topics[1:]:
            stream = stream.merge(builder.stream(topic))
        stream.foreach(see)

    return build


def table(builder: StreamsBuilder, _see: Callable[..., None]) -> None:
    """Keep a table in memory, with a changelog."""
    builder.stream("restore-in").to_table(materialized=Materialized.as_(Stores.in_memory_key_value_store("table")))


def global_table(builder: StreamsBuilder, see: Callable[..., None]) -> None:
    """Keep a global table in memory."""
    store = Materialized.as_(Stores.in_memory_key_value_store("global"))
    builder.global_table("global", materialized=store)
    builder.stream("global-in").foreach(see)


SCENARIOS = {
    "spread": Scenario((Topic("spread", 4, spread),), read("spread")),
    "hot": Scenario((Topic("hot", 4, hot),), read("hot")),
    "in-step": Scenario(
        (Topic("in-step-a", 1, alone, 0.5), Topic("in-step-b", 1, alone, 0.5)), read("in-step-a", "in-step-b")
    ),
    "ahead": Scenario((Topic("ahead-a", 1, alone, 0.5), Topic("ahead-b", 1, later, 0.5)), read("ahead-a", "ahead-b")),
    "wide": Scenario((Topic("wide", 100, wide),), read("wide")),
    "restore": Scenario(
        (Topic("restore-in", 4, None), Topic("bench-restore-table-changelog", 4, nearly_all, compact=True)),
        table,
        "restore",
    ),
    "global": Scenario((Topic("global-in", 4, None), Topic("global", 4, nearly_all)), global_table, "global"),
}


# Before the measurement


def load(bootstrap_servers: str, scenario: Scenario, records: int) -> None:
    """Create a scenario's topics and write them."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for topic in scenario.topics:
        policy = {"cleanup.policy": "compact" if topic.compact else "delete"}
        for future in admin.create_topics([NewTopic(topic.name, topic.partitions, 1, config=policy)]).values():
            future.result(60)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 16_384,
            "queue.buffering.max.messages": 0,
        }
    )
    for topic in scenario.topics:
        if topic.write is None:
            continue
        total = int(records * topic.share)
        for number in range(total):
            partition, at_ms = topic.write(number, total)
            producer.produce(topic.name, VALUE, KEYS[number * 7919 % len(KEYS)], partition, timestamp=START_MS + at_ms)
            if number % 10_000 == 0:
                producer.poll(0)
        if producer.flush(PATIENCE_S):
            raise SystemExit(f"{topic.name} could not be written within {PATIENCE_S:.0f} s")


def bytes_on_disk(directory: Path, scenario: Scenario) -> int:
    """Return the size of the segments of a scenario's topics."""
    return sum(
        log.stat().st_size
        for topic in scenario.topics
        for number in range(topic.partitions)
        for log in directory.glob(f"**/{topic.name}-{number}/*.log")
    )


# The measurement, in a separate process


class CountingConsumer(clients._Consumer):
    """A consumer that counts the bytes it receives and how often it is paused."""

    opened: ClassVar[list[CountingConsumer]] = []

    def __init__(self, settings: dict[str, Any], **others: Any) -> None:
        self.received_bytes = self.pauses = self.consumed = 0
        self.client_id: str = settings["client.id"]
        counting = {"statistics.interval.ms": 100, "stats_cb": self.on_statistics}
        super().__init__({**settings, **counting}, **others)
        self.opened.append(self)

    def on_statistics(self, text: str) -> None:
        """Note how many bytes the brokers have sent."""
        brokers = json.loads(text)["brokers"].values()
        self.received_bytes = sum(broker["rxbytes"] for broker in brokers if broker["nodeid"] >= 0)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """As in the library."""
        messages = super().consume(num_messages, timeout)
        self.consumed += len(messages)
        return messages

    def pause(self, partitions: list[Any]) -> None:
        """As in the library."""
        self.pauses += len(partitions)
        super().pause(partitions)


class Watch:
    """Checks every few milliseconds how many records are done."""

    def __init__(self, done: Callable[[], int], total: int) -> None:
        self._done, self._total = done, total
        self.began = self.ended = self.stall_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        last, idle = 0, 0
        waited_since = time.monotonic()
        while last < self._total and time.monotonic() - waited_since < PATIENCE_S:
            time.sleep(SAMPLE_S)
            now, done = time.monotonic(), self._done()
            idle = idle + 1 if done == last else 0
            if last:
                self.stall_s = max(self.stall_s, idle * SAMPLE_S)
            elif done:
                self.began = now
            if done > last:
                last, waited_since, self.ended = done, now, now

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._thread.join()


def measure(name: str, bootstrap_servers: str, records: int) -> Figures:
    """Run one scenario."""
    scenario = SCENARIOS[name]
    total = sum(int(records * topic.share) for topic in scenario.topics if topic.write is not None)
    clients._Consumer = CountingConsumer  # type: ignore[misc]
    builder = StreamsBuilder()
    scenario.topology(builder, lambda _key, _value: None)
    with tempfile.TemporaryDirectory() as directory:
        settings = {
            # A separate group, or a second run would have nothing to read; the changelog is named after the group.
            "application.id": f"bench-{name}" if scenario.kind == "restore" else f"bench-{name}-{uuid.uuid4()}",
            "bootstrap.servers": bootstrap_servers,
            "state.dir": directory,
            "default.key.serde": "string",
            "default.value.serde": "string",
        }
        streams = KafkaStreams(builder.build(settings), settings)
        with Watch(lambda: records_done(streams, scenario.kind), total) as watch:
            cpu = time.process_time()
            streams.start()
        cpu = time.process_time() - cpu
        if watch.ended == 0.0:
            raise SystemExit(
                f"{name}: no record within {PATIENCE_S:.0f} s: {streams.state.value} {streams.error or ''}"
            )
        while scenario.kind == "restore" and streams.state is not State.RUNNING:
            time.sleep(SAMPLE_S)
        time.sleep(0.5)  # for the last statistics
        figures = Figures(
            records_done(streams, scenario.kind),
            watch.ended - watch.began,
            cpu,
            sum(consumer.received_bytes for consumer in CountingConsumer.opened),
            watch.stall_s,
            peak_mib(),
            sum(consumer.pauses for consumer in CountingConsumer.opened),
        )
        streams.close(60)
    if figures.records < total:
        raise SystemExit(f"{name}: {figures.records} of {total} records in {PATIENCE_S:.0f} s without progress")
    return figures


def records_done(streams: KafkaStreams, kind: str) -> int:
    """Return how many records are processed, restored, or in the global table."""
    if kind == "global":
        return sum(consumer.consumed for consumer in CountingConsumer.opened if "global" in consumer.client_id)
    found = [thread.resources for thread in streams._pool.threads if thread.resources]
    if kind == "restore":
        return sum(resources.updater.restored_total for resources in found)
    return sum(thread.tasks.records_total for thread in streams._pool.threads if thread.tasks)


def peak_mib() -> float:
    """Return the peak memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


# The table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="How well a backlog is fetched: speed, bytes fetched twice, stalls.")
    parser.add_argument("--records", type=int, default=1_000_000, help="records per scenario (default: %(default)s)")
    parser.add_argument(
        "--only", default=",".join(SCENARIOS), help="scenarios to run, separated by commas (default: all)"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, help="runs per scenario; the fastest counts (default: %(default)s)"
    )
    parser.add_argument("--run", nargs=2, metavar=("SCENARIO", "BROKER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        logging.basicConfig(level=logging.ERROR)
        print(json.dumps(asdict(measure(*options.run, options.records))))
        return
    names = options.only.split(",")
    if unknown := set(names) - SCENARIOS.keys():
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    with EmbeddedKafka() as kafka:
        print(
            f"{'scenario':9} {'records/s':>10} {'of spread':>9} {'CPU µs':>7} {'fetched':>8} {'stall ms':>9} {'MiB':>5}"
            f" {'pauses':>7}"
        )
        base = 0.0
        for name in names:
            scenario = SCENARIOS[name]
            progress(f"{name}: writing {options.records:,} records")
            load(kafka.bootstrap_servers, scenario, options.records)
            size = bytes_on_disk(kafka.directory, scenario)
            runs = []
            for number in range(options.repeat):
                progress(f"{name}: run {number + 1} of {options.repeat}")
                runs.append(run(name, kafka.bootstrap_servers, options.records))
            best = min(runs, key=lambda figures: figures.wall_s)
            progress("")
            speed = best.records / best.wall_s
            base = speed if name == "spread" else base
            print(
                f"{name:9} {speed:10,.0f} {f'{speed / base:.0%}' if base else '':>9} {best.cpu_s / best.records * 1e6:7.1f} "
                f"{best.fetched_bytes / size:8.2f} {best.stall_s * 1000:9.0f} {best.peak_mib:5.0f} {best.pauses:7}",
                flush=True,
            )


def run(name: str, bootstrap_servers: str, records: int) -> Figures:
    """Run one scenario in a separate process."""
    command = [sys.executable, __file__, "--records", str(records), "--run", name, bootstrap_servers]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed")
    return Figures(**json.loads(done.stdout.splitlines()[-1]))


def progress(text: str) -> None:
    """Show progress if there is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
