"""A pytest plugin that writes to a file what the run has cost: `--record FILE`."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.budget.processes import ProcessCounter


def cpu_s() -> float:
    """Return the processor time of this process and of the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def loop_s() -> float:
    """Return the processor time of a fixed loop: the unit in which processor time can be compared between machines."""
    found = []
    for _ in range(5):
        began = time.process_time()
        sum(number * number for number in range(1_000_000))
        found.append(time.process_time() - began)
    return min(found)


class TestCosts:
    """Lets each test's last report carry the processor time that the test took in its worker."""

    def __init__(self) -> None:
        self._began_s = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[Any]:
        """Note where the test begins."""
        self._began_s = cpu_s()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[Any]:
        """Add the processor time to the report of the test's end."""
        report = yield
        if call.when == "teardown":
            report.cpu_s = cpu_s() - self._began_s
        return report


class SharedFixtures:
    """Lets what all tests share belong to none of them, so that it is counted once. A conftest's hooks do not see it."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        """Name the fixture in place of the first test that needs it."""
        if fixturedef.scope != "session":
            return (yield)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("PYTEST_CURRENT_TEST", f"fixture {fixturedef.argname}")
            return (yield)


class Costs:
    """Counts what this process and those below it cost, from its creation on."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._loop_s = loop_s()
        self._processes = ProcessCounter()
        self._processes.start()

    def write(self, path: Path, **more: object) -> None:
        """End, and write the costs to a file, with what else is known."""
        self._processes.stop()
        processes = self._processes.processes
        own = os.times()
        recorded = {
            "wall_s": round(time.monotonic() - self._began_s, 1),
            "cpu_s": round(own.user + own.system + sum(each.cpu_s for each in processes), 1),
            "loop_s": self._loop_s,
            "processes": sorted([kind, each.test] for each in processes for kind in each.kinds),
            **more,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(recorded, indent=1) + "\n")


class Recording:
    """Adds up what tests and processes have cost, in the process that the user has started."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._costs = Costs()
        self._files: dict[str, dict[str, float]] = defaultdict(lambda: {"s": 0.0, "cpu_s": 0.0, "tests": 0})
        self._tests: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a report."""
        found = self._files[report.nodeid.partition("::")[0]]
        found["s"] += report.duration
        self._tests[report.nodeid] += report.duration
        if report.when == "teardown":
            found["cpu_s"] += getattr(report, "cpu_s", 0.0)
            found["tests"] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Write the file, once workers and shared brokers have ended."""
        files = {name: {key: round(value, 2) for key, value in found.items()} for name, found in self._files.items()}
        slow = sorted(self._tests.items(), key=lambda found: -found[1])[:100]
        self._costs.write(self._path, files=files, slowest={name: round(duration, 2) for name, duration in slow})
