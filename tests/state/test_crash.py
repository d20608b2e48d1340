"""What RocksDB stores hold after their process is killed.

`MILLRACE_CRASH_KILLS` says how often it is killed (15 by default; a thousand take some minutes).
"""

from __future__ import annotations

import copy
import os
import random
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import forked

from millrace.state import ChangelogRecord
from millrace.state.keys import encode_window_key

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from crash_writer import (  # noqa: E402 (needs the path above)
    RETENTION_MS,
    SEGMENT_MS,
    STORES,
    change,
    changelog,
    open_store,
)

KILLS = int(os.environ.get("MILLRACE_CRASH_KILLS", "15"))
SECONDS_PER_KILL = 5
LIMIT_S = 300


def kill_after(directory: Path, offset: int, commits: int, delay_s: float) -> int:
    """Run the writer from an offset, kill it after some commits, and return the last offset it started to commit."""
    writer = forked.Popen(
        [sys.executable, str(HERE / "crash_writer.py"), str(directory), str(offset), str(commits)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert writer.stdout is not None
    deadline = time.monotonic() + LIMIT_S
    printed = b""
    try:
        while printed.count(b"-") < commits:
            ready, _, _ = select.select([writer.stdout], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"writer stopped after {printed.count(b'-')} commits"
            chunk = os.read(writer.stdout.fileno(), 65536)
            assert chunk, "writer ended by itself"
            printed += chunk
        moment = time.monotonic() + delay_s
        while (left := moment - time.monotonic()) > 0 and select.select([writer.stdout], [], [], left)[0]:
            printed += os.read(writer.stdout.fileno(), 65536)
    finally:
        writer.kill()
        writer.wait()
    printed += writer.stdout.read()
    writer.stdout.close()
    return max(int(line[1:]) for line in printed[: printed.rindex(b"\n")].split())


class KeyValueModel:
    """What the key-value store must hold at an offset."""

    kind = "key-value"

    def __init__(self):
        self.offset = -1
        self.rows = {}

    def advance(self, offset):
        """Make all changes up to and including an offset."""
        for at in range(self.offset + 1, offset + 1):
            made = change(at)
            if made.value is None:
                self.rows.pop(made.key, None)
            else:
                self.rows[made.key] = made.value
        self.offset = max(self.offset, offset)

    def check_recovered(self, store, begun):
        """The rows are those of the recorded offset."""
        self.advance(store.committed_offset(changelog(self.kind)))
        self.check(store)

    def check(self, store):
        """The rows are those of the model's offset."""
        assert dict(store.all()) == self.rows

    def record(self, offset):
        """Return the changelog record of an offset."""
        made = change(offset)
        value = None if made.value is None else made.value.to_bytes(8, "big")
        return ChangelogRecord(made.key.to_bytes(8, "big"), value, made.timestamp, offset)


class WindowModel(KeyValueModel):
    """What the window store must hold at an offset: (window start, key) → value."""

    kind = "window"

    def __init__(self):
        super().__init__()
        self.stream_time = 0

    def advance(self, offset):
        """Make all changes up to and including an offset, and forget what has expired."""
        for at in range(self.offset + 1, offset + 1):
            made = change(at)
            self.stream_time = max(self.stream_time, made.timestamp)
            if made.value is None:
                self.rows.pop((made.timestamp, made.key), None)
            else:
                self.rows[made.timestamp, made.key] = made.value
        self.offset = max(self.offset, offset)
        oldest = self._oldest_live() * SEGMENT_MS
        self.rows = {row: value for row, value in self.rows.items() if row[0] >= oldest}

    def _oldest_live(self):
        return max(self.stream_time - RETENTION_MS, 0) // SEGMENT_MS

    def _segment_rows(self, segment):
        start = segment * SEGMENT_MS
        return {row: value for row, value in self.rows.items() if start <= row[0] < start + SEGMENT_MS}

    def check_recovered(self, store, begun):
        """The rows are those of the recorded offset."""
        later = copy.deepcopy(self)
        later.advance(begun)
        segments = store._bytes_store._segments
        offsets = {segment: rows.committed_offset(changelog(self.kind)) for segment, rows in segments.items()}
        known = sorted((offset, segment) for segment, offset in offsets.items() if offset is not None)
        assert known[0][0] == store.committed_offset(changelog(self.kind))
        for offset, segment in known:
            self.advance(offset)
            if segment >= later._oldest_live():
                assert _window_rows(segments[segment]) in (self._segment_rows(segment), later._segment_rows(segment))
        for segment in offsets.keys() - {segment for _, segment in known}:
            assert _window_rows(segments[segment]) in ({}, later._segment_rows(segment))

    def check(self, store):
        """The live segments' rows are those of the model's offset."""
        segments = store._bytes_store._segments
        found = {}
        for segment, database in segments.items():
            if segment >= self._oldest_live():
                found |= _window_rows(database)
        assert found == self.rows

    def record(self, offset):
        """Return the changelog record of an offset."""
        record = super().record(offset)
        return record._replace(key=encode_window_key(record.key, record.timestamp))


class VersionedModel(KeyValueModel):
    """What the versioned store must hold at an offset: per key, timestamp → value or None."""

    kind = "versioned"

    def __init__(self):
        super().__init__()
        self.stream_time = 0

    def advance(self, offset):
        """Make all changes up to and including an offset, and forget what was replaced before the history begins."""
        for at in range(self.offset + 1, offset + 1):
            made = change(at)
            self.stream_time = max(self.stream_time, made.timestamp)
            self.rows.setdefault(made.key, {})[made.timestamp] = made.value
        self.offset = max(self.offset, offset)
        for key, versions in self.rows.items():
            first = max((at for at in versions if at <= self.stream_time - RETENTION_MS), default=0)
            self.rows[key] = {at: value for at, value in versions.items() if at >= first}

    def check(self, store):
        """Each key has the version that was valid at each of some times within the history."""
        for key, versions in self.rows.items():
            for back in range(0, RETENTION_MS, RETENTION_MS // 7):
                as_of = self.stream_time - back
                at = max((at for at in versions if at <= as_of), default=None)
                expected = None if at is None or versions[at] is None else (versions[at], at)
                found = store.get(key, as_of)
                assert (None if found is None else (found.value, found.timestamp)) == expected, (key, as_of)


def _window_rows(database):
    return {
        (int.from_bytes(row[8:16], "big"), int.from_bytes(row[:8], "big")): int.from_bytes(value, "big")
        for row, value in database.scan(None, None)
    }


MODELS = {model.kind: model for model in (KeyValueModel, WindowModel, VersionedModel)}


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + KILLS * SECONDS_PER_KILL)
def test_killed_stores_are_at_their_recorded_offsets(tmp_path):
    """However often the process is killed, every database has the rows of its recorded offset; the changelog has the rest."""
    chance = random.Random(7)
    models = [MODELS[kind]() for kind in STORES]
    reached = -1
    for _ in range(KILLS):
        begun = kill_after(tmp_path, reached, chance.randint(1, 100), chance.random() * 0.02)
        for model in models:
            store = open_store(tmp_path, model.kind)
            recorded = store.committed_offset(changelog(model.kind))
            assert reached <= (-1 if recorded is None else recorded) <= begun
            if recorded is not None:
                model.check_recovered(store, begun)
            first = model.offset + 1 if recorded is None else recorded + 1
            if first <= begun:
                store.restore([model.record(offset) for offset in range(first, begun + 1)])
            model.advance(begun)
            model.check(store)
            store.close()
        reached = begun
    assert reached > 0
