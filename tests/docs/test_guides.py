"""The pages for users of other libraries: both programs of every pair write the same, on real brokers."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from benchmarks.environments import environment, own_variables
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.docs.test_pages import BROKER, blocks, run
from tests.java_programs import compiled_java, run_java
from tests.reading import read_to_end
from tests.waiting import wait_until

from millrace import KafkaStreams
from millrace.dev.jars import Bundle, resolve
from millrace.dev.java import find_java, join_class_path

START_MS = 1_700_000_040_000
"""The beginning of a minute."""
PARTITIONS = 2
Written = Mapping[tuple[str, int, bytes], Sequence[bytes]]
"""The values of every topic, partition and key, in their order."""


class Input(NamedTuple):
    """A record to be written."""

    topic: str
    key: str
    value: str
    second: int = 0


class Step(NamedTuple):
    """Records to be written together, and how many of each output there are when all of them are processed."""

    records: Sequence[Input]
    outputs: Mapping[str, int]


Running = Callable[[str], AbstractContextManager[Callable[[], str]]]
"""Runs a program on a broker, and gives a function that tells of its state."""


def written(kafka: Any, running: Running, steps: Sequence[Step], *internal_topics: str) -> Written:
    """Return what a program has written when it has done all steps and has ended.

    Args:
        kafka: The broker.
        running: Runs the program.
        steps: What it does.
        internal_topics: Those that the program does not wait for, having created them.
    """
    outputs = [TopicPartition(topic, number, 0) for topic in steps[-1].outputs for number in range(PARTITIONS)]
    inputs = {record.topic for step in steps for record in step.records}
    kafka.create_topics(*inputs, *steps[-1].outputs, *internal_topics, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random"})
    reading = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reading", "enable.partition.eof": True}
    consumer = Consumer({**reading, "auto.offset.reset": "earliest"})

    def write(step: Step) -> None:
        for topic, key, value, second in step.records:
            producer.produce(topic, value.encode(), key.encode(), timestamp=START_MS + second * 1000)
        producer.flush()

    def counts() -> Counter[str]:
        found = Counter[str]()
        for partition in outputs:
            found[partition.topic] += consumer.get_watermark_offsets(partition, 10)[1]
        return found

    def wait_for(expected: Mapping[str, int], state: Callable[[], str]) -> None:
        wait_until(
            lambda: Counter(expected) <= counts(),
            lambda: f"{expected}, not {counts()}; {state()}",
            poll_s=0.1,
        )

    write(steps[0])
    with running(kafka.bootstrap_servers) as state:
        wait_for(steps[0].outputs, state)
        for step in steps[1:]:
            write(step)
            wait_for(step.outputs, state)
    found: dict[tuple[str, int, bytes], list[bytes]] = defaultdict(list)
    for message in read_to_end(consumer, kafka.admin(), outputs, 30):
        found[message.topic(), message.partition(), message.key()].append(message.value())
    consumer.close()
    return found


def millrace(page: str, directory: Path, **settings: str) -> Running:
    """Return what runs a page's program with Millrace, which writes every change of a table, as others do."""

    @contextmanager
    def running(broker: str) -> Iterator[Callable[[], str]]:
        given = {
            "application.id": "millrace",
            "bootstrap.servers": broker,
            "state.dir": str(directory / "millrace"),
            "statestore.cache.max.bytes": 0,
        }
        streams = KafkaStreams(run(page, broker)["builder"].build(), given | settings)
        streams.start()
        try:
            yield lambda: streams.state.name
        finally:
            assert streams.close(30)

    return running


def other(page: str, title: str, command: Sequence[str | Path], directory: Path, end: str = "") -> Running:
    """Return what runs a page's program for another library, until it is told to end.

    Args:
        page: the page.
        title: of its blocks for the library.
        command: runs `other.py` in the directory.
        directory: for the program, its state and its log.
        end: the program's last line, if it is not on the page.
    """

    def running(broker: str) -> AbstractContextManager[Callable[[], str]]:
        (directory / "other.py").write_text("\n".join([*blocks(page, "python", title), end]).replace(BROKER, broker))
        return until_terminated(command, directory)

    return running


def java(page: str, directory: Path) -> Running:
    """Return what runs a page's Java."""

    def running(broker: str) -> AbstractContextManager[Callable[[], str]]:
        options = [f"-Djava.io.tmpdir={directory}", f"-Dbroker={broker}"]
        command = [find_java().executable, *options, "-cp", class_path(page, directory), "Page", "run"]
        return until_terminated(command, directory, 143)

    return running


def class_path(page: str, directory: Path) -> str:
    """Compile a page's Java: topologies, a test of the last one, and a program that runs it on the broker of a property."""
    source = directory / "Page.java"
    *topologies, test, program = blocks(page, "java")
    methods = [f"static Topology topology{n}() {{\n{block}return topology;}}" for n, block in enumerate(topologies)]
    methods += [
        f"static void {name}(Topology topology) throws Exception {{\n{block}}}"
        for name, block in (("test", test), ("program", program))
    ]
    last = f"topology{len(topologies) - 1}()"
    described = "".join(f"System.out.print(topology{n}().describe());" for n in range(len(topologies)))
    main = f"if (arguments.length == 0) {{{described}}} else {{test({last}); program({last});}}"
    body = [*methods, f"public static void main(String[] arguments) throws Exception {{{main}}}"]
    text = "\n".join([_IMPORTS, "class Page {", _ASSERTION, *body, "}"])
    source.write_text(text.replace(f'"{BROKER}"', 'System.getProperty("broker")'))
    jars = resolve(Bundle.KAFKA_STREAMS_TEST)
    return join_class_path([compiled_java([source], jars), *jars])


