"""What the outputs must be, computed from the input in plain Python, and how they differ from it.

Every output topic is turned into *facts*, such as "event 17 was joined" or "the window k3@2000 closed with these ids". The model
says which facts there must be. Exactly-once means each of them once, and no others. At-least-once means each of them at least
once; duplicates are only counted.
"""

# ruff: noqa: FBT001 (the functions of a table: all take the guarantee in the same place)
from __future__ import annotations

import json
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.topologies.soak import OUTPUTS, WINDOW_MS, group_of, window_of

Output = tuple[str, bytes]
"""Key and value of a record as read."""


@dataclass(frozen=True, slots=True)
class Event:
    """One record of `events`."""

    number: int
    key: str
    timestamp_ms: int
    dead: bool = False
    """Whether it cannot be read or processed."""

    @property
    def window(self) -> int:
        """The start of its window."""
        return self.timestamp_ms - self.timestamp_ms % WINDOW_MS


@dataclass(slots=True)
class Inputs:
    """Everything written to the input topics."""

    events: list[Event] = field(default_factory=list)
    pairs: set[tuple[int, int]] = field(default_factory=set)
    """The ids in `left` and `right` that match."""
    versions: dict[str, list[int]] = field(default_factory=dict)
    """The last versions of a key in `first` and `second`."""
    orders: dict[str, list[str]] = field(default_factory=dict)
    """The customer that each version of an order names, a key of `second`."""
    markers: set[int] = field(default_factory=set)
    """Events that close the windows of all earlier ones; their own windows never close."""
    records: int = 0


@dataclass(slots=True)
class Findings:
    """How an output topic differs from the model."""

    lost: list[Any] = field(default_factory=list)
    repeated: list[Any] = field(default_factory=list)
    wrong: list[Any] = field(default_factory=list)

    def problems(self, *, exactly_once: bool) -> list[str]:
        """Return violations of the guarantee, with examples."""
        kinds = {"lost": self.lost, "wrong": self.wrong} | ({"repeated": self.repeated} if exactly_once else {})
        return [f"{len(facts)} {kind}, such as {facts[:5]}" for kind, facts in kinds.items() if facts]


def compare(inputs: Inputs, outputs: Mapping[str, Iterable[Output]], *, exactly_once: bool) -> dict[str, Findings]:
    """Return the findings for each output topic."""
    found: dict[str, Findings] = {}
    for name in OUTPUTS:
        expected, read = _FACTS[name]
        findings = found[name] = Findings()
        must = Counter(expected(inputs, exactly_once))
        have = Counter(read(list(outputs.get(name, ())), exactly_once, findings))
        findings.lost = list((must - have).elements())
        findings.repeated += [fact for fact in (have - must).elements() if fact in must]
        findings.wrong += [fact for fact in have if fact not in must]
    return found


def take_what_is_allowed(found: dict[str, Findings], inputs: Inputs) -> list[str]:
    """Take out of the findings what at-least-once does not promise, in Java neither, and return notes about it.

    Windows that close: the buffer's changelog may be acknowledged when the output is not, as nothing links the two.

    Pairs of which one side has two records with the same key and timestamp: in the changelog of a join's store only a number
    tells them apart. An instance that was frozen may write to the changelog after its successor has begun, and use the same
    numbers. If it replaces the other record, an instance that restores the store later does not join that one. Exactly-once
    fences such an instance.
    """
    closed, pairs = found["closed"], found["pairs"]
    rights = Counter(left for left, _ in inputs.pairs)
    of_several = [pair for pair in pairs.lost if rights[pair[0]] > 1]
    pairs.lost = [pair for pair in pairs.lost if rights[pair[0]] == 1]
    notes = []
    if closed.lost:
        notes.append(f"closed: {len(closed.lost)} ids of windows not sent, such as {closed.lost[:3]}")
        closed.lost = []
    if of_several:
        notes.append(f"pairs: {len(of_several)} not sent of several with one key and time, such as {of_several[:3]}")
    return notes


def expected_states(inputs: Inputs) -> dict[str, dict[bytes, Any]]:
    """Return what stores must contain at the end, by the bytes of their keys; the ids in windows are sorted."""
    totals: dict[bytes, list[int]] = defaultdict(list)
    for event in _alive(inputs):
        totals[group_of(event.number).encode() + struct.pack(">qi", event.window, 0)].append(event.number)
    versions = {key.encode(): each for key, each in inputs.versions.items()}
    orders = {key.encode(): customers for key, customers in inputs.orders.items()}
    return {
        "first": {key: first for key, (first, _) in versions.items()},
        "second": {key: second for key, (_, second) in versions.items()},
        "versions": versions,
        "orders": {
            key: {"version": len(customers) - 1, "customer": customers[-1]} for key, customers in orders.items()
        },
        "matched": {
            key: [len(customers) - 1, customers[-1], inputs.versions[customers[-1]][1]]
            for key, customers in orders.items()
        },
        "totals": dict(totals),
    }


def _alive(inputs: Inputs) -> list[Event]:
    return [event for event in inputs.events if not event.dead]


def _expected_joined(inputs: Inputs, _: bool) -> Iterable[Any]:
    return [(event.key, event.number) for event in _alive(inputs) if event.number not in inputs.markers]


