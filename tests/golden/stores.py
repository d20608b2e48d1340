"""Renders the final content of stores as the recorder of the golden cases did, and compares."""

from __future__ import annotations

import re
import struct
from typing import Any

from tests.golden.cases import Case

from millrace.records import ValueAndTimestamp, Windowed
from millrace.testing import TopologyTestDriver

_AGGREGATION_WITH_HEADERS = re.compile(r"^AggregationWithHeaders\{aggregation=(.*), headers=.*\}$")
"""How the recorder showed a session's aggregate in the header-aware format; headers of other stores it left out."""
_KEYS = ("k1", "k2", "k3", "k4", "k5")
"""Keys that were looked up in stores without a full scan."""


def compare_stores(case: Case, driver: TopologyTestDriver) -> list[str]:
    """Return one line per store whose content differs."""
    problems = []
    for name, rows in case.stores.items():
        kind = rows[0]["kind"]
        store = driver.get_state_store(name)
        if store is None:
            problems.append(f"store {name} does not exist")
            continue
        if kind == "other":
            continue
        want = [_expected(row) for row in rows]
        if getattr(store, "retain_duplicates", False):
            want = [_without_start_as_timestamp(row) for row in want]
        have = _content(store, kind)
        if want != have:
            problems.append(f"store {name}: expected {want}, got {have}")
    return problems


def _expected(row: dict[str, Any]) -> tuple[Any, ...]:
    timestamp = row.get("ts")
    bounds = (row["start"], row["end"]) if "start" in row else ()
    value = _AGGREGATION_WITH_HEADERS.sub(r"\1", row["value"])
    return row["key"], *bounds, value, None if timestamp == -1 else timestamp


def _without_start_as_timestamp(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leave out a timestamp that repeats the window's start: Java's join stores have it in memory, though not on disk."""
    return (*row[:-1], None) if row[-1] == row[1] else row


def _content(store: Any, kind: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    if kind == "versioned":
        for key in _KEYS:
            record = store.get(key)
            if record is not None:
                rows.append((key, _text(record.value), record.timestamp))
    elif kind == "session":
        for key in _KEYS:
            for (inner, window), value in store.fetch(key):
                rows.append((_text(inner), window.start, window.end, *_valued(value)))
    elif kind == "window":
        for (inner, window), value in store.all():
            rows.append((_text(inner), window.start, window.end, *_valued(value)))
    else:
        for key, value in store.all():
            rows.append((_text(key), *_valued(value)))
    return rows


def _valued(value: Any) -> tuple[str, int | None]:
    timestamp = getattr(value, "timestamp", None)
    if isinstance(value, ValueAndTimestamp) or (timestamp is not None and hasattr(value, "value")):
        return _text(value.value), None if timestamp == -1 else timestamp
    return _text(value), None


def _text(value: Any) -> str:
    """Render as the `toString` of Kafka Streams' classes does."""
    match value:
        case Windowed():
            return f"[{_text(value.key)}@{value.window.start}/{value.window.end}]"
        case bytes():
            return "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02X}" for byte in value)
        case _ if type(value).__name__ == "SubscriptionWrapper":
            return _subscription(value)
    return str(value)


def _subscription(wrapper: Any) -> str:
    words = None if wrapper.hash is None else list(struct.unpack(">qq", wrapper.hash))
    return (
        f"SubscriptionWrapper{{version={wrapper.version}, primaryKey={_text(wrapper.primary_key)}, "
        f"instruction={wrapper.instruction.name}, hash={words}, primaryPartition={wrapper.primary_partition}}}"
    )
