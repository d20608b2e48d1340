"""How a download shows itself: a bar for a person at a terminal, two plain lines for a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]
"""Tells the display that so many more bytes have arrived; may be called from any thread."""


@contextmanager
def download_progress(title: str, source: str, total_bytes: int) -> Iterator[Advance]:
    """Show a download on standard error while the block runs.

    Args:
        title: What is downloaded.
        source: How many files from where; left out of the bar, which has one line.
        total_bytes: How much will arrive.
    """
    if sys.stderr.isatty():
        with _bar(title, total_bytes) as advance:
            yield advance
        return
    started = time.monotonic()
    print(f"Fetching {title}: {source}, {total_bytes / 1e6:.0f} MB", file=sys.stderr, flush=True)  # noqa: T201
    yield lambda _bytes: None
    print(f"Fetched {total_bytes / 1e6:.0f} MB in {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def _bar(title: str, total_bytes: int) -> Iterator[Advance]:
    from rich.console import Console  # noqa: PLC0415 (slow to import, needed at a terminal only)
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total_bytes)
        yield lambda arrived: progress.advance(task, arrived)
