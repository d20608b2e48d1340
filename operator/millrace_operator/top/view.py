"""Draws an application as tables: instances, threads, the busiest tasks, what is behind, what was dropped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from millrace.instance_status import StreamsStatus, TaskStatus
from millrace.rate_meter import RateMeter
from millrace_operator.top.snapshot import InstanceSnapshot, Snapshot, dropped

__all__ = ["TopView"]

_WINDOW_S: Final = 10.0
_COLOURS: Final = {"RUNNING": "green", "REBALANCING": "yellow", "RESTORING": "yellow", "ERROR": "bold red"}
_SECTION_LINES: Final = 6
"""A section's title and frame, and the lines between it and the next one."""
_Section = tuple[str, Table, Sequence[tuple[str, ...]]]
"""Title, empty table and rows."""
_FEWEST_ROWS: Final = 3
_MOST_PARTITIONS: Final = 5


class TopView:
    """Draws one snapshot after another; rates of tasks and threads are measured between them.

    Args:
        height: how many lines there are; None for any number.
    """

    def __init__(self, height: int | None = None) -> None:
        self._height = height
        self._rates: dict[tuple[str, int, str], RateMeter] = {}

    def draw(self, snapshot: Snapshot) -> RenderableType:
        """Return a snapshot as tables; a table that is too long says how much it leaves out."""
        self._measure(snapshot)
        rows: list[_Section] = [
            section
            for section in (
                self._instances(snapshot),
                self._threads(snapshot),
                self._tasks(snapshot),
                _partitions(snapshot),
                _dropped(snapshot),
            )
            if section[2]
        ]
        room = _shares([len(lines) for *_, lines in rows], self._height)
        parts: list[RenderableType] = [_headline(snapshot)]
        for (title, table, lines), most in zip(rows, room, strict=True):
            left = len(lines) - most
            table.title = f"{title}, {left} more not shown" if left > 0 else title
            for line in lines[:most]:
                table.add_row(*line)
            parts.append(table)
        return Group(*parts)

    # Sections

    def _instances(self, snapshot: Snapshot) -> _Section:
        table = _table(
            "instance", "state", *(">tasks", ">standbys", ">restoring", ">lag", ">records/s", ">busy", ">dropped"),
            *(">disk", ">restarts", ""),
        )  # fmt: skip
        return "Instances", table, [_instance(instance) for instance in snapshot.instances]

    def _threads(self, snapshot: Snapshot) -> _Section:
        table = _table("thread", "state", ">records/s", ">last commit", "waits for")
        lines = [
            (
                escape(_short(thread.name, snapshot)),
                _state(thread.state if thread.alive else "ENDED"),
                _number(self._rate(instance, status, thread.name)),
                "never" if thread.commit_age_ms is None else f"{thread.commit_age_ms / 1000:,.1f} s ago",
                escape(thread.waits_for or _stuck(thread.progress_age_ms)),
            )
            for instance, status in _answers(snapshot)
            for thread in status.threads
        ]
        return "Threads", table, lines

    def _tasks(self, snapshot: Snapshot) -> _Section:
        table = _table("task", "instance", "role", "state", ">records/s", ">to restore", "stores")
        found = [(instance, status, task) for instance, status in _answers(snapshot) for task in status.tasks]

        def busiest(item: tuple[InstanceSnapshot, StreamsStatus, TaskStatus]) -> tuple[bool, bool, float, str]:
            instance, status, task = item
            waits = task.role == "active" and task.state != "RUNNING"
            return not waits, task.role != "active", -(self._rate(instance, status, task.id) or 0.0), task.id

        lines = [
            (
                task.id,
                escape(instance.name),
                task.role,
                _state(task.state) if task.role == "active" else "",
                _number(self._rate(instance, status, task.id)) if task.role == "active" else "",
                _number(task.remaining) if task.remaining != 0 else "",
                escape(", ".join(task.stores)),
            )
            for instance, status, task in sorted(found, key=busiest)
        ]
        return "Tasks, restoring and busiest first", table, lines

    # Rates

    def _measure(self, snapshot: Snapshot) -> None:
        seen = {}
        for instance, status in _answers(snapshot):
            counters = [(task.id, task.records) for task in status.tasks if task.role == "active"]
            counters += [(thread.name, thread.records) for thread in status.threads]
            for name, records in counters:
                key = (instance.name, status.pid, name)
                meter = seen[key] = self._rates.get(key) or RateMeter(_WINDOW_S)
                meter.add(status.time_ms / 1000, records)
        self._rates = seen

    def _rate(self, instance: InstanceSnapshot, status: StreamsStatus, name: str) -> float | None:
        meter = self._rates.get((instance.name, status.pid, name))
        return None if meter is None else meter.per_second


