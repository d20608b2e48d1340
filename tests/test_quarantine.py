"""Tests that fail by chance are kept apart, but not for ever, and a run that is ended says what had not ended."""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import sys

import pytest
from tests import quarantine
from tests.waiting import wait_until

TODAY = dt.date(2030, 1, 15)
TEST = "tests/test_quarantine.py::test_entry_that_is_in_order"


def test_entry_that_is_in_order():
    """A test may be in quarantine for two weeks."""
    assert list(quarantine.mistakes(f"# why\n\n{TEST} 2030-01-01 a port is taken\n", TODAY)) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{TEST} 2029-12-31 a port is taken", "mend it"),
        (f"{TEST} 2030-01-15", "not a test's node id, a date and a reason"),
        ("tests/test_quarantine.py::test_none 2030-01-15 why", "does not exist"),
        ("tests/test_none.py::test_none 2030-01-15 why", "does not exist"),
        (f"{TEST} soon why", "not a test's node id, a date and a reason"),
    ],
)
def test_mistakes_in_the_list(line, message):
    """Old entries, and those that are no test with a date and a reason, are mistakes."""
    (mistake,) = quarantine.mistakes(line, TODAY)
    assert message in mistake


SAMPLE = '''
import time

def test_good():
    """Pass."""

def test_bad():
    """Fail."""
    assert not "as always"

def test_endless():
    """Stand still."""
    print("here", flush=True)
    time.sleep(600)
'''
CONFTEST = """
from pathlib import Path
from tests import quarantine
from tests.running import RunningTests
quarantine.LIST = Path(__file__).with_name("quarantine.txt")

def pytest_addoption(parser):
    parser.addoption("--quarantined", action="store_true")

def pytest_configure(config):
    config.pluginmanager.register(RunningTests(config))

def pytest_collection_modifyitems(config, items):
    quarantine.keep_apart(config, items)
"""


@pytest.fixture
def project(tmp_path):
    """Return a folder with three tests, of which one is in quarantine."""
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {quarantine._ROOT} {quarantine._ROOT / 'runtime'}\n")
    (tmp_path / "quarantine.txt").write_text("test_sample.py::test_bad 2030-01-01 fails\n")
    return tmp_path


def pytest_in(folder, *arguments):
    """Start pytest there."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_quarantined_tests_run_apart(project):
    """The other tests run without them, and they without the others."""
    with pytest_in(project, "--deselect", "test_sample.py::test_endless") as normal:
        assert "1 passed, 2 deselected" in normal.communicate()[0]
    with pytest_in(project, "--quarantined") as apart:
        assert "1 failed, 2 deselected" in apart.communicate()[0]


def test_run_that_is_ended_names_the_test(project):
    """A run that SIGTERM ends says which test it was in."""
    with pytest_in(project, "-s", "-v") as process:
        wait_until(lambda: "here" in process.stdout.readline(), "the test stands still")
        process.send_signal(signal.SIGTERM)
        assert "not ended: test_sample.py::test_endless" in process.communicate()[0]
        assert process.returncode == 2
