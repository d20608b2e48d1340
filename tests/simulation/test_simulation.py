"""The simulation itself: it is deterministic, finds nothing wrong in the product, and finds what is broken on purpose."""

from __future__ import annotations

import contextlib
import io
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.simulation.__main__ import application_of, run
from tests.topologies.simulated import (
    ALO,
    APPLICATIONS,
    CACHES,
    LONG_TRANSACTIONS,
    STANDBYS,
    STREAMS,
    STREAMS_STANDBYS,
    THREADS,
    counting,
    stateless,
    table_counting,
    words,
)

from millrace.assignment.leader import GroupLeader
from millrace.config import StreamsConfig
from millrace.engine import task as engine_task
from millrace.engine.task import StreamTask
from millrace.instance import changelog_reader
from millrace.instance.committer import Committer
from millrace.instance.input_consumer import InputConsumer
from millrace.instance.pace import Pace, TimedTurn
from millrace.instance.producer import StreamsProducer
from millrace.instance.record_collector import KafkaRecordCollector
from millrace.instance.state_updater import StateUpdater
from millrace.instance.task_manager import TaskManager
from millrace.instance.task_restoration import NO_LIMIT, StandbyUpdate, SuspendReason
from millrace.kafka.group_metadata import encode_group_metadata
from millrace.kafka.membership import offsets
from millrace.kafka.membership.classic.joining import Joining
from millrace.kafka.membership.classic.member import GroupMember
from millrace.kafka.membership.offsets import GroupOffsets, MigratedCommitError
from millrace.kafka.membership.streams.heartbeat import StreamsHeartbeats
from millrace.kafka.membership.streams.member import StreamsGroupMember
from millrace.kafka.membership.streams.state import StreamsState
from millrace.records import OffsetAndMetadata, TopicPartition
from millrace.state.layered_store import flush_stores
from millrace.testing.simulation import Fault, Input, Plan, Problem, Simulation, SimulationFailure, World, simulate
from millrace.testing.simulation.host import Host
from millrace.testing.simulation.plan import (
    AT_A_CALL,
    AT_A_TIME,
    BEHIND,
    CALLS,
    DELAYED,
    LATE,
    LATE_CALLS,
    SILENT,
    STREAMS_CALLS,
)
from millrace.testing.simulation.producer import SimulatedProducer
from millrace.testing.simulation.scheduler import StalledError


def first_seeds(few, *, of):
    """Run a test with a few seeds, and where time does not matter with the others too."""
    others = pytest.param(range(few, of), id=f"seeds to {of}", marks=pytest.mark.thorough)
    return pytest.mark.parametrize("seeds", [pytest.param(range(few), id=f"seeds to {few}"), others])


@first_seeds(30, of=100)
@pytest.mark.parametrize("config", [{}, ALO], ids=["exactly-once", "at-least-once"])
def test_stateless_topology_is_right_whatever_happens(config, seeds):
    """No record is lost, nor under exactly-once repeated, by crashes, pauses, lost answers, outages and rebalances."""
    simulate(stateless(), {"in": words}, config, first_seed=seeds.start, seeds=len(seeds))


@first_seeds(30, of=100)
@pytest.mark.parametrize("config", [{}, ALO], ids=["exactly-once", "at-least-once"])
def test_counts_are_right_whatever_happens(config, seeds):
    """The same with a store, its changelog and a repartition topic."""
    simulate(counting(), {"in": words}, config, first_seed=seeds.start, seeds=len(seeds))


@first_seeds(10, of=100)
@pytest.mark.parametrize("threads", [{}, THREADS], ids=["one thread", "two threads"])
@pytest.mark.parametrize("config", [STREAMS, ALO | STREAMS], ids=["exactly-once", "at-least-once"])
def test_brokers_may_assign_the_tasks(config, threads, seeds):
    """The same with the streams protocol, in which tasks move at heartbeats, whose answers may be lost or which arrive late."""
    simulate(counting(), {"in": words}, config | threads, first_seed=seeds.start, seeds=len(seeds))