def _headline(snapshot: Snapshot) -> Text:
    totals = snapshot.totals
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.time_ms / 1000))
    parts = [
        f"{totals.answering} of {totals.instances} instances answer",
        f"{totals.threads} threads",
        f"tasks: {totals.active} active, {totals.standby} standby, {totals.restoring} restoring",
        f"lag {_number(totals.lag)}",
        f"{_number(totals.records_per_second)} records/s",
    ]
    if totals.remaining_records:
        parts.append(f"{_number(totals.remaining_records)} changelog records to restore")
    if totals.dropped:
        parts.append(f"{_number(totals.dropped)} dropped")
    return Text.assemble((snapshot.name, "bold"), f"  {clock}\n", " · ".join(parts))


def _instance(instance: InstanceSnapshot) -> tuple[str, ...]:
    status, name = instance.status, escape(instance.name)
    restarts, note = _number(instance.restarts), escape(instance.note)
    if status is None:
        return (name, _state(instance.state), *("-",) * 8, restarts, note)
    counts, storage, busy = status.task_counts, status.storage, status.processing.busy_ratio
    return (
        name,
        _state(instance.state),
        _number(counts.active),
        _number(counts.standby),
        _number(counts.restoring),
        _number(status.lag.total),
        _number(status.processing.records_per_second),
        "-" if busy is None else f"{busy:.0%}",
        _number(dropped(status)),
        "-" if storage.used_percent is None else f"{storage.used_percent:.0f} %",
        restarts,
        note,
    )


def _partitions(snapshot: Snapshot) -> _Section:
    lag: dict[str, tuple[int, str]] = {}
    for instance, status in _answers(snapshot):
        lag |= {name: (records, instance.name) for name, records in status.lag.partitions.items() if records}
    most = sorted(lag.items(), key=lambda item: (-item[1][0], item[0]))[:_MOST_PARTITIONS]
    lines = [(escape(name), escape(instance), _number(records)) for name, (records, instance) in most]
    return "Input partitions furthest behind", _table("partition", "instance", ">records"), lines


def _dropped(snapshot: Snapshot) -> _Section:
    sums: dict[tuple[str, str, str, bool], tuple[int, int, str]] = {}
    for _, status in _answers(snapshot):
        for drops in status.dropped:
            key = (drops.node, drops.place, drops.reason, drops.harmless)
            records, last_ms, problem = sums.get(key, (0, 0, ""))
            problem = drops.problem if drops.last_ms >= last_ms else problem
            sums[key] = records + drops.records, max(last_ms, drops.last_ms), problem
    lines = [
        (
            escape(f"{node} ({place})" if place else node),
            _number(records),
            f"{max(0, snapshot.time_ms - last_ms) / 1000:,.0f} s ago",
            escape(problem),
        )
        for (node, place, _, _), (records, last_ms, problem) in sorted(
            sums.items(), key=lambda item: (item[0][3], -item[1][0], item[0])
        )
    ]
    return "Dropped records", _table("node", ">records", ">last", "why"), lines


def _answers(snapshot: Snapshot) -> Iterable[tuple[InstanceSnapshot, StreamsStatus]]:
    return ((instance, instance.status) for instance in snapshot.instances if instance.status is not None)


def _shares(wanted: Sequence[int], height: int | None) -> list[int]:
    """Return how many rows each section gets: short ones get all of theirs, long ones share what is left."""
    if height is None:
        return list(wanted)
    room = height - 2 - _SECTION_LINES * len(wanted)
    shares = [0] * len(wanted)
    waiting = sorted(range(len(wanted)), key=lambda index: wanted[index])
    while waiting:
        index = waiting.pop(0)
        shares[index] = min(wanted[index], max(_FEWEST_ROWS, room // (len(waiting) + 1)))
        room -= shares[index]
    return shares


def _table(*columns: str) -> Table:
    """Return an empty table; a column whose name starts with `>` has numbers."""
    table = Table(expand=False, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="ellipsis",
            no_wrap=bool(column),
        )  # fmt: skip
    return table


def _short(thread: str, snapshot: Snapshot) -> str:
    """Return a thread's name without the application's id, which all names start with."""
    for _, status in _answers(snapshot):
        if status.application_id:
            return thread.removeprefix(f"{status.application_id}-")
    return thread


def _stuck(age_ms: int) -> str:
    return f"its own code, for {age_ms / 1000:,.0f} s" if age_ms >= 5000 else ""


def _state(state: str) -> str:
    return f"[{_COLOURS.get(state, 'cyan')}]{escape(state)}[/]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
