"""Chooses which input partition's record a task processes next: the smallest timestamp first.

Order across partitions is best effort (KIP-695): with an empty partition among the inputs, `max.task.idle.ms` says what to
wait for. -1: nothing. 0: records known to be on the broker but not here yet. More: that long besides, for records still to be
produced. The host tells each partition's lag; a partition whose lag is not known is waited for.

Of heads with the same timestamp the one that became a head first is taken, as from Java's priority queue of partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.engine.record_queue import RecordQueue
from millrace.engine.times import TaskCounters
from millrace.records import ConsumedRecord, TopicPartition

IDLING_DISABLED = -1


class PartitionGroup:
    """The input partitions of one task."""

    __slots__ = ("_counters", "_list", "_max_idle_ms", "queues")

    def __init__(self, queues: Iterable[RecordQueue], max_task_idle_ms: int, counters: TaskCounters) -> None:
        self.queues: Mapping[TopicPartition, RecordQueue] = {
            queue.partition: queue for queue in sorted(queues, key=lambda queue: queue.partition)
        }
        self._list = list(self.queues.values())
        self._max_idle_ms = max_task_idle_ms
        self._counters = counters

    def __repr__(self) -> str:
        return f"PartitionGroup({list(self._list)!r})"

    def add(self, partition: TopicPartition, records: Iterable[ConsumedRecord]) -> None:
        """Append raw records of one partition, in offset order."""
        queue = self.queues[partition]
        if not queue:
            self._move_to_end(queue)
        queue.raw.extend(records)

    def buffered(self) -> int:
        """Return the number of records that wait in all partitions."""
        return sum(map(len, self._list))

    def set_lag(self, partition: TopicPartition, lag: int | None) -> None:
        """Tell how many records of a partition are on the broker but not fetched; None = not known."""
        self.queues[partition].lag = lag

    def ready(self, now_ms: int) -> bool:
        """Return whether there is a record and it may be processed although other partitions are empty."""
        if len(self._list) == 1:
            return bool(self._list[0].raw) or self._list[0].head is not None
        return any(map(len, self._list)) and self._may_process(now_ms)

    def process(self, now_ms: int, max_records: int) -> int:
        """Process up to that many records in timestamp order; return how many were taken."""
        queues = self._list
        if len(queues) == 1:
            return queues[0].drain(max_records)
        done = 0
        while done < max_records:
            best, until = self._choose()
            if best is None or not self._may_process(now_ms):
                break
            if any(queue.idle_deadline_ms is not None for queue in queues):
                self._counters.enforced_processing += 1
            if until is None:
                done += best.drain(max_records - done)
            else:
                done += self._run(best, until, max_records - done)
                self._move_to_end(best)
        return done

    def _move_to_end(self, queue: RecordQueue) -> None:
        """Let the heads of all other queues go first if they have the same timestamp as this queue's next one."""
        queues = self._list
        if queues[-1] is not queue:
            queues.remove(queue)
            queues.append(queue)

    def _choose(self) -> tuple[RecordQueue | None, int | None]:
        """Return the queue whose head is earliest, and the timestamp of the next earliest head (None: there is no other)."""
        best: RecordQueue | None = None
        best_at = 0
        until: int | None = None
        for queue in self._list:
            timestamp = queue.peek()
            if timestamp is None:
                continue
            if best is None:
                best, best_at = queue, timestamp
            elif timestamp < best_at:
                best, best_at, until = queue, timestamp, best_at
            elif until is None or timestamp < until:
                until = timestamp
        return best, until

    @staticmethod
    def _run(queue: RecordQueue, until: int, max_records: int) -> int:
        """Process a queue's records for as long as its head is earlier than the heads of all others."""
        done = 0
        while done < max_records:
            queue.process_head()
            done += 1
            timestamp = queue.peek()
            if timestamp is None or timestamp >= until:
                break
        return done

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