@first_seeds(10, of=100)
@pytest.mark.parametrize("config", [{}, ALO, STANDBYS], ids=["exactly-once", "at-least-once", "standbys"])
def test_threads_of_a_process_move_tasks_between_them(config, seeds):
    """The same with two threads in each process, which have clients of their own, and end together."""
    taken = set()

    def look(world):
        taken.update(len([one for one in instance.threads if one.tasks.running]) for instance in world.instances)

    simulate(counting(), {"in": words}, config | THREADS, first_seed=seeds.start, seeds=len(seeds), check_run=look)
    assert 2 in taken


@first_seeds(20, of=50)
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(STREAMS_STANDBYS, id="streams protocol"),
        pytest.param(STANDBYS, id="exactly-once"),
        pytest.param(ALO | STANDBYS, id="at-least-once", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("topology", [counting, table_counting])
def test_standbys_have_what_their_active_tasks_have(topology, config, seeds):
    """In the end each standby has all that is committed, whatever has become of it and of its active task meanwhile."""
    standbys = []

    def look(world):
        standbys.extend(task for instance in world.instances for task in instance.standby)

    simulate(topology(), {"in": words}, config, first_seed=seeds.start, seeds=len(seeds), check_run=look)
    assert len(standbys) > 20


@pytest.mark.parametrize(
    ("config", "seed"),
    [
        ({}, 112_366),  # a run that ended before a frozen instance knew that its tasks were others'
        ({}, 114_858),
        (ALO, 209_290),
        (ALO, 200_555),  # a frozen instance wrote to a changelog after its successor
        (ALO, 203_393),
        ({}, 117_200),  # an instance crashed while it waited long, after it was to be started again
        ({}, 307_910),
    ],
)
def test_nothing_is_reported_that_is_allowed(config, seed):
    """Seeds in which nothing is wrong, but something unusual happens."""
    simulate(counting(), {"in": words}, config, first_seed=seed, seeds=1)


@pytest.mark.parametrize("seed", [5, 103, 112, 193])
def test_what_is_processed_again_is_known_once(seed):
    """What a task has processed without a commit, before it was lost or its transaction ended, is not in the run's history."""

    def look(world):
        for commits in world.history.values():
            records = [record for commit in commits for record in commit]
            assert len(records) == len(set(records))

    simulate(counting(), {"in": words}, first_seed=seed, seeds=1, check_run=look)


def test_a_removed_member_takes_over_nothing():
    """A process that still restores tasks of a former generation does not own their changelogs: what it writes is late."""
    changelog = TopicPartition("changelog", 0)
    plan = Plan(seed=1, instances=1, inputs=(), faults=(), static_members=False)
    config = StreamsConfig.of({"application.id": "simulated", "bootstrap.servers": "simulated:9092"})
    world = World(stateless().build(config), config, plan, {"in": 2, "out": 2}, Path("unused"))
    owner, removed = (Host(world, number, lambda: None) for number in range(2))
    world.took_over(owner, 2, [changelog])
    world.took_over(removed, 1, [changelog])
    now_s = world.scheduler.now_s
    world.written(owner, changelog, {0: now_s + 1})
    world.written(removed, changelog, {1: now_s + 2})
    assert world.late[changelog] == {1}


@first_seeds(6, of=15)
@pytest.mark.parametrize("application", ["windows, standbys", "joins", "joins, standbys, caches", "counting, caches"])
def test_applications_of_a_campaign_are_right(application, seeds):
    """Windows, suppression, joins and caches: every record and every store is compared."""
    simulation = APPLICATIONS[application].simulation()
    for seed in seeds:
        simulation.run_seed(seed)


def test_a_campaign_runs_every_application_and_continues_after_failures(monkeypatch):
    """A hundred seeds in a row run each application as often as its share says; a failure has its seed, and others are run."""
    assert Counter(map(application_of, range(300, 400))) == {name: one.share for name, one in APPLICATIONS.items()}
    _commit_one_too_far(monkeypatch.setattr)
    chunk = run(0, 4)
    assert chunk.seeds.total() == 4
    assert len(chunk.failures) > 1
    assert all(application_of(seed) == name for seed, name, _ in chunk.failures)


def test_a_seed_determines_everything():
    """Two processes with different hash seeds do the same, event by event; so does a run on real disks without crashes."""
    program = (
        "from tests.simulation.test_simulation import *\n"
        "from dataclasses import replace\n"
        "plans = [Simulation(counting(), {'in': words}).plan(seed) for seed in range(6)]\n"
        "calm = [replace(plan, faults=[f for f in plan.faults if not f.kind.startswith('crash')]) for plan in plans]\n"
        "for simulated, real_disks in ((plans, False), (calm, 'real' in sys.argv)):\n"
        "    simulation = Simulation(counting(), {'in': words}, real_disks=real_disks)\n"
        "    for plan in simulated:\n"
        "        print(simulation.run(plan).digest)\n"
        "simulation = Simulation(counting(), {'in': words}, ALO | STREAMS_STANDBYS | THREADS)\n"
        "print(*[simulation.run(simulation.plan(seed)).digest for seed in range(3)])"
    )

    def digests(disks, hash_seed):
        done = subprocess.run(
            [sys.executable, "-c", program, disks],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    found = digests("none", hash_seed="1")
    assert len(found) == 15
    assert found == digests("real", hash_seed="2")


def test_example_on_the_page_runs():
    """The page's example is complete."""
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    scope = {}
    exec(compile(page.split("```python\n")[1].split("```")[0], "simulation.md", "exec"), scope)
    scope["test_word_count_survives_everything"]()


def test_every_kind_of_fault_happens():
    """Within a few hundred seeds every kind of fault happens at every kind of request that it is planned for."""
    simulation = Simulation(stateless(), {"in": words})
    faults = [fault for seed in range(2_000) for fault in simulation.plan(seed).faults]
    assert {fault.kind for fault in faults} == {*AT_A_CALL, *AT_A_TIME, LATE, SILENT}
    at_calls = {(kind, call) for kind in AT_A_CALL for call in CALLS} | {(LATE, call) for call in LATE_CALLS}
    assert {(fault.kind, fault.call) for fault in faults if fault.call} == at_calls
    simulation = Simulation(counting(), {"in": words}, STANDBYS)
    faults = [fault for seed in range(200) for fault in simulation.plan(seed).faults]
    assert {fault.kind for fault in faults} == {*AT_A_CALL, *AT_A_TIME, BEHIND, LATE, SILENT}
    simulation = Simulation(stateless(), {"in": words}, STREAMS)
    faults = [fault for seed in range(2_000) for fault in simulation.plan(seed).faults]
    at_calls = {(kind, call) for kind in (*AT_A_CALL, DELAYED) for call in STREAMS_CALLS}
    at_calls |= {(LATE, call) for call in LATE_CALLS}
    assert {(fault.kind, fault.call) for fault in faults if fault.call} == at_calls


def test_a_failure_is_explained_with_a_small_plan(monkeypatch):
    """A failure has its seed, the smallest plan found, what is wrong and the log; the plan alone leads to it again."""
    _commit_one_too_far(monkeypatch.setattr)
    with pytest.raises(SimulationFailure) as found:
        simulate(stateless(), {"in": words}, seeds=20)
    failure = found.value
    simulation = Simulation(stateless(), {"in": words})
    assert len(failure.plan.inputs) < len(simulation.plan(failure.seed).inputs)
    assert any(wrong in str(failure) for wrong in ("out lacks", "not processed", "too many"))
    assert any("runs in" in line for line in failure.log)
    with pytest.raises(type(failure.problem)):
        simulation.run(failure.plan)


def test_progress_is_shown_at_a_terminal(monkeypatch):
    """At a terminal the number of finished seeds is shown, elsewhere nothing."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        simulate(stateless(), {"in": words}, seeds=2)
        assert ("2/2" in stream.getvalue()) is shown


def test_own_checks_are_made(monkeypatch):
    """A check of the user's own fails a run like the simulation's."""

    def refuse(world):
        assert not world.group.committed, "there are offsets"

    with pytest.raises(SimulationFailure, match="there are offsets"):
        simulate(stateless(), {"in": words}, check_run=refuse, seeds=1)


# Bugs on purpose


def _commit_one_too_far(patch):
    original = StreamTask.prepare_commit

    def prepare_commit(self):
        return {tp: OffsetAndMetadata(known.offset + 1, known.metadata) for tp, known in original(self).items()}

    patch(StreamTask, "prepare_commit", prepare_commit)


def _commit_as_anybody(patch):
    patch(GroupMember, "group_metadata", lambda self: encode_group_metadata(self._settings.group_id, -1, ""))


def _flush_caches_after_the_commit(patch):
    post_commit = StreamTask.post_commit

    def flush_late(self, offsets):
        post_commit(self, offsets)
        flush_stores(list(self.stores.values()))

    patch(engine_task, "flush_stores", lambda _stores: None)
    patch(StreamTask, "post_commit", flush_late)


def _changelog_outside_of_the_transaction(patch):
    def make_sender(self, partition):
        client = SimulatedProducer(self._producer.client._host, {})

        def send_change(key, value, timestamp, headers):
            client.produce(partition.topic, value, key, partition.partition, None, None, timestamp or 0, list(headers))
            client.flush(1.0)

        return send_change, [True]

    patch(KafkaRecordCollector, "_make_sender", make_sender)


def _keep_tasks_that_others_have(patch):
    patch(TaskManager, "_leave", lambda _self, _changed: None)


def _restore_one_too_few(patch):
    original = changelog_reader.begin_changelog

    def begin(task, partition, offsets, end, listener):
        return original(task, partition, offsets, max(offsets.start, end - 1), listener)

    patch(changelog_reader, "begin_changelog", begin)


def _restore_up_to_the_stable_end(patch):
    original = changelog_reader.latest_offsets

    def latest(admin, partitions, timeout_s):
        return original(admin, partitions, timeout_s, committed_only=True)

    patch(changelog_reader, "latest_offsets", latest)


def _do_not_abort(patch):
    patch(Committer, "abort", lambda self: self._resources.collector.discard())


def _do_not_flush(patch):
    patch(KafkaRecordCollector, "flush", lambda _self: None)


def _claim_one_change_too_many(patch):
    original = KafkaRecordCollector.changelog_offsets
    patch(
        KafkaRecordCollector,
        "changelog_offsets",
        lambda self: {partition: offset + 1 for partition, offset in original(self).items()},
    )


def _write_state_before_the_commit(patch):
    original = StreamTask.prepare_commit

    def prepare_commit(self):
        offsets = original(self)
        for store in self.stores.values():
            store.commit({})
        return offsets

    patch(StreamTask, "prepare_commit", prepare_commit)


def _read_unstable_offsets(patch):
    original = offsets.OffsetFetchRequest

    def unstable(**fields):
        return original(**{**fields, "require_stable": False})

    unstable.OffsetFetchRequestGroup = original.OffsetFetchRequestGroup
    patch(offsets, "OffsetFetchRequest", unstable)


def _begin_again_whatever_may_come_late(patch):
    patch(StreamsProducer, "_noticing_repeats", lambda *_: contextlib.nullcontext())


def _keep_buffered_records_of_lost_tasks(patch):
    patch(InputConsumer, "unassign", lambda _self, _partitions: None)


def _update_standbys_one_too_far(patch):
    original = changelog_reader.begin_update

    def begin(task, partition, offsets, limit, listener):
        update = original(task, partition, offsets, limit, listener)
        update.next_offset = min(update.next_offset + 1, offsets.stop)
        return update

    patch(changelog_reader, "begin_update", begin)


def _let_standbys_pass_the_committed_offset(patch):
    original = changelog_reader.begin_update

    def begin(task, partition, offsets, _limit, listener):
        return original(task, partition, offsets, NO_LIMIT, listener)

    patch(changelog_reader, "begin_update", begin)


def _run_standbys_without_catching_up(patch):
    original_add, original_begin = StateUpdater.add, changelog_reader.begin_changelog
    standbys = []

    def add(self, task, limits, *, standby=False):
        if standby:
            standbys.append(task)
        original_add(self, task, limits, standby=standby)

    def begin(task, *arguments):
        return None if any(task is one for one in standbys) else original_begin(task, *arguments)

    patch(StateUpdater, "add", add)
    patch(changelog_reader, "begin_changelog", begin)


def _claim_the_next_record_of_a_standby(patch):
    def commit(self):
        self.store.commit({self.partition: self.next_offset})
        self.task.changelog_positions[self.partition] = self.next_offset
        self.uncommitted = False

    patch(StandbyUpdate, "commit", commit)


def _take_a_stale_epoch_for_accepted(patch):
    """Commit with the epoch of the first commit, and take it for successful."""
    identity, commit, first = StreamsState.identity, GroupOffsets.commit, {}

    async def commit_anyway(self, *arguments):
        with contextlib.suppress(MigratedCommitError):
            await commit(self, *arguments)

    def first_identity(self):
        now = identity(self)
        return first.setdefault(self.member_id, now)

    patch(StreamsState, "identity", first_identity)
    patch(GroupOffsets, "commit", commit_anyway)


def _commit_as_any_streams_member(patch):
    patch(StreamsGroupMember, "group_metadata", lambda self: encode_group_metadata(self._settings.group_id, -1, ""))


def _keep_the_tasks_when_removed(patch):
    """Join again without a word to the stream thread that others may have its tasks."""
    original = StreamsState.reset

    def reset(self, reason, **named):
        owned, self.owned = self.owned, frozenset()
        original(self, reason, **named)
        self.owned = owned

    patch(StreamsState, "reset", reset)


def _do_not_read_the_assignment_after_a_lost_answer(patch):
    async def reread(self):
        self._missed_answer = False

    patch(StreamsHeartbeats, "_reread", reread)


def _say_too_early_that_tasks_are_closed(patch):
    patch(StreamsState, "may_own", lambda self: self.current if self.target is None else self.target)


def _limit_turns_by_number(patch):
    def start_over(self):
        self._uncommitted = 0

    patch(TimedTurn, "over", lambda _self: False)
    patch(Pace, "aborted", start_over)


def _sync_when_the_thread_polls(patch):
    advance, sync = Joining.advance, Joining._sync
    polls = Counter()

    def counted(self):
        polls[self] += 1
        return advance(self)

    async def sync_later(self, generation, member_id, current, assignments):
        polled = polls[self]
        while not assignments and polls[self] == polled and current():
            await self._connection.sleep(0.01)
        return await sync(self, generation, member_id, current, assignments)

    patch(Joining, "advance", counted)
    patch(Joining, "_sync", sync_later)
    patch(Joining, "rebalance", lambda self, busy: self._shared.request_rejoin("the group is rebalancing"))


def busy_owner(seed):
    """Return the plan that an instance joins one that is idle and one that is busy for a second with each of many records."""
    busy = random.Random(seed).sample(range(6), 3)
    inputs = tuple(Input(0.1 + 0.01 * n, "in", busy[n % 3], b"k", b"v") for n in range(150))
    return Plan(seed, 3, inputs, (Fault("crash", 2, at_s=0.7, seconds=20.0),), static_members=False, record_s=1.0)


def backlog(seed):
    """Return the plan that many records wait whose processing takes longer than a transaction may."""
    inputs = tuple(Input(0.1, "in", 0, b"k", b"v") for _ in range(30))
    return Plan(seed, 1, inputs, (), static_members=False, record_s=1.0)


@pytest.mark.parametrize(
    ("make_plan", "plant", "found"),
    [
        (busy_owner, _sync_when_the_thread_polls, "does not settle"),
        (backlog, _limit_turns_by_number, "times, more than"),
    ],
    ids=["a busy owner hands tasks over", "a backlog is processed once"],
)
def test_slow_records_stop_nothing(make_plan, plant, found, monkeypatch):
    """All is committed in time, and is not if the product is as it once was."""
    simulation = Simulation(
        stateless(), {"in": words}, {"poll.ms": 100, "heartbeat.interval.ms": 1000}, partitions={"in": 6}
    )
    for seed in range(5):
        simulation.run(make_plan(seed))
    plant(monkeypatch.setattr)
    with pytest.raises(Problem, match=found):
        for seed in range(60):
            simulation.run(make_plan(seed))


def _end_all_while_brokers_are_silent(patch):
    patch(GroupLeader, "_may_pass", lambda _self, _group, _error: False)


def _let_removals_overtake(patch):
    def remove(self, task, reason=SuspendReason.MIGRATED):
        answer = Future()
        answer.set_result(task if self._reader.let_go(task, reason) or self._take_finished(task) else None)
        return answer

    patch(StateUpdater, "remove", remove)


@pytest.mark.parametrize(
    ("plant", "topology", "config", "seeds"),
    [
        pytest.param(_limit_turns_by_number, counting, {}, 200, marks=pytest.mark.thorough),
        pytest.param(
            _end_all_while_brokers_are_silent,
            counting,
            {"max.poll.interval.ms": 120_000},
            200,
            marks=pytest.mark.thorough,
        ),
        pytest.param(_let_removals_overtake, counting, {}, 200, marks=pytest.mark.thorough),
        (_commit_one_too_far, stateless, {}, 20),
        pytest.param(_commit_as_anybody, stateless, {}, 300, marks=pytest.mark.thorough),
        (_flush_caches_after_the_commit, counting, CACHES, 100),
        (_changelog_outside_of_the_transaction, counting, {}, 200),
        (_keep_tasks_that_others_have, stateless, {}, 100),
        pytest.param(_restore_one_too_few, counting, ALO, 400, marks=pytest.mark.thorough),
        pytest.param(_restore_up_to_the_stable_end, counting, {}, 500, marks=pytest.mark.thorough),
        pytest.param(_do_not_abort, stateless, {}, 300, marks=pytest.mark.thorough),
        (_do_not_flush, stateless, ALO, 200),
        pytest.param(_claim_one_change_too_many, counting, ALO, 1_200, marks=pytest.mark.thorough),
        pytest.param(_write_state_before_the_commit, counting, {}, 300, marks=pytest.mark.thorough),
        pytest.param(_read_unstable_offsets, stateless, LONG_TRANSACTIONS, 500, marks=pytest.mark.thorough),
        (_begin_again_whatever_may_come_late, stateless, {}, 200),
        (_keep_buffered_records_of_lost_tasks, stateless, {}, 100),
        (_update_standbys_one_too_far, counting, STANDBYS, 100),
        (_let_standbys_pass_the_committed_offset, table_counting, STANDBYS, 50),
        (_run_standbys_without_catching_up, counting, STANDBYS, 100),
        (_keep_tasks_that_others_have, stateless, STREAMS, 100),
        (_take_a_stale_epoch_for_accepted, stateless, ALO | STREAMS, 100),
        pytest.param(_keep_the_tasks_when_removed, stateless, STREAMS, 1_000, marks=pytest.mark.thorough),
        pytest.param(_say_too_early_that_tasks_are_closed, stateless, STREAMS, 2_500, marks=pytest.mark.thorough),
        pytest.param(_commit_as_any_streams_member, stateless, STREAMS, 500, marks=pytest.mark.thorough),
        pytest.param(
            *(_do_not_read_the_assignment_after_a_lost_answer, stateless, STREAMS, 1_500), marks=pytest.mark.thorough
        ),
        pytest.param(_claim_the_next_record_of_a_standby, counting, STANDBYS, 500, marks=pytest.mark.slow),
    ],
)
def test_a_planted_bug_is_found(plant, topology, config, seeds, monkeypatch):
    """Each way to break the engine is found within so many seeds."""
    plant(monkeypatch.setattr)
    simulation = Simulation(topology(), {"in": words}, config)
    with pytest.raises((Problem, StalledError)):
        for seed in range(seeds):
            simulation.run(simulation.plan(seed))
