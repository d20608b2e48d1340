"""Random inputs for recorded cases, in the same layout and of the same kinds as the golden ones.

A seed always gives the same input. A topology's first seed has the shape of the golden inputs. Others vary the number of records,
the time steps, how many records are late and by how much, and jump far ahead so that windows and segments expire.
"""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

WORDS = ["aorta", "ape", "apple", "bear", "bo", "bob", "cat", "cc", "corn", "dog", "dust", "elk", "x1", "xylo"]
KEYS = ["k1", "k2", "k3", "k4", "k5"]
LETTERS = ["a", "b", "c", "d", "e", "x", "n"]
TOMBSTONES, NULL_KEYS, WITHOUT_LETTER, MALFORMED, WITH_HEADERS = 0.08, 0.03, 0.1, 0.1, 0.1
GROUP = 8
"""Records that are queued before they are processed together."""
REALTIME_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of an input."""

    records: int = 200
    max_step_ms: int = 20
    late: float = 0.2
    max_late_ms: int = 120
    start_ms: int = 0
    grid_ms: int = 1
    leap: float = 0.02
    leaps_ms: tuple[int, ...] = (250, 300)
    unique: bool = False
    """No two records have the same timestamp."""
    grouped: bool = False
    """Records are queued in groups."""
    commits: float = 0.0


@dataclass(frozen=True, slots=True)
class Suffix:
    """A way to run a topology."""

    settings: Mapping[str, str]
    deferred_commit: bool = False
    shape: Mapping[str, Any] = field(default_factory=dict)


NO_CACHE = {"statestore.cache.max.bytes": "0"}
IN_MEMORY = {
    "dsl.store.suppliers.class": "org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$InMemoryDslStoreSuppliers"
}
HEADERS = {"dsl.store.format": "headers"}
COMMITS = {"commits": 0.1}
QUEUED = {"grouped": True, "commits": 0.08}
SUFFIXES = {
    "": Suffix(NO_CACHE),
    "cache_deferred": Suffix({}, deferred_commit=True, shape=COMMITS),
    "cache_each": Suffix({}),
    "cache_tiny": Suffix({"statestore.cache.max.bytes": "600"}, deferred_commit=True, shape=COMMITS),
    "heavy_ooo": Suffix(NO_CACHE, shape={"records": 250, "max_step_ms": 12, "late": 0.5, "max_late_ms": 250}),
    "realtime": Suffix(NO_CACHE, shape={"start_ms": REALTIME_MS, "max_step_ms": 40, "late": 0.3, "max_late_ms": 200}),
    "grid": Suffix(NO_CACHE, shape={"grid_ms": 10, "max_step_ms": 40, "late": 0.35, "max_late_ms": 160}),
    "sync": Suffix(NO_CACHE, deferred_commit=True, shape={**QUEUED, "unique": True}),
    "sync_ties": Suffix(NO_CACHE, deferred_commit=True, shape={**QUEUED, "grid_ms": 10}),
    "sync_cache": Suffix({}, deferred_commit=True, shape={**QUEUED, "unique": True}),
    "inmem": Suffix({**NO_CACHE, **IN_MEMORY}),
    "inmem_cache": Suffix(IN_MEMORY, deferred_commit=True, shape=COMMITS),
    "hdrfmt": Suffix({**NO_CACHE, **HEADERS}),
    "hdrfmt_cache": Suffix(HEADERS, deferred_commit=True, shape=COMMITS),
    "hdrfmt_inmem": Suffix({**NO_CACHE, **HEADERS, **IN_MEMORY}),
    "hdrfmt_inmem_cache": Suffix({**HEADERS, **IN_MEMORY}, deferred_commit=True, shape=COMMITS),
}
"""The ways in which every topology is run, by the suffix of the case's name."""


