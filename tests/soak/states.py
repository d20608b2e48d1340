"""Compares what is on the instances' disks with the changelogs, after all instances have ended.

Every store, of an active task, of a standby or of a task that has moved away, must contain exactly what its changelog contains up
to the offset that the store records. So a standby equals its active task at that offset. One of a changelog's copies must have
reached its end, and the changelogs' last values must be what the model computes.

A copy that a truncation has left behind cannot be compared, because its changelog no longer has what it should contain. Whoever
opens it has to wipe it, so no instance may have run with it to the end.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition
from rocksdict import AccessType, Options, Rdict
from tests.soak.damage import DAMAGED
from tests.soak.model import Inputs, expected_states
from tests.soak.reading import end_offsets, first_offsets
from tests.topologies.soak import CLOSED_STORE, PARTITIONS, WINDOW_MS

from millrace.deadline import Deadline
from millrace.dev.kafka import EmbeddedKafka
from millrace.records import TopicPartition as Changelog
from millrace.state.disk_offsets import offset_on_disk
from millrace.state.rocksdb import OFFSETS_FAMILY

_READ_TIMEOUT_S = 60.0
_WINDOW_SUFFIX = 12
"""Bytes of a window's start and sequence number at the end of a key."""


class Change(NamedTuple):
    """One committed record of a changelog."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp: int


@dataclass(slots=True)
class Log:
    """What one changelog partition has."""

    first_offset: int = 0
    """Everything below was deleted."""
    changes: list[Change] = field(default_factory=list)


@dataclass(slots=True)
class StateFindings:
    """The differences, and how much was compared."""

    problems: list[str] = field(default_factory=list)
    stores: int = 0
    """Copies of stores that were compared, each of one partition."""
    rows: int = 0
    behind: int = 0
    """Copies at an earlier offset than the changelog's end."""
    truncated: int = 0
    """Copies at an earlier offset than the changelog's first one, which cannot be compared."""
    damaged: int = 0
    """Copies that a fault damaged and that no instance has opened since."""


def read_changelogs(kafka: EmbeddedKafka, application: str) -> dict[Changelog, Log]:
    """Read the committed records of an application's changelogs; transactions without a marker yet are waited for."""
    topics = [
        name
        for name in kafka.admin().list_topics(timeout=30).topics
        if name.startswith(f"{application}-") and name.endswith("-changelog")
    ]
    partitions = [(name, number) for name in topics for number in range(PARTITIONS)]
    logs = {Changelog(*where): Log(first) for where, first in first_offsets(kafka, partitions).items()}
    ends = end_offsets(kafka, partitions)
    waiting = {where for where, end in ends.items() if end}
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"{application}-states",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(name, number, 0) for name, number in partitions])
        silence = Deadline(_READ_TIMEOUT_S)
        while waiting:
            if silence.passed:
                raise TimeoutError(f"The changelogs cannot be read to their ends: {sorted(waiting)}")
            for message in consumer.consume(1000, 0.2):
                silence = Deadline(_READ_TIMEOUT_S)
                where = message.topic(), message.partition()
                error = message.error()
                if error is None:
                    change = Change(message.offset(), message.key(), message.value(), message.timestamp()[1])
                    logs[Changelog(*where)].changes.append(change)
                elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= ends[where]:
                    waiting.discard(where)
    finally:
        consumer.close()
    return logs


def compare_states(
    application: str,
    logs: Mapping[Changelog, Log],
    state_directories: Mapping[str, Path],
    inputs: Inputs,
    ran: Collection[tuple[str, str]] = (),
) -> StateFindings:
    """Compare every store on disk with its changelog, and the changelogs with the model.

    Args:
        application: its id.
        logs: the changelogs.
        state_directories: `state.dir` of each instance by its name; none of them is running.
        inputs: what was written to the input topics.
        ran: the tasks that instances ran to the end, active or standby: the instance's name and the task's id.
    """
    found = StateFindings()
    reached: dict[Changelog, int] = defaultdict(lambda: -1)
    on_disk = set()
    for replica, state_directory in state_directories.items():
        for task, store, databases in stores_on_disk(state_directory / application):
            changelog = Changelog(f"{application}-{store}-changelog", int(task.name.partition("_")[2]))
            if changelog not in logs:
                found.problems.append(f"{replica} has a store {task.name}/{store} without a changelog")
                continue
            on_disk.add(changelog)
            if any(True for _ in task.rglob(DAMAGED)):
                found.damaged += 1
                continue
            offset = offset_on_disk(task, store, changelog)
            if offset is None:
                continue  # a process that was killed before its first commit
            reached[changelog] = max(reached[changelog], offset)
            log = logs[changelog]
            if log.first_offset and offset < log.first_offset:
                found.truncated += 1
                if (replica, task.name) in ran:
                    found.problems.append(
                        f"{replica} ran {task.name}/{store} at offset {offset} of {changelog}, which begins at "
                        f"{log.first_offset}: it should have been wiped"
                    )
                continue
            found.stores += 1
            rows = {key: value for database in databases for key, value in rows_of(database)}
            found.rows += len(rows)
            wanted = _content([each for each in log.changes if each.offset <= offset])
            wrong = different(rows, wanted, store, [each.key for each in log.changes])
            if wrong:
                found.problems.append(
                    f"{replica}: {task.name}/{store} at offset {offset} differs from its changelog in {len(wrong)} of "
                    f"{len(wanted)} rows, such as {wrong[:3]}"
                )
            if log.changes and offset < log.changes[-1].offset:
                found.behind += 1
    for changelog in sorted(on_disk):
        changes = logs[changelog].changes
        last = changes[-1].offset if changes else -1
        if reached[changelog] < last:
            found.problems.append(f"{changelog} has offset {last}, but no copy is beyond {reached[changelog]}")
    found.problems += _against_model(application, logs, inputs)
    return found


