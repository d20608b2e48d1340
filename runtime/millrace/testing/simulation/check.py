"""Checks a run's output: compares it with the output of tasks that process the same records one after another.

The simulation knows which records each task processed, in which order, as far as they were committed. For every task, a new
one processes the committed records of its inputs in that order, without any faults. Under exactly-once the committed records
of every topic that the application writes must be those that these tasks send, and each store must hold what theirs hold.
Under at-least-once nothing that they send may be missing, for sub-topologies without stores: a store's counts depend on
repetitions. Under both, a store holds what its changelog does; under at-least-once perhaps without what former owners wrote
late.

Changelogs of stores that retain duplicates are not compared: their keys end in a number that counts from the process's start.
Record caches and suppression buffers write at commits, so these tasks commit where the application did. In which order a
suppression buffer writes the keys of a commit depends on how many it had since it was opened, so only each key's order counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final

from millrace.engine.partitioner import partition_for_key
from millrace.engine.task import StreamTask
from millrace.records import ConsumedRecord, Headers, TaskId, TopicPartition
from millrace.state.api import ChangelogRecord
from millrace.state.cache import RecordCache
from millrace.state.suppression_buffer import SuppressionBufferBuilder
from millrace.testing.output_collector import CapturingCollector
from millrace.testing.simulation.broker import Entry
from millrace.testing.simulation.world import ALLOWED_DEATHS, Problem, World

__all__ = ["check"]

_Row = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
_MOST_SHOWN: Final = 3


def check(world: World, folder: Path) -> None:
    """Compare a finished run with the results that its input should have.

    Args:
        world: the run, whose instances are settled.
        folder: an empty one, for the stores of the tasks to compare with.

    Raises:
        Problem: something is wrong; the message says what.
    """
    for instance in world.instances:
        for death in instance.deaths:
            if not isinstance(death, ALLOWED_DEATHS):
                raise Problem(f"The thread of instance {instance.number} has died: {death!r}") from death
    oracle = _Oracle(world, folder)
    exact = world.config.exactly_once
    try:
        for task_id in oracle.task_ids():
            oracle.run(task_id)
        _compare_topics(world, oracle, exact=exact)
        _compare_stores(world, oracle, folder, exact=exact)
    finally:
        oracle.close()


class _Oracle:
    """The tasks that process everything once."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world = world
        self._folder = folder
        self.tasks: dict[TaskId, StreamTask] = {}
        self.sent: defaultdict[str, list[tuple[int | None, _Row]]] = defaultdict(list)
        """By topic: partition, and the record."""
        self.stateful: set[str] = set()
        """Topics whose content depends on a store."""

    def task_ids(self) -> list[TaskId]:
        """Return every task of the application that has an input."""
        found = []
        for subtopology in self._world.topology.subtopologies:
            count = max(self._world.broker.topics[topic] for topic in subtopology.source_topics)
            found += [TaskId(subtopology.id, number) for number in range(count)]
        return found

    def run(self, task_id: TaskId) -> None:
        """Process all that the application has committed of a task's input."""
        world = self._world
        subtopology = world.topology.subtopology(task_id.subtopology)
        inputs = [
            TopicPartition(topic, task_id.partition)
            for topic in sorted(subtopology.source_topics)
            if task_id.partition < world.broker.topics[topic]
        ]
        collector = CapturingCollector(lambda topic: world.broker.topics[topic])
        now_ms = 0
        task = self.tasks[task_id] = StreamTask(
            task_id,
            subtopology,
            world.config,
            collector,
            state_dir=self._folder / str(task_id),
            cache=RecordCache(world.config.statestore_cache_max_bytes)
            if world.config.statestore_cache_max_bytes
            else None,
            clock=lambda: now_ms,
            input_partitions=frozenset(inputs),
        )
        task.open_stores()
        task.initialize()
        for partition in inputs:
            task.set_lag(partition, 0)
        for commit in self._order(task_id, inputs):
            for partition, entry in commit:
                now_ms = max(now_ms, entry.timestamp)
                task.add_records(partition, [_consumed(partition, entry)])
                while task.process(now_ms, 1):
                    task.punctuate_stream_time()
            task.prepare_commit()
        for produced in collector.take():
            row = (produced.key, produced.value, tuple(produced.headers))
            number = produced.partition
            if number is None and produced.key is not None:
                number = partition_for_key(produced.key, world.broker.topics[produced.topic])
            self.sent[produced.topic].append((number, row))
            if task.stores:
                self.stateful.add(produced.topic)

    def _order(self, task_id: TaskId, inputs: Iterable[TopicPartition]) -> Iterable[list[tuple[TopicPartition, Entry]]]:
        """Return what each commit covers of a task's inputs, in the order in which the application processed it."""
        world = self._world
        waiting = {partition: list(reversed(readable(world, partition))) for partition in inputs}
        for commit in world.history[task_id]:
            covered = []
            for partition, offset in commit:
                records = waiting[partition]
                while records and records[-1].offset <= offset:
                    covered.append((partition, records.pop()))
            yield covered
        # The rest was dropped before it was processed, for example as unreadable.
        yield [(partition, entry) for partition, records in waiting.items() for entry in reversed(records)]

    def close(self) -> None:
        """Close the tasks."""
        for task in self.tasks.values():
            task.close_dirty()


