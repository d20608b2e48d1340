"""Background chores of an instance: measuring its speed, writing its status file, deleting state that nobody uses.

State in use is marked as such, because its age counts after a crash.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from millrace.config import StreamsConfig
from millrace.instance.state_directory import StateDirectory
from millrace.instance.states import State
from millrace.instance_status import StreamsStatus, write_status

__all__ = ["Housekeeping"]

_log = logging.getLogger(__name__)
_STATUS_EVERY_S = 1.0


class Housekeeping:
    """The housekeeping thread of one instance.

    Args:
        config: the application's settings.
        directory: cleaned every `state.cleanup.delay.ms`; its tasks are marked as used more often.
        measure: takes readings of the instance's counters; called every second.
        take_status: looks at the instance; its status file, if it has one, is rewritten every second.
    """

    def __init__(
        self,
        config: StreamsConfig,
        directory: StateDirectory,
        measure: Callable[[], None],
        take_status: Callable[[], StreamsStatus],
    ) -> None:
        self._measure = measure
        self._take_status = take_status
        self._status_file: str = config.internal("__status.file__", "")
        self._directory = directory
        self._clean_every_s = max(1.0, config.state_cleanup_delay_ms / 1000)
        self._problem = ""
        self._writing = threading.Lock()
        self._ended = False
        self._stop = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="millrace-housekeeping", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stop.set()

    def write_status(self, end: State | None = None) -> None:
        """Write the status file; pass `end`, the instance's final state, when writing it for the last time."""
        with self._writing:
            if not self._status_file or self._ended:
                return
            self._ended = end is not None
            status = self._take_status()
            try:
                write_status(status if end is None else replace(status, state=end.value), Path(self._status_file))
            except OSError as error:
                if self._problem != str(error):  # log it once, not every second
                    self._problem = str(error)
                    _log.warning("Cannot write the status file %s: %s", self._status_file, error)
            else:
                self._problem = ""

    def _run(self) -> None:
        cleaned = touched = time.monotonic()
        wait_s = 0.0
        while not self._stop.wait(wait_s):
            wait_s = _STATUS_EVERY_S
            try:
                self._measure()
                self.write_status()
                if time.monotonic() - touched >= self._directory.touch_every_s:
                    touched = time.monotonic()
                    self._directory.touch_owned()
                if time.monotonic() - cleaned >= self._clean_every_s:
                    cleaned = time.monotonic()
                    self._directory.clean_idle()
            except Exception:  # nothing depends on it, and the next attempt may succeed, but it should not happen
                _log.exception("Housekeeping failed and will be retried")
