"""How fast a backfill is, beside the live engine that catches up on the same records, on a real broker and real Spark.

    python -m benchmarks.backfill [--records 2000000,10000000] [--programs words,windows,join,stateless] [--cores 1,2]

For each program and number of records the input is written once. Then there is, each in a process of its own,

* *live*: one instance with one stream thread and default settings, until it has processed everything and closed;
* *backfill*: what the command `millrace backfill` does, in Spark with `local[1]` and `local[2]`, until all is committed;
* for programs of which all outputs are kept, *in parts*: the same if these are more than one transaction takes;
* for the word count *groupBy.count*: the same records, read in the same way, counted by Spark itself. This is a lower bound.

Wall clock and CPU count from the moment at which interpreter, JVM and one Python worker are there. CPU is that of all processes:
the driver, its JVM, and the Python workers; the live engine has one process, with its clients' threads. The brokers' is left out.
*Records/s and core* is the number of input records divided by CPU seconds; *of live* compares that with the live engine's in the
same run. Memory is the largest sum over all processes, shared pages counted once.

Everything is checked: final stores or outputs against counts made while the input was written, and numbers of processed and
dropped records.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.process_tree import PeakMemory
from benchmarks.programs import OUTPUTS, TITLES, Expected, Names, found_in_kafka, write_input
from benchmarks.report import Report, add_options, announce, progress
from benchmarks.topics import PARTITIONS, Digest, create_topics, delete_topics

from millrace.dev.java import find_java
from millrace.dev.kafka import EmbeddedKafka

SECONDS_PER_MILLION = 60
"""An estimate for the announcement: writing, all runs of one program, and the checks."""
TIMEOUT_S = 7200.0


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    what: str
    """`live`, `backfill`, `parts` or `spark`."""
    cores: int = 1

    def __str__(self) -> str:
        names = {"live": "live, one instance", "spark": "groupBy.count", "parts": "backfill in parts"}
        name = names.get(self.what, self.what)
        return name if self.what == "live" else f"{name}, local[{self.cores}]"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.backfill",
        description="Records per second and core of a backfill and of the live engine.",
    )
    parser.add_argument("--records", default="2000000,10000000", help="numbers of records (default: %(default)s)")
    parser.add_argument("--programs", default=",".join(TITLES), help="separated by commas (default: %(default)s)")
    parser.add_argument("--cores", default="1,2", help="numbers of Spark's cores (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=50_000, help="how many (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each; least CPU counts (default: %(default)s)")
    add_options(parser)
    options = parser.parse_args()
    sizes = [int(records) for records in options.records.split(",")]
    cores = [int(count) for count in options.cores.split(",")]
    programs = options.programs.split(",")
    minutes = sum(sizes) / 1e6 * len(programs) * SECONDS_PER_MILLION * options.repeat / 60
    announce(f"This takes about {minutes + 1:.0f} minutes.")
    columns = ("", "records", "seconds", "CPU s", "records/s", "records/s and core", "of live", "peak MiB")
    report = Report("backfill", "Backfills beside the live engine", columns, options)
    with tempfile.TemporaryDirectory() as directory, EmbeddedKafka() as kafka:
        for records in sizes:
            for program in programs:
                measure_program(program, records, cores, kafka.bootstrap_servers, Path(directory), options, report)
    report.note(
        f"{options.keys:,} keys, {PARTITIONS} partitions, one stream thread in the live instance; all stores and outputs were as "
        "counted while the input was written."
    )
    report.show()


def measure_program(
    program: str,
    records: int,
    cores: list[int],
    servers: str,
    directory: Path,
    options: argparse.Namespace,
    report: Report,
) -> None:
    """Write the input of one program, run everything on it, and add the rows."""
    names = Names(f"{program}-{records}")
    start_ms = int(time.time() * 1000) - records  # recent, so that the brokers keep the records
    with progress() as bar:
        task = bar.add_task(f"Writing {records:,} records", total=records)
        expected = write_input(
            servers, program, names, records, options.keys, start_ms, lambda count: bar.advance(task, count)
        )
    cases = [Case("live"), *(Case("backfill", count) for count in cores)]
    if OUTPUTS[program] == "all":
        cases += [Case("parts", count) for count in cores]
    if program == "words":
        cases.append(Case("spark"))
    runs: dict[Case, list[dict[str, Any]]] = {case: [] for case in cases}
    for _ in range(options.repeat):
        for case in cases:
            announce(f"{TITLES[program]}, {records:,} records: {case}")
            runs[case].append(run(case, program, names, expected, servers, directory))
    best = {case: min(found, key=lambda each: each["cpu_seconds"]) for case, found in runs.items()}
    live_cpu = best[Case("live")]["cpu_seconds"]
    for case, found in best.items():
        row = (
            f"{TITLES[program]}: {case}",
            f"{records:,}",
            f"{found['seconds']:.1f}",
            f"{found['cpu_seconds']:.1f}",
            f"{records / found['seconds']:,.0f}",
            f"{records / found['cpu_seconds']:,.0f}",
            f"{live_cpu / found['cpu_seconds']:.2f}",
            f"{found['peak_mib']:.0f}",
        )
        report.add(row, program=program, records=records, **asdict(case), runs=runs[case])
    delete_topics(servers, names.source)


def run(case: Case, program: str, names: Names, expected: Expected, servers: str, directory: Path) -> dict[str, Any]:
    """Run one process, and check what it has computed."""
    application = f"{program}-{uuid.uuid4().hex[:8]}"
    create_topics(servers, names.sink(application))
    wanted = {
        **asdict(case),
        "program": program,
        "source": names.source,
        "application": application,
        "servers": servers,
        "directory": str(directory),
        "processed": expected.processed,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.backfill_process", json.dumps(wanted)],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "JAVA_HOME": str(find_java().executable.resolve().parent.parent),
            "PYTHONPATH": os.pathsep.join(path for path in [str(Path.cwd()), *sys.path] if path),
            "SPARK_LOCAL_DIRS": str(directory),
        },
    )
    with PeakMemory(process.pid) as memory:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    if process.returncode:
        raise SystemExit(f"{case} has failed")
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    if case.what == "spark":
        found = Expected(Digest(**report.pop("digest")), report["processed"] * 2)
    else:
        digest = found_in_kafka(servers, program, names, application)
        found = Expected(digest, report["processed"], report["dropped"])
    if found != expected:
        raise SystemExit(f"{case} of {program}: {found} instead of {expected}")
    kind = "records of output" if OUTPUTS[program] == "all" else "keys in the store"
    announce(f"{found.processed:,} processed, {found.dropped:,} dropped; {found.digest.records:,} {kind}")
    delete_topics(servers, application)
    return {**report, "peak_mib": memory.mib}


if __name__ == "__main__":
    main()
