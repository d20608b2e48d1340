"""One phase: an application with one guarantee and one kind of membership, from its topics to its verdict."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from tests.committed_offsets import committed as offsets_of
from tests.instance.support import settings
from tests.kafka.support import set_group
from tests.soak import administration
from tests.soak.chaos import DELIVERY_TIMEOUT_S, SESSION_TIMEOUT_S, TRANSACTION_TIMEOUT_S, Chaos, plan
from tests.soak.feeding import KEYS, Feeder
from tests.soak.model import compare, take_what_is_allowed
from tests.soak.network import Network
from tests.soak.reading import Reader, end_offsets
from tests.soak.replicas import SAMPLES, Replica
from tests.soak.resources import grown, read_samples
from tests.soak.states import compare_states, read_changelogs
from tests.topologies.soak import INPUTS, OUTPUTS, PARTITIONS, topic

from millrace.dev.kafka import EmbeddedKafka
from millrace.errors import StreamsError
from millrace.records import TopicPartition

_log = logging.getLogger("soak")

_NAMES = ("one", "two", "three")
_SPARE = "four"
_STANDBYS = {
    "num.standby.replicas": 1,
    "acceptable.recovery.lag": 100,
    "probing.rebalance.interval.ms": 60_000,
}
_GROUP = {
    "streams.num.standby.replicas": "1",
    "streams.session.timeout.ms": str(int(SESSION_TIMEOUT_S * 1000)),
    "streams.heartbeat.interval.ms": "500",
}
"""Settings of the group, which take the place of the instances' with `group.protocol=streams`."""
_LOOK_EVERY_S = 1.0
_QUIET_S = 3.0
"""How long to listen at the end for anything more: duplicates would arrive then."""
_NO_MORE_S = 20.0
"""What has not arrived this long after the last output, with all instances idle, is lost."""
_LIVELOCK_ABORTS = 20
"""This many aborted transactions after the last fault are no longer its consequence."""


@dataclass(slots=True)
class Result:
    """The result of a phase."""

    name: str
    application: str
    seed: str
    verdict: str = "running"
    """passed, failed or stuck."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the guarantee allows, but is worth reporting."""
    figures: Counter[str] = field(default_factory=Counter)
    longest_gap_s: float = 0.0
    settled_s: float = 0.0
    """How long after the last fault everything was processed."""


class Stuck(Exception):  # noqa: N818 (it is a verdict)
    """Nothing has made progress for too long."""


