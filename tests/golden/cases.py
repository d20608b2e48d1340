"""The golden cases: what Apache Kafka Streams 4.3.1 wrote for a topology and its input, recorded with its own test driver.

A case is a folder: `case.json` (topology, configuration), `input.jsonl` (one operation per line), `expected.jsonl` (every record
sent to the producer, in order, or the operation that failed) and `stores.jsonl` (final contents of stores, dropped records).
Bytes are base64; null stays null. All four files must exist: a missing one would compare equal to anything.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "data" / "cases"
RECORDED_CASES = 111
"""How many folders `CASES` has, so that a vanished recording is noticed."""

Header = tuple[str, "bytes | None"]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of an input: pipe, enqueue, drain, advance or commit."""

    index: int
    kind: str
    topic: str = ""
    key: bytes | None = None
    value: bytes | None = None
    timestamp: int = 0
    headers: tuple[Header, ...] = ()
    advance_ms: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """One record sent to the producer by an operation."""

    op: int
    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int | None
    headers: tuple[Header, ...]
    partition: int | None


@dataclass(frozen=True, slots=True)
class Case:
    """One golden case."""

    name: str
    topology: str
    config: dict[str, Any]
    deferred_commit: bool
    ops: tuple[Op, ...]
    sent: tuple[Sent, ...]
    fails_at: int | None
    stores: dict[str, list[dict[str, Any]]]
    """Rows by store."""
    records_only: bool
    """Whether only the records were recorded, sorted by topic, but neither their order across topics nor the stores' contents."""
    dropped_records: int | None
    """For all tasks, including the global one; None if a failure kept the recorder from writing it."""


def load(folder: Path) -> Case:
    """Read one case."""
    described = json.loads((folder / "case.json").read_text())
    expected = list(_lines(folder / "expected.jsonl"))
    stores = list(_lines(folder / "stores.jsonl"))
    dropped = [row["value"] for row in stores if row.get("metric") == "dropped-records-total"]
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in stores:
        if "store" in row:
            rows.setdefault(row["store"], []).append(row)
    return Case(
        name=described["case"],
        topology=described["topology"],
        config={**described["config"], **described["config_override"]},
        deferred_commit=described["deferred_commit"],
        ops=tuple(_op(index, line) for index, line in enumerate(_lines(folder / "input.jsonl"))),
        sent=tuple(_sent(line) for line in expected if "error" not in line),
        fails_at=next((line["i"] for line in expected if "error" in line), None),
        stores=rows,
        records_only=described.get("records_only", False),
        dropped_records=sum(dropped) if dropped else None,
    )


def names(folder: Path) -> list[str]:
    """Return the names of the cases in a folder: every subfolder is one."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def selected(found: Sequence[str], only: Collection[str], *, recorded: int | None = None) -> list[str]:
    """Return the names to compare.

    Args:
        found: the existing names.
        only: the requested names; none means all.
        recorded: how many there must be.

    Raises:
        ValueError: there are none, a requested one is missing, or a recording has vanished.
    """
    unknown = sorted(set(only) - set(found))
    if unknown:
        raise ValueError(f"there is no {', '.join(unknown)}")
    if recorded is not None and len(found) != recorded:
        raise ValueError(f"there should be {recorded} recordings, and there are {len(found)}")
    if not found:
        raise ValueError("there is nothing to compare")
    return [name for name in found if not only or name in only]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        yield json.loads(line)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _headers(pairs: list[list[str | None]]) -> tuple[Header, ...]:
    return tuple((str(name), _bytes(value)) for name, value in pairs)


def _op(index: int, line: dict[str, Any]) -> Op:
    kind = line["op"]
    if kind in ("pipe", "enqueue"):
        return Op(index, kind, line["topic"], _bytes(line["k"]), _bytes(line["v"]), line["ts"], _headers(line["h"]))
    return Op(index, kind, advance_ms=line.get("ms", 0))


def _sent(line: dict[str, Any]) -> Sent:
    key, value = _bytes(line["k"]), _bytes(line["v"])
    return Sent(line["i"], line["topic"], key, value, line["ts"], _headers(line.get("h", [])), line.get("partition"))
