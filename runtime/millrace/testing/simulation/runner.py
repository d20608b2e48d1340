"""Runs plans of a simulation one after another, and makes the first that fails smaller."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from millrace.config import GroupProtocol, StreamsConfig
from millrace.testing.simulation.check import check
from millrace.testing.simulation.disk import disks_in_memory
from millrace.testing.simulation.plan import MakeRecord, Plan, make_plan, smaller
from millrace.testing.simulation.scheduler import Scheduler, StalledError, virtual_time
from millrace.testing.simulation.streams_group import GroupSettings
from millrace.testing.simulation.world import Problem, World
from millrace.topology.topology import Topology

__all__ = ["Simulation", "SimulationFailure", "SimulationReport", "simulate"]

_DEFAULTS: Final[Mapping[str, object]] = {
    "application.id": "simulated",
    "bootstrap.servers": "simulated:9092",
    "processing.guarantee": "exactly_once_v2",
    "statestore.cache.max.bytes": 0,
    "poll.ms": 5_000,
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 3_000,
    "max.poll.interval.ms": 30_000,
}
_DEFAULT_PARTITIONS: Final = 2
_MOST_ATTEMPTS: Final = 300
"""How many runs making a failure smaller may take."""
_LOG_LINES: Final = 60
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 (a file system in memory, where there is one)
_log = logging.getLogger("millrace")


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The runs that found nothing."""

    seeds: int
    seconds: float
    """How long they took."""
    simulated_seconds: float
    digest: int
    """A checksum of all that happened, the same each time."""


class SimulationFailure(AssertionError):  # noqa: N818 (a failure, as test frameworks call it)
    """A simulated run whose result is wrong.

    Attributes:
        seed: run `simulate(…, first_seed=seed, seeds=1)` to see it again.
        plan: the run's plan, made as small as possible.
        problem: the first thing that is wrong with it.
        log: the last lines that the application logged in it.
    """

    def __init__(self, seed: int, plan: Plan, problem: Exception, log: list[str]) -> None:
        self.seed, self.plan, self.problem, self.log = seed, plan, problem, log
        lines = "\n".join(f"  {line}" for line in log)
        super().__init__(f"{problem}\nThe smallest plan found that leads to this, from {plan}\nLog:\n{lines}")


def simulate(
    topology: Topology,
    inputs: Mapping[str, MakeRecord],
    config: Mapping[str, object] | None = None,
    *,
    seeds: int = 1_000,
    first_seed: int = 0,
    max_instances: int = 3,
    partitions: Mapping[str, int] | None = None,
    check_run: Callable[[World], None] | None = None,
    real_disks: bool = False,
) -> SimulationReport:
    """Run a topology many times in a simulated cluster, with other faults each time, and check what it writes.

    Shows its progress if the standard error is a terminal. Everything runs in this thread, in virtual time. Not thread-safe:
    while it runs, Millrace sees the virtual time in the whole process.

    Args:
        topology: what to run. Its nodes may only depend on their records and stores: not on the time of day, and not on
            how records of different partitions are interleaved with commits (as wall-clock punctuators do).
        inputs: for each input topic, a function that makes the key and value of a record, serialised, with a given
            `random.Random`.
        config: settings under Kafka's names; by default exactly-once without record caches. With `group.protocol=streams` the
            group's own settings (`streams.num.standby.replicas` and others) may be among them.
        seeds: how many runs.
        first_seed: the first run's seed; each further one's is greater by 1.
        max_instances: how many instances of the application there are at most.
        partitions: how many partitions topics have; 2 if not given.
        check_run: checks more of a finished run: raises `Problem` or `AssertionError`.
        real_disks: whether stores write to real RocksDB databases, instead of memory. This is slower, and a crash loses nothing
            that was written.

    Raises:
        SimulationFailure: a run is wrong; it has seed, plan and log.
    """
    simulation = Simulation(topology, inputs, config, max_instances, partitions, check_run, real_disks=real_disks)
    began, simulated_s, digest = time.monotonic(), 0.0, 0
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal) as progress:
        for seed in progress.track(range(first_seed, first_seed + seeds), description="Simulating"):
            scheduler = simulation.run_seed(seed)
            simulated_s += scheduler.elapsed_s
            digest = (digest * 31 + scheduler.digest) & 0xFFFFFFFF
    return SimulationReport(seeds, time.monotonic() - began, simulated_s, digest)


