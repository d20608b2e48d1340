"""Has Python look for garbage less often while a backfill handles records.

A backfill holds many records at once, each a few small objects without cycles. Python counts new objects, and goes through all
of them again and again as their number grows: at its own thresholds that took up to half of a task's time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["rarely_collected"]

_THRESHOLDS: Final = 50_000, 20, 100


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Look for garbage rarely until the `with` block ends."""
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
