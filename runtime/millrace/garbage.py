"""Makes Python look for garbage less often while records are processed.

Fetched batches are many new objects without reference cycles. Python counts new objects, and goes through all of the youngest
again and again as their number grows: at its own thresholds that takes a tenth of an instance's time, and half of a backfill's,
which holds more records at once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["MANY_RECORDS", "rarely_collected"]

MANY_RECORDS: Final = 50_000, 20, 100
"""Thresholds for a process that holds very many records at once."""
_DEFAULTS: Final = frozenset({700, 2_000})
"""Python's own, until 3.13 and since."""
_THRESHOLD: Final = 20_000
"""More than the objects of a few fetched batches."""


@contextmanager
def rarely_collected(threshold: int = _THRESHOLD, *others: int) -> Iterator[None]:
    """Look for garbage rarely until the `with` block ends, unless the program has set its own threshold.

    Args:
        threshold: after how many new objects.
        others: for older objects, see `gc.set_threshold`; by default they stay as they are.
    """
    before = gc.get_threshold()
    if before[0] not in _DEFAULTS:
        yield
        return
    gc.set_threshold(threshold, *(others or before[1:]))
    try:
        yield
    finally:
        gc.set_threshold(*before)
