"""Whether output goes on while instances are added and removed, with gigabytes of state, on a real broker.

    python -m benchmarks.scaling [--gigabytes 10] [--language python] [--plot scaling.svg]

Two instances with one standby of each task run; two more are started, and stopped again, one after the other, once the tasks are
spread over all four and the standbys are complete. Warm-ups let a task move only when its new place has nearly all of its state.
All the time the input changes, and every output record names the instance that wrote it. The *longest gap* is the longest time
without output in one partition. Output should only stop during a rebalance: while the group is not stable, or an instance is told
to stop and has yet to leave. A gap may have several rebalances, since a task moves in two: one takes it from its owner, and the
next gives it to the other.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from benchmarks.instances import HEARTBEAT_WITH_STANDBYS_MS, LANGUAGES, Instance
from benchmarks.plot import draw
from benchmarks.records import Changes, Outputs, create_topics, topics, write_state
from benchmarks.report import Report, add_options, announce, progress
from tests.waiting import wait_until

from millrace.config import StreamsConfig
from millrace.dev.kafka import EmbeddedKafka
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin

VALUE_BYTES = 1_000
KEY_BYTES = 14
APPLICATION = "scaling"
QUIET_S = 15.0
"""How long output is watched before and after each change."""
PROBING_S = 60
"""`probing.rebalance.interval.ms`, the shortest that Kafka Streams allows."""
SECONDS_PER_GIGABYTE = 75
"""An estimate, of writing and of restoring on up to four instances."""
MARGIN_S = 1.0
"""How long output may stop outside rebalances: a task starts after the group is stable again."""
CAUGHT_UP = 10_000
"""The lag in offsets at which a standby counts as complete: the default of `acceptable.recovery.lag`."""
LONGEST = 500
"""How many of the longest gaps of a phase are compared with rebalances."""
COPIES = 6
"""How much disk the state may take: topic, actives, standbys and warm-ups, and compaction."""
TIMEOUT_S = 3600.0

Seen = Sequence[tuple[float, int, str]]
Period = tuple[float, float]


class Rebalances:
    """Asks the brokers for the state of the group until the `with` block ends, in a thread."""

    def __init__(self, servers: str) -> None:
        settings = StreamsConfig.of({"application.id": APPLICATION, "bootstrap.servers": servers})
        self._group = GroupAdmin(ClientSettings(settings, "scaling"))
        self._states: list[tuple[float, str]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with self._group:
            while not self._stop.wait(0.02):
                state = self._group.describe().state
                if not self._states or state != self._states[-1][1]:
                    self._states.append((time.monotonic(), state))

    def seconds(self, begin: float, end: float, others: Sequence[Period]) -> float:
        """Return for how many seconds of a period the group was not stable, or one of the other periods held."""
        edges = [each for period in others for each in ((period[0], 1), (period[1], -1))]
        stable = True
        for at, state in self._states:
            if stable != (state == "Stable"):
                stable = not stable
                edges.append((at, -1 if stable else 1))
        spent, last, depth = 0.0, begin, 0
        for at, change in [*sorted(edges), (end, 0)]:
            now = min(max(at, begin), end)
            spent += now - last if depth else 0.0
            last, depth = now, depth + change
        return spent

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()


def main() -> None:
    """Measure, print the table and draw the plot."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling",
        description="Output per second while instances are added and removed: 2, 4, 2.",
    )
    parser.add_argument("--gigabytes", type=float, default=10.0, help="of state, without copies (default: %(default)s)")
    parser.add_argument("--language", default="python", choices=LANGUAGES, help="default: %(default)s")
    parser.add_argument("--guarantee", default="at_least_once", help="default: %(default)s")
    parser.add_argument("--partitions", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--changes", type=int, default=1_000, help="changes per second (default: %(default)s)")
    parser.add_argument("--plot", type=Path, default=Path("scaling.svg"), help="where to draw (default: %(default)s)")
    parser.add_argument("--directory", type=Path, help="for brokers and state (default: a temporary one)")
    add_options(parser)
    options = parser.parse_args()
    if options.directory is not None:
        options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
        directory = Path(temporary)
        needed, free = options.gigabytes * COPIES, shutil.disk_usage(directory).free / 1e9
        if free < needed:
            raise SystemExit(
                f"{directory} has {free:.0f} GB free; {needed:.0f} GB are needed: use --directory or --gigabytes"
            )
        minutes = (options.gigabytes * SECONDS_PER_GIGABYTE + 4 * QUIET_S + 4 * PROBING_S) / 60 + 1
        announce(f"This takes about {minutes:.0f} minutes and up to {needed:.0f} GB of disk.")
        settings = {
            "group.initial.rebalance.delay.ms": "3000"
        }  # so that the first two instances share the tasks at once
        with EmbeddedKafka(directory=directory / "kafka", config=settings) as kafka:
            measure(kafka.bootstrap_servers, directory, options)


def measure(servers: str, directory: Path, options: argparse.Namespace) -> None:
    """Run the instances and report what they did."""
    keys = int(options.gigabytes * 1e9 / (VALUE_BYTES + KEY_BYTES))
    columns = ("phase", "seconds", "of them rebalancing", "records/s", "longest gap, s", "outside rebalances, s")
    title = f"Scaling {options.language} instances 2 → 4 → 2 with {options.gigabytes:g} GB of state"
    report = Report("scaling", title, columns, options)
    create_topics(servers, APPLICATION, options.partitions)
    with progress() as bar:
        task = bar.add_task("Writing the state", total=keys)
        write_state(servers, APPLICATION, keys, VALUE_BYTES, options.partitions, lambda count: bar.advance(task, count))
    source, sink, _ = topics(APPLICATION)
    settings = {
        "application.id": APPLICATION,
        "bootstrap.servers": servers,
        "input": source,
        "output": sink,
        "processing.guarantee": options.guarantee,
        "num.standby.replicas": 1,
        "max.warmup.replicas": options.partitions,
        "probing.rebalance.interval.ms": PROBING_S * 1000,
        "heartbeat.interval.ms": HEARTBEAT_WITH_STANDBYS_MS,
        "statestore.cache.max.bytes": 0,
    }
    marks: list[tuple[float, str]] = []
    with ExitStack() as stack:

        def start(name: str) -> Instance:
            return stack.enter_context(Instance(options.language, name, settings, directory))

        old = [start("a"), start("b")]
        announce("Restoring")
        wait_spread(old, options.partitions)
        # Since when there are changes, instances do not only hold what was written before.
        stack.enter_context(Changes(servers, APPLICATION, keys, VALUE_BYTES, options.changes, options.partitions))
        rebalances = stack.enter_context(Rebalances(servers))
        outputs = stack.enter_context(Outputs(servers, APPLICATION, options.partitions))
        wait_until(lambda: len({each[1] for each in list(outputs.seen)}) == options.partitions, "output", TIMEOUT_S)
        marks.append((time.monotonic(), "2 instances"))
        time.sleep(QUIET_S)
        announce("Adding two instances")
        marks.append((time.monotonic(), "+2"))
        new = [start("c"), start("d")]
        wait_spread(old + new, options.partitions)
        marks.append((time.monotonic(), "4 instances"))
        time.sleep(QUIET_S)
        announce("Removing two instances")
        marks.append((time.monotonic(), "-2"))
        leaving = []
        for number, instance in enumerate(new, 1):
            asked = time.monotonic()
            instance.stop()
            leaving.append((asked, time.monotonic()))
            wait_spread(old + new[number:], options.partitions)
        marks.append((time.monotonic(), "2 instances"))
        time.sleep(QUIET_S)
        marks.append((time.monotonic(), ""))
    show(report, outputs.seen, rebalances, leaving, marks, options)


def wait_spread(instances: list[Instance], partitions: int) -> None:
    """Wait until tasks and standbys are spread over instances, all are RUNNING, and no standby has much left to restore."""

    def spread() -> bool:
        for instance in instances:
            instance.check()
        active = [len(instance.active()) for instance in instances]
        standby = [len(instance.standby()) for instance in instances]
        return (
            sum(active) == partitions == sum(standby)
            and max(active) - min(active) <= 1
            and all(instance.last("state") == "RUNNING" for instance in instances)
        )

    def describe() -> str:
        return "; ".join(f"{each}: {each.last('active')} {each.last('standby')}\n{each.log()}" for each in instances)

    def caught_up() -> bool:
        return spread() and all(instance.ask("lag", TIMEOUT_S) <= CAUGHT_UP for instance in instances)

    wait_until(caught_up, describe, TIMEOUT_S, error=SystemExit)


def length(period: Period) -> float:
    """Return the seconds of a period."""
    return period[1] - period[0]


def gaps(seen: Seen, begin: float, end: float, partitions: int) -> list[Period]:
    """Return the times between two outputs in one partition."""
    found, last = [], dict.fromkeys(range(partitions), begin)
    for at, partition, _ in seen:
        if begin <= at <= end:
            found.append((last[partition], at))
            last[partition] = at
    return found + [(at, end) for at in last.values()]


def show(
    report: Report,
    seen: Seen,
    rebalances: Rebalances,
    leaving: Sequence[Period],
    marks: list[tuple[float, str]],
    options: argparse.Namespace,
) -> None:
    """Show phases, verdict and plot."""
    began, ended = marks[0][0], marks[-1][0]
    longest = outside = 0.0
    everything = gaps(seen, began, ended, options.partitions)
    for (begin, name), (end, _) in itertools.pairwise(marks):
        found = sorted((gap for gap in everything if begin <= gap[0] < end), key=length, reverse=True)
        gap_s = length(found[0])
        outside_s = max(length(gap) - rebalances.seconds(*gap, leaving) for gap in found[:LONGEST])
        longest, outside = max(longest, gap_s), max(outside, outside_s)
        count = sum(begin <= at <= end for at, _, _ in seen)
        rebalancing_s = rebalances.seconds(begin, end, leaving)
        row = (
            name,
            f"{end - begin:.0f}",
            f"{rebalancing_s:.1f}",
            f"{count / (end - begin):,.0f}",
            f"{gap_s:.2f}",
            f"{outside_s:.2f}",
        )
        report.add(
            row,
            phase=name,
            seconds=end - begin,
            rebalancing_s=rebalancing_s,
            records=count,
            gap_s=gap_s,
            outside_rebalances_s=outside_s,
        )
    series = {name: [0] * (int(ended - began) + 1) for name in sorted({name for _, _, name in seen})}
    for at, _, name in seen:
        if began <= at <= ended:
            series[name][int(at - began)] += 1
    draw(options.plot, f"Output records per second, {report.title}", series, [(at - began, name) for at, name in marks])
    held = "only stopped during rebalances" if outside <= MARGIN_S else "STOPPED OUTSIDE REBALANCES"
    report.note(
        f"Output {held}: the longest gap in one of {options.partitions} partitions was {longest:.2f} s, and the longest part "
        f"of a gap that was not in a rebalance {outside:.2f} s."
    )
    report.note(
        f"{options.changes} changes per second, {options.guarantee}, one standby, max.warmup.replicas={options.partitions}, "
        f"heartbeat.interval.ms={HEARTBEAT_WITH_STANDBYS_MS}."
    )
    report.note(f"Plot: {options.plot}")
    report.show()


if __name__ == "__main__":
    main()