def _consumed(partition: TopicPartition, entry: Entry) -> ConsumedRecord:
    return ConsumedRecord(
        partition.topic,
        partition.partition,
        entry.offset,
        entry.timestamp,
        entry.key,
        entry.value,
        Headers(entry.headers),
    )


def _compare_topics(world: World, oracle: _Oracle, *, exact: bool) -> None:
    changelogs, numbered, buffers = _changelogs(world)
    for topic in sorted((changelogs | world.outputs | oracle.sent.keys()) - numbered):
        actual: list[tuple[int | None, _Row]] = []
        for number in range(world.broker.topics[topic]):
            entries = readable(world, TopicPartition(topic, number))
            actual += [(number, (entry.key, entry.value, entry.headers)) for entry in entries]
        expected = oracle.sent[topic]
        missing = _difference(expected, actual)
        extra = _difference(actual, expected)
        if missing and (exact or topic not in oracle.stateful):
            raise Problem(f"{topic} lacks {len(missing)} records, such as {_show(missing)}")
        if extra and exact:
            raise Problem(f"{topic} has {len(extra)} records too many, such as {_show(extra)}")
        if exact and topic in changelogs:
            if topic in buffers:
                actual, expected = _by_key(actual), _by_key(expected)
            _compare_order(topic, actual, expected)


def _changelogs(world: World) -> tuple[set[str], set[str], set[str]]:
    """Return the changelogs that only their tasks write; of these, stores' that retain duplicates; and suppression buffers'."""
    changelogs, numbered, buffers = set(), set(), set()
    for subtopology in world.topology.subtopologies:
        for builder in subtopology.store_builders:
            topic = subtopology.changelog_topics.get(builder.name)
            if topic is not None and builder.name not in subtopology.source_changelogs:
                changelogs.add(topic)
                if getattr(builder, "retain_duplicates", False):
                    numbered.add(topic)
                if isinstance(builder, SuppressionBufferBuilder):
                    buffers.add(topic)
    return changelogs, numbered, buffers


def _by_key(rows: list[tuple[int | None, _Row]]) -> list[tuple[int | None, _Row]]:
    return sorted(rows, key=lambda row: row[1][0] or b"")


def _compare_order(topic: str, actual: list[tuple[int | None, _Row]], expected: list[tuple[int | None, _Row]]) -> None:
    """Compare a changelog record by record: each of its partitions has one writer."""
    for number in {number for number, _ in actual}:
        one = [row for at, row in actual if at == number]
        other = [row for at, row in expected if at == number]
        if one != other:
            position = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
            raise Problem(f"{topic}-{number} has another order: its record {position} is {one[position]}")


def _difference(
    some: Iterable[tuple[int | None, _Row]], others: Iterable[tuple[int | None, _Row]]
) -> list[tuple[int | None, _Row]]:
    others = list(others)
    some = list(some)
    if any(number is None for number, _ in (*some, *others)):  # a record without a key goes to any partition
        some, others = [(None, row) for _, row in some], [(None, row) for _, row in others]
    return list((Counter(some) - Counter(others)).elements())


