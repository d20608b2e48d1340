"""What a RocksDB store holds after its process is killed."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from crash_writer import CHANGELOG, KEYS, open_store, row  # noqa: E402 (needs the path above)

KILLS = int(os.environ.get("MILLRACE_CRASH_KILLS", "30"))


def kill_after(directory: Path, commits: int) -> None:
    """Run the writer, wait for that many commits, and kill it in the middle of what it does then."""
    writer = subprocess.Popen(
        [sys.executable, str(HERE / "crash_writer.py"), str(directory)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert writer.stdout is not None
    deadline = time.monotonic() + 60
    seen = 0
    try:
        while seen <= commits:
            ready, _, _ = select.select([writer.stdout], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"writer stopped after {seen} commits"
            chunk = os.read(writer.stdout.fileno(), 65536)
            assert chunk, "writer ended by itself"
            seen += chunk.count(b"\n")
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()


@pytest.mark.slow
def test_killed_store_is_at_its_recorded_offset(tmp_path):
    """However often the process is killed, the rows on disk are those of the recorded changelog offset, none else."""
    random.seed(7)
    state: dict[int, int] = {}
    reached = -1
    for _ in range(KILLS):
        kill_after(tmp_path, random.randint(1, 150))
        store = open_store(tmp_path)
        recorded = store.committed_offset(CHANGELOG)
        recorded = -1 if recorded is None else recorded
        if recorded < reached:
            state.clear()
            reached = -1
        for offset in range(max(reached + 1, recorded - 20 * KEYS), recorded + 1):
            key, value = row(offset)
            state[key] = value
        reached = recorded
        assert dict(store.all()) == state
        store.close()
    assert reached > 0
