"""Whose turn it is to have its pods renewed: how many applications a new version of the operator replaces pods of at a time.

A turn ends when the application needs it no longer, and also when nothing comes of it: an application whose gate stays closed,
or whose pods do not come up, goes to the end of the queue, so that it does not hold up all others. One with a pod down keeps its
turn for longer, because that may be the template's fault and the others would fare the same.

Turns are kept in memory only. What is lost with it is the order: that an application is in the midst of it is read from its
status.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from millrace_operator.cluster.kinds import APPS
from millrace_operator.model import Object, Renewal, RenewalPermit, ResourceRef
from millrace_operator.reconcile.reasons import ConditionReason

_PATIENCE_SECONDS: Final = 600.0
"""How long a turn lasts without a pod being replaced."""
_PATIENCE_WITH_POD_DOWN_SECONDS: Final = 3600.0


@dataclass(slots=True)
class _Turn:
    renewal: Renewal | None
    """What the application has told last; None before it has told."""
    since: float
    """When it came further last."""


class RenewalLimiter:
    """Gives turns, first come, first served; safe to use from several threads.

    Args:
        most: How many applications may have their turn at a time; 0 for none ever.
        wake: Called with an application whose turn has come.
        clock: Seconds that only go forward.
    """

    def __init__(
        self, most: int, wake: Callable[[ResourceRef], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._wake = wake
        self._clock = clock
        self._lock = threading.Lock()
        self._turns: dict[ResourceRef, _Turn] = {}
        self._waiting: dict[ResourceRef, None] = {}

    def resume(self, apps: Iterable[Object]) -> None:
        """Give the turn back to those applications that had it when an operator ended."""
        with self._lock:
            for app in apps if self._most else ():
                if _is_under_way(app):
                    ref = ResourceRef(APPS.kind, app["metadata"]["namespace"], app["metadata"]["name"])
                    self._turns.setdefault(ref, _Turn(None, self._clock()))

    def turn_of(self, ref: ResourceRef) -> RenewalPermit:
        """Return whether it is an application's turn."""
        if not self._most:
            return "Never"
        with self._lock:
            return "Now" if ref in self._turns else "Waits"

    def tell(self, ref: ResourceRef, renewal: Renewal | None) -> None:
        """Take what an application needs a turn for, which may come at once; None ends it."""
        if not self._most:
            return
        with self._lock:
            turn = self._turns.get(ref)
            if renewal is None:
                self._turns.pop(ref, None)
                self._waiting.pop(ref, None)
            elif turn is None:
                self._waiting.setdefault(ref)
            else:  # a pod that comes and goes is not progress; one less to replace is
                is_further = turn.renewal is not None and renewal.left < turn.renewal.left
                self._turns[ref] = _Turn(renewal, self._clock() if is_further else turn.since)
            woken = list(self._next())
        for each in woken:
            self._wake(each)

    def _next(self) -> Iterator[ResourceRef]:
        """End turns of which nothing comes, and yield the applications whose turn it is then."""
        now = self._clock()
        for ref in [ref for ref, turn in self._turns.items() if now - turn.since > _patience(turn)]:
            del self._turns[ref]
        while self._waiting and len(self._turns) < self._most:
            ref = next(iter(self._waiting))
            del self._waiting[ref]
            self._turns[ref] = _Turn(None, now)
            yield ref


def _patience(turn: _Turn) -> float:
    is_down = turn.renewal is not None and turn.renewal.coming
    return _PATIENCE_WITH_POD_DOWN_SECONDS if is_down else _PATIENCE_SECONDS


def _is_under_way(app: Object) -> bool:
    conditions = (app.get("status") or {}).get("conditions") or ()
    return any(item.get("reason") == ConditionReason.RENEWAL_UNDER_WAY for item in conditions)
