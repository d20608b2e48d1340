"""Chooses which input partition's record a task processes next: the smallest timestamp first.

Order across partitions is best effort (KIP-695): when an input partition is empty, `max.task.idle.ms` says what to wait for.
-1: nothing. 0: records known to be on the broker but not fetched yet. More: in addition, that long for records yet to be
produced. The host reports each partition's lag; a partition whose lag is unknown is waited for.

Among heads with the same timestamp, the one that Java would take is taken: the partitions that have records are kept in a heap
that moves its elements as `java.util.PriorityQueue` does. The head of every queue in the heap has been read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millrace.engine.punctuation import NEVER, PunctuationQueue
from millrace.engine.record_queue import ENDLESS, RecordQueue, Turn
from millrace.engine.task_state import TaskCounters, TaskTimes
from millrace.records import RawRecord, TopicPartition

IDLING_DISABLED = -1


class PartitionGroup:
    """The input partitions of one task.

    Args:
        queues: one of each.
        max_task_idle_ms: how long to wait for those that are empty.
        counters: the task's.
        times: the task's.
        punctuations: the task's, if processing is to stop when one is due; the queues must know them too.
    """

    __slots__ = ("_arrived", "_counters", "_heap", "_list", "_max_idle_ms", "_punctuations", "_times", "queues")

    def __init__(
        self,
        queues: Iterable[RecordQueue],
        max_task_idle_ms: int,
        counters: TaskCounters,
        times: TaskTimes,
        punctuations: PunctuationQueue | None,
    ) -> None:
        self.queues: Mapping[TopicPartition, RecordQueue] = {
            queue.partition: queue for queue in sorted(queues, key=lambda queue: queue.partition)
        }
        self._list = list(self.queues.values())
        self._heap: list[RecordQueue] = []
        self._arrived = [queue for queue in self._list if queue]
        """Queues with records that are not in the heap yet."""
        self._max_idle_ms = max_task_idle_ms
        self._counters = counters
        self._times = times
        self._punctuations = punctuations

    def __repr__(self) -> str:
        return f"PartitionGroup({list(self._list)!r})"

    def add(self, partition: TopicPartition, records: Sequence[RawRecord]) -> None:
        """Append raw records of one partition, in offset order."""
        queue = self.queues[partition]
        if records and not queue and len(self._list) > 1:
            if queue not in self._arrived:  # it is if all that had arrived was dropped in `next_timestamp`
                self._arrived.append(queue)
            queue.idle_deadline_ms = None
        queue.raw.extend(records)

    def buffered(self) -> int:
        """Return the number of records that are waiting in all partitions."""
        return sum(map(len, self._list))

    def moved(self) -> bool:
        """Return whether anything was consumed since `committed`."""
        return any(queue.position != queue.committed_position for queue in self._list)

    def committed(self) -> None:
        """Note that what was consumed so far is committed."""
        for queue in self._list:
            queue.committed_position = queue.position

    def set_lag(self, partition: TopicPartition, lag: int | None) -> None:
        """Set how many records of a partition are on the broker but not fetched; None = unknown."""
        self.queues[partition].lag = lag

    def ready(self, now_ms: int) -> bool:
        """Return whether there is a record and it may be processed even if other partitions are empty."""
        if len(self._list) == 1:
            return bool(self._list[0].raw) or self._list[0].head is not None
        return any(map(len, self._list)) and self._may_process(now_ms)

    def next_timestamp(self) -> int | None:
        """Return the smallest timestamp among the queues' heads, which are read if necessary; None if all are empty."""
        return min((at for queue in self._list if (at := queue.peek()) is not None), default=None)

    def process(self, now_ms: int, max_records: int, turn: Turn = ENDLESS) -> int:
        """Process at most this many records in timestamp order, until the turn is over; return how many.

        Dropped records count if there is only one partition, and never if there are several: how many count depends on the
        records alone, not on when they were fetched.
        """
        queues = self._list
        if len(queues) == 1:
            return queues[0].drain(max_records, turn=turn)
        heap, times, punctuations = self._heap, self._times, self._punctuations
        done = 0
        while done < max_records:
            self._offer_arrived()
            if len(heap) < len(queues):
                if not heap or not self._may_process(now_ms):
                    break
                if any(queue.idle_deadline_ms is not None for queue in queues):
                    self._counters.enforced_processing += 1
            if len(heap) == 1:
                done += self._process_only(max_records - done, turn)
            elif len(heap) == 2:
                done += self._process_first_of_two(max_records - done, turn)
            else:
                self._process_first()
                done += 1
            if punctuations is not None and times.stream_time >= punctuations.next_ms:
                break
            if turn.clock() >= turn.look_at and turn.over():
                break
        return done

    def _process_only(self, max_records: int, turn: Turn) -> int:
        queue = self._heap.pop()
        try:
            return queue.drain(max_records, NEVER, turn)
        finally:
            if queue:
                self._arrived.insert(0, queue)

    def _process_first_of_two(self, max_records: int, turn: Turn) -> int:
        first, other = self._heap
        assert other.head is not None
        until = other.head[0]
        try:
            return first.drain(max_records, until, turn)
        finally:
            if first.head is None:
                self._heap[:] = [other]
                if first:
                    self._arrived.insert(0, first)
            elif first.head[0] >= until:
                self._heap[:] = [other, first]

    def _process_first(self) -> None:
        queue = _poll(self._heap)
        try:
            queue.process_head()
        finally:
            if queue:
                self._arrived.insert(0, queue)

    def _offer_arrived(self) -> None:
        arrived = self._arrived
        while arrived:
            if arrived[0].peek() is not None:
                _offer(self._heap, arrived[0])
            del arrived[0]

    def _may_process(self, now_ms: int) -> bool:
        max_idle_ms = self._max_idle_ms
        if max_idle_ms == IDLING_DISABLED:
            return True
        for queue in self._list:
            if queue.raw or queue.head is not None:
                queue.idle_deadline_ms = None
            elif queue.lag is None or queue.lag > 0:
                queue.idle_deadline_ms = None
                return False
            else:
                if queue.idle_deadline_ms is None:
                    queue.idle_deadline_ms = now_ms + max_idle_ms
                if now_ms < queue.idle_deadline_ms:
                    return False
        return True


def _offer(heap: list[RecordQueue], queue: RecordQueue) -> None:
    """Add a queue whose head has been read: at the end, then up as long as the parent's head is later."""
    timestamp = _time(queue)
    heap.append(queue)
    at = len(heap) - 1
    while at:
        above = (at - 1) // 2
        if timestamp >= _time(heap[above]):
            break
        heap[at] = heap[above]
        at = above
    heap[at] = queue


def _poll(heap: list[RecordQueue]) -> RecordQueue:
    """Remove the first queue; the last one takes its place, then moves down as long as a child's head is earlier."""
    first, last = heap[0], heap.pop()
    size = len(heap)
    if size:
        timestamp = _time(last)
        at = 0
        while (child := 2 * at + 1) < size:
            if child + 1 < size and _time(heap[child]) > _time(heap[child + 1]):
                child += 1
            if timestamp <= _time(heap[child]):
                break
            heap[at] = heap[child]
            at = child
        heap[at] = last
    return first


def _time(queue: RecordQueue) -> int:
    assert queue.head is not None
    return queue.head[0]
