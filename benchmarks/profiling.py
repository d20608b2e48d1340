"""Flame graphs of a word count and of a restoration: in which functions the time goes.

    python -m benchmarks.profiling [--records 2000000] [--cases words,restoration]

The programs are those of the benchmarks beside Java, on a real broker. py-spy samples the process 200 times per second, with the
functions of its C libraries, from the moment it begins; it needs the right to trace a child process. Only the threads that
process and restore count, and not while they wait. The client library's own threads are not seen. The graphs are written to
`docs/flame-*.svg`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.environments import environment
from benchmarks.flame_graph import Stacks, draw
from benchmarks.instances import Instance
from benchmarks.peers.cases import CASES, PEERS, RESTORATION, Case
from benchmarks.peers.runs import run, write_restoration
from benchmarks.programs import Names, write_input
from benchmarks.report import PAGE, announce
from benchmarks.restoration import restore
from benchmarks.topics import PARTITIONS

from millrace.dev.kafka import EmbeddedKafka

_KEYS = 50_000
_TIMEOUT_S = 120.0
_MILLRACE = next(peer for peer in PEERS if peer.name == "millrace")
_THREADS = ("StreamThread._run ", "StateUpdater._run ")
_WAITING = ("pthread_cond_timedwait", "pthread_cond_wait", "epoll_wait", "poll ", "lock_PyThread_acquire_lock")
_RESTORED_PER_RECORD = 2
"""Restoring is so fast that more records are needed for as many samples."""


def main() -> None:
    """Sample the cases, and write their graphs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profiling", description="Draw where Millrace's time goes, as flame graphs in docs/."
    )
    cases = {case.name: case for case in CASES}
    parser.add_argument(
        "--records", type=int, default=2_000_000, help="of input; twice as many are restored (default: %(default)s)"
    )
    parser.add_argument("--cases", default="words,restoration", help="separated by commas (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=PAGE.parent, help="for the graphs (default: docs)")
    options = parser.parse_args()
    chosen = [cases[name] for name in options.cases.split(",")]
    environment("py-spy")
    announce("This takes about three minutes.")
    with EmbeddedKafka() as kafka:
        for case in chosen:
            stacks = _sample(case, kafka.bootstrap_servers, options.records)
            path = options.folder / f"flame-{case.title.split(',')[0].replace(' ', '-')}.svg"
            draw(path, f"{case.title}: {sum(stacks.values()):,} samples", stacks)
            announce(f"Wrote {path}")


def _sample(case: Case, servers: str, records: int) -> Stacks:
    """Run a case, and return the stacks that were seen and how often."""
    with tempfile.TemporaryDirectory() as directory:
        raw = Path(directory) / "stacks"
        samplers: list[subprocess.Popen[bytes]] = []

        def started(instance: Instance) -> None:
            samplers.append(_start_sampler(instance, raw))

        announce(f"Writing {records:,} records, then running: {case.title}")
        _program(case, servers, records)(started)
        for sampler in samplers:
            sampler.wait(_TIMEOUT_S)
        stacks: Stacks = Counter()
        for line in raw.read_text().splitlines():
            frames, _, count = line.rpartition(" ")
            stack = _of_runtime(re.sub(r":\d+\)", ")", frames).split(";"))
            if stack and not any(frame.startswith(_WAITING) for frame in stack):
                stacks[stack] += int(count)
    return stacks


def _of_runtime(frames: list[str]) -> tuple[str, ...]:
    """Return the functions from a thread of the runtime on, without those that have no name; none of another thread."""
    first = next((number for number, frame in enumerate(frames) if frame.startswith(_THREADS)), len(frames))
    return tuple(frame for frame in frames[first:] if not frame.startswith("0x"))


def _program(case: Case, servers: str, records: int) -> Callable[[Callable[[Instance], None]], object]:
    """Write the input of a case; return the function that runs it."""
    if case.name == RESTORATION:
        keys = records * _RESTORED_PER_RECORD
        written = write_restoration(servers, case.name, keys, lambda _count: None)
        return lambda started: restore("python", servers, case.name, PARTITIONS, written, started)
    names, start_ms = Names(f"{case.program}-input"), int(time.time() * 1000) - records
    expected = write_input(servers, case.program, names, records, _KEYS, start_ms, lambda _count: None)
    return lambda started: run(case, _MILLRACE, names, expected, servers, lambda _share: None, started)


def _start_sampler(instance: Instance, raw: Path) -> subprocess.Popen[bytes]:
    """Sample a process until it ends."""
    options = ("--rate", "200", "--native", "--function", "--format", "raw", "--output", str(raw))
    command = (str(environment("py-spy") / "py-spy"), "record", *options, "--pid", str(instance.process.pid))
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
