"""How soon another instance goes on after SIGKILL, beside Java, on a real broker.

    python -m benchmarks.failover [--session-timeouts 45,6] [--guarantees at_least_once] [--removal-delay 0]

Two instances of a stateful application with four partitions, one stream thread each, whose input changes all the time. One is
killed. The time is that until the *other* instance's first output in each partition of the killed one; the last of them counts.
So it includes the detection, the rebalance, what is left to restore, reading committed offsets, and reprocessing.

Instances are dynamic members of a classic group with default settings, but without a cache, so that every change is written to
the output. Rows *with operator* are those of Millrace in Kubernetes: static members, with standbys a short heartbeat interval.
The operator removes a member from the group when it notices that its process is dead; here this program does so,
`--removal-delay` seconds after the kill.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
import uuid
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.instances import HEARTBEAT_WITH_STANDBYS_MS, LANGUAGES, Instance
from benchmarks.records import Changes, Outputs, create_topics, topics, write_state
from benchmarks.report import Report, add_options, announce
from tests.waiting import wait_until

from millrace.config import StreamsConfig
from millrace.dev.kafka import EmbeddedKafka
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin

PARTITIONS = 4
VALUE_BYTES = 100
START_S = 20
"""An estimate of how long two instances take to start and settle."""
TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured."""

    language: str
    guarantee: str
    session_timeout_s: int
    standbys: int
    operator: bool = False
    """Whether it is as with the operator, which removes the killed member from the group."""

    @property
    def seconds(self) -> int:
        """An estimate of how long it takes."""
        return START_S + (0 if self.operator else self.session_timeout_s)


