"""The same programs in Java Kafka Streams, Millrace and Quix Streams, on the same broker and the same records.

    python -m benchmarks.peers [--records 1000000] [--cases words,join] [--peers java,millrace,quix] [--repeat 3]

Each run is a process of its own, with one stream thread, an application id and a disk of its own; the peers by turns, in another
order every time. The word count is also run with two stream threads, in Java and Millrace, with two replicas of Millrace, and
with two processes of one parent (`process_per_thread.py`).
The same for all are the topics, with four partitions, and the intervals of commits (30 s, under exactly-once 100 ms, and 100 ms
without it in one more case, which tells what exactly-once costs from what commits cost); Java and Millrace have a record cache of
10 MiB, or none. Java has a heap of 1 GB. Everything else is each peer's default.

Time and CPU count from the first record that is processed until everything is processed, flushed and committed, and the
application is closed. CPU is that of the peer's processes, not of the brokers. A *stall* is the longest time in that period in
which no record was written to the output, a changelog or a repartition topic; what follows the last record does not count. It is
sampled every 50 ms. Memory is the largest resident set. The figures are medians.

Every output is compared with counts that were made while the input was written, and committed offsets with the ends of the input.
Where a cache may hold back some records, the last one of every key counts.

Quix Streams is not quite the same. It has no record cache and writes every change; it has no stream-table join, so that it joins
as of the record's time (`join_asof`); its state is JSON; it has one thread. Its state is restored from its own changelog, which
has the same keys and values.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict

from benchmarks.peers.cases import CASES, PEERS, RESTORATION, Case, Peer
from benchmarks.peers.runs import Figures, quix_python, run, run_restoration, write_restoration
from benchmarks.programs import LINE_WORDS, Expected, Names, write_input
from benchmarks.report import Report, add_options, announce, progress
from benchmarks.topics import PARTITIONS
from rich.progress import Progress

from millrace.dev.kafka import EmbeddedKafka

COLUMNS = (*("case", "peer", "records/s", "of Java", "CPU s", "of Java", "seconds", "longest stall, s", "peak MiB"),)
SECONDS_PER_RUN = 8
"""An estimate: starting, joining the group, closing and checking."""
JOIN_MS = 3_000
"""How long the group waits for more members, so that two replicas share the tasks from the beginning."""
TOO_MUCH = 0.05
"""The share of the CPU that other programs may use."""


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Speed, CPU and memory of Java Kafka Streams, Millrace and Quix Streams.",
        epilog="Cases: "
        + "; ".join(f"{case.name}: {case.title}" for case in CASES)
        + ". Peers with two threads or replicas only run the word count. "
        "Quix Streams is installed into an environment of its own in the cache directory.",
    )
    parser.add_argument(
        "--records",
        type=int,
        default=1_000_000,
        help="of input, and keys to restore; with fewer than 200000, starting counts for much (default: %(default)s)",
    )
    parser.add_argument("--keys", type=int, default=50_000, help="how many the input has (default: %(default)s)")
    parser.add_argument("--cases", type=_some_of(CASES), default=CASES, help="separated by commas (default: all)")
    names = ", ".join(peer.name for peer in PEERS)
    alone = [peer for peer in PEERS if peer.is_single]
    parser.add_argument(
        "--peers", type=_some_of(PEERS), default=alone, help=f"of {names}; default: those without a number"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; medians count (default: %(default)s)")
    parser.add_argument("--section", default="peers", help="whose table to replace with --markdown (default: peers)")
    add_options(parser)
    options = parser.parse_args()
    wanted = [(case, [peer for peer in options.peers if peer.runs(case)]) for case in options.cases]
    plan = [(case, peers) for case, peers in wanted if peers]
    if not plan:
        parser.error("none of these peers runs one of these cases")
    estimate = sum(_seconds(case, peer, options.records) * options.repeat for case, peers in plan for peer in peers)
    announce(f"This takes about {estimate / 60 + 1:.0f} minutes.")
    if any(peer.language == "quix" for peer in options.peers):
        quix_python()
    report = Report(options.section, f"{options.records:,} records", COLUMNS, options)
    busiest = 0.0
    with EmbeddedKafka(config={"group.initial.rebalance.delay.ms": str(JOIN_MS)}) as kafka, progress() as bar:
        comparison = _Comparison(kafka.bootstrap_servers, options, bar, estimate)
        for case, peers in plan:
            runs = comparison.measure(case, peers)
            busiest = max(busiest, *(each.others for found in runs.values() for each in found))
            _add_rows(report, case, runs, options.records)
    runs_text = f"medians of {options.repeat} runs" if options.repeat > 1 else "one run"
    report.note(
        f"{options.records:,} records (of {LINE_WORDS} words in the word count) or keys to restore, {options.keys:,} keys, "
        f"{PARTITIONS} partitions; {runs_text}. All outputs were as counted while the input was written. "
        "*Of Java* is a peer's figure divided by Java's, with two threads where the peer has two."
    )
    if part := next((peer for peer in options.peers if peer.share < 1), None):
        report.note(
            f"{part.name} got {part.share:.0%} of the records, as it takes long, and its seconds and CPU are multiplied by "
            f"{1 / part.share:.0f}; of the restoration it got everything."
        )
    if busiest > TOO_MUCH:
        report.note(f"OTHER PROGRAMS used up to {busiest:.0%} of the processors during a run.")
    report.show()


def _some_of(known: tuple[Case, ...] | tuple[Peer, ...]) -> Callable[[str], list[Case | Peer]]:
    """Return a function that reads names separated by commas."""

    def names(text: str) -> list[Case | Peer]:
        by_name = {each.name: each for each in known}
        if unknown := [name for name in text.split(",") if name not in by_name]:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(by_name)}")
        return [by_name[name] for name in text.split(",")]

    return names


def _seconds(case: Case, peer: Peer, records: int) -> float:
    """Estimate how long a run takes."""
    return SECONDS_PER_RUN + case.seconds * peer.slower * peer.share * records / 1e6


class _Comparison:
    """Runs the peers of one case after the other.

    Args:
        servers: the brokers.
        options: those of the command line.
        bar: shows the progress.
        seconds: how long everything takes, as an estimate.
    """

    def __init__(self, servers: str, options: argparse.Namespace, bar: Progress, seconds: float) -> None:
        self._servers, self._options = servers, options
        self._bar, self._task = bar, bar.add_task("", total=seconds)
        self._done = 0.0
        self._start_ms = int(time.time() * 1000) - options.records  # recent, so that the brokers keep the records
        self._inputs: dict[str, tuple[Names, Expected]] = {}

    def measure(self, case: Case, peers: list[Peer]) -> dict[Peer, list[Figures]]:
        """Write the input of a case, and run all peers as often as wanted."""
        run_peer = self._restoration(case) if case.name == RESTORATION else self._program(case)
        runs: dict[Peer, list[Figures]] = {peer: [] for peer in peers}
        for number in range(self._options.repeat):
            first = number % len(peers)
            for peer in peers[first:] + peers[:first]:
                text = f"{case.title}: {peer.name}, run {number + 1} of {self._options.repeat}"
                announce(text)
                seconds = _seconds(case, peer, self._options.records)
                self._bar.update(self._task, description=text)
                runs[peer].append(run_peer(peer, lambda share, s=seconds: self._show(self._done + share * s)))
                self._done += seconds
                self._show(self._done)
        return runs

    def _show(self, seconds: float) -> None:
        self._bar.update(self._task, completed=seconds)

    def _program(self, case: Case) -> Callable[[Peer, Callable[[float], None]], Figures]:
        return lambda peer, advance: run(case, peer, *self._input(case, peer), self._servers, advance)

    def _input(self, case: Case, peer: Peer) -> tuple[Names, Expected]:
        records, keys = round(self._options.records * peer.share), self._options.keys
        names = Names(f"{case.program}-input-{records}")
        if names.source not in self._inputs:
            self._bar.update(self._task, description=f"Writing {records:,} records")
            expected = write_input(
                self._servers, case.program, names, records, keys, self._start_ms, lambda _count: None
            )
            self._inputs[names.source] = names, expected
        return self._inputs[names.source]

    def _restoration(self, case: Case) -> Callable[[Peer, Callable[[float], None]], Figures]:
        application, keys = f"{case.name}-of-all", self._options.records
        self._bar.update(self._task, description=f"Writing {keys:,} keys")
        written = write_restoration(self._servers, application, keys, lambda _count: None)
        return lambda peer, _advance: run_restoration(case, peer, self._servers, application, written)


def _add_rows(report: Report, case: Case, runs: dict[Peer, list[Figures]], records: int) -> None:
    """Add a row for each peer."""
    shares = {peer.name: 1 if case.name == RESTORATION else peer.share for peer in runs}
    cpu = {
        peer.name: statistics.median(each.cpu_s for each in found) / shares[peer.name] for peer, found in runs.items()
    }
    wall = {
        peer.name: statistics.median(each.wall_s for each in found) / shares[peer.name] for peer, found in runs.items()
    }
    for peer, found in runs.items():
        stalls = [each.stall_s for each in found if each.stall_s is not None]
        known = peer.beside in cpu
        row = (
            case.title,
            peer.name,
            f"{records / wall[peer.name]:,.0f}",
            f"{wall[peer.beside] / wall[peer.name]:.2f}" if known else "",
            f"{cpu[peer.name]:.1f}",
            f"{cpu[peer.name] / cpu[peer.beside]:.2f}" if known else "",
            f"{wall[peer.name]:.1f}",
            f"{statistics.median(stalls):.2f}" if stalls else "",
            f"{statistics.median(each.peak_mib for each in found):.0f}",
        )
        report.add(row, case=case.name, peer=peer.name, runs=[asdict(each) for each in found])


if __name__ == "__main__":
    main()