class Phase:
    """Runs one phase.

    Args:
        kafka: the brokers.
        network: the proxies in front of them.
        directory: for the instances' state and logs.
        application: the application's id, which its topics' names start with.
        protocol: classic or streams.
        exactly_once: the guarantee; otherwise at-least-once.
        static: whether the instances are static members.
        seconds: how long things go wrong.
        rate: events per second.
        seed: for the plan and the input.
        patience_s: how long the phase may make no progress, without faults, before it is stuck.
        show: called about once a second.
    """

    def __init__(
        self,
        kafka: EmbeddedKafka,
        network: Network,
        directory: Path,
        application: str,
        *,
        protocol: str,
        exactly_once: bool,
        static: bool,
        seconds: float,
        rate: int,
        seed: str,
        patience_s: float,
        show: Callable[[Phase], None],
    ) -> None:
        guarantee = "exactly_once_v2" if exactly_once else "at_least_once"
        name = f"{guarantee}, {'static' if static else 'dynamic'} members, group.protocol={protocol}"
        self.result = Result(name, application, seed)
        self.doing = "starting"
        self.left_s = seconds
        self._kafka = kafka
        self._network = network
        self._application = application
        self._exactly_once = exactly_once
        self._seconds = seconds
        self._patience_s = patience_s
        self._show = show
        self._cuts_before = network.cut
        self._ran: set[tuple[str, str]] = set()
        directory.mkdir(parents=True)
        config = settings(
            network.bootstrap_servers,
            application,
            directory,
            processing_guarantee=guarantee,
            session_timeout_ms=int(SESSION_TIMEOUT_S * 1000),
            producer_delivery_timeout_ms=int(DELIVERY_TIMEOUT_S * 1000),
            group_protocol=protocol,
        )
        config |= administration.CLIENTS
        if exactly_once:
            config["producer.transaction.timeout.ms"] = int(TRANSACTION_TIMEOUT_S * 1000)
        if protocol == "streams":
            set_group({"application.id": application, "bootstrap.servers": kafka.bootstrap_servers}, _GROUP)
        else:
            config |= _STANDBYS
        self._directory = directory
        self.replicas = [Replica(each, application, config, directory, static=static) for each in _NAMES]
        self._spare = Replica(_SPARE, application, config, directory, static=static)
        topics = [topic(application, each) for each in INPUTS + OUTPUTS]
        kafka.create_topics(*topics, partitions=PARTITIONS)
        self.reader = Reader(kafka, application)
        self.feeder = Feeder(kafka.bootstrap_servers, application, rate, seed)
        faults = plan(seed, seconds, replicas=len(_NAMES), brokers=len(kafka.broker_ids), exactly_once=exactly_once)
        self.chaos = Chaos(application, kafka, network, self.replicas, self._spare, self.reader.closed_ms, faults)

    def run(self) -> Result:
        """Run it, and return the result; topics of a phase that passed are deleted."""
        result = self.result
        try:
            self._start()
            self._go_wrong()
            self._settle()
            self._judge()
            result.verdict = "failed" if result.problems else "passed"
        except Stuck as error:
            result.verdict = "stuck"
            result.problems.append(str(error))
            self._judge_outputs()
        except Exception as error:
            _log.exception("The soak itself failed")
            result.verdict = "failed"
            result.problems.append(f"The soak itself failed while {self.doing}, see soak.log: {error!r}")
        finally:
            self.feeder.stop()
            self.chaos.stop()
            self._network.rules = set()
            for replica in self._all:
                replica.kill()
            self.reader.close()
            self._count()
        if result.verdict == "passed":
            self._delete_topics()
        return result

    @property
    def _all(self) -> list[Replica]:
        return [*self.replicas, self._spare]

    def figures(self) -> Counter[str]:
        """Return the counts so far."""
        figures: Counter[str] = Counter()
        for replica in self._all:
            figures.update(replica.figures())
        figures.update({f"fault: {kind}": count for kind, count in self.chaos.counts.items()})
        figures["records in"] = self.feeder.inputs.records
        figures["records out"] = self.reader.records
        figures["connections cut"] = self._network.cut - self._cuts_before
        figures["processes started"] = sum(replica.starts for replica in self._all)
        return figures

    def _start(self) -> None:
        self.feeder.load_tables()
        for replica in self.replicas:
            replica.start()
        self._wait(lambda: len(self.reader.outputs["versions"]) >= KEYS, "the tables are loaded")
        self.feeder.start()
        self._wait(lambda: len(self.reader.outputs["joined"]) > 0, "the first event is joined")

    def _go_wrong(self) -> None:
        self.doing = "chaos"
        self.reader.watch_gaps(on=True)
        self.chaos.start()
        deadline = time.monotonic() + self._seconds
        while (left_s := deadline - time.monotonic()) > 0:
            self.left_s = left_s
            self._look()
            time.sleep(min(_LOOK_EVERY_S, left_s))
        self.left_s = 0.0
        self.doing = "ending faults"
        self.chaos.finish()

    def _settle(self) -> None:
        self.doing = "settling"
        began, aborts = time.monotonic(), self.figures()["aborts"]
        self.feeder.finish()
        self._wait(lambda: not self._unfinished(), lambda: f"everything is processed: {self._unfinished()}")
        self.result.settled_s = round(time.monotonic() - began, 1)
        self.reader.watch_gaps(on=False)
        more = self.figures()["aborts"] - aborts
        if more >= _LIVELOCK_ABORTS:
            self.result.problems.append(f"{more} transactions were aborted after the last fault")
        seen, quiet_since = self.reader.records, time.monotonic()
        while time.monotonic() - quiet_since < _QUIET_S:
            self._look()
            time.sleep(_LOOK_EVERY_S)
            if self.reader.records != seen:
                seen, quiet_since = self.reader.records, time.monotonic()
        self.doing = "waiting for standbys"
        self._wait(lambda: not self._without_standby(), lambda: f"every task has a standby: {self._without_standby()}")
        self._ran = {(name, task) for tasks in self._caught_up() for task, name in tasks.items()}
        self.doing = "stopping"
        for replica in self.replicas:
            replica.stop()
            replica.check()
        self._wait(
            lambda: not self.reader.behind(), lambda: f"the outputs can be read to their ends: {self.reader.behind()}"
        )

    def _wait(self, condition: Callable[[], object], what: str | Callable[[], str]) -> None:
        """Wait as long as there is progress; raise `Stuck` if there is none for `patience_s`."""
        moved, moved_at = self._position(), time.monotonic()
        began = moved_at
        while not _answered(condition):
            self._look()
            time.sleep(_LOOK_EVERY_S)
            position = self._position()
            if position != moved:
                moved, moved_at = position, time.monotonic()
            if not any(replica.alive for replica in self.replicas):
                raise Stuck("Every instance has ended")
            # Work that is done and discarded again counts as progress too, so that has a limit as well.
            if time.monotonic() - moved_at > self._patience_s or time.monotonic() - began > 5 * self._patience_s:
                text = what if isinstance(what, str) else _answered(what)
                raise Stuck(f"After {time.monotonic() - began:.0f} s it is not so that {text}.{self._report()}")

    def _position(self) -> tuple[int, ...]:
        return self.reader.records, sum(replica.figures().get("commits", 0) for replica in self.replicas)

    def _report(self) -> str:
        lines = []
        for replica in self.replicas:
            status = replica.status()
            tasks = [f"{task['id']} {task['state']}" for task in status.get("tasks", ())]
            waits = [
                f"{each['name']} {each['state']}, waits for {each['waits_for']}" for each in status.get("threads", ())
            ]
            lines.append(f"\n  {replica.name}: {replica.summary()}; {waits}; {tasks}{replica.tail()}")
        return "".join(lines)

    def _look(self) -> None:
        for replica in self._all:
            replica.check()
        self._show(self)

    def _unfinished(self) -> str:
        """Return what is still missing, or nothing."""
        findings = compare(self.feeder.inputs, self.reader.outputs, exactly_once=self._exactly_once)
        lost = {name: len(each.lost) for name, each in findings.items() if each.lost}
        behind = self._uncommitted()
        if not behind and self.reader.gap_s > _NO_MORE_S and all(replica.idle for replica in self.replicas):
            return ""  # what is missing now will not arrive any more
        return f"lost so far {lost}, not committed {behind}" if lost or behind else ""

    def _without_standby(self) -> str:
        """Return the tasks without exactly one running active task and a standby that has caught up, or nothing."""
        active, standbys = self._caught_up()
        wrong = {
            task: f"active on {active.get(task) or 'none'}, standby on {standbys.get(task) or 'none'}"
            for task in {*active, *standbys}
            if not active.get(task) or not standbys.get(task) or active[task] == standbys[task]
        }
        return str(wrong or "" if active else "no task at all")

    def _caught_up(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return who runs each task that keeps state, as active and as standby; an empty name if it has not caught up."""
        active: dict[str, str] = {}
        standbys: dict[str, str] = {}
        for replica in self.replicas:
            for task in replica.status().get("tasks", ()):
                if task["stores"] or task["state"] != "RUNNING":
                    at_rest = task["role"] == "standby" or task["state"] == "RUNNING"
                    kept = standbys if task["role"] == "standby" else active
                    kept[task["id"]] = replica.name if at_rest and task["remaining"] == 0 else ""
        return active, standbys

    def _uncommitted(self) -> dict[str, int]:
        """Return how far committed offsets are from the ends of the inputs."""
        partitions = [(topic(self._application, name), number) for name in INPUTS for number in range(PARTITIONS)]
        ends = end_offsets(self._kafka, partitions)
        committed = offsets_of(self._kafka, self._application)
        return {
            f"{name}-{number}": end - committed.get(TopicPartition(name, number), 0)
            for (name, number), end in ends.items()
            if end > committed.get(TopicPartition(name, number), 0)
        }

    def _judge(self) -> None:
        self._judge_outputs()
        if self._exactly_once:
            self._judge_states()
        self._judge_resources()
        self.result.problems += self.feeder.errors + self.chaos.errors

    def _judge_outputs(self) -> None:
        result = self.result
        findings = compare(self.feeder.inputs, self.reader.outputs, exactly_once=self._exactly_once)
        for each in findings.values():
            result.figures["repeated"] += len(each.repeated)
            result.figures["lost"] += len(each.lost)
            result.figures["wrong"] += len(each.wrong)
        if not self._exactly_once:
            result.notes += take_what_is_allowed(findings, self.feeder.inputs)
        for name, each in findings.items():
            result.problems += [f"{name}: {problem}" for problem in each.problems(exactly_once=self._exactly_once)]

    def _judge_states(self) -> None:
        self.doing = "comparing states"
        logs = read_changelogs(self._kafka, self._application)
        directories = {replica.name: replica.state_directory for replica in self._all}
        found = compare_states(self._application, logs, directories, self.feeder.inputs, self._ran)
        self.result.problems += found.problems
        self.result.figures.update(
            {
                "stores compared": found.stores,
                "rows compared": found.rows,
                "stores behind": found.behind,
                "stores damaged": found.damaged,
                "stores truncated": found.truncated,
            }
        )

    def _judge_resources(self) -> None:
        samples = read_samples(self._directory / SAMPLES)
        problems, notes = grown(samples)
        self.result.problems += problems
        self.result.figures["resources compared"] = len(problems) + len(notes)

    def _count(self) -> None:
        result = self.result
        result.figures.update(self.figures())
        result.longest_gap_s = round(self.reader.longest_gap_s, 1)
        for replica in self._all:
            result.problems += replica.problems
        if result.verdict == "passed" and result.problems:
            result.verdict = "failed"

    def _delete_topics(self) -> None:
        admin = self._kafka.admin()
        names = [name for name in admin.list_topics(timeout=30).topics if name.startswith(self._application)]
        for future in admin.delete_topics(names, request_timeout=30).values():
            future.result(60)


def _answered(question: Callable[[], object]) -> object:
    """Return the brokers' answer, or nothing while they have none."""
    try:
        return question()
    except (KafkaException, StreamsError, TimeoutError):
        return None
