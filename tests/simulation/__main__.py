"""A campaign: many seeds of many applications in a simulated cluster, on all processors. `make simulate SEEDS=100000`.

A seed's number alone determines the application, its settings, input and faults, so any part of a campaign can be run again.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Final

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table
from tests.topologies.simulated import APPLICATIONS

from millrace.testing.simulation import Simulation, SimulationFailure

_CHUNK: Final = 50
"""How many seeds a process gets at once."""
_ORDER: Final = [name for name, application in APPLICATIONS.items() for _ in range(application.share)]
_STRIDE: Final = 37
"""Prime to a hundred, so that every few seeds are a mix."""


def application_of(seed: int) -> str:
    """Return the name of the application that a seed runs."""
    return _ORDER[seed * _STRIDE % len(_ORDER)]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What became of some seeds in a row."""

    first: int
    seeds: Counter[str]
    """By application."""
    faults: Counter[str]
    simulated_s: float
    failures: list[tuple[int, str, str]]
    """Seed, application and explanation."""


@cache
def _simulation(name: str) -> Simulation:
    return APPLICATIONS[name].simulation()


def run(first: int, count: int) -> Chunk:
    """Run some seeds in a row; one that fails does not end it."""
    chunk_seeds: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    failures = []
    simulated_s = 0.0
    for seed in range(first, first + count):
        name = application_of(seed)
        simulation = _simulation(name)
        chunk_seeds[name] += 1
        faults[name] += len(simulation.plan(seed).faults)
        try:
            simulated_s += simulation.run_seed(seed).elapsed_s
        except SimulationFailure as failure:
            failures.append((seed, name, str(failure)))
        except Exception as error:
            failures.append((seed, name, repr(error)))
    return Chunk(first, chunk_seeds, faults, simulated_s, failures)


def chunks(first: int, count: int, processes: int) -> Iterator[Chunk]:
    """Run seeds in several processes; yields what became of them as it becomes known."""
    with ProcessPoolExecutor(
        processes, initializer=gc.set_threshold, initargs=(20_000, 20, 100)
    ) as pool:  # a tenth less time
        starts = iter(range(first, first + count, _CHUNK))
        running: set[Future[Chunk]] = set()
        try:
            while True:
                for start in islice(starts, 2 * processes - len(running)):
                    running.add(pool.submit(run, start, min(_CHUNK, first + count - start)))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        finally:
            pool.shutdown(cancel_futures=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign and report; return 0 if nothing failed, 1 if something did, 130 after Ctrl+C."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument(
        "--first", type=int, default=0, help="the first one; to go on, what the last run said at its end"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="all processors if not given")
    options = parser.parse_args(arguments)
    console = Console()
    seeds: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    simulated_s = 0.0
    waiting = set(range(options.first, options.first + options.seeds, _CHUNK))
    interrupted = False
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=console) as progress:
        bar = progress.add_task("Simulating", total=options.seeds)
        try:
            for chunk in chunks(options.first, options.seeds, options.processes):
                waiting.discard(chunk.first)
                seeds.update(chunk.seeds)
                faults.update(chunk.faults)
                simulated_s += chunk.simulated_s
                for seed, name, explanation in chunk.failures:
                    failed[name] += 1
                    console.print(f"Seed {seed} ({name}) failed: {explanation}\n", markup=False, highlight=False)
                progress.advance(bar, chunk.seeds.total())
        except KeyboardInterrupt:
            interrupted = True
    table = Table("application", "seeds", "faults", "failed")
    for name in APPLICATIONS:
        table.add_row(name, f"{seeds[name]:,}", f"{faults[name]:,}", str(failed[name]))
    table.add_section()
    table.add_row("all", f"{seeds.total():,}", f"{faults.total():,}", str(failed.total()))
    console.print(table, f"{simulated_s / 3600:,.0f} hours of virtual time")
    if interrupted:
        console.print(f"Interrupted; go on with --first {min(waiting)}")
        return 130
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
