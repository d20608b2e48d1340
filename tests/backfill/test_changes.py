"""The last change of each key is kept, in memory or on disk."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pickle import dumps

import pytest

from millrace.backfill import changes as module
from millrace.backfill.changes import CompactedChanges
from millrace.errors import ProcessorStateError
from millrace.records import NO_HEADERS, Headers


@pytest.mark.parametrize("limit_bytes", [1_000_000, 500])
def test_the_last_change_of_each_key_is_kept(tmp_path, limit_bytes):
    """Deletions are changes too; headers and missing timestamps stay as they are."""
    changes = CompactedChanges(tmp_path / "changes", limit_bytes=limit_bytes)
    headers = Headers((("h", None),))
    for round_number in range(5):
        for number in range(20):
            value = None if number % 3 == 0 and round_number == 4 else b"%d" % round_number
            changes.log_change(b"k%d" % number, value, None if number % 2 else round_number, headers)
    expected = {
        b"k%d" % number: (None if number % 3 == 0 else b"4", None if number % 2 else 4, headers) for number in range(20)
    }
    rows = list(changes.rows())
    assert len(rows) == 20
    assert dict(rows) == expected
    assert (tmp_path / "changes").exists() == (limit_bytes == 500)
    changes.close()
    assert not (tmp_path / "changes").exists()


@pytest.mark.parametrize("limit_bytes", [1_000_000, 500])
def test_every_change_of_a_key_can_be_kept_in_order(tmp_path, limit_bytes):
    """As for versioned stores, whose changelog has a record for each version."""
    changes = CompactedChanges(tmp_path / "changes", limit_bytes=limit_bytes, every=True)
    for number in range(300):
        changes.log_change(b"k%d" % (number % 7), b"%d" % number, number, NO_HEADERS)
    found: dict[bytes, list[int]] = {}
    for key, (_, timestamp, _) in changes.rows():
        found.setdefault(key, []).append(timestamp)
    changes.close()
    assert found == {b"k%d" % key: [number for number in range(300) if number % 7 == key] for key in range(7)}


def test_changes_that_cannot_be_written(tmp_path):
    """They fail as a store that cannot be written does, wherever they were put."""
    (tmp_path / "file").touch()
    changes = CompactedChanges(tmp_path / "file" / "changes", limit_bytes=500)
    with pytest.raises(ProcessorStateError, match=r"State cannot be written to .*Not a directory"):
        for number in range(20):
            changes.log_change(b"%d" % number, b"v", number, NO_HEADERS)


def test_rows_on_disk_come_in_the_same_order_in_every_process(tmp_path):
    """Spark may run a task again elsewhere, and use rows of both runs."""
    program = (
        "import sys; from pathlib import Path; from millrace.backfill.changes import CompactedChanges as C; "
        "changes = C(Path(sys.argv[1]), limit_bytes=2_000)\n"
        "for n in range(200): changes.log_change(b'k%d' % (n % 90), b'%d' % n, n, ())\n"
        "print(list(changes.rows())); changes.close()"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    (rows,) = found
    assert rows.count("b'k") == 90


def size_of(folder):
    """Return how many bytes the files of a folder have."""
    return sum(path.stat().st_size for path in folder.iterdir()) if folder.exists() else 0


def test_updates_take_no_more_disk_than_the_state(tmp_path, monkeypatch):
    """However many there are; and rows stay in the order that they would have without compaction."""
    plain = CompactedChanges(tmp_path / "plain", limit_bytes=200_000)
    monkeypatch.setattr(module, "_COMPACT_BYTES", 1_000)
    changes = CompactedChanges(tmp_path / "changes", limit_bytes=200_000)
    chance = random.Random(1)
    expected, largest = {}, 0
    for round_number in range(50):
        for number in chance.sample(range(3_000), 2_000):
            key, value = b"k%d" % number, None if chance.random() < 0.1 else b"%d" % round_number * 20
            expected[key] = value, round_number, NO_HEADERS
            for each in (plain, changes):
                each.log_change(key, *expected[key])
        largest = max(largest, size_of(tmp_path / "changes"))
    rows = list(changes.rows())
    assert rows == list(plain.rows())
    assert dict(rows) == expected
    assert len(rows) == 3_000
    assert largest < 4 * len(dumps(rows)) < size_of(tmp_path / "plain") / 4
    for each in (plain, changes):
        each.close()
    assert list(tmp_path.iterdir()) == []


def test_deleted_keys_take_no_disk(tmp_path, monkeypatch):
    """As those of sessions, each of which is another key whenever it is extended; unless their deletions are wanted."""
    monkeypatch.setattr(module, "_COMPACT_BYTES", 1_000)
    found, largest = {}, {}
    for deletions in (True, False):
        folder = tmp_path / f"{deletions}"
        changes = CompactedChanges(folder, limit_bytes=20_000, deletions=deletions)
        for number in range(20_000):
            changes.log_change(b"%d" % (number - 1), None, number, NO_HEADERS)
            changes.log_change(b"%d" % number, b"session", number, NO_HEADERS)
            if number % 100 == 0:
                largest[deletions] = max(largest.get(deletions, 0), size_of(folder))
        found[deletions] = dict(changes.rows())
        changes.close()
    assert found[False] == {b"19999": (b"session", 19_999, NO_HEADERS)}
    assert found[False].items() <= found[True].items()
    assert len(found[True]) == 20_001
    assert largest[False] < largest[True] / 4
