"""What is known of each application's brokers, asked for in the background so that brokers that are down delay nobody.

A pass wants the newest there is, and waits a little for it, if the brokers answered in time before. Otherwise it goes on with
what was known, and when an answer comes that differs, the application is looked at again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass, replace
from typing import Final

from millrace_operator.app.refs import Ref
from millrace_operator.model import KafkaState

log = logging.getLogger(__name__)

_FIRST_WAIT_SECONDS: Final = 5.0
_WAIT_SECONDS: Final = 2.5
_FRESH_SECONDS: Final = 1.0
_THREADS: Final = 16

Ask = Callable[[], KafkaState]


@dataclass(slots=True, eq=False)
class _Known:
    state: KafkaState | None = None
    asked_at: float = float("-inf")
    answered_in_time: bool = True
    asking: Future[None] | None = None
    handed_out: KafkaState | None = None
    outdated: bool = False
    """Whether something has changed since the question was asked: by an action, or what the user wants."""
    generation: int | None = None
    """Of the manifest for which was asked last."""
    answered_for: int | None = None
    """Generation of the manifest for which the answer was asked for that is known."""


class Brokers:
    """The latest answers of all applications' brokers; safe to use from several threads.

    Args:
        on_change: Called when an answer differs from what was handed out last.
        clock: Seconds that only go forward.
    """

    def __init__(self, on_change: Callable[[Ref], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[Ref, _Known] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="brokers")

    def state(self, ref: Ref, ask: Ask, generation: int) -> KafkaState:
        """Return the newest answer that can be had without waiting long; for a new manifest, one to a question asked since.

        Args:
            ref: The application.
            ask: Asks its brokers; may take long, may not raise.
            generation: That of its manifest.
        """
        with self._lock:
            known = self._known.setdefault(ref, _Known())
            known.outdated = known.outdated or known.generation not in {None, generation}
            known.generation = generation
            earlier = known.asking if known.outdated and known.answered_in_time else None
        if earlier is not None:
            wait_for_futures([earlier], _WAIT_SECONDS)
        with self._lock:
            begun = known.asking is None and (known.outdated or self._clock() - known.asked_at >= _FRESH_SECONDS)
            if begun:
                known.outdated = False
                known.asked_at = self._clock()
                known.asking = self._pool.submit(self._ask, ref, known, ask, generation)
            asking = known.asking
            wait = _FIRST_WAIT_SECONDS if known.state is None else _WAIT_SECONDS if known.answered_in_time else 0.0
        if asking is not None and wait:
            try:
                asking.result(wait)
            except FutureTimeoutError:
                known.answered_in_time = False
        with self._lock:
            told = known.state
            if told is None or (told.error is None and known.answered_for != generation):
                told = KafkaState(error="the brokers have not answered yet", reason="Unknown")
            known.handed_out = told
            return told

    def changed(self, ref: Ref) -> None:
        """Tell that an action has changed something: what is known is out of date."""
        with self._lock:
            known = self._known.setdefault(ref, _Known())
            known.outdated = True
            known.answered_in_time = True

    def forget(self, ref: Ref) -> None:
        """Forget an application that is gone."""
        with self._lock:
            self._known.pop(ref, None)

    def close(self) -> None:
        """End the threads; questions that are under way end by their own time-outs."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, ref: Ref, known: _Known, ask: Ask, generation: int) -> None:
        begun = self._clock()
        try:
            state = ask()
        except Exception as error:
            log.exception("%s: asking the brokers failed", ref)
            state = KafkaState(error=f"Asking the brokers failed: {type(error).__name__}", reason="Unreachable")
        with self._lock:
            known.state = state
            known.answered_for = generation
            known.asking = None
            known.answered_in_time = self._clock() - begun < _WAIT_SECONDS
            differs = known.handed_out is not None and _lasting(known.handed_out) != _lasting(state)
        if differs:
            self._on_change(ref)


def _lasting(state: KafkaState) -> KafkaState:
    """Return what of an answer is worth a pass of its own: lag changes all the time."""
    return replace(state, lag=None)
