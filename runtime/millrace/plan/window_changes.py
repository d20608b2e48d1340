"""What different windows, or a different retention, mean for the state of a store.

A window store finds a window by key and start, on disk and in its changelog; the size is written nowhere (formats §1, §3).
So windows of another size would be mistaken for old ones with the same start. A session has its start and end in its key,
and a join keeps records under their own time. Retention decides the length of segments on disk: the store compares it when
it is opened, and restores itself from its changelog if it has changed. The same happens with the order of rows, which is
different for windows that are emitted when they close (formats §3).
"""

from __future__ import annotations

from collections.abc import Iterator

from millrace.durations import duration_text
from millrace.plan.topology_plan import PlannedStore, PlannedWindows

Consequence = tuple[str, str, bool]
"""The change, its consequence, and whether it needs a reset."""

_KINDS = {"time": "time windows", "sliding": "sliding windows", "session": "sessions", "join": "windows of a join"}
_KEEPS = {"window": "windows", "session": "sessions", "versioned": "the history of values"}

_MISREAD = (
    "windows are stored under their start, without their size, so an old window would continue as the new one with the "
    "same start. To keep the old results, give the store another name"
)
_INCOMPLETE = (
    "windows with a new start lack the records from before the change, and windows whose start no longer occurs get no "
    "further ones"
)


def changes_of_windows(old: PlannedStore, new: PlannedStore) -> Iterator[Consequence]:
    """Yield the changes of a store's windows and retention; none if a plan lacks them, as in earlier versions."""
    was, now = old.windows, new.windows
    if was is not None and now is not None:
        if _misread(was, now):
            yield (
                f"had {_described(was)} and has {_described(now)}",
                _MISREAD,
                True,
            )
            return  # the retention that follows from the size is not worth a second line
        if was.in_order_of_time != now.in_order_of_time and old.persistent and new.persistent:
            change = "emits results when windows close" if now.in_order_of_time else "emits results with every update"
            yield _other_files(new, change, "this changes the order of windows on disk")
        yield from _compatible(was, now)
    if old.retention_ms is not None and new.retention_ms is not None and old.retention_ms != new.retention_ms:
        yield _retention(new, old.retention_ms, new.retention_ms)


def _misread(was: PlannedWindows, now: PlannedWindows) -> bool:
    return was.kind != now.kind or (was.size_ms != now.size_ms and now.kind in {"time", "sliding"})


def _described(windows: PlannedWindows) -> str:
    size = f" of {duration_text(windows.size_ms)}" if windows.size_ms else ""
    return f"{_KINDS.get(windows.kind, f'{windows.kind} windows')}{size}"


def _compatible(was: PlannedWindows, now: PlannedWindows) -> Iterator[Consequence]:
    if was.advance_ms != now.advance_ms:
        yield (
            f"had windows every {duration_text(was.advance_ms)} and has them every {duration_text(now.advance_ms)}",
            _INCOMPLETE,
            False,
        )
    if was.size_ms != now.size_ms:
        yield (
            f"had an inactivity gap of {duration_text(was.size_ms)} and has one of {duration_text(now.size_ms)}",
            "existing sessions keep their bounds until a record extends or merges them",
            False,
        )
    if (was.before_ms, was.after_ms) != (now.before_ms, now.after_ms):
        yield (
            f"had {_span(was)} and has {_span(now)}",
            "from now on records are joined by the new windows, with the other side's records that are still kept",
            False,
        )
    if was.grace_ms != now.grace_ms:
        yield (
            f"had a grace period of {duration_text(was.grace_ms)} and has one of {duration_text(now.grace_ms)}",
            "it applies to open windows and to closed ones that the store still has",
            False,
        )


def _span(windows: PlannedWindows) -> str:
    before, after = (f"{'-' if ms < 0 else ''}{duration_text(abs(ms))}" for ms in (windows.before_ms, windows.after_ms))
    return f"a join window from {before} before to {after} after"


def _retention(store: PlannedStore, was_ms: int, now_ms: int) -> Consequence:
    change = f"kept {_KEEPS.get(store.kind, 'its rows')} for {duration_text(was_ms)} and keeps them for {duration_text(now_ms)}"
    dropped = "rows already dropped do not come back" if now_ms > was_ms else "older rows are dropped"
    if not store.persistent:
        return change, dropped, False
    return _other_files(store, change, f"{dropped}, and segments on disk may get another length")


def _other_files(store: PlannedStore, change: str, why: str) -> Consequence:
    if store.changelog_topic is None:
        return change, f"{why}; the store would start empty, as it has no changelog", True
    return change, f"{why}; then its task's files are restored from the changelogs once", False
