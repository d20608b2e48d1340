"""Chaos against real brokers, and a count of every record: `make soak MINUTES=60`, or `python -m tests.soak --help`."""

from __future__ import annotations

import argparse
import json
import logging
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from itertools import count
from pathlib import Path

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from tests.soak.administration import BROKERS
from tests.soak.network import Network
from tests.soak.phase import Phase, Result
from tests.soak.replicas import SAMPLES
from tests.soak.resources import picture, read_samples, write_csv

from millrace.dev.kafka import EmbeddedKafka
from millrace.errors import DevKafkaError

APPLICATIONS = {
    "eos-static": ("classic", True, True),
    "alo-streams": ("streams", False, False),
    "eos-dynamic": ("classic", True, False),
    "alo-static": ("classic", False, True),
    "eos-streams": ("streams", True, False),
    "alo-dynamic": ("classic", False, False),
}
"""The group protocol, whether it is exactly-once, and whether members are static, which the streams protocol does not have."""
_LONGEST_PHASE_S = 300.0
_SHORTEST_PHASE_S = 10.0
_LINE_EVERY_S = 10.0
_TABLE_WIDTH = 190
_FIGURES = {
    "records in": "in",
    "records out": "out",
    "restored": "restored",
    "rebalances": "rebalances",
    "processes started": "starts",
    "connections cut": "cuts",
    "aborts": "aborts",
    "fenced": "fenced",
    "undelivered": "undelivered",
    "refused": "refused",
    "threads replaced": "replaced",
    "wiped": "wiped",
    "lost": "lost",
    "repeated": "repeated",
    "wrong": "wrong",
    "stores compared": "stores",
}
"""In display order, with titles for a narrow column."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make soak MINUTES=… SOAK_ARGS='…'",
        description="Run three instances on real brokers while processes, brokers and connections fail, with a phase for each "
        "guarantee and kind of membership, and compare every output record with what plain Python computes. "
        "Exits with 0 if the guarantees held, with 1 if not, and with 2 if an application got stuck.",
    )
    parser.add_argument(
        "--minutes", type=float, default=4.0, help="how long to inject faults, shared by all applications"
    )
    parser.add_argument(
        "--seed", default=secrets.token_hex(4), help="repeat the plan of a run, or with SEED/N from its nth phase on"
    )
    parser.add_argument("--only", choices=APPLICATIONS, action="append", help="only this application (can be repeated)")
    parser.add_argument(
        "--rate", type=int, default=80, help="events per second; all inputs together get about twice as many records"
    )
    parser.add_argument("--brokers", type=int, default=3, help="brokers; with three, they are restarted and killed too")
    parser.add_argument(
        "--patience",
        type=float,
        default=120.0,
        help="seconds without progress or faults until an application counts as stuck",
    )
    parser.add_argument("--directory", type=Path, help="for logs, state and the summary (default: a new one in /tmp)")
    parser.add_argument("--keep-going", action="store_true", help="continue after a phase that failed")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, console: Console) -> int:
    """Run all phases; return the exit code."""
    directory = options.directory or Path(tempfile.mkdtemp(prefix="millrace-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=directory / "soak.log", level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    console.print(f"Seed {options.seed}; logs in {directory}")
    chosen = options.only or list(APPLICATIONS)
    seed, _, first = options.seed.partition("/")
    seconds = options.minutes * 60
    phase_s = max(_SHORTEST_PHASE_S, min(_LONGEST_PHASE_S, seconds / len(chosen)))
    results: list[Result] = []
    display = Display(console, results)
    network = Network(options.brokers)
    with (
        network,
        EmbeddedKafka(options.brokers, advertised_ports=network.ports, config=BROKERS) as kafka,
        display,
    ):
        network.upstream = kafka.proxied_ports
        interrupted = False
        try:
            for number in count():
                left_s = seconds - number * phase_s
                failed = any(result.verdict != "passed" for result in results)
                if (left_s < phase_s / 2 and number >= len(chosen)) or (failed and not options.keep_going):
                    break
                name = chosen[number % len(chosen)]
                protocol, exactly_once, static = APPLICATIONS[name]
                nth = int(first or 1) + number
                application = f"{name}-{nth}"
                phase = Phase(
                    kafka,
                    network,
                    directory / application,
                    application,
                    protocol=protocol,
                    exactly_once=exactly_once,
                    static=static,
                    seconds=phase_s,
                    rate=options.rate,
                    seed=f"{seed}/{nth}",
                    patience_s=options.patience,
                    show=display.show,
                )
                results.append(phase.run())
                display.tell(results[-1])
        except DevKafkaError as error:
            problem = f"The brokers could not be used: {error}"
            results.append(Result("", application, options.seed, verdict="failed", problems=[problem]))
        except KeyboardInterrupt:
            interrupted = True
            console.print("Interrupted; the phases so far:")
    code = conclude(results, options.seed, directory, console)
    return 130 if interrupted else code


class Display:
    """A live table in a terminal, otherwise a line every few seconds."""

    def __init__(self, console: Console, results: list[Result]) -> None:
        self._console = console
        self._results = results
        self._line_at = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> None:
        if self._live is not None:
            self._live.start()

    def __exit__(self, *_exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, phase: Phase) -> None:
        """Show the progress of a phase."""
        if self._live is not None:
            self._live.update(_table(phase), refresh=True)
        elif time.monotonic() - self._line_at >= _LINE_EVERY_S:
            self._line_at = time.monotonic()
            figures = phase.figures()
            replicas = ", ".join(replica.summary() for replica in phase.replicas)
            self._console.print(
                f"{phase.result.application}: {phase.doing}, {phase.left_s:.0f} s left; {figures['records in']:,} in, "
                f"{figures['records out']:,} out; {phase.chaos.last or 'no fault yet'}; {replicas}"
            )

    def tell(self, result: Result) -> None:
        """Report how a phase ended."""
        self._console.print(
            f"{result.application}: {result.verdict} ({result.name}): {result.figures['records in']:,} records in, "
            f"{result.figures['records out']:,} out, {total_faults(result.figures)} faults, settled in {result.settled_s} s"
        )
        for problem in result.problems:
            self._console.print(f"  {problem}", markup=False)


def _table(phase: Phase) -> Table:
    figures = phase.figures()
    table = Table("", "", title=f"{phase.result.application}: {phase.doing}", show_header=False)
    table.add_row("left", f"{phase.left_s:.0f} s")
    table.add_row("last fault", phase.chaos.last)
    table.add_row("since the last output", f"{phase.reader.gap_s:.1f} s")
    for replica in phase.replicas:
        table.add_row(replica.name, replica.summary())
    for name in _FIGURES:
        if figures[name]:
            table.add_row(name, f"{figures[name]:,}")
    return table


def total_faults(figures: Counter[str]) -> int:
    """Return how many faults there were."""
    return sum(number for name, number in figures.items() if name.startswith("fault: "))


def conclude(results: Sequence[Result], seed: str, directory: Path, console: Console) -> int:
    """Write and print the summary and the verdict; return the exit code."""
    verdicts = {result.verdict for result in results}
    verdict = "stuck" if "stuck" in verdicts else "passed" if verdicts == {"passed"} else "failed"
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.figures)
    columns = ("phase", "verdict", *_FIGURES.values(), "gap s", "settled s")
    table = Table(*columns, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in table.columns[2:]:
        column.justify = "right"
    for result in results:
        figures = (f"{result.figures[name]:,}" for name in _FIGURES)
        table.add_row(result.application, result.verdict, *figures, str(result.longest_gap_s), str(result.settled_s))
    longest = str(max((result.longest_gap_s for result in results), default=0.0))
    table.add_row("total", verdict, *(f"{total[name]:,}" for name in _FIGURES), longest, "")
    faults = {name.removeprefix("fault: "): total[name] for name in sorted(total) if name.startswith("fault: ")}
    lines = [f"{total_faults(total)} faults: {', '.join(f'{name} {number}' for name, number in faults.items())}"]
    for result in results:
        found = (*result.problems, *(f"allowed: {note}" for note in result.notes))
        lines += [f"{result.application} (seed {result.seed}): {text}" for text in found]
    lines.append(f"{verdict.upper()} (seed {seed}); figures in {directory / 'summary.json'}")
    phases = [{field.name: getattr(result, field.name) for field in fields(result)} for result in results]
    summary = {"verdict": verdict, "seed": seed, "total": total, "phases": phases}
    (directory / "summary.json").write_text(json.dumps(summary, indent=2))
    samples = [sample for path in sorted(directory.glob(f"*/{SAMPLES}")) for sample in read_samples(path)]
    samples.sort(key=lambda sample: sample.time_s)
    if samples:
        write_csv(samples, directory / "resources.csv")
        title = f"Seed {seed}: {total_faults(total)} faults in {len(results)} phases, {verdict}"
        (directory / "resources.svg").write_text(picture(samples, title))
    with (directory / "summary.txt").open("w") as file:
        for output in (file, console.file):
            each = Console(file=output, width=_TABLE_WIDTH, highlight=False)
            each.print(table)
            for line in lines:
                each.print(line, markup=False, soft_wrap=True)
    return {"passed": 0, "failed": 1, "stuck": 2}[verdict]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run(parse(sys.argv[1:]), Console(highlight=False, soft_wrap=True)))
