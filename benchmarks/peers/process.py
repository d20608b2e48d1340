"""What every peer's process does, whatever the library: wait for the signal to start, say how far it is, and what it took.

It reads and writes lines, as `instances.py` expects them. Time and CPU count from the first record that is processed until the
application is closed, so starting the process and joining the group do not count. Only the standard library is used, since Quix
Streams has an environment of its own.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable

_SAMPLE_S = 0.02
_saying = threading.Lock()


def say(**report: object) -> None:
    """Report something."""
    with _saying:
        print(json.dumps(report), flush=True)


class Measured:
    """Watches the number of processed records, and reports it, from the signal to start until `close` has returned.

    Args:
        processed: returns how many records are processed.
        close: ends the application; called when standard input ends.
    """

    def __init__(self, processed: Callable[[], int], close: Callable[[], None]) -> None:
        self._processed, self._close = processed, close
        self._began = self._cpu_began = 0.0

    def wait_for_start(self) -> None:
        """Wait for the first line of standard input, and watch from then on."""
        say(ready=True)
        if not sys.stdin.readline():
            sys.exit("The benchmark has ended")
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        last = 0
        while True:
            now = self._processed()
            if now and not last:
                self._began, self._cpu_began = time.monotonic(), time.process_time()
            if now != last:
                say(processed=now)
                last = now
            time.sleep(_SAMPLE_S)

    def close_at_end_of_input(self) -> None:
        """Close the application when standard input ends."""
        sys.stdin.read()
        self._close()

    def report(self) -> None:
        """Report time and CPU."""
        began, cpu_began = self._began or time.monotonic(), self._cpu_began or time.process_time()
        cpu = time.process_time()
        say(began=began, ended=time.monotonic(), cpu_seconds=cpu - cpu_began, whole_cpu_seconds=cpu)
