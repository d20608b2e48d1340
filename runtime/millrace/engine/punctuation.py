"""Schedules that call punctuators as stream time or wall-clock time advances.

Java's rules: a stream-time schedule starts at 0 (so it fires with the first record), a wall-clock one after its first
interval. A schedule that is due fires once, with the time that made it due, however many intervals were skipped; its next time
stays on the grid of its start. Schedules due together fire in the order of Java's binary heap, even for ties, so the heap is
implemented here: `heapq` breaks ties differently.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.errors import TopologyError
from millrace.processor.api import Cancellable, PunctuationType, Punctuator


class PunctuationSchedule:
    """One punctuator's schedule, and the handle to cancel it."""

    __slots__ = ("cancelled", "interval_ms", "next_ms", "node", "punctuator")

    def __init__(self, node: str, next_ms: int, interval_ms: int, punctuator: Punctuator) -> None:
        self.node = node
        self.next_ms = next_ms
        self.interval_ms = interval_ms
        self.punctuator = punctuator
        self.cancelled = False

    def cancel(self) -> None:
        """Never call the punctuator again; may be called by the punctuator itself."""
        self.cancelled = True

    def advance(self, now_ms: int) -> None:
        """Move to the first point of the grid after `now_ms`."""
        behind = now_ms - self.next_ms
        self.next_ms += (behind // self.interval_ms + 1) * self.interval_ms if behind > 0 else self.interval_ms

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled else f"next at {self.next_ms}"
        return f"<schedule of {self.node}: every {self.interval_ms} ms, {state}>"


NEVER = 2**63 - 1


class PunctuationQueue:
    """The schedules of one task, in either stream time or wall-clock time."""

    __slots__ = ("_heap", "next_ms")

    def __init__(self) -> None:
        self._heap: list[PunctuationSchedule] = []
        self.next_ms = NEVER
        """When the earliest schedule is due; a cheap comparison for the host."""

    def __len__(self) -> int:
        return len(self._heap)

    def __repr__(self) -> str:
        return f"PunctuationQueue({self._heap!r})"

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that have a schedule here."""
        return frozenset(entry.node for entry in self._heap if not entry.cancelled)

    def schedule(self, node: str, first_ms: int, interval_ms: int, punctuator: Punctuator) -> PunctuationSchedule:
        """Add a schedule.

        Raises:
            TopologyError: the interval is less than a millisecond.
        """
        if interval_ms < 1:
            raise TopologyError(f"Node {node} schedules a punctuator every {interval_ms} ms; the minimum is 1 ms")
        entry = PunctuationSchedule(node, first_ms, interval_ms, punctuator)
        self._push(entry)
        self.next_ms = self._heap[0].next_ms
        return entry

    def punctuate(self, now_ms: int, call: Callable[[PunctuationSchedule, int], None]) -> int:
        """Call every punctuator that is due at `now_ms`; return how many were called."""
        called = 0
        heap = self._heap
        while heap and heap[0].next_ms <= now_ms:
            entry = self._pop()
            if entry.cancelled:
                continue
            call(entry, now_ms)
            called += 1
            if not entry.cancelled:
                entry.advance(now_ms)
                self._push(entry)
        self.next_ms = heap[0].next_ms if heap else NEVER
        return called

    def clear(self) -> None:
        """Forget every schedule."""
        self._heap.clear()
        self.next_ms = NEVER

    def _push(self, entry: PunctuationSchedule) -> None:
        heap = self._heap
        heap.append(entry)
        child = len(heap) - 1
        while child > 0:
            parent = (child - 1) >> 1
            if entry.next_ms >= heap[parent].next_ms:
                break
            heap[child] = heap[parent]
            child = parent
        heap[child] = entry

    def _pop(self) -> PunctuationSchedule:
        heap = self._heap
        top = heap[0]
        last = heap.pop()
        if heap:
            size, parent = len(heap), 0
            while (child := 2 * parent + 1) < size:
                if child + 1 < size and heap[child].next_ms > heap[child + 1].next_ms:
                    child += 1
                if last.next_ms <= heap[child].next_ms:
                    break
                heap[parent] = heap[child]
                parent = child
            heap[parent] = last
        return top


class TaskSchedules:
    """The schedules of one task, in stream time and in wall-clock time.

    Args:
        clock: the wall clock (ms).
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.stream_time = PunctuationQueue()
        self.wall_clock = PunctuationQueue()

    def schedule(
        self, node: str, interval_ms: int, kind: PunctuationType, punctuator: Punctuator, start_ms: int | None
    ) -> Cancellable:
        """Add a schedule.

        Raises:
            TopologyError: the interval is less than a millisecond, or the start is negative.
        """
        if start_ms is not None and start_ms < 0:
            raise TopologyError(
                f"Node {node} schedules a punctuator to start at {start_ms}; the start must not be negative"
            )
        if kind is PunctuationType.STREAM_TIME:
            return self.stream_time.schedule(node, start_ms or 0, interval_ms, punctuator)
        first = self._clock() + interval_ms if start_ms is None else start_ms
        return self.wall_clock.schedule(node, first, interval_ms, punctuator)

    def clear(self) -> None:
        """Forget every schedule."""
        self.stream_time.clear()
        self.wall_clock.clear()
