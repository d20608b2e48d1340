"""Counts the records that an instance drops, by node and reason, and warns of them.

Java logs each dropped record, or nothing, depending on the place; a backlog that arrives late then fills the log. Here a node's
first drop is logged at once and the following ones in summaries, at most one per node and `SUMMARY_INTERVAL_MS`. Nothing runs for
a record that is not dropped. The tasks of all threads share one object, so that a summary covers all of them, and the counts
outlive the tasks.
"""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from pathlib import PurePath
from typing import Final, Protocol, Self

from millrace.durations import duration_text

_log = logging.getLogger(__name__)
SUMMARY_INTERVAL_MS: Final = 60_000
"""How long a node's further drops are collected before they are logged, by the tasks' wall clock."""


@unique
class DropReason(StrEnum):
    """Why a record was dropped, in one word for metrics and statuses, and how a message describes such records."""

    description: str
    harmless: bool
    """Whether nothing is lost, because newer data has taken the record's place: counted as in Java, but without a warning."""

    def __new__(cls, word: str, description: str, harmless: bool = False) -> Self:  # noqa: FBT001, FBT002 (a table's column)
        """Create the member for a word."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.description, member.harmless = description, harmless
        return member

    LATE = "late", "too late for a window"
    EXPIRED = "expired", "older than a store keeps rows"
    NULL_KEY = "null-key", "without a key"
    NULL_VALUE = "null-value", "without a value"
    NULL_FOREIGN_KEY = "null-foreign-key", "without a foreign key"
    INVALID_TIMESTAMP = "invalid-timestamp", "with an invalid timestamp"
    UNREADABLE = "unreadable", "not readable"
    FAILED = "failed", "not processed because of an error"
    UNWRITABLE = "unwritable", "not serialisable"
    REFUSED = "refused", "refused by the brokers"
    NO_PARTITION = "no-partition", "for no partition"
    OUT_OF_ORDER = "out-of-order", "older than the table's row", True
    SUPERSEDED = "superseded", "answers to a row's former value", True


class DropRecord(Protocol):
    """Counts one record that a node drops."""

    def __call__(self, reason: DropReason, late_ms: int = 0, allowed_ms: int = 0) -> None:
        """Count it.

        Args:
            reason: why it is dropped.
            late_ms: how far stream time had passed the end of its window or, if it has none, its timestamp (ms).
            allowed_ms: how far it might have: the grace period, or a store's retention (ms).
        """


class DropAt(Protocol):
    """Counts one record that a task drops at the named node or store; otherwise as `DropRecord`."""

    def __call__(self, node: str, reason: DropReason, late_ms: int = 0, allowed_ms: int = 0) -> None:
        """Count it."""


@dataclass(slots=True)
class Drops:
    """What one node has dropped for one reason."""

    node: str
    """The node or, if a store refused the record, the store."""
    place: str
    """File and line of the user's call that made the node; empty if unknown."""
    reason: DropReason
    records: int = 0
    late_ms: int = 0
    """The most that one was late; see `DropRecord`."""
    allowed_ms: int = 0
    last_ms: int = 0
    """When the last one was dropped, by the wall clock."""

    @property
    def problem(self) -> str:
        """The reason for people, with how late they were."""
        text = self.reason.description
        if self.reason in {DropReason.LATE, DropReason.EXPIRED}:
            limit = "grace" if self.reason is DropReason.LATE else "retention"
            text += f", by up to {_rounded_up(self.late_ms)} ({limit} is {duration_text(self.allowed_ms)})"
        return text


class DroppedRecords:
    """The records that the tasks of an instance drop. Any thread may call its methods.

    >>> dropped = DroppedRecords()
    >>> dropped.add("AGGREGATE", DropReason.LATE, now_ms=0, place="app.py:41", late_ms=90_000, allowed_ms=60_000)
    >>> [(drops.node, drops.reason.value, drops.records) for drops in dropped.all()]
    [('AGGREGATE', 'late', 1)]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[tuple[str, DropReason], Drops] = {}
        self._pending: dict[str, dict[DropReason, Drops]] = {}
        """By node, what has not been logged yet."""
        self._next_ms: dict[str, int] = {}
        """By node, when it may be logged again."""
        self.summary_due_ms: float = math.inf
        """When `summarize` next has something to log."""

    def all(self) -> list[Drops]:
        """Return what was dropped since the start, in the order in which it began."""
        with self._lock:
            return [replace(drops) for drops in self._all.values()]

    def add(
        self, node: str, reason: DropReason, now_ms: int, *, place: str = "", late_ms: int = 0, allowed_ms: int = 0
    ) -> None:
        """Count one record, and log it unless its node has been logged recently."""
        with self._lock:
            kept = [self._all.setdefault((node, reason), Drops(node, place, reason))]
            if not reason.harmless:
                kept.append(self._pending.setdefault(node, {}).setdefault(reason, Drops(node, place, reason)))
            for drops in kept:
                drops.records += 1
                drops.late_ms = max(drops.late_ms, late_ms)
                drops.allowed_ms = allowed_ms
                drops.last_ms = now_ms
            if reason.harmless:
                return
            due_ms = self._next_ms.get(node, now_ms)
            self.summary_due_ms = min(self.summary_due_ms, due_ms)
        if now_ms >= due_ms:
            self.summarize(now_ms)

    def summarize(self, now_ms: float = math.inf) -> None:
        """Log what has not been logged yet, of the nodes whose interval has passed by this time.

        Args:
            now_ms: the wall clock; all intervals count as passed without it, as when a task closes.
        """
        with self._lock:
            due = [node for node in self._pending if self._next_ms.get(node, 0) <= now_ms]
            logged = [list(self._pending.pop(node).values()) for node in due]
            for reasons in logged:
                last_ms = max(drops.last_ms for drops in reasons)
                self._next_ms[reasons[0].node] = int(now_ms if now_ms < math.inf else last_ms) + SUMMARY_INTERVAL_MS
            self.summary_due_ms = min((self._next_ms[node] for node in self._pending), default=math.inf)
        for reasons in logged:
            _log.warning("%s", described(reasons))


def described(reasons: list[Drops]) -> str:
    """Return what a node has dropped, for people.

    >>> late = Drops("KSTREAM-AGGREGATE-3", "/app/app.py:41", DropReason.LATE, 812, late_ms=192_345, allowed_ms=60_000)
    >>> described([late])
    'Dropped 812 records at KSTREAM-AGGREGATE-3 (app.py:41): too late for a window, by up to 3m13s (grace is 1m)'
    >>> described([Drops("KSTREAM-AGGREGATE-3", "", DropReason.NULL_KEY, 1), late])
    'Dropped 813 records at KSTREAM-AGGREGATE-3: 1 without a key; 812 too late for a window, by up to 3m13s (grace is 1m)'
    """
    total, first = sum(drops.records for drops in reasons), reasons[0]
    what = "record" if total == 1 else "records"
    where = f" ({PurePath(first.place).name})" if first.place else ""
    parts = [f"{drops.records} {drops.problem}" if len(reasons) > 1 else drops.problem for drops in reasons]
    return f"Dropped {total} {what} at {first.node}{where}: {'; '.join(parts)}"


def _rounded_up(millis: int) -> str:
    """Return a duration in whole seconds, minutes or hours, by its size."""
    unit = 1 if millis < 10_000 else 1_000 if millis < 600_000 else 60_000 if millis < 36_000_000 else 3_600_000
    return duration_text(-(-millis // unit) * unit)
