"""The log of librdkafka: what it says many times a second while brokers are away is said every ten seconds."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 10.0
_CHANGING: Final = re.compile(r" ?\(after .*?\)|, \d+ identical error\(s\) suppressed")
_MOST: Final = 1_000


class Sparingly(logging.Filter):
    """Pass each message once per interval, with how many of its kind were left out since.

    Two messages are of a kind if they differ only in how long a connection had lasted.

    Args:
        interval_s: How long a kind is left out after it was passed.
        clock: What tells the time in seconds.
    """

    def __init__(self, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._passed: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be logged; one that is tells of those before it that were not."""
        kind, now = _CHANGING.sub("", record.getMessage()), self._clock()
        with self._lock:
            at, left_out = self._passed.get(kind, (-self._interval_s, 0))
            if now - at < self._interval_s:
                self._passed[kind] = at, left_out + 1
                return False
            if len(self._passed) >= _MOST:
                self._passed.clear()
            self._passed[kind] = now, 0
        if left_out:
            record.msg, record.args = f"{record.getMessage()} [and {left_out} times before]", ()
        return True


librdkafka_log: Final = logging.getLogger("millrace.kafka.librdkafka")
"""What the clients log to."""
librdkafka_log.addFilter(Sparingly())