def _show(rows: list[tuple[int | None, _Row]]) -> str:
    return "; ".join(f"{key!r} → {value!r} in partition {number}" for number, (key, value, _) in rows[:_MOST_SHOWN])


def _compare_stores(world: World, oracle: _Oracle, folder: Path, *, exact: bool) -> None:
    """Compare each task's stores, also standbys', with what their changelogs hold and, under exactly-once, with the oracle's.

    All input has been processed and committed, so a standby has the same as its active task.
    """
    for instance in world.instances:
        standby = instance.standby
        for task_id, task in (*instance.running.items(), *standby.items()):
            role = "standby" if task is standby.get(task_id) else "task"
            copies = _Copies(world, task, folder / f"{task_id}-{instance.number}-restored")
            changelogs = {store.name: partition for partition, store in task.changelogs.items()}
            for name, store in task.stores.items():
                holds, where = _content(task, store), f"Store {name} of {role} {task_id} in instance {instance.number}"
                partition = changelogs.get(name)
                if partition is not None and name not in task.subtopology.source_changelogs:
                    logged = copies.restored(partition)
                    if holds != logged and (exact or not copies.explains(partition, holds)):
                        raise Problem(f"{where} holds {holds}, its changelog {logged}")
                if exact and holds != (expected := _content(task, oracle.tasks[task_id].stores[name])):
                    raise Problem(f"{where} holds {holds}, not {expected}")


class _Copies:
    """Stores that are restored from a task's changelogs, to compare them with the task's own."""

    def __init__(self, world: World, task: StreamTask, folder: Path) -> None:
        self._world = world
        self._task = task
        self._folder = folder
        self._count = 0

    def explains(self, partition: TopicPartition, holds: object) -> bool:
        """Whether a store's content can result from its changelog, where some writes of a former owner came late.

        The task has applied the late writes that were there when it was restored, and not those that came afterwards. So each
        key has the last value that was written in time, or one that was written late after that.
        """
        late = sorted(self._world.late[partition])
        if not late or not isinstance(holds, list):
            return False
        variants = [dict(self.restored(partition, late[number:])) for number in range(len(late) + 1)]  # type: ignore[call-overload]
        held = dict(holds)
        keys = set(held).union(*variants)
        return all(held.get(key) in {variant.get(key) for variant in variants} for key in keys)

    def restored(self, partition: TopicPartition, without: Collection[int] = ()) -> object:
        """Return the content of a store restored from a changelog, perhaps without the records at some offsets."""
        self._count += 1
        task = self._task
        copy = StreamTask(
            task.task_id,
            task.subtopology,
            self._world.config,
            CapturingCollector(),
            state_dir=self._folder / str(self._count),
            cache=None,
            clock=lambda: 0,
            input_partitions=task.input_partitions,
        )
        copy.open_stores()
        try:
            records = [
                ChangelogRecord(entry.key, entry.value, entry.timestamp, entry.offset, Headers(entry.headers))
                for entry in readable(self._world, partition)
                if entry.key is not None and entry.offset not in without
            ]
            if records:
                copy.restore(partition, records)
            return _content(copy, copy.changelogs[partition])
        finally:
            copy.close_dirty()


def readable(world: World, partition: TopicPartition) -> list[Entry]:
    """Return the records of a partition that the application may see."""
    log = world.broker.log(partition)
    return log.committed() if world.config.exactly_once else [entry for entry in log.entries if not entry.is_marker]


def _content(task: StreamTask, store: Any) -> object:
    """Return what a task's store holds; of windows only those within retention.

    When an older one is dropped depends on when its segment was opened.
    """
    read = getattr(store, "all", None)
    if read is None:
        return None
    rows = list(read())
    builder = next(one for one in task.subtopology.store_builders if one.name == store.name)
    retention_ms = getattr(builder, "retention_ms", None)
    if rows and retention_ms is not None:
        expired_ms = max(key.window.end for key, _ in rows) - retention_ms
        rows = [(key, value) for key, value in rows if key.window.end > expired_ms]
    return [(repr(key), repr(value)) for key, value in rows]