class Simulation:
    """A topology prepared to be run by plans; see `simulate` for the arguments."""

    def __init__(
        self,
        topology: Topology,
        inputs: Mapping[str, MakeRecord],
        config: Mapping[str, object] | None = None,
        max_instances: int = 3,
        partitions: Mapping[str, int] | None = None,
        check_run: Callable[[World], None] | None = None,
        *,
        real_disks: bool = False,
    ) -> None:
        given = dict(config or {})
        self._group_settings = {key: given.pop(key) for key in list(given) if key.startswith("streams.")}
        self._config = StreamsConfig.of({**_DEFAULTS, **given})
        self._topology = topology.build(self._config)
        self._inputs = inputs
        self._max_instances = max_instances
        self._check_run = check_run
        self._disks = nullcontext if real_disks else disks_in_memory
        counts = dict(partitions or {})
        topics = {
            *inputs,
            *(
                topic
                for item in self._topology.subtopologies
                for topic in (*item.source_topics, *item.sink_topics)
                if topic not in item.repartition_topics
            ),
        }
        repartition = {topic for item in self._topology.subtopologies for topic in item.repartition_topics}
        self._partitions = {
            topic: counts.get(topic, _DEFAULT_PARTITIONS)
            for topic in sorted(topics | counts.keys())
            if topic not in repartition
        }

    def plan(self, seed: int) -> Plan:
        """Return the plan of a seed."""
        streams = self._config.group_protocol is GroupProtocol.STREAMS
        standbys = GroupSettings.of(self._group_settings).standbys if streams else self._config.num_standby_replicas
        return make_plan(seed, self._inputs, self._partitions, self._max_instances, long=standbys > 0, streams=streams)

    def run_seed(self, seed: int) -> Scheduler:
        """Run the plan of a seed; return the outcome.

        Raises:
            SimulationFailure: the run is wrong.
        """
        plan = self.plan(seed)
        try:
            with _quiet():
                return self.run(plan)
        except (Problem, AssertionError, StalledError) as problem:
            raise self._explain(plan, problem) from problem

    def run(self, plan: Plan) -> Scheduler:
        """Run a plan and check the result.

        Raises:
            Problem: it is wrong.
        """
        folder = Path(tempfile.mkdtemp(prefix="millrace-simulation-", dir=_MEMORY if _MEMORY.is_dir() else None))
        try:
            with virtual_time() as of, self._disks() as disks:
                world = World(
                    *(self._topology, self._config, plan, self._partitions, folder / "disks", disks),
                    GroupSettings.of(self._group_settings),
                )
                of(world.scheduler)
                with world.running():
                    world.run()
                    check(world, folder / "oracle")
                    if self._check_run is not None:
                        self._check_run(world)
                return world.scheduler
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _explain(self, plan: Plan, problem: Exception) -> SimulationFailure:
        """Return the failure with the smallest plan that still leads to one."""
        seed, attempts = plan.seed, 0
        shrinking = True
        while shrinking and attempts < _MOST_ATTEMPTS:
            shrinking = False
            for candidate in smaller(plan):
                attempts += 1
                try:
                    with _quiet():
                        self.run(candidate)
                except (Problem, AssertionError, StalledError) as error:
                    plan, problem, shrinking = candidate, error, True
                    break
                if attempts >= _MOST_ATTEMPTS:
                    break
        log: list[str] = []
        with _captured(log):
            try:
                self.run(plan)
            except (Problem, AssertionError, StalledError) as error:
                problem = error
        return SimulationFailure(seed, plan, problem, log[-_LOG_LINES:])


@contextmanager
def _quiet() -> Iterator[None]:
    """Do not log: faults are intended, and a suppressed log call costs little."""
    level = _log.level
    _log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        _log.setLevel(level)


@contextmanager
def _captured(lines: list[str]) -> Iterator[None]:
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level, propagates = _log.level, _log.propagate
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)
        _log.propagate = propagates
