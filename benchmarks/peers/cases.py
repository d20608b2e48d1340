"""What the benchmark of peers compares: cases, peers, and how their output is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.topics import Digest, read

RESTORATION = "restoration"
_OFTEN = {"commit.interval.ms": "100"}
_EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2", **_OFTEN}
NO_CACHE = {"statestore.cache.max.bytes": "0"}


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured.

    Args:
        name: on the command line.
        title: in the table.
        program: of `programs.py`.
        seconds: an estimate per million records, with Java.
        settings: other than `SETTINGS`.
        final: whether only the last record of every key of the output counts, because a cache may hold back the others.
    """

    name: str
    title: str
    program: str
    seconds: float
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    final: bool = False


@dataclass(frozen=True, slots=True)
class Peer:
    """Who does it.

    Args:
        name: on the command line and in the table.
        language: `java`, `python` or `quix`.
        slower: an estimate: how much longer it takes than Java.
        processes: how many.
        threads: `num.stream.threads` of each.
        share: of the records; seconds and CPU are for all of them.
        children: how many processes each one has for its stream threads (a prototype, see `process_per_thread.py`).
        beside: the name of the Java that it is compared with.
    """

    name: str
    language: str
    slower: float
    processes: int = 1
    threads: int = 1
    children: int = 0
    share: float = 1
    beside: str = "java"

    @property
    def is_single(self) -> bool:
        """Whether it is one process with one stream thread."""
        return (self.processes, self.threads, self.children) == (1, 1, 0)

    def runs(self, case: Case) -> bool:
        """Tell whether it takes part in a case: more than one thread does so in the word count."""
        return self.is_single or case.name == "words"


SETTINGS = {
    "processing.guarantee": "at_least_once",
    "commit.interval.ms": "30000",
    "statestore.cache.max.bytes": "10485760",
}
"""Kafka Streams' defaults."""
CASES = (
    Case("words", "word count", "lines", 15, final=True),
    Case("words-100-ms", "word count, commits every 100 ms", "lines", 20, _OFTEN, final=True),
    Case("words-exactly-once", "word count, exactly once", "lines", 20, _EXACTLY_ONCE, final=True),
    Case("stateless", "filter and map", "stateless", 5),
    Case("windows", "tumbling window", "tumbling", 6, final=True),
    Case("count", "count, no cache", "count", 8, NO_CACHE),
    Case("join", "stream-table join", "join", 7),
    Case("hot", "count, no cache, hot partition", "hot", 8, NO_CACHE),
    Case(RESTORATION, "restoration", "restoration", 6),
)
PEERS = (
    Peer("java", "java", 1),
    Peer("millrace", "python", 3),
    Peer("quix", "quix", 20, share=0.25),
    Peer("java-2-threads", "java", 1, threads=2, beside="java-2-threads"),
    Peer("millrace-2-threads", "python", 3, threads=2, beside="java-2-threads"),
    Peer("millrace-2-processes", "python", 2, children=2, beside="java-2-threads"),
    Peer("millrace-2-replicas", "python", 2, processes=2, beside="java-2-threads"),
)


def found_in_output(servers: str, sink: str, case: Case, peer: Peer) -> Digest:
    """Return what a peer has written, as Kafka Streams would write it."""
    digest = Digest()
    records = read(servers, sink)
    if peer.language == "quix":
        records = (_from_quix(case, key, value) for key, value in records)
    elif case.program == "tumbling":
        records = ((key + bytes(4), value) for key, value in records)  # the changelog's keys, whose last bytes are 0
    for key, value in dict(records).items() if case.final else records:
        digest.add(key, value)
    return digest


def _from_quix(case: Case, key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Convert what Quix Streams writes: numbers of four bytes, windows as JSON."""
    if case.program == "tumbling":
        window = json.loads(value)
        return key + window["start"].to_bytes(8, "big") + bytes(4), window["value"].to_bytes(8, "big")
    if case.program in {"lines", "count", "hot"}:
        return key, value.rjust(8, b"\0")
    return key, value