def stores_on_disk(application_directory: Path) -> Iterator[tuple[Path, str, list[Path]]]:
    """Return each store of an instance: its task's directory, its name, and its databases."""
    for task in sorted(application_directory.glob("*_*")):
        for store in sorted(task.glob("rocksdb/*")):
            if (store / "CURRENT").exists():
                yield task, store.name, [store]
        for store in sorted(path for path in task.iterdir() if path.is_dir() and path.name != "rocksdb"):
            segments = [path for path in sorted(store.iterdir()) if (path / "CURRENT").exists()]
            if segments:
                yield task, store.name, segments


def rows_of(database: Path) -> Iterator[tuple[bytes, bytes]]:
    """Return a database's rows, of any format."""
    families = [name for name in Rdict.list_cf(str(database), Options(raw_mode=True)) if name != OFFSETS_FAMILY]
    others = {name: Options(raw_mode=True) for name in families if name != "default"}
    opened = Rdict(str(database), Options(raw_mode=True), others, AccessType.read_only())
    try:
        for name in families:
            rows = opened if name == "default" else opened.get_column_family(name)
            yield from rows.items()
    finally:
        opened.close()


def _content(changes: list[Change]) -> dict[bytes, Change]:
    content: dict[bytes, Change] = {}
    for change in changes:
        if change.value is None:
            content.pop(change.key, None)
        else:
            content[change.key] = change
    return content


def different(
    rows: Mapping[bytes, bytes], wanted: Mapping[bytes, Change], store: str, later: Collection[bytes] = ()
) -> list[tuple[bytes, str]]:
    """Return the keys whose rows are not what the changelog says; a row is the value, with or without its timestamp before it.

    Args:
        rows: those of the store.
        wanted: what the changelog has up to the store's offset.
        store: its name.
        later: keys that the changelog has anywhere. A commit deletes windows that have expired by then from the disk at once,
            and a process that is killed before the next flush leaves an earlier offset.
    """
    expired, expired_later = _expired(store, [*rows, *wanted]), _expired(store, [*rows, *wanted, *later])
    wrong = []
    for key in {*rows, *wanted}:
        row, change = rows.get(key), wanted.get(key)
        if change is None or change.value is None:
            if key not in expired:
                wrong.append((key, "is not in the changelog"))
        elif row is None:
            if key not in expired_later:
                wrong.append((key, "is missing"))
        elif row not in (change.value, change.timestamp.to_bytes(8, "big", signed=True) + change.value):
            wrong.append((key, f"has the value {row!r:.120} instead of {change.value!r:.120}"))
    return wrong


def _expired(store: str, keys: list[bytes]) -> set[bytes]:
    """Return the keys of windows that are past retention: the store may have dropped them, and the changelog too."""
    if store != CLOSED_STORE or not keys:
        return set()
    starts = {key: int.from_bytes(key[-_WINDOW_SUFFIX:][:8], "big") for key in keys}
    newest = max(starts.values())
    return {key for key, start in starts.items() if start <= newest - 2 * WINDOW_MS}


def _against_model(application: str, logs: Mapping[Changelog, Log], inputs: Inputs) -> Iterator[str]:
    for store, expected in expected_states(inputs).items():
        content: dict[bytes, Any] = {}
        for number in range(PARTITIONS):
            changelog = Changelog(f"{application}-{store}-changelog", number)
            for key, change in _content(logs.get(changelog, Log()).changes).items():
                content[key] = json.loads(change.value or b"null")
        if store == "totals":
            content = {key: sorted(numbers) for key, numbers in content.items()}
        wrong = [key for key in {*content, *expected} if content.get(key) != expected.get(key)]
        if wrong:
            examples = [(key, content.get(key), expected.get(key)) for key in wrong[:3]]
            yield f"The changelog of {store} differs from the model in {len(wrong)} of {len(expected)} keys: {examples}"
