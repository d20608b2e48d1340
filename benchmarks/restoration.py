"""How fast state is restored from a changelog, beside Java, on a real broker.

    python -m benchmarks.restoration [--keys 1000000,10000000] [--partitions 1,4] [--repeat 1]

Each run is one instance with one stream thread and an empty disk: Java and Python by turns, in reverse order every second time.
The time is that between the start of the first restoration and the end of the last, as a restore listener sees them, so starting
the process does not count; CPU is that of the process in the same time. Afterwards the number of keys in the store and their
checksum must be those of the changelog.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.instances import LANGUAGES, Instance
from benchmarks.records import Written, create_topics, delete_topics, topics, write_state
from benchmarks.report import Report, add_options, announce, progress

from millrace.dev.kafka import EmbeddedKafka

SECONDS_PER_MILLION = {"written": 5, "java": 6, "python": 12}
"""Estimates for the announcement, with the check of the store."""
TIMEOUT_S = 1800.0


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.restoration",
        description="Records per second restored from a changelog: Java and Python.",
    )
    parser.add_argument("--keys", default="1000000,10000000", help="numbers of keys (default: %(default)s)")
    parser.add_argument("--partitions", default="1,4", help="numbers of partitions (default: %(default)s)")
    parser.add_argument("--value-bytes", type=int, default=100, help="the size of a value (default: %(default)s)")
    parser.add_argument("--languages", default=",".join(LANGUAGES), help="separated by commas (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each; the fastest counts (default: %(default)s)")
    add_options(parser)
    options = parser.parse_args()
    sizes = [(int(keys), int(count)) for keys in options.keys.split(",") for count in options.partitions.split(",")]
    languages = options.languages.split(",")
    seconds = sum(
        keys
        / 1e6
        * (SECONDS_PER_MILLION["written"] + options.repeat * sum(SECONDS_PER_MILLION[each] for each in languages))
        for keys, _ in sizes
    )
    announce(f"This takes about {seconds / 60 + 1:.0f} minutes.")
    columns = ("state", "language", "records/s", "seconds", "CPU s", "peak MiB")
    report = Report("restoration", "Restoring a key-value store", columns, options)
    with EmbeddedKafka() as kafka:
        for keys, partitions in sizes:
            application = f"restore-{keys}-{partitions}"
            create_topics(kafka.bootstrap_servers, application, partitions)
            with progress() as bar:
                task = bar.add_task(f"Writing {keys:,} keys", total=keys)
                written = write_state(
                    kafka.bootstrap_servers,
                    application,
                    keys,
                    options.value_bytes,
                    partitions,
                    lambda count, bar=bar, task=task: bar.advance(task, count),
                )
            runs: dict[str, list[dict[str, float]]] = {language: [] for language in languages}
            for number in range(options.repeat):
                for language in languages if number % 2 == 0 else reversed(languages):
                    announce(f"{language} restores {keys:,} keys in {partitions} partitions")
                    runs[language].append(restore(language, kafka.bootstrap_servers, application, partitions, written))
            for language in languages:
                best = min(runs[language], key=lambda run: run["seconds"])
                row = (
                    f"{keys:,} keys, {partitions} partition{'s'[: partitions > 1]}",
                    language,
                    f"{keys / best['seconds']:,.0f}",
                    f"{best['seconds']:.1f}",
                    f"{best['cpu_seconds']:.1f}",
                    f"{best['peak_mib']:.0f}",
                )
                report.add(row, keys=keys, partitions=partitions, language=language, runs=runs[language])
            delete_topics(kafka.bootstrap_servers, application)
    report.note(
        f"Values have {options.value_bytes} bytes; one stream thread; every store had the changelog's keys and checksum."
    )
    report.show()


def restore(
    language: str,
    servers: str,
    application: str,
    partitions: int,
    written: Written,
    started: Callable[[Instance], None] = lambda _instance: None,
) -> dict[str, float]:
    """Run one instance with an empty disk until it has restored everything; `started` is told the instance."""
    source, sink, _ = topics(application)
    settings = {
        "application.id": application,
        "bootstrap.servers": servers,
        "input": source,
        "output": sink,
        "num.stream.threads": 1,
    }
    with (
        tempfile.TemporaryDirectory() as directory,
        Instance(language, f"{language}-1", settings, Path(directory)) as instance,
    ):
        started(instance)
        instance.wait(
            lambda each: (
                each.last("state") == "RUNNING" and each.last("left") == 0 and len(each.active()) == partitions
            ),
            "restores",
            TIMEOUT_S,
        )
        peak_mib = instance.peak_mib()
        if instance.last("restored") != written.records:
            raise SystemExit(f"{instance} restored {instance.last('restored')} of {written.records} records")
        found = instance.ask("check", TIMEOUT_S)
        if found != {"keys": written.records, "checksum": written.checksum}:
            raise SystemExit(f"{instance} has {found} in its stores instead of {written}")
        instance.stop()
        return {
            "seconds": instance.last("seconds"),
            "cpu_seconds": instance.last("cpu_seconds"),
            "peak_mib": peak_mib,
        }


if __name__ == "__main__":
    main()
