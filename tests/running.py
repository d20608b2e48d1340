"""Says which test has failed at once, and which have not ended when a run is told to end, as by `timeout`."""

from __future__ import annotations

import signal
from types import FrameType

import pytest


class RunningTests:
    """Knows which tests have begun and not ended, in all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._running: dict[str, None] = {}
        signal.signal(signal.SIGTERM, self._end)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note a test that begins."""
        self._running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Forget it."""
        self._running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Name a test that has failed; its report comes at the end of the run."""
        if report.failed:
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            terminal.write_line(f" {report.nodeid} failed", red=True)

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        pytest.exit(
            f"told to end; not ended: {', '.join(self._running) or 'none'}", returncode=pytest.ExitCode.INTERRUPTED
        )
