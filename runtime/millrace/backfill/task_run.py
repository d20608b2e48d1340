"""Runs one task over the whole history of its inputs: the engine's own `StreamTask`, from the first record to the last.

The engine chooses between the task's partitions as it does elsewhere: the smallest timestamp first. Here it must never choose
without having seen them all, so a partition is only passed over when what it still has is known to come later:

* Partitions that the task reads itself are never empty before their end. Where files come first, the task begins to read once
  the other records have reached the instant at which the files end: until then they are all earlier than what it would read.
* Records of other tasks come in one stream, ordered by the largest timestamp so far (`Row.reached`). As long as the next one has
  not been reached, a partition that is empty has nothing earlier.
* Records that come back from the task's own stage, such as the responses of a foreign-key join, must come after what caused
  them. So they wait until the task has reached the time at which they were sent, and are then processed at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from millrace.backfill.collector import BackfillCollector
from millrace.backfill.rows import Row
from millrace.config import FINAL_RESULTS_INTERVAL, OUTER_JOIN_INTERVAL, StreamsConfig
from millrace.engine.punctuation import NEVER
from millrace.engine.task import StreamTask
from millrace.engine.task_state import IllegalTaskStateError
from millrace.errors import UnsupportedFeatureError
from millrace.records import UNKNOWN_TIMESTAMP, OffsetAndMetadata, RawRecord, TaskId, TopicPartition
from millrace.state.api import StateStore
from millrace.topology.physical_topology import Subtopology

_TURN_RECORDS = 1_000
"""How many records a turn has at most."""
_TURN_BYTES = 16 * 1024 * 1024
"""How many bytes a turn is meant to send and to keep in stores, at most."""
_LOOK_RECORDS = 64
"""After how many records a turn ends if it has too many bytes by then."""
_NO_THROTTLE = {FINAL_RESULTS_INTERVAL: 0, OUTER_JOIN_INTERVAL: 0}


class Arrival(NamedTuple):
    """Records of other tasks, or of this task's own stage."""

    reached: int
    """The smallest `Row.reached` among them."""
    circular: bool
    """Whether they come back from the task's own stage; if so, all have the same `Row.reached`."""
    records: Sequence[tuple[TopicPartition, Sequence[RawRecord]]]


class Inputs(NamedTuple):
    """What a task reads.

    A partition can be in both `read` and `arriving`: then what arrives comes first.
    """

    read: Mapping[TopicPartition, Iterator[Sequence[RawRecord]]]
    """Partitions that the task reads itself, in offset order."""
    arriving: frozenset[TopicPartition]
    """Partitions whose records come from elsewhere."""
    arrivals: Iterator[Arrival]
    """Those records, by `reached`."""
    until: Mapping[TopicPartition, int] = MappingProxyType({})
    """For partitions that are in both: an instant before which all is that arrives, and nothing that is read."""


def backfill_config(config: StreamsConfig, state_dir: Path) -> StreamsConfig:
    """Return the settings under which a task runs in a backfill.

    Record caches are off: what they hold back depends on when the engine commits. Results are sent as soon as they are due.
    """
    return config.model_copy(
        update={
            "state_dir": state_dir,
            "max_task_idle_ms": 0,
            "statestore_cache_max_bytes": 0,
            "client_settings": {**config.client_settings, **_NO_THROTTLE},
        }
    )


