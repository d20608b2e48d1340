"""Renders the final content of stores like the recorder of the golden cases, and compares."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Any

from tests.golden.cases import Case

from millrace.records import ValueAndTimestamp, Windowed
from millrace.state.api import ValueTimestampHeaders
from millrace.state.buffered_records import encode_change
from millrace.state.grace_buffer import GraceBuffer
from millrace.state.keys import MAX_LONG
from millrace.state.session import AggregationWithHeaders
from millrace.state.suppression_buffer import SuppressionBuffer
from millrace.state.value_formats import pack_long
from millrace.state.versioned import VersionedRecord
from millrace.state.window import JoinWindowStore
from millrace.testing import TopologyTestDriver

_AGGREGATION_WITH_HEADERS = re.compile(r"^AggregationWithHeaders\{aggregation=(.*), headers=(RecordHeaders\(.*\))\}$")
"""How the recorder showed a session's aggregate in the header-aware format; for other stores it wrote the headers separately."""
_READ_ONLY = re.compile(r", isReadOnly = (true|false)\)$")
"""The state of a Java object, which no store keeps."""
_KEYS = ("k1", "k2", "k3", "k4", "k5")
"""Keys that were looked up in stores without a full scan."""
_KINDS = {"key-value": "kv", "list": "kv", "window": "window", "session": "session", "versioned": "versioned"}
"""The recorder's names for kinds of stores; it could not read the content of others, and only wrote their class."""
_BUFFERS: dict[str, type] = {
    "InMemoryTimeOrderedKeyValueChangeBuffer": SuppressionBuffer,
    "RocksDBTimeOrderedKeyValueBuffer": GraceBuffer,
}

Row = tuple[Any, ...]


def compare_stores(case: Case, driver: TopologyTestDriver) -> list[str]:
    """Return one line per store whose content differs; a store without recorded lines must be empty."""
    problems = []
    stores = driver.get_all_state_stores()
    for name in sorted(case.stores.keys() | stores.keys()):
        rows, store = case.stores.get(name, []), stores.get(name)
        if store is None:
            problems.append(f"store {name} does not exist")
        elif store.kind in _KINDS:
            problems += _compare_content(case, name, rows, store)
        else:
            problems += _compare_buffer(case, name, rows, store)
    return problems


def _compare_content(case: Case, name: str, rows: list[dict[str, Any]], store: Any) -> list[str]:
    kind = _KINDS[store.kind]
    kinds = {row["kind"] for row in rows} - {kind}
    if kinds:
        return [f"store {name}: expected one of kind {', '.join(kinds)}, got one of kind {kind}"]
    want = [_expected(row) for row in rows]
    if isinstance(store, JoinWindowStore) and (
        not store.persistent or case.config.get("dsl.store.format") == "headers"
    ):
        want = [_without_record(row) for row in want]
    have = _content(store, kind)
    return [] if want == have else [f"store {name}: expected {want}, got {have}"]


def _compare_buffer(case: Case, name: str, rows: list[dict[str, Any]], store: Any) -> list[str]:
    """Compare a buffer's class and content; the expected content is what remains in its changelog, as written by Kafka Streams.

    If the input controls commits, the buffer may have changes that are not in the changelog yet. Then only the class is compared,
    and the changelog like everything else that was sent.
    """
    classes = [row.get("class") for row in rows]
    if classes != [known for known, ours in _BUFFERS.items() if isinstance(store, ours)]:
        return [f"store {name}: expected {classes}, got a {type(store).__name__}"]
    topic = store._topic
    if case.deferred_commit or not store._logging:
        return []
    logged = {sent.key: sent for sent in case.sent if sent.topic == topic}
    want = {key: sent.value for key, sent in logged.items() if sent.value is not None}
    have = _buffered(store)
    return [] if want == have else [f"store {name}: expected {want}, got {have}"]


def _buffered(store: Any) -> dict[bytes | None, bytes]:
    if isinstance(store, SuppressionBuffer):
        return {key: encode_change(change) + pack_long(time) for (time, key), change in store._changes.items()}
    return {row: data + pack_long(0) for row, data in store._rows.scan_segments(0, MAX_LONG, None, None)}


def _expected(row: dict[str, Any]) -> Row:
    bounds = (row["start"], row["end"]) if "start" in row else ()
    value, headers = row["value"], row.get("headers", _headers(()))
    aggregation = _AGGREGATION_WITH_HEADERS.match(value)
    if aggregation is not None:
        value, headers = aggregation.groups()
    # Java reads -1 and no headers from a store whose format has neither.
    return row["key"], *bounds, value, _READ_ONLY.sub(")", headers), row.get("ts", -1)


def _without_record(row: Row) -> Row:
    """Leave out headers, and the timestamp if it is the window's start.

    In memory and in the format with headers, Java's stream-stream join stores keep both, and ours only the value: nothing reads
    the rest (docs/differences.md). In the default format both keep only the value on disk, and that is compared.
    """
    return (*row[:-2], _headers(()), -1 if row[-1] == row[1] else row[-1])


def _content(store: Any, kind: str) -> list[Row]:
    rows: list[Row] = []
    if kind == "versioned":
        for key in _KEYS:
            record = store.get(key)
            if record is not None:
                rows.append((key, *_valued(record)))
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


def _valued(found: Any) -> tuple[str, str, int]:
    """Return the text of the value, its headers and its timestamp; -1 and no headers if the store keeps none."""
    match found:
        case ValueTimestampHeaders(value, timestamp, headers):
            return _text(value), _headers(headers), timestamp
        case AggregationWithHeaders(value, headers):
            return _text(value), _headers(headers), -1
        case ValueAndTimestamp() | VersionedRecord():
            return _text(found.value), _headers(()), found.timestamp
    return _text(found), _headers(()), -1


def _headers(headers: Iterable[tuple[str, bytes | None]]) -> str:
    shown = ", ".join(f"RecordHeader(key = {name}, value = {_signed(value)})" for name, value in headers)
    return f"RecordHeaders(headers = [{shown}])"


def _signed(value: bytes | None) -> str:
    return "null" if value is None else str([byte - 256 if byte > 127 else byte for byte in value])


def _text(value: Any) -> str:
    """Render like `toString` of Kafka Streams' classes."""
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