def _read_joined(outputs: list[Output], exactly_once: bool, findings: Findings) -> Iterable[Any]:
    last: dict[str, int] = defaultdict(int)
    for key, value in outputs:
        number, version = json.loads(value)
        if exactly_once and version < last[key]:
            findings.wrong.append((key, number, f"joined with version {version} after {last[key]}"))
        last[key] = version
        yield key, number


def _windows(inputs: Inputs) -> dict[str, list[int]]:
    windows: dict[str, list[int]] = defaultdict(list)
    for event in _alive(inputs):
        if event.number not in inputs.markers:
            windows[window_of(event.key, event.window)].append(event.number)
    return windows


def _expected_closed(inputs: Inputs, exactly_once: bool) -> Iterable[Any]:
    for window, numbers in _windows(inputs).items():
        yield from [(window, tuple(numbers))] if exactly_once else ((window, number) for number in numbers)


def _read_closed(outputs: list[Output], exactly_once: bool, _: Findings) -> Iterable[Any]:
    if exactly_once:
        return [(key, tuple(json.loads(value))) for key, value in outputs]
    return _contents(outputs)


def _contents(outputs: list[Output]) -> Iterable[Any]:
    """Return each id of a window once: a zombie's update may come after its successor's, so no update is reliably the last."""
    return {(key, number) for key, value in outputs for number in json.loads(value)}


def _expected_totals(inputs: Inputs, _: bool) -> Iterable[Any]:
    return [(window_of(group_of(event.number), event.window), event.number) for event in _alive(inputs)]


def _read_totals(outputs: list[Output], exactly_once: bool, findings: Findings) -> Iterable[Any]:
    return _updates(outputs, findings) if exactly_once else _contents(outputs)


def _updates(outputs: list[Output], findings: Findings) -> Iterable[Any]:
    last: dict[str, list[int]] = defaultdict(list)
    for key, value in outputs:
        numbers = json.loads(value)
        if numbers[:-1] != last[key]:
            findings.wrong.append((key, f"{last[key]} became {numbers}"))
        last[key] = numbers
        yield key, numbers[-1]


def _expected_versions(inputs: Inputs, exactly_once: bool) -> Iterable[Any]:
    for key, (first, second) in inputs.versions.items():
        if exactly_once:
            yield from ((key, step) for step in range(first + second + 1))
        else:
            yield from ((key, "first", version) for version in range(first + 1))
            yield from ((key, "second", version) for version in range(second + 1))


def _read_versions(outputs: list[Output], exactly_once: bool, findings: Findings) -> Iterable[Any]:
    last: dict[str, list[int]] = {}
    for key, value in outputs:
        versions = json.loads(value)
        if exactly_once:
            before = last.get(key, versions)
            if min(versions[0] - before[0], versions[1] - before[1]) < 0:
                findings.wrong.append((key, f"{before} became {versions}"))
            last[key] = versions
            yield key, sum(versions)
        else:
            yield key, "first", versions[0]
            yield key, "second", versions[1]


def _expected_pairs(inputs: Inputs, _: bool) -> Iterable[Any]:
    return inputs.pairs


def _read_pairs(outputs: list[Output], _: bool, __: Findings) -> Iterable[Any]:
    return [tuple(json.loads(value)) for _, value in outputs]


def _expected_matched(inputs: Inputs, exactly_once: bool) -> Iterable[Any]:
    for key, customers in inputs.orders.items():
        last = len(customers) - 1
        yield (key, last, customers[-1], inputs.versions[customers[-1]][1]) if exactly_once else (key, last)


def _read_matched(outputs: list[Output], exactly_once: bool, findings: Findings) -> Iterable[Any]:
    """Return the last result of each order: those between may be skipped, as both sides change independently."""
    last: dict[str, list[Any]] = {}
    for key, value in outputs:
        result = json.loads(value)
        before = last.get(key, [-1, "", -1])
        newer = (result[0], result[2]) > (before[0], before[2])
        if exactly_once and not newer:
            findings.wrong.append((key, f"{before} became {result}"))
        if exactly_once or newer:
            last[key] = result
    for key, (version, customer, of_customer) in last.items():
        yield (key, version, customer, of_customer) if exactly_once else (key, version)


def _expected_dead(inputs: Inputs, _: bool) -> Iterable[Any]:
    return [(event.key, event.number) for event in inputs.events if event.dead]


def _read_dead(outputs: list[Output], _: bool, __: Findings) -> Iterable[Any]:
    for key, value in outputs:
        text = value.removeprefix(b"\xff")
        yield key, json.loads(text)["id"]


_FACTS: dict[str, tuple[Callable[[Inputs, bool], Iterable[Any]], Callable[..., Iterable[Any]]]] = {
    "joined": (_expected_joined, _read_joined),
    "closed": (_expected_closed, _read_closed),
    "totals": (_expected_totals, _read_totals),
    "versions": (_expected_versions, _read_versions),
    "pairs": (_expected_pairs, _read_pairs),
    "matched": (_expected_matched, _read_matched),
    "dead-letters": (_expected_dead, _read_dead),
}
