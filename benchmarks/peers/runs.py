"""One run of the benchmark of peers: starts the processes, watches them, and checks what they have written."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.environments import environment
from benchmarks.instances import Instance, java_command
from benchmarks.peers.cases import SETTINGS, Case, Peer, found_in_output
from benchmarks.process_tree import busy_seconds, cpu_seconds
from benchmarks.programs import Expected, Names
from benchmarks.records import Written, topics, write_state
from benchmarks.records import create_topics as create_state_topics
from benchmarks.report import announce
from benchmarks.restoration import restore
from benchmarks.topics import PARTITIONS, Digest, create_topics, delete_topics, read
from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.waiting import wait_until

_HERE = Path(__file__).parent
_SAMPLE_S = 0.05
_TIMEOUT_S = 3600.0
_VALUE_BYTES = 100


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run took."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    stall_s: float | None
    """The longest time in which nothing was written; None where nothing is."""
    others: float
    """The share of the machine's CPU that programs other than this one used meanwhile."""
    whole_cpu_s: float | None = None
    """CPU from the start of the processes."""


class Ends:
    """Watches the ends of an application's topics until the `with` block ends, in a thread.

    Output, changelogs and repartition topics count, as far as a reader of committed records sees them.
    """

    def __init__(self, servers: str, application: str) -> None:
        self._servers, self._application = servers, application
        self._moved: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 3})
        wanted: dict[TopicPartition, OffsetSpec] = {}
        last = listed_at = 0.0
        while not self._stop.wait(_SAMPLE_S):
            now = time.monotonic()
            if now - listed_at > 1:
                listed_at = now
                wanted = {
                    TopicPartition(name, number): OffsetSpec.latest()
                    for name, topic in admin.list_topics(timeout=60).topics.items()
                    if self._application in name
                    for number in topic.partitions
                }
            try:
                found = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED)
                total = sum(future.result(60).offset for future in found.values())
            except KafkaException:
                continue  # a topic is being created
            if total > last:
                self._moved.append(now)
                last = total

    def longest_s(self, began: float, ended: float) -> float:
        """Return the longest time between two moves in a period, its begin included; after the last move is closing."""
        moves = [began, *(at for at in self._moved if began < at < ended)]
        return max((after - before for before, after in itertools.pairwise(moves)), default=ended - began)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()