def varied(shape: Shape, chance: random.Random) -> Shape:
    """Return that shape with other densities of keys in time."""
    return replace(
        shape,
        records=chance.choice((60, 120, shape.records)),
        max_step_ms=chance.choice((2, 8, shape.max_step_ms, 60)),
        late=chance.choice((0.0, shape.late, 0.5)),
        max_late_ms=chance.choice((30, shape.max_late_ms, 400)),
        leap=chance.choice((0.0, 0.02, 0.05)),
        leaps_ms=chance.choice(((250, 300), (300, 1_000), (10_000, 70_000), (100_000, 200_000_000))),
    )


def operations(inputs: tuple[str, ...], shape: Shape, seed: int, *, negative: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the operations of one input.

    Args:
        inputs: `topic:value kind` or `topic:key kind:value kind` of every topic.
        shape: The properties of the input.
        seed: The same seed gives the same input.
        negative: Whether some timestamps are negative.
    """
    chance = random.Random(seed)
    now = shape.start_ms
    used: set[int] = set()
    for queued in range(1, shape.records + 1):
        now += chance.randint(0, shape.max_step_ms)
        if chance.random() < shape.leap:
            now += chance.randint(*shape.leaps_ms)
        timestamp = now - chance.randint(0, shape.max_late_ms) if chance.random() < shape.late else now
        timestamp = max(0, timestamp - timestamp % shape.grid_ms)
        while shape.unique and timestamp in used:
            timestamp += 1
        used.add(timestamp)
        if negative and chance.random() < 0.07:
            timestamp = -chance.randint(1, 3)
        topic, key_kind, value_kind = _parts(chance.choice(inputs))
        yield {
            "op": "enqueue" if shape.grouped else "pipe",
            "topic": topic,
            "k": _encoded(_key(key_kind, chance)),
            "v": _encoded(None if chance.random() < TOMBSTONES else _value(value_kind, chance)),
            "ts": timestamp,
            "h": _headers(chance),
        }
        if shape.grouped and queued % GROUP == 0:
            yield {"op": "drain"}
        if chance.random() < shape.commits:
            yield {"op": "commit"}
        if chance.random() < 0.03:
            yield {"op": "advance", "ms": chance.randint(10, 1500)}
    if shape.grouped:
        yield {"op": "drain"}
    if shape.commits:
        yield {"op": "commit"}
    yield {"op": "advance", "ms": 2000}


def _parts(text: str) -> tuple[str, str, str]:
    topic, *kinds = text.split(":")
    return (topic, "key", kinds[0]) if len(kinds) == 1 else (topic, kinds[0], kinds[1])


def _key(kind: str, chance: random.Random) -> bytes | None:
    missing = chance.random() < NULL_KEYS
    if kind == "somekey":
        kind = "key"
    elif missing:
        return None
    return chance.choice({"key": KEYS, "letter": LETTERS, "wordkey": WORDS}[kind]).encode()


def _value(kind: str, chance: random.Random) -> bytes:
    match kind:
        case "word":
            return chance.choice(WORDS).encode()
        case "letter":
            return chance.choice(LETTERS).encode()
        case "int":
            return str(chance.randint(-20, 99)).encode()
        case "sentence":
            return " ".join(chance.choices(WORDS, k=chance.randint(1, 5))).encode()
        case "fkleft":
            letter = "" if chance.random() < WITHOUT_LETTER else chance.choice(LETTERS)
            return f"{letter}|{chance.randint(0, 99)}".encode()
        case "long":
            if chance.random() < MALFORMED:
                return f"bad{chance.randint(0, 9)}".encode()
            return struct.pack(">q", chance.randint(-250, 700))
    raise ValueError(f"unknown kind {kind}")


def _headers(chance: random.Random) -> list[list[str | None]]:
    if chance.random() >= WITH_HEADERS:
        return []
    headers = [["h1", _encoded(f"v{chance.randint(0, 9)}".encode())]]
    if chance.random() < 0.5:
        headers.append(["h2", None])
    if chance.random() < 0.3:
        headers.append(["h1", _encoded(b"\x00\xff")])
    return headers


def _encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
