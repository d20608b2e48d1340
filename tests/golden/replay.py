"""Replays golden cases on the test driver and compares with what Kafka Streams wrote.

    python -m tests.golden.replay tests/golden/data/cases [--topologies MODULE] [--only NAME…]

prints each mismatch, and finally `N passed, N failed`; it exits with 1 if any failed, and with 2 if there is nothing to compare.
For each operation it compares the order across all topics, keys, values, timestamps, headers and (if the sender chose one)
partitions of all records sent, including internal topics; then the final contents of all stores, the dropped records, and the
operation that fails. No case is exempt; if `case.json` says `records_only`, Kafka Streams' order across topics and its stores are
not known.
"""
# ruff: noqa: T201 (a command-line tool)

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import logging
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.golden.cases import CASES, RECORDED_CASES, Case, Sent, load, names, selected
from tests.golden.stores import compare_stores

from millrace.errors import StreamsError
from millrace.testing import ProducedRecord, TopologyTestDriver

JAVA_SPECIFIC_HEADERS = frozenset(
    {"__streams.errors.stacktrace", "__streams.errors.message", "__streams.errors.exception"}
)
"""Headers whose values name Java classes; only their presence and position are compared."""

_MAX_SHOWN = 3


def replay(case: Case, topologies: Mapping[str, Any]) -> list[str]:
    """Run one case and return its mismatches; none means that it passes."""
    topology = build(topologies[case.topology], case.config)
    defaults = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}
    driver = TopologyTestDriver(topology, {**defaults, **case.config}, auto_commit=not case.deferred_commit)
    produced = driver.record_produced()
    sent: list[Sent] = [_sent(0, record) for record in produced]
    produced.clear()
    problems: list[str] = []
    failed_at: int | None = None
    with contextlib.closing(driver):
        for op in case.ops:
            failure: StreamsError | None = None
            try:
                _run(driver, op)
            except StreamsError as error:
                failure = error
            sent += [_sent(op.index, record) for record in produced]
            produced.clear()
            if failure is not None:
                failed_at = op.index
                if case.fails_at != failed_at:
                    problems.append(f"operation {op.index} failed: {type(failure).__name__}: {failure}")
                break
        if case.fails_at is not None and failed_at is None:
            problems.append(f"operation {case.fails_at} should have failed")
        if case.records_only:
            sent.sort(key=lambda record: (record.op, record.topic))
        problems += compare_sent(case.sent, sent, until=failed_at)
        if case.fails_at is None and failed_at is None:
            if not case.records_only:
                problems += compare_stores(case, driver)
            if case.dropped_records is None:
                problems.append("the recording has no dropped-records-total")
            elif driver.dropped_records != case.dropped_records:
                problems.append(f"dropped records: expected {case.dropped_records}, got {driver.dropped_records}")
        if failed_at is not None:
            driver.abandon()
    return problems


def build(definition: Any, config: Mapping[str, Any]) -> Any:
    """Return the topology of a definition, which may require the configuration."""
    return definition(config) if inspect.signature(definition).parameters else definition()


def _run(driver: TopologyTestDriver, op: Any) -> None:
    match op.kind:
        case "pipe":
            driver.pipe_raw(op.topic, op.key, op.value, op.timestamp, op.headers)
        case "enqueue":
            driver.enqueue(op.topic, op.key, op.value, op.timestamp, op.headers)
        case "drain":
            driver.drain()
        case "advance":
            driver.advance_wall_clock_time(op.advance_ms)
        case "commit":
            driver.commit()
        case other:
            raise ValueError(f"unknown operation {other}")


def _sent(op: int, record: ProducedRecord) -> Sent:
    return Sent(op, record.topic, record.key, record.value, record.timestamp, tuple(record.headers), record.partition)


def compare_sent(expected: Iterable[Sent], got: Iterable[Sent], *, until: int | None = None) -> list[str]:
    """Compare records per operation, in order across all topics; operations after `until` are left out."""
    want, have = _grouped(expected, until), _grouped(got, until)
    problems = []
    for op in sorted(want.keys() | have.keys()):
        a, b = want.get(op, []), have.get(op, [])
        partitions = [record.partition for record in a]
        same = [_row(record) for record in a] == [_row(record) for record in b] and all(
            partition is None or partition == record.partition for partition, record in zip(partitions, b, strict=True)
        )
        if not same:
            problems.append(f"operation {op}: expected {_show(a)}, got {_show(b)}")
    return problems


def _grouped(records: Iterable[Sent], until: int | None) -> dict[int, list[Sent]]:
    groups: dict[int, list[Sent]] = {}
    for record in records:
        if until is None or record.op <= until:
            groups.setdefault(record.op, []).append(record)
    return groups


def _row(record: Sent) -> tuple[Any, ...]:
    headers = tuple((name, None if name in JAVA_SPECIFIC_HEADERS else value) for name, value in record.headers)
    return record.topic, record.key, record.value, record.timestamp, headers


def _show(records: list[Sent]) -> str:
    shown = [
        f"{record.topic}: {record.key!r}={record.value!r}@{record.timestamp}"
        + (f" {list(record.headers)}" if record.headers else "")
        + (f" →{record.partition}" if record.partition is not None else "")
        for record in records
    ]
    return "[" + ", ".join(shown) + "]"


def main(arguments: list[str] | None = None) -> int:
    """Replay every case of a folder; return the exit code."""
    parser = argparse.ArgumentParser(description="Replay golden cases.")
    parser.add_argument("folder", type=Path, nargs="?", default=CASES)
    parser.add_argument("--topologies", help="a module whose TOPOLOGIES are added to the project's")
    parser.add_argument("--only", nargs="*", default=[], help="names of cases")
    options = parser.parse_args(arguments)
    logging.getLogger("millrace").setLevel(logging.CRITICAL)
    topologies: Mapping[str, Any] = importlib.import_module("tests.topologies.by_name").load_topologies(
        options.topologies
    )
    recorded = RECORDED_CASES if options.folder.resolve() == CASES else None
    try:
        chosen = selected(names(options.folder), options.only, recorded=recorded)
    except (OSError, ValueError) as error:
        parser.error(f"{options.folder}: {error}")
    passed = failed = 0
    started = time.monotonic()
    for name in chosen:
        problems = _problems(options.folder / name, topologies)
        if not problems:
            passed += 1
            continue
        failed += 1
        print(f"FAIL {name}")
        for problem in problems[:_MAX_SHOWN]:
            print(f"     {problem}")
        if len(problems) > _MAX_SHOWN:
            print(f"     … and {len(problems) - _MAX_SHOWN} more")
    print(f"{time.monotonic() - started:.1f} s")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _problems(folder: Path, topologies: Mapping[str, Any]) -> list[str]:
    try:
        case = load(folder)
        if case.topology not in topologies:
            return [f"topology {case.topology} is not defined"]
        return replay(case, topologies)
    except Exception as error:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f" ({place.tb_frame.f_code.co_filename}:{place.tb_lineno})" if place is not None else ""
        return [f"the case cannot be run: {type(error).__name__}: {error}{where}"]


if __name__ == "__main__":
    sys.exit(main())
