"""Waiting for brokers in background threads.

*Queries* ask about tasks without waiting, so that an unreachable partition only delays its own task. A query about many tasks is
answered in one go; if that takes long, one of them may be the reason, so each is then asked about separately.

A client's *start* also waits for brokers, and must end when the client is closed from another thread.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from millrace.deadline import Deadline
from millrace.errors import StreamsError, StreamsTimeoutError
from millrace.kafka.admin_requests import give_up_when

__all__ = ["BackgroundQueries", "Startup", "in_background"]

_TOGETHER_S: Final = 2.0
"""How long a query about several items may take before they are asked about separately."""

_Item = TypeVar("_Item", bound=Hashable)
_Answer = TypeVar("_Answer")


def in_background(
    name: str, call: Callable[[], _Answer], given_up: Callable[[], bool] | None = None
) -> Future[_Answer]:
    """Call a function in its own daemon thread, and return a future for its result or exception.

    An exception refers to the frames in which it was raised. A frame in which `result` raises it must drop the future:
    otherwise the two keep each other alive, with all that these frames refer to, until garbage is collected.

    Args:
        name: the thread's.
        call: the function.
        given_up: returns whether to stop waiting for brokers; None = wait as long as the function does.
    """
    outcome: Future[_Answer] = Future()
    threading.Thread(target=_run, args=(call, outcome, given_up), name=name, daemon=True).start()
    return outcome


def _run(call: Callable[[], _Answer], outcome: Future[_Answer], given_up: Callable[[], bool] | None) -> None:
    if given_up is not None:
        give_up_when(given_up)
    try:
        outcome.set_result(call())
    except BaseException as error:  # raised where the result is awaited
        outcome.set_exception(error)
    finally:
        del outcome


@dataclass(frozen=True, slots=True)
class _Query(Generic[_Answer]):
    answer: Future[_Answer]
    deadline: Deadline


class BackgroundQueries(Generic[_Item, _Answer]):
    """Queries in flight; used by one thread only.

    Args:
        ask: requests the answers for some items and waits for the given number of seconds at most; called in its own thread.
        timeout_s: how long to keep asking about an item.

    >>> lengths = BackgroundQueries(lambda words, _timeout_s: {word: len(word) for word in words}, timeout_s=60)
    >>> lengths.add(["one", "three"])
    >>> while len(answers := lengths.take()) < 2: pass
    >>> [future.result()[word] for word, future in answers]
    [3, 5]
    """

    def __init__(self, ask: Callable[[list[_Item], float], _Answer], timeout_s: float) -> None:
        self._ask = ask
        self._timeout_s = timeout_s
        self._queries: dict[_Item, _Query[_Answer]] = {}

    def __contains__(self, item: _Item) -> bool:
        return item in self._queries

    def __len__(self) -> int:
        return len(self._queries)

    def add(self, items: Collection[_Item]) -> None:
        """Ask about items."""
        deadline = Deadline(self._timeout_s)
        together = len(items) > 1
        self._start(list(items), min(_TOGETHER_S, self._timeout_s) if together else self._timeout_s, deadline)

    def discard(self, item: _Item) -> None:
        """Forget the query about an item, if there is one."""
        self._queries.pop(item, None)

    def take(self) -> list[tuple[_Item, Future[_Answer]]]:
        """Return the items that were answered, or whose time ran out, since the last call."""
        taken = []
        for item, query in list(self._queries.items()):
            if not query.answer.done():
                continue
            del self._queries[item]
            left_s = query.deadline.left_s()
            if isinstance(query.answer.exception(), StreamsTimeoutError) and left_s > 0:
                self._start([item], left_s, query.deadline)
            else:
                taken.append((item, query.answer))
        return taken

    def _start(self, items: list[_Item], timeout_s: float, deadline: Deadline) -> None:
        name = f"{threading.current_thread().name}-query"
        answer = in_background(name, lambda: self._ask(items, timeout_s))
        query: _Query[_Answer] = _Query(answer, deadline)
        self._queries.update(dict.fromkeys(items, query))


class Startup:
    """The start of a client, which waits for brokers until it is done or a `close` in another thread ends it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._over.set()
        self._closed: Future[None] = Future()

    @property
    def is_current(self) -> bool:
        """Whether the caller is the thread that is starting the client."""
        return self._thread is threading.current_thread()

    @property
    def is_over(self) -> bool:
        """Whether no thread is starting the client."""
        return self._over.is_set()

    def begin(self) -> None:
        """Begin, in the calling thread.

        Raises:
            StreamsError: another thread has begun.
        """
        if self._thread is not None:
            raise StreamsError("Cannot start while another thread starts it")
        self._thread = threading.current_thread()
        self._over.clear()

    def end(self) -> None:
        """Note that the start has succeeded or failed."""
        self._thread = None
        self._over.set()

    def close(self) -> None:
        """End the wait of `call`."""
        self._closed.set_result(None)

    def wait(self) -> None:
        """Wait until the start is over."""
        self._over.wait()

    def call(self, function: Callable[[], _Answer]) -> _Answer:
        """Call a function that waits for brokers; `close` ends the wait, and the result is discarded.

        Raises:
            StreamsError: the client was closed.
        """
        outcome = in_background("millrace-start", function)
        either: tuple[Future[Any], ...] = (outcome, self._closed)
        concurrent.futures.wait(either, return_when=concurrent.futures.FIRST_COMPLETED)
        self.require_not_closed()
        try:
            return outcome.result()
        finally:
            del outcome, either

    def require_not_closed(self) -> None:
        """Raise StreamsError if the client was closed."""
        if self._closed.done():
            raise StreamsError("The application was closed while it was starting")
