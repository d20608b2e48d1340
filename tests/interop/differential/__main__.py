"""Compares Millrace with Kafka Streams on random inputs.

    python -m tests.interop.differential [--seeds N] [--first-seed N] [--only TOPOLOGY…] [--suffixes SUFFIX…] [--keep FOLDER]

It compares every topology's description and topics. For every topology, suffix and seed it also generates an input: Kafka
Streams' own test driver records the results, and the golden cases' replay compares them. It prints each mismatch and finally `N
passed, N failed`, and exits with 1 if any failed.

No topology scans a cached store backwards after it has deleted rows, as an aggregation over sliding windows does too: Java then
finds deleted rows, or rows without a value. Nor does any look backwards in a cached session store for one key's sessions up to a
start: Java leaves out cached sessions that end after it. See "State" in `docs/differences.md`.
"""
# ruff: noqa: T201 (a command-line tool)

from __future__ import annotations

import argparse
import fnmatch
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.interop.differential.comparison import Wanted, described_differences, differences
from tests.interop.differential.definitions import COMPARED
from tests.interop.differential.inputs import SUFFIXES
from tests.interop.differential.recorder import Recorder

INFORMATIONAL = {
    ("*", "cache_tiny"): "evictions depend on Java's accounting of bytes per cache entry",
    ("deser_*", "sync*"): "Java reads one record ahead of the one it processes",
    ("ts_negative_fail", "sync*"): "Java reads one record ahead of the one it processes",
    ("ts_use_partition_time", "sync*"): "Java reads one record ahead of the one it processes",
}
"""Patterns of topologies and suffixes that may differ, each with the reason."""
_DESCRIBED_OTHERWISE = {"suppress_joined": "Java does not check the partitions of a table after suppress()"}
"""Topologies whose descriptions and topics may differ, each with the reason."""
_MAX_SHOWN, _MAX_LENGTH = 3, 1500


def main(arguments: list[str] | None = None) -> int:
    """Compare; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare with Kafka Streams on random inputs.")
    parser.add_argument("--seeds", type=int, default=1, help="inputs per topology and suffix")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=["*"], help="topologies, as patterns")
    parser.add_argument("--suffixes", nargs="*", default=list(SUFFIXES))
    parser.add_argument("--keep", type=Path, help="where cases that differ are kept")
    options = parser.parse_args(arguments)
    logging.getLogger("millrace").setLevel(logging.CRITICAL)
    names = [name for name in COMPARED if any(fnmatch.fnmatch(name, pattern) for pattern in options.only)]
    cases = [
        Wanted(name, suffix, seed)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for suffix in options.suffixes
        for name in names
        if COMPARED[name].inputs
    ]
    passed = failed = 0
    with tempfile.TemporaryDirectory() as directory:
        recorder = Recorder(Path(directory))
        kept = options.keep or Path(directory) / "cases"
        for name, note, problems in _all(names, cases, recorder, kept, keep=options.keep is not None):
            if not problems or note:
                passed += 1
            else:
                failed += 1
            if problems:
                print(f"note {name} ({note})" if note else f"FAIL {name}", flush=True)
            for problem in [] if note else problems[:_MAX_SHOWN]:
                print(f"     {problem[:_MAX_LENGTH]}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _all(
    names: list[str], cases: list[Wanted], recorder: Recorder, kept: Path, *, keep: bool
) -> Iterator[tuple[str, str | None, list[str]]]:
    for name, problems in described_differences(names, recorder, kept / "describe"):
        yield f"describe {name}", _DESCRIBED_OTHERWISE.get(name), ["\n".join(problems)] if problems else []
    for wanted, problems in differences(cases, recorder, kept, keep=keep):
        yield str(wanted), _note(wanted), problems


def _note(wanted: Wanted) -> str | None:
    for (topology, suffix), why in INFORMATIONAL.items():
        if fnmatch.fnmatch(wanted.topology, topology) and fnmatch.fnmatch(wanted.suffix, suffix):
            return why
    return None


if __name__ == "__main__":
    sys.exit(main())
