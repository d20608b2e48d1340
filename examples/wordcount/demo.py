"""The demo: count the words of Python's standard library with two exactly-once replicas, and check every count.

The input is the source code of the running interpreter's standard library: hundreds of thousands of lines that every machine has.
The demo is done when a consumer that only sees committed records has found all words counted. Then each count is compared with
a `collections.Counter` over the same text. It prints `counts agree` and exits with 0, or shows the differences and exits with 1.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from confluent_kafka import Consumer, Producer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from millrace.dev.local_host import HostOptions, LocalHost
from millrace.errors import StreamsError
from millrace.serdes import Serdes

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from wordcount import words  # noqa: E402 (the example's own folder comes first)

PARTITIONS = 4
PATIENCE_S = 90.0
"""How long to wait for the next count before giving up."""
QUIET_S = 2.0
"""How long to keep listening once everything is counted: a word counted twice would arrive."""
_REPORT_EVERY_S = 5.0

console = Console(highlight=False, soft_wrap=True)


def source_lines() -> Iterator[str]:
    """Yield every line of the standard library's sources, without installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not {"site-packages", "dist-packages"} & set(path.relative_to(root).parts):
            yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


class Bar:
    """A progress bar, or a line every few seconds if there is no terminal."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total, self._reported_at = title, total, time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task(title, total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._progress.stop()

    def show(self, done: int) -> None:
        """Show how much is done."""
        self._progress.update(self._task, completed=done)
        if not console.is_terminal and time.monotonic() - self._reported_at >= _REPORT_EVERY_S:
            self._reported_at = time.monotonic()
            console.print(f"{self._title}: {done:,} of {self._total:,}")


def load(bootstrap_servers: str, topic: str) -> tuple[int, Counter[str]]:
    """Write all lines to a topic, spread over its partitions; return the number of lines and the count of each word."""
    lines = list(source_lines())
    expected: Counter[str] = Counter()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
            "enable.idempotence": True,
            "log_level": 2,
        }
    )
    failed: list[str] = []
    with Bar("Loading lines", len(lines)) as bar:
        for number, line in enumerate(lines):
            expected.update(words(line))
            while True:
                try:
                    producer.produce(topic, line.encode(), partition=number % PARTITIONS)
                except BufferError:
                    producer.poll(0.1)
                else:
                    break
            if number % 5_000 == 0:
                producer.poll(0)
                bar.show(number)
        if producer.flush(60):
            failed.append("not all lines could be written within 60 s")
        bar.show(len(lines))
    if failed:
        raise StreamsError(f"Loading the input failed: {failed[0]}")
    return len(lines), expected


def follow(host: LocalHost, topic: str, total: int) -> dict[str, int]:
    """Read the counts until all words are counted and nothing more arrives; return the final count of each word.

    Args:
        host: Keeps the replicas running meanwhile.
        topic: The topic with the counts.
        total: The number of words in the input.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": host.bootstrap_servers,
            "group.id": f"demo-{uuid.uuid4()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 2,
        }
    )
    consumer.subscribe([topic])
    key_serde, value_serde = Serdes.string(), Serdes.long()
    counts: dict[str, int] = {}
    done, last_arrival = 0, time.monotonic()
    try:
        with Bar("Counting words", total) as bar:
            while time.monotonic() - last_arrival < (PATIENCE_S if done < total else QUIET_S):
                host.poll()
                messages = consumer.consume(10_000, timeout=0.2)
                for message in messages:
                    if message.error():
                        raise StreamsError(f"Reading {topic} failed: {message.error().str()}")
                    word = key_serde.deserialize(topic, message.key())
                    count = value_serde.deserialize(topic, message.value())
                    done += count - counts.get(word, 0)
                    counts[word] = count
                if messages:
                    last_arrival = time.monotonic()
                bar.show(done)
    finally:
        consumer.close()
    return counts


def compare(counts: dict[str, int], expected: Counter[str]) -> int:
    """Print the most frequent words, compare all counts, and return the exit code."""
    table = Table("word", "count", "plain count", title="The twenty most frequent words")
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:20]:
        table.add_row(word, f"{count:,}", f"{expected[word]:,}")
    console.print(table)
    differences = sorted(word for word in expected | counts if counts.get(word, 0) != expected.get(word, 0))
    if differences:
        for word in differences[:20]:
            console.print(f"{word}: {counts.get(word, 0):,} counted, {expected.get(word, 0):,} expected", markup=False)
        console.print(f"counts differ for {len(differences):,} of {len(expected):,} words", style="bold red")
        return 1
    console.print(f"{len(expected):,} different words, {expected.total():,} in total")
    console.print("counts agree", style="bold green")
    return 0


def main() -> int:
    """Run the demo and return the exit code."""
    directory = Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    options = HostOptions(HERE / "streamsapp.yaml", directory=directory, topics={"lines": PARTITIONS})
    began = time.monotonic()
    try:
        with LocalHost(options, report=console.print) as host:
            topics = host.app.spec.app.config
            host.ask_for_plan()
            host.start_kafka()
            host.provide_topics()
            lines, expected = load(host.bootstrap_servers, topics["input"])
            counting = time.monotonic()
            host.start_replicas()
            counts = follow(host, topics["output"], expected.total())
            took = time.monotonic() - counting - QUIET_S
            console.print(
                f"{lines:,} lines with {expected.total():,} words counted exactly once by {len(host.replicas)} replicas in "
                f"{took:.1f} s: {lines / took:,.0f} lines/s, {expected.total() / took:,.0f} words/s, start-up included"
            )
    except KeyboardInterrupt:
        shutil.rmtree(directory, ignore_errors=True)
        return 130
    except StreamsError as error:
        console.print(f"Error: {error}", style="bold red", markup=False)
        console.print(f"The logs are in {directory}", markup=False)
        return 1
    code = compare(counts, expected)
    console.print(f"Took {time.monotonic() - began:.0f} s in total")
    if code == 0:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        console.print(f"The logs are in {directory}", markup=False)
    return code


if __name__ == "__main__":
    sys.exit(main())
