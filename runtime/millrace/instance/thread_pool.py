"""The stream threads of one client: starting, adding, removing and replacing them.

Threads are numbered from 1, and the number is part of the names of a thread's clients, static membership and transactional id; a
new thread takes the lowest free number. `kafka_streams` decides whether a dead one is replaced. `statestore.cache.max.bytes` is
divided equally among the threads.

The pool shares the client's lock; readers of `threads` need none, so that they never have to wait.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from millrace.errors import StreamsTimeoutError
from millrace.instance.activity import Totals
from millrace.instance.states import ThreadState
from millrace.instance.stream_thread import StreamThread

__all__ = ["ThreadPool"]

_ENDING = (ThreadState.PENDING_SHUTDOWN, ThreadState.DEAD)


class ThreadPool:
    """The threads of one client.

    Args:
        lock: the client's, which is held whenever a thread reports its state.
        cache_max_bytes: the record cache that the threads share.
        new_thread: creates a thread, given its number.
        on_gone: given the counters of a thread that has ended and left the pool.
    """

    def __init__(
        self,
        lock: threading.RLock,
        cache_max_bytes: int,
        new_thread: Callable[[int], StreamThread],
        on_gone: Callable[[Totals], None],
    ) -> None:
        self._lock = lock
        self._cache_max_bytes = cache_max_bytes
        self._new_thread = new_thread
        self._on_gone = on_gone
        self._threads: dict[int, StreamThread] = {}
        self._to_replace: set[StreamThread] = set()
        self._to_remove: set[StreamThread] = set()

    @property
    def threads(self) -> list[StreamThread]:
        """The threads, including ended ones until they are replaced or removed."""
        return list(self._threads.copy().values())

    @property
    def all_running(self) -> bool:
        """Whether every thread that is not being removed is running."""
        return all(thread.state is ThreadState.RUNNING for thread in self.threads if thread not in self._to_remove)

    def cache_share(self) -> int:
        """Return how many bytes of the record cache each thread may currently use."""
        return self._cache_max_bytes // max(1, len(self._threads))

    def start(self, count: int) -> None:
        """Start the first threads."""
        with self._lock:
            new = [self._make(number) for number in range(1, count + 1)]
        for thread in new:
            thread.start()

    def shutdown(self, *, leave_group: bool | None, broker_wait_s: float) -> None:
        """Ask every thread to end; see `StreamThread.shutdown`."""
        for thread in self.threads:
            thread.shutdown(leave_group=leave_group, broker_wait_s=broker_wait_s)

    def add(self) -> StreamThread:
        """Start one more thread."""
        with self._lock:
            thread = self._make(next(number for number in itertools.count(1) if number not in self._threads))
            self._share_cache()
        thread.start()
        return thread

    def remove(self, timeout_s: float | None) -> StreamThread | None:
        """End a thread for good and wait for its end, unless called in a stream thread; None if there is no thread.

        Raises:
            StreamsTimeoutError: it has not ended in time; it will.
        """
        with self._lock:
            left = [one for one in self.threads if one not in self._to_remove and one.state not in _ENDING]
            if not left:
                return None
            thread = max(left, key=lambda one: (not one.is_current, one.number))
            self._to_remove.add(thread)
        thread.shutdown(leave_group=True)
        if not any(one.is_current for one in self.threads) and not thread.join(timeout_s):
            raise StreamsTimeoutError(
                f"{thread.name} has not ended within {timeout_s} s; it will once it has committed"
            )
        return thread

    def replace(self, thread: StreamThread) -> None:
        """Start a thread with the same number once this one, which has failed, is dead."""
        with self._lock:
            self._to_replace.add(thread)

    def ended(self, thread: StreamThread, *, replace: bool) -> None:
        """Remove or replace a dead thread, if that was requested.

        Args:
            thread: which one.
            replace: whether the client is still running.
        """
        with self._lock:
            if thread in self._to_remove:
                self._to_remove.discard(thread)
                del self._threads[thread.number]
                self._on_gone(thread.totals)
                self._share_cache()
            elif thread in self._to_replace and replace:
                self._to_replace.discard(thread)
                self._make(thread.number).start()

    def _make(self, number: int) -> StreamThread:
        thread = self._new_thread(number)
        replaced = self._threads.get(number)
        thread.joined = replaced is not None and replaced.joined
        self._threads[number] = thread
        if replaced is not None:
            self._on_gone(replaced.totals)
        return thread

    def _share_cache(self) -> None:
        for thread in self._threads.values():
            thread.resize_cache(self.cache_share())