_IMPORTS = """
import static org.apache.kafka.streams.StreamsConfig.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.api.*;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.*;
"""
_ASSERTION = """
static void assertEquals(Object expected, Object found) {
  if (!expected.equals(found)) throw new AssertionError(found + " instead of " + expected);
}
"""


@contextmanager
def until_terminated(command: Sequence[str | Path], directory: Path, exit_code: int = 0) -> Iterator[Callable[[], str]]:
    """Run a process until the block ends."""
    log = directory / "log"
    variables = {**own_variables(), "TOPIC_PARTITIONS": str(PARTITIONS)}
    with log.open("w") as to_log:
        process = subprocess.Popen(command, cwd=directory, env=variables, stdout=to_log, stderr=to_log)
        try:
            yield lambda: f"{process.poll()}: {log.read_text()}"
        finally:
            process.terminate()
            try:
                process.wait(120)
            finally:
                process.kill()
                process.wait()
    assert process.returncode == exit_code, log.read_text()


def order(customer: str, cents: int, second: int) -> Input:
    """Return an order as input."""
    return Input("orders", customer, json.dumps({"customer": customer, "cents": cents}), second)


@pytest.mark.broker
@pytest.mark.thorough
def test_programs_of_quix_streams_and_millrace_write_the_same(own_kafka: Any, tmp_path: Path) -> None:
    """Every pair of the page: what is filtered, totals, the final results of windows, what is joined.

    No two windows of a key close at once: Quix Streams would write them in any order.
    """
    steps = [
        Step(
            [
                *(Input("customers", name.lower(), name) for name in ("Ada", "Bob")),
                *(order("ada", 5, 1), order("bob", 100_00, 2), order("ada", 100_01, 59), order("cy", 200_00, 60)),
                *(order("bob", 3, 61), order("ada", 7, 62), order("bob", 1, 69), order("ada", 2, 58)),
            ],
            {"large": 2, "totals": 8, "per-minute": 0, "named": 7},
        ),
        Step([order("ada", 1, 70), order("ada", 500, 58), order("bob", 2, 70)], {"totals": 11, "per-minute": 2}),
        Step(
            [order("ada", 1, 200), order("bob", 1, 200)],
            {"large": 2, "totals": 13, "per-minute": 5, "named": 12},
        ),
    ]
    ours = written(own_kafka(), millrace("from-quix.md", tmp_path), steps)
    command = [environment("quix") / "python", "other.py"]
    theirs = written(own_kafka(), other("from-quix.md", "Quix Streams", command, tmp_path, "app.run()"), steps)
    assert ours == theirs


@pytest.mark.broker
@pytest.mark.thorough
def test_programs_of_faust_and_millrace_write_the_same(own_kafka: Any, tmp_path: Path) -> None:
    """Every pair of the page: counts, what is sent on, windows, what a timer flushes."""
    clicks = [
        *(("ada", "/", 1), ("bob", "/admin", 2), ("ada", "/admin/users", 59), ("ada", "/", 60), ("bob", "/", 61)),
        *(("ada", "/", 62), ("ada", "/admin", 58), ("cy", "/", 65), ("bob", "/", 69), ("ada", "/shop", 130)),
    ]
    records = [Input("clicks", user, json.dumps({"user": user, "page": page}), at) for user, page, at in clicks]
    steps = [Step(records, {"counts": 10, "admins": 3, "per-minute": 10, "collected": 10})]
    ours = written(own_kafka(), millrace("from-faust.md", tmp_path), steps)
    command = [environment("faust") / "faust", "-A", "other", "worker", "--without-web", "--loglevel", "info"]
    changelogs = [f"clicks-{table}-changelog" for table in ("counts", "per-minute")]
    theirs = written(own_kafka(), other("from-faust.md", "Faust", command, tmp_path), steps, *changelogs)
    assert ours == theirs


@pytest.mark.broker
@pytest.mark.thorough
def test_programs_in_java_and_python_write_the_same(own_kafka: Any, tmp_path: Path) -> None:
    """The page's last topology, run in Java as the page shows it, after its test."""
    records = [Input("events", key, value) for key, value in ("a1", "b2", "a3", "c4", "b5")]
    steps = [Step(records, {"unique": 3})]
    serdes = {"default.key.serde": "string", "default.value.serde": "string"}
    ours = written(own_kafka(), millrace("from-java.md", tmp_path, **serdes), steps)
    assert ours == written(own_kafka(), java("from-java.md", tmp_path), steps)


def test_topologies_in_java_and_python_are_the_same(tmp_path: Path) -> None:
    """Every pair has the same description."""
    scope: dict[str, Any] = {}
    found = ""
    for block in blocks("from-java.md", "python"):
        if "topology = builder.build()" in block:
            exec(compile(block, "from-java.md", "exec"), scope)
            found += str(scope["topology"].describe())
    done = run_java("Page", [Path(each) for each in class_path("from-java.md", tmp_path).split(os.pathsep)])
    assert done.stdout == found, done.stderr


def test_test_of_the_page_about_faust_passes(tmp_path: Path) -> None:
    """What stands beside a test with Millrace is one that passes too."""
    program = "\n".join([*blocks("from-faust.md", "python", "Faust"), "import asyncio", "asyncio.run(test_collect())"])
    command = [environment("faust") / "python", "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, env=own_variables(), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
