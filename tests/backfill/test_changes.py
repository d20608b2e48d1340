"""The last change of each key is kept, in memory or on disk."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from millrace.backfill.changes import CompactedChanges
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
