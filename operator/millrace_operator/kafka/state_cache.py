"""What is known of each application's brokers, asked in the background so that brokers that are down delay nobody.

A pass wants the newest answer. If one is on its way and may arrive soon, the pass is postponed until it is there: the
application goes back into the queue, and no worker waits. If it does not arrive in time the pass continues with what was known,
and when it finally arrives and differs, the application is looked at again.

Clusters, distinguished by their addresses, share the threads that ask: one that does not answer takes no thread from the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from millrace_operator.model import KafkaState, ResourceRef

log = logging.getLogger(__name__)

_FIRST_WAIT_SECONDS: Final = 5.0
_WAIT_SECONDS: Final = 2.5
_FRESH_SECONDS: Final = 1.0
_REST_SECONDS: Final = 20.0
"""An application that no pass has looked at for this long is at rest: an older answer will do."""
_MOST_PER_SECOND_AT_REST: Final = 16.0
"""How many applications at rest are asked about per second: each may need a connection of its own."""
_THREADS: Final = 16
_THREADS_OF_A_CLUSTER: Final = 8
_THREADS_OF_A_DOUBTFUL_CLUSTER: Final = 2
"""For a cluster that has not answered yet, or did not when it was last asked."""
_THREADS_IN_DOUBT: Final = 8
"""For all such clusters together."""

Ask = Callable[[], KafkaState]


class AnswerAwaitedError(Exception):
    """The brokers are being asked, and the pass has to wait for their answer.

    Args:
        seconds: After how long to run it in any case.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the brokers are being asked; waiting for {seconds:.1f} s at most")
        self.seconds = seconds


@dataclass(slots=True, eq=False)
class _Known:
    state: KafkaState | None = None
    asked_at: float = float("-inf")
    looked_at: float = float("-inf")
    """When a pass last asked for it."""
    answered_in_time: bool = True
    asking: bool = False
    awaited_until: float | None = None
    """Until when a pass is postponed for the answer; None if none is."""
    arrived: bool = False
    """Whether the answer that a pass was postponed for has arrived, and the pass has not run yet."""
    handed_out: KafkaState | None = None
    outdated: bool = False
    """Whether an action or the user has changed something since the question was asked."""
    generation: int | None = None
    """The generation of the manifest for the last question."""
    answered_for: int | None = None
    """The generation of the manifest for the known answer."""


