"""What windowed aggregations share about sending results on: with every update, or once when a window is final (KIP-825).

Final results are looked for when a record has been processed, at most every
`__emit.interval.ms.kstreams.windowed.aggregation__` of wall clock, because that costs a scan. Up to where they were sent is kept
in the task's metadata and committed with its offsets (formats §9), so that a restart neither repeats nor forgets windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from millrace.config import FINAL_RESULTS_INTERVAL
from millrace.processor.node import NodeContext
from millrace.records import Change, Headers, Windowed

_DEFAULT_EMIT_INTERVAL_MS = 1000

NO_CLOSE_TIME = -1
"""Nothing was sent yet."""

Range = tuple[int, int]
FinalResult = tuple[Windowed[Any], Any, int]
"""The key with its window, the aggregate, and the timestamp (ms) to send it with."""


class FinalResults:
    """Sends the results of windows that have closed, in the order of their start.

    Args:
        node: whose children get the results.
        store_name: names the entry in the task's metadata.
        due: last and new close time (ms) → the range to look in, or None when no window has closed between them.
        fetch: yields the results of a range (both bounds inclusive).
    """

    def __init__(
        self,
        node: NodeContext,
        store_name: str,
        *,
        due: Callable[[int, int], Range | None],
        fetch: Callable[[int, int], Iterable[FinalResult]],
    ) -> None:
        self._node = node
        self._store_name = store_name
        self._due = due
        self._fetch = fetch
        self._interval_ms: int = node.config.internal(FINAL_RESULTS_INTERVAL, _DEFAULT_EMIT_INTERVAL_MS)
        self._next_ms = 0
        self._last_close_time = NO_CLOSE_TIME
        node.on_init(self._remember)

    def _remember(self) -> None:
        self._last_close_time = self._node.metadata.get(self._store_name, NO_CLOSE_TIME)

    def emit(self, close_time: int, headers: Headers) -> None:
        """Send what has closed, if it is time to look.

        Args:
            close_time: windows that end up to here are final (ms).
            headers: of the record that moved time on; the results carry them.
        """
        node = self._node
        now = node.system_time()
        if now < self._next_ms:
            return
        self._next_ms = now + self._interval_ms
        last = self._last_close_time
        if last != NO_CLOSE_TIME and last >= close_time:
            return
        due = self._due(last, close_time)
        if due is None:
            return
        forward = node.forward
        count = 0
        for key, value, timestamp in self._fetch(*due):
            count += 1
            forward(key, Change(value, None), timestamp, headers)
        node.sensor("window-aggregate-final-emit", count)
        self._last_close_time = close_time
        node.metadata[self._store_name] = close_time
