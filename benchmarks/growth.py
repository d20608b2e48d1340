"""How the cost of a record grows with partitions, keys, the size of values, and replicas.

    python -m benchmarks.growth [--records 500000] [--of partitions,keys] [--plot docs/growth.svg]

The program keeps the last value of every key in a store without a cache, so each record is written to the store, its changelog
and the output. One thing at a time is varied; the others are as in `BASE`. Time and CPU count as in the benchmark of peers, and
every output is compared with what was counted while the input was written.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.peers.cases import NO_CACHE, Case, Peer
from benchmarks.peers.runs import Figures, run
from benchmarks.plot import draw_bars
from benchmarks.programs import Names, write_input
from benchmarks.report import Report, add_options, announce, progress
from benchmarks.topics import delete_topics

from millrace.dev.kafka import EmbeddedKafka

COLUMNS = ("varied", "it is", "records", "records/s", "CPU µs per record", "seconds", "peak MiB")
CASE = Case("latest", "last value per key", "latest", 10, NO_CACHE)
JOIN_MS = 3_000
"""How long the group waits for more members, so that all replicas share the tasks from the beginning."""
MOST_BYTES = 1_000_000_000
"""Of input; there are fewer records if their values are large."""


@dataclass(frozen=True, slots=True)
class Size:
    """What is varied."""

    partitions: int = 4
    keys: int = 100_000
    value_bytes: int = 100
    replicas: int = 1

    def records(self, wanted: int) -> int:
        """Return how many records there are: at least one of each key."""
        return max(self.keys, min(wanted, MOST_BYTES // self.value_bytes))


BASE = Size()
SERIES = {
    "partitions": (1, 4, 16, 100),
    "keys": (10_000, 1_000_000, 10_000_000),
    "value_bytes": (100, 1_000, 10_000),
    "replicas": (1, 2, 3, 4),
}


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth",
        description="CPU per record and records per second for more partitions, keys, bytes and replicas.",
    )
    parser.add_argument(
        "--records",
        type=int,
        default=500_000,
        help="of input, but at least one per key, and at most 1 GB (default: %(default)s)",
    )
    parser.add_argument("--of", type=_series, default=list(SERIES), help=f"separated by commas: {', '.join(SERIES)}")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures into this SVG")
    add_options(parser)
    options = parser.parse_args()
    sizes = [(name, replace(BASE, **{name: value})) for name in options.of for value in SERIES[name]]
    seconds = [10 + size.records(options.records) / 40_000 for _, size in sizes]
    announce(f"This takes about {sum(seconds) / 60 + 1:.0f} minutes.")
    report = Report("growth", CASE.title, COLUMNS, options)
    rates: dict[str, list[tuple[str, float]]] = {name: [] for name in options.of}
    costs: dict[str, list[tuple[str, float]]] = {name: [] for name in options.of}
    with EmbeddedKafka(config={"group.initial.rebalance.delay.ms": str(JOIN_MS)}) as kafka, progress() as bar:
        task = bar.add_task("", total=sum(seconds))
        for (name, size), takes in zip(sizes, seconds, strict=True):
            value = f"{getattr(size, name):,}"
            bar.update(task, description=f"{name} {value}")
            records = size.records(options.records)
            figures = _measure(kafka.bootstrap_servers, size, records)
            bar.advance(task, takes)
            rate, cost = records / figures.wall_s, figures.cpu_s / records * 1e6
            title = name.replace("_", " ")
            row = (title, value, f"{records:,}", f"{rate:,.0f}", f"{cost:.1f}", f"{figures.wall_s:.1f}")
            report.add(
                (*row, f"{figures.peak_mib:.0f}"), varied=name, **asdict(size), records=records, **asdict(figures)
            )
            rates[name].append((value, rate))
            costs[name].append((value, cost))
    report.note(
        f"If not varied: {BASE.partitions} partitions, {BASE.keys:,} keys, values of {BASE.value_bytes} bytes, one replica with "
        "one stream thread. All outputs were as counted while the input was written; one run."
    )
    report.show()
    if options.plot:
        draw_bars(options.plot, {"records/s": rates, "CPU µs per record": costs})


def _series(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in SERIES]:
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(SERIES)}")
    return names


def _measure(servers: str, size: Size, records: int) -> Figures:
    """Write the input for a size, process it, and delete it."""
    names = Names(f"{CASE.program}-{time.monotonic_ns()}-input", size.partitions)
    start_ms = int(time.time() * 1000) - records  # recent, so that the brokers keep the records
    value = bytes(33 + number * 31 % 90 for number in range(size.value_bytes))
    expected = write_input(servers, CASE.program, names, records, size.keys, start_ms, lambda _count: None, value)
    peer = Peer(f"{size.replicas} of Millrace", "python", 3, processes=size.replicas)
    figures = run(CASE, peer, names, expected, servers, lambda _share: None)
    delete_topics(servers, names.source)
    return figures


if __name__ == "__main__":
    main()