def cases(languages: list[str], guarantees: list[str], session_timeouts_s: list[int]) -> list[Case]:
    """Return all cases, the languages by turns; those with the operator only for the longest session timeout."""
    found = []
    for guarantee, timeout_s, standbys in itertools.product(guarantees, session_timeouts_s, (0, 1)):
        found += [Case(language, guarantee, timeout_s, standbys) for language in languages]
        if timeout_s == max(session_timeouts_s) and "python" in languages:
            found.append(Case("python", guarantee, timeout_s, standbys, operator=True))
    return found


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.failover",
        description="Seconds from SIGKILL of an instance to the first output of its partitions: Java and Python.",
    )
    parser.add_argument(
        "--session-timeouts", default="45,6", metavar="SECONDS", help="separated by commas (default: %(default)s)"
    )
    parser.add_argument("--guarantees", default="at_least_once", help="separated by commas (default: %(default)s)")
    parser.add_argument("--languages", default=",".join(LANGUAGES), help="default: %(default)s")
    parser.add_argument("--keys", type=int, default=200_000, help="how many the state has (default: %(default)s)")
    parser.add_argument("--changes", type=int, default=500, help="changes per second (default: %(default)s)")
    parser.add_argument(
        "--removal-delay",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="how long after the kill the member is removed (default: %(default)s)",
    )
    parser.add_argument("--repeat", type=int, default=1, help="runs of each; the median counts (default: %(default)s)")
    add_options(parser)
    options = parser.parse_args()
    timeouts_s = [int(seconds) for seconds in options.session_timeouts.split(",")]
    wanted = cases(options.languages.split(","), options.guarantees.split(","), timeouts_s)
    announce(f"This takes about {sum(case.seconds for case in wanted) * options.repeat / 60 + 0.5:.0f} minutes.")
    columns = ("", "session timeout", "standby", "seconds to the first output", "to the last partition's")
    report = Report("failover", "From SIGKILL to the output of the killed instance's partitions", columns, options)
    with EmbeddedKafka(config={"group.initial.rebalance.delay.ms": "0"}) as kafka:
        measured: dict[Case, list[list[float]]] = {case: [] for case in wanted}
        for number in range(options.repeat):
            for position, case in enumerate(wanted, 1):
                announce(f"{position}/{len(wanted)} of run {number + 1}: {case}")
                measured[case].append(measure(case, kafka.bootstrap_servers, options))
        for case, runs in measured.items():
            seconds = sorted(runs, key=max)[len(runs) // 2]
            who = f"{case.language}{' with operator' if case.operator else ''}, {case.guarantee}"
            standby = "yes" if case.standbys else "no"
            row = (who, f"{case.session_timeout_s} s", standby, f"{min(seconds):.2f}", f"{max(seconds):.2f}")
            report.add(row, **asdict(case), seconds=runs)
    report.note(
        f"{options.keys:,} keys of {VALUE_BYTES} bytes in {PARTITIONS} partitions, {options.changes} changes per second."
    )
    report.show()


def measure(case: Case, servers: str, options: argparse.Namespace) -> list[float]:
    """Return the seconds until the other instance's first output, for each partition of the killed one."""
    application = f"failover-{uuid.uuid4().hex[:8]}"
    create_topics(servers, application, PARTITIONS)
    write_state(servers, application, options.keys, VALUE_BYTES, PARTITIONS, lambda _count: None)
    source, sink, _ = topics(application)
    settings = {
        "application.id": application,
        "bootstrap.servers": servers,
        "input": source,
        "output": sink,
        "processing.guarantee": case.guarantee,
        "session.timeout.ms": case.session_timeout_s * 1000,
        "num.standby.replicas": case.standbys,
        "statestore.cache.max.bytes": 0,
        "acceptable.recovery.lag": options.keys + 1,  # both are given tasks at once, however much they have to restore
    }
    if case.operator and case.standbys:
        settings["heartbeat.interval.ms"] = HEARTBEAT_WITH_STANDBYS_MS
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        group = stack.enter_context(GroupAdmin(ClientSettings(StreamsConfig.of(settings_of(settings)), "failover")))
        pair = [
            stack.enter_context(
                Instance(
                    case.language, name, settings | ({"group.instance.id": name} if case.operator else {}), directory
                )
            )
            for name in "ab"
        ]
        stack.enter_context(Changes(servers, application, options.keys, VALUE_BYTES, options.changes, PARTITIONS))
        outputs = stack.enter_context(Outputs(servers, application, PARTITIONS))

        def describe() -> str:
            tasks = "; ".join(f"{each}: {each.last('active')}, {each.last('standby')}\n{each.log()}" for each in pair)
            return f"{case} does not settle: {tasks}; {len(outputs.seen)} outputs, the last {outputs.seen[-4:]}"

        wait_until(lambda: settled(pair, outputs, case), describe, TIMEOUT_S, error=SystemExit)
        killed, other = pair
        partitions = killed.active()
        began = time.monotonic()
        killed.kill()
        if case.operator:
            time.sleep(max(0.0, options.removal_delay - (time.monotonic() - began)))
            group.remove([member for member in group.members() if member.client_id.startswith(f"{killed.name}-")])
        first: dict[int, float] = {}

        def all_found() -> bool:
            for partition in partitions - first.keys():
                at = outputs.first(partition, other.name, began)
                if at is not None:
                    first[partition] = at - began
            return first.keys() == partitions

        wait_until(
            all_found, lambda: f"{case}: {first}\n{other.log()}", TIMEOUT_S, meanwhile=other.check, error=SystemExit
        )
        other.kill()
    return list(first.values())


def settings_of(settings: dict[str, object]) -> dict[str, object]:
    """Return the settings without those of the benchmark's own."""
    return {key: value for key, value in settings.items() if key not in {"input", "output"}}


def settled(pair: list[Instance], outputs: Outputs, case: Case) -> bool:
    """Tell whether each of two instances has half the tasks and writes their output, and the other's as standbys."""
    since = time.monotonic() - 3
    for instance, other in (pair, pair[::-1]):
        instance.check()
        active = instance.active()
        if len(active) != PARTITIONS // 2 or (case.standbys and other.standby() != active):
            return False
        if any(at > since for at, report in instance.reports if "active" in report):
            return False
        if any(outputs.first(partition, instance.name, since) is None for partition in active):
            return False
    return True


if __name__ == "__main__":
    main()
