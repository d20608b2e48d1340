"""Asking brokers about tasks without waiting for the answer, so that a partition nobody can reach holds up its own task only.

What is asked about many tasks at once is answered in one go. If that takes long, one of them may be the reason: from then on each
is asked about by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from millrace.errors import StreamsTimeoutError

__all__ = ["BackgroundQueries", "in_background"]

_TOGETHER_S: Final = 2.0
"""How long items are asked about in one go."""

_Item = TypeVar("_Item", bound=Hashable)
_Answer = TypeVar("_Answer")


def in_background(name: str, call: Callable[[], _Answer]) -> Future[_Answer]:
    """Make a call in a daemon thread of its own, and return the future of what it returns or raises."""
    outcome: Future[_Answer] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # raised where it is waited for
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


@dataclass(frozen=True, slots=True)
class _Question(Generic[_Answer]):
    answer: Future[_Answer]
    deadline: float


class BackgroundQueries(Generic[_Item, _Answer]):
    """Questions that are under way; used by one thread only.

    Args:
        ask: asks about some items and waits, at most for the seconds given; called in a thread of its own.
        timeout_s: how long to go on asking about an item.

    >>> lengths = BackgroundQueries(lambda words, _timeout_s: {word: len(word) for word in words}, timeout_s=60)
    >>> lengths.add(["one", "three"])
    >>> while len(answers := lengths.take()) < 2: pass
    >>> [future.result()[word] for word, future in answers]
    [3, 5]
    """

    def __init__(self, ask: Callable[[list[_Item], float], _Answer], timeout_s: float) -> None:
        self._ask = ask
        self._timeout_s = timeout_s
        self._questions: dict[_Item, _Question[_Answer]] = {}

    def __contains__(self, item: _Item) -> bool:
        return item in self._questions

    def __len__(self) -> int:
        return len(self._questions)

    def add(self, items: Collection[_Item]) -> None:
        """Ask about items."""
        deadline = time.monotonic() + self._timeout_s
        together = len(items) > 1
        self._start(list(items), min(_TOGETHER_S, self._timeout_s) if together else self._timeout_s, deadline)

    def discard(self, item: _Item) -> None:
        """Forget what was asked about an item, if anything was."""
        self._questions.pop(item, None)

    def take(self) -> list[tuple[_Item, Future[_Answer]]]:
        """Return the items whose answer has come, or has failed to come in time, since the last call."""
        taken = []
        for item, question in list(self._questions.items()):
            if not question.answer.done():
                continue
            del self._questions[item]
            left_s = question.deadline - time.monotonic()
            if isinstance(question.answer.exception(), StreamsTimeoutError) and left_s > 0:
                self._start([item], left_s, question.deadline)
            else:
                taken.append((item, question.answer))
        return taken

    def _start(self, items: list[_Item], timeout_s: float, deadline: float) -> None:
        name = f"{threading.current_thread().name}-inquiry"
        answer = in_background(name, lambda: self._ask(items, timeout_s))
        question: _Question[_Answer] = _Question(answer, deadline)
        self._questions.update(dict.fromkeys(items, question))
