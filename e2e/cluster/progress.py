"""Progress messages of the setup: plain lines, since they are read in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(line: str) -> None:
    """Print a line immediately, to standard error: standard output belongs to kubectl."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def phase(title: str) -> Iterator[None]:
    """Report how long the block took, even if it fails."""
    started = time.monotonic()
    outcome = "failed after"
    try:
        yield
        outcome = "took"
    finally:
        say(f"{title} {outcome} {time.monotonic() - started:.1f} s")