class Others:
    """Tells which share of the machine's CPU other programs have used since it was created."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), busy_seconds(), cpu_seconds()

    def share(self) -> float:
        """Return it."""
        others = busy_seconds() - self._busy - (cpu_seconds() - self._own)
        return max(0.0, others) / (time.monotonic() - self._began) / (os.cpu_count() or 1)


def run(
    case: Case,
    peer: Peer,
    names: Names,
    expected: Expected,
    servers: str,
    advance: Callable[[float], None],
    started: Callable[[Instance], None] = lambda _instance: None,
) -> Figures:
    """Run one peer until it has processed its input and has closed, and check what it has written.

    Args:
        case: what.
        peer: who.
        names: the topics of the input.
        expected: what must come out.
        servers: the brokers.
        advance: told which share is done.
        started: told each instance that begins to process.
    """
    application = f"{case.name}-{uuid.uuid4().hex[:8]}"
    sink = names.sink(application)
    create_topics(servers, sink, partitions=names.partitions)
    settings = _settings(case, peer, application, servers, (names.source, names.table, sink))
    others = Others()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ends = stack.enter_context(Ends(servers, application))
        instances = [
            stack.enter_context(_start(peer, f"{peer.name}-{number}", settings, directory))
            for number in range(1, peer.processes + 1)
        ]
        _begin(instances)
        for each in instances:
            started(each)
        peak_mib = _finish(instances, expected.processed, advance)
    began, ended = min(each.last("began") for each in instances), max(each.last("ended") for each in instances)
    inputs = (names.source, names.table) if case.program == "join" else (names.source,)
    _check_committed(servers, application, inputs, names.partitions, peer)
    found = found_in_output(servers, sink, case, peer)
    if found != expected.digest:
        raise SystemExit(f"{case.title}, {peer.name}: the output is {found} instead of {expected.digest}")
    announce(f"{found.records:,} {'keys' if case.final else 'records'} of output are as they must be")
    delete_topics(servers, application)
    cpu_s, whole_cpu_s = (sum(each.last(key) for each in instances) for key in ("cpu_seconds", "whole_cpu_seconds"))
    return Figures(ended - began, cpu_s, peak_mib, ends.longest_s(began, ended), others.share(), whole_cpu_s)


def run_restoration(case: Case, peer: Peer, servers: str, application: str, written: Written) -> Figures:
    """Restore a store from a changelog: Quix Streams from its own, the others from that of an application."""
    others = Others()
    if peer.language == "quix":
        found = _restore_quix(case, peer, servers, written.records)
    else:
        found = restore(peer.language, servers, application, PARTITIONS, written)
    announce(f"{written.records:,} restored keys and their checksum are as they must be")
    return Figures(found["seconds"], found["cpu_seconds"], found["peak_mib"], None, others.share())


def write_restoration(servers: str, application: str, keys: int, advance: Callable[[int], None]) -> Written:
    """Write what is restored."""
    create_state_topics(servers, application, PARTITIONS)
    return write_state(servers, application, keys, _VALUE_BYTES, PARTITIONS, advance)


def _restore_quix(case: Case, peer: Peer, servers: str, keys: int) -> dict[str, float]:
    """Have a program process the same keys and values, and restore them on an empty disk.

    Its state cannot be seen from outside. So the keys are written once more, and for each it writes the value before.
    """
    application = f"{case.name}-{uuid.uuid4().hex[:8]}"
    _, sink, source = topics(application)
    written = write_restoration(servers, application, keys, lambda _count: None)
    settings = _settings(case, peer, application, servers, (source, "", sink))

    with tempfile.TemporaryDirectory() as directory, _start(peer, "quix-1", settings, Path(directory)) as instance:
        _begin([instance])
        _finish([instance], keys)
    with tempfile.TemporaryDirectory() as directory, _start(peer, "quix-2", settings, Path(directory)) as instance:
        _begin([instance])
        instance.wait(lambda each: each.last("seconds"), "restores", _TIMEOUT_S)
        figures = {"seconds": instance.last("seconds"), "cpu_seconds": instance.last("cpu_seconds")}
        figures["peak_mib"] = instance.peak_mib()
        write_state(servers, application, keys, _VALUE_BYTES, PARTITIONS, lambda _count: None)
        _finish([instance], keys)
    digest = Digest()
    for key, value in read(servers, sink):
        digest.add(key, value)
    if digest != Digest(written.records, written.checksum):
        raise SystemExit(f"{peer.name} has restored {digest} instead of {written}")
    delete_topics(servers, application)
    return figures


def _settings(
    case: Case, peer: Peer, application: str, servers: str, topics_of_program: tuple[str, str, str]
) -> dict[str, object]:
    source, table, sink = topics_of_program
    return {
        **SETTINGS,
        **case.settings,
        "application.id": application,
        "bootstrap.servers": servers,
        "num.stream.threads": peer.threads,
        "program": case.program,
        "input": source,
        "table": table,
        "output": sink,
    }


def _start(peer: Peer, name: str, settings: dict[str, object], directory: Path) -> Instance:
    if peer.language == "java":
        command = java_command("Peer")
    elif peer.language == "quix":
        command = (str(quix_python()), "-E", str(_HERE / "quix_programs.py"))  # without this environment's path
    elif peer.children:
        command = (sys.executable, str(_HERE / "process_per_thread.py"))
        settings = {**settings, "processes": peer.children}
    else:
        command = (sys.executable, str(_HERE / "millrace_programs.py"))
    return Instance(peer.language, name, settings, directory, command=command)


def _begin(instances: Sequence[Instance]) -> None:
    """Let all begin at once, when all are ready to."""
    for each in instances:
        each.wait(lambda instance: instance.last("ready"), "is ready", _TIMEOUT_S)
    for each in instances:
        assert each.process.stdin is not None
        each.process.stdin.write("start\n")
        each.process.stdin.flush()


def _finish(
    instances: Sequence[Instance], processed: int, advance: Callable[[float], None] = lambda _share: None
) -> float:
    """Wait until so many records are processed, close all, and return their peak memory."""

    def done() -> bool:
        number = sum(each.last("processed") or 0 for each in instances)
        advance(number / processed)
        return number >= processed

    def check() -> None:
        for each in instances:
            each.check()

    def describe() -> str:
        return "\n".join(
            f"{each}: {each.last('processed')} of {processed} processed\n{each.log()}" for each in instances
        )

    wait_until(done, describe, _TIMEOUT_S, meanwhile=check, poll_s=_SAMPLE_S, error=SystemExit)
    peak_mib = sum(each.peak_mib() for each in instances)
    for each in instances:
        assert each.process.stdin is not None
        each.process.stdin.close()
    for each in instances:
        each.stop()
    for each in instances:
        each.wait(lambda instance: instance.last("ended"), "reports", _TIMEOUT_S)
    return peak_mib


def _check_committed(servers: str, application: str, inputs: Sequence[str], number: int, peer: Peer) -> None:
    """End the benchmark unless the group has committed the end of every input partition."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": application})
    partitions = [TopicPartition(topic, each) for topic in inputs for each in range(number)]
    for partition in consumer.committed(partitions, timeout=60):
        begin, end = consumer.get_watermark_offsets(partition, timeout=60)
        if end not in {partition.offset, begin}:
            raise SystemExit(f"{peer.name} has committed {partition.offset} of {end} in {partition.topic}")
    consumer.close()


def quix_python() -> Path:
    """Return the interpreter of an environment with Quix Streams, which is created on first use."""
    hint = "If the package registry does not have these versions, leave it out: --peers java,millrace"
    return environment("quix", hint) / "python"