class TaskRun:
    """One task from its first record to its last.

    Args:
        task_id: which.
        subtopology: what it runs.
        config: the application's settings.
        collector: takes its output.
        directory: where its state goes.
        inputs: what it reads.
        global_stores: name → store.
        wall_clock_punctuators: whether to let wall-clock punctuators pass; they are never called.
    """

    def __init__(
        self,
        task_id: TaskId,
        subtopology: Subtopology,
        config: StreamsConfig,
        collector: BackfillCollector,
        directory: Path,
        inputs: Inputs,
        *,
        global_stores: Mapping[str, StateStore] = MappingProxyType({}),
        wall_clock_punctuators: bool = False,
    ) -> None:
        self._collector = collector
        self._unread = dict(inputs.read)
        self._arriving = inputs.arriving
        """Those of which there may be more."""
        self._arrivals = inputs.arrivals
        self._until = inputs.until
        self._next = next(inputs.arrivals, None)
        self._wall_clock_punctuators = wall_clock_punctuators
        self._limit = config.uncommitted_max_bytes
        self.stream_time = UNKNOWN_TIMESTAMP
        """The largest timestamp processed; known in the end."""
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        """What to commit for each partition of which a record was processed; known in the end."""
        self._now = 0
        """The latest time that the wall clock has shown: it may be set back, and the engine must not wait for what it showed."""
        self._taken = 0
        """How many records had been processed when the last turn ended."""
        self._turn = 1
        """How many this turn is to have."""
        self._look_at = _LOOK_RECORDS
        """How many there will have been when the turn's bytes are looked at."""
        self._sent = 0
        """How many bytes had been sent when the last turn ended."""
        self._uncommitted = 0
        """What stores had to commit when the last turn ended."""
        self._punctuations = 0
        """How many punctuators had been called by then."""
        self.task = StreamTask(
            task_id,
            subtopology,
            backfill_config(config, directory),
            collector,
            state_dir=directory,
            cache=None,
            clock=_now,
            input_partitions=frozenset(inputs.read.keys() | inputs.arriving),
            global_stores=global_stores,
            punctuated_in_time=True,
        )
        collector.times = self.task.times

    def rows(self) -> Iterator[list[Row]]:
        """Process everything; return what the task sends, and in the end what its changelogs hold.

        Raises:
            UnsupportedFeatureError: the task schedules wall-clock punctuators, which have no meaning over history.
            StreamsError: as the engine raises it.
        """
        task = self.task
        task.open_stores()
        task.initialize()
        self._refuse_wall_clock()
        for _ in self._process_everything():
            self._refuse_wall_clock()
            yield self._end_turn() if self._is_turn_over() else []
        self.stream_time = task.stream_time
        task.suspend()
        self._commit()
        task.close_clean()
        yield self._collector.take(everything=True)
        for row in self._collector.final_rows(self.stream_time):
            yield [row]

    def _is_turn_over(self) -> bool:
        """Return whether to hand on what was sent: after the same records whenever the task runs, however these come in batches.

        Spark may run it again, and use some of its packed rows of both runs: they must not overlap.
        """
        counters = self.task.counters
        processed = counters.records_processed
        if processed == self._taken + self._turn or counters.punctuations != self._punctuations:
            return True
        if processed < self._look_at:
            return False
        self._look_at += _LOOK_RECORDS
        return self._size() > _TURN_BYTES

    def _size(self) -> int:
        """Return how many bytes this turn has sent and has in stores."""
        return self._collector.count_sent() - self._sent + max(0, self.task.uncommitted_bytes() - self._uncommitted)

    def _end_turn(self) -> list[Row]:
        """Return what was sent, and begin the next turn: twice as long, unless it would have too many records or bytes then."""
        task, collector, counters = self.task, self._collector, self.task.counters
        fitting = (counters.records_processed - self._taken) * _TURN_BYTES // max(1, self._size())
        if task.uncommitted_bytes() > self._limit:
            self._commit()  # before anything is taken: suppressed tables log what has changed
        self._turn = max(1, min(2 * self._turn, _TURN_RECORDS, fitting))
        self._taken, self._punctuations = counters.records_processed, counters.punctuations
        self._look_at = self._taken + _LOOK_RECORDS
        self._sent, self._uncommitted = collector.count_sent(), task.uncommitted_bytes()
        return collector.take()

    def _process_everything(self) -> Iterator[None]:
        """Process all records, pausing after some.

        Raises:
            IllegalTaskStateError: the engine leaves some.
        """
        self._end_arrivals()
        while True:
            self._read()
            while self._process(_TURN_RECORDS):
                yield
            if self._next is None and not self._unread:
                if left := self.task.buffered():
                    raise IllegalTaskStateError(
                        f"task {self.task.task_id} left {left} records of its history unprocessed"
                    )
                return
            if self._next is None or self._must_read():
                continue
            self._wait_for_arrivals(wait=False)
            while self._precedes_next() and self._process(1):
                yield
            if not self._must_read():
                yield from self._take_next()
                yield
            self._wait_for_arrivals(wait=True)

    def _read(self) -> None:
        """Read until no partition that the task reads itself is empty before its end.

        One after the other, until it has a record that can be processed. So their order is the same however records come in
        batches: that of partitions decides between the same timestamps, and records that are dropped may be sent as dead letters.
        """
        task = self.task
        while must_read := self._must_read():
            partition = must_read[0]
            records = next(filter(None, self._unread[partition]), None)
            if records is None:
                del self._unread[partition]
                task.set_lag(partition, 0)
                continue
            task.add_records(partition, records)
            if len(task.input_partitions) > 1:
                task.next_timestamp()  # drops what has no use, so that more is read before the engine chooses

    def _must_read(self) -> list[TopicPartition]:
        return [
            partition
            for partition in self._unread
            if partition not in self._arriving and not self.task.buffered(partition)
        ]

    def _wait_for_arrivals(self, *, wait: bool) -> None:
        """Have the engine wait for partitions that arrive and are empty, or not."""
        for partition in self._arriving:
            self.task.set_lag(partition, None if wait else 0)

    def _end_arrivals(self) -> None:
        """Have the engine wait no more for partitions of which all has arrived, except for what is still to be read of them."""
        following, until = self._next, self._until
        ended = self._arriving
        if following is not None:
            ended = frozenset(at for at in ended if at in until and until[at] <= following.reached)
        for partition in ended:
            self.task.set_lag(partition, None if partition in self._unread else 0)
        self._arriving -= ended

    def _process(self, most: int) -> bool:
        """Process some records; return whether there were any that may be."""
        task = self.task
        self._now = now = max(self._now, _now())
        before = task.buffered()
        if not before or not task.ready(now):
            return False
        left = min(self._taken + self._turn, self._look_at) - task.counters.records_processed
        task.process(now, min(most, left))
        task.punctuate_stream_time()
        return task.buffered() < before

    def _precedes_next(self) -> bool:
        """Return whether the record that the engine would choose comes before what arrives next."""
        following = self._next
        timestamp = self.task.next_timestamp()
        if following is None or timestamp is None:
            return False
        if not following.circular:
            return timestamp < following.reached
        return max(timestamp, self.task.stream_time, self._collector.reached) <= following.reached

    def _take_next(self) -> Iterator[None]:
        """Hand what has arrived to the engine, pausing after each record that is processed."""
        arrival = self._next
        assert arrival is not None
        self._next = next(self._arrivals, None)
        for partition, records in arrival.records:
            self.task.add_records(partition, records)
        if arrival.circular:
            self._collector.reached = max(arrival.reached, self._collector.reached)
            while any(self.task.buffered(partition) for partition, _ in arrival.records) and self._process(1):
                yield
        self._end_arrivals()

    def _commit(self) -> None:
        self.offsets.update(self.task.prepare_commit())
        self.task.post_commit({})

    def _refuse_wall_clock(self) -> None:
        schedules = self.task.schedules.wall_clock
        if schedules.next_ms < NEVER and not self._wall_clock_punctuators:
            raise UnsupportedFeatureError(
                f"Node {', '.join(sorted(schedules.nodes))} of task {self.task.task_id} schedules a punctuator by wall-clock "
                "time, which has no meaning over history. Schedule it by stream time, or allow wall-clock punctuators, which are "
                "then never called during the backfill"
            )


def _now() -> int:
    return int(time.time() * 1000)


__all__ = ["Arrival", "Inputs", "TaskRun", "backfill_config"]
