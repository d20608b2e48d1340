"""Limits for how many applications at a time a new version of the operator replaces pods.

An application's permit ends when it is no longer needed, and also when it leads nowhere: an application whose gate stays closed,
or whose pods do not become ready, goes to the end of the queue, so that it does not block all others. One with a pod down keeps
its permit for longer, because that may be the template's fault and the others would fare the same.

Permits are kept in memory only. A restart loses the order, but not which applications had a permit: their status says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from millrace_operator.cluster.kinds import APPS
from millrace_operator.model import Object, Renewal, RenewalPermit, ResourceRef
from millrace_operator.reconcile.condition_reason import ConditionReason

_PATIENCE_SECONDS: Final = 600.0
"""How long a permit lasts without a pod being replaced."""
_PATIENCE_WITH_POD_DOWN_SECONDS: Final = 3600.0


@dataclass(slots=True)
class _Permit:
    renewal: Renewal | None
    """What the application last reported; None before its first report."""
    since: float
    """When it last made progress."""


class RenewalLimiter:
    """Gives permits, first come, first served; safe to use from several threads.

    Args:
        most: How many applications may have a permit at a time; 0 for none ever.
        wake: Called with an application that has got a permit.
        clock: Seconds that only go forward.
    """

    def __init__(
        self, most: int, wake: Callable[[ResourceRef], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._wake = wake
        self._clock = clock
        self._lock = threading.Lock()
        self._permits: dict[ResourceRef, _Permit] = {}
        self._waiting: dict[ResourceRef, None] = {}

    def resume(self, apps: Iterable[Object]) -> None:
        """Restore the permits of the applications that had one when the last operator ended."""
        with self._lock:
            for app in apps if self._most else ():
                conditions = (app.get("status") or {}).get("conditions") or ()
                if any(item.get("reason") == ConditionReason.RENEWAL_UNDER_WAY for item in conditions):
                    ref = ResourceRef(APPS.kind, app["metadata"]["namespace"], app["metadata"]["name"])
                    self._permits.setdefault(ref, _Permit(None, self._clock()))

    def permit_of(self, ref: ResourceRef) -> RenewalPermit:
        """Return whether an application has a permit."""
        if not self._most:
            return "Never"
        with self._lock:
            return "Now" if ref in self._permits else "Waits"

    def report(self, ref: ResourceRef, renewal: Renewal | None) -> None:
        """Note what an application needs a permit for, which it may get at once; None ends it."""
        if not self._most:
            return
        with self._lock:
            permit = self._permits.get(ref)
            if renewal is None:
                self._permits.pop(ref, None)
                self._waiting.pop(ref, None)
            elif permit is None:
                self._waiting.setdefault(ref)
            else:  # a pod that comes and goes is not progress; one pod fewer to replace is
                is_further = permit.renewal is not None and renewal.left < permit.renewal.left
                self._permits[ref] = _Permit(renewal, self._clock() if is_further else permit.since)
            woken = list(self._next())
        for each in woken:
            self._wake(each)

    def _next(self) -> Iterator[ResourceRef]:
        """End permits that lead nowhere, and yield the applications that get one instead."""
        now = self._clock()
        for ref, permit in list(self._permits.items()):
            is_down = permit.renewal is not None and permit.renewal.coming
            if now - permit.since > (_PATIENCE_WITH_POD_DOWN_SECONDS if is_down else _PATIENCE_SECONDS):
                del self._permits[ref]
        while self._waiting and len(self._permits) < self._most:
            ref = next(iter(self._waiting))
            del self._waiting[ref]
            self._permits[ref] = _Permit(None, now)
            yield ref