class KafkaStateCache:
    """The latest answers of all applications' brokers; safe to use from several threads.

    Args:
        on_change: Called when an answer has arrived that a pass was postponed for, or that differs from the one last handed out.
        clock: Seconds that only go forward.
    """

    def __init__(self, on_change: Callable[[ResourceRef], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[ResourceRef, _Known] = {}
        self._threads = _Threads()

    def state(self, ref: ResourceRef, ask: Ask, generation: int, cluster: str = "") -> KafkaState:
        """Return the newest answer, without waiting; for a new manifest, one to a question asked since then.

        Args:
            ref: The application.
            ask: Asks its brokers; may take long, may not raise.
            generation: That of its manifest.
            cluster: The addresses of its brokers.

        Raises:
            AnswerAwaitedError: A newer answer may arrive soon.
        """
        with self._lock:
            now, known = self._clock(), self._known.setdefault(ref, _Known())
            known.outdated = known.outdated or known.generation not in {None, generation}
            known.generation = generation
            if not known.asking and self._is_due(known, now):
                known.asking, known.outdated, known.asked_at = True, False, now
                known.awaited_until = now + _patience(known)
                self._threads.run(cluster, partial(self._ask, ref, known, ask, generation))
            elif known.asking and known.outdated and known.awaited_until is None:
                known.awaited_until = now + _patience(known)
            known.looked_at, known.arrived = now, False
            if known.asking:
                left = 0.0 if known.awaited_until is None else known.awaited_until - now
                if left > 0:
                    raise AnswerAwaitedError(left)
                known.answered_in_time = False
            known.awaited_until = None
            answer = known.state
            if answer is None or (answer.error is None and known.answered_for != generation):
                answer = KafkaState(error="the brokers have not answered yet", reason="Unknown")
            known.handed_out = answer
            return answer

    def cluster_id(self, ref: ResourceRef) -> str | None:
        """Return what an application's brokers have called their cluster; None if they have not answered yet."""
        with self._lock:
            known = self._known.get(ref)
            return None if known is None or known.state is None else known.state.cluster_id

    def changed(self, ref: ResourceRef) -> None:
        """Note that an action has changed something, so that the known state is outdated."""
        with self._lock:
            known = self._known.setdefault(ref, _Known())
            known.outdated = True
            known.answered_in_time = True

    def forget(self, ref: ResourceRef) -> None:
        """Forget an application that is gone."""
        with self._lock:
            self._known.pop(ref, None)

    def close(self) -> None:
        """End the threads; questions in progress end by their own timeouts."""
        self._threads.close()

    def _is_due(self, known: _Known, now: float) -> bool:
        """Return whether to ask. An answer that a pass was postponed for is not requested again, however long it took."""
        if known.outdated or known.arrived:
            return known.outdated
        at_rest = now - known.looked_at >= _REST_SECONDS
        kept = max(_FRESH_SECONDS, len(self._known) / _MOST_PER_SECOND_AT_REST) if at_rest else _FRESH_SECONDS
        return known.state is None or now - known.asked_at >= kept

    def _ask(self, ref: ResourceRef, known: _Known, ask: Ask, generation: int) -> bool:
        """Ask, and return whether the brokers have answered."""
        try:
            state = ask()
        except Exception as error:
            log.exception("%s: asking the brokers failed", ref)
            state = KafkaState(error=f"Asking the brokers failed: {type(error).__name__}", reason="Unreachable")
        with self._lock:
            known.state = state
            known.answered_for = generation
            known.asking = False
            known.answered_in_time = self._clock() - known.asked_at < _WAIT_SECONDS
            known.arrived, known.awaited_until = known.awaited_until is not None, None
            # Lag changes all the time, which is not worth a pass.
            before = known.handed_out
            differs = before is not None and replace(before, lag=None) != replace(state, lag=None)
            is_news = (known.arrived or differs) and self._known.get(ref) is known
        if is_news:
            self._on_change(ref)
        return state.reason != "Unreachable"


def _patience(known: _Known) -> float:
    """Return for how long a pass is postponed for an answer."""
    if known.state is None:
        return _FIRST_WAIT_SECONDS
    return _WAIT_SECONDS if known.answered_in_time else 0.0


class _Threads:
    """Asks clusters in turn, and keeps threads free for those that answer, whatever the others do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Callable[[], bool]]] = {}
        """Questions by cluster; the least recently asked cluster comes first."""
        self._running: Counter[str] = Counter()
        self._answering: set[str] = set()
        """Clusters that answered when they were last asked."""
        self._closed = False
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="brokers")

    def run(self, cluster: str, question: Callable[[], bool]) -> None:
        """Schedule a question, which returns whether the cluster has answered."""
        with self._lock:
            self._waiting.setdefault(cluster, deque()).append(question)
            self._start()

    def close(self) -> None:
        """Stop starting questions."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        """Start the questions that may be asked now."""
        while not self._closed and (cluster := self._next()) is not None:
            questions = self._waiting.pop(cluster)
            question = questions.popleft()
            if questions:
                self._waiting[cluster] = questions  # behind all others
            self._running[cluster] += 1
            self._pool.submit(self._run, cluster, question)

    def _next(self) -> str | None:
        if self._running.total() >= _THREADS:
            return None
        in_doubt = sum(number for cluster, number in self._running.items() if cluster not in self._answering)
        for cluster in self._waiting:
            if cluster in self._answering:
                most = _THREADS_OF_A_CLUSTER
            else:
                most = _THREADS_OF_A_DOUBTFUL_CLUSTER if in_doubt < _THREADS_IN_DOUBT else 0
            if self._running[cluster] < most:
                return cluster
        return None

    def _run(self, cluster: str, question: Callable[[], bool]) -> None:
        answered = False
        try:
            answered = question()
        finally:
            with self._lock:
                (self._answering.add if answered else self._answering.discard)(cluster)
                self._running -= Counter([cluster])
                self._start()
