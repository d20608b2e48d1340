"""What the set-up says while it works: plain lines, for a log is where they are read."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(line: str) -> None:
    """Print a line at once, to standard error: standard output belongs to kubectl."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def phase(title: str) -> Iterator[None]:
    """Say how long the block took, also when it fails."""
    started = time.monotonic()
    outcome = "failed after"
    try:
        yield
        outcome = "took"
    finally:
        say(f"{title} {outcome} {time.monotonic() - started:.1f} s")
